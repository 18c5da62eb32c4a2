"""Writes one slot's log: rows as they are released, segments of them later, merged and removed in the end.

    append   a record to the write-ahead file; it survives the process
    sync     the file is on disk; several appends share one
    rotate   the file is closed and another begun, when it is large or old
    seal     a closed file's rows become segments, one a day; their marks are written; the file is removed
    tidy     small segments are merged, old ones removed; files that are listed no more go after a grace period

Opening takes over from whoever wrote the slot before, from what is on its disk: a dead writer's rows are read up to
where they are whole, synced, and sealed as any others, under the offsets that they have.

`append` and `name_clients` may be called by one thread, `sync` by another, and all else by a third; nothing here starts
one, or knows the time. What raises OSError with no_room() has changed nothing and may be tried again; any other error
of the disk ends the writer: what a failed sync has left on disk nobody knows.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cluster.marks import Key
from cluster.marks import Marks as AllMarks
from cluster.matched import Matched
from cluster.output.disk import Disk, File, write_whole
from cluster.output.manifest import Claim, Lost, slot_folder
from cluster.output.sealing import table_of_rows
from cluster.output.slot_log import SlotLog
from cluster.output.tidying import Tidying, TidySettings
from cluster.output.write_ahead import (
    MARKS_REMEMBERED,
    Begin,
    Marks,
    Names,
    Rows,
    WalFile,
    encode_record,
    file_name,
    file_named,
    marks_in,
    read_records,
    read_wal,
    read_wal_file,
)

REWRITE_BYTES = 1 << 20
"""A file of names or marks is begun anew when it has so many bytes, and four times what it has to say."""


def no_room(error: OSError) -> bool:
    """Tell whether a disk has refused for want of room, and may do again later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Closed:
    """A write-ahead file to be sealed. next: one past its last row, if that is known without reading it."""

    path: str
    file: File | None
    next: int


