"""A writer that is killed again and again, on a real disk, while a reader follows and small segments are merged."""

from __future__ import annotations

import errno
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.cli import main
from actors.output_writer import join_output, seal_output
from cluster.config import Config, OutputSettings
from cluster.output.adopting import RUNNING, Adopted, compact, join, seal_ended_at
from cluster.output.disk import LocalDisk
from cluster.output.errors import OutputError
from cluster.output.reader import Log, open_log
from cluster.output.verify import verify

KILLS = 6


class Follower:
    """Reads what is committed, as a streaming query does: from where it was on."""

    def __init__(self, place: Path) -> None:
        self._log = Log(LocalDisk(place))
        self.sequences: list[int] = []

    def look(self) -> None:
        self._log.refresh()
        for slot, there in self._log.slots().items():
            for table in self._log.rows(slot, len(self.sequences), there.next, ["offset", "sequence", "clients"]):
                plain = table.to_pydict()
                assert plain["offset"] == list(range(len(self.sequences), len(self.sequences) + len(table)))
                assert plain["clients"] == [["lab"]] * len(table)
                self.sequences += plain["sequence"]


def test_a_writer_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    rng = random.Random(21)
    place = tmp_path / "output"
    follower = Follower(place)
    appended = 0
    for incarnation in range(1, KILLS + 1):
        command = [sys.executable, "-m", "tests.properties.output_process", str(tmp_path), str(incarnation)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            stored = 0
            lines = rng.randrange(300, 3_000)
            for line in process.stdout:
                kind, number = line.split()
                if kind == b"a":
                    appended = max(appended, int(number))
                else:
                    stored += 1
                lines -= 1
                if lines % 100 == 0:
                    follower.look()
                if lines <= 0 and stored > 3:
                    break
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split(b"\n")
            appended = max([appended, *(int(line[2:]) for line in rest[:-1] if line.startswith(b"a "))])
            process.wait()
            assert process.returncode == -signal.SIGKILL, process.stderr and process.stderr.read()
        found = verify(LocalDisk(place))
        assert not found.problems, found.problems
    done = compact(LocalDisk(place), LocalDisk(place), 1 << 20, 1 << 22, 0.0)
    assert not done[3].failed
    follower.look()
    assert follower.sequences == list(range(1, len(follower.sequences) + 1))
    assert appended <= len(follower.sequences) <= appended + 3
    assert verify(LocalDisk(place)).findings == []


def killed_process(directory: Path, incarnation: int, while_it_runs: Callable[[], None] = lambda: None) -> int:
    """Have a process write, and kill it; return the last publication that it said is on disk."""
    command = [sys.executable, "-m", "tests.properties.output_process", str(directory), str(incarnation)]
    stored = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"s "):
                stored = int(line[2:])
                if stored > 100:
                    while_it_runs()
                    break
        process.kill()
        for line in process.stdout.read().split(b"\n")[:-1]:
            if line.startswith(b"s "):
                stored = int(line[2:])
    return stored


def test_what_a_killed_cluster_has_left_is_sealed_by_who_reads_and_not_before(tmp_path: Path) -> None:
    place = tmp_path / "output"
    looked: list[Adopted] = []
    stored = killed_process(tmp_path, 1, lambda: looked.append(seal_ended_at(str(place))))
    assert looked[0].rows == 0, "sealed while the writer lived"

    with join(LocalDisk(place)):  # as `kittiwake up` does, whose exit point is about to come again
        assert seal_ended_at(str(place)) == Adopted(0, {}, running=True)
    done = CliRunner().invoke(main, ["output", "tail", str(place), "--rows", "100000"])
    assert done.exit_code == 0, done.output
    assert "that a cluster has left" in done.stderr
    sequences = [json.loads(line)["sequence"] for line in done.stdout.splitlines()]
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) >= stored
    assert seal_ended_at(str(place)) == Adopted(0, {}), "nothing is left"
    assert verify(LocalDisk(place)).findings == []


def test_what_exit_points_that_were_killed_have_left_is_sealed_when_the_cluster_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(data_directory=str(tmp_path), output=OutputSettings(path="output"))
    with join_output(config):
        stored = killed_process(tmp_path, 1)
        seal_output(config, 0.0)
        assert "a process of the cluster still runs" in caplog.text
    seal_output(config, 0.0)
    assert open_log(tmp_path / "output").slots()[3].next >= stored
    assert verify(LocalDisk(tmp_path / "output")).findings == []
    with pytest.raises(OutputError, match=r"output\.path /dev/null/output: Not a directory"):
        join_output(Config(output=OutputSettings(path="/dev/null/output")))


def test_rows_that_cannot_be_sealed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "output"
    killed_process(tmp_path, 1)

    def refused(disk: LocalDisk, path: str, *, shared: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, "owned", refused)
        done = CliRunner().invoke(main, ["output", "tail", str(place)])
    assert done.exit_code == 0
    assert "slot 3: rows that wait to be sealed are not read: [Errno 13] Permission denied" in done.stderr


def test_an_exit_point_that_starts_waits_for_who_seals(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    sealing = disk.owned(RUNNING)
    assert sealing is not None
    with sealing, pytest.raises(OutputError, match="seals the log from outside"):
        join(disk, 0.0)
    with join(disk), join(disk, 0.0):
        assert disk.owned(RUNNING) is None
