"""The match: each publication's values are set, the clusters they lead to searched, the hits read off in order.

    set     names and values are looked up (`setting.py`)
    search  the clusters under each true predicate and each present attribute, and those under nothing (`blocks.py`)
    read    the bits that the search left, by rank: that is the order of the output

Publications go through in groups of 16 where that pays. Clusters that ask only for numbers within ranges are
searched for the whole group at once (`_search_group`, `groups.py`); the others need what only the publication at
hand has set.
"""

from __future__ import annotations

from cluster.matching import blocks, groups, predicates, setting, tiles
from cluster.matching.compiled import compiled
from cluster.matching.entries import ENTRY_BYTES
from cluster.matching.layout import (
    A_CLUSTERS,
    A_GROUP,
    A_NUMBER,
    BITS_STEP,
    H_ALWAYS,
    H_GROUP,
    H_GROUPING,
    H_LEAVES,
    H_ROWS,
    H_STAMP,
    H_WEIGHT,
    K_AFTER,
    K_HEIGHT,
    K_KEY,
    K_ROOT,
    LIVE,
    O_BITS,
    O_CLIENT,
    O_COUNT,
    O_LEAVES,
    O_SUBSCRIPTION,
    O_TOUCHED,
    P_CLUSTERS,
    S_ACTIVE,
    S_END_ROW,
    S_HITS,
    S_LOOKED,
    S_NEXT_ROW,
    S_PRESENT,
    S_READ_ALL,
    S_ROWS,
    S_VALUES,
    SLOTS,
    TOUCHED_STEP,
)
from cluster.matching.machine import (
    count_bits,
    load32,
    load64,
    load_double,
    lowest_bit,
    prefetch,
    prefetch_to_write,
    shift_right,
    store8,
    store64,
    store_double,
)
from cluster.matching.tiles import KEY_WORDS
from cluster.matching.walk import W_COUNT, places_in

_LEAF = 256  # order.LEAF
_WEIGHT_MAX = 1e200
_GROUPED_FROM = 16  # leaves a publication
_AHEAD = 256  # bytes of hits that are asked for before they are written
_SLACK = 8  # rows that may be written behind the last
RUN_BYTES = 24
# The head of what is found.
F_HITS, F_RUNS, F_HITS_AT, F_RUNS_AT, F_STOPPED, F_NEEDED, HITS_BYTES = 0, 8, 16, 24, 32, 40, 48
_ALL_TOUCHED = 0x0101010101010101


@compiled
def _is_for_groups(key: int) -> bool:
    """Tell whether a cluster asks for nothing but numbers within ranges."""
    return load64(key + tiles.KEY_ACCESS) & 0xFF == tiles.BY_ATTRIBUTE and load32(key + tiles.KEY_COUNTS) > 0


@compiled
def _visit(m: int, slot: int, first: int, payload: int) -> int:
    """Search the clusters of a list for the publication at hand, but for those that its group will search.

    Returns hits, doubles counted.
    """
    stamp = load64(m + H_STAMP)
    hits = 0
    cluster = first
    while cluster:
        key = m + load64(m + K_KEY + 8 * cluster)
        root = load64(m + K_ROOT + 8 * cluster)
        height = load32(m + K_HEIGHT + 4 * cluster)
        cluster = load32(m + K_AFTER + 4 * cluster)
        if _is_for_groups(key):
            continue
        columns = load32(key + tiles.KEY_COUNTS)
        others = load32(key + tiles.KEY_COUNTS + 4)
        words = key + KEY_WORDS
        possible = True
        for _ in range(others):
            if not predicates.is_true(m, load64(words), payload):
                possible = False
                break
            words += 8
        if not possible:
            continue
        for column in range(columns):
            attribute = load64(words + 8 * column) >> 1
            value = load_double(m + A_NUMBER + 8 * attribute)
            if load64(m + LIVE + 16 * attribute) != stamp or value != value:
                possible = False
                break
            store_double(m + S_VALUES + 8 * column, value)
        if not possible:
            continue
        if height == 0:
            hits += blocks.search_leaf(m, slot, m + root, words, columns, columns == 0, payload)
        else:
            hits += blocks.search_tree(m, slot, root, height, words, columns, payload)
    return hits


