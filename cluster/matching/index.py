"""The index: which subscriptions match a publication, exactly and fast.

How it works, in a dozen lines. A filter's normal form is a few conjunctions. Each conjunction lies in one cluster
(`tiles.py`), under a key that a publication leads to: a predicate that it makes true or an attribute that it
has. Where many conjunctions have the same predicates and ranges over the same attributes they share a cluster
that holds all of them as columns in a tree of 64-entry blocks; where each is different it lies under its most
selective part, and the rest is verified from its packed record (`filing.py` decides by estimated cost and
reconsiders, `records.py` verifies). Strings, sets and equalities are predicates with a number, looked up by
hash and compared byte by byte (`predicates.py`). Clusters of plain ranges are searched for 16 publications at
once (`groups.py`). A hit sets a bit at the subscription's place in the order of (client, id); reading the bits
gives the hits sorted, without doubles (`order.py`), and from these the answers are written (`answering.py`). All
of it lies in one mapping that grows by page (`layout.py`), every table and tree changes a few blocks at a time, so
that no call pauses for the sake of earlier ones, and all loops are compiled (`kernels.py`).

This file is the Python side: it grows the result, and gives memory back.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np

from cluster.language.encoding import decode_normal, encode_normal
from cluster.language.normal import NUMBER, Kinds, NormalForm
from cluster.matching import kernels, layout, outcomes
from cluster.matching.batch import Batch
from cluster.matching.hits import HEAD, Found, Hits, empty_hits, joined
from cluster.matching.memory import Memory, Room, address

_SIGN = 1 << 63
_MODULUS = 1 << 64
_FOLD_UNITS = 512
_ROWS_MIN = 256
_TRIM_EVERY = 1024  # removals


class Index:
    """Finds the subscriptions that match publications.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._map = layout.reserve()
        self._view = np.frombuffer(self._map, dtype=np.int64)
        self._m = address(self._view)
        self._rows_per_publication = 4.0
        self._removals = 0
        self._touched: dict[int, int] = {}
        for index, size in enumerate(layout.POOL_SIZES):
            self._set(layout.H_POOL_BYTES + 8 * index, size)
        self._map[layout.H_WEIGHT : layout.H_WEIGHT + 8] = struct.pack("<d", 1.0)

    def add(self, subscription: int, normal_form: NormalForm, client: int) -> None:
        """Add a subscription, or replace the one with this id in one step; the same as `add_encoded`."""
        self.add_encoded(subscription, encode_normal(normal_form), client)

    def add_encoded(self, subscription: int, normal_form: bytes, client: int) -> None:
        """Add a subscription, or replace the one with this id in one step.

        subscription: 0 <= id < 2**64. client: 0 <= client < 2**63. Raises ValueError for others.
        normal_form:  as `encode_normal` writes it. Raises CodecError for bytes that are none, ValueError for one that
                      is too large: 16 MiB, some 80,000 bytes a string, 2500 atoms a conjunction. Nothing is changed.
        Cost: a few microseconds, whatever the index holds.
        """
        if not 0 <= subscription < _MODULUS or not 0 <= client < _SIGN:
            raise ValueError(f"subscription {subscription} or client {client} is out of range")
        size = len(normal_form)
        if size > layout.ENCODED_BYTES:
            raise ValueError(f"a normal form of {size} bytes is larger than {layout.ENCODED_BYTES}")
        if subscription >= _SIGN:
            subscription -= _MODULUS
        outcome = kernels.add(self._m, subscription, client, normal_form, size)
        if outcome != outcomes.PACKED:
            # It may not be one, or one that is not as it is written here: Python refuses it or writes it anew.
            again = encode_normal(decode_normal(normal_form))
            outcome = kernels.add(self._m, subscription, client, again, len(again))
            assert outcome != outcomes.NOT_UNDERSTOOD, f"the normal form {again!r} is not understood"
        if outcome == outcomes.TOO_LARGE:
            raise ValueError("a string, set or conjunction of the normal form is too large for the index")
        if outcome == outcomes.TOO_MANY_ATTRIBUTES:
            raise MemoryError("the index knows as many attributes as it can")

    def remove(self, subscription: int) -> bool:
        """Remove a subscription; tell whether it was there."""
        if not 0 <= subscription < _MODULUS:
            return False
        if subscription >= _SIGN:
            subscription -= _MODULUS
        if not kernels.remove(self._m, subscription):
            return False
        self._removals += 1
        if self._removals % _TRIM_EVERY == 0:
            self._trim()
        return True

    def match(self, batch: Batch, room: Room | None = None) -> Hits:
        """Return which publication matches which subscription.

        room: where the hits may lie; then they are good until the next ones are put there.
        """
        count = batch.count
        if count == 0:
            return empty_hits()
        rows = _ROWS_MIN + int(1.125 * self._rows_per_publication * count)
        parts: list[Hits] = []
        first = 0
        while True:
            # A place for a subscription and a run, of 8 and 24 bytes; the system backs only what is written to.
            words = HEAD + 4 * rows
            memory = Memory(words) if room is None or parts else room.take(words)
            kernels.match(self._m, batch.payload, batch.at, first, memory.at, rows)
            found = Found(memory, rows)
            first, needed = found.stopped
            parts.append(found)
            if first == count:
                break
            rows = max(2 * rows, 2 * needed + _ROWS_MIN)
        hits = parts[0] if len(parts) == 1 else joined(parts)
        self._rows_per_publication += 0.25 * (hits.count / count - self._rows_per_publication)
        return hits

    def fold(self, units: int = _FOLD_UNITS) -> bool:
        """Do some maintenance: reconsider where conjunctions lie, shorten tables. For idle times; never needed.

        units: conjunctions to look at; 512 take less than 2 ms. Returns whether more is to be done now.
        """
        if kernels.sweep(self._m, units):
            return True
        if self._removals and not self._trim():
            self._removals = 0
        return self._removals > 0

    def __len__(self) -> int:
        return self._get(layout.H_SUBSCRIPTIONS)

    @property
    def work(self) -> int:
        """Units of maintenance done, ever: words moved, blocks split, conjunctions looked at. For tests of pauses."""
        return self._get(layout.H_WORK)

    def memory_bytes(self) -> int:
        """Return the bytes in use: the mapping's pages up to each region's last item."""
        return sum(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE for _, end in self._regions())

    def check(self) -> None:
        """Verify every invariant; costly, for tests. Raises AssertionError."""
        from cluster.matching.check import check

        check(self)

    def _regions(self) -> list[tuple[int, int]]:
        """Return (start, bytes in use) of the regions that grow with the index."""
        conjunctions = self._get(layout.H_CONJUNCTIONS) + 1
        leaves = self._get(layout.H_LEAVES)
        predicates = self._get(layout.H_PREDICATES) + 1
        attributes = self._get(layout.H_ATTRIBUTES) + 1
        clusters = self._get(layout.H_CLUSTERS) + 1
        sized = [(layout.LIVE, 16 * max(attributes, predicates)), (layout.LINKS, 8 * self._get(layout.H_LINKS))]
        sized.append((layout.COUNTERS, 4 << 18 if conjunctions > 1 << 18 else 4 * conjunctions))
        for region in (layout.C_POSITION, layout.C_SIBLING, layout.C_HASH, layout.C_NEXT):
            sized.append((region, 4 * conjunctions))
        for region in (layout.C_LEAF, layout.C_RECORD):
            sized.append((region, 8 * conjunctions))
        for region in (layout.O_SUBSCRIPTION, layout.O_CLIENT):
            sized.append((region, 8 * 256 * leaves))
        sized.append((layout.O_FIRST, 4 * 256 * leaves))
        sized.append((layout.O_MARKS, 2 * 256 * leaves))
        for slot in range(layout.SLOTS):
            sized.append((layout.O_BITS + layout.BITS_STEP * slot, 32 * leaves))
            sized.append((layout.O_TOUCHED + layout.TOUCHED_STEP * slot, leaves))
        for region in (layout.O_COUNT, layout.O_RANK, layout.O_LEAVES):
            sized.append((region, 4 * leaves))
        for region in (layout.P_META, layout.P_KEY, layout.P_BODY, layout.P_SEEN):
            sized.append((region, 8 * predicates))
        for region in (
            layout.P_USES,
            layout.P_CLUSTERS,
            layout.P_OWNERS,
            layout.P_LISTED,
            layout.P_HASH,
            layout.P_NEXT,
        ):
            sized.append((region, 4 * predicates))
        for region in range(layout.A_NAME, layout.A_HEADS, layout.REGION_STEP):
            sized.append((region, (8 * layout.SLOTS if region == layout.A_ROW else 8) * attributes))
        for region in range(layout.K_KEY, layout.K_HEADS, layout.REGION_STEP):
            sized.append((region, 8 * clusters if region <= layout.K_ROOT else 4 * clusters))
        for region, cell in (
            (layout.C_HEADS, layout.H_ID_BUCKETS),
            (layout.P_HEADS, layout.H_PREDICATE_BUCKETS),
            (layout.A_HEADS, layout.H_ATTRIBUTE_BUCKETS),
            (layout.K_HEADS, layout.H_CLUSTER_BUCKETS),
        ):
            sized.append((region, 4 * self._get(cell)))
        for index, size in enumerate(layout.POOL_SIZES):
            used = self._get(layout.H_POOL_USED + 8 * index)
            sized.append((layout.pool_start(index), used * size))
        return sized

    def _trim(self) -> bool:
        """Give pages behind the regions' ends back to the system; tell whether there are more."""
        more = False
        for start, end in self._regions():
            before = self._touched.get(start, 0)
            if end > before:
                self._touched[start] = end
            elif before - end > max(end // 4, 1 << 16):
                cut = -(-(start + end) // mmap.PAGESIZE) * mmap.PAGESIZE
                length = start + before - cut
                # At most 8 MB in one go, from the far end, so that giving back is no pause either.
                length = min(length, 8 << 20) // mmap.PAGESIZE * mmap.PAGESIZE
                far = -(-(start + before) // mmap.PAGESIZE) * mmap.PAGESIZE
                if length:
                    self._map.madvise(mmap.MADV_DONTNEED, far - length, length)
                    self._touched[start] = before - length
                    more = True
        return more

    def _get(self, cell: int) -> int:
        return int(self._view[cell >> 3])

    def _set(self, cell: int, value: int) -> None:
        self._view[cell >> 3] = value


def warm() -> None:
    """Compile everything, or load it from disk, so that no first message waits for it.

    Cost: a minute where nothing is kept on disk yet, a tenth of a second otherwise. Run it once before starting several
    processes.
    """
    index = Index()
    index.add(1, ((Kinds("a", NUMBER),),), 1)
    index.match(Batch.of([{"a": 1}]))
    index.fold(1)
    index.remove(1)
