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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from cluster.aggregates import of_cluster, of_slices, rate
from cluster.assignment import fewest_moves, reassign
from cluster.busiest import document as busiest_document
from cluster.busiest import ranked
from cluster.columns import u16
from cluster.config import Config
from cluster.errors import KittiwakeError
from cluster.memory import Memory, Operation, Step, encode_memory, encode_operation
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    DATA_LAYERS,
    MATCHER,
    Answer,
    ClientsMoved,
    Died,
    Disconnect,
    Drain,
    DurableEnded,
    DurableHomes,
    Emptied,
    Epoch,
    Event,
    Explained,
    Failed,
    FindHome,
    Gone,
    Heartbeat,
    HomeFound,
    Installed,
    Instruction,
    Join,
    Kill,
    LaneDown,
    LaneUp,
    Left,
    Member,
    MoveClients,
    Peer,
    Persist,
    Rebuilt,
    Received,
    Request,
    Resume,
    Send,
    Serve,
    SessionClosed,
    SessionOpened,
    Spawn,
    SpawnFailed,
    Status,
    StatusRequest,
    Stop,
    Tick,
)
from cluster.messages import Report as Measured
from cluster.observed import Ledger, Observed, Slice
from cluster.questions import Questions
from cluster.recovery import Phase as RecoveryPhase
from cluster.recovery import Recovery
from cluster.sessions import Sessions
from cluster.transition import Phase, Transition
from cluster.view import KEY_GROUPS, View, first_view, view_of
from cluster.wish import PLURALS, Slots, WishError, next_view, slots_of, wanted_slots

STRATEGIES = ("waves", "all_at_once", "stop_swap")
HISTORY = 100
STALL_MS = 250
"""Ticks come every 50 ms; when they have not for so long, nobody is held for lost on that account."""
SMALLEST_WAVE = 8
RECOVERIES_SHOWN = 20
BUSIEST_MOST = 50


class State(Enum):
    """What the cluster is doing."""

    GATHERING = "gathering"
    INSTALLING = "installing"
    RESUMING = "resuming"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(slots=True)
class Report:
    """What is known of a role's process. join: None until it has; heard_ms: its last message, or when it was asked for.

    told, installed: of a newcomer: it was sent the view; it has its lanes.
    asked:          of a connection point: the number of the MoveClients that holds, 0 for none.
    moved, emptied: its clients have moved, and wait for what is underway; the last has gone.
    left: it owes nothing any more, and can be stopped.
    dead: it is known to be no more, before anybody could do something about it.
    measured, measured_before: its last report, and the one before.
    """

    incarnation: int
    heard_ms: int
    join: Join | None = None
    connected: bool = True
    told: bool = False
    installed: bool = False
    asked: int = 0
    moved: bool = False
    emptied: bool = False
    left: bool = False
    dead: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    measured: Measured | None = None
    measured_before: Measured | None = None

    @property
    def moving(self) -> bool:
        """Whether it was asked to let its clients move."""
        return self.asked > 0

    def member(self, peer: Peer) -> Member:
        """Return the role as a view names it."""
        assert self.join is not None, f"{peer} has not joined"
        return Member(peer.layer, peer.slot, self.join.incarnation, self.join.host, self.join.port)


def expected_slots(config: Config) -> tuple[Peer, ...]:
    """Return the slots that the configuration asks for, by layer and number."""
    layers = config.layers
    return tuple(Peer(layer, slot) for plural, layer in PLURALS.items() for slot in range(getattr(layers, plural)))


