"""Matched output: no holes, no doubles, no torn segment after a crash, at every single operation on the disk."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cluster.matched import Hits, Matched, MatchedRun
from cluster.output import segments
from cluster.output.errors import FencedError, OffsetsGoneError, OutputError
from cluster.output.manifest import Claim
from cluster.output.reader import Log
from cluster.output.rows import attributes_of
from cluster.output.slot_writer import SlotWriter
from cluster.output.tidying import TidySettings
from cluster.output.verify import verify
from cluster.output.write_ahead import read_marks
from tests.properties.disks import Disk

DAY_US = 86_400_000_000
START_US = 1_500_000_000_000_000 // DAY_US * DAY_US - 5_000_000  # a few seconds before midnight
CLIENT = 3 << 32 | 7
SETTINGS = TidySettings(below_bytes=1 << 20, to_bytes=4 << 20, grace_s=0.0)

_pack = msgspec.msgpack.Encoder().encode


def columns(kind: str, numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def record(rng: random.Random, next_sequence: dict[str, int]) -> tuple[Matched, list[tuple[str, int]]]:
    """Return a few runs of publications, some of which match; and (publisher, sequence) of those that do."""
    runs = []
    named = []
    for publisher in rng.sample(("north", "south", "éast"), rng.randint(1, 2)):
        first = next_sequence.get(publisher, 1)
        count = rng.randint(1, 3)
        next_sequence[publisher] = first + count
        accepted = START_US + 400_000 * first + rng.randint(0, 300_000)
        runs.append(MatchedRun(publisher, 2**64 - 1, first, count, 0, accepted, 0))
        named += [(publisher, first + place) for place in range(count)]
    places = sorted(rng.sample(range(len(named)), rng.randint(1, len(named))))
    payloads = [_pack({"n": named[place][1], "of": named[place][0], "big": 2**64 - 1}) for place in places]
    hits = Hits(
        columns("I", places),
        columns("I", [1] * len(places)),
        columns("Q", [CLIENT] * len(places)),
        columns("I", [1] * len(places)),
        columns("I", [5] * len(places)),
        columns("I", [len(payload) for payload in payloads]),
        b"".join(payloads),
    )
    return Matched(4, len(places), runs, [hits]), [named[place] for place in places]


@dataclass
class Story:
    """What was done so far. written: (publisher, sequence) by append, in order; appended: so many
    by appends that have returned; stored: so many are known to be on
    disk; seals: rotations that were asked for."""

    rng: random.Random
    next_sequence: dict[str, int] = field(default_factory=dict)
    written: list[tuple[str, int]] = field(default_factory=list)
    appended: int = 0
    stored: int = 0
    incarnation: int = 0

    def go_on(self, disk: Disk, operations: int) -> None:
        """Open, and append, sync, seal, merge at random until the disk has done so many operations, or dies."""
        rng = self.rng
        self.incarnation += 1
        writer = SlotWriter(disk, disk, 1, Claim("run", self.incarnation), SETTINGS)
        self.stored = len(self.written)  # what is taken over is on disk
        writer.name_clients([(CLIENT, "lab")], [])
        while disk.operations < operations:
            what = rng.random()
            if what < 0.6:
                batch = []
                for _ in range(rng.choice((1, 1, 1, 2, 5))):
                    matched, named = record(rng, self.next_sequence)
                    self.written += named  # if it dies on the way: perhaps
                    batch.append(matched)
                writer.append(batch, START_US)
                self.appended = len(self.written)
            elif what < 0.75:
                known = len(self.written)
                writer.sync()
                self.stored = known
            elif what < 0.85:
                if writer.rotate():
                    writer.seal_all()
                    self.stored = len(self.written)
            else:
                writer.tidying.step(START_US / 1e6, everything=True)
        writer.close()


def rows_of(disk: Disk, stored: int | None = None) -> list[tuple[str, int]]:
    """Return what a reader sees, and check that it is sound. stored: so many rows were on disk, None for all."""
    if disk.operations % 10 == 0:
        found = verify(disk)
        assert not found.problems, found.problems
    log = Log(disk)
    log.refresh()
    rows: dict[int, tuple[str, int]] = {}
    for slot, there in log.slots().items():
        assert slot == 1
        for table in log.rows(slot, there.first, there.next):
            plain = table.select(["offset", "publisher", "sequence", "clients"]).to_pydict().values()
            for offset, publisher, sequence, clients in zip(*plain, strict=True):
                rows[offset] = publisher, sequence
                # What was not synced may have lost its names and not its rows.
                assert clients == ["lab"] or (stored is not None and offset >= stored and clients == ["?3.7"])
            for row in table.slice(0, 1).to_pylist():
                assert attributes_of(row) == {"n": row["sequence"], "of": row["publisher"], "big": 2**64 - 1}
                assert row["subscriptions"] == [CLIENT << 20 | 5]
    assert sorted(rows) == list(range(len(rows)))
    return [rows[offset] for offset in sorted(rows)]


def after(disk: Disk, story: Story, stored: int | None = None) -> list[tuple[str, int]]:
    """Return all rows after another writer has taken over and sealed."""
    writer = SlotWriter(disk, disk, 1, Claim("run", story.incarnation + 1), SETTINGS)
    writer.seal_all()
    writer.close()
    return rows_of(disk, stored)


def begun(seed: int) -> tuple[Disk, Story]:
    return Disk(), Story(random.Random(seed))


OPERATIONS = 1_000


@pytest.fixture
def quick_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have segments be Arrow's own format: Parquet takes most of the time here, and its bytes are as any others."""

    def encode(tables: Iterable[pa.Table]) -> tuple[bytes, int]:
        whole = pa.concat_tables(tables)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, whole.schema) as stream:
            stream.write_table(whole)
        return sink.getvalue().to_pybytes(), len(whole)

    class Opened:
        def __init__(self, source: pa.BufferReader) -> None:
            self._source = source

        def read(self, columns: list[str] | None = None) -> pa.Table:
            return pa.ipc.open_stream(self._source).read_all()

    monkeypatch.setattr(segments, "encode_segment", encode)
    monkeypatch.setattr(segments.pq, "ParquetFile", Opened)


