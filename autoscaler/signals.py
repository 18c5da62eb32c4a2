"""What the autoscaler sees of the cluster, once each metrics interval.

The roles report to the coordinator in band, not by way of Prometheus, and the shell makes one `Signals` of the reports
of an interval. Nothing here is smoothed or summed over more than that interval: aggregation is the policy's business.
A value that did not arrive is None, never 0: the autoscaler must tell "idle" from "not heard of", as it never scales
in on the latter.

Histograms are tuples of counts of this interval alone, one per bucket: `counts[i]` values lay in
(bounds[i - 1], bounds[i]] (the first from 0 on), and a last count is of those above the last bound. So histograms of
several intervals or slices add by element, and the counts' sum is how many values there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cluster.messages import ACCESS_POINT, CONNECTION_POINT, EXIT_POINT, MATCHER

LAYERS: Final = (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT)
"""The layers that can be scaled, in the order of a publication's way."""

DELAY_BOUNDS_MS: Final = (
    *(0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0),
    *(1000.0, 1500.0, 2000.0, 3000.0, 5000.0, 7500.0, 10000.0, 20000.0, 30000.0, 60000.0),
)
"""Upper bounds of the buckets of the delay and of the subscribe acknowledgement, in ms; both histograms use them."""

BUCKETS: Final = len(DELAY_BOUNDS_MS) + 1

Histogram = tuple[int, ...]
"""BUCKETS counts, see above."""


class Spread(msgspec.Struct, frozen=True):
    """Of values in one interval: how many there were, and if any their least, greatest and mean.

    For matching, a value is the time that one publication took; of a batch that was matched in one call, the call's
    time divided by its publications, for each of them.
    """

    count: int
    min: float
    max: float
    mean: float


class SliceSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One slice in one interval.

    layer, slot:          who; layer is one of LAYERS.
    useful_share:         time spent on work (not waiting for input, credit or a lock) / wall time, 0 to 1.
    backlog_messages, backlog_bytes: what waits to be processed in its incoming lanes at the interval's end:
                          publications (or their results), and bytes.
    match_ms:             matchers only: time per publication.
    publications_per_s:   publications that it has processed.
    notifications_per_s:  of an exit point, released to connection points; of a connection point, sent to clients.
    subscriptions:        of a matcher, those that it holds.
    connections:          of a connection point, clients connected.
    rss_bytes:            resident memory of its process.
    """

    layer: str
    slot: int
    useful_share: float | None = None
    backlog_messages: int | None = None
    backlog_bytes: int | None = None
    match_ms: Spread | None = None
    publications_per_s: float | None = None
    notifications_per_s: float | None = None
    subscriptions: int | None = None
    connections: int | None = None
    rss_bytes: int | None = None


class NodeSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One node in one interval.

    host:   its address.
    cores:  that it has for slices.
    busy:   for how many of them it was busy, whoever kept it so; None for a node without slices, of which nothing is
            known.
    slices: of that, the processes of slices.
    """

    host: str
    cores: float
    busy: float | None = None
    slices: float | None = None


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster in one interval.

    interval_s:           how long the interval was.
    epoch:                the view's number at its end.
    sizes:                slices of each layer in that view, for all LAYERS.
    transition:           an operation (scale, replace, recovery) was running at any time of the interval.
    placeable:            how many more slices could be placed now, by what Ray has free; None if not known, and where
                          nothing is reserved for a role (then nothing limits it).
    cores:                that the cluster's nodes have together; None if not known.
    nodes:                ascending by host; none if of any with slices on it it is not known how busy it was.
    publications_per_s:   accepted from publishers. notifications_per_s: handed to clients.
    delay:                histogram in ms, publication accepted by a connection point -> its notification handed to one.
    subscribe_ack:        histogram in ms, subscribe received -> acknowledged.
    placement_s:          how long the last operation that ended in this interval took from its wish, start of
                          processes included; None if none ended.
    slices:               one for each slice of the view, ascending by layer (as in LAYERS) and slot; a slice that did
                          not report is there with all its values None.
    """

    interval_s: float
    epoch: int
    sizes: dict[str, int]
    transition: bool = False
    placeable: int | None = None
    cores: float | None = None
    nodes: tuple[NodeSignals, ...] = ()
    publications_per_s: float | None = None
    notifications_per_s: float | None = None
    delay: Histogram | None = None
    subscribe_ack: Histogram | None = None
    placement_s: float | None = None
    slices: tuple[SliceSignals, ...] = ()

    def of(self, layer: str) -> tuple[SliceSignals, ...]:
        """Return the slices of a layer, ascending by slot."""
        return tuple(one for one in self.slices if one.layer == layer)

    @property
    def subscriptions(self) -> int | None:
        """All subscriptions that the matchers hold, None if one of the matchers did not say."""
        counts = [one.subscriptions for one in self.of(MATCHER)]
        known = [count for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None


def added(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Return the sum of those that are there, None if none is."""
    known = [one for one in histograms if one is not None]
    return tuple(map(sum, zip(*known, strict=True))) if known else None


def share_above(counts: Sequence[int], bound_ms: float) -> float | None:
    """Return the share (0 to 1) of values above a bound, None if there are no values.

    Exact where the bound is one of DELAY_BOUNDS_MS; within a bucket values are taken as spread evenly, and those above
    the last bound as above any bound.
    """
    total = sum(counts)
    if not total:
        return None
    below, lower = 0.0, 0.0
    for upper, count in zip(DELAY_BOUNDS_MS, counts, strict=False):
        if upper <= bound_ms:
            below += count
            lower = upper
            continue
        below += count * max(0.0, bound_ms - lower) / (upper - lower)
        break
    return max(0.0, 1.0 - below / total)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the value (ms) that this share of the values does not pass, None if there are none.

    Within a bucket values are taken as spread evenly; for values above the last bound it is that bound.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, seen, lower = share * total, 0, 0.0
    for upper, count in zip(DELAY_BOUNDS_MS, counts, strict=False):
        if count and seen + count >= wanted:
            return lower + (upper - lower) * max(0.0, wanted - seen) / count
        seen += count
        lower = upper
    return DELAY_BOUNDS_MS[-1]
