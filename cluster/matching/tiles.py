"""Clusters: conjunctions filed under the same key, in a tree of blocks of 64 whose bounds prune whole blocks at once.

A cluster's key says what its conjunctions have in common:

    access   what leads to it: a predicate, the presence of an attribute, or nothing (it is visited always). By an
             attribute with columns, entries with a residue and entries without lie in clusters of their own: the
             latter ask for nothing but numbers within ranges, and are searched for many publications at once
    others   predicates that must be true besides
    columns  (attribute, side): each entry has a bound in each column; side LOWER: value >= bound, UPPER: value <= bound

An entry is in a leaf: its conjunction, its guard, its bounds by column, and whether it has a residue
(constraints beyond the key, verified from its record; the guard is one of them that is cheap to look at
first). Leaves hold 4, 16 or 64 entries, a node 8 or 64 children with the least and greatest bound of each
column below. So one vector comparison per column says which of 64 entries hold, which of 64 children may hold
some, and which hold all of theirs (those are taken without a look).

A leaf of 64 also keeps each bound as a code, one byte: where the bound lies between the leaf's least and
greatest, in 255 steps; and as a second byte, where it lies in its step. Coding never changes the order of two numbers,
so different codes decide a comparison, and only bounds with the value's own code are compared as doubles. 64 codes are
one cache line, the doubles are eight: searching is bound by memory.

The tree is kept as in an R-tree or B-tree: an entry goes where bounds widen least; a full block splits in two
at the median of one column; a leaf that gets thin is dissolved. Every change costs at most a few blocks of
work: there is no delta to fold in and no pause. The column to split is the attribute whose bounds are spread
widest in relation to its intervals' own width, because below that width further splits exclude nothing.

Source: tiles as in sort-tile-recursive packing (Leutenegger et al., ICDE 1997), kept incrementally as in
Guttman's R-trees.
"""

from __future__ import annotations

from cluster.matching import numbers, predicates, strings, table
from cluster.matching.compiled import compiled
from cluster.matching.layout import (
    A_CLUSTERS,
    C_LEAF,
    H_ALWAYS,
    H_CLUSTER_BUCKETS,
    H_CLUSTERS,
    H_CLUSTERS_FREE,
    H_CLUSTERS_LIVE,
    H_WORK,
    K_AFTER,
    K_BEFORE,
    K_COUNT,
    K_HASH,
    K_HEADS,
    K_HEIGHT,
    K_KEY,
    K_NEXT,
    K_ROOT,
    P_CLUSTERS,
    S_KEY,
    S_MOVED,
    S_SORT,
    S_VALUES,
)
from cluster.matching.machine import (
    load8,
    load32,
    load64,
    load_double,
    store8,
    store32,
    store64,
    store_double,
)
from cluster.matching.pool import (
    B_CAPACITY,
    B_CLUSTER,
    B_COUNT,
    B_ITEMS,
    B_PARENT,
    B_RESIDUE,
    LEAF,
    NODE,
    PLAIN,
    acquire,
    own,
    release,
)
from cluster.matching.walk import hash_bytes

FAN = 64
THIN = 12  # a leaf of at most this many entries is dissolved
COLUMNS_MAX = 16
LOWER, UPPER = 0, 1
BY_NOTHING, BY_ATTRIBUTE, BY_PREDICATE, BY_ATTRIBUTE_RESIDUE = 0, 1, 2, 3

# A key's words, in its block and in S_KEY: columns | others << 32; access type | number << 8; others; columns as
# attribute << 1 | side.
KEY_COUNTS, KEY_ACCESS, KEY_WORDS = 8, 16, 24

CODES_BYTES = 16 + 2 * FAN  # of a column of a leaf of 64, see `codes_at`
_NARROW = 8  # children of a small node
_LEAST = -1.7976931348623157e308
_GREATEST = 1.7976931348623157e308


# ---- clusters ----


@compiled
def key_columns(m: int, key: int) -> int:
    """Return the number of columns of a key."""
    return load32(m + key + KEY_COUNTS)


@compiled
def key_others(m: int, key: int) -> int:
    """Return the number of predicates of a key besides its access."""
    return load32(m + key + KEY_COUNTS + 4)


@compiled
def columns_at(m: int, key: int) -> int:
    """Return the address of a key's first column word."""
    return m + key + KEY_WORDS + 8 * key_others(m, key)


