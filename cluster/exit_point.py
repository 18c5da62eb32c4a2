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

A view change: what came through an access point in one epoch is a stream of its own. A stream of the next epoch is
closed at first, and opens when nothing that must come before it can come any more:

    matchers change        the same access point's stream of the former epoch has ended
    access points change   all streams of the former epoch have, as publishers may have come here another way
    exit points change     and all former exit points have handed over what they know (`handover.py`)

Recover: all of this is forgotten. Whatever was not acknowledged comes again, and the connection points know what of it
they have delivered. What is known from the output to have matched nothing the first time is delivered to nobody.

Matched output: what is released and has matches, or all that is, is written (`written.py`) before it is handed over.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from cluster.columns import UINT32, UINT64, pack
from cluster.config import Config
from cluster.handover import Handover, Pending, Publisher, PublisherKey
from cluster.matched import Found, merge
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    NUMBER_BITS,
    SESSION_BITS,
    Abort,
    Acknowledge,
    AdoptOutput,
    Again,
    Begin,
    Commit,
    Deliver,
    Delivered,
    Drained,
    Ended,
    EpochEnded,
    Event,
    Flush,
    Install,
    Instruction,
    Message,
    NameClients,
    NameOutputClients,
    NotStored,
    OutputMarks,
    OutputSealed,
    OutputState,
    Peer,
    Prepare,
    PublisherSettled,
    PublisherStates,
    ReadOutput,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Result,
    Retire,
    Run,
    SealOutput,
    Send,
    Settled,
    Stored,
    StreamEnd,
    slot_of,
)
from cluster.view import View, view_of
from cluster.written import Waiting, Written

SESSION_MASK = (1 << SESSION_BITS) - 1

Outcome = tuple[int, int, int]
"""Of some publications, how many are matched, not well-formed, and doubles."""

PUBLISHERS_REMEMBERED = 1_000_000
"""Idle publishers whose last sequence is kept, so that a late resend is known; about 200 bytes each."""


@dataclass(slots=True)
class Share:
    """The runs of one batch that this exit point joins, while matchers answer. results: by matcher slot."""

    expect: Collection[int]
    runs: list[Run]
    count: int
    results: dict[int, Result] = field(default_factory=dict)


@dataclass(slots=True)
class Stream:
    """What came through one access point in one epoch.

    next: the first sequence not released. shares: ascending. end: the sequence where it ends, once known; ended: the
    matchers that have said so.
    """

    next: int = 1
    shares: dict[int, Share] = field(default_factory=dict)
    end: int | None = None
    ended: set[int] = field(default_factory=set)


