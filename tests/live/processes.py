"""Processes as the live tests start them, above all `kittiwake up`, and what can be seen of them from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.process import started_at
from cluster.config import Timing

COMMAND = [str(Path(sys.executable).with_name("kittiwake"))]
PATIENCE_S = 120.0
"""How long a test waits for what takes seconds on a quiet machine. It is no claim of speed."""
BENCHMARK_S = 300.0
PATIENT = Timing(role_lost_ms=10_000)
"""A machine that runs other tests as well may let a process wait. Those that die are told of at once all the same."""
TAIL = 5000
"""How much of each output a failure shows, from its end, in characters."""


def wait_for(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Poll until the condition holds; fail with `what` after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"after {PATIENCE_S:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


async def eventually(condition: Callable[[], object]) -> None:
    """Look until the condition holds, on the loop; fail after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    """Tell whether there is such a process, and it is no zombie."""
    return started_at(pid) is not None


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


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process of ours with all its descendants, if it still runs."""
    if process.poll() is None:
        family = tree(process.pid)
        process.kill()
        process.wait()
        _kill(family)


def _kill(family: Mapping[int, str]) -> None:
    for pid, start in family.items():
        if started_at(pid) == start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def printed(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float = BENCHMARK_S
) -> str:
    """Run a command to its end and return what it printed.

    When its exit status is not 0, or it takes too long (then it is killed, with its descendants), the test fails with
    the end of all that it has said.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        try:
            ended = f"exit status {process.wait(timeout_s)}"
        except subprocess.TimeoutExpired:
            ended = f"not ended within {timeout_s:g} s"
        finally:
            end(process)
        for file in (out, err):
            file.seek(0)
        text = out.read()
        tails = f"stdout:\n{text[-TAIL:]}\nstderr:\n{err.read()[-TAIL:]}"
    if ended != "exit status 0":
        pytest.fail(f"{' '.join(command)}\n{ended}\n{tails}", pytrace=False)
    return text


class Up:
    """A cluster that runs as `kittiwake up --config`, as PATIENT as others. endpoints: as it printed them."""

    def __init__(self, directory: Path, **config: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.config_path = directory / "config.yaml"
        timing = {"role_lost_ms": PATIENT.role_lost_ms, **config.pop("timing", {})}
        # JSON is YAML.
        self.config_path.write_text(json.dumps({"data_directory": str(directory / "data"), "timing": timing, **config}))
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
        """The URLs that it printed; Ray prints there as well what it thinks of processes that are killed."""
        return [line for line in self.stdout.splitlines() if line.startswith("kittiwake://")]

    def start(self) -> Up:
        """Start it and wait until it is up."""
        self.begin()
        wait_for(lambda: "kittiwake: up" in self.stderr or self.ended, lambda: f"not up: {self.stderr[-TAIL:]}")
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
        wait_for(lambda: self.ended, lambda: f"it does not end: {self.stderr[-TAIL:]}")
        return int(self.process.returncode)

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
        wait_for(lambda: not self.left_over(), lambda: f"still running: {self.left_over()}")

    def status(self) -> tuple[int, dict[str, Any]]:
        """Run `kittiwake status --json`; return its exit code and the document ({} without one)."""
        done = subprocess.run(
            [*COMMAND, "status", "--config", str(self.config_path), "--json"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    def kill(self) -> None:
        """Kill all of it at once, as when the power fails: every process of its tree, and wait until they are gone."""
        assert self.process is not None
        self.family |= tree(self.process.pid)
        self.process.kill()
        _kill(self.family)
        self.process.wait()
        self.assert_gone()

    def kill_everything(self) -> None:
        """For a test that failed: end what is left of our own tree, by pid."""
        if self.process is not None and self.process.poll() is None:
            self.family |= tree(self.process.pid)
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            end(self.process)
        _kill(self.family)
