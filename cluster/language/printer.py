"""Tree -> canonical text, and the normal form in words.

The canonical text of a tree is the shortest that the parser reads back as the same tree: operators in their first
spelling, keywords in lower case, no parentheses beyond the needed ones, `not` inside a predicate where it has a place.
"""

from __future__ import annotations

import json

from cluster.language import normal
from cluster.language.lexer import KEYWORDS, PLAIN_NAME
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
    Scalar,
    StringMatch,
    Tree,
    WithinBox,
    takes_not,
)

_KIND_WORDS = (
    (normal.ABSENT, "absent"),
    (normal.NULL, "null"),
    (normal.BOOL, "a bool"),
    (normal.NUMBER, "a number"),
    (normal.STRING, "a string"),
)


def text_of(tree: Tree) -> str:
    """Return the canonical text; `tree_of_text` of it gives the tree back."""
    if isinstance(tree, Or):
        return " or ".join(map(text_of, tree.operands))
    if isinstance(tree, And):
        return " and ".join(_in_parentheses_if(isinstance(each, Or), each) for each in tree.operands)
    if isinstance(tree, IsNotTrue):
        return f"({text_of(tree.operand)}) is not true"
    if isinstance(tree, Not):
        if takes_not(tree.operand):
            return _predicate(tree.operand, "not ")
        return "not " + _in_parentheses_if(isinstance(tree.operand, And | Or), tree.operand)
    return _predicate(tree, "")


def name_text(name: str) -> str:
    """Return an attribute's name as it stands in text."""
    if PLAIN_NAME.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def literal_text(value: Scalar) -> str:
    """Return a value as it stands in text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if "\\" in value and value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def normal_form_text(form: normal.NormalForm) -> str:
    """Return the normal form for people, one conjunction a line; not meant to be parsed."""
    return "\n".join(" and ".join(map(_atom_text, conjunction)) or "(always)" for conjunction in form)


def _in_parentheses_if(needed: bool, tree: Tree) -> str:
    return f"({text_of(tree)})" if needed else text_of(tree)


def _predicate(node: Tree, negation: str) -> str:
    if isinstance(node, Comparison):
        return f"{name_text(node.attribute)} {node.operator} {literal_text(node.value)}"
    if isinstance(node, Range):
        low, high = literal_text(node.low), literal_text(node.high)
        return f"{name_text(node.attribute)} {negation}between {low} and {high}"
    if isinstance(node, Membership):
        values = ", ".join(map(literal_text, node.values))
        return f"{name_text(node.attribute)} {negation}in ({values})"
    if isinstance(node, StringMatch):
        return f"{name_text(node.attribute)} {negation}{node.operator} {literal_text(node.text)}"
    if isinstance(node, KindTest):
        if node.kind in ("exists", "missing"):
            return f"{node.kind} {name_text(node.attribute)}"
        return f"{name_text(node.attribute)} is {negation}{node.kind}"
    numbers: tuple[float, ...]
    if isinstance(node, WithinBox):
        word, numbers = "within", (node.south, node.west, node.north, node.east)
    else:
        assert isinstance(node, NearPoint), node
        word, numbers = "near", (node.centre_latitude, node.centre_longitude, node.metres)
    names = f"{name_text(node.latitude)}, {name_text(node.longitude)}"
    return f"{word}({names}, {', '.join(map(literal_text, numbers))})"


def _atom_text(atom: normal.AnyAtom) -> str:
    if isinstance(atom, normal.Near):
        word = "not near" if atom.negated else "near"
        place = f"{atom.centre_latitude!r}, {atom.centre_longitude!r}, {atom.metres!r}"
        return f"{word}({name_text(atom.latitude)}, {name_text(atom.longitude)}, {place})"
    name = name_text(atom.attribute)
    negation = "not " if isinstance(atom, normal.Member | normal.Pattern) and atom.negated else ""
    if isinstance(atom, normal.Kinds):
        return f"{name} is {' or '.join(word for bit, word in _KIND_WORDS if atom.mask & bit)}"
    if isinstance(atom, normal.Member):
        if len(atom.values) == 1:
            return f"{name} {'!=' if negation else '=='} {literal_text(atom.values[0])}"
        return f"{name} {negation}in ({', '.join(map(literal_text, atom.values))})"
    if isinstance(atom, normal.Pattern):
        return f"{name} {negation}{atom.operator} {literal_text(atom.text)}"
    low = "" if atom.low is None else f"{name} {'>' if atom.low_open else '>='} {literal_text(atom.low)}"
    high = "" if atom.high is None else f"{name} {'<' if atom.high_open else '<='} {literal_text(atom.high)}"
    return " and ".join(filter(None, (low, high)))
