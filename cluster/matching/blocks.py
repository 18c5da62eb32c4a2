"""The search in a cluster's blocks, and the bits that hits leave."""

from __future__ import annotations

from cluster.matching import records, tiles
from cluster.matching.compiled import compiled
from cluster.matching.layout import (
    BITS_STEP,
    C_POSITION,
    C_RECORD,
    H_CHECKED,
    H_LEAVES,
    H_STAMP,
    H_WASTED,
    LIVE,
    O_BITS,
    O_RANK,
    O_TOUCHED,
    S_LOOKED,
    S_READ_ALL,
    S_STACK,
    S_VALUES,
    TOUCHED_STEP,
)
from cluster.matching.machine import (
    bytes_below,
    bytes_equal,
    count_bits,
    greater_equal_8,
    greater_equal_16,
    greater_equal_32,
    greater_equal_64,
    less_equal_8,
    less_equal_16,
    less_equal_32,
    less_equal_64,
    load32,
    load64,
    load_double,
    lowest_bit,
    prefetch,
    store8,
    store64,
)
from cluster.matching.pool import B_CAPACITY, B_COUNT, B_ITEMS, B_RESIDUE

_DENSE = 16
"""Hits in a leaf times this above the leaves of the order: reading all bits costs less than marking.

With 48, geofence spent 40 % of its time reading 400 leaves for 20 hits (100,000 subscriptions, AMD EPYC)."""
_WHOLE_COLUMNS_MAX = 6  # with more columns hardly ever does a whole block hold


@compiled
def hit(m: int, slot: int, conjunction: int) -> None:
    """Set the bit of a conjunction's subscription and touch its leaf."""
    position = load32(m + C_POSITION + 4 * conjunction)
    word = m + O_BITS + BITS_STEP * slot + 8 * (position >> 6)
    store64(word, load64(word) | 1 << (position & 63))
    store8(m + O_TOUCHED + TOUCHED_STEP * slot + load32(m + O_RANK + 4 * (position >> 8)), 1)


@compiled
def _hit_many(m: int, slot: int, items: int, mask: int, count: int) -> None:
    """Set the bits of many conjunctions of a leaf; their leaves are not touched, as all will be read."""
    bits = m + O_BITS + BITS_STEP * slot
    if count_bits(mask) == count:
        for place in range(count):
            position = load32(m + C_POSITION + 4 * load32(items + 4 * place))
            word = bits + 8 * (position >> 6)
            store64(word, load64(word) | 1 << (position & 63))
        return
    while mask:
        position = load32(m + C_POSITION + 4 * load32(items + 4 * lowest_bit(mask)))
        word = bits + 8 * (position >> 6)
        store64(word, load64(word) | 1 << (position & 63))
        mask &= mask - 1


@compiled
def _at_most(at: int, count: int, value: float) -> int:
    """Return which of `count` doubles are <= the value; bits from `count` on are arbitrary."""
    if count > 32:
        return less_equal_64(at, value)
    if count > 16:
        return less_equal_32(at, value)
    if count > 8:
        return less_equal_16(at, value)
    return less_equal_8(at, value)


@compiled
def _at_least(at: int, count: int, value: float) -> int:
    """Return which of `count` doubles are >= the value; bits from `count` on are arbitrary."""
    if count > 32:
        return greater_equal_64(at, value)
    if count > 16:
        return greater_equal_32(at, value)
    if count > 8:
        return greater_equal_16(at, value)
    return greater_equal_8(at, value)


@compiled
def _compare_codes(m: int, leaf: int, words: int, columns: int, mask: int) -> int:
    """Return which of the entries in the mask hold, in a leaf of 64.

    By their codes, and by their bounds where the codes are equal.
    """
    ranges = tiles.codes_at(leaf)
    codes = ranges + 16 * columns
    unsure = 0
    for column in range(columns):
        value = load_double(m + S_VALUES + 8 * column)
        code = tiles.code_of(value, load_double(ranges), load_double(ranges + 8))
        equal = bytes_equal(codes, code)
        # LOWER: below or equal; UPPER: not below. Without a branch, which would be guessed wrong half the time.
        mask &= (bytes_below(codes, code) ^ -(load64(words + 8 * column) & 1)) | equal
        unsure |= equal
        if mask == 0:
            return 0
        ranges += 16
        codes += tiles.FAN
    unsure &= mask
    while unsure:
        place = lowest_bit(unsure)
        unsure &= unsure - 1
        at = tiles.bounds_at(leaf, columns) + 8 * place
        for column in range(columns):
            value = load_double(m + S_VALUES + 8 * column)
            bound = load_double(at)
            if not (value <= bound if load64(words + 8 * column) & 1 else bound <= value):
                mask &= ~(1 << place)
                break
            at += 8 * tiles.FAN
    return mask


