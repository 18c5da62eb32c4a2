"""What an exit point has released and found matched, as it goes into the log of matched output.

A record is made of what the matchers have answered about one batch, their columns as they came: nothing is decoded and
nothing is made per publication until the record is read. `rows_of` reads it, for the log's segments and for the
simulator alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from cluster.columns import U32, UINT32, UINT64, cut, unpack
from cluster.frames import SUBSCRIPTION_BITS

FEW = 64
"""Numbers that plain Python puts together as fast as numpy, which takes some microseconds for any number of them."""


class Answer(Protocol):
    """One matcher's hits, columns as in messages.Result."""

    @property
    def matched(self) -> bytes: ...
    @property
    def notifications(self) -> bytes: ...
    @property
    def clients(self) -> bytes: ...
    @property
    def matches(self) -> bytes: ...
    @property
    def numbers(self) -> bytes: ...
    @property
    def lengths(self) -> bytes: ...
    @property
    def payload(self) -> bytes: ...


class Hits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One matcher's hits; see Answer."""

    matched: bytes
    notifications: bytes
    clients: bytes
    matches: bytes
    numbers: bytes
    lengths: bytes
    payload: bytes


class MatchedRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run as in messages.Run. skipped: so many of its first publications were released before and are no rows.

    published_us: by the publisher's clock, microseconds since 1970; 0 if it did not say.
    since:        what the publisher sent from this sequence on, and is no part of what this record decides, was
                  released without a record as it matched nothing; 0 if there may be something else.
    settled:      none of the publisher's at or below this sequence comes again.
    """

    publisher: str
    instance: int
    first_sequence: int
    count: int
    skipped: int
    time_us: int
    published_us: int
    since: int = 0
    settled: int = 0


class Matched(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Publications of one batch, released in the order of their rows. rows: how many there are, at least one."""

    epoch: int
    rows: int
    runs: list[MatchedRun]
    hits: list[Hits]


Found = dict[int, tuple[bytes, dict[int, bytes]]]
"""Publication, counted through the runs -> (its bytes, client -> its numbers that match, as a uint32 column). No client
for one that is to be written all the same."""


def merge(answers: Sequence[Answer]) -> Found:
    """Join the matchers' hits. Ascending by publication if there is one answer."""
    merged: Found = {}
    for answer in answers:
        if not answer.matched:
            continue
        clients = unpack(UINT64, answer.clients)
        matches = unpack(UINT32, answer.matches)
        at = number = 0
        for place, count, payload in zip(
            unpack(UINT32, answer.matched),
            unpack(UINT32, answer.notifications),
            cut(answer.payload, unpack(UINT32, answer.lengths)),
            strict=True,
        ):
            entry = merged.setdefault(place, (payload, {}))
            own = entry[1]
            for client, size in zip(clients[at : at + count], matches[at : at + count], strict=True):
                stop = number + 4 * size
                numbers = answer.numbers[number:stop]
                number = stop
                other = own.get(client)
                own[client] = numbers if other is None else other + numbers
            at += count
    return merged


def hits_of(answers: Iterable[Answer]) -> list[Hits]:
    """Return the hits of those answers that have any."""
    return [
        Hits(one.matched, one.notifications, one.clients, one.matches, one.numbers, one.lengths, one.payload)
        for one in answers
        if one.matched
    ]


class MatchedRow(NamedTuple):
    """One publication. clients: with the numbers that match, as uint32 columns; payload: its attributes, packed."""

    run: MatchedRun
    sequence: int
    payload: bytes
    clients: dict[int, bytes]

    def subscriptions(self) -> array[int]:
        """Return the cluster's numbers of the subscriptions that matched, ascending, as int64."""
        if sum(map(len, self.clients.values())) > 4 * FEW:
            whole = np.concatenate(
                [
                    np.frombuffer(numbers, U32).astype(np.int64) | client << SUBSCRIPTION_BITS
                    for client, numbers in self.clients.items()
                ]
            )
            whole.sort()
            return array("q", whole.tobytes())
        found = [
            client << SUBSCRIPTION_BITS | number
            for client, numbers in self.clients.items()
            for number in unpack(UINT32, numbers)
        ]
        if len(found) > 1:
            found.sort()
        return array("q", found)


def rows_of(matched: Matched) -> Iterator[MatchedRow]:
    """Yield the record's rows in their order."""
    found = merge(matched.hits)
    runs = iter(matched.runs)
    run = next(runs)
    first = 0
    for place in sorted(found) if len(matched.hits) > 1 else found:
        while place >= first + run.count:
            first += run.count
            run = next(runs)
        if place - first >= run.skipped:
            yield MatchedRow(run, run.first_sequence + place - first, *found[place])
