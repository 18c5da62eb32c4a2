"""A set of numbers as ranges: small where neighbours are mostly in it together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Ranges:
    """Numbers, as disjoint ranges (first, last) that do not touch, ascending."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for first, last in ranges:
            self._first.append(first)
            self._last.append(last)
        self.check()

    def __len__(self) -> int:
        """Return how many ranges there are."""
        return len(self._first)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._first, number) - 1
        return place >= 0 and number <= self._last[place]

    def below(self, number: int) -> int:
        """Return how many ranges begin at or below the number."""
        return bisect_right(self._first, number)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the ranges."""
        return list(zip(self._first, self._last, strict=True))

    def add_all(self, first: int, last: int) -> None:
        """Put all numbers from `first` to `last` in, none of which is."""
        assert first <= last, f"a range from {first} to {last}"
        place = bisect_right(self._first, first)
        assert place == 0 or self._last[place - 1] < first, f"{first} is in already"
        assert place == len(self._first) or last < self._first[place], f"{last} is in already"
        if place < len(self._first) and self._first[place] == last + 1:
            last = self._last[place]
            del self._first[place], self._last[place]
        if place and self._last[place - 1] == first - 1:
            self._last[place - 1] = last
        else:
            self._first.insert(place, first)
            self._last.insert(place, last)

    def add(self, number: int) -> None:
        """Put a number in. Cost: O(log n) to find the place, O(n) words to move."""
        place = bisect_right(self._first, number)
        if place and number <= self._last[place - 1]:
            return
        joins_before = place > 0 and self._last[place - 1] == number - 1
        joins_after = place < len(self._first) and self._first[place] == number + 1
        if joins_before and joins_after:
            self._last[place - 1] = self._last[place]
            del self._first[place], self._last[place]
        elif joins_before:
            self._last[place - 1] = number
        elif joins_after:
            self._first[place] = number
        else:
            self._first.insert(place, number)
            self._last.insert(place, number)

    def add_range(self, first: int, last: int) -> None:
        """Put in all numbers from first to last. Cost: as `add`."""
        low = bisect_left(self._last, first - 1)
        high = bisect_right(self._first, last + 1)
        if low < high:
            first, last = min(first, self._first[low]), max(last, self._last[high - 1])
        self._first[low:high] = [first]
        self._last[low:high] = [last]

    def forget(self, upto: int) -> None:
        """Take out everything at or below the number."""
        place = bisect_left(self._last, upto + 1)
        del self._first[:place], self._last[:place]
        if self._first and self._first[0] <= upto:
            self._first[0] = upto + 1

    def check(self) -> None:
        """Assert what always holds."""
        for place, (first, last) in enumerate(zip(self._first, self._last, strict=True)):
            assert first <= last, f"a range from {first} to {last}"
            assert place == 0 or self._last[place - 1] < first - 1, f"{first} touches the range before it"
