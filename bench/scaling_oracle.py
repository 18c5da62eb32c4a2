"""What should have been delivered, by brute force, and how what was delivered differs from it.

Subscriptions that are there all the time: their client must get every publication that one of them matches, once, in
each publisher's order, and each notification must list exactly those that match.

Subscriptions that come and go: one must get what it matches if that was handed to the SDK after the acknowledgement
and matched before its end was asked for; it must not get what was matched before it was asked for, nor what was
handed over after the acknowledgement of its end. A publication counts as matched when it, or a later one of its
publisher, first arrived at anybody; that is an upper bound, and exact enough to leave few cases open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from bench.load import Log
from bench.scaling_load import Lives
from cluster.language.normal import NormalForm

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

EXAMPLES = 10
PART = 250
"""Publications that are matched at a time."""


@dataclass
class Expected:
    """Which subscriptions match which distinct publication.

    starts: cell (publication, client) is place publication * clients + client; its ids are ids[starts[place] :
            starts[place + 1]], ascending. An id is the client's own number.
    """

    clients: int
    starts: Integers
    ids: Integers

    @property
    def counts(self) -> Integers:
        """How many subscriptions match, by publication and client."""
        return np.diff(self.starts).reshape(-1, self.clients)


def notifications_due(counts: np.ndarray[Any, Any], published: int) -> list[int]:
    """Return how many notifications each client must get, when the distinct publications are published in turn.

    counts: how many subscriptions match, by distinct publication and client. published: publications in all.
    """
    repeats = np.bincount(np.arange(published) % len(counts), minlength=len(counts))
    wanted: list[int] = ((counts > 0) * repeats[:, None]).sum(axis=0).tolist()
    return wanted


def expect(publications: Sequence[dict[str, Any]], forms: Sequence[NormalForm], clients: int) -> Expected:
    """Return what matches, when the filters are dealt to the clients in turn and numbered from 0 in each."""
    from bench.numpy_scan import NumpyScan
    from cluster.matching import Batch

    engine = NumpyScan()
    for place, form in enumerate(forms):
        engine.add(place, form, place % clients)
    counts = np.zeros(len(publications) * clients, np.int64)
    ids = [np.zeros(0, np.int64)]
    packed = [msgpack.packb(publication) for publication in publications]
    for begin in range(0, len(packed), PART):
        part = packed[begin : begin + PART]
        hits = engine.match(Batch(np.array([len(one) for one in part], "<u4").tobytes(), b"".join(part)))
        cells = (hits.publication.astype(np.int64) + begin) * clients + hits.client
        counts += np.bincount(cells, minlength=len(counts))
        ids.append(hits.subscription.astype(np.int64) // clients)
    return Expected(clients, np.concatenate(([0], np.cumsum(counts))), np.concatenate(ids))


@dataclass
class Arrived:
    """A log with the publications' numbers. Rows in the order of arrival; ids as in `Log`."""

    number: Integers
    publisher: Integers
    time: Floats
    counts: Integers
    ids: Integers


def arrived(log: Log, publishers: int) -> Arrived:
    """Return the log as columns. A notification of an unknown publisher has number -1."""
    publisher = np.frombuffer(log.publisher, np.uint16).astype(np.int64)
    sequence = np.frombuffer(log.sequence, np.uint64).astype(np.int64)
    number = np.where(publisher < publishers, (sequence - 1) * publishers + publisher, -1)
    counts = np.frombuffer(log.counts, np.uint32).astype(np.int64)
    ids = np.frombuffer(log.ids, np.uint32).astype(np.int64)
    return Arrived(number, publisher, np.frombuffer(log.time, np.float64), counts, ids)


def misordered(rows: Arrived) -> int:
    """Return how many notifications came after a later one of the same publisher; a double is not out of order."""
    count = 0
    for publisher in np.flatnonzero(np.bincount(rows.publisher)):
        numbers = rows.number[rows.publisher == publisher]
        count += int((numbers < np.maximum.accumulate(numbers)).sum())
    return count


def times_of(number: Integers, first: int, last: int) -> Integers:
    """Return how often each of the publications first to last - 1 is among these: a table, as there may be millions."""
    return np.bincount(number[(number >= first) & (number < last)] - first, minlength=last - first)


