"""Reads publications: msgpack maps, checked and taken apart in one compiled pass.

A publication is a map of string -> bool | int | float | string | nil. Everything else is refused with a
reason. For each attribute the walker leaves four words (`ENTRY_BYTES`), so that no later step looks at msgpack again:

    word 0   hash of the name
    word 1   offset of the name in the payload | length << 32 | kind << 48
    word 2   the value: 0 or 1; the bits of an integer (unsigned when its kind is WHOLE) or of a double;
             a string's offset | length << 32
    word 3   hash of a string; for numbers the nearest double's bits

The hash is seeded by a constant: whoever looks a name up compares its bytes too, so that collisions cost time only.
"""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.entries import (
    ACCEPTED,
    BOOLEAN,
    DOUBLE,
    ENTRY_BYTES,
    NAME_EMPTY,
    NAME_NOT_STRING,
    NAME_NOT_UTF8,
    NAME_TOO_LONG,
    NEGATIVE,
    NIL,
    NOT_A_MAP,
    STRING_NOT_UTF8,
    STRING_TOO_LONG,
    TEXT,
    TOO_MANY_ATTRIBUTES,
    TRAILING,
    TRUNCATED,
    VALUE_BINARY,
    VALUE_INVALID,
    VALUE_NESTED,
    VALUE_NOT_FINITE,
    WHOLE,
)
from cluster.matching.machine import (
    bits_of,
    float_from_bits32,
    fold_multiply,
    load8,
    load32,
    load64,
    store64,
    swap16,
    swap32,
    swap64,
    unsigned_to_double,
)

_SEED = 0x2D358DCCAA6C78A5
_STEP = 0x4BE98134A5976FD3
_ASCII = -0x7F7F7F7F7F7F7F80  # 0x80 in each byte
_FINITE = 0x7FF0000000000000

# The head of what is written of a batch.
W_SIZE, W_COUNT, WALK_BYTES = 0, 8, 16


@compiled
def tail_word(address: int, length: int, end: int) -> int:
    """Return the last `length` (1 to 7) bytes at the address as a word; reads nothing at or past `end`."""
    if address + 8 <= end:
        return load64(address) & ((1 << (8 * length)) - 1)
    word = 0
    for index in range(length):
        word |= load8(address + index) << (8 * index)
    return word


@compiled
def hash_bytes(address: int, length: int, end: int) -> int:
    """Return the hash of `length` bytes; memory is readable up to `end`."""
    state = _SEED ^ length
    stop = address + length
    while address + 8 <= stop:
        state = fold_multiply(state ^ load64(address), _STEP)
        address += 8
    if address < stop:
        state = fold_multiply(state ^ tail_word(address, stop - address, end), _STEP)
    return fold_multiply(state ^ _STEP, _SEED)


@compiled
def is_utf8(address: int, length: int, end: int) -> bool:
    """Tell whether the bytes are UTF-8 as Python decodes it: shortest forms, no surrogates, up to U+10FFFF."""
    stop = address + length
    while address + 8 <= stop:
        if load64(address) & _ASCII:
            break
        address += 8
    if 0 < stop - address < 8 and not tail_word(address, stop - address, end) & _ASCII:
        return True
    while address < stop:
        first = load8(address)
        if first < 0x80:
            address += 1
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if address + more >= stop:
            return False
        second = load8(address + 1)
        low, high = 0x80, 0xBF
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
        elif first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
        if second < low or second > high:
            return False
        for index in range(2, more + 1):
            if load8(address + index) & 0xC0 != 0x80:
                return False
        address += more + 1
    return True


@compiled
def _map_header(address: int, stop: int) -> tuple[int, int]:
    """Return (attributes, bytes of the header), or (-reason, 0)."""
    if address >= stop:
        return -TRUNCATED, 0
    lead = load8(address)
    if lead & 0xF0 == 0x80:
        return lead & 0x0F, 1
    if lead == 0xDE:
        if address + 3 > stop:
            return -TRUNCATED, 0
        return swap16(load8(address + 1) | load8(address + 2) << 8), 3
    if lead == 0xDF:
        if address + 5 > stop:
            return -TRUNCATED, 0
        return swap32(load32(address + 1)), 5
    return -NOT_A_MAP, 0


@compiled
def string_header(address: int, stop: int) -> tuple[int, int]:
    """Return (bytes of the string, bytes of the header); (-1, 0) for another type, (-2, 0) for a cut."""
    lead = load8(address)
    if lead & 0xE0 == 0xA0:
        return lead & 0x1F, 1
    if lead == 0xD9:
        if address + 2 > stop:
            return -2, 0
        return load8(address + 1), 2
    if lead == 0xDA:
        if address + 3 > stop:
            return -2, 0
        return swap16(load8(address + 1) | load8(address + 2) << 8), 3
    if lead == 0xDB:
        if address + 5 > stop:
            return -2, 0
        return swap32(load32(address + 1)), 5
    return -1, 0


