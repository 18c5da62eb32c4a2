"""From the last two reports of every slice to what people want to know at a glance; see `kittiwake status --json`.

Rates and delays are of the last report interval, each by its slice's own clock; the autoscaler goes by `Signals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.histogram import quantile
from cluster.measures import HISTOGRAMS
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, DATA_LAYERS, EXIT_POINT, MATCHER, Peer, Report

Pair = tuple[Report | None, Report]
"""The last report and the one before it, None if there was none."""

BOOKS = {
    "accepted": "accepted",
    "matched": "outcome_matched",
    "unmatched": "outcome_unmatched",
    "rejected": "outcome_rejected",
    "repeated": "outcome_repeated",
    "abandoned": "abandoned",
    "in_flight": "in_flight",
}
TAKEN = {
    CONNECTION_POINT: ("accepted",),
    ACCESS_POINT: ("publications",),
    MATCHER: ("publications",),
    EXIT_POINT: ("released", "duplicates"),
}
"""What a slice has processed: publications."""


def rate(pair: Pair, *keys: str) -> float | None:
    """Return how much these have grown for each second between the reports; None after the first one."""
    earlier, report = pair
    if earlier is None or report.at_ms <= earlier.at_ms:
        return None
    grown = sum(max(report.counters.get(key, 0) - earlier.counters.get(key, 0), 0) for key in keys)
    return grown * 1000 / (report.at_ms - earlier.at_ms)


def backlogs(pairs: Mapping[Peer, Pair]) -> dict[Peer, tuple[int, int]]:
    """Return what waits on the way to each slice, messages and bytes, as those who send to it say."""
    found: dict[Peer, tuple[int, int]] = {}
    for _, report in pairs.values():
        for layer, slot, messages, size in report.lanes:
            before = found.get(Peer(layer, slot), (0, 0))
            found[Peer(layer, slot)] = (before[0] + messages, before[1] + size)
    return found


def of_slices(pairs: Mapping[Peer, Pair]) -> dict[Peer, dict[str, Any]]:
    """Return what each slice does; a value that is not known yet is None."""
    waits = backlogs(pairs)
    found = {}
    for peer, pair in pairs.items():
        counters = pair[1].counters
        useful = rate(pair, "useful_us")
        messages, size = waits.get(peer, (0, 0))
        found[peer] = {
            "useful_share": None if useful is None else round(min(useful / 1e6, 1.0), 4),
            "publications_per_s": _rounded(rate(pair, *TAKEN[peer.layer])),
            "notifications_per_s": _rounded(rate(pair, "notifications")),
            "backlog_messages": messages,
            "backlog_bytes": size,
            "resident_bytes": counters.get("resident_bytes", 0),
        }
    return found


def of_cluster(pairs: Mapping[Peer, Pair]) -> dict[str, Any]:
    """Return what the cluster does as a whole: its books, delays in ms, and by layer its slices' sums and extremes."""
    doors = [pair for peer, pair in pairs.items() if peer.layer == CONNECTION_POINT]
    slices = of_slices(pairs)
    layers = {}
    for layer in DATA_LAYERS:
        own = [one for peer, one in slices.items() if peer.layer == layer]
        # Each publication goes to every matcher, and through one slice of any other layer.
        together = max if layer == MATCHER else sum
        layers[layer] = {
            "reporting": len(own),
            "useful_share_max": max(_known(own, "useful_share"), default=None),
            "publications_per_s": together(_known(own, "publications_per_s") or [0.0]),
            "notifications_per_s": sum(_known(own, "notifications_per_s")),
            "backlog_messages": sum(one["backlog_messages"] for one in own),
            "backlog_bytes": sum(one["backlog_bytes"] for one in own),
            "resident_bytes": sum(one["resident_bytes"] for one in own),
        }
    return {
        "books": {name: sum(pair[1].counters.get(key, 0) for pair in doors) for name, key in BOOKS.items()},
        "notification_delay_ms": _spread(doors, "notification_delay"),
        "subscribe_ack_ms": _spread(doors, "subscribe_ack"),
        "match_ms": _spread([pair for peer, pair in pairs.items() if peer.layer == MATCHER], "match"),
        "layers": layers,
    }


def _known(some: Iterable[dict[str, Any]], name: str) -> list[float]:
    return [one[name] for one in some if one[name] is not None]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _spread(pairs: Iterable[Pair], key: str) -> dict[str, float | int | None]:
    """Return median, 99th percentile and count of the values that a histogram has got in the last interval, in ms."""
    bounds = HISTOGRAMS[key].buckets
    counts = [0] * (len(bounds) + 1)
    for earlier, report in pairs:
        now = report.histograms.get(key)
        before = None if earlier is None else earlier.histograms.get(key)
        if now is not None and before is not None:
            counts = [count + max(after - former, 0) for count, after, former in zip(counts, now, before, strict=False)]
    found: dict[str, float | int | None] = {"count": sum(counts)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value = quantile(counts, bounds, share)
        found[name] = None if value is None else round(value / 1000, 4)
    return found
