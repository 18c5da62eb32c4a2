"""Logs of matched output where something is in the way: the error names the file, and what was written stays."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from cluster.output.adopting import Adopted, adopt, compact
from cluster.output.disk import File, LocalDisk, RemoteDisk, write_whole
from cluster.output.errors import OffsetsGoneError, OutputError
from cluster.output.manifest import Claim, read_newest, slot_folder
from cluster.output.reader import log_on
from cluster.output.slot_log import write_rows
from cluster.output.slot_writer import SlotWriter
from cluster.output.tidying import TidySettings
from cluster.output.verify import verify
from cluster.output.write_ahead import Marks, Names, Record, encode_record, read_records, read_wal, scan
from tests.properties.disks import Disk
from tests.properties.test_output import CLIENT, DAY_US, SETTINGS, START_US, record, rows_of, sealed
from tests.unit.test_output import row

FOLDER = slot_folder(1)


def vanish(disk: Disk, kind: str, times: int = 1_000) -> None:
    """Have files with this in their name be gone when they are read, the first so many times."""
    read = disk.read
    left = times

    def gone(path: str) -> bytes:
        nonlocal left
        if kind in path and left:
            left -= 1
            raise FileNotFoundError(path)
        return read(path)

    disk.read = gone  # type: ignore[method-assign]


def path_of(disk: Disk, kind: str) -> str:
    """Return the newest file of a kind."""
    return max(path for path in disk.files if f"/{kind}-" in path)


def copied(disk: Disk, path: str, to: str) -> Disk:
    """Return a copy of the disk, with one file under another name as well."""
    twin = disk.copy()
    twin.files[to] = twin.files[path]
    return twin


# Disks ------------------------------------------------------------------------------------------------------------


def test_a_file_is_renamed_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    write_whole(disk, "a", "x", b"old")
    assert disk.size("a/x") == 3
    disk.rename("a/x", "b/c/y")
    assert (disk.read("b/c/y"), disk.size("a/x"), disk.names("a")) == (b"old", -1, [])
    with pytest.raises(FileNotFoundError):
        disk.rename("a/x", "b/c/y")
    assert disk.read("b/c/y") == b"old"


def test_a_lock_that_cannot_be_had_at_all_is_an_error_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(descriptor: int, operation: int) -> None:
        asked.append(descriptor)
        raise OSError(errno.ENOLCK, "No locks available")

    disk = LocalDisk(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match="No locks available"):
            disk.owned("owner")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(asked[0])
    with disk.owned("owner") or pytest.fail("nobody has it"):
        assert disk.owned("owner") is None


def test_what_is_added_to_a_file_that_is_not_there_begins_it(tmp_path: Path) -> None:
    disk = RemoteDisk(pafs.LocalFileSystem(), str(tmp_path))
    for data in (b"one", b"two"):
        file = disk.append("folder/x")
        file.write(data)
        file.close()
    assert disk.read("folder/x") == b"onetwo"


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_file_that_cannot_be_written_whole_leaves_the_former_one(operation: str) -> None:
    disk = Disk()
    write_whole(disk, "a", "x", b"old")
    disk.broken = operation
    with pytest.raises(OSError, match="input/output error"):
        write_whole(disk, "a", "x", b"new")
    assert (disk.names("a"), disk.read("a/x")) == (["x"], b"old"), "half a file takes room"


# Readers ----------------------------------------------------------------------------------------------------------


def test_who_looks_while_a_manifest_is_begun_anew_looks_again() -> None:
    disk, written = sealed(1, seals=2)
    vanish(disk, "/manifest-", 4)
    assert read_newest(disk, 1).next == len(written)
    vanish(disk, "/manifest-", 4)
    assert log_on(disk).slots()[1].next == len(written)


def test_manifests_that_are_never_there_are_told() -> None:
    disk, _ = sealed(1, seals=2)
    log = log_on(disk)
    before = log.slots()
    vanish(disk, "/manifest-")
    for look in (lambda: read_newest(disk, 1), log.refresh):
        with pytest.raises(OutputError, match=r"slot-00001: manifests vanish as fast as they are listed") as caught:
            look()
        assert caught.value.file == FOLDER
    assert log.slots() == before


def test_a_manifest_of_another_slot_is_not_taken_for_its_own() -> None:
    disk, written = sealed(1, seals=2)
    path = path_of(disk, "manifest")
    wrong = path.replace("slot-00001", "slot-00002")
    with pytest.raises(OutputError, match=f"{wrong}: is of slot 1") as caught:
        log_on(copied(disk, path, wrong))
    assert (caught.value.expected, caught.value.found) == (2, 1)
    assert len(rows_of(disk)) == len(written)


def test_a_log_that_ends_before_what_was_committed_is_told_and_not_believed() -> None:
    disk, written = sealed(1, seals=2)
    older, fewer = sealed(1, seals=1)
    log = log_on(disk)
    log.disk = older
    with pytest.raises(OutputError, match=rf"manifest-.*: ends at offset {len(fewer)}, {len(written)} was") as caught:
        log.refresh()
    assert (caught.value.expected, caught.value.found) == (len(written), len(fewer))
    assert log.slots()[1].next == len(written)


def merged(disk: Disk) -> None:
    """Merge all segments of a day; the former ones are gone."""
    writer = SlotWriter(disk, disk, 1, Claim("run", 2), SETTINGS)
    while writer.tidying.step(START_US / 1e6, everything=True):
        pass
    writer.tidying.step(START_US / 1e6 + 1)
    writer.close()


def test_rows_that_move_while_they_are_looked_for_are_found_or_told() -> None:
    disk, _ = sealed(2, seals=3)
    log = log_on(disk)
    segment = log.segments()[0]
    table = log.read(segment)
    merged(disk)
    read = disk.read
    vanish(disk, "date=", 3)
    assert log.read(segment).equals(table)
    disk.read = read  # type: ignore[method-assign]
    vanish(disk, "date=")
    with pytest.raises(OutputError, match="its rows move as fast as they are looked for") as caught:
        log.read(segment)
    assert caught.value.file == segment.path


def test_rows_of_a_log_that_another_has_taken_the_place_of_are_told() -> None:
    disk, _ = sealed(2, seals=2)
    log = log_on(disk)
    segment = log.segments()[0]
    other = Disk()
    days_later = START_US + 9 * DAY_US
    write_rows(other, 1, [row(number)._replace(time_accepted_us=days_later) for number in range(segment.last + 100)])
    log.disk = other
    with pytest.raises(OutputError, match="is listed no more, and nothing that is listed has its rows") as caught:
        log.read(segment)
    assert caught.value.file == segment.path
    assert not isinstance(caught.value, OffsetsGoneError), "retention has had none of it"


def test_a_check_passes_over_what_retention_removes_under_it() -> None:
    disk, written = sealed(13)
    writer = SlotWriter(disk, disk, 1, Claim("run", 2), TidySettings(below_bytes=0, bytes=1, grace_s=0.0))
    read = disk.read

    def late(path: str) -> bytes:
        if path.startswith("date="):
            disk.read = read  # type: ignore[method-assign]
            while writer.tidying.step(START_US / 1e6):
                pass
        return read(path)

    disk.read = late  # type: ignore[method-assign]
    found = verify(disk)
    assert (found.rows, found.segments, found.problems) == (0, 0, [])
    assert log_on(disk).slots()[1] == (len(written), len(written))


# Write-ahead files ------------------------------------------------------------------------------------------------


def unsealed(seed: int = 3) -> tuple[Disk, list[tuple[str, int]]]:
    """Return a disk whose writer has died before it sealed anything, and what it wrote."""
    rng, disk, sequences = random.Random(seed), Disk(), dict[str, int]()
    writer = SlotWriter(disk, disk, 1, Claim("run", 1), SETTINGS)
    writer.name_clients([(CLIENT, "lab")], [])
    written = []
    for _ in range(10):
        matched, named = record(rng, sequences)
        writer.append([matched], START_US)
        written += named
    writer.sync()
    return disk, written


def test_a_write_ahead_file_that_is_sealed_meanwhile_is_left_out() -> None:
    disk, written = unsealed()
    (found,) = read_wal(disk, 1, 0)
    assert found.next == len(written)
    vanish(disk, "/wal-", 1)
    assert read_wal(disk, 1, 0) == []


def test_a_write_ahead_file_under_a_wrong_name_is_told_with_it() -> None:
    disk, _ = unsealed()
    path = path_of(disk, "wal")
    wrong = path.replace("slot-00001", "slot-00002")
    with pytest.raises(OutputError, match=f"{wrong}: is of slot 1") as caught:
        read_wal(copied(disk, path, wrong), 2, 0)
    assert (caught.value.expected, caught.value.found) == (2, 1)
    twin = disk.copy()
    twin.files[path].data += encode_record(Names([], []))
    with pytest.raises(OutputError, match=f"{path}: holds Names, which is of another file"):
        read_wal(twin, 1, 0)


def test_files_of_names_that_are_begun_anew_are_looked_for_again() -> None:
    disk, _ = unsealed()
    vanish(disk, "/names-", 4)
    (first, named) = read_records(disk, 1, "names")
    assert (first, named) == (Names([], []), Names([(CLIENT, "lab")], []))
    vanish(disk, "/marks-")
    with pytest.raises(OutputError, match=r"slot-00001: files of marks vanish as fast as they are listed"):
        read_records(disk, 1, "marks")


# Writers ----------------------------------------------------------------------------------------------------------


class Failing:
    """A file whose next write ends in an error, after half of it."""

    def __init__(self, file: File, error: int) -> None:
        self._file = file
        self._error = error

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def write(self, data: bytes) -> None:
        if self._error:
            error, self._error = self._error, 0
            self._file.write(data[: len(data) // 2])
            raise OSError(error, os.strerror(error))
        self._file.write(data)


def begun() -> tuple[Disk, SlotWriter, Callable[[], int]]:
    """Return a writer, and what has it append a few rows and returns how many there are by then."""
    rng, disk, sequences, rows = random.Random(4), Disk(), dict[str, int](), 0
    writer = SlotWriter(disk, disk, 1, Claim("run", 1), SETTINGS)

    def append() -> int:
        nonlocal rows
        matched, named = record(rng, sequences)
        writer.append([matched], START_US)
        rows += len(named)
        return rows

    return disk, writer, append


def whole(disk: Disk, kind: str) -> list[Record]:
    """Return the records of the newest file of a kind, in which there is nothing else."""
    found = scan(disk.read(path_of(disk, kind)), each_synced=True)
    assert (found.damaged, found.torn) == ([], None)
    return [place.record for place in found.whole]


def test_a_name_that_finds_no_room_is_known_for_as_long_as_its_writer_lives() -> None:
    disk, writer, append = begun()
    writer._names_file = Failing(writer._names_file, errno.ENOSPC)  # type: ignore[assignment]
    writer.name_clients([(CLIENT, "lab")], [])
    rows = append()
    assert read_records(disk, 1, "names") == [Names([], [])]
    writer.name_clients([(CLIENT + 1, "other")], [])
    assert whole(disk, "names") == [Names([], []), Names([(CLIENT + 1, "other")], [])], "half a record is left"
    writer.rotate()
    writer.seal_all()
    assert len(rows_of(disk)) == rows, "the rows have the name"
    writer._names_file = Failing(writer._names_file, errno.EIO)  # type: ignore[assignment]
    with pytest.raises(OSError, match="Input/output error"):
        writer.name_clients([(CLIENT + 2, "third")], [])


def test_a_write_ahead_file_that_cannot_be_begun_leaves_the_present_one() -> None:
    disk, writer, append = begun()
    writer.name_clients([(CLIENT, "lab")], [])
    append()
    before = disk.names(FOLDER)
    create = disk.create
    disk.create = lambda path: Failing(create(path), errno.ENOSPC)  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(OSError, match="No space left"):
        writer.rotate()
    disk.create = create  # type: ignore[method-assign]
    assert disk.names(FOLDER) == before
    rows = append()
    writer.rotate()
    assert writer.seal_all() == 1, "one file has both"
    assert len(rows_of(disk)) == rows


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_marks_that_find_no_room_are_written_when_there_is_some(error: int) -> None:
    disk, writer, append = begun()
    writer.name_clients([(CLIENT, "lab")], [])
    rows = append()
    writer.rotate()
    writer._marks_file = Failing(writer._marks_file, error)  # type: ignore[assignment]
    with pytest.raises(OSError, match=os.strerror(error)):
        writer.seal_all()
    assert disk.names(FOLDER)[-1].startswith("wal-"), "its rows are in segments, its marks in no other file"
    if error == errno.ENOSPC:
        assert writer.seal_all() == 1
        found = [one for one in whole(disk, "marks") if isinstance(one, Marks)]
        assert sum(len(one.marks) for one in found) == len({name for name, _ in rows_of(disk)})
    assert len(rows_of(disk)) == rows


# What is left behind ----------------------------------------------------------------------------------------------


def left_behind(place: Path, *slots: int) -> LocalDisk:
    """Have writers of these slots die before they sealed; each has one record."""
    disk = LocalDisk(place)
    for slot in slots:
        writer = SlotWriter(disk, disk, slot, Claim("run", 1), SETTINGS)
        writer.append([record(random.Random(slot), {})[0]], START_US)
        writer.close()
    return disk


def test_a_slot_that_is_played_again_while_it_is_sealed_is_its_players(tmp_path: Path) -> None:
    disk = left_behind(tmp_path, 1, 2)

    class Slow(LocalDisk):
        """While a segment is written another writer takes over."""

        taken: SlotWriter | None = None

        def create(self, path: str) -> File:
            if "/_00001-" in path and self.taken is None:
                self.taken = SlotWriter(disk, disk, 1, Claim("run", 2), SETTINGS)
            return super().create(path)

    slow = Slow(tmp_path)
    other = read_wal(disk, 2, 0)[0].next
    assert adopt(slow, disk, "run", ()) == Adopted(other, {})
    assert slow.taken is not None
    rows = slow.taken.next
    slow.taken.seal_all()
    slow.taken.close()
    assert {slot: there.next for slot, there in log_on(disk).slots().items()} == {1: rows, 2: other}
    assert verify(disk).problems == []


def test_a_damaged_slot_is_named_and_holds_up_no_other(tmp_path: Path) -> None:
    disk = left_behind(tmp_path, 1, 2)
    (path,) = tmp_path.glob(f"{FOLDER}/manifest-*")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    rows = read_wal(disk, 2, 0)[0].next
    found = adopt(disk, disk, "run", ())
    assert found.rows == rows
    assert list(found.failed) == [1]
    assert f"{path.name}: line 1, at byte 0, is damaged" in found.failed[1]
    done = compact(disk, disk, 1 << 20, 4 << 20, 0.0)
    assert {slot: one.failed for slot, one in done.items()} == {1: True, 2: False}
    assert f"{path.name}: line 1, at byte 0, is damaged" in done[1].text
    assert path.read_bytes() == data