def due_for(client: int, expected: Expected, first: int, last: int) -> NDArray[np.bool_]:
    """Tell of each of the publications first to last - 1 whether the client must get it."""
    distinct = len(expected.counts)
    return np.resize(np.roll(expected.counts[:, client] > 0, -(first % distinct)), last - first)


def missing_of(times: Integers, client: int, expected: Expected, first: int) -> Integers:
    """Return the publications that the client had to get and did not. times: how often each came, from `first` on."""
    return first + np.flatnonzero(due_for(client, expected, first, first + len(times)) & (times == 0))


@dataclass
class Verdict:
    """How many notifications were wrong, and how. differences: they list the wrong subscriptions, or none was due.

    required: of churned subscriptions, those that had to arrive: the size of that part of the check.
    examples: the first of each kind of difference, in words.
    """

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    differences: int = 0
    required: int = 0
    examples: list[str] = field(default_factory=list, compare=False)

    def add(self, other: Verdict) -> None:
        """Count the other's as well."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def note(self, example: str) -> None:
        """Keep an example, if there are not many."""
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


def judge(rows: Arrived, client: int, expected: Expected, first: int, last: int) -> Verdict:
    """Compare what a client got of publications first to last - 1 with what it should have got."""
    rows = _between(rows, first, last)
    cells = len(expected.starts) - 1
    distinct = cells // expected.clients
    times = times_of(rows.number, first, last)
    cell = (rows.number % distinct) * expected.clients + client
    differs = rows.counts != np.diff(expected.starts)[cell]
    # Those that list as many as they should: are they the same?
    row = np.repeat(np.arange(len(rows.number)), rows.counts)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(rows.counts) - rows.counts, rows.counts)
    same = ~differs[row]
    unlike = rows.ids[same] != expected.ids[expected.starts[cell[row[same]]] + offset[same]]
    differs[row[same][unlike]] = True
    missing = missing_of(times, client, expected, first)
    doubled = len(rows.number) - int(np.count_nonzero(times))
    verdict = Verdict(len(missing), doubled, misordered(rows), int(differs.sum()))
    begins = np.cumsum(rows.counts) - rows.counts
    for place in np.flatnonzero(differs)[:EXAMPLES].tolist():
        ids = rows.ids[begins[place] : begins[place] + rows.counts[place]].tolist()
        wanted_ids = expected.ids[expected.starts[cell[place]] : expected.starts[cell[place] + 1]].tolist()
        number, time = int(rows.number[place]), rows.time[place]
        verdict.note(f"client {client} got publication {number} at {time:.6f} for {ids}, expected {wanted_ids}")
    for number in missing[:EXAMPLES].tolist():
        verdict.note(f"client {client} did not get publication {number}")
    return verdict


def _between(rows: Arrived, first: int, last: int) -> Arrived:
    """Return the rows of these publications."""
    chosen = (rows.number >= first) & (rows.number < last)
    kept = np.repeat(chosen, rows.counts)
    return Arrived(rows.number[chosen], rows.publisher[chosen], rows.time[chosen], rows.counts[chosen], rows.ids[kept])


def strangers(rows: Arrived, total: int, ids: Integers) -> int:
    """Return how many notifications are of publications that were never made, or list ids that are none of `ids`."""
    unknown = (rows.number < 0) | (rows.number >= total)
    row = np.repeat(np.arange(len(rows.number)), rows.counts)
    unknown[row[~np.isin(rows.ids, ids)]] = True
    return int(unknown.sum())


def matched_by(logs: Sequence[Arrived], total: int, publishers: int) -> Floats:
    """Return a time by which each publication was matched for certain; infinite where nothing tells."""
    first = np.full(total, np.inf)
    for rows in logs:
        known = (rows.number >= 0) & (rows.number < total)
        np.minimum.at(first, rows.number[known], rows.time[known])
    for publisher in range(publishers):
        own = first[publisher::publishers]
        own[:] = np.minimum.accumulate(own[::-1])[::-1]
    return first


@dataclass
class Churned:
    """The lives as columns; see `Lives`."""

    client: Integers
    filter: Integers
    number: Integers
    due: Floats
    asked: Floats
    acked: Floats
    closing: Floats
    closed: Floats


def churned(lives: Lives) -> Churned:
    """Return the lives as columns."""
    return Churned(
        np.frombuffer(lives.client, np.uint16).astype(np.int64),
        np.frombuffer(lives.filter, np.uint32).astype(np.int64),
        np.frombuffer(lives.number, np.int64),
        *(np.frombuffer(column, np.float64) for column in (lives.due, lives.asked, lives.acked)),
        *(np.frombuffer(column, np.float64) for column in (lives.closing, lives.closed)),
    )


def judge_churned(
    lives: Churned,
    logs: Sequence[Arrived],
    matches: Sequence[Integers],
    distinct: int,
    handed: Floats,
    matched: Floats,
    window: tuple[float, float] = (-np.inf, np.inf),
) -> Verdict:
    """Compare what the churned subscriptions got with what they had to get and must not get.

    logs:    by client. matches: the distinct publications that each filter matches, ascending.
    handed:  when each publication was handed to the SDK, ascending. matched: by when it was matched for certain.
    window:  only lives asked for in it are looked at, and doubles and order of publications handed over in it.
    """
    verdict = Verdict()
    first, last = (int(place) for place in np.searchsorted(handed, window))
    got: dict[tuple[int, int], Integers] = {}
    for client, rows in enumerate(logs):
        row = np.repeat(np.arange(len(rows.number)), rows.counts)
        order = np.argsort(rows.ids, kind="stable")
        ids, starts = np.unique(rows.ids[order], return_index=True)
        for number, numbers in zip(ids.tolist(), np.split(rows.number[row[order]], starts[1:]), strict=False):
            got[client, number] = numbers
        own_rows = _between(rows, first, last)
        verdict.doubled += len(own_rows.number) - len(np.unique(own_rows.number))
        verdict.out_of_order += misordered(own_rows)
    for place in np.flatnonzero((lives.asked >= window[0]) & (lives.asked < window[1])).tolist():
        arrivals = got.get((int(lives.client[place]), int(lives.number[place])), np.zeros(0, np.int64))
        own = matches[int(lives.filter[place])]
        begin, end = np.searchsorted(handed, (lives.acked[place], lives.closing[place]))
        required = _occurrences(own, distinct, int(begin), int(end))
        required = required[matched[required] <= lives.closing[place]]
        verdict.required += len(required)
        missing = np.setdiff1d(required, arrivals)
        verdict.lost += len(missing)
        known = arrivals[(arrivals >= 0) & (arrivals < len(handed))]
        wrong = known[
            ~np.isin(known % distinct, own)
            | (matched[known] < lives.asked[place])
            | (handed[known] > lives.closed[place])
        ]
        verdict.differences += len(arrivals) - len(known) + len(wrong)
        for number in [*missing.tolist(), *wrong.tolist()]:
            verdict.note(_story(lives, place, number, handed, matched, number in missing, number % distinct in own))
    return verdict


def _story(
    lives: Churned, place: int, number: int, handed: Floats, matched: Floats, missing: bool, matches: bool
) -> str:
    """Tell in words what a churned subscription did not get, or should not have got."""
    times = ", ".join(
        f"{name} {getattr(lives, name)[place]:.6f}" for name in ("due", "asked", "acked", "closing", "closed")
    )
    what = f"{'lacks' if missing else 'got'} publication {number}{'' if matches else ', which it does not match'}"
    return (
        f"client {lives.client[place]} subscription {lives.number[place]} ({times}) {what}: "
        f"handed over {handed[number]:.6f}, matched by {matched[number]:.6f}"
    )


def _occurrences(own: Integers, distinct: int, first: int, last: int) -> Integers:
    """Return the publications from first to last - 1 that are a repetition of one in `own`."""
    if first >= last or not len(own):
        return np.zeros(0, np.int64)
    rounds = np.arange(first // distinct, (last - 1) // distinct + 1) * distinct
    numbers = (rounds[:, None] + own[None, :]).ravel()
    return numbers[(numbers >= first) & (numbers < last)]