class Coordinator:
    """The machine. memory, history: what an earlier life of it has left on disk. cold: no role runs on from then."""

    def __init__(
        self, config: Config, memory: Memory | None = None, history: Sequence[Operation] = (), *, cold: bool = False
    ) -> None:
        self._name = config.name
        self._lost_ms = config.timing.role_lost_ms
        self._settings = config.transitions
        self._writes = config.output.path is not None
        self._memory = memory or Memory()
        self._history = list(history)[-HISTORY:]
        self._view = None if self._memory.view is None else view_of(self._memory.view)
        self._expected = set(expected_slots(config))
        self._reports: dict[Peer, Report] = {}
        self._sessions = Sessions()
        self._questions = Questions()
        self._transition: Transition | None = None
        self._operation: Operation | None = None
        self._step_of: Operation | None = None  # for which the view change was begun
        self._wave = self._settings.wave_groups
        self._due = False  # the next step is to be taken on the next Tick
        self._start_deadline_ms: int | None = None  # of newcomers
        self._move_deadline_ms: int | None = None  # of clients that are to move
        self._now_ms = 0
        self._recovery: Recovery | None = None
        self._recoveries: list[dict[str, object]] = []  # those that are over, the newest last
        self._recovered = 0
        self._ledger = Ledger()
        self._doors: dict[Peer, str] = {}  # where clients know a connection point
        self._out: list[Instruction] = []
        self._cold = cold
        self._configured: dict[str, int] = {plural: getattr(config.layers, plural) for plural in PLURALS}
        self._resize = False  # the configuration asks for other sizes than when the cluster was last started
        self.process: Mapping[str, int] | None = None
        """What the shell tells of the process that runs this machine, for the status: its pid and incarnation."""
        self.metrics_address = ""
        """Where its shell serves the metrics, for the status."""
        self.autoscaler: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        """What answers operators' requests to the autoscaler, None without one. Raises KittiwakeError."""
        self.state = State.GATHERING
        if self._view is not None:
            self.state = State.RESUMING
            self._expected = {member.peer for member in self._view.members}
            for member in (*self._view.members, *self._memory.leaving):
                self._reports[member.peer] = Report(member.incarnation, 0, connected=False)
            self._operation = next((one for one in self._history if one.state == "running"), None)
            if self._operation is None:
                self._memory.wanted = slots_of(self._view)

    def start(self) -> list[Instruction]:
        """Return what is to be done first: have the processes started, unless they run on from an earlier life."""
        if self.state is State.GATHERING:
            self._memory.configured = self._configured
            self._spawn(sorted(self._expected))
        elif self._cold:
            self.state = State.SERVING
            self._end("aborted", "the cluster was stopped")
            self._want_what_is()
            self._resize = self._configured != self._memory.configured
            self._memory.configured = self._configured
            self._replace(list(self._reports), "the cluster was stopped")
        return self._taken()

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case Received(peer, StatusRequest()):
                self._out.append(Send(peer, Status(msgspec.json.encode(self.status()))))
            case Received(peer, Request("why", arguments)):
                self._why(peer, arguments)
            case Received(peer, Request() as request):
                self._out.append(Send(peer, self._request(request)))
            case Received(peer, Join() as join):
                self._join(peer, join)
            case Received(peer, message) if peer in self._reports:
                report = self._reports[peer]
                report.heard_ms = self._now_ms
                self._member(peer, report, message)
            case LaneUp(peer) | LaneDown(peer) if peer in self._reports:
                self._reports[peer].connected = isinstance(event, LaneUp)
                if isinstance(event, LaneDown):
                    self._out += self._questions.lost(peer)
                self._watch()
            case SpawnFailed(peer, incarnation, reason) if self._is(peer, incarnation):
                self._not_started(peer, reason)
            case Died(peer, incarnation, reason) if self._is(peer, incarnation):
                self._died(peer, reason)
            case Tick(now_ms):
                self._tick(now_ms)
            case _:
                pass
        return self._taken()

    def _is(self, peer: Peer, incarnation: int) -> bool:
        report = self._reports.get(peer)
        return report is not None and report.incarnation == incarnation

    def _taken(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    def stop(self) -> list[Instruction]:
        """The operator ends the cluster."""
        self.state = State.STOPPING
        return [Send(peer, Drain()) for peer in sorted(self._reports) if peer.layer == CONNECTION_POINT]

    def processes(self) -> list[tuple[Peer, int]]:
        """Return every slice that was started and not stopped, with its incarnation; in the direction of the data."""
        order = {layer: place for place, layer in enumerate(DATA_LAYERS)}
        known = sorted(self._reports, key=lambda peer: (order[peer.layer], peer.slot))
        return [(peer, self._reports[peer].incarnation) for peer in known]

    # Members -----------------------------------------------------------------------------------------------------

    def _spawn(self, peers: Sequence[Peer]) -> None:
        """Have processes started; their incarnations are on disk before, so that none is ever given twice."""
        for peer in peers:
            self._memory.incarnation += 1
            self._reports[peer] = Report(self._memory.incarnation, self._now_ms)
        self._remember()
        self._out += [Spawn(peer, self._reports[peer].incarnation, self._doors.get(peer, "")) for peer in peers]

    def _let_go(self, member: Member) -> None:
        """This incarnation is no more: nobody keeps a lane to it."""
        for other, report in sorted(self._reports.items()):
            if other != member.peer and report.join is not None:
                self._out.append(Send(other, Gone(member)))
        self._out.append(Disconnect(member))

    def _dismiss(self, peer: Peer) -> None:
        """A process that is in no view is not needed any more."""
        report = self._reports.pop(peer)
        if peer.layer == CONNECTION_POINT:
            self._sessions.gone(peer.slot)
        if report.join is not None:
            self._let_go(report.member(peer))
        self._out.append(Stop(peer, report.incarnation))

    def _join(self, peer: Peer, join: Join) -> None:
        report = self._reports.get(peer)
        if report is None and self.state in (State.RESUMING, State.SERVING):
            # A newcomer that an earlier life has had started; others may know it. If it is not needed it is dismissed.
            report = self._reports[peer] = Report(join.incarnation, self._now_ms)
            if self.state is State.SERVING:
                # It has not heard how that ended for which it was started, and may hold some of it.
                report.join = join
                self._dismiss(peer)
                return
        if report is None or report.incarnation != join.incarnation:
            self._out.append(Stop(peer, join.incarnation))
            return
        if self._recovery is not None and peer in self._recovery.retries:
            self._out.append(Stop(peer, join.incarnation))  # given up already: it was told to end
            return
        report.join = join
        report.heard_ms = self._now_ms
        report.connected = True
        if join.client_address:
            self._doors[peer] = join.client_address
        if self.state is State.GATHERING:
            if all(one.join is not None for one in self._reports.values()):
                self._view = first_view(self._reports[known].member(known) for known in sorted(self._reports))
                self._memory.view = self._view.install()
                self._memory.epoch = self._view.epoch
                self._memory.wanted = slots_of(self._view)
                self._remember()
                self.state = State.INSTALLING
                self._out += [Send(known, self._memory.view) for known in sorted(self._reports)]
        elif self.state is State.RESUMING:
            report.installed = self._in_view(peer)
            self._resume()
        elif not report.installed and any(member.peer == peer for member in self._memory.leaving):
            # A leaver that was not waited for.
            report.join = None
            self._out.append(Stop(peer, join.incarnation))
        elif self._recovery is not None:
            self._recover()
        else:
            self._go_on()

    def _resume(self) -> None:
        """All roles have come again: bring to its end what the earlier life had begun.

        Leavers are waited for as well, as they may owe something; but not for longer than until they count as lost.
        """
        assert self._view is not None, "resumed without a view"
        for report in self._reports.values():
            if report.join is None and not report.dead and self._now_ms - report.heard_ms <= self._lost_ms:
                return
        self.state = State.SERVING
        undecided = self._memory.epoch > self._view.epoch
        buried = self._buried()
        dead = [
            peer
            for peer, report in sorted(self._reports.items())
            if self._in_view(peer)
            and (peer in self._expected if report.join is None else report.incarnation <= buried.get(peer, 0))
        ]
        if dead or buried:
            self._step_of = self._operation
            if undecided:
                self._end("aborted", "the coordinator was started anew")
                self._want_what_is()
            self._replace(dead, "it did not come again")
            return
        # Newcomers may know of a view that was not decided; one that was has none that are not in it.
        peers = tuple(
            peer
            for peer, report in sorted(self._reports.items())
            if report.join is not None and (undecided or self._in_view(peer))
        )
        self._let_in(self._view.connection_points)
        after = self._view
        if undecided:
            reason = "the coordinator was started anew"
            self._step_of = self._operation
            self._end("aborted", reason)
            self._want_what_is()
            after = View(Epoch(self._memory.epoch), self._view.members, self._view.owners)
        self._transition = Transition(self._view, after, peers, False, self._now_ms)
        if undecided:
            self._out += self._transition.abort(reason, ())
        else:
            self._out += self._transition.commit()

    def _member(self, peer: Peer, report: Report, message: Any) -> None:
        match message:
            case Heartbeat(counters):
                report.counters = counters
            case Measured():
                report.measured_before, report.measured = report.measured, message
            case Installed():
                report.installed = True
                if self.state is State.INSTALLING:
                    self._serve_if_installed()
                elif self._recovery is not None:
                    self._recovery_answered(peer, message)
                else:
                    self._go_on()
            case Rebuilt():
                self._recovery_answered(peer, message)
            case Explained():
                self._out += self._questions.answered(peer, message)
            case SessionOpened() | SessionClosed():
                self._out += self._sessions.handle(message)
            case DurableHomes() | DurableEnded():
                self._sessions.durables(peer.slot, message)
            case FindHome():
                self._out.append(Send(peer, self._home(peer.slot, message)))
            case Emptied(number):
                report.emptied = report.emptied or report.asked == number
                self._go_on()
            case ClientsMoved(number):
                report.moved = report.moved or report.asked == number
                self._go_on()
            case Left():
                report.left = True
                self._see_off()
                self._go_on()
            case Failed():
                reason = None if self._transition is None else self._transition.failed(peer, message)
                if reason is not None:
                    self._give_up(reason)
            case _:
                self._answered(peer, message)

    def _home(self, slot: int, question: FindHome) -> HomeFound:
        slots = () if self._view is None else self._view.connection_points
        home = self._sessions.home(slot, question, slots)
        report = self._reports.get(Peer(CONNECTION_POINT, home))
        away = report is None or report.join is None or self._lost(report)
        address = "" if away or report is None or report.join is None else report.join.client_address
        return HomeFound(question.client_id, question.connection, home, address)

    def _see_off(self) -> None:
        """End the processes that have left; during a view change somebody may still have something for them."""
        if self._transition is not None or self._recovery is not None:
            return
        gone = [member for member in self._memory.leaving if self._reports[member.peer].left]
        if gone:
            self._memory.leaving = [member for member in self._memory.leaving if member not in gone]
            self._remember()
        for member in gone:
            self._dismiss(member.peer)

    def _serve_if_installed(self) -> None:
        if all(one.installed for one in self._reports.values()):
            assert self._view is not None, "installing without a view"
            self.state = State.SERVING
            self._let_in(self._view.connection_points)

    def _let_in(self, connection_points: Sequence[int]) -> None:
        assert self._view is not None, "serving without a view"
        for slot in connection_points:
            self._out.append(Send(Peer(CONNECTION_POINT, slot), Serve(self._view.epoch)))

    def _lost(self, report: Report) -> bool:
        return report.join is not None and (not report.connected or self._now_ms - report.heard_ms > self._lost_ms)

    # Recovery ----------------------------------------------------------------------------------------------------

    def _not_started(self, peer: Peer, reason: str) -> None:
        if self._recovery is not None and peer in self._recovery.replaced:
            self._recovery.failed(peer, reason)
        elif self.state is State.SERVING:
            self._give_up(f"{peer} could not be started: {reason}")

    def _died(self, peer: Peer, reason: str) -> None:
        report = self._reports[peer]
        if self.state is State.RESUMING:
            report.dead = True
            self._resume()
        elif self.state is not State.SERVING:
            pass  # whoever starts the cluster, or stops it, sees that
        elif not self._in_view(peer):
            self._give_up(f"{peer} lost: {reason}")
        elif report.join is None:
            self._not_started(peer, reason)
        else:
            self._replace([peer], f"{peer} lost: {reason}")

    def _buried(self) -> dict[Peer, int]:
        """Return who has died by what is on disk, and the last incarnation that has."""
        return {Peer(layer, slot): incarnation for layer, slot, incarnation in self._memory.replaced}

    def _replace(self, dead: Sequence[Peer], reason: str) -> None:
        """These are no more: end what is left of them, and have others take their slots."""
        assert self._view is not None, "roles of no view"
        if self._recovery is None:
            self._recovery = Recovery(self._now_ms, self._buried(), self._writes)
        transition = self._transition
        if transition is not None and not transition.decided and transition.phase is not Phase.ABORTING:
            self._give_up(reason)
        if self._transition is not None:
            transition, self._transition = self._transition, None
            if transition.before is not transition.after:
                self._account(transition, transition.decided)
                self._enter_in_ledger(transition, committed=transition.decided)
        for peer in [peer for peer in sorted(self._reports) if not self._in_view(peer)]:
            self._dismiss(peer)
        self._recovery.died({peer: self._reports[peer].incarnation for peer in dead})
        # On disk before anybody is told: whoever is fenced by some must not be taken for alive after a crash of ours.
        self._memory.replaced = [(*peer, incarnation) for peer, incarnation in sorted(self._recovery.replaced.items())]
        self._remember()
        for peer in dead:
            self._bury(peer)
        self._memory.leaving = [member for member in self._memory.leaving if member.peer not in dead]
        again = [peer for peer in dead if self._view.member(peer) is not None]
        for peer in set(dead) - set(again):
            del self._reports[peer]
        self._spawn(again)
        self._recover()

    def _bury(self, peer: Peer) -> None:
        """Nobody hears anything of this incarnation any more."""
        report = self._reports[peer]
        self._out += self._questions.lost(peer)
        assert self._view is not None, "roles of no view"
        if report.join is not None:
            member = report.member(peer)
        else:
            member = next(one for one in (*self._view.members, *self._memory.leaving) if one.peer == peer)
        if peer.layer == CONNECTION_POINT:
            self._sessions.forget(peer.slot)
        self._let_go(member)
        if report.join is None:
            self._out.append(Stop(peer, report.incarnation))
        else:
            self._out.append(Kill(peer, report.incarnation, report.join.host, report.join.pid))
        report.join = None

    def _recover(self) -> None:
        """All that have died are back: have everybody serve the view with them."""
        recovery = self._recovery
        assert recovery is not None, "nothing to recover from"
        assert self._view is not None, "roles of no view"
        peers = [member.peer for member in self._view.members]
        if recovery.phase is not RecoveryPhase.STARTING or any(self._reports[peer].join is None for peer in peers):
            return
        members = tuple(self._reports[peer].member(peer) for peer in peers)
        view = self._view = View(Epoch(self._memory.epoch + 1), members, self._view.owners)
        self._memory.epoch = view.epoch
        self._memory.view = view.install()
        self._remember()
        recovery.now_ms = self._now_ms
        leavers = [member.peer for member in self._memory.leaving if self._reports[member.peer].join is not None]
        self._out += recovery.connect(view, [*peers, *leavers])

    def _recovery_answered(self, peer: Peer, message: Installed | Rebuilt) -> None:
        recovery = self._recovery
        if recovery is None:
            return
        recovery.now_ms = self._now_ms
        if not recovery.answered(peer, message):
            return
        if recovery.phase is RecoveryPhase.CONNECTING:
            self._out += recovery.rebuild()
            return
        assert recovery.view is not None, "recovered without a view"
        recovery.end()
        self._recovery = None
        self._recovered += 1
        self._ledger.recovery(recovery.phases)
        shown: dict[str, object] = {
            "replaced": [str(one) for one in sorted(recovery.replaced)],
            "phases_ms": recovery.phases,
        }
        self._recoveries = [*self._recoveries, shown][-RECOVERIES_SHOWN:]
        self._memory.replaced = []
        self._remember()
        doors = recovery.view.connection_points
        self._out += [Send(Peer(CONNECTION_POINT, slot), Resume(recovery.view.epoch)) for slot in doors]
        self._let_in([slot for slot in doors if not self._reports[Peer(CONNECTION_POINT, slot)].moving])
        self._see_off()
        if self._resize:
            self._resize = False
            self._scale(dict(self._configured))
        self._go_on()

    def _watch_recovery(self) -> None:
        recovery = self._recovery
        if recovery is None:
            return
        recovery.now_ms = self._now_ms
        limit_ms = self._settings.start_timeout_ms
        for peer in sorted(self._reports.keys() & (recovery.replaced.keys() - recovery.retries.keys())):
            report = self._reports[peer]
            if report.join is None and self._now_ms - report.heard_ms > limit_ms:
                self._out.append(Stop(peer, report.incarnation))
                recovery.failed(peer, f"not up in {limit_ms} ms")
        due = recovery.due()
        if due:
            self._spawn(due)

    # Wishes ------------------------------------------------------------------------------------------------------

    def _request(self, request: Request) -> Answer:
        try:
            arguments = msgspec.json.decode(request.arguments or b"{}", type=dict[str, Any])
            match request.command:
                case "scale":
                    document: Any = self._scale(arguments)
                case "plan":
                    document = self._plan(arguments)
                case "abort":
                    document = self._abort_wish()
                case "autoscaler":
                    if self.autoscaler is None:
                        raise WishError("this cluster has no autoscaler: its configuration names no policy")
                    document = self.autoscaler(arguments)
                case "busiest":
                    document = self._busiest(arguments)
                case "transitions":
                    document = {"operations": [msgspec.to_builtins(self._shown(one)) for one in self._history]}
                case _:
                    raise WishError(f"unknown command {request.command!r}")
        except (KittiwakeError, msgspec.DecodeError) as error:
            return Answer(b"", str(error))
        return Answer(msgspec.json.encode(document), "")

    def ask(self, request: Request) -> tuple[Answer, list[Instruction]]:
        """Answer somebody in this very process as an operator; what it takes is to be done as after `handle`."""
        return self._request(request), self._taken()

    def operation(self, number: int) -> Operation | None:
        """Return an operation of those that are remembered."""
        return next((one for one in reversed(self._history) if one.number == number), None)

    def _busiest(self, arguments: dict[str, Any]) -> dict[str, Any]:
        top = arguments.get("top", 20)
        if not isinstance(top, int) or not 1 <= top <= BUSIEST_MOST:
            raise WishError(f"top is {top!r}, allowed is 1 to {BUSIEST_MOST}")
        reported: dict[int, tuple[list[tuple[int, int]], float]] = {}
        hits_per_s = 0.0
        missing = []
        for peer, report in sorted(self._reports.items()):
            if peer.layer != MATCHER:
                continue
            hits = None if report.measured is None else rate((report.measured_before, report.measured), "hits")
            if report.measured is None or hits is None:
                missing.append(str(peer))
                continue
            hits_per_s += hits
            reported[peer.slot] = (report.measured.busiest, hits)
        return busiest_document(ranked(reported), hits_per_s, self._sessions.names(), top, missing)

    def _why(self, operator: Peer, arguments: bytes) -> None:
        try:
            asked = self._questions.ask(operator, arguments, self._sessions, self._unreachable, self._now_ms)
        except (WishError, msgspec.DecodeError) as error:
            asked = [Send(operator, Answer(b"", str(error)))]
        self._out += asked

    def _unreachable(self, peer: Peer) -> str | None:
        """Return why a connection point cannot be asked; None if it can."""
        report = self._reports.get(peer)
        if report is None:
            return "unknown"
        if report.join is None:
            return "starting"
        return "lost" if self._lost(report) else None

    def _shown(self, operation: Operation) -> Operation:
        if operation is self._operation and operation.state == "running":
            operation.duration_ms = self._now_ms - operation.started_ms
        return operation

    def _wish(self, arguments: dict[str, Any]) -> tuple[Slots, str]:
        if self.state is not State.SERVING or self._view is None:
            raise WishError(f"the cluster is {self.state.value}, not serving")
        if self._recovery is not None:
            dead = ", ".join(map(str, sorted(self._recovery.replaced)))
            raise WishError(f"lost: {dead}; the view cannot change until they are back")
        counts = {name: value for name, value in arguments.items() if name not in ("strategy", "replace")}
        strategy = arguments.get("strategy") or self._settings.strategy
        if strategy not in STRATEGIES:
            raise WishError(f"strategy {strategy!r}; known are {', '.join(STRATEGIES)}")
        replaced = arguments.get("replace") or []
        if not counts and not replaced:
            raise WishError("nothing is asked for; say for example matchers=3")
        wanted = wanted_slots(self._memory.wanted, counts, replaced, self._taken_slots())
        if strategy == "stop_swap" and wanted[ACCESS_POINT] != list(self._view.access_points):
            # Parked changes of one client could be let go by two access points, in any order.
            raise WishError("stop_swap cannot change access points; it is there to be compared with")
        for slot in sorted({*self._view.connection_points} - {*wanted[CONNECTION_POINT]}):
            held = self._sessions.homes(slot)
            if held:
                # They are in the file of the slot, and would be owed to nobody.
                raise WishError(
                    f"{Peer(CONNECTION_POINT, slot)} cannot go: {held} durable session{'s' * (held > 1)} live there"
                )
        return wanted, strategy

    def _taken_slots(self) -> set[Peer]:
        """Return the slots whose processes are about to go: a wish had better take others."""
        assert self._view is not None, "serving without a view"
        view = self._view if self._transition is None else self._transition.after
        return self._reports.keys() - {member.peer for member in view.members}

    def _scale(self, arguments: dict[str, Any]) -> dict[str, Any]:
        wanted, strategy = self._wish(arguments)
        assert self._view is not None, "serving without a view"
        lost = [str(peer) for peer in sorted(self._reports) if self._lost(self._reports[peer])]
        if lost:
            raise WishError(f"lost: {', '.join(lost)}; the view cannot change until they are back")
        self._memory.operation += 1
        former = self._operation
        if former is not None and former.state == "running":
            self._end("merged", f"into operation {self._memory.operation}")
        self._memory.wanted = wanted
        self._memory.strategy = strategy
        minimum = fewest_moves(self._view.owners, wanted[MATCHER])
        self._operation = Operation(self._memory.operation, wanted, strategy, minimum, self._now_ms)
        self._operation.former = slots_of(self._view)
        self._history = [*self._history, self._operation][-HISTORY:]
        self._wave = self._settings.wave_groups
        self._remember(self._operation)
        self._go_on()
        return {"operation": self._operation.number, "wanted": wanted}

    def _plan(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what a wish would do, without doing it."""
        wanted, strategy = self._wish(arguments)
        assert self._view is not None, "serving without a view"
        owners = reassign(self._view.owners, wanted[MATCHER])
        minimum = fewest_moves(self._view.owners, wanted[MATCHER])
        wave = self._wave_groups() if strategy == "waves" else KEY_GROUPS
        present = slots_of(self._view)
        moves: dict[str, int] = {}
        for before, after in zip(self._view.owners_list, u16(owners).tolist(), strict=True):
            if before != after:
                name = f"{before} -> {after}"
                moves[name] = moves.get(name, 0) + 1
        moved = sum(moves.values())
        return {
            "wanted": wanted,
            "start": {layer: sorted(set(wanted[layer]) - set(present[layer])) for layer in DATA_LAYERS},
            "stop": {layer: sorted(set(present[layer]) - set(wanted[layer])) for layer in DATA_LAYERS},
            "groups_moved": moved,
            "groups_minimum": minimum,
            "moves": moves,
            "bytes_moved_about": self._subscription_bytes() * moved // KEY_GROUPS,
            "strategy": strategy,
            "view_changes_about": max(-(-moved // wave), 1),
        }

    def _abort_wish(self) -> dict[str, Any]:
        if self._operation is None or self._operation.state != "running":
            raise WishError("nothing is under way")
        number = self._operation.number
        if self._transition is not None and self._transition.decided:
            # This step is decided and goes on to its end; it is the last one.
            self._end("aborted", "by the operator")
            self._want_what_is()
        else:
            self._give_up("by the operator")
        return {"operation": number, "state": "aborted"}

    def _end(self, state: str, reason: str | None = None) -> None:
        operation = self._operation
        if operation is None or operation.state != "running":
            return
        operation.state = state
        operation.reason = reason
        operation.duration_ms = self._now_ms - operation.started_ms
        self._ledger.operation(state)
        self._remember(operation)

    def _want_what_is(self) -> None:
        """There is nowhere to go: the cluster stays as it is, or as the step that is decided makes it."""
        assert self._view is not None, "serving without a view"
        view = self._view if self._transition is None or not self._transition.decided else self._transition.after
        self._memory.wanted = slots_of(view)
        self._start_deadline_ms = None
        self._remember()

    def _give_up(self, reason: str) -> None:
        """What is under way cannot be done; a view that was to come does not, and newcomers are not needed."""
        self._end("aborted", reason)
        transition = self._transition
        if transition is not None and not transition.decided and transition.phase is not Phase.ABORTING:
            gone = [peer for peer, report in self._reports.items() if self._lost(report)]
            self._out += transition.abort(reason, gone)
        self._want_what_is()
        if transition is None:
            self._go_on()
        elif transition.over:
            self._over(transition)

    # Steps -------------------------------------------------------------------------------------------------------

    def _subscription_bytes(self) -> int:
        assert self._view is not None, "serving without a view"
        return sum(
            self._reports[Peer(MATCHER, slot)].counters.get("subscription_bytes", 0) for slot in self._view.matchers
        )

    def _wave_groups(self) -> int:
        """Return how many key groups may move at once: as many as allowed, and as their bytes allow."""
        held = self._subscription_bytes()
        by_bytes = KEY_GROUPS if not held else self._settings.wave_bytes * KEY_GROUPS // held
        return max(min(self._wave, by_bytes), 1)

    def _go_on(self) -> None:
        """Take the next step towards what is wanted, if one can be taken now."""
        if self.state is not State.SERVING or self._view is None:
            return
        if self._transition is not None or self._recovery is not None:
            return
        wanted = self._memory.wanted
        slots = {Peer(layer, slot) for layer, some in wanted.items() for slot in some}
        present = {member.peer for member in self._view.members}
        self._undo(slots, present)
        if self._operation is None or self._operation.state != "running":
            return  # nobody wants anything: after an abort the groups stay where they are
        newcomers = sorted(slots - present)
        if not self._newcomers_ready(newcomers):
            return
        leavers = sorted(present - slots)
        if not newcomers and not leavers and reassign(self._view.owners, wanted[MATCHER]) == self._view.owners:
            self._end("done")
            return
        full = [peer.slot for peer in leavers if peer.layer == CONNECTION_POINT and not self._reports[peer].emptied]
        strategy = self._memory.strategy
        view = next_view(
            self._view,
            self._memory.epoch + 1,
            wanted,
            reassign(self._view.owners, wanted[MATCHER]),
            [self._reports[peer].member(peer) for peer in newcomers],
            full,
            self._wave_groups() if strategy == "waves" else KEY_GROUPS,
        )
        if view is None:
            self._move_clients(full)
            if not any(self._reports[Peer(CONNECTION_POINT, slot)].moved for slot in full):
                return
            # A change of nothing: at its end what was underway for those who have moved has come.
            for slot in full:
                self._reports[Peer(CONNECTION_POINT, slot)].moved = False
            view = View(Epoch(self._memory.epoch + 1), self._view.members, self._view.owners)
        self._start_deadline_ms = None
        self._memory.epoch = view.epoch
        self._remember()
        peers = tuple(sorted(present | {member.peer for member in view.members}))
        self._step_of = self._operation
        self._transition = Transition(self._view, view, peers, strategy == "stop_swap", self._now_ms)
        self._out += self._transition.start()

    def _undo(self, slots: set[Peer], present: set[Peer]) -> None:
        """Take back what an earlier wish had begun: newcomers that are not needed, clients that need not move."""
        leaving = {member.peer for member in self._memory.leaving}
        for peer in sorted(self._reports.keys() - slots - present - leaving):
            self._dismiss(peer)
        for peer in sorted(slots):
            report = self._reports.get(peer)
            if report is not None and report.moving:
                report.asked = 0
                report.moved = report.emptied = False
                self._let_in([peer.slot])

    def _newcomers_ready(self, newcomers: Sequence[Peer]) -> bool:
        """Have those started that are not; tell whether all are there, connected and warm."""
        leaving = {member.peer for member in self._memory.leaving}
        if not leaving.isdisjoint(newcomers):
            return False  # a slot whose former process has not left yet
        unknown = [peer for peer in newcomers if peer not in self._reports]
        if unknown:
            self._start_deadline_ms = self._now_ms + self._settings.start_timeout_ms
            self._spawn(unknown)
        for peer in newcomers:
            report = self._reports[peer]
            if report.join is not None and not report.told:
                report.told = True
                assert self._view is not None, "newcomers to no view"
                self._out.append(Send(peer, self._view.install()))
        return all(self._reports[peer].installed for peer in newcomers)

    def _move_clients(self, slots: Sequence[int]) -> None:
        """Ask the clients of these connection points to move to those that stay."""
        assert self._view is not None, "serving without a view"
        stay = [slot for slot in self._view.connection_points if slot not in slots]
        addresses = []
        for slot in stay:
            join = self._reports[Peer(CONNECTION_POINT, slot)].join
            addresses.append("" if join is None else join.client_address)
        to_ask = [slot for slot in slots if not self._reports[Peer(CONNECTION_POINT, slot)].moving]
        if not to_ask:
            return
        self._memory.asked += 1
        self._remember()
        self._move_deadline_ms = self._now_ms + self._settings.move_clients_ms
        for slot in to_ask:
            self._reports[Peer(CONNECTION_POINT, slot)].asked = self._memory.asked
            self._out.append(Send(Peer(CONNECTION_POINT, slot), MoveClients(addresses, self._memory.asked)))

    def _answered(self, peer: Peer, message: Any) -> None:
        transition = self._transition
        if transition is None:
            return
        transition.now_ms = self._now_ms
        match transition.answered(peer, message):
            case Phase.PREPARING:
                self._out += transition.copy()
            case Phase.COPYING:
                self._decide(transition)
            case Phase.SWITCHING:
                self._out += transition.retire()
            case Phase.RETIRING | Phase.ABORTING:
                self._over(transition)
            case _:
                pass

    def _decide(self, transition: Transition) -> None:
        """Nothing stands against it: from here the new view is the one in force."""
        members = {member.peer for member in transition.after.members}
        leavers = [member for member in transition.before.members if member.peer not in members]
        self._memory.view = transition.after.install()
        self._memory.leaving = [*self._memory.leaving, *leavers]
        self._step_of = self._operation  # a later wish has been merged with it
        if not self._account(transition, True):
            self._remember()
        self._out += transition.commit()
        former, self._view = self._view, transition.after
        assert former is not None, "a second view before a first"
        self._let_in([slot for slot in self._view.connection_points if slot not in former.connection_points])

    def _over(self, transition: Transition) -> None:
        """A step has come to its end."""
        self._transition = None
        committed = transition.phase is Phase.COMMITTED
        if transition.before is not transition.after:
            self._account(transition, committed)
            self._enter_in_ledger(transition, committed=committed)
        self._forget_stopped()
        self._see_off()
        switch_ms = transition.phases.get(Phase.SWITCHING.value, 0)
        if switch_ms > self._settings.slow_switch_ms:
            self._wave = max(self._wave // 2, SMALLEST_WAVE)
        else:
            self._wave = min(2 * self._wave, self._settings.wave_groups)
        if not committed:
            self._go_on()  # to where a wish wants that came meanwhile
            return
        # Not at once: between two waves the queues run empty.
        self._due = True
        if self._memory.strategy != "waves" or not transition.groups:
            self._due = False
            self._go_on()

    def _forget_stopped(self) -> None:
        """Of the leavers of an earlier life those that have not come again are no more."""
        for member in list(self._memory.leaving):
            report = self._reports.get(member.peer)
            if report is not None and report.join is None:
                self._memory.leaving.remove(member)
                self._dismiss(member.peer)

    def _account(self, transition: Transition, committed: bool) -> bool:
        """Have a step in the history, with the decision, and once more at its end; tell whether it is anybody's."""
        operation = self._step_of
        if operation is None:
            return False
        step = Step(
            transition.epoch,
            transition.groups,
            transition.entries,
            transition.bytes,
            dict(transition.phases),
            "committed" if committed else "aborted",
        )
        if operation.steps and operation.steps[-1].epoch == step.epoch:
            operation.steps[-1] = step
        else:
            operation.steps.append(step)
            if committed:
                operation.groups_moved += transition.groups
                operation.entries += transition.entries
                operation.bytes += transition.bytes
        self._remember(operation)
        return True

    def _enter_in_ledger(self, transition: Transition, *, committed: bool) -> None:
        moved = (transition.groups, transition.entries, transition.bytes)
        self._ledger.transition(transition.phases, *moved, committed=committed, over=transition.over)

    # Time --------------------------------------------------------------------------------------------------------

    def _tick(self, now_ms: int) -> None:
        if not self._now_ms:
            # The first one: what was heard before it was not heard at 0.
            for report in self._reports.values():
                report.heard_ms = now_ms
            if self._recovery is not None:
                self._recovery.begin(now_ms)
        stalled_ms = now_ms - self._now_ms
        if stalled_ms > STALL_MS:
            # It was this process that did not run: what others have said meanwhile is still to be read.
            for report in self._reports.values():
                report.heard_ms = min(report.heard_ms + stalled_ms, now_ms)
        self._now_ms = now_ms
        if self._transition is not None:
            self._transition.now_ms = now_ms
        if self.state is State.RESUMING:
            self._resume()
        self._watch()
        self._watch_recovery()
        self._out += self._questions.tick(now_ms)
        if self._start_deadline_ms is not None and now_ms > self._start_deadline_ms:
            self._start_overdue()
        if self._move_deadline_ms is not None and now_ms > self._move_deadline_ms:
            self._move_overdue()
        if self._due:
            self._due = False
            self._go_on()

    def _start_overdue(self) -> None:
        self._start_deadline_ms = None
        late = [peer for peer, report in self._reports.items() if not report.installed]
        if late:
            self._give_up(f"{', '.join(map(str, sorted(late)))}: not up in {self._settings.start_timeout_ms} ms")

    def _move_overdue(self) -> None:
        """Clients that have not moved are disconnected."""
        self._move_deadline_ms = None
        for peer, report in sorted(self._reports.items()):
            if report.moving and not report.emptied:
                self._out.append(Send(peer, Drain()))

    def _watch(self) -> None:
        """See to it that nothing waits for a role that is lost."""
        if self.state is not State.SERVING:
            return
        silent = [
            peer
            for peer, report in sorted(self._reports.items())
            if report.join is not None and self._now_ms - report.heard_ms > self._lost_ms and self._in_view(peer)
        ]
        if silent:
            names = ", ".join(map(str, silent))
            self._replace(silent, f"{names} lost: nothing heard for {self._lost_ms} ms")
        transition = self._transition
        if self._recovery is not None:
            return
        if transition is None:
            newcomers = [
                peer for peer, report in self._reports.items() if self._lost(report) and not self._in_view(peer)
            ]
            if newcomers:
                self._give_up(f"{', '.join(map(str, sorted(newcomers)))} lost")
            return
        lost = [peer for peer in transition.peers if peer in self._reports and self._lost(self._reports[peer])]
        if transition.phase is Phase.ABORTING:
            for peer in lost:
                transition.without(peer)
            if transition.over:
                self._over(transition)
        elif not transition.decided:
            since = transition.now_ms - transition.started_ms
            if lost:
                self._give_up(f"{', '.join(map(str, lost))} lost")
            elif since > self._settings.prepare_timeout_ms:
                waits = ", ".join(map(str, sorted(transition.waiting)))
                self._give_up(f"no answer within {self._settings.prepare_timeout_ms} ms from {waits}")

    def _in_view(self, peer: Peer) -> bool:
        assert self._view is not None, "serving without a view"
        return self._view.member(peer) is not None or any(member.peer == peer for member in self._memory.leaving)

    def _remember(self, operation: Operation | None = None) -> None:
        entry = None if operation is None else (operation.number, encode_operation(operation))
        self._out.append(Persist(encode_memory(self._memory), entry))

    # Status ------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Return the cluster as a JSON document: its state, and a row for each slot."""
        members = []
        lost = 0
        pairs = {
            peer: (report.measured_before, report.measured)
            for peer, report in sorted(self._reports.items())
            if report.measured is not None
        }
        measures = of_slices(pairs)
        for peer, _ in self.processes():
            report = self._reports[peer]
            row: dict[str, object] = {"layer": peer.layer, "slot": peer.slot}
            if report.join is None:
                row["state"] = "starting"
            else:
                gone = self._lost(report)
                lost += gone
                row["state"] = "lost" if gone else self._role_state(peer, report)
                row |= {
                    "pid": report.join.pid,
                    "incarnation": report.join.incarnation,
                    "address": f"{report.join.host}:{report.join.port}",
                    "client_address": report.join.client_address or None,
                    "metrics_address": report.join.metrics_address or None,
                    "heard_ms_ago": self._now_ms - report.heard_ms,
                    "counters": report.counters,
                }
                if peer in measures:
                    row["measures"] = measures[peer]
            members.append(row)
        document: dict[str, object] = {
            "name": self._name,
            "state": self.state.value if self._recovery is None else "recovering",
            "epoch": None if self._view is None else self._view.epoch,
            "lost": lost,
            "sessions": len(self._sessions),
            "durable_sessions": self._sessions.durable,
            "recovery": None if self._recovery is None else self._recovery_shown(self._recovery),
            "recovered": self._recovered,
            "recoveries": self._recoveries,
            "operation": None if self._operation is None else msgspec.to_builtins(self._shown(self._operation)),
            "metrics_address": self.metrics_address or None,
            "measures": of_cluster(pairs),
            "members": members,
        }
        if self.process is not None:
            document["coordinator"] = dict(self.process)
        return document

    # Measures ----------------------------------------------------------------------------------------------------

    def observed(self) -> Observed:
        """Return what is known of the cluster at this moment."""
        done = next((one for one in reversed(self._history) if one.state == "done"), None)
        view = self._view
        slices = {}
        if view is not None:
            for peer in sorted(member.peer for member in view.members):
                report = self._reports.get(peer)
                slices[peer] = Slice(0, None) if report is None else Slice(report.incarnation, report.measured)
        return Observed(
            self._now_ms,
            0 if view is None else view.epoch,
            {layer: 0 if view is None else len(view.peers(layer)) for layer in DATA_LAYERS},
            self._changes,
            slices,
            None if done is None else (done.number, done.duration_ms),
        )

    @property
    def _changes(self) -> bool:
        """Whether the view is changing, or is to."""
        running = self._operation is not None and self._operation.state == "running"
        return running or self._transition is not None or self._recovery is not None

    def gauges(self) -> dict[str, int]:
        """Return the coordinator's own counters, and what it holds, by the keys of `metrics.py`.

        Those of each layer end with its name.
        """
        observed = self.observed()
        lost = [peer for peer, report in self._reports.items() if self._lost(report) or report.dead]
        dead = set() if self._recovery is None else set(self._recovery.replaced)
        found = dict(self._ledger.counters) | {
            "view_epoch": observed.epoch,
            "transition_running": int(self._changes),
            "coordinator_sessions": len(self._sessions),
        }
        for layer in DATA_LAYERS:
            found[f"slices_{layer}"] = observed.sizes[layer]
            found[f"slices_wanted_{layer}"] = len(self._memory.wanted.get(layer, ()))
            found[f"slices_lost_{layer}"] = len([peer for peer in {*lost, *dead} if peer.layer == layer])
        return found

    def histograms(self) -> dict[str, list[int]]:
        """Return its own histograms, as in a report."""
        return {key: histogram.state for key, histogram in self._ledger.histograms.items()}

    def endpoints(self) -> dict[Peer, str]:
        """Return where the metrics of the slices are to be had, by slice; of those alone that serve any."""
        joins = {peer: report.join for peer, report in sorted(self._reports.items()) if not report.dead}
        return {peer: join.metrics_address for peer, join in joins.items() if join is not None and join.metrics_address}

    def _recovery_shown(self, recovery: Recovery) -> dict[str, object]:
        return {
            "phase": recovery.phase.value,
            "replaced": [str(peer) for peer in sorted(recovery.replaced)],
            "waiting": [str(peer) for peer in sorted(recovery.waiting)],
            "troubles": {str(peer): reason for peer, reason in sorted(recovery.troubles.items())},
            "for_ms": self._now_ms - recovery.started_ms,
        }

    def _role_state(self, peer: Peer, report: Report) -> str:
        if not report.installed:
            return "joining"
        if self._view is not None and self._view.member(peer) is None and self.state is State.SERVING:
            leaving = any(member.peer == peer for member in self._memory.leaving)
            return "leaving" if leaving else "joining"
        return "moving clients" if report.moving else "serving"
