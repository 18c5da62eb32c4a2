"""Where a benchmark ran: machine, commit and versions, recorded beside its figures."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

PIECES = 800
"""Of about a millisecond each."""


def environment() -> dict[str, str | int | float]:
    """Return the processor's name, cores, Python's version, the commit ("+" for a changed work tree), and what `pauses`
    finds when the measurement is over."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "commit": _commit(),
        **pauses(),
    }


def pauses() -> dict[str, float]:
    """Return how far this machine leaves a process alone that does nothing but calculate: under a hypervisor even an
    idle one may not, and no delay measured on it is better than this.

    pause_max_ms: what the slowest of many equal pieces of work took beyond the median. pauses: the share of the time
    that all took beyond it. What other processes of this machine run meanwhile counts as well.
    """
    took = []
    for _ in range(PIECES):
        begin = time.perf_counter()
        sum(number * number for number in range(15_000))
        took.append(time.perf_counter() - begin)
    median = statistics.median(took)
    beyond = sum(max(one - median, 0.0) for one in took)
    return {"pause_max_ms": round((max(took) - median) * 1e3, 1), "pauses": round(beyond / sum(took), 3)}


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
