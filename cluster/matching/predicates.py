"""Attributes and predicates: interned by their bytes, counted by their users, found again by a publication's values.

Five types of predicate, each with a number that the whole index shares:

    EQUAL   attribute == value. A publication's value is looked up by hash and compared exactly, so at most one EQUAL of
            an attribute is true, its token.
    PREFIX, SUFFIX
            starts_with and ends_with, up to 63 bytes. A string's beginning (end) of each length that
            occurs is looked up by hash just so, whatever their number.
    SET     the attribute's token is one of a sorted list of EQUALs.
    STRING  all other conditions on strings: contains, like, ranges, long affixes (`strings.py`).

Numbers are compared exactly: a whole double within 64 bits is turned into the integer that it equals (`canonical`), so
that 1 and 1.0 are one token, 2**53 + 1 and 2.0**53 are two, and true is neither.

LIVE says what the publication at hand makes true. EQUALs and affixes are always marked; SETs and STRINGs only when a
cluster is filed under them (then they are marked before clusters are visited), else they are evaluated on demand
(`is_true`).
"""

from __future__ import annotations

from cluster.matching import numbers, strings, table
from cluster.matching.compiled import compiled
from cluster.matching.entries import DOUBLE, NEGATIVE, TEXT, WHOLE
from cluster.matching.inputs import EQUAL, PREFIX, SET, STRING, SUFFIX
from cluster.matching.layout import (
    A_AFFIXES,
    A_BITS,
    A_CLUSTERS,
    A_HASH,
    A_HEADS,
    A_KEY,
    A_KIND,
    A_LISTED,
    A_NAME,
    A_NEXT,
    A_SAMPLE,
    A_SEEN,
    A_TOKEN,
    A_USES,
    A_VALUES,
    A_VERSION,
    H_ATTRIBUTE_BUCKETS,
    H_ATTRIBUTES,
    H_ATTRIBUTES_FREE,
    H_ATTRIBUTES_LIVE,
    H_FREED,
    H_LINKS,
    H_LINKS_FREE,
    H_PREDICATE_BUCKETS,
    H_PREDICATES,
    H_PREDICATES_FREE,
    H_PREDICATES_LIVE,
    H_STAMP,
    LINKS,
    LIVE,
    P_BODY,
    P_CLUSTERS,
    P_HASH,
    P_HEADS,
    P_KEY,
    P_LISTED,
    P_META,
    P_NEXT,
    P_OWNERS,
    P_SEEN,
    P_USES,
    S_FREED,
)
from cluster.matching.machine import (
    double_of,
    fold_multiply,
    load32,
    load64,
    store32,
    store64,
)
from cluster.matching.pool import PLAIN, acquire, release
from cluster.matching.walk import hash_bytes

# The block of A_AFFIXES: masks of the lengths of prefixes and suffixes that occur, then their counts (32) by length.
AFFIX_LENGTHS = 8
_AFFIX_COUNTS = 24
_AFFIX_BYTES = _AFFIX_COUNTS + 2 * 4 * 64
_MIX = 0x1E3779B97F4A7C15
_TWO_63 = 9223372036854775808.0
_LOW_32 = 0xFFFFFFFF
_FREED = 0xFFFFFFFF  # uses of a free attribute


@compiled
def canonical(kind: int, bits: int) -> tuple[int, int]:
    """Return (kind, bits) of a value such that equal numbers have equal ones."""
    if kind != DOUBLE:
        return kind, bits
    number = double_of(bits)
    if number == number // 1.0:
        if -_TWO_63 <= number < _TWO_63:
            whole = int(number)
            return (NEGATIVE if whole < 0 else WHOLE), whole
        if _TWO_63 <= number < 2.0 * _TWO_63:
            return WHOLE, int(number - _TWO_63) ^ (-1 << 63)
    return kind, bits


