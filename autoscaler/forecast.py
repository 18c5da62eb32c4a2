"""The publication rate a little ahead, so that a layer has grown by the time that it is needed.

It can only raise a wish.

    linear          least squares over the look-back period; a trend that may be noise is taken as none
    holt_winters    level, trend and a season of BINS parts (a day: 5 minutes each), additive; before the first whole
                    season it answers as `linear` does, and says the greater of both afterwards: a peak that comes
                    earlier than yesterday's is seen too
    schedule        what the policy's crons ask for; nothing of the rate
    none            nothing at all

Source: Holt (1957), Winters, Management Science 6 (1960); the additive form with one step's smoothing at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from autoscaler.cron import Cron, parse_cron
from autoscaler.policy import ForecastPolicy, Scheduled
from cluster.errors import ConfigError

BINS: Final = 288
"""Parts of a season: 5 minutes of a day."""

LEVEL: Final = 0.3
TREND: Final = 0.01
SEASON: Final = 0.2
"""How much of a part's surprise goes to the level, of a change of level to the trend, of the rest to the season."""

SIGNIFICANT: Final = 4.5
"""A slope is a trend if without one it is as unlikely as so many standard deviations of a normal variable: one answer
in 150,000. With 3, one in 370, a policy that looks each two seconds saw a trend in noise every quarter of an hour."""

LEAST_POINTS: Final = 5
MAX_POINTS: Final = 4096
"""Points that a trend needs, and those that are kept at most."""

BOUND: Final = 2.0
"""No forecast is above this multiple of the greatest rate seen in the look-back period or in the season."""


