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

from cluster.columns import UINT32, UINT64, cut, pack, unpack
from cluster.config import Config
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

SESSION_MASK = (1 << SESSION_BITS) - 1

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
        pendings: list[Pending] = []
        skipped: set[int] = set()  # publications that are doubles
        rejected = 0
        first = 0
        for run in share.runs:
            publisher = self._publisher(run)
            doubles = min(max(publisher.released - run.first_sequence + 1, 0), run.count)
            if doubles:
                skipped.update(range(first, first + doubles))
                self.counters["duplicates"] += doubles
            last = run.first_sequence + run.count - 1
            publisher.released = max(publisher.released, last)
            refusals = [
                (run.first_sequence + at - first, reason)
                for at, reason in results[0].rejected
                if first <= at < first + run.count
            ]
            rejected += sum(sequence >= run.first_sequence + doubles for sequence, _ in refusals)
            pending = Pending(0, run.client, last, refusals)
            publisher.pending.append(pending)
            pendings.append(pending)
            first += run.count
        released = share.count - len(skipped)
        matched = self._hand_over(share, results, skipped, pendings)
        self.counters["released"] += released
        self.counters["rejected"] += rejected
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

    def _hand_over(self, share: Share, results: list[Result], skipped: set[int], pendings: list[Pending]) -> int:
        """Send each connection point the notifications of its clients; return how many publications had any."""
        found = _merge(results)
        if skipped:
            found = {place: one for place, one in found.items() if place not in skipped}
        if not found:
            return 0
        # Which run a publication is of: publications are ascending, so one walk along the runs suffices.
        outgoing: dict[int, _Outgoing] = {}
        tokens: dict[int, int] = {}
        at, first = 0, 0
        for place in sorted(found) if len(results) > 1 else found:
            while place >= first + share.runs[at].count:
                first += share.runs[at].count
                at += 1
            run = share.runs[at]
            payload, clients = found[place]
            for client, numbers in clients.items():
                slot = client >> SESSION_BITS
                out = outgoing.get(slot)
                if out is None:
                    out = outgoing[slot] = _Outgoing()
                if out.last != place:
                    out.last = place
                    if out.last_run != at:
                        out.last_run = at
                        token = tokens.get(at)
                        if token is None:
                            token = tokens[at] = self._token(run, pendings[at])
                        pendings[at].waits += 1
                        out.runs.append((run.publisher, run.time_us, token))
                    out.run.append(len(out.runs) - 1)
                    out.sequence.append(run.first_sequence + place - first)
                    out.payloads.append(payload)
                mine = out.clients.get(client)
                if mine is None:
                    mine = out.clients[client] = []
                mine.append((len(out.payloads) - 1, numbers))
        for slot, out in outgoing.items():
            message, count = out.message()
            self.counters["notifications"] += count
            self._out.append(Send(Peer(CONNECTION_POINT, slot), message))
        return len(found)

    def _token(self, run: Run, pending: Pending) -> int:
        token = self._next_token
        self._next_token += 1
        self._tokens[token] = (self._publishers[run.publisher, run.instance], pending)
        return token

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
class _Outgoing:
    """A Deliver in the making: publications in order, and per client which of them, with its numbers."""

    runs: list[tuple[str, int, int]] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    clients: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    last: int = -1
    last_run: int = -1

    def message(self) -> tuple[Deliver, int]:
        """Return the message and how many notifications it holds."""
        sessions: list[int] = []
        counts: list[int] = []
        publication: list[int] = []
        matches: list[int] = []
        numbers: list[bytes] = []
        for client in sorted(self.clients):
            mine = self.clients[client]
            sessions.append(client & SESSION_MASK)
            counts.append(len(mine))
            for place, own in mine:
                publication.append(place)
                matches.append(len(own) >> 2)
                numbers.append(own)
        message = Deliver(
            self.runs,
            pack(UINT32, self.run),
            pack(UINT64, self.sequence),
            pack(UINT32, map(len, self.payloads)),
            b"".join(self.payloads),
            pack(UINT32, sessions),
            pack(UINT32, counts),
            pack(UINT32, publication),
            pack(UINT32, matches),
            b"".join(numbers),
        )
        return message, len(numbers)


def _merge(results: list[Result]) -> dict[int, tuple[bytes, dict[int, bytes]]]:
    """Join the matchers' hits: publication -> (its bytes, client -> numbers that match, as a uint32 column).

    Ascending by publication if there is one result.
    """
    merged: dict[int, tuple[bytes, dict[int, bytes]]] = {}
    for result in results:
        if not result.matched:
            continue
        clients = unpack(UINT64, result.clients)
        matches = unpack(UINT32, result.matches)
        at = number = 0
        for place, count, payload in zip(
            unpack(UINT32, result.matched),
            unpack(UINT32, result.notifications),
            cut(result.payload, unpack(UINT32, result.lengths)),
            strict=True,
        ):
            entry = merged.setdefault(place, (payload, {}))
            own = entry[1]
            for client, size in zip(clients[at : at + count], matches[at : at + count], strict=True):
                stop = number + 4 * size
                numbers = result.numbers[number:stop]
                number = stop
                other = own.get(client)
                own[client] = numbers if other is None else other + numbers
            at += count
    return merged
