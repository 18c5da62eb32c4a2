"""A role's life in the cluster, the same for every layer: join, install a view, report; the machine does the rest.

(lane to the coordinator up)  ->  Join
Install                       ->  lanes to the members that this layer sends to; when all are up, Installed
Prepare                       ->  the same for the next view, and lanes within the layer where something is to move;
                                  when all are up, Prepared
Tick                          ->  Heartbeat with the machine's counters; Report with what was measured, where it is
Gone                          ->  the lane to that one is let go of
Recover                       ->  as Install, for a view in which members have got another incarnation
Flushed                       ->  Left: the machine had nothing more to do, and all it sent is delivered
"""

from __future__ import annotations

from typing import Protocol

from cluster.access_point import AccessPoint
from cluster.assignment import moved_groups
from cluster.config import Config
from cluster.connection_point import ConnectionPoint
from cluster.exit_point import ExitPoint
from cluster.measures import Measures
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Connect,
    Disconnect,
    Drained,
    Event,
    Flushed,
    Gone,
    Heartbeat,
    Install,
    Installed,
    Instruction,
    Join,
    LaneDown,
    LaneUp,
    Left,
    Member,
    Peer,
    Prepare,
    Prepared,
    Received,
    Recover,
    Retire,
    Send,
    Tick,
)
from cluster.view import View, view_of

DOWNSTREAM = {
    CONNECTION_POINT: ACCESS_POINT,
    ACCESS_POINT: MATCHER,
    MATCHER: EXIT_POINT,
    EXIT_POINT: CONNECTION_POINT,
}
"""Whom a layer dials; the lane carries both directions."""

OF_MEMBERSHIP = frozenset({Gone, Install, Recover, Prepare, Retire})
"""The messages that are not for the machine alone."""


class Machine(Protocol):
    """What every layer's machine offers."""

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        ...

    def gauges(self) -> dict[str, int]:
        """Return counters and what is held at the moment."""
        ...


def make_machine(peer: Peer, incarnation: int, config: Config) -> Machine:
    """Return the machine of a layer. The matcher's is imported here alone, as only it needs the compiled index."""
    if peer.layer == MATCHER:
        from cluster.matcher import Matcher

        return Matcher(peer.slot, incarnation, config)
    kinds: dict[str, type[ConnectionPoint] | type[AccessPoint] | type[ExitPoint]] = {
        CONNECTION_POINT: ConnectionPoint,
        ACCESS_POINT: AccessPoint,
        EXIT_POINT: ExitPoint,
    }
    return kinds[peer.layer](peer.slot, incarnation, config)


class Role:
    """A machine and its membership.

    join:     what it tells the coordinator of itself.
    measures: what its shell measures of it; None for no reports.
    """

    def __init__(
        self, peer: Peer, join: Join, machine: Machine, config: Config, measures: Measures | None = None
    ) -> None:
        self.peer = peer
        self.machine = machine
        self._join = join
        self.measures = measures
        self._heartbeat_ms = config.timing.role_heartbeat_ms
        self._reported_ms: int | None = None
        self._view: View | None = None
        self._next: View | None = None
        self._up: set[Peer] = set()
        self._dialled: dict[Peer, int] = {}  # the incarnation
        self._missing: set[Peer] = set()
        self._answer: Installed | Prepared | None = None  # once no lane is missing
        self._joined = False
        self._left = False

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        if isinstance(event, Received):
            # Nearly all that comes: told apart first, it does not pay for the patterns below.
            if type(event.message) not in OF_MEMBERSHIP:
                return self.machine.handle(event)
            if isinstance(event.message, Gone):
                return [Disconnect(event.message.member)]
        out = self.machine.handle(event)
        if isinstance(event, Drained):
            return out
        match event:
            case LaneUp(peer):
                self._up.add(peer)
                if peer == COORDINATOR_PEER:
                    self._joined = True
                    # A coordinator that was started anew has not heard what was said to the last one.
                    left = [Send(COORDINATOR_PEER, Left())] if self._left else []
                    return [Send(COORDINATOR_PEER, self._join), *left, *out]
                if peer in self._missing:
                    self._missing.discard(peer)
                    return [*out, *self._answer_if_up()]
            case LaneDown(peer):
                self._up.discard(peer)
            case Received(_, Install() | Recover() as install):
                self._view = view_of(install)
                self._next = None
                return [*out, *self._connect(self._downstream(self._view), {}, Installed(install.epoch))]
            case Received(_, Prepare() as prepare):
                assert self._view is not None, "a second view before a first"
                self._next = view_of(prepare)
                within = self._within(self._view, self._next)
                return [*out, *self._connect(self._downstream(self._next), within, Prepared(prepare.epoch))]
            case Received(_, Retire(epoch)):
                if self._next is not None and self._next.epoch == epoch:
                    self._view = self._next
            case Flushed():
                self._left = True
                return [*out, Send(COORDINATOR_PEER, Left())]
            case Tick(now_ms) if self._joined:
                if self._reported_ms is None or now_ms - self._reported_ms >= self._heartbeat_ms:
                    self._reported_ms = now_ms
                    out = [*out, Send(COORDINATOR_PEER, Heartbeat(self.machine.gauges()))]
                if self.measures is not None and self.measures.due(now_ms):
                    out = [*out, Send(COORDINATOR_PEER, self.measures.report(self.gauges(), now_ms))]
            case _:
                pass
        return out

    def gauges(self) -> dict[str, int]:
        """Return what the machine counts and holds, and the view that it serves."""
        return self.machine.gauges() | {"view_epoch": 0 if self._view is None else self._view.epoch}

    def _downstream(self, view: View) -> list[Member]:
        return [member for member in view.members if member.layer == DOWNSTREAM[self.peer.layer]]

    def _within(self, before: View, after: View) -> dict[Peer, Member]:
        """Return those of the own layer with which something is exchanged in this change."""
        slots: set[int] = set()
        if self.peer.layer == MATCHER:
            for group in moved_groups(before.owners, after.owners):
                way = {before.owner_of_group(group), after.owner_of_group(group)}
                if self.peer.slot in way:
                    slots |= way
        elif self.peer.layer == EXIT_POINT and before.exit_points != after.exit_points:
            slots = {*before.exit_points, *after.exit_points}
        slots.discard(self.peer.slot)
        peers = [Peer(self.peer.layer, slot) for slot in sorted(slots)]
        members = ((peer, after.member(peer) or before.member(peer)) for peer in peers)
        return {peer: member for peer, member in members if member is not None}

    def _connect(
        self, dialled: list[Member], within: dict[Peer, Member], answer: Installed | Prepared
    ) -> list[Instruction]:
        """Have the lanes made that are missing; within a layer the lower slot dials."""
        self._answer = answer
        self._missing = {member.peer for member in dialled} | set(within)
        dialled = [*dialled, *(member for peer, member in within.items() if peer > self.peer)]
        for member in dialled:
            if self._dialled.get(member.peer, member.incarnation) != member.incarnation:
                self._up.discard(member.peer)  # that was another one
            self._dialled[member.peer] = member.incarnation
        self._missing -= self._up
        return [*(Connect(member) for member in dialled if member.peer in self._missing), *self._answer_if_up()]

    def _answer_if_up(self) -> list[Instruction]:
        if self._missing or self._answer is None:
            return []
        answer, self._answer = self._answer, None
        return [Send(COORDINATOR_PEER, answer)]
