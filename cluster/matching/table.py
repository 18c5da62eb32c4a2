"""Hash tables that grow and shrink by one bucket at a time (linear hashing), so that no insertion ever rebuilds one.

A table is three 32-bit tables of the layout: heads (by bucket), nexts and hashes (by item), and a header word that
counts buckets. Chains end in 0. About one item a bucket.
Source: Litwin, Linear hashing, VLDB 1980.
"""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.machine import load32, load64, store32, store64

_BUCKETS_MIN = 8


@compiled
def bucket_of(hash32: int, buckets: int) -> int:
    """Return the bucket of a hash among `buckets`."""
    mask = 8
    while mask < buckets:
        mask *= 2
    bucket = hash32 & (mask - 1)
    return bucket if bucket < buckets else bucket & (mask // 2 - 1)


@compiled
def first(m: int, cell: int, heads: int, hash32: int) -> int:
    """Return the first item of the chain that a hash belongs to."""
    buckets = load64(m + cell)
    if buckets == 0:
        return 0
    return load32(m + heads + 4 * bucket_of(hash32, buckets))


@compiled
def insert(m: int, cell: int, heads: int, nexts: int, hashes: int, item: int, hash32: int, items: int) -> None:
    """Insert an item; `items` counts it already."""
    buckets = load64(m + cell)
    if buckets == 0:
        buckets = _BUCKETS_MIN
        for bucket in range(buckets):
            store32(m + heads + 4 * bucket, 0)
        store64(m + cell, buckets)
    store32(m + hashes + 4 * item, hash32)
    at = m + heads + 4 * bucket_of(hash32, buckets)
    store32(m + nexts + 4 * item, load32(at))
    store32(at, item)
    if items > buckets:
        half = 8
        while half * 2 <= buckets:
            half *= 2
        source = buckets - half
        store64(m + cell, buckets + 1)
        moving = load32(m + heads + 4 * source)
        kept = 0
        moved = 0
        while moving:
            following = load32(m + nexts + 4 * moving)
            if bucket_of(load32(m + hashes + 4 * moving), buckets + 1) == source:
                store32(m + nexts + 4 * moving, kept)
                kept = moving
            else:
                store32(m + nexts + 4 * moving, moved)
                moved = moving
            moving = following
        store32(m + heads + 4 * source, kept)
        store32(m + heads + 4 * buckets, moved)


@compiled
def remove(m: int, cell: int, heads: int, nexts: int, hashes: int, item: int, items: int) -> None:
    """Remove an item; `items` no longer counts it."""
    buckets = load64(m + cell)
    at = m + heads + 4 * bucket_of(load32(m + hashes + 4 * item), buckets)
    while load32(at) != item:
        at = m + nexts + 4 * load32(at)
    store32(at, load32(m + nexts + 4 * item))
    for _ in range(2):  # two, so that the buckets keep up with the items
        if buckets <= _BUCKETS_MIN or items >= buckets // 2:
            break
        half = 8
        while half * 2 < buckets:
            half *= 2
        buckets -= 1
        store64(m + cell, buckets)
        moving = load32(m + heads + 4 * buckets)
        target = m + heads + 4 * (buckets - half)
        while moving:
            following = load32(m + nexts + 4 * moving)
            store32(m + nexts + 4 * moving, load32(target))
            store32(target, moving)
            moving = following


@compiled
def rename(m: int, cell: int, heads: int, nexts: int, hashes: int, item: int, new: int) -> None:
    """Give an item another number; the caller has copied its entry in `nexts` and `hashes`."""
    at = m + heads + 4 * bucket_of(load32(m + hashes + 4 * item), load64(m + cell))
    while load32(at) != item:
        at = m + nexts + 4 * load32(at)
    store32(at, new)
