"""Normal form -> a tree with the same meaning, for people: where only the normal form of a filter is at hand.

The tree is true exactly where the form holds. It is not the tree that the form came from, and where it is not true it
may be unknown where that one is false.
"""

from __future__ import annotations

from cluster.language import normal
from cluster.language.tree import (
    And,
    Comparison,
    KindTest,
    Membership,
    NearPoint,
    Not,
    Or,
    Range,
    StringMatch,
    Tree,
)

_TESTS = (
    (normal.ABSENT, "missing"),
    (normal.NULL, "null"),
    (normal.BOOL, "bool"),
    (normal.NUMBER, "number"),
    (normal.STRING, "string"),
)


def tree_of_normal(form: normal.NormalForm) -> Tree | None:
    """Return a tree that is true exactly where the normal form holds; None if that is everywhere."""
    if not all(form):
        return None
    conjunctions = [_joined(And, [_tree_of_atom(atom) for atom in conjunction]) for conjunction in form]
    return _joined(Or, conjunctions)


def _joined(kind: type[And] | type[Or], trees: list[Tree]) -> Tree:
    if len(trees) == 1:
        return trees[0]
    return kind(tuple(one for tree in trees for one in (tree.operands if isinstance(tree, kind) else (tree,))))


def _tree_of_atom(atom: normal.AnyAtom) -> Tree:
    tree: Tree
    if isinstance(atom, normal.Kinds):
        tests: list[Tree] = [KindTest(atom.attribute, word) for bit, word in _TESTS if atom.mask & bit]
        return _joined(Or, tests)
    if isinstance(atom, normal.Interval | normal.StringInterval):
        bounds: list[Tree] = []
        if atom.low is not None:
            bounds.append(Comparison(atom.attribute, ">" if atom.low_open else ">=", atom.low))
        if atom.high is not None:
            bounds.append(Comparison(atom.attribute, "<" if atom.high_open else "<=", atom.high))
        if not bounds:
            return KindTest(atom.attribute, "number" if isinstance(atom, normal.Interval) else "string")
        if len(bounds) == 2 and not (atom.low_open or atom.high_open):
            assert atom.low is not None
            assert atom.high is not None
            if atom.low == atom.high:
                return Comparison(atom.attribute, "==", atom.low)
            return Range(atom.attribute, atom.low, atom.high)
        return _joined(And, bounds)
    if isinstance(atom, normal.Member):
        if len(atom.values) == 1:
            return Comparison(atom.attribute, "!=" if atom.negated else "==", atom.values[0])
        tree = Membership(atom.attribute, atom.values)
    elif isinstance(atom, normal.Pattern):
        tree = StringMatch(atom.attribute, atom.operator, atom.text)
    else:
        tree = NearPoint(atom.latitude, atom.longitude, atom.centre_latitude, atom.centre_longitude, atom.metres)
    return Not(tree) if atom.negated else tree
