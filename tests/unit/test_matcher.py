"""The matcher: exact hits per exit point, answers without hits, changes in their place, rejections with reasons."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import msgpack
import pytest

from cluster import parse
from cluster.config import ClientLimits, Config, OutputSettings
from cluster.language import encode_normal
from cluster.matcher import Matcher
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    DATA_LAYERS,
    EXIT_POINT,
    Applied,
    ApplyChanges,
    Batch,
    Drained,
    Heartbeat,
    LaneUp,
    Member,
    Peer,
    Received,
    Result,
    Run,
    Send,
    SubscriptionChange,
    Tick,
    client_key,
    subscription_id,
)
from cluster.routing import teller_of
from cluster.view import first_view

ACCESS = Peer(ACCESS_POINT, 6)


def ids(session: int, number: int) -> int:
    """Return a subscription's id at connection point 0."""
    return subscription_id(client_key(0, session), number)


def unpack(kind: str, data: bytes) -> tuple[int, ...]:
    size = {"I": 4, "Q": 8}[kind]
    return struct.unpack(f"<{len(data) // size}{kind}", data)


def hits_of(result: Result) -> dict[int, dict[int, tuple[int, ...]]]:
    """Return publication -> client -> numbers that match; check the columns on the way."""
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    clients, matches = unpack("Q", result.clients), unpack("I", result.matches)
    numbers = unpack("I", result.numbers)
    matched, counts = unpack("I", result.matched), unpack("I", result.notifications)
    assert sum(counts) == len(clients) == len(matches)
    assert sum(matches) == len(numbers)
    assert list(matched) == sorted(set(matched))
    at = place = 0
    for publication, count in zip(matched, counts, strict=True):
        mine = found[publication] = {}
        assert list(clients[at : at + count]) == sorted(set(clients[at : at + count]))
        for client, match in zip(clients[at : at + count], matches[at : at + count], strict=True):
            mine[client] = numbers[place : place + match]
            place += match
        at += count
    return found


class Bench:
    """A matcher with a view, and short ways to talk to it."""

    def __init__(self, config: Config | None = None) -> None:
        self.machine = Matcher(0, 1, config or Config())
        view = first_view([Member(layer, 0, 1, "host", 1) for layer in DATA_LAYERS])
        assert self.machine.handle(Received(COORDINATOR_PEER, view.install())) == []
        self._change = 0

    def change(self, *changes: tuple[int, str | None]) -> None:
        made = []
        for subscription, text in changes:
            self._change += 1
            form = None if text is None else encode_normal(parse(text).normal_form)
            made.append(SubscriptionChange(self._change, subscription, form))
        out = self.machine.handle(Received(ACCESS, ApplyChanges(1, 2, made)))
        assert out == [Send(ACCESS, Applied(2, [change.change for change in made]))]

    def match(self, batch: Batch) -> dict[int, Result]:
        """Return the results by exit point."""
        results = {}
        for instruction in self.machine.handle(Received(ACCESS, batch)):
            assert isinstance(instruction, Send)
            assert isinstance(instruction.message, Result)
            assert instruction.peer.layer == EXIT_POINT
            assert instruction.peer.slot not in results
            results[instruction.peer.slot] = instruction.message
        return results


def batch(*runs: tuple[int, list[Any]], sequence: int = 1, first_exit_sequences: dict[int, int] | None = None) -> Batch:
    """Return a batch. runs: (exit point, publications); one that is `bytes` is taken as it is."""
    pieces = [one if isinstance(one, bytes) else msgpack.packb(one) for _, ones in runs for one in ones]
    upcoming = dict(first_exit_sequences or {})
    sequences = []
    for exit_point, ones in runs:
        sequences.append(upcoming.setdefault(exit_point, 1))
        upcoming[exit_point] += len(ones)
    return Batch(
        1,
        [0, 2],
        sequence,
        [Run(f"p{place}", 1, 9, 1, len(ones), 5) for place, (_, ones) in enumerate(runs)],
        [exit_point for exit_point, _ in runs],
        sequences,
        struct.pack(f"<{len(pieces)}I", *map(len, pieces)),
        b"".join(pieces),
    )


