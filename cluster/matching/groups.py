"""The search of a cluster for a group of publications at once.

Only for clusters that ask for nothing but numbers within ranges, so that a publication is no more than a number in
each column. Each block is looked at once, with all publications of the group, while it is in the processor's
fastest cache, and what is found about an entry is one word of 16 bits, one a publication (a slot): an entry
that several of them hit is looked up and marked once. Where hits are many, marks are what the order keeps, by
position (O_MARKS): positions are looked up one leaf behind the search and marked two leaves behind, as both come from
all over memory and are asked for a leaf ahead. `read_marks` turns the marks to the bits by slot that are read off, 64
positions at a time.

Leaves of 64 fit this: a comparison gives 64 bits of one slot; `turn_16` turns 16 of them to 64 words of 16. A node's
children, few in most clusters, are each compared with the numbers of all slots at once (`below_16`).
"""

from __future__ import annotations

from cluster.matching import blocks, tiles
from cluster.matching.compiled import compiled
from cluster.matching.layout import (
    A_ROW,
    BITS_STEP,
    C_POSITION,
    H_LEAVES,
    O_BITS,
    O_MARKS,
    S_GROUP,
    S_HITS,
    S_LOOKED,
    S_READ_ALL,
    S_STACK,
    S_VALUES,
    SLOTS,
)
from cluster.matching.machine import (
    below_16,
    bytes_below,
    bytes_equal,
    clear_lanes,
    codes_16,
    compare_16,
    count_bits,
    load8,
    load16,
    load32,
    load64,
    load_double,
    lowest_bit,
    marked_lanes,
    nonzero_16,
    numbers_16,
    prefetch,
    store16,
    store64,
    store_double,
    turn_16,
)
from cluster.matching.pool import B_CAPACITY, B_COUNT, B_ITEMS

# Places in S_GROUP. Lanes are zero but while a block is looked at.
_ROWS = S_GROUP  # by column: address of the numbers by slot
_SIDES = S_GROUP + 256  # by column: LOWER or UPPER
_MARKED = S_GROUP + 512  # whether the group has marks
_FOUND_COUNT = S_GROUP + 520  # entries found in the last leaf with some, while their positions come from memory
_POSITIONS_COUNT = S_GROUP + 528  # positions of the entries of the one before it, while their marks come
_MASKS = S_GROUP + 1024  # by slot: which entries of the leaf hold
_EQUAL = _MASKS + 8 * SLOTS  # by slot: which of these have a code equal to the slot's
_FOUND = S_GROUP + 2048  # lanes: which slots hit the entry; arbitrary between leaves
_CODES = S_GROUP + 4096  # by column: the code of the number by slot, four bytes of it; then so its finer step
_CODE_BYTES = 2 * 4 * SLOTS
_FOUND_ENTRIES = S_GROUP + 6400  # conjunction << SLOTS | the slots that hit it
_FOUND_POSITIONS = S_GROUP + 7168  # position << SLOTS | the slots that hit it
_UNSURE = S_GROUP + 8192  # entries to decide by their bounds: place | slot << 8 | column << 16

_DENSE = 8  # a leaf's hits times this above the leaves of the order: marking, and turning all marks, costs less
_ALL_SLOTS = (1 << SLOTS) - 1


@compiled
def take_columns(m: int, words: int, columns: int) -> int:
    """Prepare the search of a cluster, all of whose attributes have a row; returns the slots with all numbers."""
    slots = _ALL_SLOTS
    for column in range(columns):
        word = load64(words + 8 * column)
        row = m + A_ROW + 8 * SLOTS * (word >> 1)
        store64(m + _ROWS + 8 * column, row)
        store64(m + _SIDES + 8 * column, word & 1)
        slots &= numbers_16(row)
    return slots


@compiled
def take_values(m: int, slot: int, columns: int) -> None:
    """Set S_VALUES to a slot's numbers."""
    for column in range(columns):
        store_double(m + S_VALUES + 8 * column, load_double(load64(m + _ROWS + 8 * column) + 8 * slot))


@compiled
def count_hits(m: int, slot: int, hits: int) -> None:
    """Add to a slot's hits."""
    store64(m + S_HITS + 8 * slot, load64(m + S_HITS + 8 * slot) + hits)


