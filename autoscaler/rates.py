"""What keeps a layer's size from following each wish at once: stabilisation, delay, and rate, in this order.

Stabilisation and rates are those of the Kubernetes HorizontalPodAutoscaler, the delays those of Ray Serve:

    stabilisation  growing takes the lowest wish of its window, shrinking the highest of its own
    delay          the decision must point in one direction for so long without a break; any other begins anew
    rate           no more than so much change within each period, counted from the sizes that were there

All state begins with the present size: after a restart a shrink waits a whole window and a whole delay.
"""

from __future__ import annotations

import math
from collections import deque

from autoscaler.policy import LayerPolicy, Scaling


class Stabilization:
    """The wishes of the last while, in whole replicas."""

    def __init__(self, policy: LayerPolicy) -> None:
        self._up_s = policy.behavior.scale_up.stabilization_window_s
        self._down_s = policy.behavior.scale_down.stabilization_window_s
        self._wishes: deque[tuple[float, int]] = deque()

    def apply(self, now_s: float, size: int, wish: int) -> int:
        """Remember the wish; return what is left of it."""
        if not self._wishes:
            self._wishes.append((now_s, size))
        self._wishes.append((now_s, wish))
        while self._wishes[0][0] <= now_s - max(self._up_s, self._down_s) and len(self._wishes) > 1:
            self._wishes.popleft()
        lowest = min([wish, *(old for at, old in self._wishes if at > now_s - self._up_s)])
        highest = max([wish, *(old for at, old in self._wishes if at > now_s - self._down_s)])
        return min(max(size, lowest), highest)


class Delay:
    """How long the decision has pointed in one direction."""

    def __init__(self, policy: LayerPolicy) -> None:
        self._up_s = policy.upscale_delay_s
        self._down_s = policy.downscale_delay_s
        self._direction = 0
        self._since_s = 0.0

    def apply(self, now_s: float, size: int, wish: int) -> tuple[int, float]:
        """Return the wish, or the size while it has to wait; and the seconds that are left to wait."""
        direction = (wish > size) - (wish < size)
        if direction != self._direction:
            self._direction, self._since_s = direction, now_s
        if not direction:
            return size, 0.0
        left = (self._up_s if direction > 0 else self._down_s) - (now_s - self._since_s)
        return (size, left) if left > 1e-9 else (wish, 0.0)

    def reset(self) -> None:
        """The size has changed: what is decided next has to hold anew."""
        self._direction = 0


class Rates:
    """The changes of a layer's size, whoever asked for them."""

    def __init__(self, policy: LayerPolicy) -> None:
        self._behavior = policy.behavior
        periods = [
            rate.period_s for one in (self._behavior.scale_up, self._behavior.scale_down) for rate in one.policies
        ]
        self._keep_s = max(periods, default=0.0)
        self._changes: deque[tuple[float, int]] = deque()

    def changed(self, now_s: float, by: int) -> None:
        """The size has changed by so many."""
        self._changes.append((now_s, by))
        while self._changes and self._changes[0][0] <= now_s - self._keep_s:
            self._changes.popleft()

    def apply(self, now_s: float, size: int, wish: int) -> int:
        """Return the wish, or as much of it as is allowed now."""
        if wish > size:
            return max(size, min(wish, self._limit(now_s, size, self._behavior.scale_up, 1)))
        if wish < size:
            return min(size, max(wish, self._limit(now_s, size, self._behavior.scale_down, -1)))
        return wish

    def _limit(self, now_s: float, size: int, scaling: Scaling, sign: int) -> int:
        """Return how far it may go now."""
        if scaling.select_policy == "disabled":
            return size
        limits = []
        for rate in scaling.policies:
            start = size - sum(by for at, by in self._changes if at > now_s - rate.period_s)
            change = rate.value if rate.type == "replicas" else start * rate.value / 100
            limit = start + sign * change
            limits.append(math.ceil(limit - 1e-9) if sign > 0 else max(0, math.floor(limit + 1e-9)))
        if not limits:
            return size + sign * (1 << 20)
        farthest = scaling.select_policy == "max"
        return max(limits) if farthest == (sign > 0) else min(limits)
