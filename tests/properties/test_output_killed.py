"""A writer that is killed again and again, on a real disk, while a reader follows and small segments are merged."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

from cluster.output.adopting import compact
from cluster.output.disk import LocalDisk
from cluster.output.reader import Log
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
