"""The access point: stamps and routes; it holds nothing but what it gathers until Drained and what awaits an answer.

A publication goes to every matcher of the view, a subscription to the matcher that owns its key group. What a
batch is stamped with is all that the later hops need to know: the epoch, the matchers that must answer, and per run
the exit point and a sequence that is dense per (access point, epoch, exit point). So no later hop counts against a
number that could change under it (the E-SilboPS paper's threshold does; its section 5).

Order: one lane in from a client's connection point, one out to each matcher, and nothing overtakes: a
subscription change closes the batch that was being gathered.

A view change, here:

    SERVING     one view
    Prepare     the next view is known                                          -> PREPARED
    Begin       Mark to all matchers; changes go to the owners of both views    -> MARKED
                (a newcomer is it from Prepare on, without a Mark)
    Commit      Switch to all matchers; publications are of the next epoch      -> SWITCHED
    Retire      changes go to the new owners alone                              -> SERVING
    Abort       from PREPARED or MARKED: as if nothing had been                 -> SERVING

If access points come or go, Commit goes to the connection points, which move their clients and say Switch on the lanes
here: what comes behind it is of the next epoch, and the Switch to the matchers follows the last of them.

Recover: all of this is forgotten; what a connection point has sent before its Renew is void, it will send it again.
"""

from __future__ import annotations

from collections import defaultdict

from cluster.config import Config
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    MATCHER,
    Abort,
    Applied,
    ApplyChanges,
    Batch,
    Begin,
    Broadcast,
    Changed,
    ChangeSubscriptions,
    Commit,
    Drained,
    Ended,
    Event,
    Flush,
    Install,
    Instruction,
    LaneDown,
    LaneUp,
    Mark,
    Message,
    Peer,
    Prepare,
    Publications,
    Received,
    Recover,
    Relay,
    Renew,
    Retire,
    Send,
    Settled,
    SubscriptionChange,
    Switch,
)
from cluster.routing import exit_point_of
from cluster.view import View, view_of


