"""The signals of the last while, and what they say together about one layer.

Only what was seen of the present set of slices counts: when sizes change or a transition is over, and after it the
warm-up, the load spreads anew and what was seen before says nothing about it. The delays are the exception (`burn.py`).

A slice counts as heard of if at least half of the intervals of the look-back period brought the value, one of the two
newest among them. If any slice of the view is not heard of, what the others say is a lower bound: good enough to grow
by, never to shrink by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from autoscaler.signals import LAYERS, NodeSignals, Signals, SliceSignals, Spread
from cluster.messages import MATCHER

FRESH: Final = 2
"""Of so many newest intervals one must have brought a value."""


SURGE: Final = 1.5
"""Where the FRESH newest intervals have each so many times the mean rate of the look-back period, that is no noise."""
STEADY: Final = 30
"""Look-back periods that tell what is steady from noise."""


class Seen(NamedTuple):
    """A value of a layer over the look-back period. value: None if no slice was heard of. whole: every one was."""

    value: float | None
    whole: bool


class Interval(NamedTuple):
    """One interval, its slices by layer and slot."""

    at_s: float
    signals: Signals
    slices: dict[str, dict[int, SliceSignals]]


class History:
    """Keeps intervals for `keep_s` seconds, newest last."""

    def __init__(self, look_back_s: float, keep_s: float) -> None:
        self._look_back_s = look_back_s
        self._steady: dict[tuple[str, int], tuple[float, float]] = {}  # seconds that count, mean useful share
        self._keep_s = max(keep_s, look_back_s)
        self._all: deque[Interval] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, now_s: float, signals: Signals) -> None:
        """Take in one interval."""
        slices: dict[str, dict[int, SliceSignals]] = {}
        for one in signals.slices:
            slices.setdefault(one.layer, {})[one.slot] = one
            if one.useful_share is not None:
                seconds, mean = self._steady.get((one.layer, one.slot), (0.0, 0.0))
                seconds = min(seconds + signals.interval_s, STEADY * self._look_back_s)
                mean += (one.useful_share - mean) * min(1.0, signals.interval_s / seconds)
                self._steady[one.layer, one.slot] = seconds, mean
        self._all.append(Interval(now_s, signals, slices))
        while self._all[0].at_s <= now_s - self._keep_s:
            self._all.popleft()

    def clear(self) -> None:
        """Forget everything: the slices are others now."""
        self._all.clear()
        self._steady.clear()

    @property
    def last(self) -> Signals:
        """The newest interval; there must be one."""
        return self._all[-1].signals

    def rate(self) -> float | None:
        """Return the mean publication rate (per second) over the look-back period, None if it was never reported."""
        return _mean(one.signals.publications_per_s for one in self._recent())

    def notification_rate(self) -> float | None:
        """Return the mean rate of notifications (per second) over the look-back period."""
        return _mean(one.signals.notifications_per_s for one in self._recent())

    def surge(self) -> float:
        """Return how many times the rate of the look-back period the newest one is, 1 where it is not SURGE times that.

        For most of a look-back period after a steep rise its mean says less than what is to be done from now on.
        """
        rates, mean = [one.signals.publications_per_s for one in self._recent()], self.rate()
        newest = [one for one in rates[:FRESH] if one is not None]
        if len(rates) <= FRESH or len(newest) < FRESH or not mean or min(newest) < SURGE * mean:
            return 1.0
        return max(newest) / mean

    @property
    def rising(self) -> bool:
        """Whether the newest interval alone looks like a surge: the next one shows how far it goes."""
        newest, mean = self.last.publications_per_s, self.rate()
        return newest is not None and bool(mean) and newest >= SURGE * (mean or 0.0) and self.surge() == 1.0

    def busiest(self, layer: str) -> Seen:
        """Return the useful share of the busiest slice, each averaged over the look-back period."""
        means, whole = self._means(layer, lambda one: one.useful_share)
        return Seen(max(means, default=None), whole)

    def busiest_of_late(self, layer: str) -> float | None:
        """Return the useful share of the busiest slice over the FRESH newest intervals, None if none was heard of."""
        means, _ = self._means(layer, lambda one: one.useful_share, FRESH)
        return max(means, default=None)

    def steady(self, layer: str) -> float | None:
        """Return the useful share of the busiest slice, each averaged over STEADY look-back periods, the newest the
        most, or over all since the sizes settled if that is less; None if no slice was heard of.
        """
        means = [self._steady[layer, slot][1] for slot in self._slots(layer) if (layer, slot) in self._steady]
        return max(means, default=None)

    def used(self) -> float | None:
        """Return for how many cores all slices together were busy, as far as they were heard of; None if none was.

        A slice that waits for a core while it works counts as busy.
        """
        shares = [one for layer in LAYERS for one in self._means(layer, lambda one: one.useful_share)[0]]
        return sum(shares) if shares else None

    def nodes(self) -> tuple[NodeSignals, ...]:
        """Return the cluster's nodes, each as busy as over the look-back period, or over the FRESH newest intervals if
        that is more: what is full now has no room. Empty if the newest intervals do not tell of them.
        """
        rows = [{one.host: one for one in interval.signals.nodes} for interval in self._recent()]
        newest = next((row for row in rows[:FRESH] if row), {})
        pairs = ((_node(one, rows), _node(one, rows[:FRESH])) for one in newest.values())
        return tuple(max(pair, key=lambda one: one.busy or 0.0) for pair in pairs)

    def idlest(self, layer: str) -> float | None:
        """Return the useful share of the least busy slice of those that were heard of, None if none was."""
        means, _ = self._means(layer, lambda one: one.useful_share)
        return min(means, default=None)

    def processed(self, layer: str) -> float | None:
        """Return the publications a second that a layer has got done, None if not every slice said it.

        Each matcher does all of them, and the last to do them says when they are done; others share them.
        """
        means, whole = self._means(layer, lambda one: one.publications_per_s)
        if not whole:
            return None
        return min(means) if layer == MATCHER else sum(means)

    def backlog(self, layer: str, metric: str = "lane_backlog") -> Seen:
        """Return what waits for the whole layer, averaged over the look-back period; messages or bytes."""
        if metric == "lane_backlog_bytes":
            means, whole = self._means(layer, lambda one: one.backlog_bytes)
        else:
            means, whole = self._means(layer, lambda one: one.backlog_messages)
        return Seen(sum(means) if means else None, whole)

    def sum_of(self, layer: str, value: Callable[[SliceSignals], float | None]) -> Seen:
        """Return the sum over the layer's slices of something that changes slowly: of each the newest that is known."""
        slots = self._slots(layer)
        newest: dict[int, float] = {}
        for interval in self._recent():
            for slot, one in interval.slices.get(layer, {}).items():
                found = value(one)
                if found is not None and slot in slots:
                    newest[slot] = found
        return Seen(sum(newest.values()) if newest else None, bool(slots) and len(newest) == len(slots))

    def match_windows(self, layer: str, count: int, least_s: float, most_s: float) -> tuple[dict[int, Spread], bool]:
        """Return per slot what its last `count` publications took, over no less than `least_s`, and whether all spoke.

        A slot whose window is not complete is left out; at `most_s` a window is complete with what it has.
        """
        slots = self._slots(layer)
        windows: dict[int, list[Spread]] = {slot: [] for slot in slots}
        counts, spans, open_ = dict.fromkeys(slots, 0), dict.fromkeys(slots, 0.0), set(slots)
        for interval in reversed(self._all):
            if not open_:
                break
            for slot, one in interval.slices.get(layer, {}).items():
                if slot not in open_ or one.match_ms is None:
                    continue
                windows[slot].append(one.match_ms)
                counts[slot] += one.match_ms.count
                spans[slot] += interval.signals.interval_s
                if (counts[slot] >= count and spans[slot] >= least_s) or spans[slot] >= most_s:
                    open_.discard(slot)
        heard = bool(slots) and all(windows[slot] for slot in slots)
        return {slot: _together(windows[slot]) for slot in slots if slot not in open_}, heard

    def _slots(self, layer: str) -> list[int]:
        return list(self._all[-1].slices.get(layer, {})) if self._all else []

    def _recent(self) -> list[Interval]:
        """Return the intervals of the look-back period, newest first."""
        recent: list[Interval] = []
        for interval in reversed(self._all):
            if interval.at_s <= self._all[-1].at_s - self._look_back_s:
                break
            recent.append(interval)
        return recent

    def _means(
        self, layer: str, value: Callable[[SliceSignals], float | None], count: int | None = None
    ) -> tuple[list[float], bool]:
        """Return each slice's mean over the look-back period, or the `count` newest intervals of it."""
        recent = [interval.slices.get(layer, {}) for interval in self._recent()[:count]]
        means: list[float] = []
        slots = self._slots(layer)
        for slot in slots:
            row = [None if (one := slices.get(slot)) is None else value(one) for slices in recent]
            known = [one for one in row if one is not None]
            if any(one is not None for one in row[:FRESH]) and 2 * len(known) >= len(row):
                means.append(sum(known) / len(known))
        return means, bool(slots) and len(means) == len(slots)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _node(node: NodeSignals, rows: list[dict[str, NodeSignals]]) -> NodeSignals:
    """Return a node as busy as on average over the rows, by host, that tell of it."""
    known = [one for row in rows if (one := row.get(node.host)) is not None]
    return msgspec.structs.replace(
        node, busy=_mean(one.busy for one in known), slices=_mean(one.slices for one in known)
    )


def _together(spreads: list[Spread]) -> Spread:
    known = [one for one in spreads if one.count]
    if not known:
        return Spread(0, 0.0, 0.0, 0.0)
    count = sum(one.count for one in known)
    mean = sum(one.mean * one.count for one in known) / count
    return Spread(count, min(one.min for one in known), max(one.max for one in known), mean)
