"""What a match returns: three columns, sorted, and their grouping by client."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Hits:
    """Which publication of the batch matched which subscription, one row a hit.

    Sorted by (publication, client, subscription) without doubles; the three arrays have one length.
    publication: place in the batch. client, subscription: as given to `add`.
    The arrays belong to the caller.
    """

    __slots__ = ("client", "publication", "subscription")

    def __init__(
        self,
        publication: npt.NDArray[np.uint32],
        client: npt.NDArray[np.int64],
        subscription: npt.NDArray[np.uint64],
    ) -> None:
        self.publication = publication
        self.client = client
        self.subscription = subscription

    def __len__(self) -> int:
        return len(self.publication)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Hits:
        """Return the rows where `chosen` is true."""
        return Hits(self.publication[chosen], self.client[chosen], self.subscription[chosen])

    def groups(self) -> npt.NDArray[np.int64]:
        """Return where each (publication, client) group starts, then the number of hits.

        Group i is the rows groups[i]:groups[i + 1]; a group is what one notification to one client lists.
        """
        if not len(self.publication):
            return np.zeros(1, dtype=np.int64)
        new = self.publication[1:] != self.publication[:-1]
        new |= self.client[1:] != self.client[:-1]
        return np.concatenate(([0], np.flatnonzero(new) + 1, [len(self.publication)])).astype(np.int64, copy=False)

    def tuples(self) -> list[tuple[int, int, int]]:
        """Return the rows as (publication, client, subscription); for tests."""
        return list(zip(self.publication.tolist(), self.client.tolist(), self.subscription.tolist(), strict=True))


def empty_hits() -> Hits:
    """Return no hits."""
    return Hits(np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint64))