@compiled
def _list_head(m: int, access: int) -> int:
    """Return the address of the list of clusters with this access."""
    type_ = access & 0xFF
    if type_ in (BY_ATTRIBUTE, BY_ATTRIBUTE_RESIDUE):
        return m + A_CLUSTERS + 4 * (access >> 8)
    if type_ == BY_PREDICATE:
        return m + P_CLUSTERS + 4 * (access >> 8)
    return m + H_ALWAYS


@compiled
def find_cluster(m: int, make: bool) -> int:
    """Return the cluster whose key is in S_KEY, made if asked, or 0."""
    size = 16 + 8 * (key_columns(m, S_KEY) + key_others(m, S_KEY))
    start = m + S_KEY + KEY_COUNTS
    hash32 = hash_bytes(start, size, start + size) & 0xFFFFFFFF
    cluster = table.first(m, H_CLUSTER_BUCKETS, K_HEADS, hash32)
    while cluster:
        if load32(m + K_HASH + 4 * cluster) == hash32:
            key = load64(m + K_KEY + 8 * cluster)
            # The counts come first, so that keys of different sizes differ in their first word.
            if load64(m + key + KEY_COUNTS) == load64(start) and strings.equal(m + key + KEY_COUNTS, start, size):
                return cluster
        cluster = load32(m + K_NEXT + 4 * cluster)
    if not make:
        return 0
    cluster = numbers.take(m, H_CLUSTERS, H_CLUSTERS_FREE, K_NEXT, K_BEFORE)
    key = acquire(m, KEY_COUNTS + size, K_KEY + 8 * cluster, PLAIN)
    strings.copy(start, m + key + KEY_COUNTS, size)
    store64(m + K_ROOT + 8 * cluster, 0)
    store32(m + K_COUNT + 4 * cluster, 0)
    store32(m + K_HEIGHT + 4 * cluster, 0)
    access = load64(m + key + KEY_ACCESS)
    head = _list_head(m, access)
    following = load32(head)
    if following:
        store32(m + K_BEFORE + 4 * following, cluster)
    elif access & 0xFF == BY_PREDICATE:
        predicates.begin_filing(m, access >> 8)
    store32(m + K_AFTER + 4 * cluster, following)
    store32(m + K_BEFORE + 4 * cluster, 0)
    store32(head, cluster)
    live = load64(m + H_CLUSTERS_LIVE) + 1
    store64(m + H_CLUSTERS_LIVE, live)
    table.insert(m, H_CLUSTER_BUCKETS, K_HEADS, K_NEXT, K_HASH, cluster, hash32, live)
    return cluster


@compiled
def _free_cluster(m: int, cluster: int) -> None:
    key = load64(m + K_KEY + 8 * cluster)
    access = load64(m + key + KEY_ACCESS)
    head = _list_head(m, access)
    before = load32(m + K_BEFORE + 4 * cluster)
    after = load32(m + K_AFTER + 4 * cluster)
    if after:
        store32(m + K_BEFORE + 4 * after, before)
    if before:
        store32(m + K_AFTER + 4 * before, after)
    else:
        store32(head, after)
        if after == 0 and access & 0xFF == BY_PREDICATE:
            predicates.end_filing(m, access >> 8)
    live = load64(m + H_CLUSTERS_LIVE) - 1
    store64(m + H_CLUSTERS_LIVE, live)
    table.remove(m, H_CLUSTER_BUCKETS, K_HEADS, K_NEXT, K_HASH, cluster, live)
    release(m, key)
    store64(m + K_KEY + 8 * cluster, 0)
    numbers.give_back(m, H_CLUSTERS, H_CLUSTERS_FREE, K_NEXT, K_BEFORE, cluster)


# ---- blocks ----


@compiled
def _column(leaf: int, capacity: int, columns: int, column: int) -> int:
    """Return where a column of a leaf starts."""
    start = leaf + B_ITEMS + 8 * capacity + 8 * capacity * column
    return start + CODES_BYTES * columns if capacity == FAN else start


@compiled
def _bounds(node: int, capacity: int, column: int) -> int:
    """Return where a node's least bounds of a column start; the greatest follow 8 * capacity bytes behind."""
    return node + B_ITEMS + 8 * capacity + 16 * capacity * column


@compiled
def codes_at(leaf: int) -> int:
    """Return where a leaf of 64 has its codes: beside its entries, so that a search comes to few pages.

    First the range's start and scale of each column, then 64 bytes a column, then 64 bytes a column of finer steps.
    """
    return leaf + B_ITEMS + 8 * FAN


