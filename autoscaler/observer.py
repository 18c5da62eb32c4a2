"""Makes the autoscaler's `Signals` of what the coordinator knows, one interval after the other.

Reports hold totals; an interval's part is the difference of two of them. Each slice's own clock says how long that was,
so that a report which comes late does not look like a rate that rises. A slice that is played by another incarnation
begins anew, as one does that is heard of for the first time: of these the first report says nothing of any interval.

A report that was looked at already says nothing new. For a while what it said last stands; when nothing newer has come
for STALE intervals, the slice is one of which nothing is known. What it has counted meanwhile comes with its next
report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.signals import LAYERS, Histogram, NodeSignals, Signals, SliceSignals, Spread, added
from cluster.aggregates import TAKEN, backlogs, rate
from cluster.messages import CONNECTION_POINT, EXIT_POINT, MATCHER, Peer, Report
from cluster.observed import Observed

STALE = 3.0
"""Reports come once an interval, and one may be late."""

NOTIFICATIONS = {CONNECTION_POINT: "notifications", EXIT_POINT: "notifications"}


class _Load(NamedTuple):
    """Of an interval: for how many of its cores a node was busy, and for how many a slice's own process kept it so."""

    cores: int
    busy: float
    own: float


@dataclass(slots=True)
class _Known:
    """Of one slice: its last report that was looked at, when, what it said, of its node too, and the interval's
    histograms.
    """

    incarnation: int
    report: Report
    seen_ms: int
    said: SliceSignals
    delay: Histogram | None = None
    subscribe_ack: Histogram | None = None
    load: _Load | None = None
    fresh: bool = False


