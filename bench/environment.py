"""Where a benchmark ran: machine, commit and versions, recorded beside its figures."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def environment() -> dict[str, str | int]:
    """Return the processor's name, cores, Python's version and the commit ("+" for a changed work tree)."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    try:
        short = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return short + ("+" if changed else "")