class SlotWriter:
    """The writer of a slot. disk: of segments and manifests; local: of write-ahead files, often the same.

    next: the offset of the next row that is appended.
    """

    def __init__(self, disk: Disk, local: Disk, slot: int, claim: Claim, settings: TidySettings | None = None) -> None:
        """Take over. Raises: FencedError, OutputError, OSError."""
        self.slot = slot
        self._disk = disk
        self._local = local
        self._folder = slot_folder(slot)
        self._mutex = threading.Lock()
        self._syncing = threading.Lock()
        self.log = SlotLog(disk, slot, claim, locks=local)
        self._number = 0
        self.lost_rows = 0
        self.sealed_rows = self.sealed_segments = self.sealed_bytes = 0
        self.torn_bytes = 0
        old = read_wal(local, slot, self.log.manifest.next)
        for found in old:
            file = local.append(found.path)
            file.sync()  # what is taken over is as good as what was promised
            file.close()
        self.next = max([self.log.manifest.next, *(file.next for file in old)])
        self.torn_bytes = sum(file.torn for file in old)
        self._names: dict[int, str] = {}
        self._inherited: dict[int, str] = {}  # may be needed for rows that were taken over, and for no others
        for record in read_records(local, slot, "names"):
            if isinstance(record, Names):
                self._inherited.update(record.names)
        self._ended: deque[list[int]] = deque([[], []])  # forgotten after the seal after the next
        self._marks = marks_in([], read_records(local, slot, "marks"))
        self._closed: deque[_Closed] = deque(_Closed(file.path, None, file.next) for file in old)
        self._taken = {file.path: file for file in old}
        self._appended = 0
        self._file, self._path = self._create_wal()
        self._begun = self._begin_wal(self._file)
        self._file.sync()
        self._unsynced: list[File] = []
        self._synced = 0
        self._names_file, self._names_path = self._begin_names()
        self._names_written = True
        self._marks_file, self._marks_path = self._begin_marks()
        self._obsolete = [
            f"{self._folder}/{name}"
            for name in local.names(self._folder)
            if (parts := file_named(name.removeprefix("_"))) is not None
            and parts[0] != "wal"
            and (parts[1] < self.log.term or name.startswith("_"))
        ]
        self.tidying = Tidying(self.log, settings or TidySettings())

    # Appending ---------------------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Matched], released_us: int) -> int:
        """Write the rows of all of them; on return they survive the process. Returns the number of the last of these
        appends, which are counted from 1 on.

        One write for all: each one lets go of the interpreter, and has to wait for it while something is being sealed.
        Raises: OSError; with no_room() nothing of it is written.
        """
        with self._mutex:
            position, following = self._file.position, self.next
            records = []
            for matched in batch:
                records.append(encode_record(Rows(following, released_us, self._synced, matched)))
                following += matched.rows
            try:
                self._file.write(b"".join(records))
            except OSError as error:
                if no_room(error):
                    self._file.cut(position)
                raise
            self.next = following
            self._appended += len(batch)
            return self._appended

    def name_clients(self, names: list[tuple[int, str]], ended: list[int]) -> None:
        """Remember whose clients these are. Without room they are known for as long as this process lives."""
        with self._mutex:
            self._names.update(names)
            self._ended[-1] += ended
            for client, _ in names:
                self._inherited.pop(client, None)
            position = self._names_file.position
            try:
                self._names_file.write(encode_record(Names(names, ended)))
            except OSError as error:
                if not no_room(error):
                    raise
                self._names_file.cut(position)
            self._names_written = True

    @property
    def open_bytes(self) -> int:
        """What is in the present write-ahead file, its beginning aside."""
        return self._file.position - self._begun

    @property
    def appended(self) -> int:
        """Appends so far."""
        return self._appended

    def sync(self) -> int:
        """Have all that was appended on disk; return the number of the last append that is. Raises OSError."""
        with self._syncing:
            return self._sync()

    def _sync(self) -> int:
        with self._mutex:
            appended, file, position = self._appended, self._file, self._file.position
            before, self._unsynced = self._unsynced, []
            names = self._names_file if self._names_written else None
            self._names_written = False
        for one in before:
            one.sync()
            one.close()
        if names is not None:
            names.sync()
        file.sync()
        with self._mutex:
            if file is self._file:
                self._synced = max(self._synced, position)
        return appended

    def rotate(self) -> bool:
        """Close the write-ahead file, if it has rows, and begin another; tell whether there is one to seal.

        Raises: OSError; with no_room() the present file goes on.
        """
        if self.open_bytes:
            file, path = self._create_wal()
            with self._mutex:
                try:
                    begun = self._begin_wal(file)
                except OSError:
                    file.close()
                    self._local.remove(path)
                    raise
                self._unsynced.append(self._file)
                self._closed.append(_Closed(self._path, self._file, self.next))
                self._file, self._path, self._begun, self._synced = file, path, begun, 0
        return bool(self._closed)

    def _create_wal(self) -> tuple[File, str]:
        """Make a file whose name is durable, and nothing in it."""
        self._number += 1
        path = f"{self._folder}/{file_name('wal', self.log.term, self._number)}"
        file = self._local.create(path)
        self._local.sync_folder(self._folder)
        return file, path

    def _begin_wal(self, file: File) -> int:
        """Write the first record of a file; return the bytes that it takes."""
        file.write(encode_record(Begin(self.slot, self.next)))
        return file.position

    # Sealing -----------------------------------------------------------------------------------------------------

    def seal_all(self, breathe: Callable[[], None] = lambda: None) -> int:
        """Make segments of all closed files, oldest first; return how many files. breathe: called every millisecond.

        Raises: OSError, with no_room() to be tried again; FencedError if another writer has taken over.
        """
        sealed = 0
        while self._closed:
            closed = self._closed[0]
            self._seal(closed, breathe)
            with self._mutex:
                self._closed.popleft()
                if closed.file in self._unsynced:
                    self._unsynced.remove(closed.file)  # its rows are in segments, which are on disk
                    closed.file.close()
            sealed += 1
        return sealed

    def _seal(self, closed: _Closed, breathe: Callable[[], None]) -> None:
        found = self._taken.get(closed.path) or read_wal_file(self._local, self.slot, closed.path)
        stop = max(closed.next, found.next)
        rows = [one for one in found.rows if one.offset >= self.log.manifest.next]
        lost: list[Lost] = []
        if found.damaged or found.first > self.log.manifest.next:
            lost = self._lost(found, stop)
        if rows or lost or stop > self.log.manifest.next:
            with self._mutex:
                names = {**self._inherited, **self._names}
            table = table_of_rows(self.slot, rows, names, breathe)
            for segment in self.log.seal(table, max(stop, self.log.manifest.next), lost):
                self.sealed_rows += segment.rows
                self.sealed_segments += 1
                self.sealed_bytes += segment.bytes
        self._save_marks(found)
        if found.damaged:
            kept = f"{self._folder}/damaged-{closed.path.rpartition('/')[2]}"
            self._local.rename(closed.path, kept)
        else:
            self._local.remove(closed.path)
        # Before any later file goes: were this one to come back, they say which of its rows are void.
        self._local.sync_folder(self._folder)
        self._taken.pop(closed.path, None)
        with self._mutex:
            for client in self._ended.popleft():
                self._names.pop(client, None)
            self._ended.append([])
            if not self._taken:
                self._inherited = {}
        if not self._taken:
            for path in self._obsolete:
                self._local.remove(path)
            self._obsolete = []
        self._rewrite_names()

    def _lost(self, file: WalFile, stop: int) -> list[Lost]:
        """Return the offsets that a damaged file should have held and does not."""
        kept = f"{self._folder}/damaged-{file.path.rpartition('/')[2]}"
        lost: list[Lost] = []
        expected = self.log.manifest.next
        for rows in file.rows:
            if rows.offset > expected:
                lost.append(Lost(expected, rows.offset - 1, kept))
            expected = max(expected, rows.offset + rows.matched.rows)
        if stop > expected:
            lost.append(Lost(expected, stop - 1, kept))
        self.lost_rows += sum(one.last - one.first + 1 for one in lost)
        return lost

    # Marks and names ---------------------------------------------------------------------------------------------

    def _save_marks(self, file: WalFile) -> None:
        """Have the marks of a sealed file's rows on disk, as the file will be gone."""
        fresh: dict[Key, None] = {}
        for rows in file.rows:
            self._marks.take(rows.matched)
            for run in rows.matched.runs:
                fresh.pop((run.publisher, run.instance), None)
                fresh[run.publisher, run.instance] = None  # who wrote last comes last
        while len(self._marks) > MARKS_REMEMBERED:
            self._marks.forget_oldest()
        position = self._marks_file.position
        try:
            self._marks_file.write(encode_record(_marks(self._marks, fresh)))
            self._marks_file.sync()
        except OSError as error:
            if no_room(error):
                self._marks_file.cut(position)
            raise
        if position > REWRITE_BYTES + 4 * 40 * len(self._marks):
            self._marks_file.close()
            before = self._marks_path
            self._marks_file, self._marks_path = self._begin_marks()
            self._local.remove(before)

    def _begin_marks(self) -> tuple[File, str]:
        return self._begin("marks", encode_record(_marks(self._marks, self._marks.upto)))

    def _begin_names(self) -> tuple[File, str]:
        kept = {client: name for client, name in self._names.items() if client not in self._inherited}
        return self._begin("names", encode_record(Names(list(kept.items()), [])))

    def _rewrite_names(self) -> None:
        if self._names_file.position <= REWRITE_BYTES + 4 * 40 * len(self._names):
            return
        with self._mutex:
            before, path = self._names_file, self._names_path
            self._names_file, self._names_path = self._begin_names()
            before.close()
            self._local.remove(path)

    def _begin(self, kind: str, first: bytes) -> tuple[File, str]:
        """Begin a file with this record, so that it is there as a whole or not at all."""
        self._number += 1
        name = file_name(kind, self.log.term, self._number)
        write_whole(self._local, self._folder, name, first)
        path = f"{self._folder}/{name}"
        return self._local.append(path), path

    def close(self) -> None:
        """Let go of the files; what is not sealed waits for whoever takes over."""
        with self._mutex:
            if not self.open_bytes and not self._closed:
                for path in (self._path, self._names_path, *self._obsolete):
                    self._local.remove(path)
            for file in (self._file, self._names_file, self._marks_file, *self._unsynced):
                file.close()
            self._unsynced = []


def _marks(marks: AllMarks, keys: Iterable[Key]) -> Marks:
    """Return the record about these publishers, as far as they are remembered."""
    known = [key for key in keys if key in marks.upto]
    unmatched = [(*key, marks.unmatched[key].pairs()) for key in known if key in marks.unmatched]
    return Marks([(*key, marks.upto[key]) for key in known], unmatched)
