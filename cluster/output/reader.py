"""Reading a log of matched output while it is written: only what is committed, each row once.

    log = open_log("~/.local/state/kittiwake/local/output")
    log.refresh()
    for slot, there in log.slots().items():
        for table in log.rows(slot, there.first, there.next): ...

A reader asks no one. It looks at each slot's newest manifest, and what that lists is there until compaction or
retention removes it: then the file stays for a grace period, and after it the reader looks again, and reads the same
rows where they are now. Rows that retention has removed are an OffsetsGoneError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cluster.output.disk import Disk, open_disk
from cluster.output.errors import OffsetsGoneError, OutputError
from cluster.output.manifest import (
    FOLDER,
    Lost,
    Manifest,
    Segment,
    newest,
    read_manifest,
    slot_folder,
    slot_named,
)
from cluster.output.segments import read_batches, read_segment

_Read = TypeVar("_Read")

_LOOKS = 5
"""How often a reader looks again when files vanish under it; each time it has the newest manifest."""


class SlotRange(NamedTuple):
    """first: the oldest offset that is still there; next: one past the last that is committed."""

    first: int
    next: int


class Log:
    """A log of matched output, as of the last refresh()."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._manifests: dict[int, Manifest] = {}
        self._torn: dict[int, int] = {}

    def refresh(self) -> None:
        """Look at what is committed now. Raises OutputError for a damaged manifest."""
        for name in self.disk.names(FOLDER):
            slot = slot_named(name)
            if slot is not None:
                self.refresh_slot(slot)

    def refresh_slot(self, slot: int) -> None:
        """Look at what one slot has committed now. Raises OutputError."""
        folder = slot_folder(slot)
        for _ in range(_LOOKS):
            name = newest(self.disk.names(folder))
            if name is None:
                return  # its writer has only begun
            path = f"{folder}/{name}"
            try:
                data = self.disk.read(path)
            except FileNotFoundError:
                continue  # a newer one has taken its place
            manifest, self._torn[slot] = read_manifest(data, path)
            if manifest.slot != slot:
                raise OutputError(f"is of slot {manifest.slot}", file=path, expected=slot, found=manifest.slot)
            before = self._manifests.get(slot)
            if before is not None and manifest.next < before.next:
                raise OutputError(
                    f"ends at offset {manifest.next}, {before.next} was committed before",
                    file=path,
                    expected=before.next,
                    found=manifest.next,
                )
            self._manifests[slot] = manifest
            return
        raise OutputError("manifests vanish as fast as they are listed", file=folder)

    def slots(self) -> dict[int, SlotRange]:
        """Return the slots that have a log, and which of their offsets are there."""
        return {slot: SlotRange(one.first, one.next) for slot, one in sorted(self._manifests.items())}

    def lost(self, slot: int) -> list[Lost]:
        """Return the offsets that damage has taken; reading passes over them."""
        return list(self._manifests[slot].lost)

    def manifest(self, slot: int) -> Manifest:
        """Return all that is known of a slot; not to be changed."""
        return self._manifests[slot]

    def torn(self, slot: int) -> int:
        """Return the bytes of the manifest's last line that are no line: of a write underway, or of a crash."""
        return self._torn.get(slot, 0)

    def segments(self, slot: int | None = None, first: int | None = None, stop: int | None = None) -> list[Segment]:
        """Return the segments that hold rows of these offsets, from `first` up to before `stop`, by slot and offset."""
        return sorted(
            (
                one
                for number, manifest in self._manifests.items()
                if slot is None or number == slot
                for one in manifest.segments.values()
                if (first is None or one.last >= first) and (stop is None or one.first < stop)
            ),
            key=lambda one: (one.slot, one.first, one.path),
        )

    def read(self, segment: Segment, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """Return the rows of a segment, wherever compaction has put them meanwhile.

        columns: which, None for all. filter: a pyarrow expression over any columns.
        Raises:  OutputError for a file that is not what the manifest says; OffsetsGoneError if retention has had it.
        """
        found = self._resolve(segment, filter, lambda one, wanted: read_segment(self.disk, one, columns, wanted))
        return pa.concat_tables(found)

    def batches(
        self,
        segment: Segment,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        rows_max: int = 16_384,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same rows in batches, for segments that are large: a file is in memory, its rows are not.

        filter: over plain columns alone, those before `numbers`. Raises: as read().
        """
        for found in self._resolve(
            segment, filter, lambda one, wanted: read_batches(self.disk, one, columns, wanted, rows_max)
        ):
            yield from found

    def _resolve(
        self, segment: Segment, filter: pc.Expression | None, read: Callable[[Segment, pc.Expression | None], _Read]
    ) -> list[_Read]:
        """Return what `read` gives of the segment, or of those that its rows are in now."""
        try:
            return [read(segment, filter)]
        except FileNotFoundError:
            pass
        own = (
            (pc.field("offset") >= segment.first)
            & (pc.field("offset") <= segment.last)
            & (pc.field("time_accepted").cast(pa.date32()).cast(pa.string()) == segment.date)
        )
        if filter is not None:
            own = own & filter
        for _ in range(_LOOKS):
            self.refresh_slot(segment.slot)
            manifest = self._manifests[segment.slot]
            if segment.last < manifest.first:
                raise OffsetsGoneError(segment.slot, segment.first, manifest.first)
            if segment.path in manifest.segments:
                raise OutputError("is listed and not there", file=segment.path)
            holders = [
                one for one in self.segments(segment.slot, segment.first, segment.last + 1) if one.date == segment.date
            ]
            try:
                found = [read(one, own) for one in holders]
            except FileNotFoundError:
                continue
            if not found:
                raise OutputError("is listed no more, and nothing that is listed has its rows", file=segment.path)
            return found
        raise OutputError("its rows move as fast as they are looked for", file=segment.path)

    def rows(self, slot: int, first: int, stop: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the slot's rows from offset `first` up to before `stop`, segment by segment.

        Within a segment offsets ascend; segments of two days may overlap in their offsets.
        Raises: as read(); OffsetsGoneError if `first` is not there any more.
        """
        there = self._manifests[slot]
        if first < there.first:
            raise OffsetsGoneError(slot, first, there.first)
        for segment in self.segments(slot, first, stop):
            inside = first <= segment.first and segment.last < stop
            wanted = None if inside else (pc.field("offset") >= first) & (pc.field("offset") < stop)
            yield self.read(segment, columns, wanted)


def open_log(place: str | Path) -> Log:
    """Return the log in a folder, or at a URI of a pyarrow or fsspec file system, with what is committed now.

    Raises: OutputError if there is none, or its manifest is damaged.
    """
    return log_on(open_disk(place))


def check_there(disk: Disk) -> None:
    """Raise OutputError if there is no log on a disk."""
    if not disk.names(FOLDER):
        raise OutputError(f"no matched output: there is no folder {FOLDER} in it", file=str(disk))


def log_on(disk: Disk) -> Log:
    """Return the log on a disk; as open_log."""
    check_there(disk)
    log = Log(disk)
    log.refresh()
    return log
