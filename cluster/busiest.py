"""Which subscriptions most notifications are for, from a sample: what a subscription costs grows with its matches.

Of each batch's hits a few, evenly spaced, stand for all. That is a constant time for each batch, of which a matcher has
some hundred a second, where counting every hit would take longer than finding it. What was counted fades: after
HALF_SAMPLES more it counts half. A subscription that gets a share s of the hits is seen about s * HALF_SAMPLES times in
that while, so that a share of one in a hundred is right to within a tenth; what was seen less than SEEN_LEAST times is
not listed.

What it takes to find that a subscription does *not* match is not told apart: in the index one look at a bound serves
all subscriptions that share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cluster.columns import Column
from cluster.frames import SUBSCRIPTION_BITS

SAMPLE = 64
"""Hits of one batch that are looked at, at about 0.1 microseconds each."""
HALF_SAMPLES = 1 << 13
"""So the counts are few enough for being looked through each second, in about a millisecond."""
SEEN_LEAST = 4
KEPT = 4096
"""Subscriptions that are remembered when they are thinned out."""
REPORTED = 50
MILLION = 1_000_000


class Busiest:
    """Counts of sampled hits by subscription, of one matcher."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0
        self._batches = 0

    def sample(self, hits: Column | memoryview) -> None:
        """Look at some of a batch's hits: the subscriptions' ids, one for each hit."""
        count = len(hits)
        if not count:
            return
        self._batches += 1
        step = -(-count // SAMPLE)
        # Another offset each time: hits are sorted by publication, and publications come in patterns.
        seen = hits[self._batches * 7919 % step :: step].tolist()
        counts = self._counts
        for subscription in seen:
            counts[subscription] = counts.get(subscription, 0) + 1
        self._total += len(seen)
        if self._total >= 2 * HALF_SAMPLES:
            self._fade()

    def _fade(self) -> None:
        halves = {subscription: count // 2 for subscription, count in self._counts.most_common(KEPT) if count > 1}
        self._counts = Counter(halves)
        self._total //= 2

    def top(self) -> list[tuple[int, int]]:
        """Return the busiest subscriptions, and how many of a million hits are theirs; the busiest first."""
        total = max(self._total, 1)
        return [
            (subscription, count * MILLION // total)
            for subscription, count in self._counts.most_common(REPORTED)
            if count >= SEEN_LEAST
        ]


class Row(NamedTuple):
    """A subscription's part. matcher: the slot that holds it."""

    subscription: int
    matcher: int
    hits_per_s: float


def ranked(reported: Mapping[int, tuple[list[tuple[int, int]], float]]) -> list[Row]:
    """Join what matchers report: by slot the busiest, and the matcher's hits per second. The busiest first."""
    rows = [
        Row(subscription, slot, hits_per_s * share / MILLION)
        for slot, (top, hits_per_s) in reported.items()
        for subscription, share in top
    ]
    return sorted(rows, key=lambda row: (-row.hits_per_s, row.subscription))


def document(
    rows: Iterable[Row], hits_per_s: float, names: Mapping[int, str], top: int, missing: Iterable[str]
) -> dict[str, Any]:
    """Return the answer to an operator. names: client ids by client; missing: matchers that have reported nothing."""
    shown = []
    for row in list(rows)[:top]:
        client = row.subscription >> SUBSCRIPTION_BITS
        shown.append(
            {
                "client_id": names.get(client),
                "subscription": row.subscription & ((1 << SUBSCRIPTION_BITS) - 1),
                "matcher": row.matcher,
                "hits_per_s": round(row.hits_per_s, 1),
                "share": round(row.hits_per_s / hits_per_s, 4) if hits_per_s else 0.0,
            }
        )
    return {"hits_per_s": round(hits_per_s, 1), "subscriptions": shown, "missing": list(missing)}
