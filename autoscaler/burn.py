"""How fast a service level's budget burns, over two windows.

The burn rate of a window is the share of its values above the target, divided by the share that may be. 1 uses the
budget up exactly. An alarm needs the whole window *and* its last twelfth to burn at the factor (Google's Site
Reliability Workbook, chapter 5, alert 6): the window alone would go on ringing long after the trouble is over. Of the
last twelfth only what came since the sizes settled counts: what was late before says nothing against the new ones.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from autoscaler.policy import Burn, Objective
from autoscaler.signals import BUCKETS, Histogram, Signals, quantile, share_above

SHORT: Final = 12
FEW: Final = 20
"""With fewer values than this in a window no alarm: one late value of five is no 20 %."""


class Level(NamedTuple):
    """Where an objective stands. All but `missing` are over the windows as they are now.

    burning:  the window that alarms (`fast` or `slow`), None if none does.
    fast, slow: their burn rates, None without values. left: share of the slow window's budget left; below 0 overspent.
    value_ms: the objective's quantile over its own window_s. missed: it is above the target.
    missing:  the newest interval brought no histogram.
    """

    burning: str | None
    fast: float | None
    slow: float | None
    left: float | None
    value_ms: float | None
    missed: bool
    missing: bool


class Window:
    """The histograms of the last `window_s`, and their sum."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._rows: deque[tuple[float, Histogram]] = deque()
        self._sum = [0] * BUCKETS

    def add(self, now_s: float, counts: Histogram | None) -> None:
        """Take in one interval; None: it brought nothing."""
        while self._rows and self._rows[0][0] <= now_s - self._window_s + 1e-9:
            for place, count in enumerate(self._rows.popleft()[1]):
                self._sum[place] -= count
        if counts is not None:
            assert len(counts) == BUCKETS, f"a histogram of {len(counts)} buckets instead of {BUCKETS}"
            self._rows.append((now_s, counts))
            for place, count in enumerate(counts):
                self._sum[place] += count

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._sum = [0] * BUCKETS

    @property
    def counts(self) -> list[int]:
        """The sum; not to be changed."""
        return self._sum


class Watch:
    """One objective, watched."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        rates = objective.burn_rate
        self._own = Window(objective.window_s)
        self._windows = {
            word: (burn, Window(burn.window_s), Window(burn.window_s / SHORT))
            for word, burn in (("fast", rates.fast), ("slow", rates.slow))
        }
        self._missing = True

    def add(self, now_s: float, signals: Signals) -> None:
        """Take in one interval."""
        counts = signals.delay if self.objective.metric == "notification_delay_ms" else signals.subscribe_ack
        self._missing = counts is None
        self._own.add(now_s, counts)
        for _, long, short in self._windows.values():
            long.add(now_s, counts)
            short.add(now_s, counts)

    def unsettled(self) -> None:
        """The sizes change, or have just changed: what was late until now is no reason to change them again."""
        for _, _, short in self._windows.values():
            short.clear()

    def level(self) -> Level:
        """Return where it stands."""
        burning = next((word for word, parts in self._windows.items() if self._alarms(*parts)), None)
        fast, slow = (self._rate(parts[1]) for parts in self._windows.values())
        value = quantile(self._own.counts, self.objective.quantile)
        missed = value is not None and value > self.objective.target
        left = None if slow is None else 1 - slow
        return Level(burning, fast, slow, left, value, missed, self._missing)

    def _alarms(self, burn: Burn, long: Window, short: Window) -> bool:
        if sum(long.counts) < FEW:
            return False
        rates = (self._rate(long), self._rate(short))
        return all(rate is not None and rate >= burn.factor for rate in rates)

    def _rate(self, window: Window) -> float | None:
        share = share_above(window.counts, self.objective.target)
        return None if share is None else share / self.objective.allowed_share
