"""Explanations of random filters on random attributes: they agree with the evaluator, in each node and as a whole."""

from __future__ import annotations

import itertools
import json
import random

from cluster.errors import FilterError
from cluster.language import evaluate as evaluating
from cluster.language.denormalise import tree_of_normal
from cluster.language.explain import WORDS, Explanation, explain
from cluster.language.filter import Filter
from cluster.language.holds import normal_matches
from cluster.language.limits import FilterLimits
from cluster.language.normalise import normal_form
from cluster.language.printer import text_of
from cluster.language.text import tree_of_text
from cluster.language.tree import And, Not, Or, Tree
from tests.properties.test_language import random_attributes, random_tree

GENEROUS = FilterLimits(predicates=1 << 20, depth=64, text_bytes=1 << 24, list_values=1 << 20)
UNKNOWN_REASONS = {"absent", "null", "other_type"}


def nodes_of(node: Explanation) -> list[Explanation]:
    return [node, *[below for operand in node.operands for below in nodes_of(operand)]]


def cases(seed: int, count: int, levels: int = 4) -> list[tuple[Tree, dict[str, object]]]:
    rng = random.Random(seed)
    return [(random_tree(rng, rng.randint(0, levels)), random_attributes(rng)) for _ in range(count)]


def test_every_node_is_what_the_evaluator_says_and_where_its_text_is() -> None:
    for tree, attributes in cases(1, 1500):
        whole = text_of(tree)
        found = explain(tree, attributes)
        assert found.text == whole
        for node in nodes_of(found):
            assert whole[node.position :].startswith(node.text), (whole, node)
            assert evaluating.evaluate(tree_of_text(node.text), attributes) is node.value, (node.text, attributes)
            assert (node.kind == "predicate") == (not node.operands) == bool(node.reason)
            if node.kind == "predicate":
                assert (node.reason in UNKNOWN_REASONS) == (node.value is None), node


def test_who_decides_is_enough_to_decide() -> None:
    for tree, attributes in cases(2, 800):
        for node in nodes_of(explain(tree, attributes)):
            if node.operands:
                assert node.decided_by
                chosen = {node.operands[place].value for place in node.decided_by}
                wanted = {"not": {node.value if node.value is None else not node.value}}.get(node.kind, {node.value})
                assert chosen == wanted or node.kind == "is not true"


def again(node: Explanation, leaves: dict[int, bool | None]) -> bool | None:
    """Evaluate anew with other values for the predicates, by the definition."""
    if not node.operands:
        return leaves[node.position]
    values = [again(operand, leaves) for operand in node.operands]
    match node.kind:
        case "not":
            return None if values[0] is None else not values[0]
        case "is not true":
            return values[0] is not True
        case "and":
            return False if False in values else None if None in values else True
    return True if True in values else None if None in values else False


def test_what_is_to_change_is_the_least_that_makes_it_match() -> None:
    compared = 0
    for tree, attributes in cases(3, 3000, levels=3):
        found = explain(tree, attributes)
        values = {node.position: node.value for node in nodes_of(found) if not node.operands}
        changed = [one.position for one in found.to_change()]
        assert (not changed) == (found.value is True)
        if len(values) > 5:
            continue
        compared += 1

        def reachable(places: tuple[int, ...] | list[int], values: dict[int, bool | None] = values) -> bool:
            options = itertools.product((True, False, None), repeat=len(places))
            return any(again(found, values | dict(zip(places, some, strict=True))) is True for some in options)  # noqa: B023

        assert reachable(changed)
        fewest = next(
            size
            for size in range(len(values) + 1)
            if any(reachable(places) for places in itertools.combinations(values, size))
        )
        assert len(changed) == fewest, (found.text, attributes)
    assert compared > 1500


def test_json_and_text_say_the_same() -> None:
    for tree, attributes in cases(4, 300):
        found = explain(tree, attributes)
        document = json.loads(json.dumps(found.to_json()))
        assert document["value"] == WORDS[found.value]
        assert Explanation.from_json(document) == found
        lines = str(found).splitlines()
        assert len(lines) == len(nodes_of(found)) + (0 if found.value is True else 1 + len(found.to_change()))


def test_the_tree_of_a_normal_form_is_true_where_the_form_holds() -> None:
    compared = 0
    rng = random.Random(5)
    for tree, _ in cases(5, 600):
        try:
            form = normal_form(tree)
        except FilterError:  # it can never be true
            continue
        back = tree_of_normal(form)
        assert (back is None) == (() in form)
        if back is None:
            continue
        assert_well_formed(back)
        assert tree_of_text(text_of(back), GENEROUS) == back
        for _ in range(10):
            attributes = random_attributes(rng)
            compared += 1
            assert (evaluating.evaluate(back, attributes) is True) == normal_matches(form, attributes)
    assert compared > 3000


def test_a_form_that_always_holds_has_no_tree() -> None:
    assert tree_of_normal(((),)) is None


def assert_well_formed(tree: Tree) -> None:
    """`And` and `Or` hold two or more, and none of their own kind."""
    if isinstance(tree, And | Or):
        assert len(tree.operands) >= 2
        for operand in tree.operands:
            assert not isinstance(operand, type(tree))
            assert_well_formed(operand)
    elif isinstance(tree, Not):
        assert_well_formed(tree.operand)


def test_a_filter_explains_itself() -> None:
    for tree, attributes in cases(6, 100, levels=2):
        try:
            filter = Filter.from_tree(tree)
        except FilterError:
            continue
        assert filter.explain(attributes).value is filter.evaluate(attributes)
