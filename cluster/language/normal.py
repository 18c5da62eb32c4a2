"""The normal form of a filter: what the matching index is given.

A filter holds exactly when one of its conjunctions holds; a conjunction holds when all of its atoms hold. Kleene's
third value is gone: an atom states outright for which values it holds, absence and type included, so `holds` is a
plain yes or no. That is what lets `(t > 5) is not true` and `not (t > 5)` be told apart without three-valued
logic in the index: the first becomes `t <= 5` or "t is absent, null, a bool or a string", the second `t <= 5` alone.

Numbers compare as exact numbers: 2**53 + 1 differs from 2.0**53. bool is not a number. -0.0 equals 0.
Strings compare by code point, which is also the order of their UTF-8 bytes.
"""

from __future__ import annotations

import msgspec

Value = bool | int | float | str | None

# Kinds of value, one bit each, for `Kinds.mask`.
ABSENT, NULL, BOOL, NUMBER, STRING = 1, 2, 4, 8, 16
ANY_KIND = 31


class Atom(msgspec.Struct, frozen=True, array_like=True, tag_field="atom"):
    """One condition on one attribute (`Near`: on two)."""


class Kinds(Atom, frozen=True, array_like=True, tag="k"):
    """Holds when the kind of the attribute's value is in the mask (ABSENT counts as a kind)."""

    attribute: str
    mask: int


class Interval(Atom, frozen=True, array_like=True, tag="i"):
    """Holds for numbers between low and high; None is unbounded. An open end excludes the bound itself."""

    attribute: str
    low: int | float | None
    high: int | float | None
    low_open: bool
    high_open: bool


class StringInterval(Atom, frozen=True, array_like=True, tag="s"):
    """Holds for strings between low and high in code point order; None is unbounded."""

    attribute: str
    low: str | None
    high: str | None
    low_open: bool
    high_open: bool


class Member(Atom, frozen=True, array_like=True, tag="m"):
    """Holds when the value equals one of `values` (bools, numbers, strings; never empty, no two equal).

    Negated: holds when the value is of the kind of one of them and equals none.
    """

    attribute: str
    values: tuple[bool | int | float | str, ...]
    negated: bool = False


class Pattern(Atom, frozen=True, array_like=True, tag="p"):
    """Holds for strings that match; negated, for strings that do not.

    operator: starts_with, ends_with, contains or like (`text` is then the LIKE pattern as written, with its escapes).
    """

    attribute: str
    operator: str
    text: str
    negated: bool = False


class Near(Atom, frozen=True, array_like=True, tag="n"):
    """Holds when both values are numbers and the point is at most `metres` from the centre; negated, farther.

    The normal form adds the bounding intervals beside a plain `Near`, so an index may treat it as a residue to verify.
    """

    latitude: str
    longitude: str
    centre_latitude: float
    centre_longitude: float
    metres: float
    negated: bool = False


AnyAtom = Kinds | Interval | StringInterval | Member | Pattern | Near
Conjunction = tuple[AnyAtom, ...]
NormalForm = tuple[Conjunction, ...]
"""At least one conjunction. An empty conjunction always holds. Atoms are sorted by attribute; at most one Interval,
one StringInterval, one Kinds and one plain Member for an attribute in a conjunction."""
