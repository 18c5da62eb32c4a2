"""What a match returns: matching subscriptions, sorted, in runs of a publication and a client."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt


class Hits:
    """Which publication of the batch matched which subscription.

    Sorted by (publication, client, subscription) without doubles, so that the hits of a publication and a client lie
    together: a run. The arrays belong to the caller. By hit, all of one length:

    subscription: as given to `add`.
    publication:  place in the batch; made when first asked for.
    client:       as given to `add`; made when first asked for.
    """

    def __init__(self, subscription: npt.NDArray[np.uint64], runs: npt.NDArray[np.int64]) -> None:
        """Keep the hits; runs: rows of (publication, client, place of the first hit), ascending, none empty."""
        self.subscription = subscription
        self._runs = runs

    @staticmethod
    def of(
        publication: npt.NDArray[np.uint32],
        client: npt.NDArray[np.int64],
        subscription: npt.NDArray[np.uint64],
    ) -> Hits:
        """Make hits of columns that are sorted."""
        new = np.ones(len(publication), np.bool_)
        new[1:] = (publication[1:] != publication[:-1]) | (client[1:] != client[:-1])
        first = np.flatnonzero(new)
        return Hits(subscription, np.stack([publication[first].astype(np.int64), client[first], first], axis=1))

    def __len__(self) -> int:
        return len(self.subscription)

    @cached_property
    def publication(self) -> npt.NDArray[np.uint32]:
        return np.repeat(self._runs[:, 0].astype(np.uint32), np.diff(self.groups()))

    @cached_property
    def client(self) -> npt.NDArray[np.int64]:
        return np.repeat(self._runs[:, 1], np.diff(self.groups()))

    def only(self, chosen: npt.NDArray[np.bool_]) -> Hits:
        """Return the hits where `chosen` is true."""
        return Hits.of(self.publication[chosen], self.client[chosen], self.subscription[chosen])

    def groups(self) -> npt.NDArray[np.int64]:
        """Return where each (publication, client) group starts, then the number of hits.

        Group i is the rows groups[i]:groups[i + 1]; a group is what one notification to one client lists.
        """
        return np.append(self._runs[:, 2], len(self.subscription))

    def tuples(self) -> list[tuple[int, int, int]]:
        """Return the rows as (publication, client, subscription); for tests."""
        return list(zip(self.publication.tolist(), self.client.tolist(), self.subscription.tolist(), strict=True))


def empty_hits() -> Hits:
    """Return no hits."""
    return Hits(np.empty(0, np.uint64), np.empty((0, 3), np.int64))


def joined(parts: list[Hits]) -> Hits:
    """Return the hits of parts of a batch, which follow each other and share no publication."""
    first = 0
    runs = []
    for part in parts:
        runs.append(part._runs + np.array((0, 0, first)))
        first += len(part)
    return Hits(np.concatenate([part.subscription for part in parts]), np.concatenate(runs))
