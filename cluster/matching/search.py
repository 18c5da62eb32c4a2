"""The match: each publication's values are set, the clusters they lead to visited, the hits read off in order.

    set     names and values are looked up; what is present or true is stamped with the publication's number
    visit   the clusters under each true predicate and each present attribute, and those under nothing
    read    the bits that the visits left, by rank: that is the order of the output

Only `set` costs anything for attributes and values that no subscription names, and that is one hash look-up each.
"""

from __future__ import annotations

from cluster.matching import filing, predicates, records, strings, tiles
from cluster.matching.compiled import compiled
from cluster.matching.layout import (
    A_AFFIXES,
    A_BITS,
    A_CLUSTERS,
    A_KIND,
    A_LISTED,
    A_NUMBER,
    A_SAMPLE,
    A_SEEN,
    A_TOKEN,
    A_VALUES,
    A_VERSION,
    C_POSITION,
    C_RECORD,
    CACHE,
    H_ALWAYS,
    H_ATTRIBUTES,
    H_CACHE_BYTES,
    H_CACHE_HAND,
    H_CHECKED,
    H_LEAVES,
    H_PREDICATES,
    H_PUBLICATIONS,
    H_READ_ALL,
    H_STAMP,
    H_TOTAL,
    H_WASTED,
    H_WEIGHT,
    K_AFTER,
    K_HEIGHT,
    K_KEY,
    K_ROOT,
    LINKS,
    LIVE,
    O_BITS,
    O_CLIENT,
    O_COUNT,
    O_LEAVES,
    O_RANK,
    O_SUBSCRIPTION,
    O_TOUCHED,
    P_BODY,
    P_CLUSTERS,
    P_LISTED,
    P_OWNERS,
    P_SEEN,
    S_ACTIVE,
    S_PRESENT,
    S_STACK,
    S_TRUE,
    S_VALUES,
)
from cluster.matching.machine import (
    bytes_below,
    bytes_equal,
    count_bits,
    double_of,
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
    store32,
    store64,
    store_double,
)
from cluster.matching.pool import B_CAPACITY, B_COUNT, B_ITEMS, B_RESIDUE, PLAIN, acquire, release
from cluster.matching.tiles import FAN, KEY_WORDS
from cluster.matching.walk import ENTRY_BYTES, NIL, TEXT

_NAN = float("nan")
_LOW_32 = 0xFFFFFFFF
_LEAF = 256  # order.LEAF
_DENSE = 48  # hits in a leaf times this above the leaves of the order: reading all bits costs less than marking
_GROWTH = 1.0 + 1.0 / 8192.0  # the weight of a publication: after 5,700 newer ones one counts half
_WEIGHT_MAX = 1e200

# The cache of string values: which filed string conditions does this value make true?
CACHE_SLOTS = 4096
_CACHE_BYTES_MAX = 16 << 20
_CACHED_VALUE_MAX = 1024
_CACHED_TRUE_MAX = 4096
_SLACK = 8  # rows that may be written behind the last
_WHOLE_COLUMNS_MAX = 6  # with more columns hardly ever does a whole block hold


@compiled
def _mark_strings(m: int, attribute: int, key: int, text: int, length: int, active: int) -> int:
    """Mark the filed string conditions that a value makes true and append them to the active predicates.

    A condition is evaluated once for a distinct value, as long as the value stays in the cache.
    """
    stamp = load64(m + H_STAMP)
    version = load64(m + A_VERSION + 8 * attribute) << 24 | attribute
    slot = m + CACHE + 24 * ((key ^ attribute) & (CACHE_SLOTS - 1))
    ref = load64(slot + 16)
    if not (
        ref
        and load64(slot) == key
        and load64(slot + 8) == version
        and load32(m + ref + 8) == length
        and strings.equal(m + ref + 16, text, length)
    ):
        found = 0
        predicate = load32(m + A_LISTED + 4 * attribute)
        while predicate:
            body = load64(m + P_BODY + 8 * predicate)
            if strings.holds(m + body + 16, load64(m + body + 8), text, length):
                store32(m + S_TRUE + 4 * found, predicate)
                found += 1
            predicate = load32(m + P_LISTED + 4 * predicate)
        ref = 0
        if length <= _CACHED_VALUE_MAX and found <= _CACHED_TRUE_MAX:
            ref = _remember(m, slot, key, version, text, length, found)
        if ref == 0:
            for index in range(found):
                predicate = load32(m + S_TRUE + 4 * index)
                store32(m + S_ACTIVE + 4 * active, predicate)
                store64(m + LIVE + 16 * predicate + 8, stamp)
                active += 1
            return active
    at = m + ref + 16 + (length + 7) // 8 * 8
    for index in range(load32(m + ref + 12)):
        predicate = load32(at + 4 * index)
        store32(m + S_ACTIVE + 4 * active, predicate)
        store64(m + LIVE + 16 * predicate + 8, stamp)
        active += 1
    return active


