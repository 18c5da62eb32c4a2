"""The exit point: joins what the matchers found, puts it in order, once, and hands it to the subscribers' side.

Per access point the runs arrive with dense exit sequences. One result per matcher in `expect` completes a batch's
share; results of one matcher come in order, so what it has answered up to is a watermark. Shares are released
strictly in sequence order: release by completion would let a publication that needs fewer answers overtake.

Once: a publisher that reconnects sends again what was not acknowledged, perhaps by another way, while the first copy
is still on its way. All copies meet here, as the exit point is chosen by publisher; both ways are in order and without
holes, so it is enough to remember the last sequence released per (publisher, instance). What is at or below it is
a double: acknowledged, not delivered.

Acknowledged: a run is done when every connection point that got notifications of it says Delivered; the
publisher's runs are acknowledged in order, cumulatively.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from cluster import columns
from cluster.columns import U32, U64, Column
from cluster.config import Config
from cluster.frames import SUBSCRIPTION_BITS
from cluster.messages import (
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    SESSION_BITS,
    Acknowledge,
    Deliver,
    Delivered,
    Drained,
    Event,
    Install,
    Instruction,
    Peer,
    Received,
    Result,
    Run,
    Send,
    slot_of,
)

PUBLISHERS_REMEMBERED = 1_000_000
"""Idle publishers whose last sequence is kept, so that a late resend is known; about 200 bytes each."""


@dataclass(slots=True)
class Share:
    """The runs of one batch that this exit point joins, while matchers answer. results: by matcher slot."""

    expect: frozenset[int]
    runs: list[Run]
    count: int
    results: dict[int, Result] = field(default_factory=dict)


@dataclass(slots=True)
class Stream:
    """What came through one access point: `next` is the first sequence not released; shares follow, ascending."""

    next: int = 1
    shares: dict[int, Share] = field(default_factory=dict)


@dataclass(slots=True)
class Pending:
    """A released run that is not acknowledged: connection points still to say Delivered, then told to `client`."""

    waits: int
    client: int
    last: int
    rejected: list[tuple[int, str]]


@dataclass(slots=True)
class Publisher:
    """A publisher's instance: the last sequence released; its runs that are not acknowledged, oldest first."""

    released: int = 0
    pending: deque[Pending] = field(default_factory=deque)