@compiled
def bounds_at(leaf: int, columns: int) -> int:
    """Return where a leaf of 64 has its bounds, 64 doubles a column."""
    return leaf + B_ITEMS + 8 * FAN + CODES_BYTES * columns


@compiled
def fine_code_of(value: float, start: float, scale: float) -> int:
    """Return a value's code << 8 and its finer step: a code of 1 to 254 within the range, 0 below, 255 above, but for
    rounding.

    Exact in one respect, the one that counts: it never falls as the value rises.
    """
    return int(min(max((value - start) * scale + 1.0, 0.0), 255.0) * 256.0)


@compiled
def code_of(value: float, start: float, scale: float) -> int:
    """Return a value's code, one byte."""
    return fine_code_of(value, start, scale) >> 8


@compiled
def _set_codes(m: int, leaf: int, columns: int, column: int) -> None:
    """Code a column of a leaf of 64 anew, over the range of its bounds."""
    count = load32(m + leaf + B_COUNT)
    at = m + _column(leaf, FAN, columns, column)
    least = _GREATEST
    greatest = _LEAST
    for place in range(count):
        least = min(least, load_double(at + 8 * place))
        greatest = max(greatest, load_double(at + 8 * place))
    extent = greatest - least
    scale = min(253.9 / extent, 1e300) if extent <= _GREATEST else 1e-307
    ranges = m + codes_at(leaf)
    store_double(ranges + 16 * column, least)
    store_double(ranges + 16 * column + 8, scale)
    codes = ranges + 16 * columns + FAN * column
    for place in range(count):
        code = fine_code_of(load_double(at + 8 * place), least, scale)
        store8(codes + place, code >> 8)
        store8(codes + FAN * columns + place, code)
    store64(m + H_WORK, load64(m + H_WORK) + count)


@compiled
def _add_codes(m: int, leaf: int, columns: int, place: int) -> None:
    """Code the bounds of the last entry of a leaf of 64."""
    ranges = m + codes_at(leaf)
    for column in range(columns):
        value = load_double(m + _column(leaf, FAN, columns, column) + 8 * place)
        code = fine_code_of(value, load_double(ranges + 16 * column), load_double(ranges + 16 * column + 8))
        store8(ranges + 16 * columns + FAN * column + place, code >> 8)
        store8(ranges + 16 * columns + FAN * (columns + column) + place, code)
        if code >> 8 == 0 or code >> 8 == 255:
            _set_codes(m, leaf, columns, column)  # stretch the range


@compiled
def _make_leaf(m: int, cluster: int, columns: int, capacity: int, cell: int, parent: int) -> int:
    size = B_ITEMS + 8 * capacity * (1 + columns)
    if capacity == FAN:
        size += CODES_BYTES * columns
    leaf = acquire(m, size, cell, LEAF)
    store32(m + leaf + B_COUNT, 0)
    store32(m + leaf + B_CAPACITY, capacity)
    store64(m + leaf + B_PARENT, parent)
    store64(m + leaf + B_CLUSTER, cluster)
    store64(m + leaf + B_RESIDUE, 0)
    return leaf


@compiled
def _make_node(m: int, cluster: int, columns: int, capacity: int, cell: int, parent: int) -> int:
    node = acquire(m, B_ITEMS + 8 * capacity + 16 * capacity * columns, cell, NODE)
    store32(m + node + B_COUNT, 0)
    store32(m + node + B_CAPACITY, capacity)
    store64(m + node + B_PARENT, parent)
    store64(m + node + B_CLUSTER, cluster)
    store64(m + node + B_RESIDUE, 0)
    return node


@compiled
def _place_in_parent(m: int, block: int) -> int:
    cell = load64(m + block) & ~7
    return (cell - load64(m + block + B_PARENT) - B_ITEMS) // 8


