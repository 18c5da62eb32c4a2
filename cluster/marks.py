"""How far each publisher's publications are in the matched output, and which of these matched nothing.

A publisher's *mark* is the last sequence that any record of the output covers: what is at or below it was released, and
is decided for good. It has a row, or it is known to have matched nothing, or the row found no room on the disk.

Whoever releases it again after a recovery must know which: with a row, it is delivered again, as perhaps it has not
been yet; if it matched nothing, it is delivered to nobody, though a subscription that was opened meanwhile would match,
as rows come in each publisher's order and it is too late for one. Records tell (`matched.MatchedRun`), and of what lies
between two records of a publisher the later one does. Remembered are those alone that may come again, so few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from cluster.columns import UINT32, unpack
from cluster.matched import Matched
from cluster.ranges import Ranges

Key = tuple[str, int]
"""A publisher and its instance."""


class Marks:
    """upto: the marks; who wrote last comes last. unmatched: publications at or below them that matched nothing."""

    def __init__(self, upto: Mapping[Key, int] | None = None) -> None:
        self.upto: OrderedDict[Key, int] = OrderedDict(upto or {})
        self.unmatched: dict[Key, Ranges] = {}

    def __len__(self) -> int:
        """Return how many publishers there are."""
        return len(self.upto)

    def take(self, matched: Matched) -> None:
        """Take what a record says of its runs; records of one publisher must come in their order."""
        hits = sorted(
            {
                place
                for one in matched.hits
                for place, count in zip(unpack(UINT32, one.matched), unpack(UINT32, one.notifications), strict=True)
                if count
            }
        )
        first = 0
        for run in matched.runs:
            key = run.publisher, run.instance
            self._raise(key, run.first_sequence + run.count - 1)
            ranges = self.unmatched.get(key) or Ranges()
            shift = run.first_sequence - first
            decided = first + run.skipped
            if run.since:
                _add(ranges, run.since, decided - 1 + shift)
            stop = first + run.count
            for place in hits[bisect_left(hits, decided) : bisect_left(hits, stop)]:
                _add(ranges, decided + shift, place - 1 + shift)
                decided = place + 1
            _add(ranges, decided + shift, stop - 1 + shift)
            ranges.forget(run.settled)
            self._keep(key, ranges)
            first = stop

    def put(self, key: Key, upto: int, unmatched: Iterable[tuple[int, int]]) -> None:
        """Set what is known of a publisher, whatever was."""
        self._raise(key, upto)
        self._keep(key, Ranges(unmatched))

    def merge(self, other: Marks) -> None:
        """Take what another log knows as well."""
        for key, upto in other.upto.items():
            self._raise(key, upto)
        for key, ranges in other.unmatched.items():
            own = self.unmatched.setdefault(key, Ranges())
            for first, last in ranges.pairs():
                own.add_range(first, last)

    def forget(self, key: Key) -> None:
        """Nothing at or below the publisher's mark comes any more."""
        del self.upto[key]
        self.unmatched.pop(key, None)

    def forget_oldest(self) -> None:
        """Let go of the publisher that wrote longest ago."""
        key, _ = self.upto.popitem(last=False)
        self.unmatched.pop(key, None)

    def _raise(self, key: Key, upto: int) -> None:
        self.upto[key] = max(upto, self.upto.get(key, 0))
        self.upto.move_to_end(key)

    def _keep(self, key: Key, ranges: Ranges) -> None:
        if len(ranges):
            self.unmatched[key] = ranges
        else:
            self.unmatched.pop(key, None)


def _add(ranges: Ranges, first: int, last: int) -> None:
    if first <= last:
        ranges.add_range(first, last)
