"""Adding and removing whole subscriptions."""

from __future__ import annotations

from cluster.matching import filing, order, records, table
from cluster.matching.compiled import compiled
from cluster.matching.layout import (
    C_HASH,
    C_HEADS,
    C_LEAF,
    C_NEXT,
    C_POSITION,
    C_RECORD,
    C_SIBLING,
    H_CONJUNCTIONS,
    H_ID_BUCKETS,
    H_SUBSCRIPTIONS,
    O_FIRST,
    O_SUBSCRIPTION,
    S_INPUT,
)
from cluster.matching.machine import fold_multiply, load32, load64, store32, store64
from cluster.matching.pool import B_ITEMS, own

_CONJUNCTIONS_MAX = 1 << 29


@compiled
def _hash_id(subscription: int) -> int:
    return fold_multiply(subscription ^ 0x2D358DCCAA6C78A5, 0x4BE98134A5976FD3) & 0xFFFFFFFF


@compiled
def find(m: int, subscription: int) -> int:
    """Return a subscription's first conjunction, or 0."""
    conjunction = table.first(m, H_ID_BUCKETS, C_HEADS, _hash_id(subscription))
    while conjunction:
        if load64(m + O_SUBSCRIPTION + 8 * load32(m + C_POSITION + 4 * conjunction)) == subscription:
            return conjunction
        conjunction = load32(m + C_NEXT + 4 * conjunction)
    return 0


@compiled
def remove(m: int, subscription: int) -> bool:
    """Remove a subscription; tell whether it was there."""
    first = find(m, subscription)
    if first == 0:
        return False
    live = load64(m + H_SUBSCRIPTIONS) - 1
    store64(m + H_SUBSCRIPTIONS, live)
    table.remove(m, H_ID_BUCKETS, C_HEADS, C_NEXT, C_HASH, first, live)
    order.remove(m, load32(m + C_POSITION + 4 * first))
    conjunction = first
    while conjunction:
        following = load32(m + C_SIBLING + 4 * conjunction)
        filing.unfile(m, conjunction)
        records.destroy(m, conjunction)
        last = load64(m + H_CONJUNCTIONS)
        if last != conjunction:
            # The last conjunction takes the number; if it is a sibling yet to be removed, that is where to go on.
            _renumber(m, last, conjunction, following)
            if following == last:
                following = conjunction
        store64(m + H_CONJUNCTIONS, last - 1)
        conjunction = following
    return True


@compiled
def _renumber(m: int, old: int, new: int, leaving: int) -> None:
    """Give a conjunction another number.

    leaving: the rest of the chain that is being removed, no longer in the order.
    """
    store32(m + C_POSITION + 4 * new, load32(m + C_POSITION + 4 * old))
    store32(m + C_SIBLING + 4 * new, load32(m + C_SIBLING + 4 * old))
    word = load64(m + C_LEAF + 8 * old)
    store64(m + C_LEAF + 8 * new, word)
    store32(m + (word >> 6) + B_ITEMS + 4 * (word & 63), new)
    own(m, load64(m + C_RECORD + 8 * old), C_RECORD + 8 * new)
    store32(m + C_HASH + 4 * new, load32(m + C_HASH + 4 * old))
    store32(m + C_NEXT + 4 * new, load32(m + C_NEXT + 4 * old))
    other = leaving
    before = 0
    while other and other != old:
        before = other
        other = load32(m + C_SIBLING + 4 * other)
    if other == old:
        if before:
            store32(m + C_SIBLING + 4 * before, new)
        return
    at = m + O_FIRST + 4 * load32(m + C_POSITION + 4 * new)
    if load32(at) == old:
        table.rename(m, H_ID_BUCKETS, C_HEADS, C_NEXT, C_HASH, old, new)
    while load32(at) != old:
        at = m + C_SIBLING + 4 * load32(at)
    store32(at, new)


@compiled
def add(m: int, subscription: int, client: int) -> None:
    """Add a subscription whose packed normal form is in S_INPUT, or replace the one with this id."""
    at = m + S_INPUT
    conjunctions = load64(at)
    at += 8
    count = load64(m + H_CONJUNCTIONS)
    if count + conjunctions > _CONJUNCTIONS_MAX:
        raise MemoryError("the index holds as many conjunctions as it can")
    remove(m, subscription)
    count = load64(m + H_CONJUNCTIONS)
    first = 0
    for _ in range(conjunctions):
        count += 1
        store64(m + H_CONJUNCTIONS, count)
        at = records.build(m, at, count)
        filing.file(m, count)
        store32(m + C_SIBLING + 4 * count, first)
        first = count
    order.insert(m, client, subscription, first)
    live = load64(m + H_SUBSCRIPTIONS) + 1
    store64(m + H_SUBSCRIPTIONS, live)
    table.insert(m, H_ID_BUCKETS, C_HEADS, C_NEXT, C_HASH, first, _hash_id(subscription), live)
