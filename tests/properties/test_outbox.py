"""The outbox against a model of plain lists: order, counts, limits; nothing of a block subscription is lost."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import numpy as np
import pytest

from cluster.columns import UINT32, UINT64, pack
from cluster.outbox import Chunk, Drops, Outbox, Position


@dataclass
class Item:
    """One notification. position: how many were pushed up to it; size as the outbox counts it."""

    position: int
    sequence: int
    numbers: tuple[int, ...]
    payload: bytes

    @property
    def size(self) -> int:
        return len(self.payload) + 24 + 4 * len(self.numbers)


def chunk_of(items: list[Item]) -> Chunk:
    return Chunk(
        [("publisher", 7)],
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


class Model:
    """An outbox in lists: what waits, what was sent and not consumed, by whole notifications."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.window = rng.choice((1, 3, 10, 1000))
        self.flight_bytes = rng.choice((60, 500, 1 << 20))
        self.queue_messages = rng.choice((1, 5, 20, 1000))
        self.queue_bytes = rng.choice((100, 700, 1 << 20))
        self.frame_bytes = rng.choice((200, 1000, 1 << 20))
        self.outbox = Outbox(
            window=self.window,
            flight_bytes=self.flight_bytes,
            queue_messages=self.queue_messages,
            queue_bytes=self.queue_bytes,
            frame_bytes=self.frame_bytes,
        )
        self.policies: dict[int, bool] = {}
        self.waiting: list[Item] = []
        self.sent: list[Item] = []
        self.consumed = 0
        self.pushed = 0
        self.pushed_bytes = 0
        self.dropped: list[Item] = []
        self.holds: list[tuple[Position, int]] = []  # with how many were pushed up to it

    def droppable(self, item: Item) -> bool:
        return all(self.policies[number] for number in item.numbers)

    def push(self, numbers: list[int]) -> None:
        items = []
        for _ in range(self.rng.choice((1, 1, 2, 5, 12))):
            self.pushed += 1
            own = tuple(sorted(self.rng.sample(numbers, self.rng.randint(1, min(3, len(numbers))))))
            length = self.rng.choice((0, 1, 20, 20, 20, 150, 600 if self.rng.random() < 0.2 else 5))
            items.append(Item(self.pushed, self.pushed * 3, own, self.rng.randbytes(length)))
        self.pushed_bytes += sum(item.size for item in items)
        self.waiting += items
        position = self.outbox.push(chunk_of(items))
        assert position == Position(self.pushed, self.pushed_bytes)
        place = 0
        size = sum(item.size for item in self.waiting)
        while place < len(self.waiting) and (len(self.waiting) > self.queue_messages or size > self.queue_bytes):
            if self.droppable(self.waiting[place]):
                size -= self.waiting[place].size
                self.dropped.append(self.waiting.pop(place))
            else:
                place += 1
        self.holds.append((position, self.pushed))

    def take(self) -> None:
        chunks = self.outbox.take()
        for chunk in chunks:
            for sequence, numbers, payload in items_of(chunk):
                item = self.waiting.pop(0)
                assert (sequence, numbers, payload) == (item.sequence, item.numbers, item.payload)
                self.sent.append(item)
            assert len(chunk) == 1 or chunk.size <= self.frame_bytes // 2
        flying = self.sent[self.consumed :]
        assert len(flying) <= self.window
        # The last frame may begin below the limit and end above it; it is at most half a frame, or one notification.
        last = chunks[-1].size if chunks else 0
        assert sum(item.size for item in flying) - last < self.flight_bytes or not chunks
        if self.waiting:
            in_flight = sum(item.size for item in flying)
            assert len(flying) == self.window or in_flight >= self.flight_bytes or self.partly_consumed

    partly_consumed = False

    def consume(self) -> None:
        self.consumed = self.rng.randint(self.consumed, len(self.sent))
        # Bytes leave the flight by whole frames.
        self.partly_consumed = self.consumed < len(self.sent)
        assert self.outbox.consume(self.consumed)

    def close(self, number: int) -> None:
        live = np.ones(64, np.bool_)
        live[number] = False
        self.outbox.keep(live)
        kept = []
        for item in self.waiting:
            rest = tuple(one for one in item.numbers if one != number)
            if rest:
                kept.append(Item(item.position, item.sequence, rest, item.payload))
        self.waiting = kept

    def check(self) -> None:
        outbox = self.outbox
        assert outbox.queued == len(self.waiting)
        assert outbox._bytes == sum(item.size for item in self.waiting)
        assert outbox.sent == len(self.sent)
        assert outbox.consumed == self.consumed
        assert outbox.dropped == len(self.dropped)
        # What is admitted lies within the limit; what lies within it though nothing was removed in between is admitted.
        for position, pushed in self.rng.sample(self.holds, min(4, len(self.holds))):
            ahead = [item for item in self.waiting if item.position <= pushed]
            if outbox.admits(position):
                assert len(ahead) <= self.queue_messages
                assert sum(item.size for item in ahead) <= self.queue_bytes
            else:
                assert ahead or self.waiting
                since = pushed - self.waiting[0].position + 1
                assert since > self.queue_messages or position.bytes > self.queue_bytes
        self.holds = [hold for hold in self.holds if not outbox.admits(hold[0])]

    def check_drops(self, told: dict[int, int], told_notifications: int) -> None:
        counts: dict[int, int] = {}
        for item in self.dropped:
            for number in item.numbers:
                counts[number] = counts.get(number, 0) + 1
        assert told == counts
        assert told_notifications == len(self.dropped)


