"""A durable session against a model: random pushes, acknowledgements, refusals, reconnects, slow disks and crashes.

nothing stored is lost      what was on disk and not settled is delivered again, in order
no double without a flag    a position that a client has seen before comes flagged
doubles are few             after a crash at most a window of flagged ones
"""

from __future__ import annotations

import random
import struct
from functools import partial

import msgpack
import pytest

from cluster import columns
from cluster.config import Durable, Flow
from cluster.durable import DurableSession, Held, Room
from cluster.frames import Dropped
from cluster.journal import EndSession, Journal
from cluster.outbox import Chunk
from cluster.session_disk import SessionDisk

BIG = Durable(queue_messages=100_000)


def chunk(first: int, count: int, numbers: tuple[int, ...] = (0,)) -> Chunk:
    """Return notifications whose payload says which they are."""
    payloads = [msgpack.packb({"n": first + place}) for place in range(count)]
    return Chunk(
        [("p", 3, 7)],
        bytes(4 * count),
        columns.pack(columns.UINT64, range(first, first + count)),
        columns.pack(columns.UINT32, map(len, payloads)),
        columns.pack(columns.UINT32, [len(numbers)] * count),
        columns.pack(columns.UINT32, list(numbers) * count),
        b"".join(payloads),
    )


class Home:
    """A session, its journal and its disk; `client` is what the client knows."""

    def __init__(self, config: Durable = BIG, flow: Flow | None = None, policy: str = "block") -> None:
        self.config = config
        self.flow = flow or Flow()
        self.disk = SessionDisk()
        self.journal = Journal()
        self.room = Room()
        self.session = self._fresh()
        self.session.hold(0, Held("a > 1", policy, b"normal"))
        self.journal.changed(self.session)
        self.sync()

    def _fresh(self) -> DurableSession:
        return DurableSession(5, "lab", self.journal, self.room, self.config, self.flow, 4096)

    def round(self) -> None:
        portion = self.journal.take()
        if portion is not None:
            self.disk.ask(portion)

    def stored(self, count: int | None = None) -> None:
        upto = self.disk.sync(count)
        if upto is not None:
            self.journal.stored(upto)

    def sync(self) -> None:
        while True:
            self.round()
            if not self.disk.waiting:
                return
            self.stored()

    def crash(self) -> None:
        self.disk.crash()
        self.journal, self.room = Journal(), Room()
        (saved,) = self.disk.read().sessions
        self.session = DurableSession.restored(saved, self.journal, self.room, self.config, self.flow, 4096)

    def attach(self, window: int = 10) -> None:
        self.session.attach(window, 1)
        self.sync()

    def take(self) -> list[tuple[int, bool]]:
        """Return (position, flagged) of what is sent."""
        return [
            (position, bool(again))
            for portion in self.session.take()
            for position, again in zip(
                struct.unpack(f"<{len(portion)}Q", portion.frame().positions), portion.frame().redelivered, strict=True
            )
        ]


def test_what_is_pushed_is_sent_once_it_is_on_disk() -> None:
    home = Home()
    home.attach()
    home.session.push(chunk(1, 3))
    assert home.take() == []
    home.round()
    assert home.take() == [], "asked for is not on disk"
    home.stored()
    assert home.take() == [(1, False), (2, False), (3, False)]
    assert home.take() == []


def test_nothing_is_sent_before_the_connection_is_on_disk() -> None:
    home = Home()
    home.session.push(chunk(1, 2))
    home.sync()
    home.session.attach(10, 1)
    assert home.take() == []
    home.sync()
    assert home.take() == [(1, False), (2, False)]


def test_the_window_moves_when_the_acknowledgement_is_on_disk() -> None:
    home = Home()
    home.attach(2)
    home.session.push(chunk(1, 5))
    home.sync()
    assert home.take() == [(1, False), (2, False)]
    assert home.session.consume(1)
    assert home.take() == []
    home.sync()
    assert home.take() == [(3, False)]
    assert home.session.acknowledge([3])
    home.sync()
    assert home.take() == [(4, False)]
    home.session.check()


def test_reporting_what_was_not_sent_is_refused() -> None:
    home = Home()
    home.attach(2)
    home.session.push(chunk(1, 5))
    home.sync()
    home.take()
    assert not home.session.consume(3)
    assert not home.session.consume(-1)
    assert not home.session.acknowledge([3])
    assert not home.session.refuse([3])
    assert home.session.consume(2)


