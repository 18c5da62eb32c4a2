"""Recorded signals as files: a folder of Parquet files of bounded size in all, and the reading of one or many.

A Parquet file can be read once it has its end, so that the recorder writes many small ones: each is written aside,
synced, renamed and never touched again, and a process that dies loses `rotate_s` of signals at most. The oldest go when
all together pass `bytes_max`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from autoscaler.recording import SCHEMA, RecordingError, Row, check_schema, intervals_of, rows_of, table_of
from autoscaler.signals import Signals

ROTATE_S: Final = 300.0
BYTES_MAX: Final = 256 << 20
ROWS_MAX: Final = 50_000
"""Rows that wait in memory at most; with more a file is written early."""

BATCH: Final = 10_000
PREFIX: Final = "signals-"


class Recorder:
    """Writes intervals to a folder, which it makes. Raises: OSError, from `add` and `close`."""

    def __init__(self, folder: Path | str, *, rotate_s: float = ROTATE_S, bytes_max: int = BYTES_MAX) -> None:
        self.folder = Path(folder)
        self._rotate_s = rotate_s
        self._bytes_max = bytes_max
        self._rows: list[Row] = []
        self._first_s: float | None = None
        self._last_s = float("-inf")

    def add(self, at_s: float, signals: Signals) -> None:
        """Take in one interval; a time that is not after the last one is passed over. Now and then it writes a file."""
        if at_s <= self._last_s:
            return
        self._last_s = at_s
        if self._first_s is None:
            self._first_s = at_s
        self._rows += rows_of(at_s, signals)
        if at_s - self._first_s >= self._rotate_s or len(self._rows) >= ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered to a file of its own."""
        if not self._rows or self._first_s is None:
            return
        name = f"{PREFIX}{int(self._first_s * 1000):015}.parquet"
        rows, self._rows, self._first_s = self._rows, [], None
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / name, rows)
        self._make_room()

    close = flush

    def _make_room(self) -> None:
        files = sorted(self.folder.glob(f"{PREFIX}*.parquet"))
        sizes = {path: path.stat().st_size for path in files}
        total = sum(sizes.values())
        for path in files[:-1]:
            if total <= self._bytes_max:
                break
            with suppress(FileNotFoundError):
                path.unlink()
            total -= sizes[path]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as one file, which is there whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            parquet.write_table(table_of(rows), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()


class Recording:
    """A recording that can be gone through again and again. Raises: RecordingError, here and on the way."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.files: Sequence[Path] = (self.path,)
        if self.path.is_dir():
            self.files = sorted(self.path.glob("*.parquet"))
            if not self.files:
                raise RecordingError(f"{path} has no Parquet file in it")
        for file in self.files:
            try:
                check_schema(parquet.read_schema(file), str(file))
            except (OSError, pa.ArrowException) as error:
                raise RecordingError(f"{file} cannot be read: {error}") from error

    def __iter__(self) -> Iterator[tuple[float, Signals]]:
        """Yield (unix seconds, signals) of each interval, in the order of time."""
        return intervals_of(self._rows(), str(self.path))

    def _rows(self) -> Iterator[Row]:
        for file in self.files:
            try:
                with parquet.ParquetFile(file) as reader:
                    for batch in reader.iter_batches(BATCH, columns=SCHEMA.names):
                        yield from batch.to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise RecordingError(f"{file} cannot be read: {error}") from error