@compiled
def _copy_entry(m: int, source: int, place: int, target: int, new: int, columns: int) -> None:
    """Copy an entry to a place of a leaf (perhaps the same) and tell its conjunction; codes only in the same leaf."""
    conjunction = load32(m + source + B_ITEMS + 4 * place)
    from_capacity = load32(m + source + B_CAPACITY)
    capacity = load32(m + target + B_CAPACITY)
    store32(m + target + B_ITEMS + 4 * new, conjunction)
    guard = load32(m + source + B_ITEMS + 4 * from_capacity + 4 * place)
    store32(m + target + B_ITEMS + 4 * capacity + 4 * new, guard)
    for column in range(columns):
        bound = load_double(m + _column(source, from_capacity, columns, column) + 8 * place)
        store_double(m + _column(target, capacity, columns, column) + 8 * new, bound)
    if source == target and capacity == FAN:
        codes = m + codes_at(target) + 16 * columns
        for column in range(2 * columns):
            store8(codes + FAN * column + new, load8(codes + FAN * column + place))
    residue = (load64(m + source + B_RESIDUE) >> place) & 1
    bit = 1 << new
    store64(m + target + B_RESIDUE, (load64(m + target + B_RESIDUE) & ~bit) | (bit if residue else 0))
    store64(m + C_LEAF + 8 * conjunction, target << 6 | new)


@compiled
def _resize(m: int, leaf: int, columns: int, capacity: int) -> int:
    """Move a leaf's entries to one of another capacity; returns it."""
    cell = load64(m + leaf) & ~7
    cluster = load64(m + leaf + B_CLUSTER)
    new = _make_leaf(m, cluster, columns, capacity, cell, load64(m + leaf + B_PARENT))
    count = load32(m + leaf + B_COUNT)
    for place in range(count):
        _copy_entry(m, leaf, place, new, place, columns)
    store32(m + new + B_COUNT, count)
    if capacity == FAN:
        for column in range(columns):
            _set_codes(m, new, columns, column)
    store64(m + H_WORK, load64(m + H_WORK) + count * (columns + 1))
    # The new block is of another size class, so that it is not the one that moves.
    release(m, leaf)
    return new


@compiled
def _resize_node(m: int, node: int, columns: int, capacity: int) -> int:
    """Move a node's children to one of another capacity.

    Returns the old ref of the block that moved into its place, or 0.
    """
    cell = load64(m + node) & ~7
    cluster = load64(m + node + B_CLUSTER)
    new = _make_node(m, cluster, columns, capacity, cell, load64(m + node + B_PARENT))
    count = load32(m + node + B_COUNT)
    old_capacity = load32(m + node + B_CAPACITY)
    store32(m + new + B_COUNT, count)
    for place in range(count):
        child = load64(m + node + B_ITEMS + 8 * place)
        own(m, child, new + B_ITEMS + 8 * place)
        store64(m + child + B_PARENT, new)
    for column in range(columns):
        source = m + _bounds(node, old_capacity, column)
        target = m + _bounds(new, capacity, column)
        for place in range(count):
            store_double(target + 8 * place, load_double(source + 8 * place))
            greatest = load_double(source + 8 * old_capacity + 8 * place)
            store_double(target + 8 * capacity + 8 * place, greatest)
    store64(m + H_WORK, load64(m + H_WORK) + count * (columns + 1))
    return release(m, node)


@compiled
def _set_bounds(m: int, node: int, place: int, child: int, columns: int) -> bool:
    """Write a child's exact bounds into its node; tell whether they changed."""
    count = load32(m + child + B_COUNT)
    is_leaf = load64(m + child) & 7 == LEAF
    capacity = load32(m + child + B_CAPACITY)
    wide = load32(m + node + B_CAPACITY)
    changed = False
    for column in range(columns):
        least = _GREATEST
        greatest = _LEAST
        low = m + (_column(child, capacity, columns, column) if is_leaf else _bounds(child, capacity, column))
        high = low if is_leaf else low + 8 * capacity
        for index in range(count):
            least = min(least, load_double(low + 8 * index))
            greatest = max(greatest, load_double(high + 8 * index))
        at = m + _bounds(node, wide, column) + 8 * place
        if load_double(at) != least or load_double(at + 8 * wide) != greatest:
            changed = True
            store_double(at, least)
            store_double(at + 8 * wide, greatest)
    store64(m + H_WORK, load64(m + H_WORK) + count * columns)
    return changed


@compiled
def _adopt(m: int, node: int, child: int, columns: int) -> None:
    """Append a child to a node that has room, bounds included."""
    place = load32(m + node + B_COUNT)
    store32(m + node + B_COUNT, place + 1)
    own(m, child, node + B_ITEMS + 8 * place)
    store64(m + child + B_PARENT, node)
    _set_bounds(m, node, place, child, columns)


