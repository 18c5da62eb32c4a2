"""The outbox against a model of plain lists: order, counts, limits; nothing of a block subscription is lost."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import msgpack
import numpy as np
import pytest

from cluster.columns import UINT32, UINT64, pack
from cluster.outbox import REASONS, Chunk, Drops, Outbox, Position
from cluster.policy import Policy

ASCENDING = ("latest_per_key", "drop_oldest", "drop_newest", "block", "disconnect")
POLICIES = [
    *map(Policy, ("block", "drop_oldest", "drop_newest", "disconnect")),
    *(Policy("latest_per_key", name) for name in ("key", "two")),
]


@dataclass
class Item:
    """One notification. position: how many were pushed up to it; size as the outbox counts it; same: what its values
    count as, by attribute."""

    position: int
    sequence: int
    numbers: tuple[int, ...]
    payload: bytes
    same: dict[Any, Any]

    @property
    def size(self) -> int:
        return len(self.payload) + 24 + 4 * len(self.numbers)


def chunk_of(items: list[Item]) -> Chunk:
    return Chunk(
        [("publisher", 1, 7)],
        pack(UINT32, [0] * len(items)),
        pack(UINT64, [item.sequence for item in items]),
        pack(UINT32, [len(item.payload) for item in items]),
        pack(UINT32, [len(item.numbers) for item in items]),
        pack(UINT32, [number for item in items for number in item.numbers]),
        b"".join(item.payload for item in items),
    )


def items_of(chunk: Chunk) -> list[tuple[int, tuple[int, ...], bytes]]:
    """Read a chunk back from its frame, as a client does."""
    frame = chunk.frame()
    count = len(frame.run) // 4
    sequences = struct.unpack(f"<{count}Q", frame.sequence)
    lengths = struct.unpack(f"<{count}I", frame.lengths)
    matches = struct.unpack(f"<{count}I", frame.matches)
    numbers = struct.unpack(f"<{sum(matches)}I", frame.numbers)
    assert sum(lengths) == len(frame.payload)
    assert all(run < len(frame.runs) for run in struct.unpack(f"<{count}I", frame.run))
    out = []
    at = place = 0
    for sequence, length, matched in zip(sequences, lengths, matches, strict=True):
        out.append((sequence, numbers[place : place + matched], frame.payload[at : at + length]))
        at, place = at + length, place + matched
    return out


VALUES: list[tuple[str, Any]] = [
    *(("number", number) for number in (1, 1.0, 2, 2**53, 2**53 + 1, float(2**53), 0, -0.0, 2**64 - 1)),
    *(("bool", truth) for truth in (True, False)),
    *(("string", text) for text in ("", "1", "a", "A", "\u00e9", "e\u0301")),
    ("null", None),
    ("absent", None),
]
"""Pairs that are equal where the values count as the same: Python compares numbers exactly."""


def payload_of(rng: random.Random, kinds: int) -> tuple[bytes, dict[str, Any]]:
    """Return a publication and, by attribute, what its values count as."""
    kind, value = rng.choice(VALUES[-kinds:] if rng.random() < 0.5 else VALUES[:kinds])
    second = rng.randint(0, 1)
    attributes: dict[str, Any] = {} if kind == "absent" else {"key": value}
    attributes["padding"] = "p" * rng.choice((0, 0, 0, 20, 150, 600 if rng.random() < 0.2 else 5))
    attributes["two"] = second
    same = {"key": (kind, value), "two": ("number", second)}
    return msgpack.packb(attributes), same


class Model:
    """An outbox in lists: what waits, what was sent and not consumed, by whole notifications.

    What is pushed goes to `fresh`, and is taken in one by one when the outbox is told to settle, by the rules of
    outbox.py's text and without its structures.
    """

    def __init__(self, rng: random.Random, policies: dict[int, Policy]) -> None:
        self.rng = rng
        self.window = rng.choice((1, 3, 10, 1000))
        self.flight_bytes = rng.choice((60, 500, 1 << 20))
        self.queue_messages = rng.choice((1, 5, 20, 1000))
        self.queue_bytes = rng.choice((100, 700, 1 << 20))
        self.frame_bytes = rng.choice((200, 1000, 1 << 20))
        self.kinds = rng.choice((2, 5, len(VALUES)))
        self.outbox = Outbox(
            window=self.window,
            flight_bytes=self.flight_bytes,
            queue_messages=self.queue_messages,
            queue_bytes=self.queue_bytes,
            frame_bytes=self.frame_bytes,
        )
        self.policies = policies
        for number, policy in policies.items():
            self.outbox.set_policy(number, policy)
        self.waiting: list[Item] = []
        self.fresh: list[Item] = []
        self.sent: list[Item] = []
        self.consumed = 0
        self.pushed = 0
        self.dropped: dict[str, list[Item]] = {reason: [] for reason in REASONS}
        self.holds: list[tuple[Position, int]] = []  # with how many were pushed up to it
        self.overflowed = False
        self.told: dict[str, Drops] = {}
        self.counted = dict.fromkeys(REASONS, 0)  # of what was dropped, as returned by settle

    # The rules ---------------------------------------------------------------------------------------------------

    def decides(self, item: Item) -> str:
        return max((self.policies[number].name for number in item.numbers), key=ASCENDING.index)

    def over(self) -> bool:
        return len(self.waiting) > self.queue_messages or sum(one.size for one in self.waiting) > self.queue_bytes

    def drop(self, item: Item, reason: str) -> None:
        self.waiting.remove(item)
        self.dropped[reason].append(item)

    def outdated(self, place: int) -> bool:
        """For each subscription of the one that waits there a newer one with the same value waits."""
        item = self.waiting[place]
        return all(
            any(
                number in newer.numbers
                and newer.same[self.policies[number].attribute] == item.same[self.policies[number].attribute]
                for newer in self.waiting[place + 1 :]
            )
            for number in item.numbers
        )

    def arrive(self, item: Item) -> None:
        decides = self.decides(item)
        self.waiting.append(item)
        if decides == "drop_newest" and self.over():
            self.drop(item, "drop_newest")
            return
        for place in reversed(range(len(self.waiting) - 1)):
            if self.decides(self.waiting[place]) == "latest_per_key" and self.outdated(place):
                self.drop(self.waiting[place], "latest_per_key")
        while self.over():
            lossy = [one for one in self.waiting if self.decides(one) in ("latest_per_key", "drop_oldest")]
            if not lossy:
                break
            self.drop(lossy[0], "drop_oldest")
        if item in self.waiting and decides == "disconnect" and self.over():
            self.overflowed = True

    # Steps -------------------------------------------------------------------------------------------------------

    def push(self, numbers: list[int]) -> None:
        items = []
        for _ in range(self.rng.choice((1, 1, 2, 5, 12))):
            self.pushed += 1
            own = tuple(sorted(self.rng.sample(numbers, self.rng.randint(1, min(3, len(numbers))))))
            payload, same = payload_of(self.rng, self.kinds)
            items.append(Item(self.pushed, self.pushed * 3, own, payload, same))
        self.fresh += items
        full = len(self.waiting) + len(self.fresh) > self.queue_messages
        if (full or sum(one.size for one in [*self.waiting, *self.fresh]) > self.queue_bytes) and self.is_idle():
            self.arrive_all()
        self.holds.append((self.outbox.push(chunk_of(items)), self.pushed))
        assert self.outbox.end == self.holds[-1][0]

    def is_idle(self) -> bool:
        """Tell whether nothing may be written."""
        flying = self.sent[self.consumed :]
        idle = not self.outbox.has_credit()
        if not self.partly_consumed:
            assert idle == (len(flying) >= self.window or sum(one.size for one in flying) >= self.flight_bytes)
        return idle

    def arrive_all(self) -> None:
        fresh, self.fresh = self.fresh, []
        for item in fresh:
            self.arrive(item)

    def settle(self) -> None:
        self.arrive_all()
        self.compare_settled()

    def compare_settled(self) -> None:
        now = {reason: len(items) - self.counted[reason] for reason, items in self.dropped.items()}
        self.counted = {reason: len(items) for reason, items in self.dropped.items()}
        assert self.outbox.settle() == {reason: count for reason, count in now.items() if count}
        assert self.outbox.overflowed == self.overflowed

    def take(self) -> None:
        chunks = self.outbox.take()
        for chunk in chunks:
            for sequence, numbers, payload in items_of(chunk):
                item = (self.waiting or self.fresh).pop(0)
                assert (sequence, numbers, payload) == (item.sequence, item.numbers, item.payload)
                self.sent.append(item)
            assert len(chunk) == 1 or chunk.size <= self.frame_bytes // 2
        flying = self.sent[self.consumed :]
        assert len(flying) <= self.window
        if self.waiting or self.fresh:
            in_flight = sum(item.size for item in flying)
            assert len(flying) == self.window or in_flight >= self.flight_bytes or self.partly_consumed

    partly_consumed = False

    def consume(self) -> None:
        self.consumed = self.rng.randint(self.consumed, len(self.sent))
        # Bytes leave the flight by whole chunks.
        self.partly_consumed = self.consumed < len(self.sent)
        assert self.outbox.consume(self.consumed)

    def close(self, number: int) -> None:
        """Right after `settle`, as the connection point does."""
        assert not self.fresh
        live = np.ones(256, np.bool_)
        live[number] = False
        ahead = list(accumulate(item.size for item in self.waiting))
        beyond = {
            item.position
            for count, (item, size) in enumerate(zip(self.waiting, ahead, strict=True), 1)
            if count > self.queue_messages or size > self.queue_bytes
        }
        self.outbox.keep(live)
        waiting, self.waiting = self.waiting, []
        if any(number in item.numbers for item in waiting):
            for item in waiting:
                rest = tuple(one for one in item.numbers if one != number)
                if rest:
                    before_it = len(self.dropped["drop_newest"])
                    self.arrive(replace(item, numbers=rest))
                    assert item.position in beyond or len(self.dropped["drop_newest"]) == before_it, "it had its place"
        else:
            self.waiting = waiting
        self.compare_settled()

    def tell(self) -> None:
        for reason, drops in self.outbox.take_drops().items():
            told = self.told.setdefault(reason, Drops())
            told.notifications += drops.notifications
            for number, count in drops.counts.items():
                told.counts[number] = told.counts.get(number, 0) + count

    # What must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        outbox = self.outbox
        outbox.check()
        everything = [*self.waiting, *self.fresh]
        assert outbox.queued == len(everything)
        assert outbox.queued_bytes == sum(item.size for item in everything)
        assert outbox.sent == len(self.sent)
        assert outbox.consumed == self.consumed
        for position, pushed in self.holds:
            ahead = [item for item in everything if item.position <= pushed]
            fits = len(ahead) <= self.queue_messages and sum(item.size for item in ahead) <= self.queue_bytes
            if outbox.admits(position):
                assert fits
            elif not self.fresh:
                # Pushes that came mixed are admitted when the part that stays is: no later than all of them.
                assert not fits
                assert any(self.decides(item) in ("block", "disconnect") for item in ahead)
        self.holds = [hold for hold in self.holds if not outbox.admits(hold[0])]

    def check_end(self) -> None:
        """Every notification was sent or dropped, once, in order; and what was dropped was told."""
        self.tell()
        for reason, items in self.dropped.items():
            counts: dict[int, int] = {}
            for item in items:
                for number in item.numbers:
                    counts[number] = counts.get(number, 0) + 1
            assert self.told.get(reason, Drops()) == Drops(len(items), counts)
        assert self.outbox.take_drops() == {}
        assert [item.position for item in self.sent] == sorted({item.position for item in self.sent})

    def run_dry(self) -> None:
        while self.waiting or self.fresh:
            self.consumed = len(self.sent)
            self.partly_consumed = False
            assert self.outbox.consume(self.consumed)
            self.take()
            self.settle()
            self.check()
        assert not self.holds, "an empty queue holds somebody up"
        self.check_end()


def play(seed: int, policies: dict[int, Policy], *, closing: bool = False, steps: int = 100) -> Model:
    """Run an outbox and its model side by side."""
    rng = random.Random(seed)
    numbers = list(policies)
    model = Model(rng, policies)
    for _ in range(steps):
        step = rng.random()
        if step < 0.45:
            model.push(numbers)
        elif step < 0.6:
            model.take()
        elif step < 0.75:
            if rng.random() < 0.7:
                model.take()
            model.settle()
        elif step < 0.95 or not closing:
            model.consume()
        elif len(numbers) > 1:
            model.settle()
            model.close(numbers.pop(rng.randrange(len(numbers))))
        if rng.random() < 0.2:
            model.tell()
        model.check()
    if not model.overflowed:
        model.run_dry()
    return model


def total(models: list[Model], reason: str) -> int:
    return sum(len(model.dropped[reason]) for model in models)


@pytest.mark.parametrize("block", range(4))
def test_any_policies(block: int) -> None:
    models = []
    for seed in range(5000 + 15 * block, 5015 + 15 * block):
        rng = random.Random(seed)
        numbers = rng.sample([*range(64), *range(190, 200)], rng.randint(1, 6))
        kinds = rng.sample(POLICIES, rng.randint(1, len(POLICIES)))
        models.append(play(seed, {number: rng.choice(kinds) for number in numbers}, closing=True))
    assert all(total(models, reason) for reason in REASONS), "the draw misses a way to drop"
    assert any(model.overflowed for model in models)


@pytest.mark.parametrize("seed", range(15))
def test_block_loses_nothing(seed: int) -> None:
    model = play(seed, {0: Policy("block"), 5: Policy("block")})
    assert not any(model.dropped.values())
    assert [item.position for item in model.sent] == list(range(1, model.pushed + 1))


LOSSY = [Policy("drop_oldest"), Policy("drop_newest"), Policy("latest_per_key", "key"), Policy("latest_per_key", "two")]


@pytest.mark.parametrize("seed", range(40))
def test_without_block_the_limits_hold_and_nobody_is_held_up(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [LOSSY[seed % 4]] if seed < 24 else LOSSY
    model = Model(rng, {number: rng.choice(kinds) for number in (0, 7, 200)})
    for _ in range(60):
        model.push([0, 7, 200])
        if rng.random() < 0.3:
            model.take()
            model.consume()
        model.settle()
        outbox = model.outbox
        assert outbox.queued <= model.queue_messages
        assert outbox.queued_bytes <= model.queue_bytes
        assert all(outbox.admits(position) for position, _ in model.holds)
        model.check()
    model.run_dry()


def test_what_fits_in_flight_meets_no_policy() -> None:
    for policy in POLICIES:
        outbox = Outbox(window=100, flight_bytes=1 << 20, queue_messages=1, queue_bytes=100, frame_bytes=1 << 20)
        outbox.set_policy(0, policy)
        outbox.push(chunk_of([Item(place, place, (0,), msgpack.packb({"key": 1}), {}) for place in range(60)]))
        assert sum(map(len, outbox.take())) == 60
        assert outbox.settle() == {}
        assert not outbox.overflowed


def small(*, queue_messages: int = 3, window: int = 1) -> Outbox:
    """Return an outbox whose window is used up."""
    outbox = Outbox(
        window=window, flight_bytes=1000, queue_messages=queue_messages, queue_bytes=10_000, frame_bytes=10_000
    )
    outbox.push(chunk_of([Item(0, 99, (0,), b"\x80", {})] * window))
    assert sum(map(len, outbox.take())) == window
    return outbox


def pushed(outbox: Outbox, *what: tuple[int, Any], numbers: tuple[int, ...] = (0,)) -> Position:
    """Push one chunk of (sequence, key) and settle."""
    items = [Item(0, sequence, numbers, msgpack.packb({"key": key}), {}) for sequence, key in what]
    position = outbox.push(chunk_of(items))
    outbox.settle()
    return position


def left(outbox: Outbox) -> list[int]:
    """Return the sequences that wait, as the client gets them."""
    got = []
    while outbox.queued:
        outbox.consume(outbox.sent)
        got += [sequence for chunk in outbox.take() for sequence, _, _ in items_of(chunk)]
    return got


def test_a_newer_one_takes_its_own_later_place() -> None:
    outbox = small()
    outbox.set_policy(0, Policy("latest_per_key", "key"))
    pushed(outbox, (1, "a"), (2, "b"))
    pushed(outbox, (3, "a"))
    assert left(outbox) == [2, 3]
    assert outbox.take_drops() == {"latest_per_key": Drops(1, {0: 1})}


def test_more_values_than_fit_lose_the_one_that_waited_longest() -> None:
    outbox = small()
    outbox.set_policy(0, Policy("latest_per_key", "key"))
    pushed(outbox, (1, "a"), (2, "b"), (3, "a"), (4, "c"), (5, "d"))
    assert left(outbox) == [3, 4, 5]
    assert outbox.take_drops() == {"latest_per_key": Drops(1, {0: 1}), "drop_oldest": Drops(1, {0: 1})}


def test_what_two_subscriptions_match_waits_until_both_have_something_newer() -> None:
    outbox = small()
    outbox.set_policy(0, Policy("latest_per_key", "key"))
    outbox.set_policy(1, Policy("latest_per_key", "key"))
    pushed(outbox, (1, "a"), numbers=(0, 1))
    pushed(outbox, (2, "a"), numbers=(0,))
    assert outbox.queued == 2
    pushed(outbox, (3, "a"), numbers=(1,))
    assert left(outbox) == [2, 3]
    assert outbox.take_drops() == {"latest_per_key": Drops(1, {0: 1, 1: 1})}


def test_what_also_blocks_outdates_others_and_stays_itself() -> None:
    outbox = small()
    outbox.set_policy(0, Policy("latest_per_key", "key"))
    pushed(outbox, (1, "a"))
    pushed(outbox, (2, "a"), numbers=(0, 1))
    pushed(outbox, (3, "a"))
    assert left(outbox) == [2, 3]
    assert outbox.take_drops() == {"latest_per_key": Drops(1, {0: 1})}


def test_a_value_that_never_changes_holds_nobody_up() -> None:
    """Places are counted by what waits, not from the head of the queue on, which may stand for long."""
    outbox = small()
    outbox.set_policy(0, Policy("latest_per_key", "key"))
    pushed(outbox, (1, "still"))
    for sequence in range(2, 50):
        assert outbox.admits(pushed(outbox, (sequence, "busy")))
    assert left(outbox) == [1, 49]


def test_drop_newest_keeps_what_has_a_place_and_takes_what_fits() -> None:
    outbox = small()
    outbox.set_policy(0, Policy("drop_newest"))
    assert outbox.admits(pushed(outbox, (1, 0), (2, 0)))
    assert outbox.admits(pushed(outbox, (3, 0), (4, 0)))
    assert outbox.admits(pushed(outbox, (5, 0)))
    assert left(outbox) == [1, 2, 3]
    assert outbox.take_drops() == {"drop_newest": Drops(2, {0: 2})}


def test_disconnect_only_where_nothing_gives_way() -> None:
    outbox = small()
    outbox.set_policy(0, Policy("disconnect"))
    outbox.set_policy(1, Policy("drop_oldest"))
    pushed(outbox, (1, 0), (2, 0), numbers=(1,))
    pushed(outbox, (3, 0), (4, 0))
    assert not outbox.overflowed
    pushed(outbox, (5, 0))
    assert not outbox.overflowed
    assert outbox.take_drops() == {"drop_oldest": Drops(2, {1: 2})}
    pushed(outbox, (6, 0), numbers=(0, 1))
    assert outbox.overflowed


def test_a_policy_that_is_replaced_holds_for_what_comes_afterwards() -> None:
    outbox = small()
    pushed(outbox, (1, 0), (2, 0))
    outbox.set_policy(0, Policy("drop_oldest"))
    pushed(outbox, (3, 0), (4, 0))
    outbox.set_policy(0, Policy("block"))
    assert outbox.admits(pushed(outbox, (5, 0)))
    assert not outbox.admits(pushed(outbox, (6, 0)))
    assert left(outbox) == [1, 2, 5, 6]
    assert outbox.take_drops() == {"drop_oldest": Drops(2, {0: 2})}


def test_waiting_values_of_one_publisher_share_frames() -> None:
    outbox = small(queue_messages=100, window=9)
    outbox.set_policy(0, Policy("latest_per_key", "key"))
    pushed(outbox, *((sequence, sequence) for sequence in range(20)))
    outbox.consume(9)
    (chunk,) = outbox.take()
    assert [sequence for sequence, _, _ in items_of(chunk)] == list(range(9)), "what the window has room for"
    assert chunk.runs == [("publisher", 1, 7)]


def test_impossible_counts_are_refused() -> None:
    outbox = Outbox(window=10, flight_bytes=1000, queue_messages=10, queue_bytes=1000, frame_bytes=1000)
    outbox.push(chunk_of([Item(1, 1, (0,), b"x", {}), Item(2, 2, (0,), b"y", {})]))
    outbox.take()
    assert not outbox.consume(3)
    assert not outbox.consume(-1)
    assert outbox.consume(1)
    assert not outbox.consume(0)
    assert outbox.consume(2)