def deaths(seed: int) -> Iterator[tuple[Disk, Story]]:
    """Yield the disk as it is before each operation of the story, as if the process had died there (of a write, in
    the middle), and what had been done until then."""
    disk, story = begun(seed)
    states: deque[tuple[Disk, Story]] = deque()

    def keep() -> None:
        if disk.operations < OPERATIONS:
            states.append((disk.copy(), replace(story, written=list(story.written))))

    disk.before = keep
    story.go_on(disk, OPERATIONS)
    assert len(states) == OPERATIONS
    while states:
        yield states.popleft()


def test_the_trace_does_everything() -> None:
    disk, story = begun(1)
    story.go_on(disk, OPERATIONS)
    kinds = {line.split()[0] for line in disk.trace}
    assert kinds >= {"create", "append", "write", "sync", "rename", "sync_folder", "remove"}
    assert len(disk.trace) >= OPERATIONS
    assert after(disk, story) == story.written
    paths = [line.split()[1] for line in disk.trace if line.startswith("rename date=")]
    assert len({path.split("/")[0] for path in paths}) == 2, "midnight is not met"


@pytest.mark.usefixtures("quick_segments")
def test_a_process_that_dies_at_any_operation_loses_and_doubles_nothing() -> None:
    """Everything whose append has returned is there once; of the last append a part, or nothing."""
    for disk, story in deaths(1):
        disk.restart()
        rows = after(disk, story)
        assert rows == story.written[: len(rows)], disk.operations
        assert len(rows) >= story.appended, disk.operations
        marks = read_marks(disk).upto
        assert all(marks[publisher, 2**64 - 1] >= sequence for publisher, sequence in rows)


@pytest.mark.usefixtures("quick_segments")
def test_a_machine_that_dies_at_any_operation_keeps_what_was_stored() -> None:
    for disk, story in deaths(1):
        disk.power_cut(random.Random(disk.operations))
        rows = after(disk, story, story.stored)
        assert rows == story.written[: len(rows)], disk.operations
        assert len(rows) >= story.stored, (disk.operations, len(rows), story.stored)


