"""Time passes, lanes go down, processes die: nothing waits for a slice that is lost."""

from __future__ import annotations

from cluster.coordinating.arriving import Arriving
from cluster.coordinating.leavers import Leavers
from cluster.coordinating.newcomers import Newcomers
from cluster.coordinating.records import State
from cluster.coordinating.recovering import Recovering
from cluster.coordinating.shared import Shared
from cluster.coordinating.steps import Steps
from cluster.messages import Peer
from cluster.questions import Questions

STALL_MS = 250
"""Ticks come every 50 ms; when they have not for so long, nobody is held for lost on that account."""


class Watching:
    """Sees who is lost, and tells those who may wait for it."""

    def __init__(
        self,
        shared: Shared,
        questions: Questions,
        newcomers: Newcomers,
        leavers: Leavers,
        steps: Steps,
        recovering: Recovering,
        arriving: Arriving,
    ) -> None:
        self._shared = shared
        self._questions = questions
        self._newcomers = newcomers
        self._leavers = leavers
        self._steps = steps
        self._recovering = recovering
        self._arriving = arriving

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        shared = self._shared
        if not shared.now_ms:
            # The first one: what was heard before it was not heard at 0.
            for report in shared.reports.values():
                report.heard_ms = now_ms
            if shared.recovery is not None:
                shared.recovery.begin(now_ms)
        stalled_ms = now_ms - shared.now_ms
        if stalled_ms > STALL_MS:
            # It was this process that did not run: what others have said meanwhile is still to be read.
            for report in shared.reports.values():
                report.heard_ms = min(report.heard_ms + stalled_ms, now_ms)
        shared.now_ms = now_ms
        if shared.transition is not None:
            shared.transition.now_ms = now_ms
        if shared.state is State.RESUMING:
            self._arriving.resume()
        self._watch()
        self._recovering.watch()
        shared.out += self._questions.tick(now_ms)
        late = self._newcomers.overdue()
        if late:
            names = ", ".join(map(str, late))
            self._steps.give_up(f"{names}: not up in {shared.settings.start_timeout_ms} ms")
        self._leavers.disconnect_late()
        self._steps.take_due()

    def lane(self, peer: Peer, *, up: bool) -> None:
        """A slice's lane has come up, or gone down."""
        self._shared.reports[peer].connected = up
        if not up:
            self._shared.out += self._questions.lost(peer)
        self._watch()

    def not_started(self, peer: Peer, reason: str) -> None:
        """A process could not be started, or has died before it joined."""
        shared = self._shared
        if shared.recovery is not None and peer in shared.recovery.replaced:
            shared.recovery.failed(peer, reason)
        elif shared.state is State.SERVING:
            self._steps.give_up(f"{peer} could not be started: {reason}")

    def died(self, peer: Peer, reason: str) -> None:
        """A process is no more, as those who run it know for certain."""
        shared = self._shared
        report = shared.reports[peer]
        if shared.state is State.RESUMING:
            report.dead = True
            self._arriving.resume()
        elif shared.state is not State.SERVING:
            pass  # whoever starts the cluster, or stops it, sees that
        elif not shared.in_view(peer):
            self._steps.give_up(f"{peer} lost: {reason}")
        elif report.join is None:
            self.not_started(peer, reason)
        else:
            self._recovering.replace([peer], f"{peer} lost: {reason}")

    def _watch(self) -> None:
        """See to it that nothing waits for a role that is lost."""
        shared = self._shared
        if shared.state is not State.SERVING:
            return
        silent = [
            peer
            for peer, report in sorted(shared.reports.items())
            if report.join is not None and shared.silent(report) and shared.in_view(peer)
        ]
        if silent:
            names = ", ".join(map(str, silent))
            self._recovering.replace(silent, f"{names} lost: nothing heard for {shared.lost_ms} ms")
        if shared.recovery is None:
            self._steps.watch()