@compiled
def search(m: int, root: int, height: int, words: int, columns: int, slots: int, payload: int) -> None:
    """Search a cluster, prepared by `take_columns`, for these slots."""
    # Two stack words: the block's ref, and in its low bits the height; the slots that may have hits, and above them
    # those that hit all.
    stack = m + S_STACK
    store64(stack, root | height)
    store64(stack + 8, slots)
    depth = 1
    looked = 0
    while depth:
        depth -= 1
        word = load64(stack + 16 * depth)
        level = word & 15
        block = m + (word & ~15)
        slots = load64(stack + 16 * depth + 8)
        whole = slots >> SLOTS
        slots &= _ALL_SLOTS
        if level == 0:
            if depth:
                blocks.prefetch_leaf(m, load64(stack + 16 * depth - 16) & ~15, columns)
            _search_leaf(m, block, words, columns, slots, whole, payload)
            looked += count_bits(slots | whole)
            continue
        step = 8 * load32(block + B_CAPACITY)
        bounds = block + B_ITEMS + step
        for place in range(load32(block + B_COUNT)):
            some = 0
            every = whole
            if slots:
                outcomes = below_16(bounds + 8 * place, step, m + _ROWS, m + _SIDES, columns)
                every |= outcomes >> SLOTS & slots
                some = outcomes & slots & ~every
            if some | every:
                child = load64(block + B_ITEMS + 8 * place)
                blocks.prefetch_block(m, child)
                store64(stack + 16 * depth, child | (level - 1))
                store64(stack + 16 * depth + 8, some | every << SLOTS)
                depth += 1
    store64(m + S_LOOKED, load64(m + S_LOOKED) + looked)


@compiled
def _search_leaf(m: int, leaf: int, words: int, columns: int, slots: int, whole: int, payload: int) -> None:
    """Hit the entries of a leaf that hold: all for the slots in `whole`, those whose bounds do for the ones in `slots`.

    leaf: address.
    """
    rest = slots | whole
    if rest & (rest - 1) == 0 or load32(leaf + B_CAPACITY) != tiles.FAN:
        while rest:
            slot = lowest_bit(rest)
            rest &= rest - 1
            take_values(m, slot, columns)
            is_whole = (whole >> slot) & 1 != 0
            count_hits(m, slot, blocks.search_leaf(m, slot, leaf, words, columns, is_whole, payload))
        return
    count = load32(leaf + B_COUNT)
    full = -1 if count == tiles.FAN else (1 << count) - 1
    if slots:
        _compare(m, leaf, columns, full, slots)
        _decide(m, leaf, columns, slots & nonzero_16(m + _EQUAL))
        rest = whole | (slots & nonzero_16(m + _MASKS))
    found = 0
    hits = 0
    others = _ALL_SLOTS & ~rest
    while others:
        store64(m + _MASKS + 8 * lowest_bit(others), 0)
        others &= others - 1
    while rest:
        slot = lowest_bit(rest)
        rest &= rest - 1
        if (whole >> slot) & 1:
            store64(m + _MASKS + 8 * slot, full)
        mask = load64(m + _MASKS + 8 * slot)
        hits += count_bits(mask)
        count_hits(m, slot, count_bits(mask))
        found |= mask
    if found == 0:
        return
    turn_16(m + _MASKS, m + _FOUND)
    items = leaf + B_ITEMS
    if load64(m + _MARKED) or hits * _DENSE > load64(m + H_LEAVES):
        store64(m + _MARKED, 1)
        _mark_looked_up(m)
        _look_up(m)
        store64(m + _FOUND_COUNT, count_bits(found))
        at = m + _FOUND_ENTRIES
        while found:
            place = lowest_bit(found)
            found &= found - 1
            conjunction = load32(items + 4 * place)
            prefetch(m + C_POSITION + 4 * conjunction)
            store64(at, conjunction << SLOTS | load16(m + _FOUND + 2 * place))
            at += 8
    else:
        while found:
            place = lowest_bit(found)
            found &= found - 1
            conjunction = load32(items + 4 * place)
            rest = load16(m + _FOUND + 2 * place)
            while rest:
                blocks.hit(m, lowest_bit(rest), conjunction)
                rest &= rest - 1


