"""The exit point: joins, order, once, and acknowledgements that mean it."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from cluster import exit_point as module
from cluster.config import Config
from cluster.exit_point import ExitPoint
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Acknowledge,
    Deliver,
    Delivered,
    Drained,
    Heartbeat,
    LaneUp,
    Message,
    Peer,
    Received,
    Result,
    Run,
    Send,
    Tick,
    client_key,
)
from tests.unit.views import view

PUBLISHER = client_key(0, 77)
OTHER_SESSION = client_key(1, 5)
Found = dict[int, dict[int, list[int]]]
VIEW = view(connection_points=range(3), access_points=range(4), matchers=range(6))


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def unpack(kind: str, data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // (8 if kind == 'Q' else 4)}{kind}", data)


def run(name: str = "p", first: int = 1, count: int = 1, *, client: int = PUBLISHER, instance: int = 1) -> Run:
    return Run(name, instance, client, first, count, 5)


def result(
    runs: list[Run],
    found: Found | None = None,
    *,
    sequence: int = 1,
    access_point: int = 0,
    expect: tuple[int, ...] = (0,),
    rejected: list[tuple[int, str]] | None = None,
) -> Result:
    """Return a Result. found: publication -> client -> its numbers; a publication's payload is its place's letter."""
    found = found or {}
    rows = [(client, numbers) for place in sorted(found) for client, numbers in sorted(found[place].items())]
    return Result(
        1,
        list(expect),
        access_point,
        sequence,
        runs,
        rejected or [],
        u32(*sorted(found)),
        u32(*(len(found[place]) for place in sorted(found))),
        struct.pack(f"<{len(rows)}Q", *(client for client, _ in rows)),
        u32(*(len(numbers) for _, numbers in rows)),
        u32(*(number for _, numbers in rows for number in numbers)),
        u32(*[1] * len(found)),
        bytes(97 + place % 26 for place in sorted(found)),
    )


class Bench:
    """An exit point, what it handed over and what it acknowledged."""

    def __init__(self) -> None:
        self.machine = ExitPoint(0, 1, Config())
        self.feed(Received(COORDINATOR_PEER, VIEW.install()))
        self.sent: list[tuple[Peer, Message]] = []

    def feed(self, event: Any) -> None:
        for instruction in self.machine.handle(event):
            assert isinstance(instruction, Send)
            self.sent.append((instruction.peer, instruction.message))

    def join(self, message: Result, matcher: int = 0) -> None:
        self.feed(Received(Peer(MATCHER, matcher), message))

    def delivered(self, *tokens: int, connection_point: int = 0) -> None:
        self.feed(Received(Peer(CONNECTION_POINT, connection_point), Delivered(list(tokens))))

    def handed(self) -> list[tuple[int, int, str, int, tuple[int, ...], bytes]]:
        """Return (connection point, session, publisher, sequence, numbers, payload) of all notifications so far."""
        out = []
        kept = []
        for peer, message in self.sent:
            if not isinstance(message, Deliver):
                kept.append((peer, message))
                continue
            out += [(peer.slot, *row) for row in rows_of(message)]
        self.sent = kept
        return out

    def tokens(self) -> list[tuple[int, int]]:
        """Return (connection point, token) of the Delivers so far; they stay."""
        return [
            (peer.slot, token)
            for peer, message in self.sent
            if isinstance(message, Deliver)
            for _, _, _, token in message.runs
        ]

    def acknowledged(self) -> list[tuple[int, int, list[tuple[int, str]]]]:
        """End the round; return (client, upto, rejected) in order, each at the client's connection point."""
        self.feed(Drained())
        out = []
        for peer, message in self.sent:
            if isinstance(message, Acknowledge):
                assert peer.layer == CONNECTION_POINT
                for client, upto, rejected in message.acknowledgements:
                    assert client >> 32 == peer.slot
                    out.append((client, upto, rejected))
        self.sent = [(peer, message) for peer, message in self.sent if not isinstance(message, Acknowledge)]
        return out


