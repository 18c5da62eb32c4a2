"""The plain evaluator of the tree: the oracle that everything else must equal.

It follows the definition word for word and does nothing clever; keep it so. The values are Kleene's three: True,
False, and None for unknown. A predicate is unknown when its attribute is absent, null or of another type than the
predicate speaks of; `exists`, `missing` and `is ...` are never unknown.

Attributes map names to bool, int, finite float, str or None. Values of other types count as of another type.
int and float compare as exact numbers (Python does so itself), and bool is not a number.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.language import geo
from cluster.language.normal import ABSENT, BOOL, NULL, NUMBER, STRING
from cluster.language.patterns import string_test
from cluster.language.tree import (
    And,
    Comparison,
    IsNotTrue,
    KindTest,
    Membership,
    Not,
    Or,
    Range,
    StringMatch,
    Tree,
    WithinBox,
)

_NOTHING = object()  # the value of an absent attribute
_OTHER = 0  # the kind of a value that no publication may carry
_KINDS: dict[type, int] = {bool: BOOL, int: NUMBER, float: NUMBER, str: STRING, type(None): NULL, object: ABSENT}
_TESTED = {
    "exists": NULL | BOOL | NUMBER | STRING,
    "missing": ABSENT,
    "null": NULL,
    "number": NUMBER,
    "string": STRING,
    "bool": BOOL,
}


def evaluate(tree: Tree, attributes: Mapping[str, object]) -> bool | None:
    """Return whether the filter holds for the attributes: True, False, or None for unknown."""
    if isinstance(tree, And):
        values = [evaluate(operand, attributes) for operand in tree.operands]
        return False if False in values else None if None in values else True
    if isinstance(tree, Or):
        values = [evaluate(operand, attributes) for operand in tree.operands]
        return True if True in values else None if None in values else False
    if isinstance(tree, Not):
        value = evaluate(tree.operand, attributes)
        return None if value is None else not value
    if isinstance(tree, IsNotTrue):
        return evaluate(tree.operand, attributes) is not True
    if isinstance(tree, Comparison):
        return _compare(tree, attributes)
    if isinstance(tree, Range):
        ranged = attributes.get(tree.attribute, _NOTHING)
        if kind_of(ranged) != kind_of(tree.low):
            return None
        return tree.low <= ranged <= tree.high  # type: ignore[operator]
    if isinstance(tree, Membership):
        member = attributes.get(tree.attribute, _NOTHING)
        same_kind = [value for value in tree.values if kind_of(value) == kind_of(member)]
        return member in same_kind if same_kind else None
    if isinstance(tree, StringMatch):
        text = attributes.get(tree.attribute, _NOTHING)
        return string_test(tree.operator, tree.text)(text) if type(text) is str else None
    if isinstance(tree, KindTest):
        return bool(kind_of(attributes.get(tree.attribute, _NOTHING)) & _TESTED[tree.kind])
    latitude = attributes.get(tree.latitude, _NOTHING)
    longitude = attributes.get(tree.longitude, _NOTHING)
    if kind_of(latitude) != NUMBER or kind_of(longitude) != NUMBER:
        return None
    assert isinstance(latitude, int | float)
    assert isinstance(longitude, int | float)
    if isinstance(tree, WithinBox):
        return geo.is_within(latitude, longitude, tree.south, tree.west, tree.north, tree.east)
    return geo.is_near(latitude, longitude, tree.centre_latitude, tree.centre_longitude, tree.metres)


def kind_of(value: object) -> int:
    """Return the kind of a value: one of normal's bits, or 0 for a value that no publication may carry."""
    return _KINDS.get(type(value), _OTHER)


def _compare(tree: Comparison, attributes: Mapping[str, object]) -> bool | None:
    value = attributes.get(tree.attribute, _NOTHING)
    if kind_of(value) != kind_of(tree.value):
        return None
    if tree.operator == "==":
        return value == tree.value
    if tree.operator == "!=":
        return value != tree.value
    if tree.operator == "<":
        return value < tree.value  # type: ignore[operator]
    if tree.operator == "<=":
        return value <= tree.value  # type: ignore[operator]
    if tree.operator == ">":
        return value > tree.value  # type: ignore[operator]
    assert tree.operator == ">=", tree.operator
    return value >= tree.value  # type: ignore[operator]
