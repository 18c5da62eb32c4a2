"""What a publication says: its names and values looked up, what is present or true stamped with its number.

Publications are searched in groups (`search.py`), so each has a slot in its group. Most of what is set here
is valid until the next publication is set; only the rows of numbers (A_ROW, one number a slot) stay for the
whole group.
"""

from __future__ import annotations

from cluster.matching import filing, predicates, strings
from cluster.matching.compiled import compiled
from cluster.matching.entries import BOOLEAN, ENTRY_BYTES, NIL, TEXT
from cluster.matching.inputs import PREFIX
from cluster.matching.layout import (
    A_AFFIXES,
    A_BITS,
    A_GROUP,
    A_KIND,
    A_LISTED,
    A_NUMBER,
    A_ROW,
    A_SAMPLE,
    A_SEEN,
    A_TOKEN,
    A_VALUES,
    A_VERSION,
    CACHE,
    H_ATTRIBUTES,
    H_CACHE_BYTES,
    H_CACHE_HAND,
    H_GROUP,
    H_PREDICATES,
    H_PUBLICATIONS,
    H_ROWS,
    H_STAMP,
    H_TOTAL,
    H_WEIGHT,
    LINKS,
    LIVE,
    P_BODY,
    P_CLUSTERS,
    P_LISTED,
    P_OWNERS,
    P_SEEN,
    S_ACTIVE,
    S_PRESENT,
    S_ROWS,
    S_TRUE,
    SLOTS,
)
from cluster.matching.machine import double_of, load32, load64, load_double, lowest_bit, store32, store64, store_double
from cluster.matching.pool import PLAIN, acquire, release

_NAN = float("nan")
_LOW_32 = 0xFFFFFFFF
_GROWTH = 1.0 + 1.0 / 8192.0  # the weight of a publication: after 5,700 newer ones one counts half

# The cache of string values: which filed string conditions does this value make true?
CACHE_SLOTS = 4096
_CACHE_BYTES_MAX = 16 << 20
_CACHED_VALUE_MAX = 1024
_CACHED_TRUE_MAX = 4096


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
            predicate = predicates.find_affix(m, attribute, PREFIX + side, at, affix)
            if predicate:
                store64(m + LIVE + 16 * predicate + 8, stamp)
                seen = m + P_SEEN + 8 * predicate
                store_double(seen, load_double(seen) + weight)
                if load32(m + P_CLUSTERS + 4 * predicate):
                    store32(m + S_ACTIVE + 4 * active, predicate)
                    active += 1
    return active


@compiled
def _put_in_row(m: int, attribute: int, slot: int, number: float) -> None:
    """Write a number into the attribute's row of the present group, begun anew if need be."""
    row = m + A_ROW + 8 * SLOTS * attribute
    group = load64(m + H_GROUP)
    if load64(m + A_GROUP + 8 * attribute) != group:
        store64(m + A_GROUP + 8 * attribute, group)
        for other in range(SLOTS):
            store_double(row + 8 * other, _NAN)
        known = load64(m + H_ROWS)
        store32(m + S_ROWS + 4 * known, attribute)
        store64(m + H_ROWS, known + 1)
    store_double(row + 8 * slot, number)


@compiled
def set_values(m: int, slot: int, payload: int, entry: int, attributes: int) -> tuple[int, int]:
    """Set a publication's values, as the one in `slot`.

    Returns how many attributes are in S_PRESENT and how many predicates in S_ACTIVE.
    """
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
            number = double_of(other) if kind > BOOLEAN else _NAN
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
        elif kind > BOOLEAN:
            number = load_double(m + A_NUMBER + 8 * attribute)
            _put_in_row(m, attribute, slot, number)
            if sampled and load64(m + A_SAMPLE + 8 * attribute):
                filing.add_to_sample(m, attribute, number)
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
def fade(m: int) -> None:
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
