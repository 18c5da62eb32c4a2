r"""The manifest of one slot: an append-only list of what has been committed, and of nothing else.

    _kittiwake/slot-00003/manifest-TERM-ROLL        both ten digits

A line is `crc json\n`: the CRC-32 of the JSON, begun with the CRC of the line before, eight hexadecimal digits. So a
line that is changed, missing or out of place is seen. Each line is a transaction: what it adds and what it removes
holds together. The last line may be torn by a crash: without its `\n` it is no line yet.

The first line is a Checkpoint: all that holds. Each writer of a slot has a term of its own, one more than the last, and
begins with a file of its own, made aside and renamed; it begins another when the file has grown long. The highest name
counts, so that a writer that was followed by another, and does not know it yet, changes nothing any more.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

import msgspec

from cluster.output.disk import Disk
from cluster.output.errors import OutputError

FOLDER = "_kittiwake"
LINES_MAX = 4096
"""Lines after which a new file is begun: a reader's first look stays within a few megabytes."""

_NAME = re.compile(r"manifest-(\d{10})-(\d{10})")
_SLOT = re.compile(r"slot-(\d{5,})")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file of committed rows of one slot and one day, offsets ascending, dense or not.

    path:     relative to the log. first, last: offsets of its first and last row. bytes, checksum: the file's size and
              CRC-32. epoch_first, epoch_last: of its rows; time_first_us, time_last_us: of their time_accepted.
    """

    path: str
    slot: int
    first: int
    last: int
    rows: int
    bytes: int
    checksum: int
    date: str
    epoch_first: int
    epoch_last: int
    time_first_us: int
    time_last_us: int


class Lost(msgspec.Struct, frozen=True):
    """Offsets that damage has taken: a write-ahead file held them and could not be read. file: kept under this name."""

    first: int
    last: int
    file: str


class Claim(msgspec.Struct, frozen=True):
    """Who writes: the run of the cluster (a name that no other run has), and the slot's incarnation in it.

    Within a run an incarnation never takes over from a later one, however late it comes to try.
    """

    run: str = ""
    incarnation: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint", tag_field="kind"):
    """All that holds: the segments, the offset of the next row to be sealed, what damage has taken.

    first: no offset below it is there; retention has removed them. expired: how many rows it has removed so far.
    """

    slot: int
    term: int
    claim: Claim
    first: int
    next: int
    segments: list[Segment]
    lost: list[Lost] = []
    expired: int = 0


class Change(msgspec.Struct, frozen=True, kw_only=True, tag="change", tag_field="kind"):
    """Segments that are added and paths that are removed, together. why: seal, compact or expire.

    first, next: as in Checkpoint, after it. At `next` begins what the write-ahead files have more than the segments.
    """

    why: str
    first: int
    next: int
    added: list[Segment] = []
    removed: list[str] = []
    lost: list[Lost] = []


Line = Checkpoint | Change

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def slot_folder(slot: int) -> str:
    """Return the folder of everything of a slot that is not a segment."""
    return f"{FOLDER}/slot-{slot:05d}"


def slot_named(name: str) -> int | None:
    """Return the slot whose folder has this name, None for a name of something else."""
    found = _SLOT.fullmatch(name)
    return int(found[1]) if found else None


def manifest_name(term: int, roll: int) -> str:
    """Return a manifest's name."""
    return f"manifest-{term:010d}-{roll:010d}"


def manifest_named(name: str) -> tuple[int, int] | None:
    """Return (term, roll) of a manifest's name, None for a name of something else."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def newest(names: list[str]) -> str | None:
    """Return the name of the manifest that counts, None if there is none."""
    return max((name for name in names if _NAME.fullmatch(name)), default=None)


def encode_line(line: Line, chain: int) -> tuple[bytes, int]:
    """Return the line's bytes and its CRC, with which the next one's begins. chain: that of the line before, or 0."""
    body = _encoder.encode(line)
    checksum = zlib.crc32(body, chain)
    return b"%08x %s\n" % (checksum, body), checksum


@dataclass(slots=True)
class Manifest:
    """What the lines of a manifest come to.

    segments: by path. lines: read so far; end: the bytes that they take; chain: the CRC of the last one.
    """

    slot: int = 0
    term: int = 0
    claim: Claim = field(default_factory=Claim)
    first: int = 0
    next: int = 0
    expired: int = 0
    segments: dict[str, Segment] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    lines: int = 0
    end: int = 0
    chain: int = 0
    removed: list[str] = field(default_factory=list)

    def checkpoint(self) -> Checkpoint:
        """Return a first line that says the same."""
        return Checkpoint(
            slot=self.slot,
            term=self.term,
            claim=self.claim,
            first=self.first,
            next=self.next,
            segments=sorted(self.segments.values(), key=lambda one: (one.first, one.path)),
            lost=self.lost,
            expired=self.expired,
        )

    def apply(self, line: Line) -> None:
        """Take one more line. Raises AssertionError if it cannot follow what is there."""
        if isinstance(line, Checkpoint):
            assert not self.lines, "a checkpoint that is not the first line"
            self.slot, self.term, self.claim, self.expired = line.slot, line.term, line.claim, line.expired
            self.segments = {one.path: one for one in line.segments}
            self.lost = list(line.lost)
        else:
            assert self.lines, "a change before a checkpoint"
            assert line.next >= self.next, f"the next offset goes back from {self.next} to {line.next}"
            for path in line.removed:
                gone = self.segments.pop(path)
                self.removed.append(path)
                if line.why == "expire":
                    self.expired += gone.rows
            for one in line.added:
                assert one.path not in self.segments, f"{one.path} is added twice"
                self.segments[one.path] = one
            self.lost += line.lost
        self.first, self.next = line.first, line.next
        self.lines += 1


def read_on(manifest: Manifest, data: bytes, file: str, start: int = 0) -> int:
    """Apply the lines of `data`, which begins at byte `start` of the file; return the bytes of a torn last line.

    Raises: OutputError for a line whose checksum is not its own: damaged, missing, or out of place.
    """
    position = 0
    while (stop := data.find(b"\n", position)) >= 0:
        line = data[position:stop]
        body = line[9:]
        checksum = zlib.crc32(body, manifest.chain)
        said = line[:8]
        if said != b"%08x" % checksum or line[8:9] != b" ":
            raise OutputError(
                f"line {manifest.lines + 1}, at byte {start + position}, is damaged or out of place: "
                f"its checksum is {checksum:08x}, it says {said!r}",
                file=file,
                expected=checksum,
                found=said,
            )
        manifest.apply(_decoder.decode(body))
        manifest.chain = checksum
        position = stop + 1
        manifest.end = start + position
    return len(data) - position


def read_manifest(data: bytes, file: str) -> tuple[Manifest, int]:
    """Return what a whole manifest comes to, and the bytes of a torn last line. Raises OutputError."""
    manifest = Manifest()
    torn = read_on(manifest, data, file)
    if not manifest.lines:
        raise OutputError("holds no complete line", file=file)
    return manifest, torn


def read_newest(disk: Disk, slot: int) -> Manifest:
    """Return what the newest manifest of a slot says; an empty one if there is none. Raises OutputError."""
    folder = slot_folder(slot)
    for _ in range(5):
        name = newest(disk.names(folder))
        if name is None:
            return Manifest(slot=slot)
        path = f"{folder}/{name}"
        try:
            return read_manifest(disk.read(path), path)[0]
        except FileNotFoundError:
            continue  # a newer one has taken its place
    raise OutputError("manifests vanish as fast as they are listed", file=folder)