@compiled
def same_bytes(m: int, ref: int, address: int, length: int) -> bool:
    """Compare a body (its length in the second word) with bytes at an address."""
    if load64(m + ref + 8) != length:
        return False
    return strings.equal(m + ref + 16, address, length)


@compiled
def store_bytes(m: int, address: int, length: int, cell: int) -> None:
    """Keep a copy of bytes in a block owned by the cell."""
    ref = acquire(m, 16 + (length + 7) // 8 * 8, cell, PLAIN)
    store64(m + ref + 8, length)
    strings.copy(address, m + ref + 16, length)


# ---- attributes ----


@compiled
def find_attribute(m: int, key: int, address: int, length: int) -> int:
    """Return the attribute with a name (key: the name's hash), or 0."""
    attribute = table.first(m, H_ATTRIBUTE_BUCKETS, A_HEADS, key & _LOW_32)
    while attribute:
        if load64(m + A_KEY + 8 * attribute) == key and same_bytes(
            m, load64(m + A_NAME + 8 * attribute), address, length
        ):
            return attribute
        attribute = load32(m + A_NEXT + 4 * attribute)
    return 0


@compiled
def add_attribute(m: int, address: int, length: int) -> int:
    """Return the attribute with a name, made if need be; without a use `settle` frees a new one again."""
    key = hash_bytes(address, length, address + length)
    attribute = find_attribute(m, key, address, length)
    if attribute:
        return attribute
    attribute = numbers.take(m, H_ATTRIBUTES, H_ATTRIBUTES_FREE, A_NEXT, A_LISTED)
    store_bytes(m, address, length, A_NAME + 8 * attribute)
    store64(m + A_KEY + 8 * attribute, key)
    store32(m + A_USES + 4 * attribute, 0)
    store32(m + A_CLUSTERS + 4 * attribute, 0)
    store32(m + A_VALUES + 4 * attribute, 0)
    store32(m + A_LISTED + 4 * attribute, 0)
    store64(m + A_SAMPLE + 8 * attribute, 0)
    store64(m + A_AFFIXES + 8 * attribute, 0)
    store64(m + A_SEEN + 8 * attribute, 0)
    store64(m + LIVE + 16 * attribute, 0)
    live = load64(m + H_ATTRIBUTES_LIVE) + 1
    store64(m + H_ATTRIBUTES_LIVE, live)
    table.insert(m, H_ATTRIBUTE_BUCKETS, A_HEADS, A_NEXT, A_HASH, attribute, key & _LOW_32, live)
    _note_unused(m, attribute)
    return attribute


@compiled
def _note_unused(m: int, attribute: int) -> None:
    freed = load64(m + H_FREED)
    store32(m + S_FREED + 4 * freed, attribute)
    store64(m + H_FREED, freed + 1)


@compiled
def use_attribute(m: int, attribute: int) -> None:
    """Count a use."""
    store32(m + A_USES + 4 * attribute, load32(m + A_USES + 4 * attribute) + 1)


@compiled
def drop_attribute(m: int, attribute: int) -> None:
    """Uncount a use; without uses the attribute is freed by `settle`."""
    uses = load32(m + A_USES + 4 * attribute) - 1
    store32(m + A_USES + 4 * attribute, uses)
    if uses == 0:
        _note_unused(m, attribute)


@compiled
def settle(m: int) -> None:
    """Free the attributes that a call has left without uses.

    Not done at once, because a replacing filter may use again what the replaced one dropped.
    """
    for index in range(load64(m + H_FREED)):
        attribute = load32(m + S_FREED + 4 * index)
        if load32(m + A_USES + 4 * attribute):
            continue  # used again, or freed by an earlier turn of this loop
        store32(m + A_USES + 4 * attribute, _FREED)
        live = load64(m + H_ATTRIBUTES_LIVE) - 1
        store64(m + H_ATTRIBUTES_LIVE, live)
        table.remove(m, H_ATTRIBUTE_BUCKETS, A_HEADS, A_NEXT, A_HASH, attribute, live)
        release(m, load64(m + A_NAME + 8 * attribute))
        if load64(m + A_SAMPLE + 8 * attribute):
            release(m, load64(m + A_SAMPLE + 8 * attribute))
        numbers.give_back(m, H_ATTRIBUTES, H_ATTRIBUTES_FREE, A_NEXT, A_LISTED, attribute)
    store64(m + H_FREED, 0)


# ---- predicates ----


@compiled
def predicate_key(attribute: int, kind: int, bits: int) -> int:
    """Return the hash of a predicate; bits: the value, or the hash of its bytes."""
    return fold_multiply(bits ^ (attribute * _MIX), _MIX ^ kind)


@compiled
def find_predicate(m: int, meta: int, key: int, hash32: int, address: int, length: int, has_body: bool) -> int:
    """Return the predicate, or 0."""
    predicate = table.first(m, H_PREDICATE_BUCKETS, P_HEADS, hash32)
    while predicate:
        if (
            load64(m + P_KEY + 8 * predicate) == key
            and load64(m + P_META + 8 * predicate) == meta
            and (not has_body or same_bytes(m, load64(m + P_BODY + 8 * predicate), address, length))
        ):
            return predicate
        predicate = load32(m + P_NEXT + 4 * predicate)
    return 0


@compiled
def find_equal(m: int, attribute: int, kind: int, bits: int, text_hash: int, address: int) -> int:
    """Return the EQUAL that a publication's value makes true, or 0. A string's bits are offset | length << 32."""
    if kind == TEXT:
        meta = EQUAL | TEXT << 8 | attribute << 16
        hash32 = predicate_key(attribute, TEXT, text_hash) & _LOW_32
        return find_predicate(m, meta, text_hash, hash32, address, bits >> 32, True)
    kind, bits = canonical(kind, bits)
    hash32 = predicate_key(attribute, kind, bits) & _LOW_32
    return find_predicate(m, EQUAL | kind << 8 | attribute << 16, bits, hash32, 0, 0, False)


@compiled
def add_predicate(
    m: int, type_: int, kind: int, attribute: int, bits: int, address: int, length: int, has_body: bool
) -> int:
    """Return the predicate, made if need be, and count a use. With a body, `bits` is ignored."""
    if has_body:
        bits = hash_bytes(address, length, address + length)
    meta = type_ | kind << 8 | attribute << 16
    salt = kind if type_ == EQUAL else 16 + type_
    hash32 = predicate_key(attribute, salt, bits) & _LOW_32
    predicate = find_predicate(m, meta, bits, hash32, address, length, has_body)
    if predicate:
        store32(m + P_USES + 4 * predicate, load32(m + P_USES + 4 * predicate) + 1)
        return predicate
    predicate = numbers.take(m, H_PREDICATES, H_PREDICATES_FREE, P_NEXT, P_LISTED)
    store64(m + P_META + 8 * predicate, meta)
    store64(m + P_KEY + 8 * predicate, bits)
    store64(m + P_BODY + 8 * predicate, 0)
    store32(m + P_USES + 4 * predicate, 1)
    store32(m + P_CLUSTERS + 4 * predicate, 0)
    store32(m + P_OWNERS + 4 * predicate, 0)
    store32(m + P_LISTED + 4 * predicate, 0)
    store64(m + P_SEEN + 8 * predicate, 0)
    store64(m + LIVE + 16 * predicate + 8, 0)
    if has_body:
        store_bytes(m, address, length, P_BODY + 8 * predicate)
    live = load64(m + H_PREDICATES_LIVE) + 1
    store64(m + H_PREDICATES_LIVE, live)
    table.insert(m, H_PREDICATE_BUCKETS, P_HEADS, P_NEXT, P_HASH, predicate, hash32, live)
    use_attribute(m, attribute)
    if type_ == EQUAL:
        store32(m + A_VALUES + 4 * attribute, load32(m + A_VALUES + 4 * attribute) + 1)
    elif type_ in (PREFIX, SUFFIX):
        _count_affix(m, attribute, type_, length, 1)
    elif type_ == SET:
        for index in range(length // 4):
            member = load32(address + 4 * index)
            store32(m + P_USES + 4 * member, load32(m + P_USES + 4 * member) + 1)
    return predicate


@compiled
def _count_affix(m: int, attribute: int, type_: int, length: int, change: int) -> None:
    """Count a PREFIX or SUFFIX of an attribute by its length."""
    ref = load64(m + A_AFFIXES + 8 * attribute)
    if ref == 0:
        ref = acquire(m, _AFFIX_BYTES, A_AFFIXES + 8 * attribute, PLAIN)
        for offset in range(8, _AFFIX_BYTES, 8):
            store64(m + ref + offset, 0)
    side = type_ - PREFIX
    count = m + ref + _AFFIX_COUNTS + 256 * side + 4 * length
    store32(count, load32(count) + change)
    lengths = m + ref + AFFIX_LENGTHS + 8 * side
    bit = 1 << length
    store64(lengths, (load64(lengths) & ~bit) | (bit if load32(count) else 0))
    if load64(m + ref + AFFIX_LENGTHS) | load64(m + ref + AFFIX_LENGTHS + 8) == 0:
        store64(m + A_AFFIXES + 8 * attribute, 0)
        release(m, ref)


@compiled
def find_affix(m: int, attribute: int, type_: int, address: int, length: int) -> int:
    """Return the PREFIX or SUFFIX with these bytes, or 0."""
    key = hash_bytes(address, length, address + length)
    hash32 = predicate_key(attribute, 16 + type_, key) & _LOW_32
    return find_predicate(m, type_ | attribute << 16, key, hash32, address, length, True)


@compiled
def _drop_one(m: int, predicate: int) -> bool:
    """Uncount a use; tell whether it was the last."""
    uses = load32(m + P_USES + 4 * predicate) - 1
    store32(m + P_USES + 4 * predicate, uses)
    return uses == 0


@compiled
def _free_predicate(m: int, predicate: int) -> None:
    live = load64(m + H_PREDICATES_LIVE) - 1
    store64(m + H_PREDICATES_LIVE, live)
    table.remove(m, H_PREDICATE_BUCKETS, P_HEADS, P_NEXT, P_HASH, predicate, live)
    meta = load64(m + P_META + 8 * predicate)
    attribute = meta >> 16
    if meta & 0xFF == EQUAL:
        store32(m + A_VALUES + 4 * attribute, load32(m + A_VALUES + 4 * attribute) - 1)
    body = load64(m + P_BODY + 8 * predicate)
    if body:
        length = load64(m + body + 8)
        release(m, body)
        if meta & 0xFF in (PREFIX, SUFFIX):
            _count_affix(m, attribute, meta & 0xFF, length, -1)
    store64(m + P_META + 8 * predicate, 0)
    numbers.give_back(m, H_PREDICATES, H_PREDICATES_FREE, P_NEXT, P_LISTED, predicate)
    drop_attribute(m, attribute)


@compiled
def drop_predicate(m: int, predicate: int) -> None:
    """Uncount a use; without uses the predicate is freed, and a set's members lose a use.

    No cluster is filed under it then.
    """
    if not _drop_one(m, predicate):
        return
    meta = load64(m + P_META + 8 * predicate)
    if meta & 0xFF == SET:
        body = load64(m + P_BODY + 8 * predicate)
        for index in range(load64(m + body + 8) // 4):
            member = load32(m + body + 16 + 4 * index)
            if _drop_one(m, member):
                _free_predicate(m, member)
                body = load64(m + P_BODY + 8 * predicate)
    _free_predicate(m, predicate)


@compiled
def begin_filing(m: int, predicate: int) -> None:
    """Make a predicate be marked for every publication, because a first cluster is filed under it."""
    meta = load64(m + P_META + 8 * predicate)
    attribute = meta >> 16
    if meta & 0xFF == SET:
        body = load64(m + P_BODY + 8 * predicate)
        for index in range(load64(m + body + 8) // 4):
            member = load32(m + body + 16 + 4 * index)
            link = load64(m + H_LINKS_FREE)
            if link:
                store64(m + H_LINKS_FREE, load32(m + LINKS + 8 * link + 4))
            else:
                link = load64(m + H_LINKS) + 1
                store64(m + H_LINKS, link)
            store32(m + LINKS + 8 * link, predicate)
            store32(m + LINKS + 8 * link + 4, load32(m + P_OWNERS + 4 * member))
            store32(m + P_OWNERS + 4 * member, link)
    elif meta & 0xFF == STRING:
        store32(m + P_LISTED + 4 * predicate, load32(m + A_LISTED + 4 * attribute))
        store32(m + A_LISTED + 4 * attribute, predicate)
        store64(m + A_VERSION + 8 * attribute, load64(m + A_VERSION + 8 * attribute) + 1)


@compiled
def end_filing(m: int, predicate: int) -> None:
    """Undo `begin_filing`: no cluster is filed under the predicate any more."""
    meta = load64(m + P_META + 8 * predicate)
    attribute = meta >> 16
    if meta & 0xFF == SET:
        body = load64(m + P_BODY + 8 * predicate)
        for index in range(load64(m + body + 8) // 4):
            at = m + P_OWNERS + 4 * load32(m + body + 16 + 4 * index)
            while load32(m + LINKS + 8 * load32(at)) != predicate:
                at = m + LINKS + 8 * load32(at) + 4
            link = load32(at)
            store32(at, load32(m + LINKS + 8 * link + 4))
            store32(m + LINKS + 8 * link + 4, load64(m + H_LINKS_FREE))
            store64(m + H_LINKS_FREE, link)
    elif meta & 0xFF == STRING:
        at = m + A_LISTED + 4 * attribute
        while load32(at) != predicate:
            at = m + P_LISTED + 4 * load32(at)
        store32(at, load32(m + P_LISTED + 4 * predicate))
        store64(m + A_VERSION + 8 * attribute, load64(m + A_VERSION + 8 * attribute) + 1)


@compiled
def is_true(m: int, predicate: int, payload: int) -> bool:
    """Tell whether the publication at hand, whose attributes are set, makes a predicate true."""
    stamp = load64(m + H_STAMP)
    live = load64(m + LIVE + 16 * predicate + 8)
    if live == stamp:
        return True
    meta = load64(m + P_META + 8 * predicate)
    type_ = meta & 0xFF
    if live == -stamp or (type_ != SET and type_ != STRING) or load32(m + P_CLUSTERS + 4 * predicate):
        return False
    attribute = meta >> 16
    holds = False
    if load64(m + LIVE + 16 * attribute) == stamp:
        if type_ == SET:
            token = load32(m + A_TOKEN + 4 * attribute)
            body = load64(m + P_BODY + 8 * predicate)
            if token:
                low = 0
                high = load64(m + body + 8) // 4
                while low < high:
                    middle = (low + high) // 2
                    if load32(m + body + 16 + 4 * middle) < token:
                        low = middle + 1
                    else:
                        high = middle
                holds = low < load64(m + body + 8) // 4 and load32(m + body + 16 + 4 * low) == token
        elif load64(m + A_KIND + 8 * attribute) == TEXT:
            bits = load64(m + A_BITS + 8 * attribute)
            body = load64(m + P_BODY + 8 * predicate)
            holds = strings.holds(m + body + 16, load64(m + body + 8), payload + (bits & _LOW_32), bits >> 32)
    store64(m + LIVE + 16 * predicate + 8, stamp if holds else -stamp)
    return holds
