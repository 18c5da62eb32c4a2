"""Blocks of memory by size class, always dense: the last block of a class moves into a hole.

A block starts with a word that says which cell holds its ref (cell | kind), so that moving it is: copy, write the
new ref to the cell. A block has exactly one such cell. Kinds say what else points at the block:

    PLAIN  nothing
    LEAF   the entries' C_LEAF
    NODE   the children's first words (their cells lie in the node) and parents

`release` may thus move one other block, and returns the ref that this block had, so that its caller can
correct its own.
"""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.layout import C_LEAF, H_POOL_BYTES, H_POOL_USED, H_WORK, POOL, REGION_BITS, pool_start
from cluster.matching.machine import load32, load64, store64

PLAIN, LEAF, NODE = 0, 1, 2
_KIND_MASK = 7

# Leaves and nodes, see tiles.py.
B_COUNT, B_CAPACITY, B_PARENT, B_CLUSTER, B_RESIDUE, B_ITEMS = 8, 12, 16, 24, 32, 40


_start = compiled(pool_start)


@compiled
def size_class(m: int, size: int) -> int:
    """Return the smallest class whose blocks hold `size` bytes."""
    if size <= 256:
        return (size + 15) // 16 - 1
    index = 16
    width = load64(m + H_POOL_BYTES + 8 * index)
    while 0 < width < size:
        index += 1
        width = load64(m + H_POOL_BYTES + 8 * index)
    return index


@compiled
def acquire(m: int, size: int, cell: int, kind: int) -> int:
    """Return the ref of a block of at least `size` bytes and write it to the cell; the content is arbitrary."""
    index = size_class(m, size)
    used = load64(m + H_POOL_USED + 8 * index)
    width = load64(m + H_POOL_BYTES + 8 * index)
    if width == 0 or (used + 2) * width > (1 << REGION_BITS) - (1 << 20):
        raise MemoryError("the index's pool of blocks is full")
    store64(m + H_POOL_USED + 8 * index, used + 1)
    ref = _start(index) + used * width
    store64(m + ref, cell | kind)
    store64(m + cell, ref)
    return ref


@compiled
def own(m: int, ref: int, cell: int) -> None:
    """Hand a block to another cell."""
    store64(m + ref, cell | (load64(m + ref) & _KIND_MASK))
    store64(m + cell, ref)


@compiled
def release(m: int, ref: int) -> int:
    """Give a block back; its cell is left as it is.

    Returns the old ref of the block that has moved to `ref`, or 0 where none has moved.
    """
    index = (ref - POOL) >> REGION_BITS
    used = load64(m + H_POOL_USED + 8 * index) - 1
    width = load64(m + H_POOL_BYTES + 8 * index)
    store64(m + H_POOL_USED + 8 * index, used)
    last = _start(index) + used * width
    if last == ref:
        return 0
    for offset in range(0, width, 8):
        store64(m + ref + offset, load64(m + last + offset))
    store64(m + H_WORK, load64(m + H_WORK) + width // 8)
    word = load64(m + ref)
    store64(m + (word & ~_KIND_MASK), ref)
    kind = word & _KIND_MASK
    if kind == LEAF:
        for place in range(load32(m + ref + B_COUNT)):
            store64(m + C_LEAF + 8 * load32(m + ref + B_ITEMS + 4 * place), ref << 6 | place)
    elif kind == NODE:
        for place in range(load32(m + ref + B_COUNT)):
            child = load64(m + ref + B_ITEMS + 8 * place)
            store64(m + child, (ref + B_ITEMS + 8 * place) | (load64(m + child) & _KIND_MASK))
            store64(m + child + B_PARENT, ref)
    return last
