"""Packed constraints: what `packing.py` makes of a filter, and what the index keeps of a conjunction.

Both are sequences of words: an operation (type | attribute << 8 | extra << 32) and its arguments.

    input (`packing.py` writes it)                      record (this file writes it)
    IN_EQUAL   extra kind; value                         TRUE       extra predicate
    IN_SET     extra members | negated << 16; kinds      TRUE, or   extra predicate
               mask; per member kind, value              NOT_IN     extra predicate; kinds mask
    IN_STRING  extra negated | type << 1; value (bytes   TRUE, or   extra predicate
               or packed condition)
                                                         NOT_STRING extra predicate
    IN_RANGE   low, high (doubles, rounded outwards,     RANGE      low, high
               closed, infinite if none)
    IN_EXACT   extra flags; low, high bits               EXACT      the same
    IN_KINDS   extra mask                                KINDS      the same
    IN_NEAR    extra longitude attribute | negated << 31 NEAR       the same
               latitude, longitude, metres

A value is its bits, or for text and packed conditions a length and the bytes, padded to words.

A double holds integers exactly up to 2**53. A bound beyond is rounded to the nearest double and closed, which rounds
outwards because rounding never changes the order of two numbers; an EXACT beside the RANGE then has the last word.
"""

from __future__ import annotations

import math

from cluster.matching import predicates
from cluster.matching.compiled import compiled
from cluster.matching.entries import BOOLEAN, DOUBLE, NEGATIVE, NIL, TEXT, WHOLE
from cluster.matching.inputs import (
    EQUAL,
    HAS_HIGH,
    HAS_LOW,
    HIGH_KIND,
    HIGH_OPEN,
    IN_EQUAL,
    IN_EXACT,
    IN_KINDS,
    IN_RANGE,
    IN_SET,
    IN_STRING,
    LOW_KIND,
    LOW_OPEN,
    SET,
)
from cluster.matching.layout import (
    A_BITS,
    A_KIND,
    A_NUMBER,
    C_RECORD,
    H_STAMP,
    LIVE,
    S_RECORD,
    S_SET,
)
from cluster.matching.machine import double_of, load32, load64, load_double, store32, store64
from cluster.matching.pool import PLAIN, acquire, release

TRUE, RANGE, KINDS, EXACT, NOT_IN, NOT_STRING, NEAR = range(1, 8)

ABSENT_BIT, NULL_BIT, BOOL_BIT, NUMBER_BIT, STRING_BIT = 1, 2, 4, 8, 16  # as in language/normal.py

# A record's block: word 0 the pool's, word 1 its number of constraints.
RECORD_COUNT, RECORD_WORDS = 8, 16

EARTH_RADIUS_METRES = 6_371_008.8  # as in language/geo.py, whose formula `is_near` follows step by step


@compiled
def arguments_of(type_: int) -> int:
    """Return how many words follow a record's operation."""
    if type_ in (RANGE, EXACT):
        return 2
    if type_ == NOT_IN:
        return 1
    if type_ == NEAR:
        return 3
    return 0


@compiled
def _add_equal(m: int, attribute: int, kind: int, at: int) -> tuple[int, int]:
    """Use the EQUAL of a value of the input; returns (predicate, where the input goes on)."""
    if kind == TEXT:
        length = load64(at)
        predicate = predicates.add_predicate(m, EQUAL, TEXT, attribute, 0, at + 8, length, True)
        return predicate, at + 8 + (length + 7) // 8 * 8
    kind, bits = predicates.canonical(kind, load64(at))
    return predicates.add_predicate(m, EQUAL, kind, attribute, bits, 0, 0, False), at + 8


@compiled
def _add_set(m: int, attribute: int, members: int, at: int) -> tuple[int, int]:
    """Use the SET of the input's members; returns (predicate, where the input goes on)."""
    start = m + S_SET
    for index in range(members):
        member, at = _add_equal(m, attribute, load64(at), at + 8)
        place = index
        while place and load32(start + 4 * place - 4) > member:
            store32(start + 4 * place, load32(start + 4 * place - 4))
            place -= 1
        store32(start + 4 * place, member)
    predicate = predicates.add_predicate(m, SET, 0, attribute, 0, start, 4 * members, True)
    for index in range(members):
        predicates.drop_predicate(m, load32(start + 4 * index))  # the set itself holds them
    return predicate, at


