"""A normal form as the words that `records.build` takes apart. The one step of `add` that is plain Python."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from cluster.language.normal import (
    BOOL,
    NUMBER,
    STRING,
    AnyAtom,
    Conjunction,
    Interval,
    Kinds,
    Member,
    Near,
    NormalForm,
    Pattern,
    StringInterval,
)
from cluster.matching import inputs
from cluster.matching.conditions import pack_pattern, pack_range
from cluster.matching.entries import BOOLEAN, DOUBLE, NEGATIVE, TEXT, WHOLE
from cluster.matching.inputs import (
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
)

_WORD = struct.Struct("<Q").pack
_TWO_WORDS = struct.Struct("<QQ").pack
_WORD_AND_RANGE = struct.Struct("<Qdd").pack
_EXACT_UP_TO = 2.0**53  # beyond, some integers are no doubles
_INTEGERS_FROM, _INTEGERS_TO = -(2.0**63), 2.0**64  # beyond, no publication holds an integer
_INFINITY = math.inf
_AFFIXES = {"starts_with": inputs.PREFIX, "ends_with": inputs.SUFFIX}
_MASK_64 = (1 << 64) - 1

AttributeNumber = Callable[[str], int]


def pack(normal_form: NormalForm, number_of: AttributeNumber) -> bytes:
    """Return the packed form. number_of: gives the index's number of an attribute's name."""
    pieces = [_WORD(len(normal_form))]
    for conjunction in normal_form:
        pieces.append(b"")
        place = len(pieces) - 1
        for atom in conjunction:
            if type(atom) is Interval:  # by far the most frequent
                _pack_interval(atom, number_of(atom.attribute) << 8, pieces)
            else:
                _pack_other(atom, number_of, pieces)
        pieces[place] = _WORD(len(pieces) - place - 1)
    return b"".join(pieces)


def attributes_of(conjunction: Conjunction) -> list[str]:
    """Return the names of a conjunction's attributes, doubles included."""
    names = []
    for atom in conjunction:
        if isinstance(atom, Near):
            names += [atom.latitude, atom.longitude]
        else:
            names.append(atom.attribute)
    return names


def _pack_other(atom: AnyAtom, number_of: AttributeNumber, pieces: list[bytes]) -> None:
    if isinstance(atom, Near):
        extra = number_of(atom.longitude) | atom.negated << 31
        head = IN_NEAR | number_of(atom.latitude) << 8 | extra << 32
        place = (float(atom.centre_latitude), float(atom.centre_longitude), _at_most(atom.metres))
        pieces.append(struct.pack("<Q3d", head, *place))
        return
    head = number_of(atom.attribute) << 8
    if isinstance(atom, Member):
        values = atom.values
        if len(values) == 1 and not atom.negated:
            kind, value = _value(values[0])
            pieces.append(_WORD(IN_EQUAL | head | kind << 32) + value)
            return
        kinds = 0
        packed = []
        for member in values:
            kind, value = _value(member)
            kinds |= STRING if kind == TEXT else BOOL if kind == BOOLEAN else NUMBER
            packed.append(_WORD(kind) + value)
        extra = len(values) | atom.negated << 16
        pieces.append(_TWO_WORDS(IN_SET | head | extra << 32, kinds) + b"".join(packed))
    elif isinstance(atom, Kinds):
        pieces.append(_WORD(IN_KINDS | head | atom.mask << 32))
    elif isinstance(atom, Pattern):
        type_ = _AFFIXES.get(atom.operator, inputs.STRING)
        condition = atom.text.encode()
        if type_ == inputs.STRING or len(condition) > inputs.AFFIX_MAX:
            type_ = inputs.STRING
            condition = pack_pattern(atom.operator, atom.text)
        pieces.append(_WORD(IN_STRING | head | (atom.negated | type_ << 1) << 32) + _bytes(condition))
    elif isinstance(atom, StringInterval):
        condition = pack_range(atom.low, atom.high, atom.low_open, atom.high_open)
        pieces.append(_WORD(IN_STRING | head | inputs.STRING << 33) + _bytes(condition))
    else:
        assert isinstance(atom, Interval), atom
        _pack_interval(atom, head, pieces)