def rows_of(message: Deliver) -> list[tuple[int, str, int, tuple[int, ...], bytes]]:
    """Return (session, publisher, sequence, numbers, payload) per notification; check the columns on the way."""
    runs, sequences, lengths = unpack("I", message.run), unpack("Q", message.sequence), unpack("I", message.lengths)
    assert len(runs) == len(sequences) == len(lengths)
    assert list(runs) == sorted(runs)
    assert sum(lengths) == len(message.payload)
    sessions, counts = unpack("I", message.sessions), unpack("I", message.notifications)
    assert list(sessions) == sorted(set(sessions))
    publications, matches = unpack("I", message.publication), unpack("I", message.matches)
    numbers = unpack("I", message.numbers)
    assert sum(counts) == len(publications) == len(matches)
    assert sum(matches) == len(numbers)
    assert set(publications) == set(range(len(runs))), "a publication that nobody gets"
    assert set(runs) == set(range(len(message.runs))), "a run without a publication"
    out = []
    at = place = 0
    for session, count in zip(sessions, counts, strict=True):
        mine = publications[at : at + count]
        assert list(mine) == sorted(set(mine))
        for publication, match in zip(mine, matches[at : at + count], strict=True):
            begin = sum(lengths[:publication])
            payload = message.payload[begin : begin + lengths[publication]]
            name = message.runs[runs[publication]][0]
            out.append((session, name, sequences[publication], numbers[place : place + match], payload))
            place += match
        at += count
    return out


def test_a_hit_is_handed_to_the_subscribers_connection_point() -> None:
    bench = Bench()
    clients = {client_key(0, 3): [1, 4], client_key(2, 8): [0]}
    bench.join(result([run("p", 10, 3)], {1: clients, 2: {client_key(2, 8): [0]}}))
    assert bench.handed() == [
        (0, 3, "p", 11, (1, 4), b"b"),
        (2, 8, "p", 11, (0,), b"b"),
        (2, 8, "p", 12, (0,), b"c"),
    ]
    gauges = bench.machine.gauges()
    assert (gauges["released"], gauges["matched"], gauges["unmatched"], gauges["notifications"]) == (3, 2, 1, 3)


def test_without_a_hit_a_run_is_acknowledged_at_once() -> None:
    bench = Bench()
    bench.join(result([run(count=5)]))
    assert bench.handed() == []
    assert bench.acknowledged() == [(PUBLISHER, 5, [])]
    assert bench.acknowledged() == []


def test_acknowledgements_wait_for_the_end_of_the_round() -> None:
    bench = Bench()
    bench.join(result([run()]))
    assert bench.sent == []


def test_all_matchers_must_answer() -> None:
    bench = Bench()
    for matcher in (2, 0):
        found = {0: {client_key(0, 1): [matcher]}}
        bench.join(result([run()], found, expect=(0, 2, 5)), matcher)
        assert bench.handed() == []
        assert bench.acknowledged() == []
    assert bench.machine.gauges()["incomplete_shares"] == 1
    bench.join(result([run()], None, expect=(0, 2, 5)), 5)
    ((slot, session, _, _, numbers, _),) = bench.handed()
    assert (slot, session, sorted(numbers)) == (0, 1, [0, 2]), "one notification that lists what both found"
    assert bench.machine.gauges()["incomplete_shares"] == 0


def test_a_matcher_that_repeats_itself_changes_nothing() -> None:
    bench = Bench()
    first = result([run()], {0: {client_key(0, 1): [0]}}, expect=(0, 1))
    for _ in range(3):
        bench.join(first, 0)
    assert bench.handed() == []
    bench.join(result([run()], expect=(0, 1)), 1)
    assert len(bench.handed()) == 1
    bench.join(first, 0)
    bench.join(result([run()], expect=(0, 1)), 1)
    assert bench.handed() == []
    assert bench.machine.gauges()["incomplete_shares"] == 0


def test_shares_are_released_in_sequence_whoever_answers_first() -> None:
    bench = Bench()
    both, client = (0, 1), client_key(0, 1)
    bench.join(result([run(first=1, count=2)], {1: {client: [0]}}, sequence=1, expect=both), 0)
    bench.join(result([run(first=3)], {0: {client: [0]}}, sequence=3, expect=(0,)), 0)
    assert bench.handed() == [], "the second is complete and waits for the first"
    bench.join(result([run(first=1, count=2)], sequence=1, expect=both), 1)
    assert [row[3] for row in bench.handed()] == [2, 3]


def test_access_points_do_not_wait_for_each_other() -> None:
    bench = Bench()
    client = client_key(0, 1)
    bench.join(result([run("a")], {0: {client: [0]}}, access_point=0, expect=(0, 1)), 0)
    bench.join(result([run("b")], {0: {client: [0]}}, access_point=1), 0)
    assert [row[2] for row in bench.handed()] == ["b"]


def test_a_second_copy_is_acknowledged_and_not_delivered() -> None:
    bench = Bench()
    found = {0: {client_key(0, 1): [0]}, 1: {client_key(0, 1): [0]}}
    bench.join(result([run(count=2)], found))
    ((_, token),) = bench.tokens()
    assert len(bench.handed()) == 2
    bench.delivered(token)
    assert bench.acknowledged() == [(PUBLISHER, 2, [])]
    bench.join(result([run(count=2, client=OTHER_SESSION)], found, access_point=3))
    assert bench.handed() == []
    assert bench.acknowledged() == [(OTHER_SESSION, 2, [])]
    gauges = bench.machine.gauges()
    assert (gauges["released"], gauges["duplicates"], gauges["matched"]) == (2, 2, 2)