@compiled
def _walk_one(
    payload: int, start: int, stop: int, end: int, entries: int, names_max: int, name_max: int, string_max: int
) -> tuple[int, int, int]:
    """Take one publication apart into `entries`. Returns (attributes, reason, place of the name at fault)."""
    attributes, header = _map_header(payload + start, payload + stop)
    if attributes < 0:
        return 0, -attributes, 0
    if attributes > names_max:
        return 0, TOO_MANY_ATTRIBUTES, 0
    at = payload + start + header
    limit = payload + stop
    entry = entries
    for _ in range(attributes):
        if at >= limit:
            return 0, TRUNCATED, 0
        length, header = string_header(at, limit)
        if length < 0:
            return 0, (TRUNCATED if length == -2 else NAME_NOT_STRING), 0
        at += header
        if length == 0:
            return 0, NAME_EMPTY, 0
        if at + length > limit:
            return 0, TRUNCATED, 0
        if length > name_max:
            return 0, NAME_TOO_LONG, (at - payload) | name_max << 32
        if not is_utf8(at, length, end):
            return 0, NAME_NOT_UTF8, 0
        place = (at - payload) | length << 32
        store64(entry, hash_bytes(at, length, end))
        at += length
        if at >= limit:
            return 0, TRUNCATED, place
        lead = load8(at)
        at += 1
        kind = WHOLE
        value = lead
        other = 0
        if lead < 0x80:
            pass
        elif lead >= 0xE0:
            kind = NEGATIVE
            value = lead - 256
        elif lead == 0xCB:
            if at + 8 > limit:
                return 0, TRUNCATED, place
            kind = DOUBLE
            value = swap64(load64(at))
            at += 8
        elif 0xA0 <= lead <= 0xBF or 0xD9 <= lead <= 0xDB:
            length, header = string_header(at - 1, limit)
            if length < 0:
                return 0, TRUNCATED, place
            at += header - 1
            if at + length > limit:
                return 0, TRUNCATED, place
            if length > string_max:
                return 0, STRING_TOO_LONG, place
            if not is_utf8(at, length, end):
                return 0, STRING_NOT_UTF8, place
            kind = TEXT
            value = (at - payload) | length << 32
            other = hash_bytes(at, length, end)
            at += length
        elif lead == 0xC0:
            kind = NIL
            value = 0
        elif lead == 0xC2 or lead == 0xC3:
            kind = BOOLEAN
            value = lead & 1
        elif lead == 0xCA:
            if at + 4 > limit:
                return 0, TRUNCATED, place
            kind = DOUBLE
            value = bits_of(float_from_bits32(swap32(load32(at))))
            at += 4
        elif 0xCC <= lead <= 0xD3:
            width = 1 << (lead & 3)
            if at + width > limit:
                return 0, TRUNCATED, place
            if width == 1:
                value = load8(at)
            elif width == 2:
                value = swap16(load8(at) | load8(at + 1) << 8)
            elif width == 4:
                value = swap32(load32(at))
            else:
                value = swap64(load64(at))
            at += width
            if lead >= 0xD0:
                shift = 64 - 8 * width
                value = (value << shift) >> shift
                if value < 0:
                    kind = NEGATIVE
        elif lead == 0xC1:
            return 0, VALUE_INVALID, place
        elif 0x80 <= lead <= 0x9F or lead >= 0xDC:
            return 0, VALUE_NESTED, place
        else:
            return 0, VALUE_BINARY, place
        if kind == DOUBLE:
            if value & _FINITE == _FINITE:
                return 0, VALUE_NOT_FINITE, place
            other = value
        elif kind == WHOLE:
            other = bits_of(unsigned_to_double(value))
        elif kind == NEGATIVE:
            other = bits_of(float(value))
        store64(entry + 8, place | kind << 48)
        store64(entry + 16, value)
        store64(entry + 24, other)
        entry += ENTRY_BYTES
    if at != limit:
        return 0, TRAILING, 0
    return attributes, ACCEPTED, 0


@compiled
def count_attributes(payload: int, size: int, lengths: int, count: int, names_max: int) -> int:
    """Return an upper bound of the attributes in all publications; -1 where the lengths do not add up to the size."""
    total = 0
    at = 0
    for index in range(count):
        length = load32(lengths + 4 * index)
        if at + length > size:
            return -1
        attributes, _ = _map_header(payload + at, payload + at + length)
        total += min(max(attributes, 0), names_max, length // 3)
        at += length
    return total if at == size else -1


@compiled
def places_in(words: int) -> tuple[int, int, int]:
    """Return where starts, reasons and entries lie in what `walk` has written."""
    count = load64(words + W_COUNT)
    starts = words + WALK_BYTES
    return starts, starts + 8 * (count + 1), starts + 8 * (3 * count + 1)


@compiled
def walk(
    payload: int,
    size: int,
    lengths: int,
    count: int,
    limits: int,
    words: int,
) -> int:
    """Take all publications apart; returns the number refused, or -1 where the lengths do not add up to the size.

    limits:  three words: attributes of a publication, bytes of a name, bytes of a string.
    Writes, one behind the other, from `words` on:
    head:    size and count.
    starts:  count + 1 words, where each publication's entries start, in entries; a refused one has none.
    reasons: count words; places: count words, the offset and length << 32 of the name at fault, or 0.
    entries: four words an attribute.
    """
    store64(words + W_SIZE, size)
    store64(words + W_COUNT, count)
    starts, reasons, entries = places_in(words)
    places = reasons + 8 * count
    names_max = load64(limits)
    name_max = load64(limits + 8)
    string_max = load64(limits + 16)
    at = 0
    total = 0
    refused = 0
    for index in range(count):
        length = load32(lengths + 4 * index)
        if at + length > size:
            return -1
        store64(starts + 8 * index, total)
        attributes, reason, place = _walk_one(
            payload,
            at,
            at + length,
            payload + size,
            entries + ENTRY_BYTES * total,
            names_max,
            name_max,
            string_max,
        )
        store64(reasons + 8 * index, reason)
        store64(places + 8 * index, place)
        if reason != ACCEPTED:
            refused += 1
        total += attributes
        at += length
    store64(starts + 8 * count, total)
    return refused if at == size else -1