@compiled
def _search_group(m: int, payload: int) -> int:
    """Search the clusters that ask for numbers only, each for all publications of the group.

    Adds each publication's hits to its word in S_HITS. Returns how many leaves were looked at, those of each
    publication counted.
    """
    group = load64(m + H_GROUP)
    store64(m + S_LOOKED, 0)
    alone = 0
    for index in range(load64(m + H_ROWS)):
        cluster = load32(m + A_CLUSTERS + 4 * load32(m + S_ROWS + 4 * index))
        while cluster:
            key = m + load64(m + K_KEY + 8 * cluster)
            root = load64(m + K_ROOT + 8 * cluster)
            height = load32(m + K_HEIGHT + 4 * cluster)
            cluster = load32(m + K_AFTER + 4 * cluster)
            if not _is_for_groups(key):
                continue
            columns = load32(key + tiles.KEY_COUNTS)
            words = key + KEY_WORDS
            possible = True
            for column in range(columns):
                attribute = load64(words + 8 * column) >> 1
                possible = possible and load64(m + A_GROUP + 8 * attribute) == group
            if not possible:
                continue
            slots = groups.take_columns(m, words, columns)
            if slots & (slots - 1):
                groups.search(m, root, height, words, columns, slots, payload)
            elif slots:
                slot = lowest_bit(slots)
                groups.take_values(m, slot, columns)
                if height == 0:
                    hits = blocks.search_leaf(m, slot, m + root, words, columns, False, payload)
                    alone += 1
                else:
                    hits = blocks.search_tree(m, slot, root, height, words, columns, payload)
                groups.count_hits(m, slot, hits)
    return load64(m + S_LOOKED) + alone