def play(seed: int, policies: dict[int, bool], closing: bool) -> Model:
    """Run an outbox and its model side by side; the numbers' policies: whether they may be dropped."""
    rng = random.Random(seed)
    model = Model(rng)
    numbers = list(policies)
    model.policies = policies
    for number, droppable in policies.items():
        model.outbox.set_policy(number, droppable=droppable)
    told: dict[int, int] = {}
    told_notifications = 0
    for _ in range(100):
        step = rng.random()
        if step < 0.45:
            model.push(numbers)
        elif step < 0.7:
            model.take()
        elif step < 0.95 or not closing:
            model.consume()
        elif len(numbers) > 1:
            gone = numbers.pop(rng.randrange(len(numbers)))
            model.close(gone)
        if rng.random() < 0.2:
            drops = model.outbox.take_drops()
            if drops is not None:
                told_notifications += drops.notifications
                for number, count in drops.counts.items():
                    told[number] = told.get(number, 0) + count
        model.check()
    while model.waiting:
        model.consumed = len(model.sent)
        model.partly_consumed = False
        assert model.outbox.consume(model.consumed)
        model.take()
        model.check()
    assert not model.holds, "an empty queue holds somebody up"
    drops = model.outbox.take_drops() or Drops(0, {})
    for number, count in drops.counts.items():
        told[number] = told.get(number, 0) + count
    model.check_drops(told, told_notifications + drops.notifications)
    assert model.outbox.take_drops() is None
    return model


@pytest.mark.parametrize("seed", range(60))
def test_any_policies(seed: int) -> None:
    rng = random.Random(5000 + seed)
    numbers = rng.sample(range(64), rng.randint(1, 6))
    play(seed, {number: rng.random() < 0.5 for number in numbers}, closing=True)


@pytest.mark.parametrize("seed", range(40))
def test_block_loses_nothing(seed: int) -> None:
    model = play(seed, {0: False, 5: False}, closing=False)
    assert not model.dropped
    assert [item.position for item in model.sent] == list(range(1, model.pushed + 1))


@pytest.mark.parametrize("seed", range(40))
def test_drop_oldest_stays_within_the_limits_and_never_holds_anybody_up(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(rng)
    model.policies = {0: True, 200: True}
    for number in model.policies:
        model.outbox.set_policy(number, droppable=True)
    for _ in range(100):
        model.push([0, 200])
        outbox = model.outbox
        assert outbox.queued <= model.queue_messages
        assert outbox._bytes <= model.queue_bytes
        assert all(outbox.admits(position) for position, _ in model.holds)
        model.check()
        if rng.random() < 0.3:
            model.take()
            model.consume()


def test_impossible_counts_are_refused() -> None:
    outbox = Outbox(window=10, flight_bytes=1000, queue_messages=10, queue_bytes=1000, frame_bytes=1000)
    outbox.push(chunk_of([Item(1, 1, (0,), b"x"), Item(2, 2, (0,), b"y")]))
    outbox.take()
    assert not outbox.consume(3)
    assert not outbox.consume(-1)
    assert outbox.consume(1)
    assert not outbox.consume(0)
    assert outbox.consume(2)
