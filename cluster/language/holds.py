"""Exact evaluation of the normal form: a plain yes or no for each atom.

This is what an index asks when its own columns are too coarse (float64 beyond 2**53, LIKE, great circles). It shares no
code with the oracle but the string operators and the geometry, so that a test that compares the two says something.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.language import geo
from cluster.language.normal import (
    ABSENT,
    BOOL,
    NULL,
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
from cluster.language.patterns import string_test

_ABSENT = object()
_KIND_OF_TYPE: dict[type, int] = {bool: BOOL, int: NUMBER, float: NUMBER, str: STRING, type(None): NULL}


def normal_matches(form: NormalForm, attributes: Mapping[str, object]) -> bool:
    """Tell whether one of the conjunctions holds; equals `evaluate(tree, attributes) is True`."""
    return any(conjunction_holds(conjunction, attributes) for conjunction in form)


def conjunction_holds(conjunction: Conjunction, attributes: Mapping[str, object]) -> bool:
    """Tell whether all atoms of the conjunction hold."""
    return all(holds(atom, attributes) for atom in conjunction)


def holds(atom: AnyAtom, attributes: Mapping[str, object]) -> bool:
    """Tell whether one atom holds for the attributes, absence and type included."""
    if type(atom) is Near:
        return _near(atom, attributes)
    assert not isinstance(atom, Near)
    return value_holds(atom, attributes.get(atom.attribute, _ABSENT))


def value_holds(atom: Kinds | Interval | StringInterval | Member | Pattern, value: object = _ABSENT) -> bool:
    """Tell whether an atom on one attribute holds for its value; without a value, for its absence."""
    kind = ABSENT if value is _ABSENT else _KIND_OF_TYPE.get(type(value), 0)
    if isinstance(atom, Interval):
        return kind == NUMBER and _inside(value, atom.low, atom.high, atom.low_open, atom.high_open)
    if isinstance(atom, Member):
        return _is_member(value, kind, atom)
    if isinstance(atom, StringInterval):
        return kind == STRING and _inside(value, atom.low, atom.high, atom.low_open, atom.high_open)
    if isinstance(atom, Pattern):
        if type(value) is not str:
            return False
        return string_test(atom.operator, atom.text)(value) is not atom.negated
    return bool(atom.mask & kind)


def kinds_of(values: tuple[bool | int | float | str, ...]) -> int:
    """Return the mask of the kinds of some values."""
    mask = 0
    for value in values:
        mask |= _KIND_OF_TYPE[type(value)]
    return mask


def _inside(value: object, low: object, high: object, low_open: bool, high_open: bool) -> bool:
    if low is not None and not (low < value if low_open else low <= value):  # type: ignore[operator]
        return False
    return high is None or bool(value < high if high_open else value <= high)  # type: ignore[operator]


def _is_member(value: object, kind: int, atom: Member) -> bool:
    same_kind = False
    for member in atom.values:
        if _KIND_OF_TYPE[type(member)] == kind:
            if member == value:
                return not atom.negated
            same_kind = True
    return atom.negated and same_kind


def _near(atom: Near, attributes: Mapping[str, object]) -> bool:
    latitude, longitude = attributes.get(atom.latitude), attributes.get(atom.longitude)
    if _KIND_OF_TYPE.get(type(latitude)) != NUMBER or _KIND_OF_TYPE.get(type(longitude)) != NUMBER:
        return False
    inside = geo.is_near(
        latitude,  # type: ignore[arg-type]
        longitude,  # type: ignore[arg-type]
        atom.centre_latitude,
        atom.centre_longitude,
        atom.metres,
    )
    return inside is not atom.negated