class AccessPoint:
    """The machine."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        del incarnation  # the lanes carry it
        self._slot = slot
        self._peer = Peer(ACCESS_POINT, slot)
        self._batch_publications = config.flow.batch_publications
        self._view: View | None = None
        self._sequence = 1  # of the next publication
        self._exit_sequences: defaultdict[tuple[int, int], int] = defaultdict(lambda: 1)  # by epoch and exit point
        self._gathered: list[Publications] = []
        self._gathered_count = 0
        self._gathered_view: View | None = None
        # (connection point, change) -> matchers that have not answered
        self._unanswered: dict[tuple[int, int], set[int]] = {}
        self._next: View | None = None
        self._marked = False
        self._awaited: set[int] = set()  # connection points that have not switched
        self._switched = False
        self._park = False
        self._parked_changes: list[tuple[Peer, list[SubscriptionChange]]] = []
        self._parked_publications: list[tuple[Peer, Publications]] = []
        self._leaving = False
        self._since = 0  # the epoch of the last Recover, or of the view that it began with
        self._void: set[int] = set()  # connection points that have not said Renew since then
        self._doors: set[int] = set()  # connection points with a lane here
        self._out: list[Instruction] = []
        self.counters = dict.fromkeys(
            ("publications", "batches", "changes", "parked_publications_most", "parked_subscriptions_most"), 0
        )

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        if isinstance(event, Received):
            self._received(event.peer, event.message)
        elif isinstance(event, Drained):
            self._send_batch()
        elif isinstance(event, LaneUp) and event.peer.layer == CONNECTION_POINT:
            self._doors.add(event.peer.slot)
        elif isinstance(event, LaneDown) and event.peer.layer == CONNECTION_POINT:
            self._doors.discard(event.peer.slot)
        out, self._out = self._out, []
        return out

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        publications, changes = self._parked()
        return self.counters | {
            "changes_unanswered": len(self._unanswered),
            "parked_publications": publications,
            "parked_subscriptions": changes,
        }

    def _received(self, peer: Peer, message: Message) -> None:
        if isinstance(message, Publications):  # nearly all of them: a pattern takes five times as long
            if peer.slot not in self._void:
                self._publications(peer, message)
            return
        match message:
            case ChangeSubscriptions() | Switch() if peer.slot in self._void:
                pass
            case ChangeSubscriptions(changes):
                if self._park and self._marked:
                    self._parked_changes.append((peer, changes))
                    self._count_parked()
                else:
                    self._send_batch()
                    self._route(peer, changes)
            case Applied(connection_point, changes):
                self._applied(peer.slot, connection_point, changes)
            case Relay():
                # Who is not here now is asked again by whoever asks.
                receivers = [slot for slot in message.receivers if slot in self._doors]
                self._out += [Send(Peer(CONNECTION_POINT, slot), message) for slot in receivers]
            case Install(epoch):
                self._view = view_of(message)
                self._since = epoch
            case Prepare():
                self._prepare(view_of(message))
            case Begin(epoch, park):
                self._begin(epoch, park)
            case Commit(epoch):
                self._commit(epoch)
            case Switch(epoch):
                self._switch_of(peer, epoch)
            case Retire(epoch):
                self._retire(epoch)
            case Abort(epoch):
                self._abort(epoch)
            case Recover():
                self._recover(view_of(message))
            case Renew(epoch):
                if epoch == self._since:  # the view may have changed since, if this lane is slow
                    self._void.discard(peer.slot)
            case _:
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")

    # Publications ------------------------------------------------------------------------------------------------

    def _publications(self, connection_point: Peer, message: Publications) -> None:
        view = self._view_for(connection_point.slot)
        if view is self._next and self._park:
            self._parked_publications.append((connection_point, message))
            self._count_parked()
            return
        if view is not self._gathered_view:
            self._send_batch()
            self._gathered_view = view
        self._gathered.append(message)
        self._gathered_count += len(message.lengths) // 4
        if self._gathered_count >= self._batch_publications:
            self._send_batch()

    def _view_for(self, connection_point: int) -> View | None:
        """Return the view that the connection point's traffic is of at the moment."""
        if self._next is None:
            return self._view
        assert self._view is not None, "a second view before a first"
        if self._switched or (
            self._awaited and connection_point not in self._awaited  # it has switched, or is new
        ):
            return self._next
        return self._view

    def _send_batch(self) -> None:
        gathered = self._gathered
        if not gathered:
            return
        view = self._gathered_view
        assert view is not None, "a publication before a view"
        self._gathered = []
        count, self._gathered_count = self._gathered_count, 0
        if len(gathered) == 1:
            runs, lengths, payload = gathered[0].runs, gathered[0].lengths, gathered[0].payload
        else:
            runs = [run for message in gathered for run in message.runs]
            lengths = b"".join([message.lengths for message in gathered])
            payload = b"".join([message.payload for message in gathered])
        exit_points = []
        exit_sequences = []
        for run in runs:
            exit_point = exit_point_of(view.exit_points, run.publisher)
            sequence = self._exit_sequences[view.epoch, exit_point]
            self._exit_sequences[view.epoch, exit_point] = sequence + run.count
            exit_points.append(exit_point)
            exit_sequences.append(sequence)
        expect = list(view.matchers)
        batch = Batch(view.epoch, expect, self._sequence, runs, exit_points, exit_sequences, lengths, payload)
        self._sequence += count
        self.counters["publications"] += count
        self.counters["batches"] += 1
        self._out.append(Broadcast(view.peers(MATCHER), batch))

    # Subscriptions -----------------------------------------------------------------------------------------------

    def _route(self, connection_point: Peer, changes: list[SubscriptionChange]) -> None:
        assert self._view is not None, "a subscription before a view"
        self.counters["changes"] += len(changes)
        by_owner: defaultdict[int, list[SubscriptionChange]] = defaultdict(list)
        for change in changes:
            owners = {self._view.owner(change.subscription)}
            if self._marked and self._next is not None:
                owners.add(self._next.owner(change.subscription))
            self._unanswered[connection_point.slot, change.change] = owners
            for owner in sorted(owners):
                by_owner[owner].append(change)
        for owner, own in by_owner.items():
            self._out.append(Send(Peer(MATCHER, owner), ApplyChanges(self._view.epoch, connection_point.slot, own)))

    def _applied(self, matcher: int, connection_point: int, changes: list[int]) -> None:
        done = []
        for change in changes:
            waits = self._unanswered.get((connection_point, change))
            if waits is None:
                continue  # of an owner that is none any more
            waits.discard(matcher)
            if not waits:
                del self._unanswered[connection_point, change]
                done.append(change)
        if done:
            self._out.append(Send(Peer(CONNECTION_POINT, connection_point), Changed(done, self._since)))
        self._leave()

    def _answered_by(self, matchers: set[int]) -> None:
        """These matchers own nothing any more: no answer of theirs is waited for."""
        for matcher in sorted(matchers):
            for connection_point, change in [key for key, waits in self._unanswered.items() if matcher in waits]:
                self._applied(matcher, connection_point, [change])

    # A view change -----------------------------------------------------------------------------------------------

    def _matchers_of_both(self) -> tuple[Peer, ...]:
        assert self._view is not None, "a second view before a first"
        assert self._next is not None, "no next view"
        return tuple(sorted({*self._view.peers(MATCHER), *self._next.peers(MATCHER)}))

    def _prepare(self, view: View) -> None:
        assert self._view is not None, "a second view before a first"
        self._next = view
        # Clients come to a newcomer once it is decided, perhaps before Begin does; nobody waits for a Mark of it.
        self._marked = self._slot not in self._view.access_points
        self._switched = self._park = False
        self._awaited = set()
        if self._view.access_points != view.access_points:
            self._awaited = set(self._view.connection_points)

    def _begin(self, epoch: int, park: bool) -> None:
        if self._next is None or self._next.epoch != epoch or self._marked:
            return
        self._send_batch()
        self._marked = True
        self._park = park
        self._out.append(Broadcast(self._matchers_of_both(), Mark(epoch)))

    def _commit(self, epoch: int) -> None:
        if self._next is not None and self._next.epoch == epoch:
            if self._switched:
                self._out.append(Send(COORDINATOR_PEER, Ended(epoch)))  # told before
            elif not self._awaited:
                self._switch()
        elif self._view is not None and self._view.epoch == epoch:
            self._out.append(Send(COORDINATOR_PEER, Ended(epoch)))  # and retired

    def _switch_of(self, connection_point: Peer, epoch: int) -> None:
        if self._next is None or self._next.epoch != epoch or self._switched:
            return
        # The batch being gathered may hold what that one has sent before it switched.
        self._send_batch()
        if len(self._awaited) > 1 or connection_point.slot not in self._awaited:
            self._awaited.discard(connection_point.slot)
        else:
            self._switch()

    def _switch(self) -> None:
        """Everything of the present epoch has come; tell the matchers where it ends."""
        assert self._view is not None, "a second view before a first"
        assert self._next is not None, "no next view"
        self._send_batch()
        self._switched = True
        self._awaited = set()
        ends = [(slot, self._exit_sequences[self._view.epoch, slot]) for slot in self._view.exit_points]
        self._out.append(Broadcast(self._matchers_of_both(), Switch(self._next.epoch, ends)))
        self._out.append(Send(COORDINATOR_PEER, Ended(self._next.epoch)))

    def _retire(self, epoch: int) -> None:
        if self._next is not None and self._next.epoch == epoch:
            assert self._switched, f"{self._peer} is told that epoch {epoch} has no former one, and has not switched"
            former, self._view = self._view, self._next
            assert former is not None, "a second view before a first"
            self._forget_next()
            for key in [key for key in self._exit_sequences if key[0] != epoch]:
                del self._exit_sequences[key]
            self._answered_by(set(former.matchers) - set(self._view.matchers))
            self._unpark()
        self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))
        assert self._view is not None, "a view is retired before a first"
        if self._slot not in self._view.access_points:
            self._leaving = True
            self._leave()

    def _abort(self, epoch: int) -> None:
        if self._next is not None and self._next.epoch == epoch:
            assert self._view is not None, "a second view before a first"
            assert not self._switched, f"{self._peer} has switched to epoch {epoch}, which is aborted"
            newcomers = set(self._next.matchers) - set(self._view.matchers)
            self._forget_next()
            self._answered_by(newcomers)
            self._unpark()
        self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))

    def _forget_next(self) -> None:
        self._send_batch()
        self._next = self._gathered_view = None
        self._marked = self._switched = False
        self._awaited = set()

    def _leave(self) -> None:
        """Out of the view: go when every change that came here is answered."""
        if self._leaving and not self._unanswered:
            self._leaving = False
            self._out.append(Flush())

    def _recover(self, view: View) -> None:
        """Begin anew with this view."""
        self._view = view
        self._since = view.epoch
        self._next = self._gathered_view = None
        self._marked = self._switched = self._park = self._leaving = False
        self._void = set(view.connection_points)
        self._awaited = set()
        self._gathered, self._gathered_count = [], 0
        self._exit_sequences.clear()
        self._unanswered.clear()
        self._parked_changes, self._parked_publications = [], []
        if self._slot not in view.access_points:
            self._out.append(Flush())

    # Parking, in the paper's protocol alone ----------------------------------------------------------------------

    def _parked(self) -> tuple[int, int]:
        publications = sum(len(message.lengths) // 4 for _, message in self._parked_publications)
        return publications, sum(len(changes) for _, changes in self._parked_changes)

    def _count_parked(self) -> None:
        publications, changes = self._parked()
        for name, count in (
            ("parked_publications_most", publications),
            ("parked_subscriptions_most", changes),
        ):
            self.counters[name] = max(self.counters[name], count)

    def _unpark(self) -> None:
        self._park = False
        parked_changes, self._parked_changes = self._parked_changes, []
        parked_publications, self._parked_publications = self._parked_publications, []
        for peer, changes in parked_changes:
            self._route(peer, changes)
        for peer, message in parked_publications:
            self._publications(peer, message)