@compiled
def forget(m: int, slot: int) -> None:
    """Empty a slot of the cache."""
    ref = load64(slot + 16)
    if ref:
        size = 16 + (load32(m + ref + 8) + 7) // 8 * 8 + 4 * load32(m + ref + 12)
        store64(m + H_CACHE_BYTES, load64(m + H_CACHE_BYTES) - size)
        store64(slot + 16, 0)
        release(m, ref)


@compiled
def _remember(m: int, slot: int, key: int, version: int, text: int, length: int, found: int) -> int:
    """Keep the conditions in S_TRUE as those that a value makes true; returns the block."""
    forget(m, slot)
    size = 16 + (length + 7) // 8 * 8 + 4 * found
    while load64(m + H_CACHE_BYTES) + size > _CACHE_BYTES_MAX:
        hand = load64(m + H_CACHE_HAND)
        store64(m + H_CACHE_HAND, (hand + 1) & (CACHE_SLOTS - 1))
        forget(m, m + CACHE + 24 * hand)
    store64(m + H_CACHE_BYTES, load64(m + H_CACHE_BYTES) + size)
    ref = acquire(m, size, slot + 16 - m, PLAIN)
    store64(slot, key)
    store64(slot + 8, version)
    store32(m + ref + 8, length)
    store32(m + ref + 12, found)
    strings.copy(text, m + ref + 16, length)
    at = m + ref + 16 + (length + 7) // 8 * 8
    for index in range(found):
        store32(at + 4 * index, load32(m + S_TRUE + 4 * index))
    return ref


@compiled
def _mark_affixes(m: int, attribute: int, text: int, length: int, active: int) -> int:
    """Mark the PREFIXes and SUFFIXes that a string has; append the filed ones to the active predicates."""
    stamp = load64(m + H_STAMP)
    weight = load_double(m + H_WEIGHT)
    ref = m + load64(m + A_AFFIXES + 8 * attribute)
    for side in range(2):
        lengths = load64(ref + predicates.AFFIX_LENGTHS + 8 * side)
        while lengths:
            affix = lowest_bit(lengths)
            lengths &= lengths - 1
            if affix > length:
                break
            at = text + (length - affix) * side
            predicate = predicates.find_affix(m, attribute, predicates.PREFIX + side, at, affix)
            if predicate:
                store64(m + LIVE + 16 * predicate + 8, stamp)
                seen = m + P_SEEN + 8 * predicate
                store_double(seen, load_double(seen) + weight)
                if load32(m + P_CLUSTERS + 4 * predicate):
                    store32(m + S_ACTIVE + 4 * active, predicate)
                    active += 1
    return active


