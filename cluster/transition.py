"""One view change, as the coordinator sees it: what is said to whom, and whose answer is waited for.

    PREPARING    Prepare to all, until all are Prepared
    COPYING      Begin to access points and exit points, until matchers and exit points are Ready
    SWITCHING    the decision on disk, then Commit to all, until all say Ended
    RETIRING     Retire to all, until all are Settled
    ABORTING     Abort to all, until all that are left are Settled

Until the decision is on disk anything that goes wrong leads to ABORTING; after it the change goes on until it is
through, across failures of the coordinator as well. That is two-phase commit; the log is the coordinator's memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from cluster.assignment import moved_groups
from cluster.messages import (
    ACCESS_POINT,
    EXIT_POINT,
    MATCHER,
    Abort,
    Begin,
    Commit,
    Ended,
    Failed,
    Instruction,
    Message,
    Peer,
    Prepare,
    Prepared,
    Ready,
    Retire,
    Send,
    Settled,
)
from cluster.view import View


class Phase(Enum):
    """Where a view change is; the values name the durations in the history."""

    PREPARING = "prepare"
    COPYING = "copy"
    SWITCHING = "switch"
    RETIRING = "retire"
    ABORTING = "abort"
    COMMITTED = "committed"
    ABORTED = "aborted"


ANSWERS: dict[Phase, type[Message]] = {
    Phase.PREPARING: Prepared,
    Phase.COPYING: Ready,
    Phase.SWITCHING: Ended,
    Phase.RETIRING: Settled,
    Phase.ABORTING: Settled,
}


@dataclass(slots=True)
class Transition:
    """The change from view `before` to view `after`.

    peers:  the roles of either view, and those that are to hear of its end besides.
    park:   the paper's aligned protocol.
    phases: milliseconds spent in each phase so far. reason: why it was aborted.
    """

    before: View
    after: View
    peers: tuple[Peer, ...]
    park: bool
    now_ms: int
    phase: Phase = Phase.PREPARING
    waiting: set[Peer] = field(default_factory=set)
    phases: dict[str, int] = field(default_factory=dict)
    entries: int = 0
    bytes: int = 0
    reason: str | None = None
    started_ms: int = field(init=False)
    _since_ms: int = 0

    def __post_init__(self) -> None:
        self.started_ms = self.now_ms

    @property
    def epoch(self) -> int:
        """The number of the view that is to come."""
        return self.after.epoch

    @property
    def groups(self) -> int:
        """How many key groups move."""
        return len(moved_groups(self.before.owners, self.after.owners))

    @property
    def decided(self) -> bool:
        """Whether it is past the point of return."""
        return self.phase in (Phase.SWITCHING, Phase.RETIRING, Phase.COMMITTED)

    @property
    def over(self) -> bool:
        """Whether nobody's answer is waited for any more."""
        return self.phase in (Phase.COMMITTED, Phase.ABORTED)

    def start(self) -> list[Instruction]:
        """Begin at the beginning."""
        install = self.after.install()
        return self._enter(Phase.PREPARING, self.peers, Prepare(install.epoch, install.members, install.owners))

    def copy(self) -> list[Instruction]:
        """Everyone is prepared."""
        workers = [peer for peer in self.peers if peer.layer in (MATCHER, EXIT_POINT)]
        begin = Begin(self.epoch, self.park)
        told = [peer for peer in self.peers if peer.layer in (ACCESS_POINT, EXIT_POINT)]
        return self._enter(Phase.COPYING, workers, begin, told)

    def commit(self) -> list[Instruction]:
        """The decision is on disk."""
        return self._enter(Phase.SWITCHING, self.peers, Commit(self.epoch))

    def retire(self) -> list[Instruction]:
        """Nothing of the former epoch is left."""
        return self._enter(Phase.RETIRING, self.peers, Retire(self.epoch))

    def abort(self, reason: str, gone: Iterable[Peer]) -> list[Instruction]:
        """Give it up, unless it is decided; roles that are gone are not waited for."""
        assert not self.decided, f"epoch {self.epoch} is decided and cannot be aborted"
        self.reason = reason
        lost = set(gone)
        left = [peer for peer in self.peers if peer not in lost]
        # Those that are only held for gone hear of it as well.
        out = self._enter(Phase.ABORTING, left, Abort(self.epoch), self.peers)
        self._finish_if_done()
        return out

    def without(self, peer: Peer) -> Phase | None:
        """A role has no part in it any more: it has left, or is gone while the change is being aborted. Return the
        phase that has ended with that, None if others are waited for, or nobody was."""
        self.peers = tuple(one for one in self.peers if one != peer)
        return self._heard(peer) if peer in self.waiting else None

    def answered(self, peer: Peer, message: Message) -> Phase | None:
        """Take an answer; return the phase that has ended with it, None while others are waited for."""
        if getattr(message, "epoch", None) != self.epoch or not isinstance(message, ANSWERS[self.phase]):
            return None
        if isinstance(message, Ready) and peer in self.waiting:
            self.entries += message.entries
            self.bytes += message.bytes
        return self._heard(peer)

    def _heard(self, peer: Peer) -> Phase | None:
        self.waiting.discard(peer)
        if self.waiting:
            return None
        ended = self.phase
        self._finish_if_done()
        return ended

    def failed(self, peer: Peer, message: Failed) -> str | None:
        """Return why this cannot go on, None if the message is of another epoch or it is too late."""
        if message.epoch != self.epoch or self.decided or self.phase is Phase.ABORTING:
            return None
        return f"{peer}: {message.reason}"

    def _finish_if_done(self) -> None:
        if self.waiting or self.phase not in (Phase.RETIRING, Phase.ABORTING):
            return
        self._clock()
        self.phase = Phase.COMMITTED if self.phase is Phase.RETIRING else Phase.ABORTED

    def _enter(
        self, phase: Phase, waiting: Iterable[Peer], message: Message, told: Iterable[Peer] | None = None
    ) -> list[Instruction]:
        self._clock()
        self.phase = phase
        self.waiting = set(waiting)
        return [Send(peer, message) for peer in (sorted(self.waiting) if told is None else told)]

    def _clock(self) -> None:
        if self._since_ms:
            name = self.phase.value
            self.phases[name] = self.phases.get(name, 0) + self.now_ms - self._since_ms
        self._since_ms = self.now_ms