def test_hits_are_grouped_by_publication_and_client() -> None:
    bench = Bench()
    bench.change((ids(1, 0), "a > 3"), (ids(1, 5), "a > 1"), (ids(2, 0), "a > 3"), (ids(3, 0), "a > 100"))
    results = bench.match(batch((0, [{"a": 5}, {"a": 0}, {"a": 2}])))
    assert list(results) == [0]
    result = results[0]
    assert hits_of(result) == {
        0: {client_key(0, 1): (0, 5), client_key(0, 2): (0,)},
        2: {client_key(0, 1): (5,)},
    }
    assert (result.epoch, result.expect, result.access_point, result.sequence) == (1, [0, 2], 6, 1)
    assert result.payload == msgpack.packb({"a": 5}) + msgpack.packb({"a": 2})
    assert unpack("I", result.lengths) == (4, 4)


def test_without_hits_it_answers_all_the_same() -> None:
    bench = Bench()
    message = batch((0, [{"a": 1}, {"a": 2}]))
    result = bench.match(message)[0]
    assert (result.matched, result.clients, result.numbers, result.lengths, result.payload) == (b"",) * 5
    assert result.runs == message.runs


def test_each_exit_point_gets_its_own_runs() -> None:
    bench = Bench()
    bench.change((ids(1, 0), "a > 1"))
    message = batch(
        (0, [{"a": 0}, {"a": 2}]),
        (3, [{"a": 3}]),
        (0, [{"a": 4}, {"a": 1}]),
        (5, [{"a": 1}]),
        first_exit_sequences={0: 10, 3: 77, 5: 1},
    )
    results = bench.match(message)
    assert sorted(results) == [0, 3, 5]
    client = client_key(0, 1)
    assert [run.publisher for run in results[0].runs] == ["p0", "p2"]
    assert hits_of(results[0]) == {1: {client: (0,)}, 2: {client: (0,)}}
    assert results[0].sequence == 10
    assert results[0].payload == msgpack.packb({"a": 2}) + msgpack.packb({"a": 4})
    assert [run.publisher for run in results[3].runs] == ["p1"]
    assert hits_of(results[3]) == {0: {client: (0,)}}
    assert results[3].sequence == 77
    assert hits_of(results[5]) == {}


def told(expect: list[int], slot: int) -> int:
    """Return a batch's sequence for which this matcher is the one that shows everything."""
    return next(sequence for sequence in range(1, 1000) if teller_of(expect, sequence) == slot)


def test_where_all_is_written_one_matcher_shows_what_matches_nothing() -> None:
    bench = Bench(Config(output=OutputSettings(path="output", all=True)))
    bench.change((ids(1, 0), "a > 1"), (ids(2, 0), "a > 1"))
    broken = msgpack.packb({"a": math.nan})
    ones = [{"a": 0}, broken, {"a": 2}]
    runs = [(0, ones), (3, [{"a": 1}]), (0, [{"a": 3}]), (5, [broken])]
    both = {client_key(0, 1): (0,), client_key(0, 2): (0,)}
    results = bench.match(batch(*runs, sequence=told([0, 2], 0)))
    assert hits_of(results[0]) == {0: {}, 2: both, 3: both}
    assert results[0].payload == b"".join(map(msgpack.packb, ({"a": 0}, {"a": 2}, {"a": 3})))
    assert unpack("I", results[0].lengths) == (4, 4, 4)
    assert hits_of(results[3]) == {0: {}}
    assert results[3].payload == msgpack.packb({"a": 1})
    assert hits_of(results[5]) == {}
    assert [place for place, _ in results[0].rejected] == [1]
    assert hits_of(bench.match(batch((0, ones), sequence=told([0, 2], 0)))[0]) == {0: {}, 2: both}
    assert hits_of(bench.match(batch((0, ones), sequence=told([0, 2], 2)))[0]) == {2: both}
    assert bench.machine.gauges()["matched"] == 4, "those shown do not count"


def test_changes_hold_from_their_place_on() -> None:
    bench = Bench()
    message = batch((0, [{"a": 5}]))
    assert hits_of(bench.match(message)[0]) == {}
    bench.change((ids(1, 0), "a > 3"))
    assert hits_of(bench.match(message)[0]) == {0: {client_key(0, 1): (0,)}}
    bench.change((ids(1, 0), "a > 7"))
    assert hits_of(bench.match(message)[0]) == {}
    bench.change((ids(1, 0), "a > 4"), (ids(1, 0), None), (ids(1, 1), "a > 4"))
    assert hits_of(bench.match(message)[0]) == {0: {client_key(0, 1): (1,)}}
    bench.change((ids(1, 1), None), (ids(9, 9), None))
    assert hits_of(bench.match(message)[0]) == {}
    assert bench.machine.gauges()["subscriptions"] == 0


