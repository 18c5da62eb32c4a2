"""The coordinator: agrees on the view, changes it, and watches who serves it. Never on the way of a publication.

    GATHERING    has processes started for the slots of the view and waits for a Join from each
    INSTALLING   Install went to all; each connects its lanes and answers Installed
    RESUMING     after its own crash: waits for the roles that run on without it to come again
    SERVING      the connection points let clients in; the view may change
    STOPPING     the connection points have said Bye to their clients

What is wanted is a set of slots; the coordinator goes there one step at a time and looks anew after each, so that a
later wish takes effect from wherever the cluster is, and its own crash at any point costs no more than the step:

    newcomers    are started, join, connect their lanes and have loaded all they need before anybody else hears of them
    a view       with the newcomers, and some key groups moved (`transition.py`); in waves, each as large as the one
                 before allows
    clients      of connection points that are to leave are asked to move
    a last view  without the leavers, which go when they owe nothing any more

A role whose lane is down is lost; `status` says so, and a view change that is not decided yet is aborted. One that
reports nothing for `role_lost_ms`, or is said to have Died by those who run it, is dead: what is left of it is ended,
and another incarnation takes its slot (`recovery.py`). Until then the view does not change.

It also keeps which client id is logged in where (`sessions.py`), and passes operators' questions about them on
(`questions.py`).

This is its face: events in, instructions out, and what the shell asks. What it does is in `coordinating/`, each part
in a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cluster.config import Config
from cluster.coordinating.arriving import Arriving
from cluster.coordinating.leavers import Leavers
from cluster.coordinating.logins import Logins
from cluster.coordinating.measures import Measures
from cluster.coordinating.newcomers import Newcomers
from cluster.coordinating.operations import Operations
from cluster.coordinating.records import State
from cluster.coordinating.recovering import Recovering
from cluster.coordinating.requests import Autoscaler, Requests
from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.coordinating.showing import Showing
from cluster.coordinating.steps import Steps
from cluster.coordinating.watching import Watching
from cluster.coordinating.waves import Waves
from cluster.coordinating.wishes import Wishes
from cluster.memory import Memory, Operation
from cluster.messages import (
    CONNECTION_POINT,
    Answer,
    ClientsMoved,
    Died,
    Drain,
    DurableEnded,
    DurableHomes,
    DurableMoved,
    Emptied,
    Event,
    Explained,
    Failed,
    FindHome,
    Heartbeat,
    Installed,
    Instruction,
    Join,
    LaneDown,
    LaneUp,
    Left,
    Peer,
    Rebuilt,
    Received,
    Report,
    Request,
    Send,
    SessionClosed,
    SessionOpened,
    SpawnFailed,
    Status,
    StatusRequest,
    Tick,
)
from cluster.observed import Observed
from cluster.questions import Questions


class Coordinator:
    """The machine. memory, history: what an earlier life of it has left on disk. cold: no role runs on from then.

    The shell says, for the status and for operators:

    process:         the pid and the incarnation of the process that runs this machine; who stands by, if one does.
    metrics_address: where the metrics are served.
    autoscaler:      what answers requests to the autoscaler, None without one.
    """

    def __init__(
        self, config: Config, memory: Memory | None = None, history: Sequence[Operation] = (), *, cold: bool = False
    ) -> None:
        shared = self._shared = Shared(config, memory or Memory())
        roster = self._roster = Roster(shared)
        questions = self._questions = Questions()
        self._logins = Logins(shared)
        operations = self._operations = Operations(shared, history)
        waves = Waves(shared)
        newcomers = Newcomers(shared, roster)
        leavers = self._leavers = Leavers(shared, roster)
        steps = self._steps = Steps(shared, roster, operations, newcomers, leavers, waves)
        wishes = Wishes(shared, operations, waves, steps)
        recovering = self._recovering = Recovering(shared, config, roster, questions, leavers, steps, wishes)
        arriving = self._arriving = Arriving(shared, config, roster, steps, recovering)
        self._watching = Watching(shared, questions, newcomers, leavers, steps, recovering, arriving)
        self._measures = Measures(shared, operations)
        self._showing = Showing(shared, config.name, roster, operations, recovering)
        self._requests = Requests(shared, operations, wishes, questions)
        self._cold = cold
        self.process: Mapping[str, int] | None = None
        self.metrics_address = ""
        self.autoscaler: Autoscaler | None = None

    @property
    def state(self) -> State:
        """What the cluster is doing."""
        return self._shared.state

    @property
    def calm(self) -> bool:
        """Whether the cluster is what it is wanted to be, with nothing under way."""
        return self.state is State.SERVING and not self._measures.changing

    def start(self) -> list[Instruction]:
        """Return what is to be done first: have the processes started, unless they run on from an earlier life."""
        self._arriving.start(cold=self._cold)
        return self._taken()

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        shared = self._shared
        match event:
            case Received(peer, StatusRequest()):
                shared.out.append(Send(peer, Status(msgspec.json.encode(self.status()))))
            case Received(peer, Request("why", arguments)):
                self._requests.why(peer, arguments)
            case Received(peer, Request() as request):
                answer = self._requests.answer(request, self.autoscaler)
                shared.out.append(Send(peer, answer))
            case Received(peer, Join() as join):
                self._arriving.join(peer, join)
            case Received(peer, message) if peer in shared.reports:
                shared.reports[peer].heard_ms = shared.now_ms
                self._received(peer, message)
            case LaneUp(peer) | LaneDown(peer) if peer in shared.reports:
                self._watching.lane(peer, up=isinstance(event, LaneUp))
            case SpawnFailed(peer, incarnation, reason) if self._is(peer, incarnation):
                self._watching.not_started(peer, reason)
            case Died(peer, incarnation, reason) if self._is(peer, incarnation):
                self._watching.died(peer, reason)
            case Tick(now_ms):
                self._watching.tick(now_ms)
            case _:
                pass
        return self._taken()

    def _is(self, peer: Peer, incarnation: int) -> bool:
        report = self._shared.reports.get(peer)
        return report is not None and report.incarnation == incarnation

    def _taken(self) -> list[Instruction]:
        out, self._shared.out = self._shared.out, []
        return out

    def _received(self, peer: Peer, message: Any) -> None:
        """A slice that was started, and not stopped, says something."""
        report = self._shared.reports[peer]
        match message:
            case Heartbeat(counters):
                report.counters = counters
            case Report():
                report.measured_before, report.measured = report.measured, message
            case Installed():
                self._arriving.installed(peer, message)
            case Rebuilt():
                self._recovering.answered(peer, message)
            case Explained():
                self._shared.out += self._questions.answered(peer, message)
            case SessionOpened() | SessionClosed() | DurableHomes() | DurableMoved() | DurableEnded() | FindHome():
                self._logins.take(peer, message)
            case Emptied(number):
                self._leavers.emptied(peer, number)
                self._steps.go_on()
            case ClientsMoved(number):
                self._leavers.moved(peer, number)
                self._steps.go_on()
            case Left():
                self._leavers.left(peer)
                self._steps.left(peer)
                self._steps.go_on()
            case Failed():
                self._steps.failed(peer, message)
            case _:
                self._steps.answered(peer, message)

    # What the shell asks -----------------------------------------------------------------------------------------

    def stop(self) -> list[Instruction]:
        """The operator ends the cluster."""
        self._shared.state = State.STOPPING
        return [Send(peer, Drain()) for peer in sorted(self._shared.reports) if peer.layer == CONNECTION_POINT]

    def processes(self) -> list[tuple[Peer, int]]:
        """Return every slice that was started and not stopped, with its incarnation; in the direction of the data."""
        return self._roster.processes()

    def ask(self, request: Request) -> tuple[Answer, list[Instruction]]:
        """Answer somebody in this very process as an operator; what it takes is to be done as after `handle`."""
        return self._requests.answer(request, self.autoscaler), self._taken()

    def operation(self, number: int) -> Operation | None:
        """Return an operation of those that are remembered."""
        return self._operations.find(number)

    def status(self) -> dict[str, object]:
        """Return the cluster as a JSON document: its state, and a row for each slot."""
        return self._showing.document(self.process, self.metrics_address)

    def observed(self) -> Observed:
        """Return what is known of the cluster at this moment."""
        return self._measures.observed()

    def gauges(self) -> dict[str, int]:
        """Return the coordinator's own counters, and what it holds, by the keys of `metrics.py`."""
        return self._measures.gauges()

    def histograms(self) -> dict[str, list[int]]:
        """Return its own histograms, as in a report."""
        return self._measures.histograms()

    def endpoints(self) -> dict[Peer, str]:
        """Return where the metrics of the slices are to be had, by slice; of those alone that serve any."""
        return self._measures.endpoints()