def test_what_was_underway_comes_again_and_flagged() -> None:
    home = Home()
    home.attach(2)
    home.session.push(chunk(1, 4))
    home.sync()
    home.take()
    home.session.detach(0)
    home.attach(10)
    assert home.take() == [(1, True), (2, True), (3, False), (4, False)]


@pytest.mark.parametrize("synced", [False, True])
def test_after_a_crash_a_window_is_flagged(synced: bool) -> None:
    home = Home()
    home.attach(2)
    home.session.push(chunk(1, 5))
    home.sync()
    home.take()
    home.session.consume(1)
    if synced:
        home.sync()
    home.crash()
    home.attach(10)
    expected = [(2, True), (3, True), (4, False), (5, False)]
    assert home.take() == (expected if synced else [(1, True), (2, True), (3, False), (4, False), (5, False)])


def test_after_a_crash_without_a_connection_nothing_new_is_flagged() -> None:
    home = Home()
    home.attach(1)
    home.session.push(chunk(1, 3))
    home.sync()
    home.take()
    home.session.detach(0)
    home.sync()
    home.crash()
    home.attach()
    assert home.take() == [(1, True), (2, False), (3, False)]


def test_what_is_refused_comes_again_first_and_in_the_end_is_dead() -> None:
    home = Home(Durable(max_deliver=3))
    home.attach(3)
    home.session.push(chunk(1, 5))
    home.sync()
    home.take()
    assert home.session.refuse([2, 1])
    assert home.take() == []
    home.sync()
    assert home.take() == [(1, True), (2, True)]
    home.session.acknowledge([1])
    home.session.refuse([2])
    home.sync()
    assert home.take() == [(2, True), (4, False)]
    home.session.refuse([2])
    (told,) = home.session.take_drops()
    assert told == Dropped("max_deliver", 1, [(0, 1)], struct.pack("<Q", 2))
    home.sync()
    assert home.take() == [(5, False)]
    (line,) = home.disk.dead_letters
    assert b'"position":2' in line
    assert b'"deliveries":3' in line
    assert b'"attributes":{"n":2}' in line
    assert home.session.take_counts() == (0, 1)
    assert home.session.take_counts() == (0, 0)


def test_reconnecting_too_often_makes_dead_letters_too() -> None:
    home = Home(Durable(max_deliver=2))
    home.session.push(chunk(1, 2))
    for _ in range(2):
        home.attach(1)
        home.take()
        home.session.detach(0)
    home.attach(2)
    assert home.take() == [(2, False)]
    assert [drop.reason for drop in home.session.take_drops()] == ["max_deliver"]


def test_without_a_connection_the_oldest_goes_and_is_counted() -> None:
    home = Home(Durable(queue_messages=4))
    home.session.push(chunk(1, 6))
    home.sync()
    home.crash()
    assert home.session.unsettled == 4
    home.attach()
    assert home.session.take_drops() == [Dropped("quota", 2, [(0, 2)], b"")], "remembered over a crash"
    assert [position for position, _ in home.take()] == [3, 4, 5, 6]


def test_bytes_and_all_sessions_together_are_bounded() -> None:
    size = 64 + 4 + 4
    home = Home(Durable(queue_bytes=3 * size))
    home.session.push(chunk(1, 9))
    assert home.session.unsettled == 3
    home = Home(Durable(total_bytes=5 * size))
    other = DurableSession(6, "other", home.journal, home.room, home.config, home.flow, 4096)
    other.push(chunk(1, 3))
    home.session.push(chunk(1, 9))
    assert (other.unsettled, home.session.unsettled) == (3, 2)
    other.end()
    assert home.room.bytes == home.session.held_bytes


def test_block_is_not_dropped_while_connected_and_not_admitted() -> None:
    home = Home(Durable(queue_messages=4), Flow(queue_messages=3))
    home.attach(1)
    first = home.session.push(chunk(1, 3))
    second = home.session.push(chunk(4, 3))
    assert home.session.admits(first)
    assert not home.session.admits(second)
    home.sync()
    home.take()
    home.session.consume(1)
    home.sync()
    home.take()
    assert home.session.unsettled == 5
    home.session.detach(0)
    assert home.session.admits(second)
    assert home.session.unsettled == 4


def test_drop_oldest_is_dropped_while_connected_but_not_what_is_underway() -> None:
    home = Home(Durable(queue_messages=4), policy="drop_oldest")
    home.attach(1)
    home.session.push(chunk(1, 1))
    home.sync()
    assert home.take() == [(1, False)]
    position = home.session.push(chunk(2, 6))
    assert home.session.admits(position)
    assert home.session.unsettled == 4
    home.session.acknowledge([1])
    home.sync()
    assert home.take() == [(5, False)]


