"""Subscriptions of a durable session that are given what is valid.

Such a subscription is *served*: what `initial.py` gives is owed like the rest, and comes before what matches live after
it was opened. That may have come already; so when it is opened it gets a *place*, RESERVED positions that follow the
last one given, and nothing beyond the place is sent before all is given and that is on disk. What is left of the place
then counts as settled. Places, and how far each was given, are on disk with what was given; what has come live
meanwhile is known from the queue, as none of it can have been sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from cluster import columns
from cluster.durable.entries import Entry, Held
from cluster.durable.queue import Queue
from cluster.initial import Initial
from cluster.messages import ValidPublication
from cluster.valid import Key

RESERVED = 1 << 32
"""Positions for what is valid, of one subscription; more than there are valid publications anywhere."""

Placed = tuple[int, int, int, Key | None]
"""A place on disk: (number, next, last, everything given up to there)."""
Given = tuple[int, str, int, list[int]]
"""(number, publisher, instance, sequences) of what was given as valid and may still come live."""


@dataclass(slots=True)
class Place:
    """Positions for what a subscription is given as valid: from `next` to `last` they are free."""

    initial: Initial
    next: int
    last: int


class Places:
    """Of one session, whose queue this is.

    serving:  by number, the subscriptions that are being given what is valid.
    initials: these, and those that may still get live what they were given; the connection point takes them out.
    closed:   where places end that are closed, which is not on disk.
    _places:  by number, of those that are served, in the order of their positions.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.serving: dict[int, Initial] = {}
        self.initials: dict[int, Initial] = {}
        self.closed: list[int] = []
        self._places: dict[int, Place] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._places

    @property
    def first(self) -> tuple[int, Place] | None:
        """The place that is filled before all others, and whose it is."""
        return next(iter(self._places.items()), None)

    @property
    def free(self) -> int | None:
        """The first position that is free in a place."""
        return None if self.first is None else self.first[1].next

    @property
    def end(self) -> int:
        """Nothing beyond this position is sent."""
        closed = [*self.closed, *(place.last for place in islice(self._places.values(), 1))]
        return min(closed, default=self._queue.next)

    def open(self, number: int, initial: Initial) -> None:
        """Have a place for it, behind all that has come."""
        assert number not in self._places, f"subscription {number} is served already"
        first = self._queue.reserve(RESERVED)
        self._places[number] = Place(initial, first, first + RESERVED - 1)
        self.serving[number] = self.initials[number] = initial

    def give(self, number: int, publications: Iterable[ValidPublication], *, blocks: bool) -> list[int]:
        """Queue these for it; return their positions. If something is behind them already, the queue is to be
        sorted."""
        place = self._places[number]
        own = columns.pack(columns.UINT32, [number])
        positions = []
        for one in publications:
            assert place.next <= place.last, f"subscription {number} is given more than {RESERVED}"
            run = (one.publisher, one.instance, one.time_us)
            self._queue.add(Entry(place.next, run, one.sequence, own, one.payload, blocks, given=True))
            positions.append(place.next)
            place.next += 1
        self._queue.unstored.update(positions)
        return positions

    def close(self, number: int) -> None:
        """It has been given everything, or is closed: what is left of its place is settled."""
        place = self._places.pop(number)
        del self.serving[number]
        self.closed.append(place.last)
        if place.next <= place.last:
            self._queue.settled.add_all(place.next, place.last)

    # On disk -----------------------------------------------------------------------------------------------------

    def placed(self) -> list[Placed]:
        """Return the places, for `resume`."""
        return [(number, place.next, place.last, place.initial.upto) for number, place in self._places.items()]

    def given(self) -> list[Given]:
        """Return what was given and may still come live, for `resume`."""
        return [(number, *life) for number, initial in self.initials.items() for life in initial.given()]

    def on_disk(self, closed: list[int]) -> None:
        """That these are closed is on disk."""
        self.closed = [last for last in self.closed if last not in closed]

    def resume(self, placed: list[Placed], given: list[Given], subscriptions: dict[int, Held]) -> bool:
        """Go on where a former incarnation, or another home, was; tell whether a place was closed by that."""
        closed = []
        for number, following, last, upto in placed:
            held = subscriptions.get(number)
            initial = self.serving[number] = Initial(number, b"" if held is None else held.normal_form)
            initial.upto = upto
            self._places[number] = Place(initial, following, last)
            if held is None:
                closed.append(number)
                continue
            self.initials[number] = initial
            own = columns.pack(columns.UINT32, [number])
            for entry in self._queue.entries.values():
                if entry.position > last and own in columns.cut(entry.numbers, [4] * (len(entry.numbers) // 4)):
                    initial.came_live(entry.run[:2], entry.sequence)
        for number in closed:
            self.close(number)
        for number in {number for number, *_ in given}:
            resumed = self.initials.get(number)
            if resumed is None:
                if number not in subscriptions:
                    continue
                resumed = self.initials[number] = Initial(number, subscriptions[number].normal_form)
                resumed.end()
            resumed.resume(one[1:] for one in given if one[0] == number)
        return bool(closed)

    def free_stretches(self) -> list[tuple[int, int]]:
        """Return the positions that are free, as ranges."""
        return [(place.next, place.last) for place in self._places.values() if place.next <= place.last]

    def check(self) -> None:
        """Assert what holds of it alone; for tests."""
        assert list(self.serving) == list(self._places)
