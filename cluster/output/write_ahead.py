"""Write-ahead files: what exit points write as they release it, until it is in segments.

    _kittiwake/slot-00003/wal-TERM-NUMBER       rows; a Begin, then Rows
    _kittiwake/slot-00003/names-TERM-NUMBER     client ids, by the cluster's numbers of clients: Names
    _kittiwake/slot-00003/marks-TERM-NUMBER     how far each publisher is written, of rows whose wal file is gone: Marks

A record is `MAGIC length crc body`: uint32 each, little-endian; the CRC-32 is of the length and the body, a msgpack
array. A record whose bytes do not fit is either torn (the machine died before they were all on disk; nobody was
promised anything) or damaged. Rows say up to where their file was on disk when they were written: what does not fit
before the last such place was on disk once, and is damage; what comes behind the first misfit after it is given up.

Terms: each writer of a slot has one, one higher than the last. A writer's first file begins with the offset where it
goes on; rows of earlier terms at or behind that offset are void: a writer that was taken for dead wrote them. Marks and
names are kept in files of their own, which are begun anew when most of what they hold is out of date.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from cluster.marks import Marks as AllMarks
from cluster.matched import Matched
from cluster.output.disk import Disk
from cluster.output.errors import OutputError
from cluster.output.manifest import FOLDER, read_newest, slot_folder, slot_named

MAGIC = b"\xabKW\x01"
_HEAD = struct.Struct("<4sII")
_NAME = re.compile(r"(wal|names|marks)-(\d{10})-(\d{10})")

MARKS_REMEMBERED = 1_000_000
"""Publishers of a slot whose marks are kept, those that wrote last; about 200 bytes each."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """offset: of the first row in this file."""

    slot: int
    offset: int


class Rows(msgspec.Struct, frozen=True, array_like=True, tag="rows"):
    """matched.rows rows from `offset` on. synced: up to this byte the file was on disk when this was written."""

    offset: int
    released_us: int
    synced: int
    matched: Matched


class Names(msgspec.Struct, frozen=True, array_like=True, tag="names"):
    """Client ids; ended: clients that are no more."""

    names: list[tuple[int, str]]
    ended: list[int]


class Marks(msgspec.Struct, frozen=True, array_like=True, tag="marks"):
    """(publisher, instance, the last sequence that is written). unmatched: of some of these publishers, ranges of what
    is at or below it and matched nothing, as far as it may come again."""

    marks: list[tuple[str, int, int]]
    unmatched: list[tuple[str, int, list[tuple[int, int]]]] = []


Record = Begin | Rows | Names | Marks

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return the record's bytes."""
    body = _encoder.encode(record)
    size = len(body)
    return _HEAD.pack(MAGIC, size, zlib.crc32(body, size)) + body


class Place(NamedTuple):
    """A record that is whole, and the bytes of the file that it takes."""

    begin: int
    end: int
    record: Record


@dataclass(slots=True)
class Scan:
    """What a file holds. whole: its records, in order; damaged: (begin, end) of bytes that are no records and were on
    disk once; torn: where the rest begins that is given up, None if there is none."""

    whole: list[Place] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    torn: int | None = None


def scan(data: bytes, *, each_synced: bool = False) -> Scan:
    """Return the records of a file, whatever its bytes are. each_synced: one is on disk before the next is written."""
    found = Scan()
    gaps: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        place = _record_at(data, position)
        if place is None:
            after = data.find(MAGIC, position + 1)
            while after >= 0 and (place := _record_at(data, after)) is None:
                after = data.find(MAGIC, after + 1)
            gaps.append((position, after if after >= 0 else len(data)))
            if place is None:
                break
        found.whole.append(place)
        position = place.end
    synced = max((one.record.synced for one in found.whole if isinstance(one.record, Rows)), default=0)
    if each_synced and found.whole:
        synced = found.whole[-1].begin
    for begin, end in gaps:
        if begin < synced:
            found.damaged.append((begin, end))
        else:
            found.torn = begin
            found.whole = [one for one in found.whole if one.begin < begin]
            break
    return found


def _record_at(data: bytes, position: int) -> Place | None:
    if len(data) - position < _HEAD.size:
        return None
    magic, size, checksum = _HEAD.unpack_from(data, position)
    begin = position + _HEAD.size
    if magic != MAGIC or size > len(data) - begin:
        return None
    body = memoryview(data)[begin : begin + size]
    if zlib.crc32(body, size) != checksum:
        return None
    try:
        record = _decoder.decode(body)
    except msgspec.DecodeError:
        return None
    return Place(position, begin + size, record)


def file_name(kind: str, term: int, number: int) -> str:
    """Return the name of a writer's file: wal, names or marks."""
    return f"{kind}-{term:010d}-{number:010d}"