@compiled
def _set(m: int, payload: int, entry: int, attributes: int) -> tuple[int, int]:
    """Set a publication's values; returns how many attributes are in S_PRESENT and predicates in S_ACTIVE."""
    stamp = load64(m + H_STAMP) + 1
    store64(m + H_STAMP, stamp)
    store64(m + LIVE, stamp)
    publications = load64(m + H_PUBLICATIONS) + 1
    store64(m + H_PUBLICATIONS, publications)
    weight = load_double(m + H_WEIGHT)
    store_double(m + H_TOTAL, load_double(m + H_TOTAL) + weight)
    store_double(m + H_WEIGHT, weight * _GROWTH)
    present = 0
    for index in range(attributes):
        at = entry + ENTRY_BYTES * index
        place = load64(at + 8)
        attribute = predicates.find_attribute(m, load64(at), payload + (place & _LOW_32), (place >> 32) & 0xFFFF)
        if attribute == 0:
            continue
        if load64(m + LIVE + 16 * attribute) != stamp:
            store64(m + LIVE + 16 * attribute, stamp)
            store32(m + S_PRESENT + 4 * present, attribute)
            present += 1
        # A name that comes twice: the last value counts, because tokens are looked up only below.
        kind = place >> 48
        store64(m + A_KIND + 8 * attribute, kind)
        store64(m + A_BITS + 8 * attribute, load64(at + 16))
        other = load64(at + 24)
        if kind == TEXT:
            store64(m + A_NUMBER + 8 * attribute, other)  # the hash, until the second pass has used it
        else:
            number = double_of(other) if kind > 1 else _NAN
            store_double(m + A_NUMBER + 8 * attribute, number)
    active = 0
    sampled = publications < 512 or publications & 31 == 0
    for index in range(present):
        attribute = load32(m + S_PRESENT + 4 * index)
        seen = m + A_SEEN + 8 * attribute
        store_double(seen, load_double(seen) + weight)
        kind = load64(m + A_KIND + 8 * attribute)
        bits = load64(m + A_BITS + 8 * attribute)
        text_hash = 0
        if kind == TEXT:
            text_hash = load64(m + A_NUMBER + 8 * attribute)
            store_double(m + A_NUMBER + 8 * attribute, _NAN)
        elif kind > 1 and sampled and load64(m + A_SAMPLE + 8 * attribute):
            filing.add_to_sample(m, attribute, load_double(m + A_NUMBER + 8 * attribute))
        token = 0
        if kind != NIL and load32(m + A_VALUES + 4 * attribute):
            token = predicates.find_equal(m, attribute, kind, bits, text_hash, payload + (bits & _LOW_32))
            if token:
                store64(m + LIVE + 16 * token + 8, stamp)
                seen = m + P_SEEN + 8 * token
                store_double(seen, load_double(seen) + weight)
                if load32(m + P_CLUSTERS + 4 * token):
                    store32(m + S_ACTIVE + 4 * active, token)
                    active += 1
                link = load32(m + P_OWNERS + 4 * token)
                while link:
                    owner = load32(m + LINKS + 8 * link)
                    store64(m + LIVE + 16 * owner + 8, stamp)
                    store32(m + S_ACTIVE + 4 * active, owner)
                    active += 1
                    link = load32(m + LINKS + 8 * link + 4)
        store32(m + A_TOKEN + 4 * attribute, token)
        if kind == TEXT and load64(m + A_AFFIXES + 8 * attribute):
            active = _mark_affixes(m, attribute, payload + (bits & _LOW_32), bits >> 32, active)
        if kind == TEXT and load32(m + A_LISTED + 4 * attribute):
            active = _mark_strings(m, attribute, text_hash, payload + (bits & _LOW_32), bits >> 32, active)
    return present, active


@compiled
def _hit(m: int, conjunction: int) -> None:
    """Set the bit of a conjunction's subscription and touch its leaf."""
    position = load32(m + C_POSITION + 4 * conjunction)
    word = m + O_BITS + 8 * (position >> 6)
    store64(word, load64(word) | 1 << (position & 63))
    store8(m + O_TOUCHED + load32(m + O_RANK + 4 * (position >> 8)), 1)


@compiled
def _hit_many(m: int, items: int, mask: int, count: int) -> None:
    """Set the bits of many conjunctions of a leaf; their leaves are not touched, as all will be read."""
    if count_bits(mask) == count:
        for place in range(count):
            position = load32(m + C_POSITION + 4 * load32(items + 4 * place))
            word = m + O_BITS + 8 * (position >> 6)
            store64(word, load64(word) | 1 << (position & 63))
        return
    while mask:
        position = load32(m + C_POSITION + 4 * load32(items + 4 * lowest_bit(mask)))
        word = m + O_BITS + 8 * (position >> 6)
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
    ranges = tiles.codes_at(leaf, columns)
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
        codes += FAN
    unsure &= mask
    while unsure:
        place = lowest_bit(unsure)
        unsure &= unsure - 1
        at = leaf + B_ITEMS + 8 * FAN + 8 * place
        for column in range(columns):
            value = load_double(m + S_VALUES + 8 * column)
            bound = load_double(at)
            if not (value <= bound if load64(words + 8 * column) & 1 else bound <= value):
                mask &= ~(1 << place)
                break
            at += 8 * FAN
    return mask


