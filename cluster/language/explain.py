"""Why a filter holds for some attributes or does not: the tree with each node's value, and what each predicate found.

The values are Kleene's, as in `evaluate.py`, which has the last word about every predicate; here they are only put
together again, node by node. A negated predicate is one line: what was found is the same, whichever way it is asked.

Which predicates would have to come out otherwise for the filter to hold is the smallest such set where predicates are
independent of each other. Where they are not (`a > 5 or a > 3`) it is one that does, though another may follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from cluster.language import geo, normal
from cluster.language.evaluate import evaluate, kind_of
from cluster.language.printer import literal_text, name_text, text_of
from cluster.language.tree import (
    And,
    Comparison,
    IsNotTrue,
    KindTest,
    Membership,
    NearPoint,
    Not,
    Or,
    Predicate,
    Range,
    Scalar,
    StringMatch,
    Tree,
    WithinBox,
)

WORDS = {True: "true", False: "false", None: "unknown"}
_VALUES = {word: value for value, word in WORDS.items()}
SHOWN = 100  # characters of a text in the rendering
_KIND_NAMES = {normal.BOOL: "bool", normal.NUMBER: "number", normal.STRING: "string"}
_OUTCOMES = {"starts_with": "starts with", "ends_with": "ends with", "contains": "contains", "like": "is like"}


class Finding(NamedTuple):
    """What a predicate found. code: a word of `Explanation.reason`; off_by: as there."""

    code: str
    detail: str
    off_by: float | None = None


class Explanation(msgspec.Struct, frozen=True):
    """A node and what it came to.

    kind:       "and", "or", "not", "is not true", or "predicate", which has no operands.
    value:      True, False, or None for unknown.
    text:       canonical; position: where it begins in the canonical text of the whole filter, in characters.
    decided_by: places in `operands` of those whose values make this one: for `and` the false ones, else the unknown
                ones, else all; for `or` the true ones, else the unknown ones, else all.
    reason:     of a predicate: absent, null, other_type (then it is unknown); below, above (the bounds, by `off_by`, in
                the attribute's unit, None if that is no finite number), within (its bounds), equal, different;
                listed, not_listed; matched, not_matched (a string); is_kind, is_other_kind; inside, outside (a box);
                near, far (by `off_by` metres); no_place (numbers that are no coordinates). "" for other nodes.
    detail:     the same in words, with the value found.
    """

    kind: str
    value: bool | None
    text: str
    position: int
    decided_by: tuple[int, ...] = ()
    operands: tuple[Explanation, ...] = ()
    reason: str = ""
    detail: str = ""
    off_by: float | None = None

    def to_change(self) -> tuple[Explanation, ...]:
        """Return the fewest predicates that would have to come out otherwise for this to be true; none if it is."""
        return _to_change(self, (True,))

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, `value` as a word; the caller owns it."""
        found: dict[str, Any] = {"kind": self.kind, "value": WORDS[self.value], "text": self.text}
        found["position"] = self.position
        if self.operands:
            found["decided_by"] = list(self.decided_by)
            found["operands"] = [operand.to_json() for operand in self.operands]
        else:
            found |= {"reason": self.reason, "detail": self.detail}
            if self.off_by is not None:
                found["off_by"] = self.off_by
        return found

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Explanation:
        """Return what `to_json` gave."""
        fields = {**document, "value": _VALUES[document["value"]]}
        fields["decided_by"] = tuple(fields.get("decided_by", ()))
        fields["operands"] = tuple(map(cls.from_json, fields.get("operands", ())))
        return cls(**fields)

    def __str__(self) -> str:
        """Return a line for each node, `*` where it decides about the one above; and what would have to change."""
        lines = _lines(self, "", "")
        if self.value is not True:
            changes = self.to_change()
            count = "1 predicate" if len(changes) == 1 else f"{len(changes)} predicates"
            lines.append(f"to match, {count} would have to come out otherwise:")
            lines += [f"  {_short(one.text)}" for one in changes]
        return "\n".join(lines)


def explain(tree: Tree, attributes: Mapping[str, object], position: int = 0) -> Explanation:
    """Return what the tree comes to, node by node. position: where its text begins in the text of the whole."""
    text = text_of(tree)
    inner = tree.operand if isinstance(tree, Not) else tree
    if isinstance(inner, Predicate):
        finding = _finding(inner, attributes)
        return Explanation(
            "predicate",
            evaluate(tree, attributes),
            text,
            position,
            reason=finding.code,
            detail=finding.detail,
            off_by=finding.off_by,
        )
    if isinstance(tree, Not):
        parentheses = isinstance(tree.operand, And | Or)
        operand = explain(tree.operand, attributes, position + len("not ") + parentheses)
        value = None if operand.value is None else not operand.value
        return Explanation("not", value, text, position, (0,), (operand,))
    if isinstance(tree, IsNotTrue):
        operand = explain(tree.operand, attributes, position + len("("))
        return Explanation("is not true", operand.value is not True, text, position, (0,), (operand,))
    assert isinstance(tree, And | Or), tree
    kind, decisive = ("and", False) if isinstance(tree, And) else ("or", True)
    operands: list[Explanation] = []
    at = position
    for each in tree.operands:
        parentheses = isinstance(tree, And) and isinstance(each, Or)
        operand = explain(each, attributes, at + parentheses)
        operands.append(operand)
        at += len(operand.text) + 2 * parentheses + len(f" {kind} ")
    values = [operand.value for operand in operands]
    value = decisive if decisive in values else None if None in values else not decisive
    decided_by = tuple(place for place, found in enumerate(values) if found is value)
    return Explanation(kind, value, text, position, decided_by, tuple(operands))


def _to_change(node: Explanation, wanted: tuple[bool | None, ...]) -> tuple[Explanation, ...]:
    """Return the fewest predicates to change so that the node's value is among the wanted: one of True and False, and
    unknown with it or not."""
    if node.value in wanted:
        return ()
    if not node.operands:
        return (node,)
    if node.kind == "not":
        return _to_change(node.operands[0], tuple(None if one is None else not one for one in wanted))
    if node.kind == "is not true":
        return _to_change(node.operands[0], (False, None) if True in wanted else (True,))
    choices = [_to_change(operand, wanted) for operand in node.operands]
    if (node.kind == "and") is (True in wanted):
        return tuple(one for choice in choices for one in choice)
    return min(choices, key=len)


def _lines(node: Explanation, indent: str, mark: str) -> list[str]:
    told = _short(node.text) + f"  -- {_short(node.detail)}" if node.kind == "predicate" else node.kind
    lines = [f"{indent}{mark}{WORDS[node.value]:<8}{told}"]
    for place, operand in enumerate(node.operands):
        lines += _lines(operand, indent + "  ", "* " if place in node.decided_by else "  ")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


# Predicates --------------------------------------------------------------------------------------------------------


def _finding(node: Predicate, attributes: Mapping[str, object]) -> Finding:
    if isinstance(node, KindTest):
        is_kind = evaluate(node, attributes) is True
        return Finding("is_kind" if is_kind else "is_other_kind", _held(node.attribute, attributes))
    if isinstance(node, WithinBox | NearPoint):
        return _place_finding(node, attributes)
    expected: tuple[Scalar, ...]
    if isinstance(node, Comparison):
        expected = (node.value,)
    elif isinstance(node, Range):
        expected = (node.low,)
    else:
        expected = node.values if isinstance(node, Membership) else ("",)
    unknown = _unknown(node.attribute, attributes, sorted({kind_of(value) for value in expected}))
    if unknown is not None:
        return unknown
    value: Any = attributes[node.attribute]
    found = _held(node.attribute, attributes)
    if isinstance(node, Membership):
        listed = evaluate(node, attributes) is True
        words = "is" if listed else "is not"
        return Finding("listed" if listed else "not_listed", f"{found}: {words} among the {len(node.values)}")
    if isinstance(node, StringMatch):
        matches = evaluate(node, attributes) is True
        words = f"it {_OUTCOMES[node.operator]} that" if matches else f"not what {node.operator} asks for"
        return Finding("matched" if matches else "not_matched", f"{found}: {words}")
    low, high = (node.low, node.high) if isinstance(node, Range) else (node.value, node.value)
    if value < low:
        return _beside("below", low, value, found)
    if value > high:
        return _beside("above", high, value, found)
    if isinstance(node, Range):
        return Finding("within", f"{found}: within")
    return Finding("equal", f"{found}: equal")


def _beside(code: str, bound: Scalar, value: Scalar, found: str) -> Finding:
    if isinstance(value, bool):
        return Finding("different", f"{found}: different")
    if isinstance(value, str) or isinstance(bound, str):
        return Finding(code, f"{found}: {'before' if code == 'below' else 'behind'} {literal_text(bound)}")
    try:
        # Exact: 2**53 + 1 and 2.0**53 are not the same number, though their difference in doubles is 0.
        off_by = float(abs(Fraction(value) - Fraction(bound)))
    except OverflowError:
        return Finding(code, f"{found}: {code} {literal_text(bound)}")
    return Finding(code, f"{found}: {off_by:.6g} {code} {literal_text(bound)}", off_by)


def _place_finding(node: WithinBox | NearPoint, attributes: Mapping[str, object]) -> Finding:
    for name in (node.latitude, node.longitude):
        unknown = _unknown(name, attributes, [normal.NUMBER])
        if unknown is not None:
            return unknown
    latitude: Any = attributes[node.latitude]
    longitude: Any = attributes[node.longitude]
    place = f"({literal_text(latitude)}, {literal_text(longitude)})"
    if not geo.is_place(latitude, longitude):
        return Finding("no_place", f"{place} is no latitude and longitude")
    holds = evaluate(node, attributes) is True
    if isinstance(node, WithinBox):
        return Finding("inside" if holds else "outside", f"{place} is {'inside' if holds else 'outside'}")
    metres = geo.metres_between(latitude, longitude, node.centre_latitude, node.centre_longitude)
    if holds:
        return Finding("near", f"{place} is {metres:,.6g} m away")
    off_by = metres - node.metres
    return Finding("far", f"{place} is {metres:,.6g} m away: {off_by:,.6g} m too far", off_by)


def _unknown(name: str, attributes: Mapping[str, object], kinds: list[int]) -> Finding | None:
    """Return why nothing of these kinds is to be compared with; None if something is."""
    kind = kind_of(attributes[name]) if name in attributes else normal.ABSENT
    if kind in kinds:
        return None
    code = {normal.ABSENT: "absent", normal.NULL: "null"}.get(kind, "other_type")
    wanted = " or ".join(f"a {_KIND_NAMES[one]}" for one in kinds)
    return Finding(code, _held(name, attributes) + (f", not {wanted}" if code == "other_type" else ""))


def _held(name: str, attributes: Mapping[str, object]) -> str:
    """Return what an attribute holds, in words."""
    if name not in attributes:
        return f"{name_text(name)} is absent"
    value = attributes[name]
    if value is None:
        return f"{name_text(name)} is null"
    kind = _KIND_NAMES.get(kind_of(value))
    if kind is None:
        return f"{name_text(name)} is of type {type(value).__name__}"
    assert isinstance(value, Scalar)
    return f"{name_text(name)} is the {kind} {_short(literal_text(value))}"
