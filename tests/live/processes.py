"""`kittiwake up` as a process, and what can be seen of it from outside: output, tree of processes, status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.process import started_at

COMMAND = [sys.executable, "-c", "from actors.cli import main; main()"]
START_S = 120.0
STOP_S = 60.0


def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until the condition holds; fail with `what` after the time, which is generous and no claim of speed."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:g} s: {what}"
        time.sleep(0.02)


def parent(pid: int) -> int:
    """Return the pid of the process that made this one: the raylet of its node."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tree(pid: int) -> dict[int, str]:
    """Return the descendants of one of our own processes: pid -> when it started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            start = started_at(child)
            if start is not None:
                found[child] = start
                todo.append(child)
    return found


class Up:
    """A cluster that runs as `kittiwake up --config`. endpoints: as it printed them."""

    def __init__(self, directory: Path, **config: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.config_path = directory / "config.yaml"
        # JSON is YAML.
        self.config_path.write_text(json.dumps({"data_directory": str(directory / "data"), **config}))
        self.process: subprocess.Popen[bytes] | None = None
        self.family: dict[int, str] = {}

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return (self._directory / "out").read_text()

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return (self._directory / "err").read_text()

    @property
    def endpoints(self) -> list[str]:
        """The URLs that it printed."""
        return self.stdout.split()

    def start(self) -> Up:
        """Start it and wait until it is up."""
        self.begin()
        wait_for(lambda: "kittiwake: up" in self.stderr or self.ended, START_S, "it is not up")
        assert not self.ended, f"it ended: {self.stderr}"
        assert self.process is not None
        self.family = tree(self.process.pid)
        return self

    def begin(self) -> None:
        """Start it."""
        with (self._directory / "out").open("wb") as out, (self._directory / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--config", str(self.config_path)], stdout=out, stderr=err, stdin=subprocess.DEVNULL
            )

    @property
    def ended(self) -> bool:
        """It has ended."""
        return self.process is None or self.process.poll() is not None

    def stop(self, number: int) -> int:
        """Send it a signal and return its exit code."""
        assert self.process is not None
        self.family |= tree(self.process.pid)
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def left_over(self) -> list[str]:
        """Return the command lines of processes of its tree that still run."""
        lines = []
        for pid, start in self.family.items():
            if started_at(pid) == start:
                try:
                    lines.append(
                        f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:99]
                    )
                except OSError:
                    continue
        return lines

    def assert_gone(self) -> None:
        """Every process of its tree ends, soon."""
        wait_for(lambda: not self.left_over(), 20.0, f"still running: {self.left_over()}")

    def status(self) -> tuple[int, dict[str, Any]]:
        """Run `kittiwake status --json`; return its exit code and the document ({} without one)."""
        done = subprocess.run(
            [*COMMAND, "status", "--config", str(self.config_path), "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    def kill_everything(self) -> None:
        """For a test that failed: end what is left of our own tree, by pid."""
        if self.process is not None and self.process.poll() is None:
            self.family |= tree(self.process.pid)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid, start in self.family.items():
            if started_at(pid) == start:
                os.kill(pid, signal.SIGKILL)