def test_of_a_run_that_was_half_seen_the_rest_is_delivered() -> None:
    bench = Bench()
    client = client_key(0, 1)
    everything = {place: {client: [0]} for place in range(4)}
    bench.join(result([run(first=1, count=2)], {0: {client: [0]}, 1: {client: [0]}}))
    bench.handed()
    bench.join(result([run(first=1, count=4, client=OTHER_SESSION)], everything, access_point=1))
    assert [(row[3], row[5]) for row in bench.handed()] == [(3, b"c"), (4, b"d")]
    assert bench.machine.gauges()["duplicates"] == 2


def test_a_copy_is_acknowledged_only_when_the_first_one_is() -> None:
    bench = Bench()
    found = {0: {client_key(0, 1): [0]}}
    bench.join(result([run()], found))
    ((_, token),) = bench.tokens()
    bench.join(result([run(client=OTHER_SESSION)], found, access_point=1))
    assert bench.acknowledged() == [], "the first copy is still waited for"
    bench.delivered(token)
    assert bench.acknowledged() == [(PUBLISHER, 1, []), (OTHER_SESSION, 1, [])]


def test_another_instance_begins_its_own_numbers() -> None:
    bench = Bench()
    found = {0: {client_key(0, 1): [0]}}
    bench.join(result([run(first=1, instance=1)], found, sequence=1))
    bench.join(result([run(first=1, instance=2)], found, sequence=2))
    assert len(bench.handed()) == 2


def test_a_run_waits_for_all_connection_points_that_got_some_of_it() -> None:
    bench = Bench()
    found = {0: {client_key(0, 1): [0], client_key(1, 1): [0]}, 1: {client_key(2, 1): [0]}}
    bench.join(result([run(count=2)], found))
    tokens = bench.tokens()
    assert len(tokens) == 3
    assert len({token for _, token in tokens}) == 1
    for slot, token in tokens:
        assert bench.acknowledged() == []
        bench.delivered(token, connection_point=slot)
    assert bench.acknowledged() == [(PUBLISHER, 2, [])]
    assert bench.machine.gauges()["unacknowledged_runs"] == 0


def test_runs_are_acknowledged_in_order_and_cumulatively() -> None:
    bench = Bench()
    for number in (1, 2, 3, 4):
        found = {0: {client_key(0, 1): [0]}} if number in (1, 3) else None
        bench.join(result([run(first=number)], found, sequence=number))
    (_, first), (_, third) = bench.tokens()
    assert bench.acknowledged() == []
    bench.delivered(third)
    assert bench.acknowledged() == [], "the first one is waited for"
    bench.delivered(first)
    assert bench.acknowledged() == [(PUBLISHER, 4, [])]


def test_publishers_do_not_wait_for_each_other() -> None:
    bench = Bench()
    bench.join(result([run("a"), run("b", client=OTHER_SESSION)], {0: {client_key(0, 1): [0]}}))
    assert bench.acknowledged() == [(OTHER_SESSION, 1, [])]


def test_rejections_are_told_under_the_publishers_numbers() -> None:
    bench = Bench()
    rejected = [(1, "bad"), (3, "worse")]
    bench.join(result([run("a", 10, 2), run("b", 20, 3, client=OTHER_SESSION)], rejected=rejected))
    assert bench.acknowledged() == [(PUBLISHER, 11, [(11, "bad")]), (OTHER_SESSION, 22, [(21, "worse")])]
    gauges = bench.machine.gauges()
    assert (gauges["released"], gauges["rejected"], gauges["unmatched"], gauges["matched"]) == (5, 2, 3, 0)


def test_a_rejection_is_told_again_with_a_second_copy_and_counted_once() -> None:
    bench = Bench()
    bench.join(result([run()], rejected=[(0, "bad")]))
    bench.join(result([run(client=OTHER_SESSION)], access_point=1, rejected=[(0, "bad")]))
    assert bench.acknowledged() == [(PUBLISHER, 1, [(1, "bad")]), (OTHER_SESSION, 1, [(1, "bad")])]
    assert bench.machine.gauges()["rejected"] == 1


def test_rejections_of_several_runs_come_with_one_acknowledgement() -> None:
    bench = Bench()
    bench.join(result([run(first=1)], {0: {client_key(0, 1): [0]}}, sequence=1))
    bench.join(result([run(first=2)], sequence=2, rejected=[(0, "x")]))
    bench.join(result([run(first=3)], sequence=3, rejected=[(0, "y")]))
    ((_, token),) = bench.tokens()
    bench.delivered(token)
    assert bench.acknowledged() == [(PUBLISHER, 3, [(2, "x"), (3, "y")])]