class Observer:
    """One for as long as signals are taken. interval_ms: between the roles' reports."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._known: dict[Peer, _Known] = {}
        self._last_ms: int | None = None
        self._operation: int | None = None
        self._begun = False

    def signals(
        self, observed: Observed, *, placeable: int | None = None, cores: Mapping[str, float] | None = None
    ) -> Signals:
        """Return the signals of the interval that ends now, which began with the last call.

        placeable: as in Signals; cores: of each node, by its address, None if not known. Whoever runs the processes
        knows.
        """
        now_ms = observed.now_ms
        interval_ms = self._interval_ms if self._last_ms is None else max(now_ms - self._last_ms, 1)
        self._last_ms = now_ms
        self._known = {peer: known for peer, known in self._known.items() if peer in observed.slices}
        for peer, one in observed.slices.items():
            if one.report is not None:
                self._look_at(peer, one.incarnation, one.report, now_ms)
        slices = self._slices(observed, now_ms)
        doors = [known for peer, known in self._known.items() if peer.layer == CONNECTION_POINT]
        signals = Signals(
            interval_s=interval_ms / 1000,
            epoch=observed.epoch,
            sizes=dict(observed.sizes),
            transition=observed.changing,
            placeable=placeable,
            cores=None if cores is None else sum(cores.values()),
            nodes=self._nodes(observed, slices, cores or {}),
            publications_per_s=_sum_of([one.publications_per_s for one in slices if one.layer == CONNECTION_POINT]),
            notifications_per_s=_sum_of([one.notifications_per_s for one in slices if one.layer == CONNECTION_POINT]),
            delay=added(known.delay for known in doors if known.fresh),
            subscribe_ack=added(known.subscribe_ack for known in doors if known.fresh),
            placement_s=self._placement_s(observed),
            slices=slices,
        )
        for known in self._known.values():
            known.fresh = False
        return signals

    def _look_at(self, peer: Peer, incarnation: int, report: Report, now_ms: int) -> None:
        known = self._known.get(peer)
        if known is not None and known.incarnation == incarnation and known.report.at_ms == report.at_ms:
            return
        earlier = known.report if known is not None and known.incarnation == incarnation else None
        self._known[peer] = _Known(
            incarnation,
            report,
            now_ms,
            _said(peer, earlier, report),
            _difference(earlier, report, "notification_delay"),
            _difference(earlier, report, "subscribe_ack"),
            _load(earlier, report),
            fresh=True,
        )

    def _slices(self, observed: Observed, now_ms: int) -> tuple[SliceSignals, ...]:
        backlog = backlogs({peer: (None, known.report) for peer, known in self._known.items()})
        slices = []
        for peer in sorted(observed.slices, key=lambda peer: (LAYERS.index(peer.layer), peer.slot)):
            known = self._known.get(peer)
            if known is None or now_ms - known.seen_ms > STALE * self._interval_ms:
                slices.append(SliceSignals(layer=peer.layer, slot=peer.slot))
                continue
            messages, size = backlog.get(peer, (0, 0))
            said = known.said
            slices.append(
                SliceSignals(
                    layer=peer.layer,
                    slot=peer.slot,
                    useful_share=said.useful_share,
                    backlog_messages=round(messages * _publications_each(peer.layer, known.report.counters)),
                    backlog_bytes=size,
                    match_ms=said.match_ms,
                    publications_per_s=said.publications_per_s,
                    notifications_per_s=said.notifications_per_s,
                    subscriptions=said.subscriptions,
                    connections=said.connections,
                    rss_bytes=said.rss_bytes,
                )
            )
        return tuple(slices)

    def _nodes(
        self, observed: Observed, slices: tuple[SliceSignals, ...], cores: Mapping[str, float]
    ) -> tuple[NodeSignals, ...]:
        """Return the nodes that slices are on, and those of `cores` that none is on; none if one is not known of."""
        told: dict[str, list[_Load]] = {one.host: [] for one in observed.slices.values()}
        for one in slices:
            peer = Peer(one.layer, one.slot)
            known = self._known.get(peer)
            if known is not None and known.load is not None and one.useful_share is not None:
                told[observed.slices[peer].host].append(known.load)
        found = []
        for host, loads in told.items():
            if not loads:
                return ()
            # Each of them tells of the whole node, by its own clock.
            busy, slices_busy = sum(one.busy for one in loads) / len(loads), sum(one.own for one in loads)
            number = max(one.cores for one in loads)
            found.append(
                NodeSignals(host=host, cores=number, busy=min(busy, number), slices=min(busy, number, slices_busy))
            )
        if set(told) <= set(cores):  # else they go by other addresses there
            found += [NodeSignals(host=host, cores=number) for host, number in cores.items() if host not in told]
        return tuple(sorted(found, key=lambda one: one.host))

    def _placement_s(self, observed: Observed) -> float | None:
        """Return how long the operation took that has ended since the last call, None if none has."""
        number = None if observed.last_done is None else observed.last_done[0]
        ended = self._begun and number != self._operation
        self._begun = True
        self._operation = number
        return observed.last_done[1] / 1000 if ended and observed.last_done is not None else None


def _said(peer: Peer, earlier: Report | None, report: Report) -> SliceSignals:
    counters = report.counters
    useful = rate((earlier, report), "useful_us")
    notifications = NOTIFICATIONS.get(peer.layer)
    return SliceSignals(
        layer=peer.layer,
        slot=peer.slot,
        useful_share=None if useful is None else min(useful / 1e6, 1.0),
        match_ms=_spread(earlier, report) if peer.layer == MATCHER else None,
        publications_per_s=rate((earlier, report), *TAKEN[peer.layer]),
        notifications_per_s=None if notifications is None else rate((earlier, report), notifications),
        subscriptions=counters.get("subscriptions") if peer.layer == MATCHER else None,
        connections=counters.get("connections"),
        rss_bytes=counters.get("resident_bytes") or None,
    )


def _load(earlier: Report | None, report: Report) -> _Load | None:
    if earlier is None or earlier.node is None or report.node is None or report.at_ms <= earlier.at_ms:
        return None
    busy = (report.node[0] - earlier.node[0]) / (report.at_ms - earlier.at_ms) / 1000
    return _Load(report.node[1], max(busy, 0.0), (rate((earlier, report), "cpu_us") or 0.0) / 1e6)


def _spread(earlier: Report | None, report: Report) -> Spread | None:
    """Return what a publication took to match; of no publications there is a spread too, of none."""
    if earlier is None:
        return None
    count, total_us = _counted(earlier, report, "match")
    if not count or report.match_ns is None:
        return Spread(0, 0.0, 0.0, 0.0)
    least, most = report.match_ns
    return Spread(count, least / 1e6, most / 1e6, total_us / count / 1000)


def _counted(earlier: Report, report: Report, key: str) -> tuple[int, int]:
    """Return how many values a histogram has got, and their sum in microseconds."""
    *now, now_us = report.histograms.get(key, [0])
    *before, before_us = earlier.histograms.get(key, [0])
    return sum(now) - sum(before), now_us - before_us


def _difference(earlier: Report | None, report: Report, key: str) -> Histogram | None:
    now = report.histograms.get(key)
    before = None if earlier is None else earlier.histograms.get(key)
    if now is None or before is None:
        return None
    return tuple(max(after - former, 0) for after, former in zip(now[:-1], before[:-1], strict=True))


def _publications_each(layer: str, counters: Mapping[str, int]) -> float:
    """Return how many publications a message to this layer holds on average; a lane counts messages.

    What goes to connection points are notifications and answers, and stays as it is.
    """
    if layer == CONNECTION_POINT:
        return 1.0
    publications = sum(counters.get(key, 0) for key in TAKEN[layer])
    taken = counters.get("messages_taken", 0)
    return max(publications / taken, 1.0) if taken else 1.0


def _sum_of(values: list[float | None]) -> float | None:
    """Return the sum, None if one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
