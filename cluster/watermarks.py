"""What came last of each publisher, so that what comes again after a fault is known.

A publisher's publications come everywhere in the order of their sequences, also those that are sent again. So whatever
is at or below the last sequence that came is a double, or was overtaken and may come no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView, Iterable
from typing import Any

Key = tuple[str, int]
"""A publisher and its instance."""


class Watermarks:
    """Publisher and instance -> the last sequence that came; of the `limit` publishers that were heard last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._upto: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._upto)

    def copy(self) -> Watermarks:
        """Return one that goes its own way from here."""
        twin = Watermarks(self._limit)
        twin._upto = self._upto.copy()
        return twin

    def items(self) -> ItemsView[Key, int]:
        """Return every publisher with the last sequence that came."""
        return self._upto.items()

    def upto(self, key: Key) -> int:
        """Return the last sequence that came, 0 for none."""
        return self._upto.get(key, 0)

    def raise_to(self, key: Key, sequence: int) -> bool:
        """Take note of a publication; tell whether it is new."""
        if sequence <= self._upto.get(key, 0):
            return False
        self._upto[key] = sequence
        self._upto.move_to_end(key)
        if len(self._upto) > self._limit:
            self._upto.popitem(last=False)
        return True

    def take(self, of_run: Iterable[tuple[Any, ...]], sequences: Iterable[int]) -> set[int]:
        """Take note of publications in their order; return the places of those that are doubles.

        of_run: per publication its run, which begins with the publisher and its instance; the same object for those of
        one run. About 60 ns a publication.
        """
        doubles: set[int] = set()
        current: tuple[Any, ...] = ()
        key: Key = ("", 0)
        upto = 0
        for place, (run, sequence) in enumerate(zip(of_run, sequences, strict=True)):
            if run is not current:
                if current:
                    self.raise_to(key, upto)
                current = run
                key = run[:2]
                upto = self._upto.get(key, 0)
            if sequence <= upto:
                doubles.add(place)
            else:
                upto = sequence
        if current:
            self.raise_to(key, upto)
        return doubles
