"""One predicate -> the conjunctions where it is true, where it is false, and where it is unknown.

The three sets share no input and together hold every input; `normalise.py` puts them together.
A conjunction under construction maps an attribute to its atoms.
"""

from __future__ import annotations

from cluster.language import geo
from cluster.language.combine import Atoms, combine, member
from cluster.language.holds import kinds_of
from cluster.language.normal import (
    ABSENT,
    ANY_KIND,
    BOOL,
    NULL,
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
from cluster.language.patterns import simplify_like
from cluster.language.tree import (
    Comparison,
    KindTest,
    Membership,
    NearPoint,
    Predicate,
    Range,
    StringMatch,
    WithinBox,
)

Draft = dict[str, Atoms]

_COMPLEMENTS = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MASKS = {
    "exists": ANY_KIND & ~ABSENT,
    "missing": ABSENT,
    "null": NULL,
    "number": NUMBER,
    "string": STRING,
    "bool": BOOL,
}


def where_true(node: Predicate) -> list[Draft]:
    """Return the conjunctions, one of which holds exactly where the predicate is true; none if it never is."""
    if isinstance(node, Comparison):
        return _compared(node.attribute, node.operator, node.value)
    if isinstance(node, Range):
        return _single(_closed(node.attribute, node.low, node.high))
    if isinstance(node, Membership):
        return _single(member(node.attribute, node.values, negated=False))
    if isinstance(node, StringMatch):
        return _matched(node, negated=False)
    if isinstance(node, KindTest):
        return _single(Kinds(node.attribute, _MASKS[node.kind]))
    if isinstance(node, WithinBox):
        return _inside_box(node)
    return _inside_circle(node)


def where_false(node: Predicate) -> list[Draft]:
    """Return the conjunctions, one of which holds exactly where the predicate is false."""
    if isinstance(node, Comparison):
        return _compared(node.attribute, _COMPLEMENTS[node.operator], node.value)
    if isinstance(node, Range):
        below = _compared(node.attribute, "<", node.low)
        return below + _compared(node.attribute, ">", node.high)
    if isinstance(node, Membership):
        # Combined even alone: no bool is in neither of (true, false).
        return _drafts([member(node.attribute, node.values, negated=True)])
    if isinstance(node, StringMatch):
        return _matched(node, negated=True)
    if isinstance(node, KindTest):
        return _single(Kinds(node.attribute, ANY_KIND & ~_MASKS[node.kind]))
    if isinstance(node, WithinBox):
        return _outside_box(node)
    return _drafts([_near(node, negated=True)])


def where_unknown(node: Predicate) -> list[Draft]:
    """Return the conjunctions, one of which holds exactly where the predicate is unknown."""
    if isinstance(node, KindTest):
        return []
    if isinstance(node, WithinBox | NearPoint):
        names = dict.fromkeys((node.latitude, node.longitude))
        return [{name: (Kinds(name, ANY_KIND & ~NUMBER),)} for name in names]
    if isinstance(node, Comparison):
        known = kinds_of((node.value,))
    elif isinstance(node, Range):
        known = kinds_of((node.low,))
    elif isinstance(node, Membership):
        known = kinds_of(node.values)
    else:
        known = STRING
    return _single(Kinds(node.attribute, ANY_KIND & ~known))


def _single(atom: Kinds | Interval | StringInterval | Member | Pattern) -> list[Draft]:
    return [{atom.attribute: (atom,)}]


def _drafts(*conjunctions: list[AnyAtom]) -> list[Draft]:
    """Return the conjunctions with the atoms of each attribute combined; contradictory ones are left out."""
    drafts: list[Draft] = []
    for atoms in conjunctions:
        by_attribute: Draft = {}
        for atom in atoms:
            name = atom.latitude if isinstance(atom, Near) else atom.attribute
            by_attribute[name] = (*by_attribute.get(name, ()), atom)
        combined = {name: combine(name, several) for name, several in by_attribute.items()}
        if None not in combined.values():
            drafts.append({name: several for name, several in combined.items() if several})
    return drafts


def _compared(attribute: str, operator: str, value: bool | int | float | str) -> list[Draft]:
    if operator == "==":
        return _single(Member(attribute, (value,)))
    if operator == "!=":
        if isinstance(value, bool):
            return _single(Member(attribute, (not value,)))
        return _single(Member(attribute, (value,), negated=True))
    upper = operator in ("<", "<=")
    is_open = operator in ("<", ">")
    if isinstance(value, str):
        if value == "" and operator == "<":
            return []
        if value == "" and operator == "<=":
            return _single(Member(attribute, ("",)))
        if value == "" and operator == ">=":
            return _single(Kinds(attribute, STRING))
        if upper:
            return _single(StringInterval(attribute, None, value, False, is_open))
        return _single(StringInterval(attribute, value, None, is_open, False))
    if upper:
        return _single(Interval(attribute, None, value, False, is_open))
    return _single(Interval(attribute, value, None, is_open, False))


def _closed(attribute: str, low: int | float | str, high: int | float | str) -> Interval | StringInterval | Member:
    if low == high:
        return Member(attribute, (low,))
    if isinstance(low, str):
        assert isinstance(high, str)
        return StringInterval(attribute, low, high, False, False)
    assert not isinstance(high, str)
    return Interval(attribute, low, high, False, False)


def _matched(node: StringMatch, *, negated: bool) -> list[Draft]:
    operator, text = node.operator, node.text
    if operator == "like":
        operator, text = simplify_like(text)
    if operator == "==":
        return _single(Member(node.attribute, (text,), negated))
    if text == "":
        # Every string starts with, ends with and contains the empty one.
        return [] if negated else _single(Kinds(node.attribute, STRING))
    return _single(Pattern(node.attribute, operator, text, negated))


def _span(attribute: str, low: float, high: float) -> Interval | Member:
    atom = _closed(attribute, low, high)
    assert not isinstance(atom, StringInterval)
    return atom


def _inside_box(node: WithinBox) -> list[Draft]:
    ranges = geo.longitude_ranges(node.west, node.east)
    latitudes = _span(node.latitude, node.south, node.north)
    conjunctions: list[list[AnyAtom]] = [[latitudes, _span(node.longitude, *each)] for each in ranges]
    if ranges != ((-180, 180),):
        conjunctions.extend([Member(node.latitude, (pole,)), _span(node.longitude, -180, 180)] for pole in _poles(node))
    return _drafts(*conjunctions)


def _outside_box(node: WithinBox) -> list[Draft]:
    number = Kinds(node.longitude, NUMBER)
    conjunctions: list[list[AnyAtom]] = [
        [Interval(node.latitude, None, node.south, False, True), number],
        [Interval(node.latitude, node.north, None, True, False), number],
    ]
    poles = _poles(node)
    # Between the parallels, poles aside, a place lies outside the box where its longitude is in a gap.
    latitudes = Interval(node.latitude, node.south, node.north, -90 in poles, 90 in poles)
    ranges = geo.longitude_ranges(node.west, node.east)
    conjunctions.extend([latitudes, gap] for gap in _gaps(node.longitude, ranges))
    for pole in poles:
        at_pole = Member(node.latitude, (pole,))
        conjunctions.extend([at_pole, gap] for gap in _gaps(node.longitude, ((-180, 180),)))
    return _drafts(*conjunctions)


def _poles(node: WithinBox) -> tuple[int, ...]:
    return (-90,) * (node.south == -90) + (90,) * (node.north == 90)


def _gaps(attribute: str, ranges: geo.Ranges) -> list[Interval]:
    """Return the open intervals that the closed ranges, ascending and apart, leave out."""
    edges: list[float | None] = [None]
    for low, high in ranges:
        edges += [low, high]
    edges.append(None)
    return [
        Interval(attribute, low, high, low is not None, high is not None)
        for low, high in zip(edges[::2], edges[1::2], strict=True)
    ]


def _near(node: NearPoint, *, negated: bool) -> Near:
    return Near(
        node.latitude,
        node.longitude,
        float(node.centre_latitude),
        float(node.centre_longitude),
        float(node.metres),
        negated,
    )


def _inside_circle(node: NearPoint) -> list[Draft]:
    near = _near(node, negated=False)
    south, north, ranges = geo.circle_bounds(near.centre_latitude, near.centre_longitude, near.metres)
    latitudes = _span(node.latitude, south, north)
    conjunctions: list[list[AnyAtom]] = [[near, latitudes, _span(node.longitude, *each)] for each in ranges]
    return _drafts(*conjunctions)
