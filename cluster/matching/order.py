"""All subscriptions in the order of the output: sorted by (client, id), at any time, without ever being sorted.

Each subscription has a position; positions come in leaves of 256, sorted within a leaf, and the leaves have a
rank. A match sets the position's bit, whichever conjunction found it, so that two true conjunctions of one
filter are one hit; reading the bits of the touched leaves by rank gives the hits in order, at about a
nanosecond a hit, where sorting would take tens. An insertion moves at most 256 positions and, once in a
hundred times, splits a leaf and shifts the ranks.

Rejected: a rank per subscription over all of them, which is dense but has to be rebuilt (a pause, or a delta that
must be merged into every answer).
"""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.layout import (
    C_POSITION,
    C_SIBLING,
    H_LEAVES,
    H_WORK,
    O_CLIENT,
    O_COUNT,
    O_FIRST,
    O_LEAVES,
    O_RANK,
    O_SUBSCRIPTION,
)
from cluster.matching.machine import below, load32, load64, store32, store64

LEAF = 256
_THIN = 64  # a leaf below this many looks for a neighbour to join
_JOINED_MAX = 192


@compiled
def _precedes(m: int, position: int, client: int, subscription: int) -> bool:
    """Tell whether the subscription at the position stands before the key."""
    other = load64(m + O_CLIENT + 8 * position)
    if other != client:
        return other < client
    return below(load64(m + O_SUBSCRIPTION + 8 * position), subscription)


@compiled
def _move(m: int, source: int, target: int) -> None:
    """Move the subscription at a position to another one, whose content is lost."""
    store64(m + O_SUBSCRIPTION + 8 * target, load64(m + O_SUBSCRIPTION + 8 * source))
    store64(m + O_CLIENT + 8 * target, load64(m + O_CLIENT + 8 * source))
    conjunction = load32(m + O_FIRST + 4 * source)
    store32(m + O_FIRST + 4 * target, conjunction)
    while conjunction:
        store32(m + C_POSITION + 4 * conjunction, target)
        conjunction = load32(m + C_SIBLING + 4 * conjunction)


@compiled
def _insert_leaf(m: int, rank: int) -> int:
    """Make an empty leaf stand at a rank; returns it."""
    leaves = load64(m + H_LEAVES)
    store64(m + H_LEAVES, leaves + 1)
    for other in range(leaves, rank, -1):
        leaf = load32(m + O_LEAVES + 4 * (other - 1))
        store32(m + O_LEAVES + 4 * other, leaf)
        store32(m + O_RANK + 4 * leaf, other)
    store64(m + H_WORK, load64(m + H_WORK) + leaves - rank)
    store32(m + O_LEAVES + 4 * rank, leaves)
    store32(m + O_RANK + 4 * leaves, rank)
    store32(m + O_COUNT + 4 * leaves, 0)
    return leaves


@compiled
def _remove_leaf(m: int, leaf: int) -> None:
    """Remove an empty leaf; the last one takes its number."""
    last = load64(m + H_LEAVES) - 1
    store64(m + H_LEAVES, last)
    rank = load32(m + O_RANK + 4 * leaf)
    for other in range(rank, last):
        moved = load32(m + O_LEAVES + 4 * (other + 1))
        store32(m + O_LEAVES + 4 * other, moved)
        store32(m + O_RANK + 4 * moved, other)
    store64(m + H_WORK, load64(m + H_WORK) + last - rank)
    if leaf == last:
        return
    count = load32(m + O_COUNT + 4 * last)
    for index in range(count):
        _move(m, last * LEAF + index, leaf * LEAF + index)
    rank = load32(m + O_RANK + 4 * last)
    store32(m + O_COUNT + 4 * leaf, count)
    store32(m + O_RANK + 4 * leaf, rank)
    store32(m + O_LEAVES + 4 * rank, leaf)


@compiled
def insert(m: int, client: int, subscription: int, conjunction: int) -> int:
    """Insert a subscription whose first conjunction is given (siblings linked); returns its position."""
    leaves = load64(m + H_LEAVES)
    if leaves == 0:
        _insert_leaf(m, 0)
        leaves = 1
    low = 0  # the last leaf whose first subscription precedes the key, or the first leaf
    high = leaves
    while high - low > 1:
        middle = (low + high) // 2
        if _precedes(m, load32(m + O_LEAVES + 4 * middle) * LEAF, client, subscription):
            low = middle
        else:
            high = middle
    rank = low
    leaf = load32(m + O_LEAVES + 4 * rank)
    count = load32(m + O_COUNT + 4 * leaf)
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if _precedes(m, leaf * LEAF + middle, client, subscription):
            low = middle + 1
        else:
            high = middle
    place = low
    if count == LEAF:
        # Ids often ascend, so that insertions come at one place: split there, and full leaves stay behind.
        cut = place if place >= LEAF // 2 else LEAF // 2
        other = _insert_leaf(m, rank + 1)
        for index in range(cut, LEAF):
            _move(m, leaf * LEAF + index, other * LEAF + index - cut)
        store32(m + O_COUNT + 4 * leaf, cut)
        store32(m + O_COUNT + 4 * other, LEAF - cut)
        if place > cut or cut == LEAF:
            leaf = other
            place -= cut
        count = load32(m + O_COUNT + 4 * leaf)
    for index in range(count, place, -1):
        _move(m, leaf * LEAF + index - 1, leaf * LEAF + index)
    store64(m + H_WORK, load64(m + H_WORK) + count - place)
    store32(m + O_COUNT + 4 * leaf, count + 1)
    position = leaf * LEAF + place
    store64(m + O_SUBSCRIPTION + 8 * position, subscription)
    store64(m + O_CLIENT + 8 * position, client)
    store32(m + O_FIRST + 4 * position, conjunction)
    while conjunction:
        store32(m + C_POSITION + 4 * conjunction, position)
        conjunction = load32(m + C_SIBLING + 4 * conjunction)
    return position


@compiled
def remove(m: int, position: int) -> None:
    """Remove the subscription at a position."""
    leaf = position // LEAF
    count = load32(m + O_COUNT + 4 * leaf) - 1
    for index in range(position - leaf * LEAF, count):
        _move(m, leaf * LEAF + index + 1, leaf * LEAF + index)
    store64(m + H_WORK, load64(m + H_WORK) + count)
    store32(m + O_COUNT + 4 * leaf, count)
    if count == 0:
        _remove_leaf(m, leaf)
        return
    if count >= _THIN:
        return
    rank = load32(m + O_RANK + 4 * leaf)
    if rank + 1 < load64(m + H_LEAVES):
        following = load32(m + O_LEAVES + 4 * (rank + 1))
        if count + load32(m + O_COUNT + 4 * following) <= _JOINED_MAX:
            _join(m, leaf, following)
            return
    if rank > 0:
        previous = load32(m + O_LEAVES + 4 * (rank - 1))
        if count + load32(m + O_COUNT + 4 * previous) <= _JOINED_MAX:
            _join(m, previous, leaf)


@compiled
def _join(m: int, leaf: int, following: int) -> None:
    """Append all of the following leaf to a leaf and remove it."""
    count = load32(m + O_COUNT + 4 * leaf)
    more = load32(m + O_COUNT + 4 * following)
    for index in range(more):
        _move(m, following * LEAF + index, leaf * LEAF + count + index)
    store64(m + H_WORK, load64(m + H_WORK) + more)
    store32(m + O_COUNT + 4 * leaf, count + more)
    store32(m + O_COUNT + 4 * following, 0)
    _remove_leaf(m, following)