class ExitPoint:
    """The machine."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        del incarnation, config  # the lanes carry the one, nothing here needs the other
        self._peer = Peer(EXIT_POINT, slot)
        self._streams: defaultdict[int, Stream] = defaultdict(Stream)
        self._publishers: OrderedDict[tuple[str, int], Publisher] = OrderedDict()
        self._tokens: dict[int, tuple[Publisher, Pending]] = {}
        self._next_token = 1
        self._acknowledgements: defaultdict[int, list[tuple[int, int, list[tuple[int, str]]]]] = defaultdict(list)
        self._out: list[Instruction] = []
        self.counters = dict.fromkeys(
            ("released", "matched", "unmatched", "rejected", "duplicates", "notifications"), 0
        )

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case Received(peer, Result() as result):
                self._join(peer, result)
            case Received(_, Delivered(tokens)):
                self._delivered(tokens)
            case Drained():
                for slot, acknowledgements in self._acknowledgements.items():
                    self._out.append(Send(Peer(CONNECTION_POINT, slot), Acknowledge(acknowledgements)))
                self._acknowledgements.clear()
            case Received(_, Install()):
                pass  # a stamped batch says who must answer; no view is needed here
            case Received(peer, message):
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")
            case _:
                pass
        out, self._out = self._out, []
        return out

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        return self.counters | {
            "publishers": len(self._publishers),
            "unacknowledged_runs": len(self._tokens),
            "incomplete_shares": sum(len(stream.shares) for stream in self._streams.values()),
        }

    # Joining -----------------------------------------------------------------------------------------------------

    def _join(self, matcher: Peer, result: Result) -> None:
        assert matcher.layer == MATCHER, f"{self._peer} got a Result from {matcher}"
        stream = self._streams[result.access_point]
        if result.sequence < stream.next:
            return  # released already: a matcher repeats itself
        share = stream.shares.get(result.sequence)
        if share is None:
            count = sum(run.count for run in result.runs)
            share = stream.shares[result.sequence] = Share(frozenset(result.expect), result.runs, count)
        assert matcher.slot in share.expect, f"{matcher} answers, {sorted(share.expect)} were asked"
        share.results[matcher.slot] = result
        while stream.shares:
            sequence = next(iter(stream.shares))
            head = stream.shares[sequence]
            if sequence != stream.next or len(head.results) < len(head.expect):
                break
            del stream.shares[sequence]
            stream.next += head.count
            self._release(head)

    def _release(self, share: Share) -> None:
        results = [share.results[slot] for slot in sorted(share.results)]
        counts = [run.count for run in share.runs]
        first = columns.starts(np.array(counts))
        pendings: list[Pending] = []
        skipped: list[int] = []  # per run, how many of its publications at the start are doubles
        rejected = 0
        for place, run in enumerate(share.runs):
            publisher = self._publisher(run)
            doubles = min(max(publisher.released - run.first_sequence + 1, 0), run.count)
            skipped.append(doubles)
            last = run.first_sequence + run.count - 1
            publisher.released = max(publisher.released, last)
            refusals = [
                (run.first_sequence + at - int(first[place]), reason)
                for at, reason in results[0].rejected
                if first[place] <= at < first[place + 1]
            ]
            pending = Pending(0, run.client, last, refusals)
            publisher.pending.append(pending)
            pendings.append(pending)
            rejected += sum(sequence >= run.first_sequence + doubles for sequence, _ in refusals)
            self.counters["duplicates"] += doubles
        released = sum(counts) - sum(skipped)
        self.counters["released"] += released
        self.counters["rejected"] += rejected
        hits = _merge(results)
        matched = 0
        if hits is not None:
            if any(skipped):
                keep_from = np.repeat(first[:-1] + np.array(skipped), counts)
                hits = hits.only(np.arange(share.count) >= keep_from)
            matched = len(hits.payloads)
            self._hand_over(share, hits, first, pendings)
        self.counters["matched"] += matched
        self.counters["unmatched"] += released - matched - rejected
        for run, pending in zip(share.runs, pendings, strict=True):
            if not pending.waits:
                self._settle(self._publishers[run.publisher, run.instance])

    def _publisher(self, run: Run) -> Publisher:
        key = (run.publisher, run.instance)
        publisher = self._publishers.get(key)
        if publisher is None:
            if len(self._publishers) >= PUBLISHERS_REMEMBERED:
                self._forget_idle()
            publisher = self._publishers[key] = Publisher()
        else:
            self._publishers.move_to_end(key)
        return publisher

    def _forget_idle(self) -> None:
        for key, publisher in self._publishers.items():
            if not publisher.pending:
                del self._publishers[key]
                return

    # Handing over ------------------------------------------------------------------------------------------------

    def _hand_over(self, share: Share, hits: _Hits, first: Column, pendings: list[Pending]) -> None:
        """Send each connection point the notifications of its clients, sorted by client, then in order."""
        run_of = np.searchsorted(first, hits.publication, side="right") - 1
        tokens: dict[int, int] = {}
        order = np.argsort(hits.client, kind="stable")
        slots = hits.client[order] >> SESSION_BITS
        cuts = np.flatnonzero(np.diff(slots)) + 1
        for mine in np.split(order, cuts) if len(order) else ():
            slot = slot_of(int(hits.client[mine[0]]))
            clients = hits.client[mine]
            begins = np.flatnonzero(np.concatenate([[True], clients[1:] != clients[:-1]]))
            publications, publication = np.unique(hits.publication[mine], return_inverse=True)
            which_runs = np.unique(run_of[mine])
            runs = []
            for place in which_runs.tolist():
                token = tokens.get(place)
                if token is None:
                    token = tokens[place] = self._next_token
                    self._next_token += 1
                    of = share.runs[place]
                    self._tokens[token] = (self._publishers[of.publisher, of.instance], pendings[place])
                pendings[place].waits += 1
                runs.append((share.runs[place].publisher, share.runs[place].time_us, token))
            run_of_publication = np.searchsorted(first, publications, side="right") - 1
            base = np.array([share.runs[place].first_sequence for place in which_runs.tolist()], U64)
            in_runs = np.searchsorted(which_runs, run_of_publication)
            sequences = base[in_runs] + (publications - first[run_of_publication]).astype(U64)
            payloads = [hits.payloads[at] for at in publications.tolist()]
            matches = hits.matches[mine]
            numbers = hits.subscription[columns.ranges(hits.begin[mine], matches)]
            self._out.append(
                Send(
                    Peer(CONNECTION_POINT, slot),
                    Deliver(
                        runs,
                        in_runs.astype(U32).tobytes(),
                        sequences.tobytes(),
                        np.array([len(payload) for payload in payloads], U32).tobytes(),
                        b"".join(payloads),
                        (clients[begins] & (1 << SESSION_BITS) - 1).astype(U32).tobytes(),
                        np.diff(begins, append=len(clients)).astype(U32).tobytes(),
                        publication.astype(U32).tobytes(),
                        matches.astype(U32).tobytes(),
                        (numbers & np.uint64((1 << SUBSCRIPTION_BITS) - 1)).astype(U32).tobytes(),
                    ),
                )
            )
            self.counters["notifications"] += len(mine)

    # Acknowledging -----------------------------------------------------------------------------------------------

    def _delivered(self, tokens: list[int]) -> None:
        for token in tokens:
            publisher, pending = self._tokens[token]
            pending.waits -= 1
            if not pending.waits:
                del self._tokens[token]
                self._settle(publisher)

    def _settle(self, publisher: Publisher) -> None:
        """Acknowledge the publisher's runs that are done, as far as no earlier one is waited for."""
        told: Pending | None = None
        rejected: list[tuple[int, str]] = []
        while publisher.pending and not publisher.pending[0].waits:
            done = publisher.pending.popleft()
            if told is not None and told.client != done.client:
                self._tell(told, rejected)
                rejected = []
            told = done
            rejected += done.rejected
        if told is not None:
            self._tell(told, rejected)

    def _tell(self, pending: Pending, rejected: list[tuple[int, str]]) -> None:
        self._acknowledgements[slot_of(pending.client)].append((pending.client, pending.last, rejected))


