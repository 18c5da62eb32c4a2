"""The access point: stamps and routes; it holds nothing but what it gathers until Drained and what awaits an answer.

A publication goes to every matcher of the view, a subscription to the matcher that owns its key group. What a
batch is stamped with is all that the later hops need to know: the epoch, the matchers that must answer, and per run
the exit point and a sequence that is dense per (this incarnation, exit point). So no later hop counts against a
number that could change under it (the E-SilboPS paper's threshold does; its section 5).

Order: one lane in from a client's connection point, one out to each matcher, and nothing overtakes: a
subscription change closes the batch that was being gathered.
"""

from __future__ import annotations

from collections import defaultdict

from cluster.config import Config
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    MATCHER,
    Applied,
    ApplyChanges,
    Batch,
    Broadcast,
    Changed,
    ChangeSubscriptions,
    Drained,
    Event,
    Install,
    Instruction,
    Message,
    Peer,
    Publications,
    Received,
    Send,
    SubscriptionChange,
)
from cluster.routing import exit_point_of
from cluster.view import View, view_of


class AccessPoint:
    """The machine."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        del incarnation  # the lanes carry it
        self._peer = Peer(ACCESS_POINT, slot)
        self._batch_publications = config.flow.batch_publications
        self._view: View | None = None
        self._matchers: tuple[Peer, ...] = ()
        self._sequence = 1  # of the next publication
        self._exit_sequences: defaultdict[int, int] = defaultdict(lambda: 1)
        self._gathered: list[Publications] = []
        self._gathered_count = 0
        self._out: list[Instruction] = []
        self.counters = dict.fromkeys(("publications", "batches", "changes"), 0)

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case Received(peer, message):
                self._received(peer, message)
            case Drained():
                self._send_batch()
            case _:
                pass
        out, self._out = self._out, []
        return out

    def gauges(self) -> dict[str, int]:
        """Return the counters."""
        return dict(self.counters)

    def _received(self, peer: Peer, message: Message) -> None:
        match message:
            case Publications():
                self._gathered.append(message)
                self._gathered_count += len(message.lengths) // 4
                if self._gathered_count >= self._batch_publications:
                    self._send_batch()
            case ChangeSubscriptions(changes):
                self._send_batch()
                self._route(peer, changes)
            case Applied(connection_point, changes):
                self._out.append(Send(Peer(CONNECTION_POINT, connection_point), Changed(changes)))
            case Install():
                self._view = view_of(message)
                self._matchers = self._view.peers(MATCHER)
            case _:
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")

    def _send_batch(self) -> None:
        gathered = self._gathered
        if not gathered:
            return
        assert self._view is not None, "a publication before a view"
        self._gathered = []
        count, self._gathered_count = self._gathered_count, 0
        if len(gathered) == 1:
            runs, lengths, payload = gathered[0].runs, gathered[0].lengths, gathered[0].payload
        else:
            runs = [run for message in gathered for run in message.runs]
            lengths = b"".join([message.lengths for message in gathered])
            payload = b"".join([message.payload for message in gathered])
        exit_points = [exit_point_of(self._view.exit_points, run.publisher) for run in runs]
        exit_sequences = []
        for run, exit_point in zip(runs, exit_points, strict=True):
            exit_sequences.append(self._exit_sequences[exit_point])
            self._exit_sequences[exit_point] += run.count
        expect = list(self._view.matchers)
        batch = Batch(self._view.epoch, expect, self._sequence, runs, exit_points, exit_sequences, lengths, payload)
        self._sequence += count
        self.counters["publications"] += count
        self.counters["batches"] += 1
        self._out.append(Broadcast(self._matchers, batch))

    def _route(self, connection_point: Peer, changes: list[SubscriptionChange]) -> None:
        assert self._view is not None, "a subscription before a view"
        self.counters["changes"] += len(changes)
        by_owner: defaultdict[int, list[SubscriptionChange]] = defaultdict(list)
        for change in changes:
            by_owner[self._view.owner(change.subscription)].append(change)
        for owner, own in by_owner.items():
            message = ApplyChanges(self._view.epoch, connection_point.slot, own)
            self._out.append(Send(Peer(MATCHER, owner), message))
