"""From what arrived when to figures: delays, gaps, throughput, and where the phases of a view change were.

Times are seconds of one clock; a window is (begin, end), its end not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Window = tuple[float, float]

BIN_S = 0.1
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def quantiles_ms(seconds: Floats) -> dict[str, float | None]:
    """Return the quantiles of these times in milliseconds; None when there are none."""
    if not len(seconds):
        return dict.fromkeys(QUANTILES)
    values = np.quantile(seconds, list(QUANTILES.values())) * 1e3
    return dict(zip(QUANTILES, (round(float(value), 3) for value in values), strict=True))


def within(times: Floats, window: Window) -> NDArray[np.bool_]:
    """Tell which times are in the window."""
    chosen: NDArray[np.bool_] = (times >= window[0]) & (times < window[1])
    return chosen


def gaps(due: Floats, arrival: Floats) -> tuple[Floats, Floats]:
    """Return when each time without a delivery, while one was due, began and ended.

    due, arrival: of the same notifications, all of which arrived; in any order.
    Just before arrival k (from 0, sorted) k have arrived. If more than k were due at the arrival before it, the gap
    began there; if not, when the next one fell due, which is entry k of the sorted due times. Either is the later.
    """
    ends = np.sort(arrival)
    begins = np.sort(due)
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    return np.minimum(begins, ends), ends


def longest_gap_ms(due: Floats, arrival: Floats, window: Window) -> float | None:
    """Return the longest gap, in milliseconds, that overlaps the window; None when nothing arrived."""
    begins, ends = gaps(due, arrival)
    chosen = (ends >= window[0]) & (begins < window[1])
    return round(float((ends - begins)[chosen].max()) * 1e3, 3) if chosen.any() else None


def bins(times: Floats, window: Window) -> tuple[Floats, Floats]:
    """Return the begin of each whole bin of the window, and how many a second were in it."""
    count = int((window[1] - window[0]) / BIN_S + 1e-9)
    edges: Floats = np.array(window[0] + BIN_S * np.arange(count + 1), np.float64)
    if not count:
        return edges[:0], edges[:0]
    found = np.histogram(times, edges)[0].astype(np.float64)
    # A histogram counts its very last edge in.
    found[-1] -= int((times == edges[-1]).sum())
    return edges[:-1], found / BIN_S


def lowest_bin(times: Floats, window: Window) -> float | None:
    """Return the lowest rate, a second, of all whole bins of the window."""
    _, rates = bins(times, window)
    return round(float(rates.min()), 1) if len(rates) else None


def bin_quantiles(due: Floats, delay: Floats, window: Window, quantile: float) -> tuple[Floats, Floats]:
    """Return the middle of each bin in which something was due, and that quantile of its delays."""
    chosen = within(due, window)
    place = ((due[chosen] - window[0]) / BIN_S).astype(np.int64)
    delays = delay[chosen]
    middles, values = [], []
    for one in np.unique(place):
        middles.append(window[0] + (one + 0.5) * BIN_S)
        values.append(float(np.quantile(delays[place == one], quantile)))
    return np.array(middles), np.array(values)


@dataclass
class Span:
    """One phase of one view change. step: which, from 0; -1 for the start of processes before the first."""

    step: int
    phase: str
    begin: float
    end: float


PHASES = ("prepare", "copy", "switch", "retire", "abort")


def spans(requested: float, done: float, steps: Sequence[tuple[float, dict[str, Any]]]) -> list[Span]:
    """Lay the phases out in time, in their order.

    steps: each view change with the time when it was first seen to be over. The coordinator tells how long each phase
    took but not when, so the last phase is taken to end when the change was seen, or when the next one began.
    """
    laid: list[Span] = []
    latest = done
    for place in reversed(range(len(steps))):
        seen, step = steps[place]
        end = min(seen, latest)
        for phase in reversed(PHASES):
            if phase in step["phases_ms"]:
                begin = end - step["phases_ms"][phase] / 1e3
                laid.append(Span(place, phase, begin, end))
                end = begin
        latest = end
    if latest > requested:
        laid.append(Span(-1, "start", requested, latest))
    return laid[::-1]


def phases_s(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds spent in each phase, over all view changes."""
    total: dict[str, int] = {}
    for step in steps:
        for phase, spent in step["phases_ms"].items():
            total[phase] = total.get(phase, 0) + spent
    return {phase: spent / 1e3 for phase, spent in total.items()}