@compiled
def _set_bounds_upwards(m: int, block: int, columns: int) -> None:
    while load64(m + block + B_PARENT):
        parent = load64(m + block + B_PARENT)
        if not _set_bounds(m, parent, _place_in_parent(m, block), block, columns):
            return
        block = parent


@compiled
def _sort(m: int, count: int) -> None:
    """Sort the (double, place) pairs in S_SORT by the double. At most 64, so that insertion is best."""
    start = m + S_SORT
    for index in range(1, count):
        value = load_double(start + 16 * index)
        place = load64(start + 16 * index + 8)
        other = index
        while other and load_double(start + 16 * other - 16) > value:
            store_double(start + 16 * other, load_double(start + 16 * other - 16))
            store64(start + 16 * other + 8, load64(start + 16 * other - 8))
            other -= 1
        store_double(start + 16 * other, value)
        store64(start + 16 * other + 8, place)


@compiled
def _column_to_split(m: int, block: int, key: int, columns: int) -> int:
    """Return the column whose bounds are spread widest in relation to its attribute's intervals."""
    count = load32(m + block + B_COUNT)
    is_leaf = load64(m + block) & 7 == LEAF
    capacity = load32(m + block + B_CAPACITY)
    words = columns_at(m, key)
    root = load64(m + K_ROOT + 8 * load64(m + block + B_CLUSTER))
    best = 0
    best_ratio = -1.0
    for column in range(columns):
        low = m + (_column(block, capacity, columns, column) if is_leaf else _bounds(block, capacity, column))
        high = low if is_leaf else low + 8 * capacity
        least = _GREATEST
        greatest = _LEAST
        own_width = 0.0
        for index in range(count):
            middle = 0.5 * load_double(low + 8 * index) + 0.5 * load_double(high + 8 * index)
            least = min(least, middle)
            greatest = max(greatest, middle)
            own_width += (0.5 * load_double(high + 8 * index) - 0.5 * load_double(low + 8 * index)) / count
        spread = 0.5 * greatest - 0.5 * least
        word = load64(words + 8 * column)
        # An attribute's LOWER column is followed by its UPPER column if it has both.
        partner = -1
        if word & 1 == LOWER and column + 1 < columns and load64(words + 8 * column + 8) == word | UPPER:
            partner = column + 1
        elif word & 1 == UPPER and column and load64(words + 8 * column - 8) == word ^ UPPER:
            partner = column - 1
        width = 0.0
        if partner >= 0:
            other = m + (_column(block, capacity, columns, partner) if is_leaf else _bounds(block, capacity, partner))
            for index in range(count):
                difference = 0.5 * load_double(other + 8 * index) - 0.5 * load_double(low + 8 * index)
                width += abs(difference) / count
        elif root != block:
            # One side only: the interval reaches to where the values end; take the cluster's own extent for that.
            width = 0.5 * _extent(m, root, column)
        else:
            width = 0.5 * spread
        ratio = spread / (width + own_width + 1e-9 * spread) if spread > 0.0 else 0.0
        if ratio > best_ratio:
            best_ratio = ratio
            best = column
    store64(m + H_WORK, load64(m + H_WORK) + 3 * count * columns)
    return best


