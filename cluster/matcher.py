"""The matcher: finds which of its share of the subscriptions match each publication.

It handles its lanes strictly in order: a batch meets exactly the subscription changes that came before it, and the
acknowledgement of a change is true of every batch handled after it. For each batch it answers every exit point that
the batch's runs name, with the hits of those runs and the bytes of the publications that have hits; without hits
the answer still moves its watermark there. Where everything is written to the output (`output.all`), one of the
matchers that a batch visits sends the bytes of all that is well-formed.

A publication's attributes are decoded here and nowhere else, so this is also where a malformed one is found; every
matcher finds the same, and the exit point tells the publisher.

A view change: there is one index for both epochs. A subscription is valid in an epoch if this matcher owns its key
group in that epoch's view, so its validity interval need not be stored: while the index holds groups of which
that is not always true, hits are filtered by the owner of their group in the batch's epoch, and otherwise not at all.

    Prepare     groups may come and go (`moving.py`)       -> Ready
    Switch      from every access point: the former epoch has been answered -> Ended
    Retire      groups that went are to be swept out; a leaver leaves -> Settled
    Abort       groups that came are to be swept out       -> Settled

The sweep goes on a little at a time, also beside the next view changes: what is still to be swept is nobody's
(`leftovers.py`). It gives no hits in the view in force, is not copied, and gives way to any change or copy of its
subscription. It is in the way where its group is this matcher's, or will be in the next view: then it is swept out
at once, and before that this matcher is not Ready. The rest has time, a tick at a time.

Recover: batches and changes of earlier epochs are void. What others own is swept out, and what connection points that
have died had opened, unless their followers open it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.busiest import Busiest
from cluster.config import Config
from cluster.frames import SUBSCRIPTION_BITS
from cluster.leftovers import Leftovers
from cluster.matching import Batch as PublicationBatch
from cluster.matching import BatchLimits, Index, Room, answer
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Abort,
    Again,
    Applied,
    ApplyChanges,
    Batch,
    Commit,
    Drained,
    Ended,
    Event,
    Flush,
    GroupCopy,
    GroupsEnd,
    GroupsTaken,
    Install,
    Instruction,
    Mark,
    Message,
    Peer,
    Prepare,
    Received,
    Recover,
    Result,
    Retire,
    Run,
    Send,
    Settled,
    StreamEnd,
    SubscriptionChange,
    Switch,
    Tick,
    slot_of,
)
from cluster.moving import Moving
from cluster.routing import teller_of
from cluster.table import Table
from cluster.view import View, key_group, view_of

if TYPE_CHECKING:
    from cluster.matching import Hits
    from cluster.matching.answers import Columns

SWEEP_ENTRIES = 100
SWEEP_US = 9
"""Removed from the index in one go, and about what each costs. Copying has the rest of the step (`moving.STEP_US`)."""
TICK_ENTRIES = 200
"""Removed with a tick, where nothing waits for it: 4,000 a second, for a thirtieth of a core."""


class Matcher:
    """The machine; `index` is its share of the subscriptions."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        del incarnation  # the lanes carry it
        self._slot = slot
        self._peer = Peer(MATCHER, slot)
        limits = config.client_limits
        self._limits = BatchLimits(limits.attributes, limits.name_bytes, limits.string_bytes)
        self._tells = config.output.all
        self.index = Index()
        self._rooms = (Room(), Room(), Room())  # for a batch, its hits, an answer; nothing stays there
        self.busiest = Busiest()
        self.table = Table()
        self._view: View | None = None
        self._moving: Moving | None = None
        self._unswitched: set[int] = set()  # access points of the present view that have not switched to the next
        self._removed: dict[int, int] = {}  # subscription -> the change that removed it, during a view change
        self._leftovers = Leftovers()
        self._recovered = 0  # the epoch of the last Recover; what is of an earlier one is void
        self._out: list[Instruction] = []
        self.counters = dict.fromkeys(
            ("publications", "batches", "hits", "matched", "rejected", "changes", "entries_copied", "bytes_copied"), 0
        )

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case Received(peer, Batch() as batch):
                return self._match(peer, batch) if batch.epoch >= self._recovered else []
            case Received(peer, message):
                self._received(peer, message)
            case Drained(rested):
                if rested:
                    self._step()
            case Tick():
                if not self._leftovers.in_the_way:
                    self._sweep(TICK_ENTRIES)
            case _:
                pass
        out, self._out = self._out, []
        return out

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        return self.counters | {
            "subscriptions": len(self.table) - len(self._leftovers),
            "subscription_bytes": self.table.form_bytes,
            "index_bytes": self.index.memory_bytes(),
        }

    def _received(self, peer: Peer, message: Message) -> None:
        moving = self._moving
        match message:
            case ApplyChanges(epoch):
                if epoch >= self._recovered:
                    self._apply_changes(peer, message)
            case Install():
                self._view = view_of(message)
            case Prepare():
                self._prepare(view_of(message))
            case Mark(epoch):
                if moving is not None and moving.after.epoch == epoch:
                    moving.mark(peer.slot)
            case GroupCopy(epoch):
                if moving is not None and moving.after.epoch == epoch:
                    moving.arrived(peer.slot, message)
            case GroupsEnd(epoch):
                if moving is not None and moving.after.epoch == epoch:
                    moving.ended(peer.slot, message)
            case GroupsTaken(epoch, entries):
                if moving is not None and moving.after.epoch == epoch:
                    moving.taken(peer.slot, entries)
            case Switch(epoch, ends):
                if moving is not None and moving.after.epoch == epoch:
                    self._switched(peer.slot, ends)
            case Commit(epoch):
                self._say_ended(epoch)
            case Retire(epoch):
                self._retire(epoch)
            case Abort(epoch):
                self._abort(epoch)
            case Recover():
                self._recover(message)
            case _:
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")

    # Subscriptions -----------------------------------------------------------------------------------------------

    def _apply_changes(self, access_point: Peer, message: ApplyChanges) -> None:
        for change in message.changes:
            # An access point that has not heard of a view's end yet still tells its former owner.
            group = key_group(change.subscription)
            if self._owns(group):
                self._apply(change, group)
                if self._moving is not None:
                    sent_on = self._moving.changed(access_point.slot, change, group)
                    if sent_on is not None:
                        self._out.append(sent_on)
        self.counters["changes"] += len(message.changes)
        answer: Message = Applied(message.connection_point, [change.change for change in message.changes])
        self._out.append(Send(access_point, answer))

    def _owns(self, group: int) -> bool:
        """Tell whether the key group is this matcher's in the present view or in the next."""
        assert self._view is not None, "a subscription before a view"
        return self._view.owner_of_group(group) == self._slot or (
            self._moving is not None and self._moving.after.owner_of_group(group) == self._slot
        )

    def _apply(self, change: SubscriptionChange, group: int) -> None:
        """Put a change into effect unless a newer one of its subscription, of this key group, was here before it."""
        subscription = change.subscription
        present = self.table.rows_of(group).get(subscription)
        if present is not None and subscription in self._leftovers.of(group):
            present = None
        known = present.change if present is not None else self._removed.get(subscription, -1)
        if change.change <= known:
            return
        self._leftovers.discard(group, subscription)
        if change.normal_form is None:
            self._take_out(group, subscription)
            if self._moving is not None:
                self._removed[subscription] = change.change
        else:
            client = subscription >> SUBSCRIPTION_BITS
            self.index.add_encoded(subscription, change.normal_form, client)
            self.table.put(group, change)
            self._removed.pop(subscription, None)

    def _take_out(self, group: int, subscription: int) -> None:
        if self.table.remove(group, subscription):
            self.index.remove(subscription)

    # A view change -----------------------------------------------------------------------------------------------

    def _prepare(self, view: View) -> None:
        assert self._view is not None, "a second view before a first"
        self._unswitched = set(self._view.access_points)
        self._moving = Moving(self._slot, self._view, view, self.table, self._leftovers, self._apply)
        self._look_out()

    def _step(self) -> None:
        more = False
        swept_us = SWEEP_US * self._sweep(SWEEP_ENTRIES) if self._leftovers.in_the_way else 0
        if self._moving is not None:
            instructions, more = self._moving.step(swept_us)
            self._out += instructions
        if more or self._leftovers.in_the_way:
            self._out.append(Again(rest=True))

    def _sweep(self, most: int) -> int:
        """Take out some of what is nobody's; return how many."""
        taken = 0
        for group, subscriptions in self._leftovers.take(most).items():
            for subscription in subscriptions:
                self._take_out(group, subscription)
            taken += len(subscriptions)
        return taken

    def _look_out(self) -> None:
        """See which leftovers are in the way: those in groups of this matcher, in the present view or the next."""
        assert self._view is not None, "leftovers before a view"
        if self._leftovers:
            views = [self._view] if self._moving is None else [self._view, self._moving.after]
            self._leftovers.look_out({group for view in views for group in view.groups_of(self._slot)})

    def _switched(self, access_point: int, ends: list[tuple[int, int]]) -> None:
        assert self._view is not None, "a second view before a first"
        assert self._moving is not None, "no next view"
        if access_point not in self._unswitched:
            return  # a newcomer, which has nothing of the former epoch
        self._unswitched.discard(access_point)
        if self._slot in self._view.matchers:
            self._out += [
                Send(Peer(EXIT_POINT, slot), StreamEnd(self._view.epoch, access_point, sequence))
                for slot, sequence in ends
            ]
        self._say_ended(self._moving.after.epoch)

    def _say_ended(self, epoch: int) -> None:
        if not self._unswitched or (self._view is not None and self._view.epoch == epoch):
            self._out.append(Send(COORDINATOR_PEER, Ended(epoch)))

    def _retire(self, epoch: int) -> None:
        moving = self._moving
        if moving is not None and moving.after.epoch == epoch:
            self._view = moving.after
            stays = self._slot in self._view.matchers
            self._forget_next(moving.targets if stays else {})
        self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))
        if self._view is not None and self._slot not in self._view.matchers:
            self._out.append(Flush())

    def _abort(self, epoch: int) -> None:
        moving = self._moving
        if moving is not None and moving.after.epoch == epoch:
            self._forget_next(moving.sources)
        self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))

    def _forget_next(self, foreign: dict[int, int]) -> None:
        """There is one view again: what these groups hold is not this matcher's."""
        assert self._moving is not None, "no next view"
        self.counters["entries_copied"] += self._moving.entries
        self.counters["bytes_copied"] += self._moving.bytes
        self._moving = None
        self._removed.clear()
        for group in foreign:
            self._leftovers.add(group, self.table.group(group))
        self._look_out()

    def _recover(self, message: Recover) -> None:
        """Begin anew with this view and what the table holds that belongs here."""
        view = self._view = view_of(message)
        self._recovered = view.epoch
        self._moving = None
        self._removed.clear()
        self._unswitched = set()
        dead = {slot for layer, slot in message.replaced if layer == CONNECTION_POINT}
        for group, owner in enumerate(view.owners_list):
            held = self.table.group(group)
            if owner == self._slot:
                held = [one for one in held if slot_of(one >> SUBSCRIPTION_BITS) in dead]
            self._leftovers.add(group, held)
        self._look_out()
        if self._slot not in view.matchers:
            self._out.append(Flush())

    # Publications ------------------------------------------------------------------------------------------------

    def _only_mine(self, epoch: int, hits: Hits) -> Hits:
        """Return the hits that are this matcher's to answer in the epoch, where the index holds others as well."""
        assert self._view is not None, "a publication before a view"
        view = self._view
        if epoch != view.epoch:
            assert self._moving is not None, f"{self._peer} serves epoch {view.epoch}, a batch is of {epoch}"
            view = self._moving.after
            assert epoch == view.epoch, f"{self._peer} serves {self._view.epoch} and {view.epoch}, not {epoch}"
        if not self._leftovers and (self._moving is None or not self._moving.mixes):
            return hits
        return hits.owned(view.owners, self._slot)

    def _match(self, access_point: Peer, batch: Batch) -> list[Instruction]:
        batch_room, hits_room, _ = self._rooms
        publications = PublicationBatch(batch.lengths, batch.payload, self._limits, batch_room)
        hits = self._only_mine(batch.epoch, self.index.match(publications, hits_room))
        self.busiest.sample(hits.ids())
        counters = self.counters
        counters["batches"] += 1
        counters["publications"] += publications.count
        counters["hits"] += hits.count
        counters["rejected"] += len(publications.rejected)
        shown = self._tells and teller_of(batch.expect, batch.sequence) == self._slot
        out: list[Instruction] = []
        for part in _parts(batch, publications):
            matched, found = self._answer(publications, hits, part.ranges, shown)
            counters["matched"] += matched
            result = Result(
                batch.epoch, batch.expect, access_point.slot, part.sequence, part.runs, part.rejected, *found
            )
            out.append(Send(Peer(EXIT_POINT, part.exit_point), result))
        return out

    def _answer(
        self, publications: PublicationBatch, hits: Hits, ranges: list[int], shown: bool
    ) -> tuple[int, Columns]:
        """Return how many publications in these ranges have hits, and the answer about them.

        shown: whether all that are well-formed go along.
        """
        return answer(publications, hits, ranges, SUBSCRIPTION_BITS, shown, self._rooms[2])