def test_what_a_closed_subscription_matched_is_settled() -> None:
    home = Home()
    home.session.hold(1, Held("b", "block", b""))
    home.session.push(chunk(1, 2, (0, 1)))
    home.session.push(chunk(3, 2, (1,)))
    home.sync()
    home.session.close(1)
    live = columns.mask_with(columns.u32(b"").astype(bool), 1)
    live[0] = True
    home.session.keep(live)
    assert home.session.unsettled == 2
    home.session.check()
    home.sync()
    home.crash()
    assert list(home.session.subscriptions) == [0]
    home.attach()
    assert [position for position, _ in home.take()] == [1, 2]


def test_an_ended_session_is_gone_from_disk() -> None:
    home = Home()
    home.session.push(chunk(1, 2))
    home.sync()
    home.session.end()
    home.journal.write(EndSession(5))
    home.sync()
    assert home.disk.read().sessions == []


def test_nothing_new_comes_behind_too_many_gaps() -> None:
    home = Home(Durable(unsettled_ranges=2))
    home.attach(6)
    home.session.push(chunk(1, 20))
    home.sync()
    home.take()
    home.session.acknowledge([2, 4])
    home.sync()
    assert home.take() == []
    home.session.acknowledge([3])
    home.sync()
    assert home.take() == [(7, False), (8, False), (9, False)]


@pytest.mark.parametrize("seed", range(200))
def test_random_operations_and_crashes(seed: int) -> None:
    rng = random.Random(seed)
    window = rng.choice([1, 2, 5, 20])
    home = Home(Durable(max_deliver=1000))
    pushed = 0  # positions given
    promises = [0]
    told: set[int] = set()  # acknowledged by the client
    seen: set[int] = set()
    underway: list[int] = []
    refused: set[int] = set()
    connected = False

    def note(taken: list[tuple[int, bool]]) -> None:
        for position, flagged in taken:
            if position in seen:
                assert flagged, f"{position} comes again without a flag"
                assert position not in told, f"{position} was acknowledged"
            else:
                earlier = [one for one in range(1, position) if one not in seen]
                assert not earlier, f"{position} overtakes {earlier}"
            seen.add(position)
            refused.discard(position)
            if position in underway:
                underway.remove(position)
            underway.append(position)

    for _ in range(120):
        session = home.session
        operation = rng.random()
        if operation < 0.25:
            count = rng.randint(1, 4)
            session.push(chunk(pushed + 1, count))
            pushed += count
            home.journal.then(partial(promises.append, pushed))
        elif operation < 0.45:
            home.round()
            home.stored(rng.choice([None, 1]))
        elif operation < 0.6:
            note(home.take())
        elif operation < 0.7 and underway:
            # A client does not report what it wants again.
            position = min([rng.choice(underway), *(one - 1 for one in refused)])
            upto = [one for one in underway if one <= position]
            assert session.consume(position)
            told.update(upto)
            underway = [one for one in underway if one > position]
        elif operation < 0.78 and underway:
            chosen = rng.sample(underway, rng.randint(1, len(underway)))
            assert session.acknowledge(chosen)
            told.update(chosen)
            underway = [one for one in underway if one not in chosen]
        elif operation < 0.83 and underway and connected:
            chosen = rng.sample(underway, 1)
            assert session.refuse(chosen)
            refused.update(chosen)
            underway = [one for one in underway if one not in chosen]
        elif operation < 0.93:
            if connected:
                session.detach(0)
                underway.clear()
                refused.clear()
            else:
                session.attach(window, 1)
            connected = not connected
        elif operation < 0.97:
            home.crash()
            underway.clear()
            refused.clear()
            lost = {one for one in told if one in home.session._queue.entries}
            assert len(lost) <= window, f"{len(lost)} acknowledged ones come again"
            told -= lost
            connected = False
            # What was not promised may be gone; its numbers are given again, to whatever comes.
            pushed = home.session._queue.next - 1
            assert pushed >= max(promises), "what was promised is lost"
            seen &= set(range(1, pushed + 1))
            told &= set(range(1, pushed + 1))
        home.session.check()
    if connected:
        home.session.detach(0)
    underway.clear()
    home.session.attach(10_000, 1)
    home.sync()
    rest = home.take()
    note(rest)
    assert [position for position, _ in rest] == sorted(position for position, _ in rest)
    missing = [one for one in range(1, pushed + 1) if one not in seen]
    assert not missing, f"{missing} never came"
    unacknowledged = seen - told
    assert unacknowledged <= {position for position, _ in rest}, "delivered, not acknowledged, and forgotten"