@compiled
def _upper_half(m: int, block: int, key: int, columns: int) -> int:
    """Return a mask of the half of a block's 64 items that goes to a new block."""
    column = _column_to_split(m, block, key, columns)
    is_leaf = load64(m + block) & 7 == LEAF
    low = m + (_column(block, FAN, columns, column) if is_leaf else _bounds(block, FAN, column))
    high = low if is_leaf else low + 8 * FAN
    for place in range(FAN):
        middle = 0.5 * load_double(low + 8 * place) + 0.5 * load_double(high + 8 * place)
        store_double(m + S_SORT + 16 * place, middle)
        store64(m + S_SORT + 16 * place + 8, place)
    _sort(m, FAN)
    mask = 0
    for index in range(FAN // 2, FAN):
        mask |= 1 << load64(m + S_SORT + 16 * index + 8)
    return mask


@compiled
def _split_node(m: int, node: int, key: int, columns: int) -> None:
    """Split a full node whose parent has room."""
    mask = _upper_half(m, node, key, columns) if columns else -1 << (FAN // 2)
    parent = load64(m + node + B_PARENT)
    place = load32(m + parent + B_COUNT)
    cluster = load64(m + node + B_CLUSTER)
    new = _make_node(m, cluster, columns, FAN, parent + B_ITEMS + 8 * place, parent)
    kept = 0
    for index in range(FAN):
        child = load64(m + node + B_ITEMS + 8 * index)
        if (mask >> index) & 1:
            _adopt(m, new, child, columns)
            continue
        if kept != index:
            own(m, child, node + B_ITEMS + 8 * kept)
            for column in range(columns):
                at = m + _bounds(node, FAN, column)
                store_double(at + 8 * kept, load_double(at + 8 * index))
                store_double(at + 8 * FAN + 8 * kept, load_double(at + 8 * FAN + 8 * index))
        kept += 1
    store32(m + node + B_COUNT, kept)
    store32(m + parent + B_COUNT, place + 1)
    _set_bounds(m, parent, place, new, columns)
    _set_bounds(m, parent, _place_in_parent(m, node), node, columns)


@compiled
def _make_room(m: int, block: int, key: int, columns: int) -> int:
    """Make a block's parent exist and have room for one more child, splitting nodes above as needed.

    Returns the block, which may have moved.
    """
    cluster = load64(m + block + B_CLUSTER)
    while True:
        lower = block
        while True:
            parent = load64(m + lower + B_PARENT)
            if parent == 0:
                parent = _make_node(m, cluster, columns, _NARROW, K_ROOT + 8 * cluster, 0)
                _adopt(m, parent, lower, columns)
                store32(m + K_HEIGHT + 4 * cluster, load32(m + K_HEIGHT + 4 * cluster) + 1)
                break
            capacity = load32(m + parent + B_CAPACITY)
            if load32(m + parent + B_COUNT) < capacity:
                break
            if capacity < FAN:
                moved = _resize_node(m, parent, columns, FAN)
                if moved == block:
                    block = parent
                if moved == lower:
                    lower = parent
                break
            lower = parent
        if lower == block:
            return block
        _split_node(m, lower, key, columns)


@compiled
def _split_leaf(m: int, leaf: int, key: int, columns: int) -> int:
    """Split a full leaf; returns the leaf for the entry whose bounds are in S_VALUES."""
    leaf = _make_room(m, leaf, key, columns)
    parent = load64(m + leaf + B_PARENT)
    place = load32(m + parent + B_COUNT)
    cell = parent + B_ITEMS + 8 * place
    cluster = load64(m + leaf + B_CLUSTER)
    if columns == 0:
        # All entries are alike: leave this leaf full and begin another.
        store32(m + parent + B_COUNT, place + 1)
        return _make_leaf(m, cluster, columns, FAN, cell, parent)
    mask = _upper_half(m, leaf, key, columns)
    new = _make_leaf(m, cluster, columns, FAN, cell, parent)
    store32(m + parent + B_COUNT, place + 1)
    kept = 0
    moved = 0
    for index in range(FAN):
        if (mask >> index) & 1:
            _copy_entry(m, leaf, index, new, moved, columns)
            moved += 1
        else:
            if kept != index:
                _copy_entry(m, leaf, index, leaf, kept, columns)
            kept += 1
    store32(m + leaf + B_COUNT, kept)
    store32(m + new + B_COUNT, moved)
    for column in range(columns):
        _set_codes(m, leaf, columns, column)
        _set_codes(m, new, columns, column)
    store64(m + H_WORK, load64(m + H_WORK) + FAN * (columns + 8))
    _set_bounds(m, parent, place, new, columns)
    _set_bounds(m, parent, _place_in_parent(m, leaf), leaf, columns)
    return new if _prefers(m, parent, place, _place_in_parent(m, leaf), columns) else leaf


@compiled
def _widening(m: int, node: int, place: int, column: int, value: float) -> float:
    """Return half of how far a child's bounds must widen to hold a value."""
    capacity = load32(m + node + B_CAPACITY)
    at = m + _bounds(node, capacity, column) + 8 * place
    low = 0.5 * load_double(at) - 0.5 * value
    high = 0.5 * value - 0.5 * load_double(at + 8 * capacity)
    return max(low, high, 0.0)


@compiled
def _extent(m: int, node: int, column: int) -> float:
    """Return half of how far a node's bounds of a column reach."""
    capacity = load32(m + node + B_CAPACITY)
    start = m + _bounds(node, capacity, column)
    least = _GREATEST
    greatest = _LEAST
    for index in range(load32(m + node + B_COUNT)):
        least = min(least, load_double(start + 8 * index))
        greatest = max(greatest, load_double(start + 8 * capacity + 8 * index))
    return 0.5 * greatest - 0.5 * least


@compiled
def _prefers(m: int, node: int, place: int, other: int, columns: int) -> bool:
    """Tell whether the entry in S_VALUES fits child `place` better than child `other`."""
    cost = 0.0
    other_cost = 0.0
    for column in range(columns):
        value = load_double(m + S_VALUES + 8 * column)
        extent = _extent(m, node, column) + 1e-300
        cost += _widening(m, node, place, column, value) / extent
        other_cost += _widening(m, node, other, column, value) / extent
    return cost < other_cost


@compiled
def _child_for(m: int, node: int, columns: int) -> int:
    """Return the place of the child whose bounds widen least for the entry in S_VALUES."""
    count = load32(m + node + B_COUNT)
    if columns == 0:
        return count - 1
    costs = m + S_SORT
    for place in range(count):
        store_double(costs + 8 * place, 0.0)
    for column in range(columns):
        value = load_double(m + S_VALUES + 8 * column)
        scale = 1.0 / (_extent(m, node, column) + 1e-300)
        for place in range(count):
            cost = _widening(m, node, place, column, value) * scale
            store_double(costs + 8 * place, load_double(costs + 8 * place) + cost)
    best = 0
    least = load_double(costs)
    for place in range(1, count):
        cost = load_double(costs + 8 * place)
        if cost < least:
            least = cost
            best = place
    store64(m + H_WORK, load64(m + H_WORK) + count * columns)
    return best


@compiled
def _widen(m: int, node: int, place: int, columns: int) -> None:
    """Widen a child's bounds in its node to hold the entry in S_VALUES."""
    capacity = load32(m + node + B_CAPACITY)
    for column in range(columns):
        value = load_double(m + S_VALUES + 8 * column)
        at = m + _bounds(node, capacity, column) + 8 * place
        store_double(at, min(load_double(at), value))
        store_double(at + 8 * capacity, max(load_double(at + 8 * capacity), value))


@compiled
def _insert(m: int, cluster: int, conjunction: int, guard: int, residue: bool) -> None:
    """Insert an entry whose bounds are in S_VALUES, without counting it."""
    key = load64(m + K_KEY + 8 * cluster)
    columns = key_columns(m, key)
    block = load64(m + K_ROOT + 8 * cluster)
    if block == 0:
        block = _make_leaf(m, cluster, columns, 4, K_ROOT + 8 * cluster, 0)
    for _ in range(load32(m + K_HEIGHT + 4 * cluster)):
        place = _child_for(m, block, columns)
        _widen(m, block, place, columns)
        block = load64(m + block + B_ITEMS + 8 * place)
    count = load32(m + block + B_COUNT)
    capacity = load32(m + block + B_CAPACITY)
    if count == capacity:
        if capacity < FAN:
            capacity *= 4
            block = _resize(m, block, columns, capacity)
        else:
            block = _split_leaf(m, block, key, columns)
            count = load32(m + block + B_COUNT)
    store32(m + block + B_ITEMS + 4 * count, conjunction)
    store32(m + block + B_ITEMS + 4 * capacity + 4 * count, guard)
    for column in range(columns):
        bound = load_double(m + S_VALUES + 8 * column)
        store_double(m + _column(block, capacity, columns, column) + 8 * count, bound)
    bit = 1 << count
    store64(m + block + B_RESIDUE, (load64(m + block + B_RESIDUE) & ~bit) | (bit if residue else 0))
    store32(m + block + B_COUNT, count + 1)
    store64(m + C_LEAF + 8 * conjunction, block << 6 | count)
    if capacity == FAN:
        _add_codes(m, block, columns, count)
    parent = load64(m + block + B_PARENT)
    if parent and columns:
        # Usually the bounds were widened on the way down; after a split the halves' bounds were made exact.
        _widen(m, parent, _place_in_parent(m, block), columns)


@compiled
def insert(m: int, cluster: int, conjunction: int, guard: int, residue: bool) -> None:
    """Insert an entry whose bounds are in S_VALUES into a cluster."""
    store32(m + K_COUNT + 4 * cluster, load32(m + K_COUNT + 4 * cluster) + 1)
    _insert(m, cluster, conjunction, guard, residue)


@compiled
def _remove_block(m: int, cluster: int, block: int, columns: int) -> None:
    """Remove an empty block, and the nodes that it leaves empty or with one child at the root."""
    while True:
        parent = load64(m + block + B_PARENT)
        if parent == 0:
            store64(m + K_ROOT + 8 * cluster, 0)
            store32(m + K_HEIGHT + 4 * cluster, 0)
            release(m, block)
            return
        place = _place_in_parent(m, block)
        capacity = load32(m + parent + B_CAPACITY)
        last = load32(m + parent + B_COUNT) - 1
        store32(m + parent + B_COUNT, last)
        if place != last:
            own(m, load64(m + parent + B_ITEMS + 8 * last), parent + B_ITEMS + 8 * place)
            for column in range(columns):
                at = m + _bounds(parent, capacity, column)
                store_double(at + 8 * place, load_double(at + 8 * last))
                store_double(at + 8 * capacity + 8 * place, load_double(at + 8 * capacity + 8 * last))
        if release(m, block) == parent:
            parent = block
        if last:
            break
        block = parent
    if load32(m + parent + B_CAPACITY) == FAN and load32(m + parent + B_COUNT) <= _NARROW // 2:
        cell = load64(m + parent) & ~7
        grandparent = load64(m + parent + B_PARENT)
        moved = _resize_node(m, parent, columns, _NARROW)
        if moved and moved == grandparent:
            cell += parent - moved
        parent = load64(m + cell)
    _set_bounds_upwards(m, parent, columns)
    root = load64(m + K_ROOT + 8 * cluster)
    while load64(m + root) & 7 == NODE and load32(m + root + B_COUNT) == 1:
        child = load64(m + root + B_ITEMS)
        own(m, child, K_ROOT + 8 * cluster)
        store64(m + child + B_PARENT, 0)
        store32(m + K_HEIGHT + 4 * cluster, load32(m + K_HEIGHT + 4 * cluster) - 1)
        if release(m, root) == child:
            child = root
        root = child


@compiled
def remove(m: int, conjunction: int) -> None:
    """Remove a conjunction's entry from its cluster; a cluster without entries goes too."""
    word = load64(m + C_LEAF + 8 * conjunction)
    leaf = word >> 6
    place = word & 63
    cluster = load64(m + leaf + B_CLUSTER)
    key = load64(m + K_KEY + 8 * cluster)
    columns = key_columns(m, key)
    left = load32(m + K_COUNT + 4 * cluster) - 1
    store32(m + K_COUNT + 4 * cluster, left)
    count = load32(m + leaf + B_COUNT) - 1
    if place != count:
        _copy_entry(m, leaf, count, leaf, place, columns)
    store32(m + leaf + B_COUNT, count)
    if count == 0:
        _remove_block(m, cluster, leaf, columns)
        if left == 0:
            _free_cluster(m, cluster)
        return
    capacity = load32(m + leaf + B_CAPACITY)
    if load64(m + leaf + B_PARENT) == 0:
        if (capacity == FAN and count <= THIN) or (capacity == 16 and count <= 3):
            _resize(m, leaf, columns, capacity // 4)
    elif count <= THIN:
        _dissolve(m, cluster, leaf, count, columns)
    elif columns:
        _set_bounds_upwards(m, leaf, columns)


@compiled
def _dissolve(m: int, cluster: int, leaf: int, count: int, columns: int) -> None:
    """Spread a thin leaf's entries over the others."""
    width = 24 + 8 * columns
    capacity = load32(m + leaf + B_CAPACITY)
    residues = load64(m + leaf + B_RESIDUE)
    for place in range(count):
        at = m + S_MOVED + width * place
        store64(at, load32(m + leaf + B_ITEMS + 4 * place))
        store64(at + 8, load32(m + leaf + B_ITEMS + 4 * capacity + 4 * place))
        store64(at + 16, (residues >> place) & 1)
        for column in range(columns):
            store64(at + 24 + 8 * column, load64(m + _column(leaf, capacity, columns, column) + 8 * place))
    store32(m + leaf + B_COUNT, 0)
    _remove_block(m, cluster, leaf, columns)
    for place in range(count):
        at = m + S_MOVED + width * place
        for column in range(columns):
            store64(m + S_VALUES + 8 * column, load64(at + 24 + 8 * column))
        _insert(m, cluster, load64(at), load64(at + 8), load64(at + 16) != 0)
