"""A role's life in the cluster, the same for every layer: join, install a view, report; the machine does the rest.

(lane to the coordinator up)  ->  Join
Install                       ->  lanes to the members that this layer sends to; when all are up, Installed
Tick                          ->  Heartbeat with the machine's counters
"""

from __future__ import annotations

from typing import Protocol

from cluster.access_point import AccessPoint
from cluster.config import Config
from cluster.connection_point import ConnectionPoint
from cluster.exit_point import ExitPoint
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Connect,
    Event,
    Heartbeat,
    Install,
    Installed,
    Instruction,
    Join,
    LaneUp,
    Peer,
    Received,
    Send,
    Tick,
)

DOWNSTREAM = {
    CONNECTION_POINT: ACCESS_POINT,
    ACCESS_POINT: MATCHER,
    MATCHER: EXIT_POINT,
    EXIT_POINT: CONNECTION_POINT,
}
"""Whom a layer dials; the lane carries both directions."""


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
    """A machine and its membership. `join` is what it tells the coordinator of itself."""

    def __init__(self, peer: Peer, join: Join, machine: Machine, config: Config) -> None:
        self.peer = peer
        self.machine = machine
        self._join = join
        self._heartbeat_ms = config.timing.role_heartbeat_ms
        self._reported_ms: int | None = None
        self._epoch: int | None = None
        self._missing: set[Peer] = set()
        self._joined = False

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        out = self.machine.handle(event)
        match event:
            case LaneUp(peer):
                if peer == COORDINATOR_PEER and not self._joined:
                    self._joined = True
                    return [Send(COORDINATOR_PEER, self._join), *out]
                if peer in self._missing:
                    self._missing.discard(peer)
                    if not self._missing and self._epoch is not None:
                        return [*out, Send(COORDINATOR_PEER, Installed(self._epoch))]
            case Received(_, Install() as install):
                members = [member for member in install.members if member.layer == DOWNSTREAM[self.peer.layer]]
                self._epoch = install.epoch
                self._missing = {member.peer for member in members}
                return [*out, *(Connect(member) for member in members)]
            case Tick(now_ms) if self._joined:
                if self._reported_ms is None or now_ms - self._reported_ms >= self._heartbeat_ms:
                    self._reported_ms = now_ms
                    return [*out, Send(COORDINATOR_PEER, Heartbeat(self.machine.gauges()))]
            case _:
                pass
        return out
