"""The one tree behind the three spellings of a filter, and the only functions that make its nodes.

Text, JSON and Python all call the functions below, so what is refused in one spelling is refused in all, with the
same words. `And` and `Or` hold at least two operands and never one of their own kind: both are associative in
Kleene's logic, so nesting would say nothing. Nodes are immutable. Compare filters, not nodes: to Python `1 == True`,
so the nodes of `a == 1` and `a == true` are equal though the filters differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cluster.errors import FilterError
from cluster.language import patterns
from cluster.language.limits import FilterLimits

Scalar = bool | int | float | str

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
KIND_TESTS = ("exists", "missing", "null", "number", "string", "bool")

INTEGER_LOWEST = -(2**63)
INTEGER_HIGHEST = 2**64 - 1


class Comparison(msgspec.Struct, frozen=True):
    """`attribute operator value`; the operator is one of COMPARISONS."""

    attribute: str
    operator: str
    value: Scalar


class Range(msgspec.Struct, frozen=True):
    """`attribute between low and high`, both included; two numbers or two strings, low <= high."""

    attribute: str
    low: int | float | str
    high: int | float | str


class Membership(msgspec.Struct, frozen=True):
    """`attribute in (values)`; at least one value, doubles as written."""

    attribute: str
    values: tuple[Scalar, ...]


class StringMatch(msgspec.Struct, frozen=True):
    """`attribute operator "text"`; the operator is one of patterns.OPERATORS."""

    attribute: str
    operator: str
    text: str


class KindTest(msgspec.Struct, frozen=True):
    """`exists attribute`, `missing attribute`, `attribute is kind`; never unknown."""

    attribute: str
    kind: str


class WithinBox(msgspec.Struct, frozen=True):
    """`within(latitude, longitude, south, west, north, east)`; west > east crosses the date line."""

    latitude: str
    longitude: str
    south: int | float
    west: int | float
    north: int | float
    east: int | float


class NearPoint(msgspec.Struct, frozen=True):
    """`near(latitude, longitude, centre_latitude, centre_longitude, metres)`."""

    latitude: str
    longitude: str
    centre_latitude: int | float
    centre_longitude: int | float
    metres: int | float


class Not(msgspec.Struct, frozen=True):
    """Kleene's negation: not unknown is unknown."""

    operand: Tree


class And(msgspec.Struct, frozen=True):
    """Kleene's conjunction."""

    operands: tuple[Tree, ...]


class Or(msgspec.Struct, frozen=True):
    """Kleene's disjunction."""

    operands: tuple[Tree, ...]


class IsNotTrue(msgspec.Struct, frozen=True):
    """`(operand) is not true`: true where the operand is false or unknown, else false."""

    operand: Tree


Predicate = Comparison | Range | Membership | StringMatch | KindTest | WithinBox | NearPoint
Tree = Predicate | Not | And | Or | IsNotTrue


def attribute_name(name: object) -> str:
    """Return the name of an attribute, checked; its length is for `check_limits` and the lexer."""
    if not isinstance(name, str):
        raise FilterError(f"an attribute's name must be a string, not {type(name).__name__}")
    if not name:
        raise FilterError("an attribute's name must not be empty")
    _check_encodable(name)
    return str(name)


