"""How many key groups move in one view change, and how soon after the one before: as that one allows.

A view change whose switch is slow, which is to say that its markers, which travel behind the data, took long to come
through, is followed by one of half its size, and not at once: the queues run empty first. After a quick one the next
follows at once, twice as large up to what is configured.
"""

from __future__ import annotations

from cluster.coordinating.shared import Shared
from cluster.messages import MATCHER, Peer
from cluster.transition import Phase, Transition
from cluster.view import KEY_GROUPS

SMALLEST_WAVE = 8


class Waves:
    """Looks at each view change that has come to its end. _groups: what the next one may move.

    pause: whether the next one is to wait a little.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._groups = shared.settings.wave_groups
        self.pause = False

    def begin(self) -> None:
        """A new wish: nothing is known of how its waves go."""
        self._groups = self._shared.settings.wave_groups

    def over(self, transition: Transition) -> None:
        """A view change has come to its end."""
        settings = self._shared.settings
        switch_ms = transition.phases.get(Phase.SWITCHING.value, 0)
        self.pause = switch_ms > settings.slow_switch_ms
        if self.pause:
            self._groups = max(self._groups // 2, SMALLEST_WAVE)
        else:
            self._groups = min(2 * self._groups, settings.wave_groups)

    def groups(self, strategy: str) -> int:
        """Return how many key groups may move at once."""
        if strategy != "waves":
            return KEY_GROUPS
        held = self.subscription_bytes()
        by_bytes = KEY_GROUPS if not held else self._shared.settings.wave_bytes * KEY_GROUPS // held
        return max(min(self._groups, by_bytes), 1)

    def subscription_bytes(self) -> int:
        """Return what the subscriptions take at all matchers, as they have said last."""
        reports = self._shared.reports
        slots = self._shared.in_force.matchers
        return sum(reports[Peer(MATCHER, slot)].counters.get("subscription_bytes", 0) for slot in slots)
