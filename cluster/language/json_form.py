"""Tree <-> JSON spelling: plain dicts, lists and scalars, ready for any JSON library.

    {"op": ">", "attribute": "no2", "value": 40}          also == != < <= >= starts_with ends_with contains like
    {"op": "between", "attribute": "lat", "low": 40.38, "high": 40.45}
    {"op": "in", "attribute": "gas", "values": ["no2", "o3"]}
    {"op": "exists", "attribute": "t"}                    also missing is_null is_number is_string is_bool
    {"op": "within", "latitude": "lat", "longitude": "lon", "south": 40, "west": -4, "north": 41, "east": -3}
    {"op": "near", "latitude": "lat", "longitude": "lon", "centre_latitude": 40.4, "centre_longitude": -3.7,
     "metres": 500}
    {"op": "and", "of": [.., ..]}   {"op": "or", "of": [.., ..]}
    {"op": "not", "of": ..}         {"op": "is_not_true", "of": ..}

Keys that an operator doesn't know are refused: a misspelt one would otherwise widen a filter without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.errors import FilterError
from cluster.language import patterns, tree
from cluster.language.limits import DEFAULT_LIMITS, FilterLimits
from cluster.language.tree import (
    And,
    Comparison,
    IsNotTrue,
    KindTest,
    Membership,
    NearPoint,
    Not,
    Or,
    Range,
    StringMatch,
    Tree,
    WithinBox,
)

_KIND_OPERATORS = {
    "exists": "exists",
    "missing": "missing",
    "is_null": "null",
    "is_number": "number",
    "is_string": "string",
    "is_bool": "bool",
}
_OPERATOR_OF_KIND = {kind: operator for operator, kind in _KIND_OPERATORS.items()}
_BOX = ("latitude", "longitude", "south", "west", "north", "east")
_CIRCLE = ("latitude", "longitude", "centre_latitude", "centre_longitude", "metres")


def json_of(node: Tree) -> dict[str, Any]:
    """Return the JSON spelling of a tree; `tree_of_json` of it gives the tree back."""
    if isinstance(node, And | Or):
        operator = "and" if isinstance(node, And) else "or"
        return {"op": operator, "of": [json_of(operand) for operand in node.operands]}
    if isinstance(node, Not | IsNotTrue):
        return {"op": "not" if isinstance(node, Not) else "is_not_true", "of": json_of(node.operand)}
    if isinstance(node, Comparison):
        return {"op": node.operator, "attribute": node.attribute, "value": node.value}
    if isinstance(node, Range):
        return {"op": "between", "attribute": node.attribute, "low": node.low, "high": node.high}
    if isinstance(node, Membership):
        return {"op": "in", "attribute": node.attribute, "values": list(node.values)}
    if isinstance(node, StringMatch):
        return {"op": node.operator, "attribute": node.attribute, "value": node.text}
    if isinstance(node, KindTest):
        return {"op": _OPERATOR_OF_KIND[node.kind], "attribute": node.attribute}
    if isinstance(node, WithinBox):
        return {"op": "within", **{key: getattr(node, key) for key in _BOX}}
    assert isinstance(node, NearPoint), node
    return {"op": "near", **{key: getattr(node, key) for key in _CIRCLE}}


def tree_of_json(found: object, limits: FilterLimits = DEFAULT_LIMITS) -> Tree:
    """Return the tree of a JSON spelling, within the limits.

    Raises: FilterError whose reason starts with the path of the object at fault, `$.of[1]: ...`.
    """
    # Or in And in Or ... counts a level of depth only every other time, see tree.walk.
    read = _read(found, "$", 2 * limits.depth + 2, limits)
    tree.check_limits(read, limits)
    return read


def _read(found: object, path: str, levels: int, limits: FilterLimits) -> Tree:
    if levels < 0:
        raise FilterError(f"more than {limits.depth} levels deep", limit=limits.depth)
    if not isinstance(found, Mapping):
        raise FilterError(f"{path}: expected an object with 'op', found {type(found).__name__}")
    operator = found.get("op")
    if operator in ("and", "or"):
        operands = _fields(found, path, "of")[0]
        if not isinstance(operands, list | tuple) or len(operands) < 2:
            raise FilterError(f"{path}: {operator} needs a list of at least two filters under 'of'")
        if len(operands) > limits.predicates:
            raise FilterError(f"{path}: more than {limits.predicates} predicates", limit=limits.predicates)
        inside = [_read(each, f"{path}.of[{index}]", levels - 1, limits) for index, each in enumerate(operands)]
        return tree.all_of(inside) if operator == "and" else tree.any_of(inside)
    if operator in ("not", "is_not_true"):
        operand = _read(_fields(found, path, "of")[0], f"{path}.of", levels - 1, limits)
        return Not(operand) if operator == "not" else IsNotTrue(operand)
    try:
        return _predicate(operator, found, path)
    except FilterError as error:
        if error.reason.startswith("$"):
            raise
        raise FilterError(f"{path}: {error.reason}", limit=error.limit) from error


def _predicate(operator: object, found: Mapping[str, object], path: str) -> Tree:
    def fields(*keys: str) -> list[object]:
        return _fields(found, path, *keys)

    if not isinstance(operator, str):
        raise FilterError("'op' must name an operator")
    if operator in tree.COMPARISONS:
        attribute, value = fields("attribute", "value")
        return tree.comparison(attribute, operator, value)
    if operator in patterns.OPERATORS:
        attribute, value = fields("attribute", "value")
        return tree.string_match(attribute, operator, value)
    if operator in _KIND_OPERATORS:
        return tree.kind_test(fields("attribute")[0], _KIND_OPERATORS[operator])
    if operator == "in":
        attribute, values = fields("attribute", "values")
        if not isinstance(values, list | tuple):
            raise FilterError("'values' must be a list")
        return tree.member_of(attribute, values)
    makers: dict[str, tuple[Callable[..., Tree], tuple[str, ...]]] = {
        "between": (tree.between, ("attribute", "low", "high")),
        "within": (tree.within, _BOX),
        "near": (tree.near, _CIRCLE),
    }
    if operator not in makers:
        raise FilterError(f"unknown op {operator!r}")
    make, keys = makers[operator]
    return make(*fields(*keys))


def _fields(found: Mapping[str, object], path: str, *keys: str) -> list[object]:
    """Return the values of the keys; raise for one that is missing and for any other but 'op'."""
    for key in keys:
        if key not in found:
            raise FilterError(f"{path}: {found['op']} needs {key!r}")
    for key in found:
        if key != "op" and key not in keys:
            raise FilterError(f"{path}: {found['op']} knows no {key!r}")
    return [found[key] for key in keys]