@compiled
def search_leaf(m: int, slot: int, leaf: int, words: int, columns: int, whole: bool, payload: int) -> int:
    """Hit the entries of a leaf that hold for the values in S_VALUES; returns how many.

    leaf: address. words: address of the key's columns. whole: all bounds are known to hold.
    """
    count = load32(leaf + B_COUNT)
    capacity = load32(leaf + B_CAPACITY)
    mask = -1 if count == tiles.FAN else (1 << count) - 1
    if not whole:
        if capacity == tiles.FAN:
            mask = _compare_codes(m, leaf, words, columns, mask)
        else:
            at = leaf + B_ITEMS + 8 * capacity
            for column in range(columns):
                value = load_double(m + S_VALUES + 8 * column)
                if load64(words + 8 * column) & 1:
                    mask &= greater_equal_16(at, value)
                else:
                    mask &= less_equal_16(at, value)
                at += 8 * capacity
        if mask == 0:
            return 0
    residue = mask & load64(leaf + B_RESIDUE)
    mask ^= residue
    hits = count_bits(mask)
    items = leaf + B_ITEMS
    if load64(m + S_READ_ALL + 8 * slot) or hits * _DENSE > load64(m + H_LEAVES):
        store64(m + S_READ_ALL + 8 * slot, 1)
        _hit_many(m, slot, items, mask, count)
    else:
        while mask:
            hit(m, slot, load32(items + 4 * lowest_bit(mask)))
            mask &= mask - 1
    if residue:
        hits += _verify(m, slot, items, items + 4 * capacity, residue, payload)
    return hits


@compiled
def _verify(m: int, slot: int, items: int, guards: int, mask: int, payload: int) -> int:
    """Hit the entries whose records hold; returns how many."""
    stamp = load64(m + H_STAMP)
    checked = 0
    held = 0
    rest = mask & (mask - 1)  # all but the first, which is looked at now
    while rest:
        place = lowest_bit(rest)
        rest &= rest - 1
        if load64(m + LIVE + 8 * load32(guards + 4 * place)) == stamp:
            prefetch(m + load64(m + C_RECORD + 8 * load32(items + 4 * place)))
    while mask:
        place = lowest_bit(mask)
        mask &= mask - 1
        if load64(m + LIVE + 8 * load32(guards + 4 * place)) == stamp:
            conjunction = load32(items + 4 * place)
            checked += 1
            if records.holds(m, load64(m + C_RECORD + 8 * conjunction), payload):
                held += 1
                hit(m, slot, conjunction)
    store64(m + H_CHECKED, load64(m + H_CHECKED) + checked)
    store64(m + H_WASTED, load64(m + H_WASTED) + checked - held)
    return held


@compiled
def children(m: int, node: int, words: int, columns: int) -> tuple[int, int]:
    """Return which children of a node may have entries that hold for the values in S_VALUES, and which hold whole."""
    count = load32(node + B_COUNT)
    capacity = load32(node + B_CAPACITY)
    some = -1 if count == tiles.FAN else (1 << count) - 1
    every = some if columns <= _WHOLE_COLUMNS_MAX else 0
    at = node + B_ITEMS + 8 * capacity
    for column in range(columns):
        value = load_double(m + S_VALUES + 8 * column)
        if load64(words + 8 * column) & 1:
            some &= _at_least(at + 8 * capacity, count, value)
            if every:
                every &= _at_least(at, count, value)
        else:
            some &= _at_most(at, count, value)
            if every:
                every &= _at_most(at + 8 * capacity, count, value)
        if some == 0:
            break
        at += 16 * capacity
    return some, every


@compiled
def prefetch_block(m: int, block: int) -> None:
    """Ask for the beginning of a block and, as it may be a leaf, for its codes."""
    codes = tiles.codes_at(0)
    prefetch(m + block)
    prefetch(m + block + 64)
    prefetch(m + block + codes)
    prefetch(m + block + codes + 64)


@compiled
def prefetch_leaf(m: int, leaf: int, columns: int) -> None:
    """Ask for what is looked at in a leaf of 64: its entries, and the ranges and codes of its bounds."""
    for line in range(0, B_ITEMS + 4 * tiles.FAN, 64):
        prefetch(m + leaf + line)
    codes = m + tiles.codes_at(leaf)
    for line in range(0, tiles.CODES_BYTES * columns + 64, 64):
        prefetch(codes + line)


@compiled
def search_tree(m: int, slot: int, root: int, height: int, words: int, columns: int, payload: int) -> int:
    """Search below a node; returns hits."""
    # A stack word: the block's ref, and in its low bits the height << 1 | whole.
    stack = m + S_STACK
    store64(stack, root | height << 1)
    depth = 1
    hits = 0
    looked = 0
    while depth:
        depth -= 1
        word = load64(stack + 8 * depth)
        whole = word & 1
        level = (word >> 1) & 7
        block = m + (word & ~15)
        if level == 0:
            hits += search_leaf(m, slot, block, words, columns, whole != 0, payload)
            looked += 1
            continue
        if whole:
            count = load32(block + B_COUNT)
            some = -1 if count == tiles.FAN else (1 << count) - 1
            every = some
        else:
            some, every = children(m, block, words, columns)
        lower = (level - 1) << 1
        while some:
            place = lowest_bit(some)
            some &= some - 1
            child = load64(block + B_ITEMS + 8 * place)
            if level == 1:
                prefetch_leaf(m, child, columns)
            else:
                prefetch_block(m, child)
            store64(stack + 8 * depth, child | lower | ((every >> place) & 1))
            depth += 1
    store64(m + S_LOOKED, load64(m + S_LOOKED) + looked)
    return hits
