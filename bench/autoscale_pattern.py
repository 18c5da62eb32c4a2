"""How the load of the autoscaler's benchmark rises and falls: publications a second over time, and when each is due."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = Sequence[tuple[float, float]]
"""(seconds from the beginning, publications a second), ascending; lines between, steps where times are equal."""

CUPUS = (95.0, 292.0, 420.0, 1000.0, 420.0, 292.0, 95.0)
"""The rates of CUPUS's experiment (cupus-mcs-2015 section 6.1, experiment 2), up and down again."""
NIGHT = 0.1
"""The lowest rate as a share of the highest, of a day and of `tenfold`."""
DAY_PARTS = 96


def cupus(seconds: float, factor: float) -> Points:
    """Each of CUPUS's rates, times `factor`, for an equal part of the time."""
    each = seconds / len(CUPUS)
    return [
        point
        for place, rate in enumerate(CUPUS)
        for point in ((place * each, rate * factor), ((place + 1) * each, rate * factor))
    ]


def tenfold(seconds: float, peak: float) -> Points:
    """A third of the time a tenth of the peak, a third the peak, a third a tenth of it again."""
    third, low = seconds / 3, peak * NIGHT
    return [(0, low), (third, low), (third, peak), (2 * third, peak), (2 * third, low), (seconds, low)]


def day(seconds: float, peak: float) -> Points:
    """A day in so many seconds: quiet at night, a sharp peak at 8 and a broad one at 19 o'clock, 10 times the night."""

    def share(hour: float) -> float:
        morning, evening = math.exp(-(((hour - 8) / 1.5) ** 2)), math.exp(-(((hour - 19) / 2.5) ** 2))
        return NIGHT + (1 - NIGHT) * max(morning, 0.9 * evening)

    return [(seconds * part / DAY_PARTS, peak * share(24 * part / DAY_PARTS)) for part in range(DAY_PARTS + 1)]


def due_times(points: Points) -> NDArray[np.float64]:
    """Return when each publication is due, in seconds: the n-th when the integral of the rates passes n."""
    times, rates = (np.array(column, np.float64) for column in zip(*points, strict=True))
    steps = np.diff(times)
    amounts = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2 * steps)])
    fine = np.linspace(times[0], times[-1], max(2, int((times[-1] - times[0]) * 100) + 1))
    # Within a piece the amount is a parabola; at a hundredth of a second straight lines are near enough.
    place = np.clip(np.searchsorted(times, fine, side="right") - 1, 0, len(steps) - 1)
    into = fine - times[place]
    slope = np.divide(rates[place + 1] - rates[place], steps[place], where=steps[place] > 0, out=np.zeros(len(fine)))
    passed = amounts[place] + rates[place] * into + slope * into**2 / 2
    due: NDArray[np.float64] = np.interp(np.arange(int(amounts[-1])) + 0.5, passed, fine)
    return due
