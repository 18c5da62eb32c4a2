"""A streaming query is killed at chosen points while its log grows, is compacted and gets a new slot.

What the sink holds in the end must be the log's rows, each once. The points, seen from the files:

    planned     Spark has written down which offsets the batch has, and has not read them
    writing     files of the batch are in the sink, and nobody counts them yet
    in_sink     the sink counts the batch, and the checkpoint does not know
    any         a random moment
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.query import ROWS_MAX, finish, start
from tests.spark.rows import append, compact, readings

POINTS = ("writing", "in_sink", "planned", "any")
ROOT = Path(__file__).parents[2]
WAIT_S = 300.0


@dataclass
class Outcome:
    """What came of a run. at: the points at which the query was killed."""

    rows: int
    lost: int
    doubled: int
    at: list[str]


@dataclass
class Folders:
    """The log, the query's checkpoint and its sink."""

    log: Path
    checkpoint: Path
    sink: Path

    def numbers(self, folder: Path) -> set[int]:
        if not folder.is_dir():
            return set()
        return {int(name.split(".")[0]) for name in os.listdir(folder) if name.split(".")[0].isdecimal()}

    def batches(self) -> tuple[set[int], set[int], set[int]]:
        """Return the batches that are planned, that the sink counts, and that are done."""
        return (
            self.numbers(self.checkpoint / "offsets"),
            self.numbers(self.sink / "_spark_metadata"),
            self.numbers(self.checkpoint / "commits"),
        )

    def files(self) -> int:
        return sum(name.endswith(".parquet") for _, _, names in os.walk(self.sink) for name in names)

    def is_at(self, point: str, files: int) -> bool:
        """Tell whether the query is at a point. files: in the sink, when the batch was planned."""
        planned, counted, done = self.batches()
        if point == "planned":
            return bool(planned - counted - done)
        if point == "writing":
            return bool(planned - counted) and self.files() > files
        return bool(counted - done)


@dataclass
class Writer:
    """Appends to the log, in a thread, until it is told to stop: three slots, the third only later."""

    folders: Folders
    rng: random.Random
    written: list[int] = field(default_factory=lambda: [0, 0, 0])
    stopping: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def write(self) -> None:
        slot = self.rng.randrange(3 if sum(self.written) > 800 else 2)
        count = self.rng.randint(1, 120)
        append(self.folders.log, slot, readings(self.written[slot], count))
        self.written[slot] += count

    def run(self) -> None:
        try:
            for turn in itertools.count():
                if self.stopping.wait(self.rng.uniform(0.05, 0.3)):
                    return
                # A query on a machine under load is slow: what waits for it stays about the same.
                if sum(self.written) < 1000 + ROWS_MAX * max(self.folders.batches()[0], default=0):
                    self.write()
                if turn % 5 == 4:
                    compact(self.folders.log, self.rng.randrange(2))
        except BaseException as error:
            self.failure = error


def run(spark: SparkSession, folder: Path, kills: int, seed: int) -> Outcome:
    """Kill the query `kills` times at points in turn; let it end in `spark`; compare."""
    rng = random.Random(seed)
    folders = Folders(folder / "log", folder / "checkpoint", folder / "sink")
    writer = Writer(folders, random.Random(seed + 1))
    for _ in range(12):
        writer.write()
    thread = threading.Thread(target=writer.run)
    thread.start()
    at = []
    try:
        for number in range(kills):
            point = POINTS[number % len(POINTS)]
            kill_at(folders, point, number % 2, rng, folder / f"query-{number}.log")
            at.append(point)
    finally:
        writer.stopping.set()
        thread.join()
    if writer.failure is not None:
        raise writer.failure
    finish(lambda: start(spark, folders.log, folders.checkpoint, folders.sink, 10_000, availableNow=True))
    found: list[Any] = spark.read.parquet(str(folders.sink)).select("slot", "offset", "sequence").collect()
    names = [(row["slot"], row["offset"], row["sequence"]) for row in found]
    expected = {(slot, offset, offset) for slot, count in enumerate(writer.written) for offset in range(count)}
    assert set(names) <= expected, f"seed {seed}: rows that nobody wrote: {sorted(set(names) - expected)[:5]}"
    return Outcome(len(expected), len(expected - set(names)), len(names) - len(set(names)), at)


def kill_at(folders: Folders, point: str, batches: int, rng: random.Random, log: Path) -> None:
    """Run the query until it has done so many batches and is at the point, then SIGKILL it with all its processes."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.query", folders.log, folders.checkpoint, folders.sink],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wanted = max(folders.batches()[2], default=-1) + batches
        deadline = time.monotonic() + WAIT_S
        moment: float | None = None
        files = folders.files()
        while True:
            assert process.poll() is None, f"the query ended by itself: {log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"the query never was at {point}: {log.read_text()[-3000:]}"
            done = folders.batches()[2]
            if max(done, default=-1) < wanted:
                files = folders.files()
            elif point == "any":
                moment = time.monotonic() + rng.uniform(0, 2) if moment is None else moment
                if time.monotonic() >= moment:
                    return
            elif folders.is_at(point, files):
                return
            else:
                planned, counted, _ = folders.batches()
                if planned == counted:
                    files = folders.files()
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
