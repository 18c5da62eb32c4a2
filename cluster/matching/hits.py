"""What a match returns: matching subscriptions, sorted, in runs of a publication and a client."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cluster.matching import kernels
from cluster.matching.memory import Memory, address

HEAD = 6
"""Words of a match before its hits (`search.HITS_BYTES`)."""


class Hits:
    """Which publication of the batch matched which subscription.

    Sorted by (publication, client, subscription) without doubles, so that the hits of a publication and a client lie
    together: a run. The arrays belong to the caller, unless they lie in a room. By hit, all of one length:

    subscription: as given to `add`.
    publication:  place in the batch; made when first asked for.
    client:       as given to `add`; made when first asked for.

    runs:  rows of (publication, client, place of the first hit), ascending, none empty.
    count, run_count: how many.
    """

    subscription: npt.NDArray[np.uint64]
    runs: npt.NDArray[np.int64]
    count: int
    run_count: int

    def __init__(self, subscription: npt.NDArray[np.uint64], runs: npt.NDArray[np.int64]) -> None:
        self.subscription = np.ascontiguousarray(subscription, np.uint64)
        self.runs = np.ascontiguousarray(runs, np.int64)
        self.count = len(subscription)
        self.run_count = len(runs)

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
        return self.count

    @cached_property
    def publication(self) -> npt.NDArray[np.uint32]:
        return np.repeat(self.runs[:, 0].astype(np.uint32), np.diff(self.groups()))

    @cached_property
    def client(self) -> npt.NDArray[np.int64]:
        return np.repeat(self.runs[:, 1], np.diff(self.groups()))

    def owned(self, owners: bytes, slot: int) -> Hits:
        """Return the hits whose key group the slot owns. These are void then. owners: uint16 a key group."""
        head = np.array((self.count, self.run_count, address(self.subscription), address(self.runs)), np.int64)
        kernels.owned(address(head), owners, slot)
        count, run_count = head[:2].tolist()
        return Hits(self.subscription[:count], self.runs[:run_count])

    def groups(self) -> npt.NDArray[np.int64]:
        """Return where each (publication, client) group starts, then the number of hits.

        Group i is the rows groups[i]:groups[i + 1]; a group is what one notification to one client lists.
        """
        return np.append(self.runs[:, 2], self.count)

    def ids(self) -> npt.NDArray[np.uint64] | memoryview:
        """Return the subscriptions in whichever form costs least; to be sliced and listed."""
        return self.subscription

    def head(self) -> int | bytes:
        """Return what `search.match` writes of hits, or where it lies; valid as long as this object lives."""
        return struct.pack("<4q", self.count, self.run_count, address(self.subscription), address(self.runs))

    def tuples(self) -> list[tuple[int, int, int]]:
        """Return the rows as (publication, client, subscription); for tests."""
        return list(zip(self.publication.tolist(), self.client.tolist(), self.subscription.tolist(), strict=True))


class Found(Hits):
    """Hits as compiled code has left them; as arrays when first asked for, because few ask.

    stopped: the publication where it stopped, and an upper bound of that one's hits.
    """

    def __init__(self, memory: Memory, capacity: int) -> None:
        """Keep what `search.match` has written: a head, `capacity` places for subscriptions, and runs."""
        self._memory = memory
        self._capacity = capacity
        self.count, self.run_count, _, _, *self.stopped = memory.words[:HEAD].tolist()

    @cached_property
    def subscription(self) -> npt.NDArray[np.uint64]:  # type: ignore[override]
        return np.asarray(self.ids())

    @cached_property
    def runs(self) -> npt.NDArray[np.int64]:  # type: ignore[override]
        first = HEAD + self._capacity
        return np.asarray(self._memory.words[first : first + 3 * self.run_count]).reshape(-1, 3)

    def ids(self) -> memoryview:
        return self._memory.unsigned[HEAD : HEAD + self.count]

    def head(self) -> int:
        return self._memory.at

    def owned(self, owners: bytes, slot: int) -> Found:
        kernels.owned(self._memory.at, owners, slot)
        return Found(self._memory, self._capacity)


def empty_hits() -> Hits:
    """Return no hits."""
    return Hits(np.empty(0, np.uint64), np.empty((0, 3), np.int64))


def joined(parts: Sequence[Hits]) -> Hits:
    """Return the hits of parts of a batch, which follow each other and share no publication."""
    first = 0
    runs = []
    for part in parts:
        runs.append(part.runs + np.array((0, 0, first)))
        first += part.count
    return Hits(np.concatenate([part.subscription for part in parts]), np.concatenate(runs))
