"""Each limit: at it a filter is taken, one beyond it is refused, in all three spellings."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

import pytest

from cluster import F, FilterError, parse
from cluster.language import Filter, FilterLimits, as_filter
from cluster.language.builder import Expression

LIMITS = FilterLimits()


def refusal(spelling: object, limits: FilterLimits = LIMITS) -> FilterError:
    with pytest.raises(FilterError) as caught:
        as_filter(spelling, limits)
    return caught.value


def test_predicates() -> None:
    text = " and ".join(f"a{index} > 1" for index in range(64))
    assert parse(text).cost.predicates == 64
    error = refusal(text + " and b > 1")
    assert (error.position, error.limit) == (len(text) + 5, 64)
    expression = reduce(and_, (F[f"a{index}"] > 1 for index in range(65)))
    assert refusal(expression).limit == 64
    assert refusal({"op": "or", "of": [{"op": "exists", "attribute": "a"}] * 65}).limit == 64


def test_depth_of_parentheses_and_not() -> None:
    assert parse("(" * 16 + "a > 1" + ")" * 16).text == "a > 1"
    error = refusal("(" * 17 + "a > 1" + ")" * 17)
    assert (error.position, error.limit) == (16, 16)
    assert parse("not " * 16 + "a > 1").cost.depth == 16
    error = refusal("not " * 17 + "a > 1")
    assert (error.position, error.limit) == (64, 16)


@pytest.mark.parametrize("text", ["(" * 8192, "not " * 2000, "(not " * 1600, "a>1 and(" * 60])
def test_deep_text_ends_in_a_filter_error(text: str) -> None:
    assert refusal(text).limit == 16


def test_depth_of_what_a_program_built() -> None:
    expression: Expression = F.a > 1
    for _ in range(16):
        expression = ~expression
    assert as_filter(expression).cost.depth == 16
    assert refusal(~expression).limit == 16
    for _ in range(20_000):
        expression = ~expression
    assert refusal(expression).limit == 16
    found: dict[str, Any] = {"op": "exists", "attribute": "a"}
    for _ in range(20_000):
        found = {"op": "not", "of": found}
    assert refusal(found).limit == 16


def test_the_deepest_tree_has_a_text_and_a_json_form() -> None:
    text = "y > 0 or z > 0"
    for level in range(16):
        text = f"a > {level} or b > {level} and ({text})"
    deepest = parse(text)
    assert deepest.cost.depth == 16
    assert parse(deepest.text) == deepest
    assert Filter.from_json(deepest.to_json()) == deepest


def test_text_in_bytes() -> None:
    head = 'a == "'
    assert parse(head + "x" * (8192 - len(head) - 1) + '"').attributes == {"a"}
    error = refusal(head + "x" * (8192 - len(head)) + '"')
    assert (error.position, error.limit) == (8192, 8192)
    error = refusal(head + "é" * 5000 + '"')
    assert (error.position, error.limit) == (6 + (8192 - 6) // 2, 8192)


def test_the_canonical_text_has_to_fit_too() -> None:
    assert len(parse("a == '" + "\n" * 4000 + "'").text) == 8007
    assert refusal("a == '" + "\n" * 4200 + "'").limit == 8192
    assert refusal(F.a == "\n" * 4200).limit == 8192


def test_values_in_a_list() -> None:
    values = ",".join(map(str, range(256)))
    assert len(parse(f"a in ({values})").normal_form[0][0].values) == 256  # type: ignore[union-attr]
    error = refusal(f"a in ({values},7)")
    assert (error.position, error.limit) == (len(f"a in ({values},"), 256)
    assert refusal(F.a.in_(range(257))).limit == 256


def test_bytes_of_a_name() -> None:
    assert parse("a" * 256 + " > 1").attributes == {"a" * 256}
    error = refusal("exists " + "a" * 257)
    assert (error.position, error.limit) == (7, 256)
    assert refusal("exists `" + "é" * 129 + "`").limit == 256
    assert refusal(F["é" * 129] > 1).limit == 256


def pairs(count: int) -> str:
    return " and ".join(f"(a{index} > 1 or b{index} > 1)" for index in range(count))


def test_conjunctions() -> None:
    assert len(parse(pairs(10)).normal_form) == 1024
    error = refusal(pairs(11))
    assert error.limit == 1024
    assert "1024 conjunctions" in error.reason
    assert refusal(pairs(32)).limit == 1024
    # Each `is not true` of a disjunction doubles: a value that is false, or an attribute that isn't comparable.
    either = " or ".join(f"a{index} > 1" for index in range(64))
    assert refusal(f"({either}) is not true").limit == 1024


def test_doubles_and_contradictions_do_not_count_as_conjunctions() -> None:
    same = " and ".join("(a == 1 or a == 2)" for _ in range(32))
    assert len(parse(same).normal_form) == 2
    either = " or ".join("t > 5" for _ in range(32))
    assert len(parse(f"({either}) is not true").normal_form) == 2


def test_the_work_is_bounded_where_contradictions_thin_the_product_out() -> None:
    # Each further pair doubles the product of 1,024 and loses half of it again.
    assert len(parse(pairs(9) + " and (z == 1 or z == 2)" * 4).normal_form) == 1024
    assert refusal(pairs(9) + " and (z == 1 or z == 2)" * 20).limit == 1024


def test_merging_long_lists_is_bounded() -> None:
    lists = [",".join(map(str, range(start, start + 150))) for start in range(0, 1500, 150)]
    text = " and ".join(f"(a not in ({values}) or b{index} > 1)" for index, values in enumerate(lists))
    assert len(parse(text[: text.index(" and (a not in (450")]).normal_form) == 8
    assert refusal(text).limit == 1024


def test_bytes_of_the_normal_form() -> None:
    long = "x" * 500
    assert len(parse(f"c == '{long}' and " + pairs(9)).normal_form) == 512
    error = refusal(f"c == '{long}' and " + pairs(10))
    assert (error.position, error.limit) == (0, 512 * 1024)
    assert refusal(f"c == '{long}' and " + pairs(3), FilterLimits(normal_bytes=4000)).limit == 4000


def test_limits_can_be_passed_in() -> None:
    tight = FilterLimits(predicates=1, depth=1, text_bytes=40, list_values=2, conjunctions=3, name_bytes=4)
    assert parse("not (a > 1)", FilterLimits(depth=2)).text == "not a > 1"
    assert refusal("not (a > 1)", tight).limit == 1
    assert refusal("a > 1 or b > 1", tight).limit == 1
    assert refusal("a in (1, 2, 3)", tight).limit == 2
    assert refusal("exists abcde", tight).limit == 4
    assert refusal("not within(a, b, 1, 1, 2, 2)", tight).limit == 3
    assert refusal("a == 1" + " " * 40, tight).limit == 40