def file_named(name: str) -> tuple[str, int, int] | None:
    """Return (kind, term, number) of such a name, None for another."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


@dataclass(slots=True)
class WalFile:
    """A wal file of a slot, as it counts. rows: those that do; first, next: their offsets, equal if there are none.

    first is where the file begins even if damage has taken its first rows; void: rows of a writer that was taken for
    dead; damaged: as in Scan; torn: bytes given up at its end. end: where what counts ends, in bytes.
    """

    path: str
    first: int = 0
    next: int = 0
    rows: list[Rows] = field(default_factory=list)
    void: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)
    torn: int = 0


def read_wal(disk: Disk, slot: int, sealed: int) -> list[WalFile]:
    """Return the slot's wal files, in the order of their rows; those that vanish meanwhile are sealed, and left out.

    sealed: the offset up to before which rows are in segments.
    """
    folder = slot_folder(slot)
    files: list[WalFile] = []
    for name in disk.names(folder):
        parts = file_named(name)
        if parts is None or parts[0] != "wal":
            continue
        path = f"{folder}/{name}"
        try:
            files.append(read_wal_file(disk, slot, path))
        except FileNotFoundError:
            continue
    # What a later writer's beginning says ends the earlier ones.
    stop: int | None = None
    for file in reversed(files):
        if stop is not None:
            kept = [rows for rows in file.rows if rows.offset < stop]
            file.void = sum(rows.matched.rows for rows in file.rows[len(kept) :])
            file.rows = kept
            file.first, file.next = min(file.first, stop), min(file.next, stop)
        if file.first >= 0:
            stop = file.first if stop is None else min(stop, file.first)
    _give_up(files, sealed)
    return files


def _give_up(files: list[WalFile], sealed: int) -> None:
    """Void what lies behind a torn end: a file is synced before any that follows it, so nothing there was promised.

    If a later file says that it was on disk, so was the end, and its rows are lost to damage: then they are a hole.
    """
    end: int | None = None
    for at, file in enumerate(files):
        if file.first < 0:
            continue
        if end is not None and file.first > max(end, sealed):
            promised = any(rows.synced for later in files[at:] for rows in later.rows)
            if not promised:
                file.void += sum(rows.matched.rows for rows in file.rows)
                file.rows = []
                file.first = file.next = max(end, sealed)
        end = file.next


def read_wal_file(disk: Disk, slot: int, path: str) -> WalFile:
    """Return one file, as if no later writer had begun. Raises FileNotFoundError; OutputError if it is another's."""
    file = WalFile(path, first=-1)
    data = disk.read(path)
    found = scan(data)
    file.damaged = found.damaged
    file.torn = 0 if found.torn is None else len(data) - found.torn
    for _, _, record in found.whole:
        match record:
            case Begin(of, offset):
                if of != slot:
                    raise OutputError(f"is of slot {of}", file=path, expected=slot, found=of)
                file.first = file.next = offset
            case Rows():
                if file.first < 0:
                    file.first = record.offset  # its beginning is damaged
                file.rows.append(record)
                file.next = record.offset + record.matched.rows
            case _:
                raise OutputError(f"holds {type(record).__name__}, which is of another file", file=path)
    return file


def read_records(disk: Disk, slot: int, kind: str) -> list[Record]:
    """Return what is in the newest file of names or marks of a slot and term; of names, those of all terms."""
    folder = slot_folder(slot)
    for _ in range(5):
        named = [(parts[1:], name) for name in disk.names(folder) if (parts := file_named(name)) and parts[0] == kind]
        newest = {term: name for (term, _), name in sorted(named)}
        chosen = [newest[term] for term in sorted(newest)]
        try:
            return [
                place.record
                for name in (chosen if kind == "names" else chosen[-1:])
                for place in scan(disk.read(f"{folder}/{name}"), each_synced=True).whole
            ]
        except FileNotFoundError:
            continue  # it was begun anew
    raise OutputError(f"files of {kind} vanish as fast as they are listed", file=folder)


def marks_in(files: Iterable[WalFile], records: Iterable[Record]) -> AllMarks:
    """Return the marks of wal files that count, and of records of Marks; those that wrote last come last."""
    marks = AllMarks()
    for record in records:
        if isinstance(record, Marks):
            unmatched = {(publisher, instance): ranges for publisher, instance, ranges in record.unmatched}
            for publisher, instance, sequence in record.marks:
                key = publisher, instance
                marks.put(key, sequence, unmatched.get(key, ()))
    for file in files:
        for rows in file.rows:
            marks.take(rows.matched)
    return marks


def read_marks(disk: Disk, segments: Disk | None = None) -> AllMarks:
    """Return how far each publisher is written, in the logs of all slots. segments: the disk that has the manifests."""
    marks = AllMarks()
    for name in disk.names(FOLDER):
        slot = slot_named(name)
        if slot is None:
            continue
        # First: what is gone from here is in the others when it goes.
        files = read_wal(disk, slot, read_newest(segments or disk, slot).next)
        marks.merge(marks_in(files, read_records(disk, slot, "marks")))
    return marks