@compiled
def build(m: int, at: int, conjunction: int) -> int:
    """Make a conjunction's record of the input at an address; returns where the input goes on."""
    atoms = load64(at)
    at += 8
    start = m + S_RECORD
    out = start
    for _ in range(atoms):
        operation = load64(at)
        at += 8
        type_ = operation & 0xFF
        attribute = (operation >> 8) & 0xFFFFFF
        extra = (operation >> 32) & 0xFFFFFFFF
        predicates.use_attribute(m, attribute)
        head = attribute << 8
        if type_ == IN_EQUAL:
            predicate, at = _add_equal(m, attribute, extra, at)
            store64(out, TRUE | head | predicate << 32)
        elif type_ == IN_SET:
            mask = load64(at)
            predicate, at = _add_set(m, attribute, extra & 0xFFFF, at + 8)
            if extra >> 16:
                store64(out, NOT_IN | head | predicate << 32)
                out += 8
                store64(out, mask)
            else:
                store64(out, TRUE | head | predicate << 32)
        elif type_ == IN_STRING:
            length = load64(at)
            predicate = predicates.add_predicate(m, extra >> 1, 0, attribute, 0, at + 8, length, True)
            at += 8 + (length + 7) // 8 * 8
            store64(out, (NOT_STRING if extra & 1 else TRUE) | head | predicate << 32)
        elif type_ == IN_RANGE:
            store64(out, RANGE | head)
            store64(out + 8, load64(at))
            store64(out + 16, load64(at + 8))
            out += 16
            at += 16
        elif type_ == IN_EXACT:
            store64(out, EXACT | head | extra << 32)
            store64(out + 8, load64(at))
            store64(out + 16, load64(at + 8))
            out += 16
            at += 16
        elif type_ == IN_KINDS:
            store64(out, KINDS | head | extra << 32)
        else:
            predicates.use_attribute(m, extra & 0xFFFFFF)
            store64(out, NEAR | head | extra << 32)
            store64(out + 8, load64(at))
            store64(out + 16, load64(at + 8))
            store64(out + 24, load64(at + 16))
            out += 24
            at += 24
        out += 8
    size = out - start
    record = acquire(m, RECORD_WORDS + size, C_RECORD + 8 * conjunction, PLAIN)
    store64(m + record + RECORD_COUNT, atoms)
    for offset in range(0, size, 8):
        store64(m + record + RECORD_WORDS + offset, load64(start + offset))
    return at


@compiled
def destroy(m: int, conjunction: int) -> None:
    """Free a conjunction's record and what only it used. The conjunction is in no cluster."""
    record = load64(m + C_RECORD + 8 * conjunction)
    atoms = load64(m + record + RECORD_COUNT)
    start = m + S_RECORD
    at = m + record + RECORD_WORDS
    # Dropping moves blocks, so the operations are copied first.
    for index in range(atoms):
        operation = load64(at)
        store64(start + 8 * index, operation)
        at += 8 + 8 * arguments_of(operation & 0xFF)
    release(m, record)
    for index in range(atoms):
        operation = load64(start + 8 * index)
        type_ = operation & 0xFF
        extra = (operation >> 32) & 0xFFFFFFFF
        if type_ in (TRUE, NOT_IN, NOT_STRING):
            predicates.drop_predicate(m, extra)
        elif type_ == NEAR:
            predicates.drop_attribute(m, extra & 0xFFFFFF)
        predicates.drop_attribute(m, (operation >> 8) & 0xFFFFFF)


@compiled
def kind_bit(kind: int) -> int:
    """Return the bit in a mask of kinds."""
    if kind == TEXT:
        return STRING_BIT
    if kind == BOOLEAN:
        return BOOL_BIT
    if kind == NIL:
        return NULL_BIT
    return NUMBER_BIT


@compiled
def compare_numbers(kind: int, bits: int, other_kind: int, other_bits: int) -> int:
    """Return -1, 0 or 1 as the first number is below, equal to or above the second; exact. Both canonical."""
    if kind == DOUBLE and other_kind == DOUBLE:
        left = double_of(bits)
        right = double_of(other_bits)
        return -1 if left < right else 1 if left > right else 0
    if kind != DOUBLE and other_kind != DOUBLE:
        if kind != other_kind:
            return -1 if kind == NEGATIVE else 1
        if bits == other_bits:
            return 0
        # Within a kind the order of the bits as unsigned integers is the order of the numbers.
        flipped = bits ^ (-1 << 63)
        other_flipped = other_bits ^ (-1 << 63)
        return -1 if flipped < other_flipped else 1
    # A canonical double is no whole number within 64 bits: it lies strictly between two of them or beyond all.
    number = double_of(bits) if kind == DOUBLE else double_of(other_bits)
    whole_kind = other_kind if kind == DOUBLE else kind
    whole = other_bits if kind == DOUBLE else bits
    if number >= 18446744073709551616.0:
        order = 1
    elif number < -9223372036854775808.0:
        order = -1
    elif whole_kind == NEGATIVE:
        order = 1 if number > 0.0 or math.floor(number) >= whole else -1
    elif number < 0.0:
        order = -1
    elif whole < 0:
        order = -1  # the integer is at least 2**63, where no double has a fraction
    else:
        order = 1 if math.floor(number) >= whole and number < 9223372036854775808.0 else -1
    return order if kind == DOUBLE else -order


