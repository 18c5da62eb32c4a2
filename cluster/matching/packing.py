"""Reads an encoded normal form (`language/encoding.py`) into the words that `records.build` takes apart.

It understands what `encode_normal` writes, and nothing that `decode_normal` refuses: it may be given any bytes, reads
none beyond their end, and says so where it does not understand them. `index.py` then has Python read them.

Reading comes before anything in the index is changed, but for the attributes that the form names first: these are made
at once, and without uses `predicates.settle` frees them again.

Bounds of intervals: a double holds integers exactly up to 2**53. Within, an open bound becomes the next double and is
closed. Beyond, up to where integers end, the exact bound is written as well; `records.py` has the rest.
"""

from __future__ import annotations

from cluster.language.normal import ANY_KIND, BOOL, NUMBER, STRING
from cluster.matching import inputs, predicates, strings
from cluster.matching.compiled import compiled
from cluster.matching.conditions import ANY_ONE, PIECES, RANGE
from cluster.matching.entries import BOOLEAN, DOUBLE, NEGATIVE, NIL, TEXT, WHOLE
from cluster.matching.inputs import (
    AFFIX_MAX,
    HAS_HIGH,
    HAS_LOW,
    HIGH_KIND,
    HIGH_OPEN,
    IN_EQUAL,
    IN_EXACT,
    IN_KINDS,
    IN_NEAR,
    IN_RANGE,
    IN_SET,
    IN_STRING,
    LOW_KIND,
    LOW_OPEN,
    PREFIX,
    SUFFIX,
)
from cluster.matching.layout import POOL_SIZES, S_INPUT
from cluster.matching.machine import (
    bits_of,
    double_of,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store64,
    store_double,
    swap16,
    swap32,
    swap64,
    unsigned_to_double,
)
from cluster.matching.outcomes import NOT_UNDERSTOOD, PACKED, TOO_LARGE, TOO_MANY_ATTRIBUTES
from cluster.matching.walk import is_utf8, string_header

BODY_BYTES_MAX = POOL_SIZES[-1] - 16
"""The largest name, string, packed condition, and record of a conjunction."""
_MEMBERS_MAX = BODY_BYTES_MAX // 4
OPERATIONS_MAX = BODY_BYTES_MAX // 32  # the longest, NEAR, takes four words of a record
_ATTRIBUTES_MAX = (1 << 24) - 1

_EXACT_UP_TO = 9007199254740992.0  # 2**53: beyond, some integers are no doubles
_INTEGERS_FROM, _INTEGERS_TO = -9223372036854775808.0, 18446744073709551616.0  # beyond, no publication has an integer
_INFINITY = float("inf")
_EXPONENT = 0x7FF0000000000000
_INVALID = -1  # a kind of value: none that may stand here

# Operators of patterns. PREFIX and SUFFIX as in inputs.py.
_CONTAINS, _LIKE = 1, 2
_STARTS_W, _WITH, _ENDS_WIT, _CONTAINS_WORD, _LIKE_WORD = (
    int.from_bytes(word, "little") for word in (b"starts_w", b"with", b"ends_wit", b"contains", b"like")
)
_H, _PERCENT, _UNDERSCORE, _BACKSLASH = b"h%_\\"
_TAG = 0xA1  # a string of one byte
_KINDS, _INTERVAL, _STRING_INTERVAL, _MEMBER, _PATTERN, _NEAR = (_TAG | tag << 8 for tag in b"kismpn")


# Reading msgpack. A place of 0 says that something else is there, or that the bytes end; reading on there leads to 0.


@compiled
def _array(at: int, end: int) -> tuple[int, int]:
    """Read the head of an array; returns (where its first item is, items)."""
    if at == 0 or at >= end:
        return 0, 0
    lead = load8(at)
    if lead & 0xF0 == 0x90:
        return at + 1, lead & 0x0F
    if lead == 0xDC and at + 3 <= end:
        return at + 3, swap16(load16(at + 1))
    if lead == 0xDD and at + 5 <= end:
        return at + 5, swap32(load32(at + 1))
    return 0, 0


@compiled
def _text(at: int, end: int) -> tuple[int, int]:
    """Read a string; returns (where its bytes are, how many)."""
    if at == 0 or at >= end:
        return 0, 0
    length, header = string_header(at, end)
    at += header
    if length < 0 or at + length > end or not is_utf8(at, length, end):
        return 0, 0
    return at, length


