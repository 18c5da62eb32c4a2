"""The coordinator: agrees on the view and watches who serves it. Never on the way of a publication.

    GATHERING    waits for a Join from every slot that the configuration asks for
    INSTALLING   Install went to all; each connects its lanes and answers Installed
    SERVING      the connection points let clients in
    STOPPING     the connection points have said Bye to their clients

A role that reports nothing for `role_lost_ms`, or whose lane is down, is lost; `status` says so. (Bringing it back is
not in this machine yet: its slot stays empty until the cluster is started anew.)

It also keeps which client id is logged in where: when one logs in at two connection points, the newer login, in the
order in which the coordinator hears of them, wins. That order may be wrong for a client that has changed its
connection point; so a session that is ended in favour of another one of the same instance is told `moved`, and a client
that was in fact the newer one comes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from cluster.config import Config
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR,
    EXIT_POINT,
    MATCHER,
    Drain,
    Event,
    Heartbeat,
    Installed,
    Instruction,
    Join,
    LaneDown,
    LaneUp,
    Member,
    Peer,
    Received,
    Send,
    Serve,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    Status,
    StatusRequest,
    Tick,
    slot_of,
)
from cluster.view import View, first_view


class State(Enum):
    """What the cluster is doing."""

    GATHERING = "gathering"
    INSTALLING = "installing"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(slots=True)
class Report:
    """What is known of a member. `heard_ms`: its last message; `connected`: its lane stands."""

    join: Join
    heard_ms: int
    connected: bool = True
    installed: bool = False
    counters: dict[str, int] | None = None


def expected_slots(config: Config) -> tuple[Peer, ...]:
    """Return the slots that the configuration asks for, by layer and number."""
    layers = config.layers
    return tuple(
        Peer(layer, slot)
        for layer, count in (
            (CONNECTION_POINT, layers.connection_points),
            (ACCESS_POINT, layers.access_points),
            (MATCHER, layers.matchers),
            (EXIT_POINT, layers.exit_points),
        )
        for slot in range(count)
    )


class Coordinator:
    """The machine."""

    def __init__(self, config: Config) -> None:
        self._name = config.name
        self._lost_ms = config.timing.role_lost_ms
        self._expected = expected_slots(config)
        self._reports: dict[Peer, Report] = {}
        self._sessions: dict[str, tuple[int, int]] = {}  # client id -> client, instance
        self._view: View | None = None
        self._now_ms = 0
        self.state = State.GATHERING

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case Received(peer, StatusRequest()):
                return [Send(peer, Status(msgspec.json.encode(self.status())))]
            case Received(peer, Join() as join):
                return self._join(peer, join)
            case Received(peer, message) if peer in self._reports:
                report = self._reports[peer]
                report.heard_ms = self._now_ms
                return self._member(peer, report, message)
            case LaneUp(peer) | LaneDown(peer) if peer in self._reports:
                self._reports[peer].connected = isinstance(event, LaneUp)
            case Tick(now_ms):
                if not self._now_ms:
                    # The first one: what was heard before it was not heard at 0.
                    for report in self._reports.values():
                        report.heard_ms = now_ms
                self._now_ms = now_ms
            case _:
                pass
        return []

    def stop(self) -> list[Instruction]:
        """The operator ends the cluster."""
        self.state = State.STOPPING
        return [Send(peer, Drain()) for peer in self._reports if peer.layer == CONNECTION_POINT]

    def _join(self, peer: Peer, join: Join) -> list[Instruction]:
        if peer not in self._expected or self.state is not State.GATHERING:
            return []  # not asked for; its status row is missing and its launcher gives up on it
        self._reports[peer] = Report(join, self._now_ms)
        if len(self._reports) < len(self._expected):
            return []
        self._view = first_view(
            Member(known.layer, known.slot, report.join.incarnation, report.join.host, report.join.port)
            for known, report in self._reports.items()
        )
        self.state = State.INSTALLING
        install = self._view.install()
        return [Send(known, install) for known in self._expected]

    def _member(self, peer: Peer, report: Report, message: object) -> list[Instruction]:
        match message:
            case Heartbeat(counters):
                report.counters = counters
            case Installed():
                report.installed = True
                if self.state is State.INSTALLING and all(one.installed for one in self._reports.values()):
                    assert self._view is not None, "installing without a view"
                    self.state = State.SERVING
                    serve = Serve(self._view.epoch)
                    return [Send(known, serve) for known in self._expected if known.layer == CONNECTION_POINT]
            case SessionOpened(client_id, client, instance):
                older, older_instance = self._sessions.get(client_id, (client, instance))
                self._sessions[client_id] = client, instance
                if slot_of(older) != slot_of(client):
                    taken = SessionTaken(older, older_instance == instance)
                    return [Send(Peer(CONNECTION_POINT, slot_of(older)), taken)]
            case SessionClosed(client_id, client):
                if self._sessions.get(client_id, (None, None))[0] == client:
                    del self._sessions[client_id]
            case _:
                raise AssertionError(f"{COORDINATOR} got {type(message).__name__} from {peer}")
        return []

    def _lost(self, report: Report) -> bool:
        return not report.connected or self._now_ms - report.heard_ms > self._lost_ms

    def status(self) -> dict[str, object]:
        """Return the cluster as a JSON document: its state, and a row for each slot."""
        members = []
        lost = 0
        for peer in self._expected:
            row: dict[str, object] = {"layer": peer.layer, "slot": peer.slot}
            report = self._reports.get(peer)
            if report is None:
                row["state"] = "starting"
            else:
                gone = self._lost(report)
                lost += gone
                row["state"] = "lost" if gone else "serving" if report.installed else "joining"
                row |= {
                    "pid": report.join.pid,
                    "incarnation": report.join.incarnation,
                    "address": f"{report.join.host}:{report.join.port}",
                    "client_address": report.join.client_address or None,
                    "heard_ms_ago": self._now_ms - report.heard_ms,
                    "counters": report.counters or {},
                }
            members.append(row)
        return {
            "name": self._name,
            "state": self.state.value,
            "epoch": None if self._view is None else self._view.epoch,
            "lost": lost,
            "sessions": len(self._sessions),
            "members": members,
        }