@dataclass(slots=True)
class _Hits:
    """One entry per notification, (publication, client) ascending: where its subscriptions begin, how many.

    payloads: by publication, of those that have notifications.
    """

    publication: Column
    client: Column
    begin: Column
    matches: Column
    subscription: Column
    payloads: dict[int, bytes]

    def only(self, keep: Column) -> _Hits:
        """Return the notifications of the publications to keep (a mask by publication)."""
        chosen = keep[self.publication]
        return _Hits(
            self.publication[chosen],
            self.client[chosen],
            self.begin[chosen],
            self.matches[chosen],
            self.subscription,
            {place: payload for place, payload in self.payloads.items() if keep[place]},
        )


def _merge(results: list[Result]) -> _Hits | None:
    """Join the matchers' hits: one notification per (publication, client), listing what all of them found."""
    found = [result for result in results if result.matched]
    if not found:
        return None
    payloads: dict[int, bytes] = {}
    publications, subscriptions = [], []
    for result in found:
        matched = columns.u32(result.matched)
        publications.append(np.repeat(matched, columns.u32(result.hits)))
        subscriptions.append(columns.u64(result.subscriptions))
        ends = np.cumsum(columns.u32(result.lengths), dtype=np.int64).tolist()
        begin = 0
        for place, end in zip(matched.tolist(), ends, strict=True):
            payloads[place] = result.payload[begin:end]
            begin = end
    if len(found) == 1:
        publication, subscription = publications[0], subscriptions[0]
        client = (subscription >> np.uint64(SUBSCRIPTION_BITS)).astype(np.int64)
    else:
        publication, subscription = np.concatenate(publications), np.concatenate(subscriptions)
        client = (subscription >> np.uint64(SUBSCRIPTION_BITS)).astype(np.int64)
        # Each matcher's hits are sorted; a stable sort of a few sorted stretches is a merge.
        order = np.lexsort((client, publication))
        publication, subscription, client = publication[order], subscription[order], client[order]
    begins = np.flatnonzero(
        np.concatenate([[True], (publication[1:] != publication[:-1]) | (client[1:] != client[:-1])])
    )
    return _Hits(
        publication[begins],
        client[begins],
        begins,
        np.diff(begins, append=len(publication)),
        subscription,
        payloads,
    )