@compiled
def _search_leaf(m: int, leaf: int, words: int, columns: int, whole: bool, payload: int) -> int:
    """Hit the entries of a leaf that hold for the values in S_VALUES; returns how many.

    leaf: address. words: address of the key's columns. whole: all bounds are known to hold.
    """
    count = load32(leaf + B_COUNT)
    capacity = load32(leaf + B_CAPACITY)
    mask = -1 if count == FAN else (1 << count) - 1
    if not whole:
        if capacity == FAN:
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
    if load64(m + H_READ_ALL) or hits * _DENSE > load64(m + H_LEAVES):
        store64(m + H_READ_ALL, 1)
        _hit_many(m, items, mask, count)
    else:
        while mask:
            _hit(m, load32(items + 4 * lowest_bit(mask)))
            mask &= mask - 1
    if residue:
        hits += _verify(m, items, items + 4 * capacity, residue, payload)
    return hits


@compiled
def _verify(m: int, items: int, guards: int, mask: int, payload: int) -> int:
    """Hit the entries whose records hold; returns how many."""
    stamp = load64(m + H_STAMP)
    checked = 0
    held = 0
    while mask:
        place = lowest_bit(mask)
        mask &= mask - 1
        if load64(m + LIVE + 8 * load32(guards + 4 * place)) == stamp:
            conjunction = load32(items + 4 * place)
            checked += 1
            if records.holds(m, load64(m + C_RECORD + 8 * conjunction), payload):
                held += 1
                _hit(m, conjunction)
    store64(m + H_CHECKED, load64(m + H_CHECKED) + checked)
    store64(m + H_WASTED, load64(m + H_WASTED) + checked - held)
    return held


@compiled
def _search_tree(m: int, root: int, height: int, words: int, columns: int, payload: int) -> int:
    """Search below a node; returns hits."""
    # A stack word: the block's ref, and in its low bits the height << 1 | whole.
    stack = m + S_STACK
    store64(stack, root | height << 1)
    depth = 1
    hits = 0
    while depth:
        depth -= 1
        word = load64(stack + 8 * depth)
        whole = word & 1
        level = (word >> 1) & 7
        block = m + (word & ~15)
        if level == 0:
            hits += _search_leaf(m, block, words, columns, whole != 0, payload)
            continue
        count = load32(block + B_COUNT)
        capacity = load32(block + B_CAPACITY)
        some = -1 if count == FAN else (1 << count) - 1
        every = some
        if not whole:
            at = block + B_ITEMS + 8 * capacity
            if columns > _WHOLE_COLUMNS_MAX:
                every = 0
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
        lower = (level - 1) << 1
        codes = tiles.codes_at(0, columns)
        while some:
            place = lowest_bit(some)
            some &= some - 1
            child = load64(block + B_ITEMS + 8 * place)
            prefetch(m + child)
            prefetch(m + child + 64)
            prefetch(m + child + codes)
            prefetch(m + child + codes + 64)
            store64(stack + 8 * depth, child | lower | ((every >> place) & 1))
            depth += 1
    return hits


@compiled
def _visit(m: int, first: int, payload: int) -> int:
    """Search the clusters of a list; returns hits."""
    stamp = load64(m + H_STAMP)
    hits = 0
    cluster = first
    while cluster:
        key = m + load64(m + K_KEY + 8 * cluster)
        root = load64(m + K_ROOT + 8 * cluster)
        height = load32(m + K_HEIGHT + 4 * cluster)
        cluster = load32(m + K_AFTER + 4 * cluster)
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
            hits += _search_leaf(m, m + root, words, columns, columns == 0, payload)
        else:
            hits += _search_tree(m, root, height, words, columns, payload)
    return hits