def test_a_stopped_writer_that_goes_on_changes_nothing() -> None:
    """It appends, and seals: its rows are void, its seals are fenced, and the one that followed does not notice."""
    rng = random.Random(5)
    disk = Disk()
    sequences: dict[str, int] = {}
    former = SlotWriter(disk, disk, 1, Claim("run", 1), SETTINGS)
    former.name_clients([(CLIENT, "lab")], [])
    written = []
    for _ in range(5):
        matched, named = record(rng, sequences)
        former.append([matched], START_US)
        written += named
    later = SlotWriter(disk, disk, 1, Claim("run", 2), SETTINGS)
    marks = read_marks(disk).upto
    zombie = dict(sequences)
    for _ in range(3):
        former.append([record(rng, zombie)[0]], START_US)
        matched, named = record(rng, sequences)
        later.append([matched], START_US)
        written += named
    assert all(read_marks(disk).upto[key] >= mark for key, mark in marks.items())
    former.rotate()
    with pytest.raises(FencedError, match="another writer"):
        former.seal_all()
    with pytest.raises(FencedError, match="incarnation 2"):
        SlotWriter(disk, disk, 1, Claim("run", 1), SETTINGS)
    third = SlotWriter(disk, disk, 1, Claim("run", 3), SETTINGS)
    third.seal_all()
    names = rows_of(disk, 0)
    assert names == written


def test_a_disk_that_fails_ends_the_writer_and_a_full_one_does_not() -> None:
    rng = random.Random(6)
    disk = Disk()
    sequences: dict[str, int] = {}
    writer = SlotWriter(disk, disk, 1, Claim("run", 1), SETTINGS)
    writer.name_clients([(CLIENT, "lab")], [])
    written = []
    for full in (False, True, False, True, False):
        disk.full = full
        for _ in range(4):
            matched, named = record(rng, sequences)
            if full:
                with pytest.raises(OSError, match="no space"):
                    writer.append([matched], START_US)
            else:
                writer.append([matched], START_US)
                written += named
        if full:
            with pytest.raises(OSError, match="no space"):
                writer.rotate()
    writer.rotate()
    disk.full = True
    with pytest.raises(OSError, match="no space"):
        writer.seal_all()
    disk.full = False
    writer.seal_all()
    assert rows_of(disk) == written
    disk.broken = "sync"
    writer.append([record(rng, sequences)[0]], START_US)
    with pytest.raises(OSError, match="input/output"):
        writer.sync()


def sealed(seed: int, *, seals: int = 6) -> tuple[Disk, list[tuple[str, int]]]:
    """Return a disk with segments, and what is in them."""
    rng = random.Random(seed)
    disk = Disk()
    sequences: dict[str, int] = {}
    writer = SlotWriter(disk, disk, 1, Claim("run", 1), SETTINGS)
    writer.name_clients([(CLIENT, "lab")], [])
    written = []
    for _ in range(seals):
        for _ in range(10):
            matched, named = record(rng, sequences)
            writer.append([matched], START_US)
            written += named
        writer.rotate()
        writer.seal_all()
    for _ in range(5):
        writer.append([record(rng, sequences)[0]], START_US)
        writer.sync()
    writer.close()
    return disk, written


def served(disk: Disk) -> list[tuple[str, int]]:
    """Return the rows that a reader gets before it meets an error."""
    log = Log(disk)
    rows: list[tuple[str, int]] = []
    try:
        log.refresh()
        for segment in log.segments():
            plain = log.read(segment).select(["publisher", "sequence"]).to_pydict()
            rows += zip(plain["publisher"], plain["sequence"], strict=True)
    except OutputError:
        pass
    return rows


