"""What a matcher still holds and is nobody's: subscriptions that have moved away, or whose connection point has died.

They are swept out a few at a time. Those in the way come first, as something waits for it; the others have time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from cluster.view import key_group

_NONE: Mapping[int, None] = {}


class Leftovers:
    """Subscriptions, by key group."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[int, None]] = {}
        self._in_the_way: set[int] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, subscription: int) -> bool:
        return self._size > 0 and subscription in self.of(key_group(subscription))

    @property
    def in_the_way(self) -> bool:
        """Whether there are any in a group that is in the way."""
        return bool(self._in_the_way)

    def of(self, group: int) -> Mapping[int, None]:
        """Return those of a key group."""
        return self._groups.get(group, _NONE)

    def add(self, group: int, subscriptions: Iterable[int]) -> None:
        """These, of this key group, are nobody's."""
        known = self._groups.setdefault(group, {})
        self._size -= len(known)
        known.update(dict.fromkeys(subscriptions))
        self._size += len(known)
        if not known:
            del self._groups[group]

    def look_out(self, groups: Collection[int]) -> None:
        """These key groups are in the way, and no others."""
        self._in_the_way = self._groups.keys() & groups

    def discard(self, group: int, subscription: int) -> None:
        """It, of this key group, is somebody's again, or not there any more; it may not be one of these."""
        known = self._groups.get(group)
        if known is None or subscription not in known:
            return
        del known[subscription]
        self._size -= 1
        if not known:
            self._empty(group)

    def take(self, most: int) -> dict[int, list[int]]:
        """Take some out, those in the way first; return them by key group."""
        taken: dict[int, list[int]] = {}
        while most > 0 and self._size:
            group = next(iter(self._in_the_way or self._groups))
            known = self._groups[group]
            some = taken[group] = list(islice(known, most))
            if len(some) == len(known):
                self._empty(group)
            else:
                for subscription in some:
                    del known[subscription]
            self._size -= len(some)
            most -= len(some)
        return taken

    def _empty(self, group: int) -> None:
        del self._groups[group]
        self._in_the_way.discard(group)