BROKEN = [
    msgpack.packb({"a": math.nan}),
    msgpack.packb({"a": math.inf}),
    msgpack.packb({"a": [1]}),
    msgpack.packb({"a": {"b": 1}}),
    msgpack.packb({"a": b"bytes"}),
    msgpack.packb({"a": 1}) + b"\0",
    msgpack.packb({"a": 1})[:-1],
    msgpack.packb([1]),
    msgpack.packb({"": 1}),
    msgpack.packb({1: 1}),
    b"",
    b"\xc1",
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
def test_a_malformed_publication_is_rejected_with_a_reason_and_the_others_go_on(broken: bytes) -> None:
    bench = Bench()
    bench.change((ids(1, 0), "exists a"), (ids(1, 1), "missing b"))
    results = bench.match(batch((0, [{"a": 1}, broken]), (1, [broken, {"a": 1}]), (0, [{"a": 1}])))
    client = client_key(0, 1)
    assert hits_of(results[0]) == {0: {client: (0, 1)}, 2: {client: (0, 1)}}
    assert hits_of(results[1]) == {1: {client: (0, 1)}}
    assert [place for place, _ in results[0].rejected] == [1]
    assert [place for place, _ in results[1].rejected] == [0]
    assert all(reason for result in results.values() for _, reason in result.rejected)
    assert bench.machine.gauges()["rejected"] == 2


def test_the_limits_of_publications_come_from_the_configuration() -> None:
    config = Config(client_limits=ClientLimits(attributes=2, name_bytes=3, string_bytes=4))
    bench = Bench(config)
    ones = [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"abc": 1}, {"abcd": 1}, {"a": "text"}, {"a": "texts"}]
    result = bench.match(batch((0, ones)))[0]
    assert [place for place, _ in result.rejected] == [1, 3, 5]
    assert "2" in result.rejected[0][1]
    assert "longer than 3 bytes" in result.rejected[1][1]


def test_hits_equal_the_language() -> None:
    rng = random.Random(3)
    bench = Bench()
    texts = {}
    client_count = 6
    spellings = ["a > 3", "b <= 4", "a > 2 and b < 7", "s starts_with 'x'", "not (a > 5)", "a in (1, 2) or s == 'y'"]
    for _ in range(60):
        subscription = ids(rng.randrange(client_count), rng.randrange(5))
        if rng.random() < 0.3 and texts:
            texts.pop(subscription, None)
            bench.change((subscription, None))
        else:
            texts[subscription] = rng.choice(spellings)
            bench.change((subscription, texts[subscription]))
        values = (rng.randint(0, 9), "x1", "y", None, 2.5)
        ones = [{name: rng.choice(values) for name in rng.sample("abs", rng.randint(0, 3))} for _ in range(4)]
        expected: dict[int, dict[int, list[int]]] = {}
        for place, one in enumerate(ones):
            for subscription in sorted(texts):
                if parse(texts[subscription]).matches(one):
                    client, number = subscription >> 20, subscription & (1 << 20) - 1
                    expected.setdefault(place, {}).setdefault(client, []).append(number)
        got = hits_of(bench.match(batch((0, ones)))[0])
        assert {place: {one: list(own) for one, own in found.items()} for place, found in got.items()} == expected


def test_counters_add_up() -> None:
    bench = Bench()
    bench.change((ids(1, 0), "a > 1"), (ids(2, 0), "a > 1"))
    bench.match(batch((0, [{"a": 2}, {"a": 1}]), (1, [{"a": 3}, BROKEN[0]])))
    gauges = bench.machine.gauges()
    assert (gauges["publications"], gauges["batches"], gauges["hits"]) == (4, 1, 4)
    assert (gauges["matched"], gauges["rejected"], gauges["changes"], gauges["subscriptions"]) == (2, 1, 2, 2)
    assert gauges["index_bytes"] >= 0


def test_a_batch_of_another_view_or_a_stranger_is_a_broken_invariant() -> None:
    bench = Bench()
    late = batch((0, [{"a": 1}]))
    other = Batch(2, *[getattr(late, name) for name in late.__struct_fields__[1:]])
    with pytest.raises(AssertionError, match="serves epoch 1"):
        bench.match(other)
    with pytest.raises(AssertionError, match="matcher 0 got Heartbeat"):
        bench.machine.handle(Received(ACCESS, Heartbeat({})))
    for event in (Drained(), Tick(1), LaneUp(ACCESS)):
        assert bench.machine.handle(event) == []