@compiled
def _value(at: int, end: int) -> tuple[int, int, int]:
    """Read a number, bool or nil; returns (where it ends, kind, bits), the kind _INVALID for anything else."""
    if at == 0 or at >= end:
        return 0, _INVALID, 0
    lead = load8(at)
    at += 1
    if lead < 0x80:
        return at, WHOLE, lead
    if lead >= 0xE0:
        return at, NEGATIVE, lead - 256
    if lead == 0xCB and at + 8 <= end:
        bits = swap64(load64(at))
        if bits & _EXPONENT == _EXPONENT:
            return 0, _INVALID, 0
        return at + 8, DOUBLE, bits
    if lead == 0xC0:
        return at, NIL, 0
    if lead == 0xC2 or lead == 0xC3:
        return at, BOOLEAN, lead & 1
    width = 1 << (lead & 3)
    if lead < 0xCC or lead > 0xD3 or at + width > end:
        return 0, _INVALID, 0
    bits = 0
    for index in range(width):
        bits = bits << 8 | load8(at + index)
    if lead >= 0xD0:
        shift = 64 - 8 * width
        bits = (bits << shift) >> shift
        if bits < 0:
            return at + width, NEGATIVE, bits
    return at + width, WHOLE, bits


@compiled
def _bool(at: int, end: int) -> tuple[int, int]:
    """Read a bool; returns (where it ends, 0 or 1)."""
    if at == 0 or at >= end or load8(at) & 0xFE != 0xC2:
        return 0, 0
    return at + 1, load8(at) & 1


@compiled
def _attribute(m: int, at: int, end: int) -> tuple[int, int]:
    """Read a name; returns (where it ends, the attribute); (0, -outcome) where there is none."""
    name, length = _text(at, end)
    if name == 0:
        return 0, -NOT_UNDERSTOOD
    if length > BODY_BYTES_MAX:
        return 0, -TOO_LARGE
    attribute = predicates.add_attribute(m, name, length)
    if attribute > _ATTRIBUTES_MAX:
        return 0, -TOO_MANY_ATTRIBUTES
    return name + length, attribute


# Numbers.


@compiled
def _double(kind: int, bits: int) -> float:
    """Return the nearest double of a number."""
    if kind == DOUBLE:
        return double_of(bits)
    return unsigned_to_double(bits) if kind == WHOLE else float(bits)


@compiled
def _next_up(number: float) -> float:
    """Return the least double above a finite one."""
    bits = bits_of(number)
    if number == 0.0:
        bits = 1
    elif number > 0.0:
        bits += 1
    else:
        bits -= 1
    return double_of(bits)


@compiled
def _is_exact(number: float) -> bool:
    """Tell whether a bound is to be compared as an integer."""
    return _INTEGERS_FROM <= number <= _INTEGERS_TO and not -_EXACT_UP_TO < number < _EXACT_UP_TO


# Writing. Everything is padded to words.


@compiled
def _put_bytes(out: int, text: int, length: int) -> int:
    """Write a length and bytes; returns where they end."""
    store64(out, length)
    out += 8
    if length & 7:
        store64(out + (length & ~7), 0)
    strings.copy(text, out, length)
    return out + (length + 7) // 8 * 8


@compiled
def _end_condition(out: int, size: int) -> int:
    """Write the size of a packed condition, which follows, and pad it; returns where it ends."""
    store64(out, size)
    after = out + 8 + (size + 7) // 8 * 8
    for place in range(out + 8 + size, after):
        store8(place, 0)
    return after


@compiled
def _end_piece(piece: int, elements: int, wild: int) -> int:
    """Write a piece's head and its failure table; its elements are there. Returns where it ends."""
    store64(piece, elements | wild << 31)
    at = piece + 8
    table = at + 2 * elements
    if wild or elements == 0:
        return table
    store16(table, 0)
    length = 0
    for place in range(1, elements):
        element = load16(at + 2 * place)
        while length and element != load16(at + 2 * length):
            length = load16(table + 2 * (length - 1))
        if element == load16(at + 2 * length):
            length += 1
        store16(table + 2 * place, length)
    return table + 2 * elements


@compiled
def _put_pattern(out: int, operator: int, text: int, length: int) -> int:
    """Write a pattern as a packed condition; returns its bytes, or -outcome."""
    if 4 * length > BODY_BYTES_MAX:
        return -TOO_LARGE
    pieces = 1
    piece = out + 8
    elements = 0
    wild = 0
    if operator in (SUFFIX, _CONTAINS):
        piece = _end_piece(piece, 0, 0)
        pieces += 1
    at = text
    while at < text + length:
        byte = load8(at)
        at += 1
        if operator == _LIKE:
            if byte == _PERCENT:
                piece = _end_piece(piece, elements, wild)
                pieces += 1
                elements = 0
                wild = 0
                continue
            if byte == _UNDERSCORE:
                byte = ANY_ONE
                wild = 1
            elif byte == _BACKSLASH:
                if at == text + length:
                    return -NOT_UNDERSTOOD
                byte = load8(at)
                at += 1
                if byte != _PERCENT and byte != _UNDERSCORE and byte != _BACKSLASH:
                    return -NOT_UNDERSTOOD
        store16(piece + 8 + 2 * elements, byte)
        elements += 1
    piece = _end_piece(piece, elements, wild)
    if operator in (PREFIX, _CONTAINS):
        piece = _end_piece(piece, 0, 0)
        pieces += 1
    store64(out, PIECES | pieces << 32)
    return piece - out