def literal(value: object) -> Scalar:
    """Return a value that a filter may hold: bool, int of 64 bits, finite float or string."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_encodable(value)
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FilterError("NaN and infinities are refused")
        return float(value)
    if value is None:
        raise FilterError("null is not a value to compare with; ask for it with 'is null'")
    try:
        whole = value.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise FilterError(
            f"a value must be a bool, an integer, a finite float or a string, not {type(value).__name__}"
        ) from None
    if not INTEGER_LOWEST <= whole <= INTEGER_HIGHEST:
        raise FilterError("an integer must fit in 64 bits, signed or unsigned")
    return int(whole)


def comparison(attribute: object, operator: str, value: object) -> Comparison:
    """Return a checked comparison; bools have no order."""
    assert operator in COMPARISONS, operator
    checked = literal(value)
    if isinstance(checked, bool) and operator not in ("==", "!="):
        raise FilterError(f"true and false have no order: {operator} needs a number or a string")
    return Comparison(attribute_name(attribute), operator, checked)


def between(attribute: object, low: object, high: object) -> Range:
    """Return a checked range; an empty one is refused, as it is most often low and high swapped."""
    bottom, top = literal(low), literal(high)
    if isinstance(bottom, str) and isinstance(top, str):
        if bottom > top:
            raise FilterError("between needs the lower bound first")
        return Range(attribute_name(attribute), bottom, top)
    if isinstance(bottom, str | bool) or isinstance(top, str | bool):
        raise FilterError("between needs two numbers or two strings")
    if bottom > top:
        raise FilterError("between needs the lower bound first")
    return Range(attribute_name(attribute), bottom, top)


def member_of(attribute: object, values: Iterable[object]) -> Membership:
    """Return a checked membership; an empty list is refused."""
    checked = tuple(map(literal, values))
    if not checked:
        raise FilterError("the list of in must not be empty")
    return Membership(attribute_name(attribute), checked)


def string_match(attribute: object, operator: str, text: object) -> StringMatch:
    """Return a checked string predicate."""
    assert operator in patterns.OPERATORS, operator
    if not isinstance(text, str):
        raise FilterError(f"{operator} needs a string")
    _check_encodable(text)
    if operator == "like":
        patterns.split_like(text)
    return StringMatch(attribute_name(attribute), operator, str(text))


def kind_test(attribute: object, kind: str) -> KindTest:
    """Return a test for presence or type; `kind` is one of KIND_TESTS."""
    assert kind in KIND_TESTS, kind
    return KindTest(attribute_name(attribute), kind)


def within(latitude: object, longitude: object, south: object, west: object, north: object, east: object) -> WithinBox:
    """Return a checked box, in degrees."""
    bottom, left = _degrees(south, 90, "south"), _degrees(west, 180, "west")
    top, right = _degrees(north, 90, "north"), _degrees(east, 180, "east")
    if bottom > top:
        raise FilterError("within needs south <= north (the order is south, west, north, east)")
    return WithinBox(attribute_name(latitude), attribute_name(longitude), bottom, left, top, right)


def near(
    latitude: object, longitude: object, centre_latitude: object, centre_longitude: object, metres: object
) -> NearPoint:
    """Return a checked circle, in degrees and metres."""
    radius = _number(metres, "metres")
    if radius < 0:
        raise FilterError("metres must not be negative")
    return NearPoint(
        attribute_name(latitude),
        attribute_name(longitude),
        _degrees(centre_latitude, 90, "the centre's latitude"),
        _degrees(centre_longitude, 180, "the centre's longitude"),
        radius,
    )


def all_of(operands: Sequence[Tree]) -> Tree:
    """Return the conjunction, flattened; one operand is returned as it is."""
    if len(operands) == 1:
        return operands[0]
    flat: list[Tree] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, And) else (operand,))
    return And(tuple(flat))


def any_of(operands: Sequence[Tree]) -> Tree:
    """Return the disjunction, flattened; one operand is returned as it is."""
    if len(operands) == 1:
        return operands[0]
    flat: list[Tree] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, Or) else (operand,))
    return Or(tuple(flat))


def walk(tree: Tree) -> Iterator[tuple[Tree, int]]:
    """Yield each node, parents first, with its depth: the parentheses and nots around it in the canonical text.

    Needs no recursion, so a tree of any depth that a program can build is walked safely.
    """
    waiting: list[tuple[Tree, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        if isinstance(node, And):
            inside = [(child, depth + isinstance(child, Or)) for child in node.operands]
            waiting.extend(reversed(inside))
        elif isinstance(node, Or):
            waiting.extend((child, depth) for child in reversed(node.operands))
        elif isinstance(node, Not):
            child = node.operand
            waiting.append((child, depth + (1 - takes_not(child)) + isinstance(child, And | Or)))
        elif isinstance(node, IsNotTrue):
            waiting.append((node.operand, depth + 1))


def takes_not(node: Tree) -> bool:
    """Tell whether `not` is written inside the predicate: `a not in (1)`, `a is not null`."""
    if isinstance(node, KindTest):
        return node.kind not in ("exists", "missing")
    return isinstance(node, Range | Membership | StringMatch)


def attributes_of(tree: Tree) -> frozenset[str]:
    """Return the names of all attributes that the tree mentions."""
    names: set[str] = set()
    for node, _ in walk(tree):
        names.update(_names(node))
    return frozenset(names)


def measure(tree: Tree) -> tuple[int, int]:
    """Return (predicates, depth) of a tree."""
    predicates = depth = 0
    for node, level in walk(tree):
        depth = max(depth, level)
        predicates += isinstance(node, Predicate)
    return predicates, depth


def check_limits(tree: Tree, limits: FilterLimits) -> None:
    """Refuse a tree that a program built too large; text is checked while it is read, to name the position."""
    predicates = 0
    for node, depth in walk(tree):
        if depth > limits.depth:
            raise FilterError(f"more than {limits.depth} levels deep", limit=limits.depth)
        predicates += isinstance(node, Predicate)
        if predicates > limits.predicates:
            raise FilterError(f"more than {limits.predicates} predicates", limit=limits.predicates)
        if isinstance(node, Membership) and len(node.values) > limits.list_values:
            raise FilterError(f"a list of more than {limits.list_values} values", limit=limits.list_values)
        for name in _names(node):
            if len(name.encode()) > limits.name_bytes:
                raise FilterError(
                    f"an attribute's name of more than {limits.name_bytes} bytes", limit=limits.name_bytes
                )


def _names(node: Tree) -> tuple[str, ...]:
    if isinstance(node, WithinBox | NearPoint):
        return node.latitude, node.longitude
    if isinstance(node, And | Or | Not | IsNotTrue):
        return ()
    return (node.attribute,)


def _check_encodable(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FilterError("a lone surrogate is not a character") from None


def _number(value: object, name: str) -> int | float:
    checked = literal(value)
    if isinstance(checked, str | bool):
        raise FilterError(f"{name} must be a number")
    return checked


def _degrees(value: object, limit: int, name: str) -> int | float:
    checked = _number(value, name)
    if not -limit <= checked <= limit:
        raise FilterError(f"{name} must be between -{limit} and {limit} degrees")
    return checked