@pytest.mark.parametrize("seed", range(30))
def test_any_interleaving_of_two_ways_delivers_each_once_and_in_order(seed: int) -> None:
    """A publisher reconnects and sends the rest again through another access point; the copies race."""
    rng = random.Random(seed)
    bench = Bench()
    matchers = tuple(range(rng.randint(1, 3)))
    client = client_key(1, 1)
    count = 30
    matching = {number: rng.random() < 0.7 for number in range(1, count + 1)}
    lanes: list[list[tuple[int, Result]]] = []  # per (access point, matcher)
    for way in range(3):
        first = 1 if way == 0 else rng.randint(1, 5)
        last = count if way == 2 else rng.randint(5, count)
        shares = []
        sequence = 1
        at = first
        while at <= last:
            size = min(rng.randint(1, 5), last - at + 1)
            shares.append((sequence, at, size))
            sequence += size
            at += size
        for matcher in matchers:
            lane = []
            for sequence, at, size in shares:
                found = {
                    place: {client: [matcher]}
                    for place in range(size)
                    if matching[at + place] and matcher == (at + place) % len(matchers)
                }
                owner = run(first=at, count=size, client=client_key(0, way))
                lane.append((matcher, result([owner], found, sequence=sequence, access_point=way, expect=matchers)))
            lanes.append(lane)
    # No way may begin behind what is released, as no client skips what is not acknowledged: 1 to 5 are in the first.
    for lane in lanes[: len(matchers)]:
        while lane and lane[0][1].runs[0].first_sequence <= 5:
            bench.join(lane[0][1], lane[0][0])
            lane.pop(0)
    while any(lanes):
        lane = rng.choice([lane for lane in lanes if lane])
        matcher, message = lane.pop(0)
        bench.join(message, matcher)
        if rng.random() < 0.3:
            bench.feed(Drained())
    tokens = bench.tokens()
    rows = bench.handed()
    assert [row[3] for row in rows] == [number for number in range(1, count + 1) if matching[number]]
    rng.shuffle(tokens)
    for slot, token in tokens:
        bench.delivered(token, connection_point=slot)
    last_by_client: dict[int, int] = {}
    for owner, upto, _ in bench.acknowledged():
        assert upto >= last_by_client.get(owner, 0)
        last_by_client[owner] = upto
    assert last_by_client[client_key(0, 2)] == count
    gauges = bench.machine.gauges()
    assert gauges["released"] == count
    assert gauges["matched"] == sum(matching.values())
    assert gauges["unacknowledged_runs"] == gauges["incomplete_shares"] == 0
    assert all(not publisher.pending for publisher in bench.machine._publishers.values())


def test_idle_publishers_are_forgotten_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUBLISHERS_REMEMBERED", 10)
    bench = Bench()
    bench.join(result([run("busy")], {0: {client_key(0, 1): [0]}}, sequence=1))
    for number in range(50):
        bench.join(result([run(f"p{number}")], sequence=2 + number))
    assert bench.machine.gauges()["publishers"] == 10
    ((_, token),) = bench.tokens()
    bench.acknowledged()
    bench.delivered(token)
    assert bench.acknowledged() == [(PUBLISHER, 1, [])]


def test_nothing_is_kept_when_all_is_delivered() -> None:
    bench = Bench()
    for number in range(1, 200):
        bench.join(result([run(first=number)], {0: {client_key(0, 1): [0]}}, sequence=number))
        for slot, token in bench.tokens():
            bench.delivered(token, connection_point=slot)
        bench.handed()
        bench.acknowledged()
    machine = bench.machine
    assert not machine._tokens
    assert not machine._acknowledgements
    assert all(not stream.shares for stream in machine._streams.values())
    assert all(not publisher.pending for publisher in machine._publishers.values())


def test_what_it_does_not_expect_is_a_broken_invariant() -> None:
    bench = Bench()
    with pytest.raises(AssertionError, match="exit_point 0 got Heartbeat"):
        bench.feed(Received(COORDINATOR_PEER, Heartbeat({})))
    with pytest.raises(AssertionError, match="got a Result from exit_point 1"):
        bench.feed(Received(Peer(EXIT_POINT, 1), result([run()])))
    with pytest.raises(AssertionError, match="matcher 4 answers"):
        bench.join(result([run()], expect=(0, 1)), 4)
    for event in (Tick(5), LaneUp(Peer(MATCHER, 0))):
        bench.feed(event)
    assert bench.sent == []