# Atoms. Each takes its attribute, where its other fields begin, and where to write; returns (where they end, where the
# writing ends, outcome).


@compiled
def _interval(attribute: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    at, low_kind, low_bits = _value(at, end)
    at, high_kind, high_bits = _value(at, end)
    at, low_open = _bool(at, end)
    at, high_open = _bool(at, end)
    if at == 0 or low_kind == BOOLEAN or high_kind == BOOLEAN or low_kind == high_kind == NIL:
        return 0, 0, NOT_UNDERSTOOD
    head = attribute << 8
    low = -_INFINITY if low_kind == NIL else _double(low_kind, low_bits)
    high = _INFINITY if high_kind == NIL else _double(high_kind, high_bits)
    low_kind, low_bits = predicates.canonical(low_kind, low_bits)
    high_kind, high_bits = predicates.canonical(high_kind, high_bits)
    if low_kind == high_kind and low_bits == high_bits and not low_open | high_open:
        store64(out, IN_EQUAL | head | low_kind << 32)
        store64(out + 8, low_bits)
        return at, out + 16, PACKED
    flags = 0
    if low_kind != NIL:
        if _is_exact(low):
            flags |= HAS_LOW | LOW_OPEN * low_open | low_kind << LOW_KIND
        elif low_open:
            low = _next_up(low)
    if high_kind != NIL:
        if _is_exact(high):
            flags |= HAS_HIGH | HIGH_OPEN * high_open | high_kind << HIGH_KIND
        elif high_open:
            high = -_next_up(-high)
    if low > high or low == _INFINITY or high == -_INFINITY:
        # Between the bounds there is no double; nor an integer, as integers near small bounds are doubles.
        store64(out, IN_KINDS | head)
        return at, out + 8, PACKED
    store64(out, IN_RANGE | head)
    store_double(out + 8, low)
    store_double(out + 16, high)
    out += 24
    if flags:
        store64(out, IN_EXACT | head | flags << 32)
        store64(out + 8, low_bits if flags & HAS_LOW else 0)
        store64(out + 16, high_bits if flags & HAS_HIGH else 0)
        out += 24
    return at, out, PACKED


@compiled
def _member(attribute: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    at, members = _array(at, end)
    if at == 0 or members == 0:
        return 0, 0, NOT_UNDERSTOOD
    if members > _MEMBERS_MAX:
        return 0, 0, TOO_LARGE
    start = out
    out += 16
    kinds = 0
    for _ in range(members):
        text, length = _text(at, end)
        if text:
            if length > BODY_BYTES_MAX:
                return 0, 0, TOO_LARGE
            kinds |= STRING
            store64(out, TEXT)
            out = _put_bytes(out + 8, text, length)
            at = text + length
            continue
        at, kind, bits = _value(at, end)
        if kind <= NIL:
            return 0, 0, NOT_UNDERSTOOD
        kind, bits = predicates.canonical(kind, bits)
        kinds |= BOOL if kind == BOOLEAN else NUMBER
        store64(out, kind)
        store64(out + 8, bits)
        out += 16
    at, negated = _bool(at, end)
    if at == 0:
        return 0, 0, NOT_UNDERSTOOD
    head = attribute << 8
    if members == 1 and not negated:
        # The value goes where the set's mask and the member's kind would be.
        store64(start, IN_EQUAL | head | load64(start + 16) << 32)
        for place in range(start + 24, out, 8):
            store64(place - 16, load64(place))
        return at, out - 16, PACKED
    store64(start, IN_SET | head | (members | negated << 16) << 32)
    store64(start + 8, kinds)
    return at, out, PACKED


@compiled
def _kinds(attribute: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    at, kind, mask = _value(at, end)
    if kind != WHOLE or not 0 < mask < ANY_KIND:
        return 0, 0, NOT_UNDERSTOOD
    store64(out, IN_KINDS | attribute << 8 | mask << 32)
    return at, out + 8, PACKED


@compiled
def _operator(at: int, length: int) -> int:
    """Return the operator of a pattern, 0 where it is none."""
    if length == 11 and load64(at) == _STARTS_W and load32(at + 7) == _WITH:
        return PREFIX
    if length == 9 and load64(at) == _ENDS_WIT and load8(at + 8) == _H:
        return SUFFIX
    if length == 8 and load64(at) == _CONTAINS_WORD:
        return _CONTAINS
    return _LIKE if length == 4 and load32(at) == _LIKE_WORD else 0


@compiled
def _pattern(attribute: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    name, length = _text(at, end)
    operator = _operator(name, length) if name else 0
    text, length = _text(name + length, end)
    at, negated = _bool(text + length, end)
    if at == 0 or operator == 0:
        return 0, 0, NOT_UNDERSTOOD
    type_ = inputs.STRING
    if length <= AFFIX_MAX and operator in (PREFIX, SUFFIX):
        type_ = operator
        after = _put_bytes(out + 8, text, length)
    else:
        size = _put_pattern(out + 16, operator, text, length)
        if size < 0:
            return 0, 0, -size
        if size > BODY_BYTES_MAX:
            return 0, 0, TOO_LARGE
        after = _end_condition(out + 8, size)
    store64(out, IN_STRING | attribute << 8 | (negated | type_ << 1) << 32)
    return at, after, PACKED


@compiled
def _string_interval(attribute: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    flags = 0
    size = 16
    low_length = 0
    for flag in (HAS_LOW, HAS_HIGH):
        text, length = _text(at, end)
        if text == 0:
            at, kind, _ = _value(at, end)
            if kind != NIL:
                return 0, 0, NOT_UNDERSTOOD
            continue
        if size + length > BODY_BYTES_MAX:
            return 0, 0, TOO_LARGE
        flags |= flag
        if flag == HAS_LOW:
            low_length = length
        strings.copy(text, out + 16 + size, length)
        size += length
        at = text + length
    at, low_open = _bool(at, end)
    at, high_open = _bool(at, end)
    if at == 0 or flags == 0:
        return 0, 0, NOT_UNDERSTOOD
    flags |= LOW_OPEN * low_open | HIGH_OPEN * high_open
    store64(out, IN_STRING | attribute << 8 | inputs.STRING << 33)
    store64(out + 16, RANGE | flags << 8)
    store64(out + 24, low_length)
    return at, _end_condition(out + 8, size), PACKED


@compiled
def _near(m: int, latitude: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    at, longitude = _attribute(m, at, end)
    if longitude < 0:
        return 0, 0, -longitude
    for index in range(3):
        at, kind, bits = _value(at, end)
        if kind < WHOLE:
            return 0, 0, NOT_UNDERSTOOD
        store_double(out + 8 + 8 * index, _double(kind, bits))
    at, negated = _bool(at, end)
    if at == 0:
        return 0, 0, NOT_UNDERSTOOD
    store64(out, IN_NEAR | latitude << 8 | (longitude | negated << 31) << 32)
    return at, out + 32, PACKED


@compiled
def _atom(m: int, at: int, end: int, out: int) -> tuple[int, int, int]:
    """Read an atom with its tag; returns the same as its reader."""
    at, fields = _array(at, end)
    if at == 0 or at + 2 > end:
        return 0, 0, NOT_UNDERSTOOD
    tag = load16(at)
    at, attribute = _attribute(m, at + 2, end)
    if attribute < 0:
        return 0, 0, -attribute
    if tag == _INTERVAL and fields == 6:
        return _interval(attribute, at, end, out)
    if tag == _MEMBER and fields == 4:
        return _member(attribute, at, end, out)
    if tag == _KINDS and fields == 3:
        return _kinds(attribute, at, end, out)
    if tag == _PATTERN and fields == 5:
        return _pattern(attribute, at, end, out)
    if tag == _STRING_INTERVAL and fields == 6:
        return _string_interval(attribute, at, end, out)
    if tag == _NEAR and fields == 7:
        return _near(m, attribute, at, end, out)
    return 0, 0, NOT_UNDERSTOOD


@compiled
def pack(m: int, encoded: int, size: int) -> int:
    """Write the words of an encoded normal form to S_INPUT; returns what became of it."""
    end = encoded + size
    out = m + S_INPUT
    at, conjunctions = _array(encoded, end)
    if conjunctions == 0:
        return NOT_UNDERSTOOD
    store64(out, conjunctions)
    out += 8
    for _ in range(conjunctions):
        at, atoms = _array(at, end)
        if at == 0:
            return NOT_UNDERSTOOD
        start = out
        out += 8
        operations = 0
        for _ in range(atoms):
            before = out
            at, out, outcome = _atom(m, at, end, out)
            if outcome != PACKED:
                return outcome
            is_exact = load64(before) & 0xFF == IN_RANGE and out > before + 24
            operations += 2 if is_exact else 1
            if operations > OPERATIONS_MAX:
                return TOO_LARGE
        store64(start, operations)
    return PACKED if at == end else NOT_UNDERSTOOD