@compiled
def _look_up(m: int) -> None:
    """Look up the positions of the entries found, for which the leaf before this one has asked; ask for their marks."""
    count = load64(m + _FOUND_COUNT)
    for index in range(count):
        word = load64(m + _FOUND_ENTRIES + 8 * index)
        position = load32(m + C_POSITION + 4 * (word >> SLOTS))
        prefetch(m + O_MARKS + 2 * position)
        store64(m + _FOUND_POSITIONS + 8 * index, position << SLOTS | word & _ALL_SLOTS)
    store64(m + _FOUND_COUNT, 0)
    store64(m + _POSITIONS_COUNT, count)


@compiled
def _mark_looked_up(m: int) -> None:
    """Mark the positions that the leaf before this one has looked up."""
    for index in range(load64(m + _POSITIONS_COUNT)):
        word = load64(m + _FOUND_POSITIONS + 8 * index)
        at = m + O_MARKS + 2 * (word >> SLOTS)
        store16(at, load16(at) | word & _ALL_SLOTS)
    store64(m + _POSITIONS_COUNT, 0)


@compiled
def _compare(m: int, leaf: int, columns: int, full: int, slots: int) -> None:
    """Write to _MASKS, by slot, which entries of a leaf of 64 may hold: their codes hold or are equal."""
    ranges = tiles.codes_at(leaf)
    for column in range(columns):
        start = load_double(ranges + 16 * column)
        scale = load_double(ranges + 16 * column + 8)
        codes_16(load64(m + _ROWS + 8 * column), start, scale, m + _CODES + _CODE_BYTES * column)
    codes = ranges + 16 * columns
    compare_16(codes, m + _CODES, _CODE_BYTES, m + _SIDES, columns, full, slots, m + _MASKS)


@compiled
def _decide(m: int, leaf: int, columns: int, slots: int) -> None:
    """Clear in these slots' masks the entries whose codes are equal somewhere and whose bounds do not hold.

    First all are found whose finer steps are equal too, and their bounds asked for, then they are looked at: the
    bounds are rarely in the cache.
    """
    unsure = m + _UNSURE
    codes = tiles.codes_at(leaf) + 16 * columns
    bounds = tiles.bounds_at(leaf, columns)
    while slots:
        slot = lowest_bit(slots)
        slots &= slots - 1
        mask = load64(m + _MASKS + 8 * slot)
        unsure_here = load64(m + _EQUAL + 8 * slot)
        for column in range(columns):
            own = m + _CODES + _CODE_BYTES * column + 4 * slot
            at = codes + tiles.FAN * column
            equal = mask & unsure_here & bytes_equal(at, load8(own))
            if equal == 0:
                continue
            at += tiles.FAN * columns
            step = load8(own + 4 * SLOTS)
            same = bytes_equal(at, step)
            mask &= ~equal | same | (bytes_below(at, step) ^ -load64(m + _SIDES + 8 * column))
            equal &= same
            while equal:
                place = lowest_bit(equal)
                equal &= equal - 1
                prefetch(bounds + 8 * (tiles.FAN * column + place))
                store64(unsure, place | slot << 8 | column << 16)
                unsure += 8
        store64(m + _MASKS + 8 * slot, mask)
    at = m + _UNSURE
    while at < unsure:
        word = load64(at)
        place = word & 0xFF
        slot = (word >> 8) & 0xFF
        column = word >> 16
        value = load_double(load64(m + _ROWS + 8 * column) + 8 * slot)
        bound = load_double(bounds + 8 * (tiles.FAN * column + place))
        if load64(m + _SIDES + 8 * column) == tiles.UPPER:
            fails = 0 if value <= bound else 1
        else:
            fails = 0 if bound <= value else 1
        mask = m + _MASKS + 8 * slot
        store64(mask, load64(mask) & ~(fails << place))
        at += 8


@compiled
def read_marks(m: int, size: int) -> None:
    """Turn the group's marks to the bits by slot, and have all bits of the slots with hits read."""
    if load64(m + _MARKED) == 0:
        return
    store64(m + _MARKED, 0)
    _mark_looked_up(m)
    _look_up(m)
    _mark_looked_up(m)
    for word in range(load64(m + H_LEAVES) * (256 // 64)):
        at = m + O_MARKS + 128 * word
        if marked_lanes(at, _ALL_SLOTS) == 0:
            continue
        for slot in range(size):
            target = m + O_BITS + BITS_STEP * slot + 8 * word
            store64(target, load64(target) | marked_lanes(at, 1 << slot))
        clear_lanes(at)
    for slot in range(size):
        if load64(m + S_HITS + 8 * slot):
            store64(m + S_READ_ALL + 8 * slot, 1)
