"""Marks: how far publishers are written, and which of what may come again matched nothing."""

from __future__ import annotations

import random

import msgspec

from cluster.columns import UINT32, UINT64, pack
from cluster.marks import Marks
from cluster.matched import Hits, Matched, MatchedRun
from cluster.output.manifest import Claim
from cluster.output.slot_writer import SlotWriter
from cluster.output.write_ahead import read_marks
from cluster.ranges import Ranges
from tests.properties.disks import Disk

Key = tuple[str, int]


def run(name: str, first: int, count: int, *, skipped: int = 0, since: int = 0, settled: int = 0) -> MatchedRun:
    return MatchedRun(name, 1, first, count, skipped, 5, 0, since, settled)


def matched(runs: list[MatchedRun], *hits: dict[int, int]) -> Matched:
    """Return a record. hits: per matcher, publication -> how many clients it is for; without payloads or numbers."""
    rows = len({place for one in hits for place in one})
    return Matched(
        1, rows, runs, [Hits(pack(UINT32, one), pack(UINT32, one.values()), b"", b"", b"", b"", b"") for one in hits]
    )


def unmatched(marks: Marks) -> dict[str, list[tuple[int, int]]]:
    return {name: ranges.pairs() for (name, _), ranges in marks.unmatched.items()}


def test_what_a_record_does_not_name_matched_nothing() -> None:
    marks = Marks()
    marks.take(matched([run("a", 5, 4), run("b", 1, 3)], {1: 2, 4: 1}, {1: 1, 3: 1}))
    assert marks.upto == {("a", 1): 8, ("b", 1): 3}
    assert unmatched(marks) == {"a": [(5, 5), (7, 7)], "b": [(2, 3)]}


def test_a_row_for_nobody_matched_nothing() -> None:
    marks = Marks()
    marks.take(matched([run("a", 1, 3)], {0: 0, 1: 0, 2: 0}, {1: 1}))
    assert unmatched(marks) == {"a": [(1, 1), (3, 3)]}


def test_what_is_skipped_was_decided_before_and_what_lies_before_it_is_said() -> None:
    marks = Marks()
    marks.take(matched([run("a", 1, 2)], {0: 1}))
    marks.take(matched([run("a", 4, 4, skipped=2, since=3)], {3: 1}))
    assert unmatched(marks) == {"a": [(2, 6)]}
    marks = Marks()
    marks.take(matched([run("a", 4, 4, skipped=2)], {3: 1}))
    assert unmatched(marks) == {"a": [(6, 6)]}, "of 4 and 5 nothing is known"


def test_what_does_not_come_again_is_forgotten() -> None:
    marks = Marks()
    marks.take(matched([run("a", 1, 9)], {8: 1}))
    marks.take(matched([run("a", 10, 2, settled=6)], {1: 1}))
    assert unmatched(marks) == {"a": [(7, 8), (10, 10)]}
    marks.take(matched([run("a", 12, 1, settled=11)], {0: 1}))
    assert unmatched(marks) == {}
    assert marks.upto == {("a", 1): 12}


def test_logs_are_joined() -> None:
    one, other = Marks(), Marks({("b", 1): 3})
    one.take(matched([run("a", 1, 3)], {2: 1}))
    other.take(matched([run("a", 4, 3)], {2: 1}))
    one.merge(other)
    assert one.upto == {("a", 1): 6, ("b", 1): 3}
    assert unmatched(one) == {"a": [(1, 2), (4, 5)]}
    assert unmatched(other) == {"a": [(4, 5)]}
    one.forget(("a", 1))
    assert (dict(one.upto), one.unmatched) == ({("b", 1): 3}, {})


def test_ranges_that_are_added_are_the_set_that_they_make() -> None:
    rng = random.Random(8)
    for _ in range(200):
        ranges, numbers = Ranges(), set[int]()
        for _ in range(rng.randint(1, 12)):
            first = rng.randint(0, 30)
            last = first + rng.choice((0, 0, 1, 2, 9))
            ranges.add_range(first, last)
            numbers.update(range(first, last + 1))
            ranges.check()
            assert {one for first, last in ranges.pairs() for one in range(first, last + 1)} == numbers


def test_marks_outlive_their_file() -> None:
    """Whatever is appended and sealed, what can be read afterwards is what the records say."""
    rng = random.Random(3)
    disk, expected = Disk(), Marks()
    following = {"north": 1, "south": 1}
    gaps = 0
    writer = SlotWriter(disk, disk, 1, Claim("run", 1))
    for step in range(120):
        name = rng.choice(("north", "south"))
        before, count = rng.randint(0, 2), rng.randint(1, 4)
        first = following[name] + before
        following[name] = first + count
        places = sorted(rng.sample(range(count), rng.randint(1, count)))
        payload = msgspec.msgpack.encode({"n": step})
        ones = pack(UINT32, [1] * len(places))
        clients, lengths = pack(UINT64, [7] * len(places)), pack(UINT32, [len(payload)] * len(places))
        hits = Hits(pack(UINT32, places), ones, clients, ones, ones, lengths, payload * len(places))
        settled = max(0, first - rng.randint(1, 9))
        made = Matched(1, len(places), [run(name, first, count, since=first - before, settled=settled)], [hits])
        writer.append([made], 5)
        expected.take(made)
        if rng.random() < 0.2:
            writer.rotate()
            writer.seal_all()
        if rng.random() < 0.1:
            writer = SlotWriter(disk, disk, 1, Claim("run", 2 + step))
        found = read_marks(disk)
        assert found.upto == expected.upto
        assert unmatched(found) == unmatched(expected), step
        gaps = max([gaps, *map(len, expected.unmatched.values())])
    assert gaps > 3
