"""What every source of publications has in common: the report of one reading, and files plain or gzipped."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, cast

from cluster.errors import KittiwakeError
from cluster.language.normal import Value

Publication = dict[str, Value]

TROUBLES_KEPT = 1_000
"""Troubles listed one by one; further ones are only counted, so that a file of nothing but bad lines stays cheap."""

DAMAGED = (OSError, EOFError, zlib.error)
"""What reading a truncated or damaged file raises, plain or gzipped."""


class ReadingsError(KittiwakeError):
    """Readings of which nothing can be used: the path is missing, or is not in the format asked for."""

    code = "readings"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something in a file that gave no publication. line counts from 1; 0 is the file as a whole."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.reason}"


@dataclass(slots=True)
class Report:
    """What one pass over a source has seen so far.

    rows:      rows of data, without headers and empty lines; those that could not be used included.
    values:    measured values in these rows; for formats without validity flags, one for each row.
    valid:     values that the source declares valid and that are finite numbers; each gives one publication.
    published: publications handed out; less than `valid` while the pass goes on or if it was left early.
    troubles:  the first TROUBLES_KEPT things that could not be used, in the order of discovery.
    trouble_count: all of them.
    faults:        those among them that are somebody's mistake; a row whose values the source itself declares not
                   valid is well-formed and no fault.
    unused_rows:   rows of which no value at all was used; each is among the troubles.
    """

    rows: int = 0
    values: int = 0
    valid: int = 0
    published: int = 0
    unused_rows: int = 0
    trouble_count: int = 0
    faults: int = 0
    troubles: list[Trouble] = field(default_factory=list)

    def trouble(self, file: str, line: int, reason: str, *, unused_row: bool = False, fault: bool = True) -> None:
        """Note something that could not be used."""
        self.trouble_count += 1
        self.faults += fault
        self.unused_rows += unused_row
        if len(self.troubles) < TROUBLES_KEPT:
            self.troubles.append(Trouble(file, line, reason))


class Readings(Protocol):
    """A source of publications."""

    @property
    def report(self) -> Report:
        """The report of the pass that goes on, or of the last one."""
        ...

    @property
    def fraction(self) -> float:
        """How much of the pass is done, 0 to 1; never falls within a pass."""
        ...

    def __iter__(self) -> Iterator[Publication]: ...


def open_binary(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """Open a file, gzipped or not (its first bytes tell, not its name), and return (contents, the file on disk).

    The position in the second, against the file's size, says how far a reader has come. Close both.
    """
    try:
        disk = path.open("rb")
    except OSError as error:
        raise ReadingsError(f"{path}: {error.strerror or error}") from error
    gzipped = disk.read(2) == b"\x1f\x8b"
    disk.seek(0)
    return (cast("IO[bytes]", gzip.open(disk, "rb")) if gzipped else disk), disk


def size_bytes(path: Path) -> int:
    """Return a file's size on disk in bytes, at least 1."""
    try:
        return max(1, os.stat(path).st_size)
    except OSError as error:
        raise ReadingsError(f"{path}: {error.strerror or error}") from error
