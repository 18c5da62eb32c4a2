"""A matcher's subscriptions by key group: what the index does not keep and a move to another matcher needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cluster.view import KEY_GROUPS, key_group


class Row(NamedTuple):
    """A subscription in force. version: the change that set it; normal_form: encoded."""

    version: int
    normal_form: bytes


class Table:
    """Subscription -> Row, in one dict per key group."""

    def __init__(self) -> None:
        self._groups: list[dict[int, Row]] = [{} for _ in range(KEY_GROUPS)]
        self._size = 0
        self.form_bytes = 0

    def __len__(self) -> int:
        return self._size

    def row(self, subscription: int) -> Row | None:
        """Return what is in force, None for nothing."""
        return self._groups[key_group(subscription)].get(subscription)

    def put(self, subscription: int, row: Row) -> None:
        """Set or replace a subscription."""
        group = self._groups[key_group(subscription)]
        former = group.get(subscription)
        if former is None:
            self._size += 1
        else:
            self.form_bytes -= len(former.normal_form)
        self.form_bytes += len(row.normal_form)
        group[subscription] = row

    def remove(self, subscription: int) -> Row | None:
        """Remove a subscription; return what was in force."""
        row = self._groups[key_group(subscription)].pop(subscription, None)
        if row is not None:
            self._size -= 1
            self.form_bytes -= len(row.normal_form)
        return row

    def group(self, group: int) -> list[int]:
        """Return the subscriptions of a key group, oldest first."""
        return list(self._groups[group])

    def rows_of(self, group: int) -> Mapping[int, Row]:
        """Return what is in force in a key group, by subscription: as it is whenever it is looked at."""
        return self._groups[group]

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Return everything, by key group; for tests."""
        for group in self._groups:
            yield from group.items()
