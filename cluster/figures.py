"""From what a slice counts to the series that it exports: every metric of its layer, with labels and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from cluster.messages import COORDINATOR
from cluster.metrics import AUTOSCALER, METRICS, SLICE_LABELS, Kind, Metric

Values = Mapping[tuple[str, ...], float]
"""By the values of a metric's labels, in their order."""


class Series(NamedTuple):
    """One series of a metric, in the units that are exported.

    labels: their values, in order. value: a histogram's is its sum.
    buckets: of a histogram, (upper bound, how many values up to it), the last bound infinite.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


def series_of(
    layer: str, slot: int, gauges: Mapping[str, int], histograms: Mapping[str, Sequence[int]]
) -> Iterator[Series]:
    """Yield what the slice exports, in the order of the list; the coordinator's own are the cluster's.

    gauges, histograms: as in a report. What is not in them is left out, but for the cluster's own counters: these
    begin with what happens first.
    """
    for metric in METRICS:
        if layer not in metric.layers or metric in AUTOSCALER:
            continue
        for value, key in metric.values.items():
            own = (layer, str(slot)) if metric.labels[:2] == SLICE_LABELS else ()
            labels = (*own, value) if value else own
            if metric.kind is Kind.HISTOGRAM:
                if key in histograms:
                    yield _histogram(metric, labels, histograms[key])
            elif key in gauges:
                yield Series(metric, labels, _exported(metric, gauges[key]))
            elif layer == COORDINATOR and metric.kind is Kind.COUNTER:
                yield Series(metric, labels, 0)


def autoscaler_series(said: Mapping[str, Values]) -> Iterator[Series]:
    """Yield what the autoscaler says, by names of the list; what is not in it is an error."""
    for metric in AUTOSCALER:
        for labels, value in said.get(metric.name, {}).items():
            assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
            yield Series(metric, labels, value)
    unknown = said.keys() - {metric.name for metric in AUTOSCALER}
    assert not unknown, f"not in the list of metrics: {sorted(unknown)}"


def _exported(metric: Metric, value: int) -> float:
    """Seconds are kept as microseconds."""
    return value / 1e6 if metric.unit == "seconds" else value


def _histogram(metric: Metric, labels: tuple[str, ...], state: Sequence[int]) -> Series:
    *counts, total_us = state
    bounds = [bound / 1e6 for bound in metric.buckets]
    return Series(metric, labels, total_us / 1e6, tuple(zip([*bounds, float("inf")], accumulate(counts), strict=True)))