@compiled
def _is_exactly_within(m: int, attribute: int, flags: int, low: int, high: int) -> bool:
    kind = load64(m + A_KIND + 8 * attribute)
    if kind < WHOLE or kind > DOUBLE:
        return False
    kind, bits = predicates.canonical(kind, load64(m + A_BITS + 8 * attribute))
    if flags & HAS_LOW:
        order = compare_numbers(kind, bits, (flags >> LOW_KIND) & 15, low)
        if order < 0 or (order == 0 and flags & LOW_OPEN):
            return False
    if flags & HAS_HIGH:
        order = compare_numbers(kind, bits, (flags >> HIGH_KIND) & 15, high)
        if order > 0 or (order == 0 and flags & HIGH_OPEN):
            return False
    return True


@compiled
def is_near(latitude: float, longitude: float, centre_latitude: float, centre_longitude: float, metres: float) -> bool:
    """Tell the same as geo.is_near, in the same steps, so that the last bit agrees."""
    if not (-90.0 <= latitude <= 90.0 and -180.0 <= longitude <= 180.0):
        return False
    turn = abs(longitude - centre_longitude)
    if turn > 180.0:
        turn = 360.0 - turn
    if abs(latitude) == 90.0 or abs(centre_latitude) == 90.0:
        turn = 0.0
    rise = math.sin(math.radians(latitude - centre_latitude) / 2.0)
    run = math.sin(math.radians(turn) / 2.0)
    chord = rise * rise + math.cos(math.radians(latitude)) * math.cos(math.radians(centre_latitude)) * run * run
    return 2.0 * EARTH_RADIUS_METRES * math.asin(math.sqrt(min(1.0, chord))) <= metres


@compiled
def holds(m: int, record: int, payload: int) -> bool:
    """Tell whether all constraints of a record hold for the publication at hand, whose attributes are set."""
    stamp = load64(m + H_STAMP)
    at = m + record + RECORD_WORDS
    for _ in range(load64(m + record + RECORD_COUNT)):
        operation = load64(at)
        type_ = operation & 0xFF
        attribute = (operation >> 8) & 0xFFFFFF
        extra = (operation >> 32) & 0xFFFFFFFF
        present = load64(m + LIVE + 16 * attribute) == stamp
        if type_ == TRUE:
            if not present or not predicates.is_true(m, extra, payload):
                return False
        elif type_ == RANGE:
            if not present:
                return False
            number = load_double(m + A_NUMBER + 8 * attribute)
            if not (load_double(at + 8) <= number <= load_double(at + 16)):
                return False
            at += 16
        elif type_ == KINDS:
            bit = kind_bit(load64(m + A_KIND + 8 * attribute)) if present else ABSENT_BIT
            if not bit & extra:
                return False
        elif type_ == EXACT:
            if not present or not _is_exactly_within(m, attribute, extra, load64(at + 8), load64(at + 16)):
                return False
            at += 16
        elif type_ == NOT_IN:
            if not present or not kind_bit(load64(m + A_KIND + 8 * attribute)) & load64(at + 8):
                return False
            if predicates.is_true(m, extra, payload):
                return False
            at += 8
        elif type_ == NOT_STRING:
            if not present or load64(m + A_KIND + 8 * attribute) != TEXT:
                return False
            if predicates.is_true(m, extra, payload):
                return False
        else:
            longitude = extra & 0xFFFFFF
            if not present or load64(m + LIVE + 16 * longitude) != stamp:
                return False
            first = load_double(m + A_NUMBER + 8 * attribute)
            second = load_double(m + A_NUMBER + 8 * longitude)
            if first != first or second != second:
                return False
            near = is_near(first, second, load_double(at + 8), load_double(at + 16), load_double(at + 24))
            if near == (extra >> 31 != 0):
                return False
            at += 24
        at += 8
    return True