class Linear:
    """The trend over a period; `add` times ascend."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._points: deque[tuple[float, float]] = deque(maxlen=MAX_POINTS)

    def add(self, at_s: float, rate: float) -> None:
        """Take in one rate."""
        self._points.append((at_s, rate))
        while self._points[0][0] < at_s - self.period_s:
            self._points.popleft()

    def ahead(self, now_s: float, horizon_s: float) -> float | None:
        """Return the greatest rate that the trend passes from now until the horizon; None for too few points."""
        points = [(at, rate) for at, rate in self._points if at >= now_s - self.period_s]
        count = len(points)
        if count < LEAST_POINTS:
            return None
        middle = sum(at for at, _ in points) / count
        mean = sum(rate for _, rate in points) / count
        spread = sum((at - middle) ** 2 for at, _ in points)
        if spread <= 0:
            return mean
        slope = sum((at - middle) * (rate - mean) for at, rate in points) / spread
        misses = sum((rate - mean - slope * (at - middle)) ** 2 for at, rate in points)
        error = math.sqrt(misses / (count - 2) / spread)
        if _normal(slope, error, count - 2) <= SIGNIFICANT:
            return mean
        ends = [mean + slope * (at - middle) for at in (now_s, now_s + horizon_s)]
        greatest = max(rate for _, rate in points)
        return min(max(0.0, *ends), BOUND * greatest)


def _normal(value: float, error: float, freedom: int) -> float:
    """Return the value as standard deviations of a normal variable that is as unlikely, its own error being an estimate
    with so many degrees of freedom: with three, one time in 17 noise is 3 errors from 0, not one in 370.

    Source: Wallace, Annals of Mathematical Statistics 30 (1959); off by less than 1 % here.
    """
    if error <= 0:
        return math.inf if value else 0.0
    shrink = (8 * freedom + 1) / (8 * freedom + 3)
    return shrink * math.sqrt(freedom * math.log1p((value / error) ** 2 / freedom))


class HoltWinters:
    """Additive triple smoothing over parts of a season; rates are averaged over a part before they count."""

    def __init__(self, season_s: float, bins: int = BINS) -> None:
        self.step_s = season_s / bins
        self.bins = bins
        self._bin: int | None = None
        self._forget()

    def _forget(self) -> None:
        """Start anew. _first: means of the parts of the first season, until it is whole; then _season has them."""
        self._first: list[float | None] = []
        self._season: list[float] = []
        self._level = 0.0
        self._trend = 0.0
        self._sum = 0.0
        self._count = 0

    @property
    def ready(self) -> bool:
        """A whole season was seen."""
        return bool(self._season)

    def add(self, at_s: float, rate: float) -> None:
        """Take in one rate; times ascend. A part without any is passed over, two seasons without any start anew."""
        position = int(at_s // self.step_s)
        if self._bin is None:
            self._bin = position
        if position - self._bin > 2 * self.bins:
            self._forget()
            self._bin = position
        while self._bin < position:
            self._close(self._bin, self._sum / self._count if self._count else None)
            self._bin += 1
            self._sum, self._count = 0.0, 0
        self._sum += rate
        self._count += 1

    def _close(self, position: int, mean: float | None) -> None:
        if not self._season:
            self._first.append(mean)
            if len(self._first) == self.bins:
                self._begin(position)
            return
        place = position % self.bins
        before = self._level
        expected = self._level + self._trend
        if mean is None:
            self._level = expected
            return
        self._level = expected + LEVEL * (mean - self._season[place] - expected)
        self._trend += TREND * (self._level - before - self._trend)
        self._season[place] += SEASON * (mean - self._level - self._season[place])

    def _begin(self, position: int) -> None:
        known = [mean for mean in self._first if mean is not None]
        if len(known) < self.bins // 2:
            del self._first[0]  # more holes than parts: wait until half of a season is known
            return
        level = sum(known) / len(known)
        self._season = [0.0] * self.bins
        for back, mean in enumerate(reversed(self._first)):
            self._season[(position - back) % self.bins] = 0.0 if mean is None else mean - level
        self._level, self._trend, self._first = level, 0.0, []

    def ahead(self, now_s: float, horizon_s: float) -> float | None:
        """Return the greatest rate expected from now until the horizon, at most a season ahead; None before `ready`."""
        if not self._season or self._bin is None:
            return None
        last = self._bin - 1
        end = min(horizon_s, self.step_s * self.bins)
        edges = [now_s, now_s + end]
        first = math.ceil(now_s / self.step_s - 0.5)
        edges += [(k + 0.5) * self.step_s for k in range(first, int((now_s + end) / self.step_s - 0.5) + 1)]
        greatest = max(self._season) + self._level
        return min(max(0.0, *(self._at(edge, last) for edge in edges)), BOUND * max(greatest, 0.0))

    def _at(self, at_s: float, last: int) -> float:
        """Return the expected rate at a time, on the line between the middles of two parts."""
        place = at_s / self.step_s - 0.5
        left = math.floor(place)
        share = place - left

        def part(position: int) -> float:
            steps = max(0, position - last)
            return self._level + self._trend * steps + self._season[position % self.bins]

        return (1 - share) * part(left) + share * part(left + 1)


class PolicyForecast:
    """What a policy's `forecast` section asks for; the `Forecast` of `decision.py`.

    Raises: ConfigError for a cron or a timezone that is none.
    """

    def __init__(self, policy: ForecastPolicy, timezone: str = "UTC", look_back_s: float = 30.0) -> None:
        self._linear = Linear(look_back_s) if policy.method in ("linear", "holt_winters") else None
        self._season = HoltWinters(policy.season_s) if policy.method == "holt_winters" else None
        entries = () if policy.method == "none" else policy.schedule
        self._schedule: Sequence[tuple[Cron, Scheduled]] = [(parse_cron(entry.cron), entry) for entry in entries]
        self._zone = zone(timezone)
        self._last_s = -math.inf

    def observe(self, now_s: float, rate: float | None) -> None:
        """Take in the rate of one interval; None is passed over, and so is a time before the last."""
        if rate is None or now_s < self._last_s:
            return
        self._last_s = now_s
        for part in (self._linear, self._season):
            if part is not None:
                part.add(now_s, rate)

    def rate_ahead(self, now_s: float, horizon_s: float) -> float | None:
        """Return the greatest rate expected from now until the horizon; None if it cannot say."""
        found = [part.ahead(now_s, horizon_s) for part in (self._linear, self._season) if part is not None]
        known = [rate for rate in found if rate is not None]
        return max(known) if known else None

    def floors(self, now_s: float, horizon_s: float) -> dict[str, int]:
        """Return per layer the greatest min_replicas whose time has begun, or will until the horizon, and not ended."""
        floors: dict[str, int] = {}
        for cron, entry in self._schedule:
            if cron.last(now_s + horizon_s, now_s - entry.for_s, self._zone) is not None:
                floors[entry.layer] = max(floors.get(entry.layer, 0), entry.min_replicas)
        return floors


def zone(name: str) -> ZoneInfo:
    """Return a timezone by its name. Raises: ConfigError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"timezone {name!r} is not known; expected is a name such as Europe/Madrid or UTC") from error
