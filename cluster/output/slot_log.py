"""What one slot has committed, and how it commits more.

A commit is: segments written aside, synced, renamed, their folders synced; then one line at the end of the manifest,
synced. A crash before the line leaves files that no manifest lists, of names that are never used again.

One writer of a slot writes at a time. A new one takes over under a lock: it reads the newest manifest and puts one of
its own, with all that held and the next term, in its place. A former writer that is not dead (a stopped process that
goes on) looks under the same lock before each line whether its manifest is still the newest, and is fenced if not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from cluster.output.disk import Disk, write_whole
from cluster.output.errors import FencedError
from cluster.output.manifest import (
    LINES_MAX,
    Change,
    Claim,
    Lost,
    Manifest,
    Segment,
    encode_line,
    manifest_name,
    manifest_named,
    newest,
    read_manifest,
    slot_folder,
)
from cluster.output.rows import Row, RowColumns
from cluster.output.segments import by_day, write_segment


class SlotLog:
    """The log of a slot, held by one writer."""

    def __init__(self, disk: Disk, slot: int, claim: Claim, *, locks: Disk | None = None) -> None:
        """Take over. locks: where the lock is, if not on the disk itself.

        Raises: FencedError if a later incarnation of the same run has it already; OutputError for a damaged manifest.
        """
        self.disk = disk
        self.slot = slot
        self._locks = disk if locks is None else locks
        self._folder = slot_folder(slot)
        self._lock = f"{self._folder}/lock"
        self._made = 0
        with self._locks.locked(self._lock):
            name = newest(disk.names(self._folder))
            self.manifest = Manifest(slot=slot)
            if name is not None:
                path = f"{self._folder}/{name}"
                self.manifest, _ = read_manifest(disk.read(path), path)
                held = self.manifest.claim
                if held.run == claim.run and held.incarnation > claim.incarnation:
                    raise FencedError(
                        f"incarnation {held.incarnation} has the log of slot {slot}",
                        expected=claim.incarnation,
                        found=held.incarnation,
                    )
            self.manifest.term += 1
            self.manifest.claim = claim
            self._begin(0)

    @property
    def term(self) -> int:
        """This writer's: one more than the last one's."""
        return self.manifest.term

    def _begin(self, roll: int) -> None:
        """Put a manifest that begins with a checkpoint in the place of the newest; the lock is held."""
        line, chain = encode_line(self.manifest.checkpoint(), 0)
        name = manifest_name(self.term, roll)
        write_whole(self.disk, self._folder, name, line)
        self._name, self._roll = name, roll
        self.manifest.lines, self.manifest.chain, self.manifest.end = 1, chain, len(line)
        self.manifest.removed = []
        for old in self.disk.names(self._folder):
            if manifest_named(old.removeprefix("_")) is not None and old != name:
                self.disk.remove(f"{self._folder}/{old}")

    def write(self, tables: Sequence[pa.Table], day: str) -> Segment:
        """Write a segment that no manifest lists yet; its name is never used again."""
        self._made += 1
        return write_segment(self.disk, tables, day, f"{self.term}.{self._made}")

    def seal(self, table: pa.Table, next: int, lost: Iterable[Lost] = ()) -> list[Segment]:
        """Commit the rows of the slot below offset `next` that are not committed yet; return their segments."""
        assert not len(table) or table.column("offset")[0].as_py() >= self.manifest.next, "rows are sealed twice"
        added = [self.write([rows], day) for day, rows in (by_day(table) if len(table) else [])]
        self.commit(Change(why="seal", first=self.manifest.first, next=next, added=added, lost=list(lost)))
        return added

    def commit(self, change: Change) -> None:
        """Let the change hold.

        Raises: FencedError if another writer has taken over; OSError if the disk cannot, then the change does not hold,
                and the manifest is begun anew before the next.
        """
        with self._locks.locked(self._lock):
            if newest(self.disk.names(self._folder)) != self._name:
                raise FencedError(f"another writer than that of term {self.term} has the log of slot {self.slot}")
            path = f"{self._folder}/{self._name}"
            if self.manifest.lines >= LINES_MAX or self.disk.size(path) != self.manifest.end:
                self._begin(self._roll + 1)
                path = f"{self._folder}/{self._name}"
            line, chain = encode_line(change, self.manifest.chain)
            file = self.disk.append(path)
            try:
                file.write(line)
                file.sync()
            finally:
                file.close()
            self.manifest.apply(change)
            self.manifest.chain = chain
            self.manifest.end += len(line)


def write_rows(disk: Disk, slot: int, rows: Iterable[Row]) -> list[Segment]:
    """Commit rows to a slot's log that no exit point writes, offsets following what is there; for tests and imports.

    The rows' own offsets are not looked at. One call makes one segment a day of time_accepted.
    """
    log = SlotLog(disk, slot, Claim("", 0))
    columns = RowColumns(slot)
    offset = log.manifest.next
    for row in rows:
        columns.add(row._replace(offset=offset))
        offset += 1
    return log.seal(columns.table(), offset)
