"""Bringing back slices that have died, as the coordinator sees it: what is said to whom, who has to answer.

    STARTING     another incarnation of each is started, until all have joined; the others go on as well as they can
    CONNECTING   the view with them on disk, then Recover to all, those that leave as well, until all are Installed
    REBUILDING   Rebuild to the connection points, and to exit points that write an output, until all say Rebuilt

Then Resume to the connection points, and it is over. A further death begins it anew, with a higher epoch; every step
may be repeated. A start that fails is tried again, ever more seldom; `troubles` says why it waits.

Who leaves is waited for: the view change that let it go was cut off, so Recover alone tells it to go, and no later
life of the coordinator says it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from cluster.messages import CONNECTION_POINT, EXIT_POINT, Installed, Instruction, Peer, Rebuild, Rebuilt, Recover, Send
from cluster.view import View

RETRY_MS, RETRY_MS_MOST = 500, 30_000
"""Until a start that failed is tried again: doubled each time."""


class Phase(Enum):
    """Where a recovery is; the values name the durations."""

    STARTING = "start"
    CONNECTING = "connect"
    REBUILDING = "rebuild"


@dataclass(slots=True)
class Recovery:
    """One recovery, from the first death to Resume.

    replaced: who has died since every role last served one view, with the last incarnation that has.
    troubles: why they are not back, by slot.
    writes:   exit points write an output. What is written already must not be written again, by whichever of them: so
              nobody looks before all of them have heard Recover and write no more.
    retries:  when to start a slot again, and how long it was waited for.
    """

    now_ms: int
    replaced: dict[Peer, int] = field(default_factory=dict)
    writes: bool = False
    phase: Phase = Phase.STARTING
    view: View | None = None
    waiting: set[Peer] = field(default_factory=set)
    troubles: dict[Peer, str] = field(default_factory=dict)
    retries: dict[Peer, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    started_ms: int = field(init=False)
    _waits: dict[Peer, int] = field(default_factory=dict)
    _since_ms: int = 0

    def __post_init__(self) -> None:
        self.started_ms = self._since_ms = self.now_ms

    def begin(self, now_ms: int) -> None:
        """It began at a time that was not known."""
        self.now_ms = self.started_ms = self._since_ms = now_ms

    def died(self, peers: Mapping[Peer, int]) -> None:
        """These are to come again; what was done so far is for nothing."""
        self.replaced.update(peers)
        self._enter(Phase.STARTING, ())
        self.view = None

    def failed(self, peer: Peer, reason: str) -> None:
        """A slot could not be started; said again before the next try it is no news."""
        if peer in self.retries:
            return
        wait = min(self._waits.get(peer, RETRY_MS // 2) * 2, RETRY_MS_MOST)
        self._waits[peer] = wait
        self.retries[peer] = self.now_ms + wait
        self.troubles[peer] = f"{reason}; next try in {wait} ms"

    def due(self) -> list[Peer]:
        """Return the slots that are to be started again now."""
        due = sorted(peer for peer, at in self.retries.items() if at <= self.now_ms)
        for peer in due:
            del self.retries[peer]
        return due

    def connect(self, view: View, told: Iterable[Peer]) -> list[Instruction]:
        """All have joined, and the view is on disk."""
        self.view = view
        told = list(told)
        self.troubles.clear()
        self._enter(Phase.CONNECTING, told)
        message = Recover(view.epoch, list(view.members), view.owners, self.names())
        return [Send(peer, message) for peer in sorted(told)]

    def answered(self, peer: Peer, message: Installed | Rebuilt) -> bool:
        """Take an answer; tell whether it was the last one of the phase."""
        expected = {Phase.CONNECTING: Installed, Phase.REBUILDING: Rebuilt}.get(self.phase)
        if self.view is None or expected is None or not isinstance(message, expected):
            return False
        if message.epoch != self.view.epoch or peer not in self.waiting:
            return False
        self.waiting.discard(peer)
        return not self.waiting

    def rebuild(self) -> list[Instruction]:
        """All serve the view."""
        assert self.view is not None, "nothing to rebuild for"
        writers = self.view.peers(EXIT_POINT) if self.writes else ()
        asked = (*self.view.peers(CONNECTION_POINT), *writers)
        self._enter(Phase.REBUILDING, asked)
        return [Send(peer, Rebuild(self.view.epoch, self.names())) for peer in asked]

    def end(self) -> None:
        """It is over: the durations stand."""
        self._enter(Phase.STARTING, ())

    def names(self) -> list[tuple[str, int]]:
        """Return who has died, as messages name them."""
        return [(peer.layer, peer.slot) for peer in sorted(self.replaced)]

    def _enter(self, phase: Phase, waiting: Iterable[Peer]) -> None:
        name = self.phase.value
        self.phases[name] = self.phases.get(name, 0) + self.now_ms - self._since_ms
        self._since_ms = self.now_ms
        self.phase = phase
        self.waiting = set(waiting)
