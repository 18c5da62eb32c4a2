"""Counts of values by size, in buckets that never change: cheap to add to, and differences of two are histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

VECTOR = 32
"""From so many values on numpy is faster than a loop."""


class Histogram:
    """How many values lay in (bounds[i - 1], bounds[i]], and as the last count above all bounds; and their sum."""

    __slots__ = ("_array", "bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        assert list(self.bounds) == sorted(set(self.bounds)), "bounds ascend"
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self._array = np.array(self.bounds, np.int64)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def add_all(self, values: Sequence[int], counts: Sequence[int]) -> None:
        """Count each value as often as its count says."""
        if len(values) < VECTOR:
            for value, count in zip(values, counts, strict=True):
                self.add(value, count)
            return
        some = np.array(values, np.int64)
        weights = np.array(counts, np.int64)
        places = np.searchsorted(self._array, some)
        for place, count in enumerate(np.bincount(places, weights).tolist()):
            self.counts[place] += int(count)
        self.sum += float(some @ weights)

    @property
    def state(self) -> list[int]:
        """The counts, and behind them the sum, rounded: what a report holds of it."""
        return [*self.counts, round(self.sum)]


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Return the value that this share of the values does not pass, None if there are none.

    Within a bucket values are taken as spread evenly; for values above the last bound it is that bound.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, seen, lower = share * total, 0, 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return lower + (upper - lower) * max(0.0, wanted - seen) / count
        seen += count
        lower = upper
    return float(bounds[-1])
