"""Everything that can be checked of a log, without changing anything: for `kittiwake output verify`, and tests.

    problem   rows are lost, doubled, changed, or in a wrong order; or a file cannot be read
    note      what a crash may leave and the next writer sees to: a torn end, files that no manifest lists

A log that is being written may show notes for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cluster.output.disk import Disk
from cluster.output.errors import OffsetsGoneError, OutputError
from cluster.output.manifest import FOLDER, Segment, slot_folder, slot_named
from cluster.output.reader import Log
from cluster.output.rows import int64s
from cluster.output.segments import by_day
from cluster.output.write_ahead import read_wal


class Finding(NamedTuple):
    """problem: else it is a note. file: where, "" for the slot as a whole."""

    problem: bool
    slot: int
    file: str
    what: str

    def __str__(self) -> str:
        place = self.file or f"slot {self.slot}"
        return f"{'problem' if self.problem else 'note'}: {place}: {self.what}"


class Verified(NamedTuple):
    """rows, segments: that were read and are as the manifests say."""

    rows: int
    segments: int
    findings: list[Finding]

    @property
    def problems(self) -> list[Finding]:
        """Those findings that are problems."""
        return [one for one in self.findings if one.problem]


def verify(disk: Disk, local: Disk | None = None) -> Verified:
    """Check a log. local: where its write-ahead files are, if not on the disk itself."""
    findings: list[Finding] = []
    log = Log(disk)
    rows = segments = 0
    seen: dict[tuple[str, int], list[np.ndarray]] = {}
    listed: set[str] = set()
    for slot in sorted(slot for name in disk.names(FOLDER) if (slot := slot_named(name)) is not None):
        try:
            log.refresh_slot(slot)
        except OutputError as error:
            findings.append(Finding(True, slot, error.file, error.reason))
            continue
        if slot not in log.slots():
            if any(name.startswith("wal-") for name in (local or disk).names(slot_folder(slot))):
                findings.append(Finding(True, slot, "", "has write-ahead files and no manifest"))
            continue
        if log.torn(slot):
            findings.append(Finding(False, slot, "", f"{log.torn(slot)} bytes at the manifest's end are no line"))
        offsets: list[np.ndarray] = []
        for segment in log.segments(slot):
            listed.add(segment.path)
            try:
                table = log.read(segment)
            except OffsetsGoneError:
                continue  # retention was faster
            except OutputError as error:
                findings.append(Finding(True, slot, error.file or segment.path, error.reason))
                continue
            listed.update(one.path for one in log.segments(slot))
            findings += _check_segment(segment, table)
            offsets.append(int64s(table.column("offset")))
            for key, sequences in _by_publisher(table):
                seen.setdefault(key, []).append(sequences)
            rows += len(table)
            segments += 1
        findings += _check_offsets(log, slot, offsets)
    findings += _check_once(seen)
    findings += _check_left(disk, local or disk, log, listed)
    return Verified(rows, segments, findings)


def _check_segment(segment: Segment, table: pa.Table) -> Iterator[Finding]:
    def wrong(what: str) -> Finding:
        return Finding(True, segment.slot, segment.path, what)

    offsets = int64s(table.column("offset"))
    if len(table) != segment.rows:
        yield wrong(f"{len(table)} rows, the manifest says {segment.rows}")
    if len(table) and (offsets[0], offsets[-1]) != (segment.first, segment.last):
        yield wrong(f"offsets {offsets[0]} to {offsets[-1]}, the manifest says {segment.first} to {segment.last}")
    if (np.diff(offsets) <= 0).any():
        yield wrong("offsets do not rise")
    if len(table) and [day for day, _ in by_day(table)] != [segment.date]:
        yield wrong("holds rows of another day")
    if len(table) and set(table.column("slot").unique().to_pylist()) != {segment.slot}:
        yield wrong("holds rows of another slot")


def _by_publisher(table: pa.Table) -> Iterator[tuple[tuple[str, int], np.ndarray]]:
    """Yield each publisher's life and its sequences, in the order of the rows."""
    names = table.column("publisher").combine_chunks().dictionary_encode()
    lives = table.column("instance").combine_chunks().dictionary_encode()
    sequences = int64s(table.column("sequence"))
    codes = [int64s(pa.chunked_array([one.indices.cast(pa.int64())])) for one in (names, lives)]
    code = codes[0] * max(len(lives.dictionary), 1) + codes[1]
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order])) + 1
    for group in np.split(order, bounds):
        if len(group):
            name, life = divmod(int(code[group[0]]), len(lives.dictionary))
            yield (names.dictionary[name].as_py(), int(lives.dictionary[life].as_py())), sequences[group]


def _check_offsets(log: Log, slot: int, found: list[np.ndarray]) -> Iterator[Finding]:
    first, after = log.slots()[slot]
    offsets = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    doubled = offsets[1:][np.diff(offsets) == 0]
    if len(doubled):
        yield Finding(True, slot, "", f"{len(doubled)} offsets are there twice, the first {doubled[0]}")
    lost = [np.arange(one.first, one.last + 1) for one in log.lost(slot)]
    for one in log.lost(slot):
        yield Finding(True, slot, one.file, f"offsets {one.first} to {one.last} were lost to damage")
    expected = np.setdiff1d(np.arange(first, after), np.concatenate(lost)) if lost else np.arange(first, after)
    missing = np.setdiff1d(expected, offsets)
    if len(missing):
        yield Finding(True, slot, "", f"{len(missing)} offsets are missing, the first {missing[0]}")


def _check_once(seen: dict[tuple[str, int], list[np.ndarray]]) -> Iterator[Finding]:
    for (publisher, instance), parts in sorted(seen.items()):
        sequences = np.concatenate(parts)
        unique, counts = np.unique(sequences, return_counts=True)
        if (counts > 1).any():
            twice = unique[counts > 1]
            text = f"{len(twice)} publications of {publisher!r} ({instance}) are there twice, the first {twice[0]}"
            yield Finding(True, -1, "all slots", text)


def _check_left(disk: Disk, local: Disk, log: Log, listed: set[str]) -> Iterator[Finding]:
    for folder in disk.names(""):
        if folder.startswith("date="):
            for name in disk.names(folder):
                if f"{folder}/{name}" not in listed:
                    yield Finding(False, -1, f"{folder}/{name}", "is listed by no manifest")
    for slot, there in log.slots().items():
        for file in read_wal(local, slot, there.next):
            waiting = sum(one.matched.rows for one in file.rows if one.offset >= there.next)
            for begin, end in file.damaged:
                yield Finding(True, slot, file.path, f"bytes {begin} to {end} are damaged")
            if file.torn:
                yield Finding(False, slot, file.path, f"{file.torn} bytes at its end are torn")
            if waiting:
                yield Finding(False, slot, file.path, f"{waiting} rows wait to be sealed")
        for name in local.names(slot_folder(slot)):
            if name.startswith("damaged-"):
                yield Finding(True, slot, f"{slot_folder(slot)}/{name}", "is a damaged write-ahead file")
