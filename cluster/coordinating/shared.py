"""What the parts of the coordinator share: the view and its change, who plays it, what is on disk, what is to do."""

from __future__ import annotations

from cluster.config import Config
from cluster.coordinating.records import Report, State
from cluster.memory import Memory, Operation, encode_memory, encode_operation
from cluster.messages import Instruction, Peer, Persist
from cluster.observed import Ledger
from cluster.recovery import Recovery
from cluster.sessions import Sessions
from cluster.transition import Transition
from cluster.view import View, view_of


class Shared:
    """The common ground.

    state:      GATHERING until a view is there; RESUMING, if an earlier life has left one.
    memory:     what is on disk as soon as the Persist of the last `remember` is followed.
    view:       the one in force, None before the first; always that of the memory.
    transition, recovery: what is under way, None if nothing is. While there is a recovery there is no transition.
    reports:    of each slice that was started and not stopped.
    sessions:   who is logged in where.
    ledger:     what has happened to the view, for the metrics.
    now_ms:     the last Tick's, 0 before the first.
    lost_ms:    a slice that is not heard for so long is lost. settings: of view changes.
    out:        what is to be done, in order; taken after each event.
    """

    def __init__(self, config: Config, memory: Memory) -> None:
        self.settings = config.transitions
        self.lost_ms = config.timing.role_lost_ms
        self.memory = memory
        self.view = None if memory.view is None else view_of(memory.view)
        self.state = State.GATHERING if self.view is None else State.RESUMING
        self.reports: dict[Peer, Report] = {}
        self.sessions = Sessions()
        self.transition: Transition | None = None
        self.recovery: Recovery | None = None
        self.ledger = Ledger()
        self.now_ms = 0
        self.out: list[Instruction] = []

    @property
    def in_force(self) -> View:
        """The view in force, for those who act on one; there has to be one."""
        assert self.view is not None, "no view is agreed upon yet"
        return self.view

    def in_view(self, peer: Peer) -> bool:
        """Tell whether a slice is in the view in force, or was in one and has not left yet."""
        return self.in_force.member(peer) is not None or peer in self.leaving

    @property
    def leaving(self) -> set[Peer]:
        """The slices of former views that have not left yet."""
        return {member.peer for member in self.memory.leaving}

    def lost(self, report: Report) -> bool:
        """Tell whether a slice that has joined is out of reach at the moment."""
        return report.join is not None and (not report.connected or self.silent(report))

    def silent(self, report: Report) -> bool:
        """Tell whether nothing was heard of a slice for so long that it counts as dead."""
        return self.now_ms - report.heard_ms > self.lost_ms

    def remember(self, operation: Operation | None = None) -> None:
        """Have the memory on disk, and an operation in the history, before anything that is asked for after this."""
        entry = None if operation is None else (operation.number, encode_operation(operation))
        last = self.out[-1] if self.out else None
        if isinstance(last, Persist) and (last.entry is None or entry is None or last.entry[0] == entry[0]):
            # Nobody has been told anything in between: the disk is waited for once.
            entry = entry or last.entry
            self.out.pop()
        self.out.append(Persist(encode_memory(self.memory), entry))
