"""A matcher's subscriptions by key group: what the index does not keep and a move to another matcher needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.messages import SubscriptionChange
from cluster.view import KEY_GROUPS


class Table:
    """Subscription -> the change that set it, in one dict per key group.

    Who calls has computed the key group of a subscription, and computes it once for all that it does with it.
    """

    def __init__(self) -> None:
        self._groups: list[dict[int, SubscriptionChange]] = [{} for _ in range(KEY_GROUPS)]
        self._size = 0
        self.form_bytes = 0

    def __len__(self) -> int:
        return self._size

    def put(self, group: int, change: SubscriptionChange) -> None:
        """Set or replace a subscription; the change has a normal form."""
        assert change.normal_form is not None, "a removal is not put"
        rows = self._groups[group]
        former = rows.get(change.subscription)
        if former is None:
            self._size += 1
        else:
            self.form_bytes -= len(former.normal_form or b"")
        self.form_bytes += len(change.normal_form)
        rows[change.subscription] = change

    def remove(self, group: int, subscription: int) -> bool:
        """Remove a subscription; tell whether it was in force."""
        row = self._groups[group].pop(subscription, None)
        if row is None:
            return False
        self._size -= 1
        self.form_bytes -= len(row.normal_form or b"")
        return True

    def group(self, group: int) -> list[int]:
        """Return the subscriptions of a key group, oldest first."""
        return list(self._groups[group])

    def rows_of(self, group: int) -> Mapping[int, SubscriptionChange]:
        """Return what is in force in a key group, by subscription: as it is whenever it is looked at."""
        return self._groups[group]

    def rows(self) -> Iterator[tuple[int, SubscriptionChange]]:
        """Return everything, by key group; for tests."""
        for group in self._groups:
            yield from group.items()