def _pack_interval(atom: Interval, head: int, pieces: list[bytes]) -> None:
    low, high = atom.low, atom.high
    if low == high and low is not None and not atom.low_open and not atom.high_open:
        kind, value = _value(low)
        pieces.append(_WORD(IN_EQUAL | head | kind << 32) + value)
        return
    if low is None and high is None:
        pieces.append(_WORD(IN_KINDS | head | NUMBER << 32))
        return
    flags = 0
    low_bits = high_bits = b"\0" * 8
    if low is None:
        low_double = -_INFINITY
    elif -_EXACT_UP_TO < low < _EXACT_UP_TO:
        low_double = math.nextafter(low, _INFINITY) if atom.low_open else float(low)
    elif _INTEGERS_FROM <= low <= _INTEGERS_TO:
        low_double = float(low)
        kind, low_bits = _value(low)
        flags |= HAS_LOW | LOW_OPEN * atom.low_open | kind << LOW_KIND
    else:
        low_double = _least_double_from(low, atom.low_open)
    if high is None:
        high_double = _INFINITY
    elif -_EXACT_UP_TO < high < _EXACT_UP_TO:
        high_double = math.nextafter(high, -_INFINITY) if atom.high_open else float(high)
    elif _INTEGERS_FROM <= high <= _INTEGERS_TO:
        high_double = float(high)
        kind, high_bits = _value(high)
        flags |= HAS_HIGH | HIGH_OPEN * atom.high_open | kind << HIGH_KIND
    else:
        high_double = -_least_double_from(-high, atom.high_open)
    if low_double > high_double or low_double == _INFINITY or high_double == -_INFINITY:
        # Between the bounds there is no double; nor an integer, as integers near small bounds are doubles.
        pieces.append(_WORD(IN_KINDS | head))
        return
    pieces.append(_WORD_AND_RANGE(IN_RANGE | head, low_double, high_double))
    if flags:
        pieces.append(_WORD(IN_EXACT | head | flags << 32) + low_bits + high_bits)


def _least_double_from(bound: int | float, is_open: bool) -> float:
    """Return the least double >= bound, or > bound where it is open; infinite where there is none."""
    try:
        nearest = float(bound)
    except OverflowError:
        return _INFINITY if bound > 0 else -math.nextafter(_INFINITY, 0)
    if nearest < bound or (is_open and nearest == bound):
        return math.nextafter(nearest, _INFINITY)
    return nearest


def _at_most(bound: int | float) -> float:
    """Return the greatest double <= bound."""
    return -_least_double_from(-bound, False)


def _value(value: bool | int | float | str) -> tuple[int, bytes]:
    """Return a value's kind and its packed form. A number that no publication can hold becomes a NaN."""
    if isinstance(value, str):
        return TEXT, _bytes(value.encode())
    if isinstance(value, bool):
        return BOOLEAN, _WORD(value)
    if isinstance(value, float):
        if value.is_integer() and _INTEGERS_FROM <= value < _INTEGERS_TO:
            value = int(value)
        else:
            return DOUBLE, struct.pack("<d", value)
    if -(1 << 63) <= value < 1 << 64:
        return (WHOLE if value >= 0 else NEGATIVE), _WORD(value & _MASK_64)
    try:
        nearest = float(value)
    except OverflowError:
        nearest = _INFINITY if value > 0 else -_INFINITY
    if nearest == value:
        return DOUBLE, struct.pack("<d", nearest)
    return DOUBLE, struct.pack("<d", math.nan)  # equal to nothing


def _bytes(value: bytes) -> bytes:
    return _WORD(len(value)) + value + b"\0" * (-len(value) % 8)