@pytest.mark.parametrize("kind", ["date=", "manifest-"])
def test_each_flipped_bit_is_detected_and_never_served(kind: str) -> None:
    disk, written = sealed(7)
    rng = random.Random(8)
    paths = [path for path in disk.files if kind in path]
    assert paths
    for _ in range(500):
        twin = disk.copy()
        node = twin.files[rng.choice(paths)]
        bit = rng.randrange(8 * len(node.data))
        node.data[bit // 8] ^= 1 << bit % 8
        found = verify(twin)
        assert found.findings[0].problem or "no line" in found.findings[0].what
        assert not set(served(twin)) - set(written)


def test_each_truncation_and_each_missing_file_is_detected() -> None:
    disk, written = sealed(9)
    rng = random.Random(10)
    paths = [path for path in disk.files if "date=" in path or "manifest-" in path]
    for _ in range(200):
        twin = disk.copy()
        node = twin.files[rng.choice(paths)]
        del node.data[rng.randrange(len(node.data)) :]
        assert verify(twin).findings
        assert not set(served(twin)) - set(written)
    for path in paths:
        twin = disk.copy()
        del twin.files[path]
        assert any(one.problem for one in verify(twin).findings), path


def test_damage_in_a_write_ahead_file_costs_a_record_and_is_kept_and_told() -> None:
    disk, written = sealed(11, seals=1)
    (path,) = [path for path in disk.files if "/wal-" in path]
    clean = disk.copy()
    whole = after_takeover(clean)
    rng = random.Random(12)
    told = 0
    for _ in range(100):
        twin = disk.copy()
        node = twin.files[path]
        bit = rng.randrange(8 * len(node.data))
        node.data[bit // 8] ^= 1 << bit % 8
        before = verify(twin)
        rows = after_takeover(twin)
        assert set(rows) <= set(whole)
        assert len(whole) - len(rows) <= 6
        assert set(written) <= set(rows)
        log = Log(twin)
        log.refresh()
        lost = sum(one.last - one.first + 1 for one in log.lost(1))
        if lost:
            told += 1
            assert before.problems
            assert len(rows) + lost == len(whole)
            assert any("damaged-" in name for name in twin.files)
        else:
            assert any("torn" in one.what or "damaged" in one.what for one in before.findings)
    assert told > 50


def after_takeover(disk: Disk) -> list[tuple[str, int]]:
    writer = SlotWriter(disk, disk, 1, Claim("run", 9), SETTINGS)
    writer.seal_all()
    writer.close()
    return served(disk)


def test_old_rows_go_and_readers_are_told() -> None:
    disk, written = sealed(13)
    log = Log(disk)
    log.refresh()
    segments = log.segments()
    settings = TidySettings(below_bytes=0, bytes=sum(one.bytes for one in segments[-3:]), grace_s=60.0)
    writer = SlotWriter(disk, disk, 1, Claim("run", 2), settings)
    now_s = START_US / 1e6
    while writer.tidying.step(now_s):
        pass
    assert len(log.read(segments[0])) == segments[0].rows  # in its grace
    log.refresh()
    first = log.slots()[1].first
    assert first == segments[-4].last + 1
    assert not verify(disk).problems
    writer.tidying.step(now_s + 61)
    with pytest.raises(OffsetsGoneError) as caught:
        log.read(segments[0])
    assert (caught.value.slot, caught.value.first) == (1, first)
    with pytest.raises(OffsetsGoneError):
        next(log.rows(1, 0, 10))
    aged = TidySettings(below_bytes=0, age_s=1, grace_s=0.0)
    writer.close()
    writer = SlotWriter(disk, disk, 1, Claim("run", 3), aged)
    while writer.tidying.step(now_s + 10 * 86_400):
        pass
    log.refresh()
    assert log.slots()[1] == (len(written), len(written))
    writer.seal_all()
    log.refresh()
    assert log.slots()[1].next > len(written), "offsets go on"


def test_a_reader_does_not_notice_that_segments_are_merged() -> None:
    disk, written = sealed(14)
    log = Log(disk)
    log.refresh()
    before = log.segments()
    tables = [log.read(one) for one in before]
    writer = SlotWriter(disk, disk, 1, Claim("run", 2), SETTINGS)
    while writer.tidying.step(START_US / 1e6, everything=True):
        pass
    writer.tidying.step(START_US / 1e6 + 1)
    assert not set(disk.files) & {one.path for one in before}
    for one, table in zip(before, tables, strict=True):
        assert log.read(one).equals(table)
        assert log.read(one, columns=["offset"], filter=pc.field("sequence") > 3).equals(
            table.filter(pc.field("sequence") > 3).select(["offset"])
        )
    log.refresh()
    assert len(log.segments()) == 2 == len({one.date for one in log.segments()})
    assert rows_of(disk) == written
