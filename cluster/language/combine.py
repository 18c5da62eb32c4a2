"""Several atoms on one attribute -> the fewest atoms that say the same, or None when no value can satisfy them all.

The value of an attribute is narrowed along each kind of it: the kinds still possible, one interval of numbers, one of
strings, the values that must not be, the values of which it must be one. A list of allowed values swallows all the
rest: each value is tried. What is found contradictory here is what is refused as never true; contradictions between
patterns are found where they are plain (`starts_with "a"` with `starts_with "b"`), not in general.
"""

from __future__ import annotations

from typing import TypeVar

from cluster.language.holds import kinds_of, value_holds
from cluster.language.normal import (
    ANY_KIND,
    BOOL,
    NUMBER,
    STRING,
    AnyAtom,
    Interval,
    Kinds,
    Member,
    Near,
    Pattern,
    StringInterval,
)

Atoms = tuple[AnyAtom, ...]
_Value = bool | int | float | str
_AnyInterval = TypeVar("_AnyInterval", Interval, StringInterval)
_RANK = {bool: 0, int: 1, float: 1, str: 2}


def combine(attribute: str, atoms: Atoms) -> Atoms | None:
    """Return atoms equivalent to the conjunction of those given, all on the same attribute.

    At most one Kinds, Interval, StringInterval, plain Member and negated Member come back, in this order, then patterns
    and then the Near whose latitude the attribute is. None: no value satisfies them all.
    """
    mask = ANY_KIND
    interval: Interval | None = None
    strings: StringInterval | None = None
    allowed: list[Member] = []
    excluded: list[_Value] = []
    patterns: dict[Pattern, None] = {}
    nears: dict[Near, None] = {}
    for atom in atoms:
        if isinstance(atom, Interval):
            mask &= NUMBER
            interval = atom if interval is None else _intersection(interval, atom)
        elif isinstance(atom, StringInterval):
            mask &= STRING
            strings = atom if strings is None else _intersection(strings, atom)
        elif isinstance(atom, Kinds):
            mask &= atom.mask
        elif isinstance(atom, Member):
            mask &= kinds_of(atom.values)
            if atom.negated:
                excluded.extend(atom.values)
            else:
                allowed.append(atom)
        elif isinstance(atom, Pattern):
            mask &= STRING
            patterns[atom] = None
        else:
            mask &= NUMBER
            nears[atom] = None
    if any(Near(*_near_fields(near), negated=not near.negated) in nears for near in nears):
        return None
    if mask == 0 or _contradict(patterns):
        return None
    if allowed:
        # By sets first, as comparing two long lists value by value takes the product of their lengths.
        common = set.intersection(*({_identity(value) for value in each.values} for each in allowed))
        common.difference_update(map(_identity, excluded))
        others = [atom for atom in atoms if isinstance(atom, Kinds | Interval | StringInterval | Pattern)]
        values = tuple(
            value
            for value in allowed[0].values
            if _identity(value) in common
            and kinds_of((value,)) & mask
            and all(value_holds(atom, value) for atom in others)
        )
        return (Member(attribute, values), *nears) if values else None
    for bounds in (interval, strings):
        if bounds is not None and bounds.low is not None and bounds.high is not None:
            point = _point(bounds)
            if point is False:
                return None
            if point:
                return combine(attribute, (Member(attribute, (bounds.low,)), *atoms))
    kept = _distinct(
        value
        for value in excluded
        if kinds_of((value,)) & mask
        and (interval is None or value_holds(interval, value))
        and (strings is None or value_holds(strings, value))
        and all(value_holds(pattern, value) for pattern in patterns)
    )
    if mask & BOOL and True in (flags := [value for value in kept if isinstance(value, bool)]):
        if len(flags) == 2:
            mask &= ~BOOL
            kept = tuple(value for value in kept if not isinstance(value, bool))
            if mask == 0:
                return None
        elif mask == BOOL:
            return (Member(attribute, (False,)), *nears)
    elif mask == BOOL and kept:
        return (Member(attribute, (True,)), *nears)
    return _written(attribute, mask, interval, strings, kept, tuple(patterns), tuple(nears))


def member(attribute: str, values: tuple[_Value, ...], *, negated: bool) -> Member:
    """Return a Member with its values in order and without doubles."""
    return Member(attribute, _distinct(values), negated)


def _written(
    attribute: str,
    mask: int,
    interval: Interval | None,
    strings: StringInterval | None,
    excluded: tuple[_Value, ...],
    patterns: tuple[Pattern, ...],
    nears: tuple[Near, ...],
) -> Atoms:
    """Return the narrowed value as atoms; each of them but Near implies its own kinds, so Kinds is the last resort."""
    atoms: list[AnyAtom] = []
    if interval is not None:
        atoms.append(interval)
    if strings is not None:
        atoms.append(strings)
    if excluded:
        atoms.append(Member(attribute, excluded, negated=True))
    if patterns:
        ordered: list[Pattern] = sorted(patterns, key=_pattern_order)
        atoms.extend(ordered)
    if not atoms and not nears and mask != ANY_KIND:
        atoms.append(Kinds(attribute, mask))
    return (*atoms, *nears)


def _intersection(one: _AnyInterval, other: _AnyInterval) -> _AnyInterval:
    low, low_open = one.low, one.low_open
    if other.low is not None:
        if low is None or other.low > low:
            low, low_open = other.low, other.low_open
        elif other.low == low:
            low_open = low_open or other.low_open
    high, high_open = one.high, one.high_open
    if other.high is not None:
        if high is None or other.high < high:
            high, high_open = other.high, other.high_open
        elif other.high == high:
            high_open = high_open or other.high_open
    return type(one)(one.attribute, low, high, low_open, high_open)


def _point(bounds: Interval | StringInterval) -> bool | None:
    """Return True for an interval of one value, False for an empty one, None for any other."""
    if bounds.low == bounds.high:
        return not (bounds.low_open or bounds.high_open)
    return False if bounds.low > bounds.high else None  # type: ignore[operator]


def _contradict(patterns: dict[Pattern, None]) -> bool:
    """Tell whether two of the patterns plainly exclude each other."""
    if len(patterns) < 2:
        return False
    for pattern in patterns:
        if pattern.negated and Pattern(pattern.attribute, pattern.operator, pattern.text) in patterns:
            return True
    for operator, fits in (("starts_with", str.startswith), ("ends_with", str.endswith)):
        texts = [each.text for each in patterns if each.operator == operator and not each.negated]
        longest = max(texts, key=len, default="")
        if not all(fits(longest, text) for text in texts):
            return True
    return False


def _distinct(values: object) -> tuple[_Value, ...]:
    """Return the values sorted by kind and value, of equal ones the first; True and 1 are not equal here."""
    seen: dict[tuple[int, _Value], _Value] = {}
    for value in values:  # type: ignore[attr-defined]
        seen.setdefault(_identity(value), value)
    return tuple(seen[key] for key in sorted(seen))


def _identity(value: _Value) -> tuple[int, _Value]:
    """Return what tells values apart and orders them; to Python True equals 1."""
    return _RANK[type(value)], value


def _near_fields(near: Near) -> tuple[str, str, float, float, float]:
    return near.latitude, near.longitude, near.centre_latitude, near.centre_longitude, near.metres


def _pattern_order(pattern: Pattern) -> tuple[str, str, bool]:
    return pattern.operator, pattern.text, pattern.negated