class _Part(NamedTuple):
    """What one exit point joins of a batch.

    sequence: of its first publication there. ranges: its publications in the batch: the first and one after the last,
    of each stretch in turn. rejected: place among its publications, reason.
    """

    exit_point: int
    sequence: int
    runs: list[Run]
    ranges: list[int]
    rejected: list[tuple[int, str]]


def _parts(batch: Batch, publications: PublicationBatch) -> list[_Part]:
    """Return what each exit point joins, by its slot."""
    rejected = publications.rejected
    exit_points = set(batch.exit_points)
    if len(exit_points) == 1:
        return [_Part(batch.exit_points[0], batch.exit_sequences[0], batch.runs, [0, publications.count], rejected)]
    parts: dict[int, _Part] = {}
    counts = dict.fromkeys(exit_points, 0)
    at = next_rejected = 0
    for run, exit_point, sequence in zip(batch.runs, batch.exit_points, batch.exit_sequences, strict=True):
        part = parts.get(exit_point)
        if part is None:
            part = parts[exit_point] = _Part(exit_point, sequence, [], [], [])
        part.runs.append(run)
        part.ranges.extend((at, at + run.count))
        while next_rejected < len(rejected) and rejected[next_rejected][0] < at + run.count:
            place, reason = rejected[next_rejected]
            # Publications are counted through this exit point's runs alone.
            part.rejected.append((counts[exit_point] + place - at, reason))
            next_rejected += 1
        counts[exit_point] += run.count
        at += run.count
    return [parts[exit_point] for exit_point in sorted(parts)]