@compiled
def _clear(m: int, slot: int) -> None:
    """Clear a slot's bits without reading them off."""
    leaves = load64(m + H_LEAVES)
    for rank in range(leaves):
        store8(m + O_TOUCHED + TOUCHED_STEP * slot + rank, 0)
    for word in range(leaves * (_LEAF // 64)):
        store64(m + O_BITS + BITS_STEP * slot + 8 * word, 0)
    store64(m + S_READ_ALL + 8 * slot, 0)


@compiled
def _read_leaf(m: int, slot: int, leaf: int, subscriptions: int, row: int) -> int:
    """Read a leaf's hits off and clear them; returns the row after the last.

    Eight at a time without asking, as a wrong guess of the processor costs more; what is too much is overwritten.
    """
    base = m + O_SUBSCRIPTION + 8 * _LEAF * leaf
    for index in range(_LEAF // 64):
        word = m + O_BITS + BITS_STEP * slot + 8 * (4 * leaf + index)
        bits = load64(word)
        if bits == 0:
            continue
        store64(word, 0)
        count = count_bits(bits)
        for done in range(0, count, 8):
            at = subscriptions + 8 * (row + done)
            for step in range(8):
                store64(at + 8 * step, load64(base + 512 * index + 8 * lowest_bit(bits)))
                bits &= bits - 1
        row += count
    return row


@compiled
def _count_leaf(m: int, slot: int, leaf: int) -> int:
    """Return the hits of a leaf."""
    count = 0
    for index in range(_LEAF // 64):
        count += count_bits(load64(m + O_BITS + BITS_STEP * slot + 8 * (4 * leaf + index)))
    return count


@compiled
def _read_last(m: int, slot: int, leaf: int, subscriptions: int, row: int) -> int:
    """Read a leaf's hits off as `_read_leaf` does, but one by one: nothing is read or written behind the last."""
    base = m + O_SUBSCRIPTION + 8 * _LEAF * leaf
    for index in range(_LEAF // 64):
        word = m + O_BITS + BITS_STEP * slot + 8 * (4 * leaf + index)
        bits = load64(word)
        store64(word, 0)
        while bits:
            store64(subscriptions + 8 * row, load64(base + 512 * index + 8 * lowest_bit(bits)))
            bits &= bits - 1
            row += 1
    return row


@compiled
def _read_together(m: int, slots: int, subscriptions: int) -> None:
    """Read the hits of several slots off, for which there are their rows, and clear them.

    Leaf by leaf, so that a leaf's ids come from memory once and not once a slot.
    """
    leaves = load64(m + H_LEAVES)
    leaf = load32(m + O_LEAVES)
    for rank in range(1, leaves + 1):
        following = load32(m + O_LEAVES + 4 * min(rank, leaves - 1))
        rest = slots
        while rest:
            slot = lowest_bit(rest)
            rest &= rest - 1
            prefetch(m + O_BITS + BITS_STEP * slot + (_LEAF // 8) * following)
            ids = m + O_SUBSCRIPTION + 8 * _LEAF * following + (8 * _LEAF // SLOTS) * slot
            prefetch(ids)
            prefetch(ids + 64)
            row = load64(m + S_NEXT_ROW + 8 * slot)
            ahead = subscriptions + 8 * row + _AHEAD
            for line in range(0, _AHEAD, 64):
                prefetch_to_write(ahead + line)
            # Behind a slot's last row lies what another one has written.
            if row + _LEAF + _SLACK <= load64(m + S_END_ROW + 8 * slot):
                row = _read_leaf(m, slot, leaf, subscriptions, row)
            else:
                row = _read_last(m, slot, leaf, subscriptions, row)
            store64(m + S_NEXT_ROW + 8 * slot, row)
        leaf = following


@compiled
def _add_run(runs: int, count: int, publication: int, client: int, row: int) -> int:
    """Write that from a row on hits are of a publication and a client; returns the number of runs."""
    at = runs + RUN_BYTES * count
    store64(at, publication)
    store64(at + 8, client)
    store64(at + 16, row)
    return count + 1


@compiled
def _read_mixed(
    m: int, slot: int, leaf: int, publication: int, runs: int, count: int, client: int, row: int
) -> tuple[int, int]:
    """Write the runs of a leaf with several clients, whose first hit comes to `row`.

    client: that of the hit before, -1 for none. The hits stay. Returns the number of runs and the last hit's client.
    """
    base = m + O_CLIENT + 8 * _LEAF * leaf
    for index in range(_LEAF // 64):
        bits = load64(m + O_BITS + BITS_STEP * slot + 8 * (4 * leaf + index))
        while bits:
            owner = load64(base + 512 * index + 8 * lowest_bit(bits))
            bits &= bits - 1
            if owner != client:
                count = _add_run(runs, count, publication, owner, row)
                client = owner
            row += 1
    return count, client


@compiled
def _take_leaf(m: int, slot: int, leaf: int, subscriptions: int, row: int, later: bool, few: bool) -> int:
    """Read a leaf's hits off, or only count them; returns the row after the last.

    few: one or two are likely, so that the ids which `_read_leaf` looks at in vain would cost more than a wrong guess.
    """
    if later:
        return row + _count_leaf(m, slot, leaf)
    if few:
        return _read_last(m, slot, leaf, subscriptions, row)
    return _read_leaf(m, slot, leaf, subscriptions, row)


@compiled
def _has_hits(m: int, slot: int, leaf: int) -> bool:
    """Tell whether a leaf has hits."""
    bits = m + O_BITS + BITS_STEP * slot + (_LEAF // 8) * leaf
    return load64(bits) | load64(bits + 8) | load64(bits + 16) | load64(bits + 24) != 0


@compiled
def _ask_for_touched(m: int, slot: int, leaves: int) -> None:
    """Ask for what reading the touched leaves off will look at: ids, and first and last clients.

    All of it comes from all over memory.
    """
    touches = m + O_TOUCHED + TOUCHED_STEP * slot
    for group in range((leaves + 7) >> 3):
        touched = load64(touches + 8 * group)
        while touched:
            leaf = load32(m + O_LEAVES + 4 * (8 * group + (lowest_bit(touched) >> 3)))
            touched &= touched - 1
            clients = m + O_CLIENT + 8 * _LEAF * leaf
            prefetch(clients)
            prefetch(clients + 8 * (load32(m + O_COUNT + 4 * leaf) - 1))
            for index in range(_LEAF // 64):
                bits = load64(m + O_BITS + BITS_STEP * slot + 8 * (4 * leaf + index))
                if bits:
                    prefetch(m + O_SUBSCRIPTION + 8 * (_LEAF * leaf + 64 * index + lowest_bit(bits)))


@compiled
def _read(
    m: int, slot: int, publication: int, hits: int, subscriptions: int, runs: int, row: int, count: int, later: bool
) -> tuple[int, int]:
    """Read the hits off in order, into rows from `row` on, and clear them.

    hits:  how many there are, doubles counted.
    later: only write their runs; `_read_together` does the rest.
    Returns the row after the last and the number of runs.
    """
    leaves = load64(m + H_LEAVES)
    all_ = load64(m + S_READ_ALL + 8 * slot) != 0
    store64(m + S_READ_ALL + 8 * slot, 0)
    touches = m + O_TOUCHED + TOUCHED_STEP * slot
    few = not all_ and hits < leaves
    if few:
        _ask_for_touched(m, slot, leaves)
    client = -1
    for group in range((leaves + 7) >> 3):
        touched = load64(touches + 8 * group)
        if all_:
            touched = _ALL_TOUCHED if 8 * group + 8 <= leaves else shift_right(_ALL_TOUCHED, 64 - 8 * (leaves & 7))
        if touched == 0:
            continue
        store64(touches + 8 * group, 0)
        while touched:
            bit = lowest_bit(touched)
            touched &= touched - 1
            leaf = load32(m + O_LEAVES + 4 * (8 * group + (bit >> 3)))
            if all_ and not _has_hits(m, slot, leaf):
                continue
            owners = m + O_CLIENT + 8 * _LEAF * leaf
            owner = load64(owners)
            if owner != load64(owners + 8 * (load32(m + O_COUNT + 4 * leaf) - 1)):
                count, client = _read_mixed(m, slot, leaf, publication, runs, count, client, row)
                row = _take_leaf(m, slot, leaf, subscriptions, row, later, few)
                continue
            first = row
            row = _take_leaf(m, slot, leaf, subscriptions, row, later, few)
            if owner != client and row != first:
                count = _add_run(runs, count, publication, owner, first)
                client = owner
    return row, count


@compiled
def _search_one(m: int, slot: int, payload: int, entries: int, start: int) -> int:
    """Set a publication's values and search all clusters that are not for groups; returns hits."""
    begin = load64(start)
    attributes = load64(start + 8) - begin
    present, active = setting.set_values(m, slot, payload, entries + ENTRY_BYTES * begin, attributes)
    hits = _visit(m, slot, load32(m + H_ALWAYS), payload)
    for index in range(active):
        cluster = load32(m + P_CLUSTERS + 4 * load32(m + S_ACTIVE + 4 * index))
        if cluster:
            hits += _visit(m, slot, cluster, payload)
    for index in range(present):
        cluster = load32(m + A_CLUSTERS + 4 * load32(m + S_PRESENT + 4 * index))
        if cluster:
            hits += _visit(m, slot, cluster, payload)
    return hits


@compiled
def match(
    m: int,
    payload: int,
    words: int,
    first: int,
    result: int,
    capacity: int,
) -> int:
    """Match a batch's publications from the first on; returns the number of hits.

    words: what `walk` has written of the whole batch.
    Writes to `result` a head: the numbers of hits and of runs, where these are, the publication where it stopped (their
    number: all done) and an upper bound of that one's hits. Behind it lie the hits' subscriptions, and behind
    `capacity` places for these a run for each publication and client: the two, and the place of their first hit.
    Stops before the first publication whose hits may not fit; there is room for as many runs.
    """
    count = load64(words + W_COUNT)
    starts, reasons, entries = places_in(words)
    subscriptions = result + HITS_BYTES
    runs = subscriptions + 8 * capacity
    row = 0
    written = 0
    place = first
    needed = 0
    if load_double(m + H_WEIGHT) > _WEIGHT_MAX:
        setting.fade(m)
    while place < count and needed == 0:
        size = min(SLOTS, count - place) if load64(m + H_GROUPING) else 1
        store64(m + H_GROUP, load64(m + H_GROUP) + 1)
        store64(m + H_ROWS, 0)
        for slot in range(size):
            hits = 0
            if load64(reasons + 8 * (place + slot)) == 0:
                hits = _search_one(m, slot, payload, entries, starts + 8 * (place + slot))
            store64(m + S_HITS + 8 * slot, hits)
        # With few leaves the slots' own bits cost more than is won by staying with a cluster.
        store64(m + H_GROUPING, 1 if _search_group(m, payload) > _GROUPED_FROM * size else 0)
        groups.read_marks(m, size)
        together = 0
        for slot in range(size):
            hits = load64(m + S_HITS + 8 * slot)
            if hits == 0:
                continue
            if needed or row + hits + _SLACK > capacity:
                if needed == 0:
                    needed = hits
                    place += slot
                _clear(m, slot)
            else:
                later = size > 1 and load64(m + S_READ_ALL + 8 * slot) != 0
                if later:
                    together |= 1 << slot
                    store64(m + S_NEXT_ROW + 8 * slot, row)
                row, written = _read(m, slot, place + slot, hits, subscriptions, runs, row, written, later)
                store64(m + S_END_ROW + 8 * slot, row)
        if together:
            _read_together(m, together, subscriptions)
        if needed == 0:
            place += size
    store64(result + F_HITS, row)
    store64(result + F_RUNS, written)
    store64(result + F_HITS_AT, subscriptions)
    store64(result + F_RUNS_AT, runs)
    store64(result + F_STOPPED, place)
    store64(result + F_NEEDED, needed)
    return row
