"""What keeps a layer's size from following each wish at once: stabilisation, delay, and rate, in this order.

Stabilisation and rates are those of the Kubernetes HorizontalPodAutoscaler, the delays those of Ray Serve:

    stabilisation  growing takes the lowest wish of its window, shrinking the highest of its own, which becomes longer
                   for peaks that recur, and begins anew when the load rises
    delay          the decision must point in one direction for so long without a break; any other begins anew
    rate           no more than so much change within each period, counted from the sizes that were there

All state begins with the present size: after a restart a shrink waits a whole window and a whole delay.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from autoscaler.history import FRESH, SURGE
from autoscaler.policy import LayerPolicy, Scaling

HOLD: Final = 1.5
"""A size is held for so many intervals between two peaks: one may come later than the others."""


class Peaks:
    """How far apart the peaks are for which layers had to grow again; of the load, and so of all layers together.

    A shrink that had to be taken back within hold_s was a mistake: peaks recur at longer intervals than the policy's
    own window of shrinking. From then on that window is HOLD times the interval, at most hold_s, so that sizes are held
    from one peak to the next. It is the policy's own again when for hold_s the longer one has made no difference.
    """

    def __init__(self, hold_s: float) -> None:
        self.hold_s = hold_s
        self.interval_s = 0.0
        """Between two peaks; 0 while none are known to recur."""
        self._mattered_s = 0.0

    @property
    def window_s(self) -> float:
        """The window of shrinking that reaches from one peak to the next; 0 if none recur."""
        return min(HOLD * self.interval_s, self.hold_s)

    def taken_back(self, now_s: float, interval_s: float) -> None:
        """A size that had been given up by shrinking has come back, so long after it was last wished for."""
        if interval_s <= self.hold_s:
            self.interval_s = max(self.interval_s, interval_s)
            self._mattered_s = now_s

    def matters(self, now_s: float, layer_held: bool) -> None:
        """Tell that the longer window has held a layer or has not."""
        if layer_held:
            self._mattered_s = max(self._mattered_s, now_s)
        elif now_s - self._mattered_s > self.hold_s:
            self.interval_s = 0.0


class Rise:
    """When the load last rose above all that a shrink was judged on; of the load, and so of all layers together.

    A shrink is right if it is wished for all the time, under the loads of that time. At a rise to SURGE times the most
    of them its window begins anew: it has to be right under the new load for as long. Bursts that come again and again
    within the window are among those loads, and hold nothing.

    window_s: how long a shrink is judged. look_back_s: how old a rate is at least that the newest are compared with.
    """

    def __init__(self, window_s: float, look_back_s: float) -> None:
        self.at_s = -math.inf
        """When the load was last seen to rise."""
        self._window_s, self._look_back_s = window_s, look_back_s
        self._newest: deque[float] = deque(maxlen=FRESH)
        self._young: deque[tuple[float, float]] = deque()
        self._most: deque[tuple[float, float]] = deque()
        """Of the older rates those that no later one is above: the first is the most of the window."""

    def add(self, now_s: float, rate: float | None) -> None:
        """Take in the publication rate of one interval, None if it is missing."""
        if rate is None:
            return
        self._newest.append(rate)
        late = min(self._newest)  # one interval alone may have made up for the one before
        self._young.append((now_s, late))
        while self._young[0][0] <= now_s - self._look_back_s:
            one = self._young.popleft()
            while self._most and self._most[-1][1] <= one[1]:
                self._most.pop()
            self._most.append(one)
        while self._most and self._most[0][0] <= now_s - self._window_s:
            self._most.popleft()
        if self._most and late > SURGE * self._most[0][1]:
            self.at_s = now_s


class Stabilization:
    """The wishes of a layer over the last while, in whole replicas."""

    def __init__(self, policy: LayerPolicy, peaks: Peaks | None = None, rise: Rise | None = None) -> None:
        self.peaks = Peaks(0.0) if peaks is None else peaks
        self.rise = Rise(0.0, 0.0) if rise is None else rise
        self.up_s = policy.behavior.scale_up.stabilization_window_s
        self._down_s = policy.behavior.scale_down.stabilization_window_s
        self._lows: deque[tuple[float, int]] = deque()
        self._highs: deque[tuple[float, int]] = deque()
        """Of all wishes those that no later one is below (above): enough for the extreme of any window until now."""
        self._needed_s: dict[int, float] = {}
        """Of each size that was given up by shrinking, when it was last wished for; not those that never were."""
        self._begun: tuple[float, int] | None = None
        """When it began, and with what size, which counts as a wish for the windows."""

    @property
    def down_s(self) -> float:
        """The window of shrinking, as it is now."""
        return max(self._down_s, self.peaks.window_s)

    def apply(self, now_s: float, size: int, wish: int) -> int:
        """Remember the wish; return what is left of it."""
        if self._begun is None:
            self._begun = (now_s, size)
        self._remember(now_s, wish)
        lowest = min([wish, *(old for at, old in (self._begun, *self._lows) if at > now_s - self.up_s)])
        wish = max(wish, size) if self.risen_s(now_s) is not None else wish
        highest = self._highest(now_s, wish, self.down_s)
        own = self._highest(now_s, wish, self._down_s)
        self.peaks.matters(now_s, min(size, highest) > min(size, own))
        return min(max(size, lowest), highest)

    def risen_s(self, now_s: float) -> float | None:
        """Return how long ago the load rose if shrinking has to wait for that reason, None if it has not."""
        ago = now_s - self.rise.at_s
        return ago if ago < self._down_s or not ago else None

    def changed(self, now_s: float, size: int, by: int) -> None:
        """The size has become `size`, by so many more, whoever asked for it."""
        for level in range(size + 1, size - by + 1):  # given up
            wished = [at for at, wish in self._highs if wish >= level]
            if wished:
                self._needed_s[level] = max(wished)
        for level in range(size - by + 1, size + 1):  # taken, perhaps back
            if level in self._needed_s:
                self.peaks.taken_back(now_s, now_s - self._needed_s.pop(level))

    def _remember(self, now_s: float, wish: int) -> None:
        while self._lows and self._lows[-1][1] >= wish:
            self._lows.pop()
        while self._highs and self._highs[-1][1] <= wish:
            self._highs.pop()
        self._lows.append((now_s, wish))
        self._highs.append((now_s, wish))
        while self._lows[0][0] <= now_s - self.up_s and len(self._lows) > 1:
            self._lows.popleft()
        while self._highs[0][0] <= now_s - max(self._down_s, self.peaks.hold_s) and len(self._highs) > 1:
            self._highs.popleft()

    def _highest(self, now_s: float, wish: int, window_s: float) -> int:
        assert self._begun is not None, "asked for while applying"
        return max([wish, *(old for at, old in (self._begun, *self._highs) if at > now_s - window_s)])


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