class ExitPoint:
    """The machine."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        self._peer = Peer(EXIT_POINT, slot)
        self._slot = slot
        self._view: View | None = None
        self._next: View | None = None
        self._handover: Handover | None = None
        self._said_ended = False
        self._streams: defaultdict[tuple[int, int], Stream] = defaultdict(Stream)  # by epoch and access point
        self._publishers: OrderedDict[PublisherKey, Publisher] = OrderedDict()
        self._tokens: dict[int, Waiting] = {}
        self._next_token = incarnation << NUMBER_BITS
        self._written = Written() if config.output.path is not None else None
        self._writes_all = config.output.all
        self._rebuilding: int | None = None  # the epoch, while the output is looked through
        # The epoch of the last Recover, or of the view that it began with; what is of an earlier one is void.
        self._since = 0
        self._acknowledgements: defaultdict[int, Acknowledge] = defaultdict(lambda: Acknowledge([], [], self._since))
        self._out: list[Instruction] = []
        self.counters = dict.fromkeys(
            ("released", "matched", "unmatched", "rejected", "duplicates", "notifications"), 0
        )

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        if isinstance(event, Received):
            # Nearly all of them are one of two: a pattern takes five times as long.
            if isinstance(event.message, Result):
                self._join(event.peer, event.message)
            elif isinstance(event.message, Delivered):
                self._delivered(event.message.tokens)
            else:
                self._received(event.peer, event.message)
        elif isinstance(event, Drained):
            if self._handover is not None and self._handover.step(self._out):
                self._out.append(Again())
            self._send_acknowledgements()
        elif isinstance(event, Stored | NotStored | OutputMarks | OutputSealed | OutputState):
            self._about_output(event)
        out, self._out = self._out, []
        return out

    def _received(self, peer: Peer, message: Message) -> None:
        handover = self._handover
        match message:
            case StreamEnd():
                self._stream_end(peer, message)
            case PublisherSettled():
                self._settled_before(message)
            case Install(epoch):
                self._view = view_of(message)
                self._since = epoch
                self._adopt(self._view)
            case NameClients(names, ended):
                if self._written is not None:
                    self._out.append(NameOutputClients(names, ended))
            case Rebuild(epoch):
                self._rebuild(epoch)
            case Prepare():
                self._prepare(view_of(message))
            case Begin(epoch):
                if handover is not None and handover.epoch == epoch:
                    handover.begin(self._out)
            case PublisherStates(epoch):
                if handover is not None and handover.epoch == epoch:
                    for key, publisher in handover.arrived(peer.slot, message).items():
                        self._settle(key, publisher)
                    self._go_on()
            case EpochEnded(epoch):
                if handover is not None and handover.epoch == epoch:
                    handover.epoch_ended(peer.slot, self._out)
                    self._go_on()
            case Commit(epoch):
                if self._said_ended or (self._view is not None and self._view.epoch == epoch):
                    self._out.append(Send(COORDINATOR_PEER, Ended(epoch)))
            case Retire(epoch):
                self._retire(epoch)
            case Recover():
                self._recover(view_of(message))
            case Abort(epoch):
                self._next = self._handover = None
                if self._view is not None:
                    self._forget_streams()
                self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))
            case _:
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        written = {} if self._written is None else self._written.gauges()
        return (
            self.counters
            | written
            | {
                "publishers": len(self._publishers),
                "unacknowledged_runs": len(self._tokens),
                "incomplete_shares": sum(len(stream.shares) for stream in self._streams.values()),
            }
        )

    # Joining -----------------------------------------------------------------------------------------------------

    def _join(self, matcher: Peer, result: Result) -> None:
        assert matcher.layer == MATCHER, f"{self._peer} got a Result from {matcher}"
        key = (result.epoch, result.access_point)
        if result.epoch < self._since:
            return
        stream = self._streams[key]
        if result.sequence < stream.next:
            return  # released already: a matcher repeats itself
        share = stream.shares.get(result.sequence)
        if share is None:
            count = sum([run.count for run in result.runs])
            share = stream.shares[result.sequence] = Share(result.expect, result.runs, count)
        assert matcher.slot in share.expect, f"{matcher} answers, {sorted(share.expect)} were asked"
        share.results[matcher.slot] = result
        self._advance(key)
        if stream.end is not None:
            self._go_on()

    def _advance(self, key: tuple[int, int]) -> None:
        """Release what is complete of a stream, if it is open."""
        stream = self._streams[key]
        if not self._open(key):
            return
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
        owed: list[Waiting] = []  # per run
        skipped: set[int] = set()  # publications that are doubles, or known to match nothing
        skips: list[int] = []  # per run, how many of its first ones are
        rejected = 0
        first = 0
        for run in share.runs:
            key = (run.publisher, run.instance)
            publisher = self._publisher(key, run)
            doubles = 0
            if publisher.released >= run.first_sequence:
                doubles = min(publisher.released - run.first_sequence + 1, run.count)
                skipped.update(range(first, first + doubles))
                self.counters["duplicates"] += doubles
            skips.append(doubles)
            last = run.first_sequence + run.count - 1
            publisher.released = max(publisher.released, last)
            pending = Pending(0, run.client, last, [], outcome=(0, 0, doubles))
            if results[0].rejected:
                pending.rejected = [
                    (run.first_sequence + at - first, reason)
                    for at, reason in results[0].rejected
                    if first <= at < first + run.count
                ]
                broken = sum(sequence >= run.first_sequence + doubles for sequence, _ in pending.rejected)
                rejected += broken
                pending.outcome = (0, broken, doubles)
            publisher.pending.append(pending)
            owed.append((key, publisher, pending))
            first += run.count
        released = share.count - len(skipped)
        found = merge(results)
        if self._written is not None:
            skipped |= self._written.undelivered(share.runs)
        if skipped:
            found = {place: one for place, one in found.items() if place not in skipped}
        if found and self._written is not None:
            self._write(share, results, found, skips, owed)
        if self._writes_all:
            found = {place: one for place, one in found.items() if one[1]}
        if found:
            self._hand_over(share, found, len(results) > 1, owed)
        matched = len(found)
        counters = self.counters
        counters["released"] += released
        counters["rejected"] += rejected
        counters["matched"] += matched
        counters["unmatched"] += released - matched - rejected
        for key, publisher, pending in owed:
            if not pending.waits:
                self._settle(key, publisher)

    def _publisher(self, key: PublisherKey, run: Run) -> Publisher:
        """Return what is known of the publisher; `run` is its newest, and the first if nothing is."""
        publisher = self._publishers.get(key)
        if publisher is None:
            if len(self._publishers) >= PUBLISHERS_REMEMBERED:
                self._forget_idle()
            publisher = self._publishers[key] = Publisher()
            if self._written is not None:
                publisher.covered = self._written.covered(run)
        else:
            self._publishers.move_to_end(key)
        if self._handover is not None:
            self._handover.touched(key)
        return publisher

    def _forget_idle(self) -> None:
        for key, publisher in self._publishers.items():
            if not publisher.pending:
                del self._publishers[key]
                return

    # Handing over ------------------------------------------------------------------------------------------------

    def _write(self, share: Share, results: list[Result], found: Found, skips: list[int], owed: list[Waiting]) -> None:
        """Have these publications written; runs that asked for it wait until they are on disk."""
        assert self._written is not None, "an output that is not written"
        publishers = [publisher for _, publisher, _ in owed]
        append = self._written.append(results[0].epoch, share.runs, publishers, results, found, skips)
        if append is None:
            return
        self._out.append(append)
        if append.sync:
            first = 0
            for run, waiting in zip(share.runs, owed, strict=True):
                if run.stored:
                    sequences = [run.first_sequence + at for at in range(run.count) if first + at in found]
                    if sequences:
                        waiting[2].waits += 1
                        self._written.wait(append.number, waiting, sequences)
                first += run.count

    def _hand_over(self, share: Share, found: Found, several: bool, owed: list[Waiting]) -> None:
        """Send each connection point the notifications of its clients. several: matchers have answered."""
        # Which run a publication is of: publications are ascending, so one walk along the runs suffices.
        outgoing: dict[int, _Outgoing] = {}
        tokens: dict[int, int] = {}
        at, first = 0, 0
        matched = [0] * len(owed)
        for place in sorted(found) if several else found:
            while place >= first + share.runs[at].count:
                first += share.runs[at].count
                at += 1
            run = share.runs[at]
            matched[at] += 1
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
                            token = tokens[at] = self._token(owed[at])
                        pending = owed[at][2]
                        pending.waits += 1
                        pending.handed += 1
                        out.runs.append((run.publisher, run.instance, run.time_us, token))
                    out.run.append(len(out.runs) - 1)
                    out.sequence.append(run.first_sequence + place - first)
                    out.payloads.append(payload)
                out.clients[client].append((len(out.payloads) - 1, numbers))
        for (_, _, pending), count in zip(owed, matched, strict=True):
            pending.outcome = (count, pending.outcome[1], pending.outcome[2])
        for slot, out in outgoing.items():
            message, count = out.message()
            self.counters["notifications"] += count
            self._out.append(Send(Peer(CONNECTION_POINT, slot), message))

    def _token(self, waiting: Waiting) -> int:
        token = self._next_token
        self._next_token += 1
        self._tokens[token] = waiting
        return token

    # Acknowledging -----------------------------------------------------------------------------------------------

    def _delivered(self, tokens: list[int]) -> None:
        for token in tokens:
            waiting = self._tokens.get(token)
            if waiting is None:
                continue  # of before a recovery
            key, publisher, pending = waiting
            pending.waits -= 1
            pending.handed -= 1
            if not pending.handed:
                del self._tokens[token]
            if not pending.waits:
                self._settle(key, publisher)

    def _settled_before(self, message: PublisherSettled) -> None:
        """Runs that the former exit point of a publisher has released are done."""
        if message.epoch < self._since:
            return
        key = (message.publisher, message.instance)
        publisher = self._publishers.get(key)
        if publisher is None or not (publisher.pending and publisher.pending[0].former):
            assert self._handover is not None, f"{key} is settled, and was not handed over"
            publisher = self._handover.coming_or_departed(key)
        done = [pending for pending in publisher.pending if pending.former and pending.waits][: message.runs]
        assert len(done) == message.runs, f"{key}: {message.runs} runs are settled, {len(done)} were handed over"
        for pending in done:
            pending.waits = 0
            pending.client = message.client
            pending.last = message.upto
        done[-1].rejected = message.rejected
        done[-1].outcome = message.outcome
        if publisher.follower is not None or self._publishers.get(key) is publisher:
            self._settle(key, publisher)

    def _settle(self, key: PublisherKey, publisher: Publisher) -> None:
        """Acknowledge the publisher's runs that are done, as far as no earlier one is waited for."""
        told: Pending | None = None
        runs = 0
        rejected: list[tuple[int, str]] = []
        outcome: Outcome = (0, 0, 0)
        while publisher.pending and not publisher.pending[0].waits:
            done = publisher.pending.popleft()
            if told is not None and told.client != done.client:
                self._tell(key, publisher, told, runs, rejected, outcome)
                runs = 0
                rejected = []
                outcome = (0, 0, 0)
            told = done
            runs += 1
            rejected += done.rejected
            outcome = _added(outcome, done.outcome)
        if told is not None:
            self._tell(key, publisher, told, runs, rejected, outcome)

    def _tell(
        self,
        key: PublisherKey,
        publisher: Publisher,
        last: Pending,
        runs: int,
        rejected: list[tuple[int, str]],
        outcome: Outcome,
    ) -> None:
        """The publisher's next `runs` are done: tell its connection point, or the exit point that it has now."""
        if publisher.follower is None:
            acknowledge = self._acknowledgements[slot_of(last.client)]
            acknowledge.acknowledgements.append((last.client, last.last, rejected))
            acknowledge.outcomes.append(outcome)
            return
        assert self._handover is not None, f"{key} has a follower without a handover"
        settled = PublisherSettled(self._handover.epoch, *key, runs, last.client, last.last, rejected, outcome)
        self._out.append(Send(Peer(EXIT_POINT, publisher.follower), settled))
        if not publisher.pending:
            self._go_on()

    def _send_acknowledgements(self) -> None:
        if not self._acknowledgements:
            return
        known = () if self._view is None else self._view.connection_points
        if self._next is not None:
            known += self._next.connection_points
        for slot, acknowledge in self._acknowledgements.items():
            if slot in known:  # else it has left, and its clients have sent again what they need to know of
                self._out.append(Send(Peer(CONNECTION_POINT, slot), acknowledge))
        self._acknowledgements.clear()

    # Matched output ----------------------------------------------------------------------------------------------

    def _about_output(self, event: Stored | NotStored | OutputMarks | OutputSealed | OutputState) -> None:
        assert self._written is not None, f"{self._peer} has no output"
        match event:
            case OutputMarks(marks):
                self._written.learn(marks)
                if self._rebuilding is not None:
                    self._out.append(Send(COORDINATOR_PEER, Rebuilt(self._rebuilding)))
                    self._rebuilding = None
            case OutputSealed():
                self._out.append(Flush())
            case OutputState():
                self._written.state = event
            case Stored() | NotStored():
                for key, publisher, pending in self._written.stored(event):
                    pending.waits -= 1
                    if not pending.waits:
                        self._settle(key, publisher)

    def _rebuild(self, epoch: int) -> None:
        """All have heard Recover, and write no more."""
        if epoch != self._since:
            return
        if self._written is None:
            self._out.append(Send(COORDINATOR_PEER, Rebuilt(epoch)))
        else:
            self._rebuilding = epoch
            self._out.append(ReadOutput())

    def _adopt(self, view: View) -> None:
        """The first of the exit points sees to what those have left that are no more."""
        if self._written is not None and view.exit_points and self._slot == min(view.exit_points):
            self._out.append(AdoptOutput(tuple(view.exit_points)))

    def _leave(self) -> None:
        """Nothing more comes here: once all is written and sent, it can be stopped."""
        self._out.append(Flush() if self._written is None else SealOutput())

    # A view change -----------------------------------------------------------------------------------------------

    def _prepare(self, view: View) -> None:
        assert self._view is not None, "a second view before a first"
        self._next = view
        self._handover = Handover(self._slot, self._view, view, self._publishers)
        self._said_ended = False

    def _over(self, epoch: int, access_point: int) -> bool:
        """Tell whether everything of this stream has been released."""
        assert self._view is not None, "a stream before a view"
        stream = self._streams[epoch, access_point]
        return stream.next == stream.end and stream.ended.issuperset(self._view.matchers)

    def _open(self, key: tuple[int, int]) -> bool:
        epoch, access_point = key
        assert self._view is not None, "a result before a view"
        if epoch == self._view.epoch:
            return True
        assert self._next is not None, f"{self._peer} serves epoch {self._view.epoch}, a result is of {epoch}"
        assert self._handover is not None, "a next view without a handover"
        assert epoch == self._next.epoch, f"{self._peer} serves {self._view.epoch} and {self._next.epoch}, not {epoch}"
        if self._view.access_points == self._next.access_points and self._view.exit_points == self._next.exit_points:
            return self._over(self._view.epoch, access_point)
        return self._handover.released and self._handover.taken

    def _stream_end(self, matcher: Peer, message: StreamEnd) -> None:
        if self._view is None or message.epoch != self._view.epoch:
            return  # long ago
        stream = self._streams[message.epoch, message.access_point]
        stream.end = message.sequence
        stream.ended.add(matcher.slot)
        self._go_on()

    def _go_on(self) -> None:
        """Something of a view change has come to its end; do what follows from it."""
        handover = self._handover
        if self._view is None or self._next is None or handover is None:
            return
        view, after = self._view, self._next
        if not handover.released and all(self._over(view.epoch, slot) for slot in view.access_points):
            self._send_acknowledgements()
            handover.release(self._out)
        for slot in after.access_points:
            self._advance((after.epoch, slot))
        if handover.finished and not self._said_ended:
            self._said_ended = True
            self._out.append(Send(COORDINATOR_PEER, Ended(after.epoch)))

    def _retire(self, epoch: int) -> None:
        if self._next is not None and self._next.epoch == epoch:
            self._view = self._next
            self._next = self._handover = None
            self._forget_streams()
        self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))
        if self._view is not None and self._slot not in self._view.exit_points:
            self._leave()

    def _recover(self, view: View) -> None:
        """Begin anew with this view."""
        self._view = view
        self._since = view.epoch
        self._next = self._handover = None
        self._said_ended = False
        for held in (self._streams, self._publishers, self._tokens, self._acknowledgements):
            held.clear()
        self._rebuilding = None
        if self._written is not None:
            self._written.forget()
        self._adopt(view)
        if self._slot not in view.exit_points:
            self._leave()

    def _forget_streams(self) -> None:
        """Only the view's own epoch is left."""
        assert self._view is not None, "streams without a view"
        for key in [key for key in self._streams if key[0] != self._view.epoch]:
            assert not self._streams[key].shares, f"{self._peer} forgets {key}, not all of which is released"
            del self._streams[key]


def _added(one: Outcome, other: Outcome) -> Outcome:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class _Outgoing:
    """A Deliver in the making: publications in order, and per client which of them, with its numbers."""

    __slots__ = ("clients", "last", "last_run", "payloads", "run", "runs", "sequence")

    def __init__(self) -> None:
        self.runs: list[tuple[str, int, int, int]] = []
        self.run: list[int] = []
        self.sequence: list[int] = []
        self.payloads: list[bytes] = []
        self.clients: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.last = self.last_run = -1

    def message(self) -> tuple[Deliver, int]:
        """Return the message and how many notifications it holds."""
        sessions: list[int] = []
        counts: list[int] = []
        publication: list[int] = []
        matches: list[int] = []
        numbers: list[bytes] = []
        for client, mine in sorted(self.clients.items()):
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