@compiled
def _clear(m: int) -> None:
    """Clear all bits without reading them off."""
    leaves = load64(m + H_LEAVES)
    for rank in range(leaves):
        store8(m + O_TOUCHED + rank, 0)
    for word in range(leaves * (_LEAF // 64)):
        store64(m + O_BITS + 8 * word, 0)
    store64(m + H_READ_ALL, 0)


@compiled
def _read_leaf(m: int, leaf: int, clients: int, subscriptions: int, row: int) -> int:
    """Read a leaf's hits off and clear them; returns the row after the last.

    Four at a time without asking, as a wrong guess of the processor costs more; what is too much is overwritten.
    """
    first = row
    base = 8 * _LEAF * leaf
    client = load64(m + O_CLIENT + base)
    mixed = client != load64(m + O_CLIENT + base + 8 * (load32(m + O_COUNT + 4 * leaf) - 1))
    for index in range(_LEAF // 64):
        word = m + O_BITS + 8 * (4 * leaf + index)
        bits = load64(word)
        if bits == 0:
            continue
        store64(word, 0)
        client_base = m + O_CLIENT + base + 512 * index
        subscription_base = m + O_SUBSCRIPTION + base + 512 * index
        count = count_bits(bits)
        if mixed:
            rest = bits
            for place in range(row, row + count):
                store64(clients + 8 * place, load64(client_base + 8 * lowest_bit(rest)))
                rest &= rest - 1
        for done in range(0, count, 4):
            at = subscriptions + 8 * (row + done)
            for step in range(4):
                store64(at + 8 * step, load64(subscription_base + 8 * lowest_bit(bits)))
                bits &= bits - 1
        row += count
    if not mixed:
        for place in range(first, row, 4):
            for step in range(4):
                store64(clients + 8 * place + 8 * step, client)
    return row


@compiled
def _read(m: int, publication: int, clients: int, subscriptions: int, publications: int, row: int) -> int:
    """Read the hits off in order, into rows from `row` on, and clear them; returns the row after the last."""
    first = row
    leaves = load64(m + H_LEAVES)
    if load64(m + H_READ_ALL):
        store64(m + H_READ_ALL, 0)
        for rank in range(leaves):
            store8(m + O_TOUCHED + rank, 0)
        for rank in range(leaves):
            row = _read_leaf(m, load32(m + O_LEAVES + 4 * rank), clients, subscriptions, row)
    else:
        for group in range((leaves + 7) >> 3):
            touched = load64(m + O_TOUCHED + 8 * group)
            if touched == 0:
                continue
            store64(m + O_TOUCHED + 8 * group, 0)
            while touched:
                bit = lowest_bit(touched)
                touched &= touched - 1
                leaf = load32(m + O_LEAVES + 4 * (8 * group + (bit >> 3)))
                row = _read_leaf(m, leaf, clients, subscriptions, row)
    twice = publication | publication << 32
    for filled in range(first, row, 4):
        store64(publications + 4 * filled, twice)
        store64(publications + 4 * filled + 8, twice)
    return row


@compiled
def _fade(m: int) -> None:
    """Scale all weights down, long before they overflow; once in millions of publications."""
    scale = 1.0 / load_double(m + H_WEIGHT)
    store_double(m + H_WEIGHT, 1.0)
    store_double(m + H_TOTAL, load_double(m + H_TOTAL) * scale)
    for attribute in range(1, load64(m + H_ATTRIBUTES) + 1):
        at = m + A_SEEN + 8 * attribute
        store_double(at, load_double(at) * scale)
    for predicate in range(1, load64(m + H_PREDICATES) + 1):
        at = m + P_SEEN + 8 * predicate
        store_double(at, load_double(at) * scale)


@compiled
def match(
    m: int,
    payload: int,
    starts: int,
    entries: int,
    reasons: int,
    first: int,
    count: int,
    publications: int,
    clients: int,
    subscriptions: int,
    capacity: int,
    result: int,
) -> int:
    """Match the publications first .. count - 1 of a batch into rows of three columns; returns the rows written.

    Stops before the first publication whose hits may not fit into `capacity` rows. Writes to `result` the
    publication where it
    stopped (count: all done) and an upper bound of that one's hits.
    """
    row = 0
    place = first
    needed = 0
    if load_double(m + H_WEIGHT) > _WEIGHT_MAX:
        _fade(m)
    while place < count:
        if load64(reasons + 8 * place) == 0:
            start = load64(starts + 8 * place)
            attributes = load64(starts + 8 * place + 8) - start
            present, active = _set(m, payload, entries + ENTRY_BYTES * start, attributes)
            hits = _visit(m, load32(m + H_ALWAYS), payload)
            for index in range(active):
                cluster = load32(m + P_CLUSTERS + 4 * load32(m + S_ACTIVE + 4 * index))
                if cluster:
                    hits += _visit(m, cluster, payload)
            for index in range(present):
                cluster = load32(m + A_CLUSTERS + 4 * load32(m + S_PRESENT + 4 * index))
                if cluster:
                    hits += _visit(m, cluster, payload)
            if hits:
                if row + hits + _SLACK > capacity:
                    needed = hits
                    _clear(m)
                    break
                row = _read(m, place, clients, subscriptions, publications, row)
        place += 1
    store64(result, place)
    store64(result + 8, needed)
    return row
