"""How a new subscription gets the publications that are valid when it is opened, once, and before the live ones.

The subscription's connection point asks all connection points, itself included, once the matchers hold the
subscription: whatever was accepted before a question is answered, whatever is accepted after it is matched live. So
there is no gap. Each answers in the order of (publisher, instance, sequence), a piece at a time, and only when it is
asked for the next one; here the pieces are merged. So everything up to one key, `upto`, has been given at any time, and
after a change of the view all are asked again from there: a connection point that has left has handed over what it had.

    waiting      the subscription is not confirmed
    asking       pieces come and are given, as the client has credit
    over         every connection point has come to its end, and all is given

Doubles: what was accepted before its question and matched after the subscription held comes both ways. Here is known
what has come live (it waits behind the initial ones): of each publisher everything from the first such publication on
comes live, and is not given. The other way round, what is given and not acknowledged yet may come live later, and is
left out then: `admits`. What is acknowledged can't.

A durable session's survives its connection point: what is given is in the session's queue, and with it on disk are
`upto` and what was given and may still come live; what has come live waits in the same queue (`durable/`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cluster import columns
from cluster.chunk import Chunk
from cluster.frames import NotifyValid
from cluster.messages import ValidPublication
from cluster.valid import Key

Life = tuple[str, int]
"""A publisher and its instance."""


@dataclass(slots=True)
class Part:
    """What comes from one connection point. query: the number of the question that is not answered, asked at
    `asked_ms`."""

    after: Key | None
    buffer: deque[ValidPublication] = field(default_factory=deque)
    ended: bool = False
    query: int | None = None
    asked_ms: int = 0


class Initial:
    """One subscription's. number: the client's own; normal_form: as it was opened."""

    def __init__(self, number: int, normal_form: bytes) -> None:
        self.number = number
        self.normal_form = normal_form
        self.upto: Key | None = None
        self.asking = False
        self.parts: dict[int, Part] = {}
        self._live_from: dict[Life, int] = {}
        self._given: dict[Life, set[int]] = {}

    def ask(self, slots: Iterable[int]) -> None:
        """Ask these connection points, from where everything is given; at least one."""
        self.asking = True
        self.parts = {slot: Part(self.upto) for slot in slots}
        assert self.parts, "nobody to ask"

    def due(self) -> list[tuple[int, Part]]:
        """Return those that are to be asked for their next piece."""
        return [
            (slot, part)
            for slot, part in self.parts.items()
            if not part.buffer and not part.ended and part.query is None
        ]

    def queries(self) -> list[int]:
        """Return the numbers of the questions underway."""
        return [part.query for part in self.parts.values() if part.query is not None]

    def found(self, slot: int, publications: list[ValidPublication], upto: Key | None, *, ended: bool) -> None:
        """Take a piece."""
        part = self.parts[slot]
        part.query = None
        part.buffer.extend(publications)
        part.after = upto
        part.ended = ended

    @property
    def over(self) -> bool:
        """Everything is given."""
        return self.asking and all(part.ended and not part.buffer for part in self.parts.values())

    def take(self, most: int, most_bytes: int) -> tuple[list[ValidPublication], list[ValidPublication]]:
        """Return what is to be given now, and what was passed over as it comes live."""
        chosen: list[ValidPublication] = []
        passed: list[ValidPublication] = []
        parts = self.parts.values()
        while len(chosen) < most and most_bytes > 0:
            heads = [part.buffer[0] for part in parts if part.buffer]
            if not heads or any(not part.buffer and not part.ended for part in parts):
                break
            first = min(heads, key=_key)
            key = _key(first)
            for part in parts:
                if part.buffer and _key(part.buffer[0]) == key:
                    # The publisher has sent it to both, or one hands over to the other.
                    other = part.buffer.popleft()
                    if other.settled and not first.settled:
                        first = other
            self.upto = key
            if self._live_from.get(key[:2], key[2] + 1) <= key[2]:
                passed.append(first)
                continue
            if not first.settled:
                self._given.setdefault(key[:2], set()).add(key[2])
            chosen.append(first)
            most_bytes -= len(first.payload) + len(first.publisher) + 24
        return chosen, passed

    # A later life of the connection point --------------------------------------------------------------------------

    def given(self) -> list[tuple[str, int, list[int]]]:
        """Return (publisher, instance, sequences) of what was given and may still come live; for `resume`."""
        return [(*life, sorted(sequences)) for life, sequences in self._given.items()]

    def resume(self, given: Iterable[tuple[str, int, list[int]]]) -> None:
        """Take up what an earlier life has given; `upto` is set by the owner, `came_live` is called for the rest."""
        for publisher, instance, sequences in given:
            self._given[publisher, instance] = set(sequences)

    def came_live(self, life: Life, sequence: int) -> None:
        """This has come live in an earlier life, in each publisher's order."""
        self._live_from.setdefault(life, sequence)

    def end(self) -> None:
        """Everything was given in an earlier life."""
        self.asking = True
        self.parts = {}

    # Live notifications --------------------------------------------------------------------------------------------

    def admits(self, life: Life, sequence: int) -> bool:
        """Tell whether a live notification of the subscription is to go on; they come in each publisher's order."""
        given = self._given.get(life)
        if given is not None and sequence in given:
            return False
        if not self.over:
            self._live_from.setdefault(life, sequence)
        return True

    def prune(self, came: Any) -> bool:
        """Forget what can't come any more, as something later of its publisher came; tell whether anything is left.

        came: life -> the last sequence that came live to this connection point.
        """
        for life in list(self._given):
            last = came(life)
            left = {sequence for sequence in self._given[life] if sequence > last}
            if left:
                self._given[life] = left
            else:
                del self._given[life]
        return bool(self._given)


def _key(publication: ValidPublication) -> Key:
    return publication.publisher, publication.instance, publication.sequence


def admitted(chunk: Chunk, initials: dict[int, Initial]) -> Chunk:
    """Return the live notifications without the hits that were given as initial ones."""
    runs = columns.unpack(columns.UINT32, chunk.run)
    sequences = columns.unpack(columns.UINT64, chunk.sequence)
    matches = columns.unpack(columns.UINT32, chunk.matches)
    numbers = columns.unpack(columns.UINT32, chunk.numbers)
    kept = np.ones(len(numbers), np.bool_)
    place = 0
    for run, sequence, count in zip(runs, sequences, matches, strict=True):
        life = chunk.runs[run][:2]
        for hit in range(place, place + count):
            initial = initials.get(numbers[hit])
            if initial is not None and not initial.admits(life, sequence):
                kept[hit] = False
        place += count
    return chunk.with_hits(kept)


def frame_of(number: int, publications: list[ValidPublication], *, last: bool) -> NotifyValid:
    """Return the publications as the client gets them."""
    runs: dict[tuple[str, int, int], int] = {}
    run = [runs.setdefault((one.publisher, one.instance, one.time_us), len(runs)) for one in publications]
    return NotifyValid(
        number,
        last,
        list(runs),
        columns.pack(columns.UINT32, run),
        columns.pack(columns.UINT64, [one.sequence for one in publications]),
        columns.pack(columns.UINT32, [len(one.payload) for one in publications]),
        b"".join([one.payload for one in publications]),
    )
