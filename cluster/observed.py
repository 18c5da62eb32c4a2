"""What the coordinator knows of the cluster at one moment: its own counts, and the last report of every slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.histogram import Histogram
from cluster.messages import COORDINATOR, Peer, Report
from cluster.metrics import METRICS, Kind


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of the view. incarnation: who plays it; report: its last one, None before the first; host: where it is,
    empty if not known.
    """

    incarnation: int
    report: Report | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """The cluster at `now_ms`, on the coordinator's monotonic clock.

    epoch, sizes: of the view in force; 0 and nothing before the first. changing: an operation, a view change or a
                  recovery is under way.
    slices:       of the view.
    last_done:    number and duration in ms, from the wish on, of the last operation that was carried out; None if none.
    """

    now_ms: int
    epoch: int
    sizes: Mapping[str, int]
    changing: bool
    slices: Mapping[Peer, Slice]
    last_done: tuple[int, int] | None = None


def _histograms() -> dict[str, Histogram]:
    own = [metric for metric in METRICS if metric.kind is Kind.HISTOGRAM and COORDINATOR in metric.layers]
    return {key: Histogram(metric.buckets) for metric in own for key in metric.values.values()}


@dataclass(slots=True)
class Ledger:
    """What has happened to the view since the coordinator's process began, by the keys of `metrics.py`."""

    counters: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Histogram] = field(default_factory=_histograms)

    def transition(
        self, phases: Mapping[str, int], groups: int, entries: int, size: int, *, committed: bool, over: bool
    ) -> None:
        """A view change has come to its end. over: it was not cut off by the death of a slice.

        phases: milliseconds by phase. groups, entries, size: what moved.
        """
        self.counters["transitions_committed" if committed else "transitions_aborted"] += 1
        if committed:
            self.counters["moved_groups"] += groups
            self.counters["moved_subscriptions"] += entries
            self.counters["moved_bytes"] += size
        if over:
            self._durations("transition", phases, whole=committed)

    def recovery(self, phases: Mapping[str, int]) -> None:
        """A recovery is over."""
        self.counters["recoveries"] += 1
        self._durations("recovery", phases, whole=True)

    def operation(self, state: str) -> None:
        """A wish has come to its end: done, aborted or merged into a later one."""
        self.counters[f"operations_{state}"] += 1

    def _durations(self, what: str, phases: Mapping[str, int], *, whole: bool) -> None:
        for phase, spent_ms in phases.items():
            self.histograms[f"{what}_{phase}"].add(1000 * spent_ms)
        if whole:
            self.histograms[f"{what}_all"].add(1000 * sum(phases.values()))
