"""The Python and JSON spellings, and the Filter that all three give."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum

import pytest

from cluster import F, Filter, FilterError, parse
from cluster.language import as_filter
from cluster.language.builder import Expression


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (F.no2 > 40, "no2 > 40"),
        (F.a >= 1.5, "a >= 1.5"),
        (F.a < "x", 'a < "x"'),
        (F.a <= 2, "a <= 2"),
        (F.a == True, "a == true"),  # noqa: E712
        (F.a != "x", 'a != "x"'),
        (40 < F.no2, "no2 > 40"),  # noqa: SIM300
        (F["odd name"] == 1, "`odd name` == 1"),
        (F.air.no2 > 1, "air.no2 > 1"),
        (F["sensor.like"] > 1, "sensor.like > 1"),
        (F.lat.between(1, 2), "lat between 1 and 2"),
        (F.gas.in_(["no2", 3]), 'gas in ("no2", 3)'),
        (F.gas.not_in({"no2"}), 'gas not in ("no2")'),
        (F.a.starts_with("x"), 'a starts_with "x"'),
        (F.a.ends_with("x"), 'a ends_with "x"'),
        (F.a.contains("x"), 'a contains "x"'),
        (~F.a.like("x%"), 'a not like "x%"'),
        (F.a.exists(), "exists a"),
        (F.a.missing(), "missing a"),
        (~F.a.is_null(), "a is not null"),
        (F.a.is_number(), "a is number"),
        (F.a.is_string(), "a is string"),
        (F.a.is_bool(), "a is bool"),
        (F.within(F.lat, "lon", 1, 2, 3, 4), "within(lat, lon, 1, 2, 3, 4)"),
        (F.near("lat", F.pos.lon, 1, 2, 3), "near(lat, pos.lon, 1, 2, 3)"),
        ((F.a > 1) & (F.b > 2) | ~(F.c > 3), "a > 1 and b > 2 or not c > 3"),
        ((F.a > 1) & ((F.b > 2) | (F.c > 3)), "a > 1 and (b > 2 or c > 3)"),
        (((F.a > 1) | (F.b > 1)).is_not_true(), "(a > 1 or b > 1) is not true"),
    ],
)
def test_python_spelling(expression: Expression, text: str) -> None:
    assert str(expression) == text
    assert as_filter(expression) == parse(text)
    assert as_filter(expression).text == text


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: (F.a > 1) and (F.b > 1),
        lambda: not (F.a > 1),
        lambda: 1 < F.a < 5,
        lambda: F.a in (1, 2),
        lambda: bool(F.a),
        lambda: F.a == F.b,
        lambda: F.a > F.b,
        lambda: F.a.in_("abc"),
        lambda: (F.a > 1) & True,
        lambda: hash(F.a),
    ],
)
def test_python_misuse_raises_type_error(misuse: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        misuse()


def test_the_hint_for_and_names_the_operators() -> None:
    with pytest.raises(TypeError, match=r"join with & \| ~"):
        bool(F.a > 1)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: F.a > None, "is null"),
        (lambda: F.a == float("nan"), "NaN"),
        (lambda: F.a == 2**64, "64 bits"),
        (lambda: F.a == [1], "not list"),
        (lambda: F.a == b"x", "not bytes"),
        (lambda: F.a == "\ud800", "lone surrogate"),
        (lambda: F.a > True, "no order"),
        (lambda: F[""] > 1, "must not be empty"),
        (lambda: F[5] > 1, "must be a string"),  # type: ignore[index]
        (lambda: F.a.between(2, 1), "lower bound first"),
        (lambda: F.a.in_([]), "must not be empty"),
        (lambda: F.a.like("\\x"), "a backslash"),
        (lambda: F.a.starts_with(5), "needs a string"),  # type: ignore[arg-type]
        (lambda: F.within(F.a, F.b, 2, 0, 1, 0), "south <= north"),
        (lambda: F.near(F.a, F.b, 0, 0, float("inf")), "NaN and infinities"),
    ],
)
def test_python_spelling_refuses_what_text_refuses(build: Callable[[], object], reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        build()


def test_values_of_kindred_types_become_plain_ones() -> None:
    class Level(IntEnum):
        HIGH = 3

    class Name(str):
        __slots__ = ()

    assert as_filter(F.a == Level.HIGH).text == "a == 3"
    assert as_filter(F.a == Name("x")).text == 'a == "x"'


JSON = {
    "op": "and",
    "of": [
        {"op": ">", "attribute": "no2", "value": 40},
        {"op": "not", "of": {"op": "in", "attribute": "gas", "values": ["o3", 1, True]}},
        {"op": "is_not_true", "of": {"op": "is_null", "attribute": "t"}},
        {
            "op": "or",
            "of": [
                {"op": "between", "attribute": "lat", "low": 1, "high": 2.0},
                {"op": "like", "attribute": "a", "value": "x%"},
                {
                    "op": "within",
                    "latitude": "lat",
                    "longitude": "lon",
                    "south": 1,
                    "west": 2,
                    "north": 3,
                    "east": 4,
                },
                {
                    "op": "near",
                    "latitude": "lat",
                    "longitude": "lon",
                    "centre_latitude": 1,
                    "centre_longitude": 2,
                    "metres": 3,
                },
            ],
        },
    ],
}


def test_json_spelling() -> None:
    parsed = Filter.from_json(JSON)
    assert parsed.to_json() == JSON
    assert parsed == as_filter(JSON)
    assert parsed.text == (
        'no2 > 40 and gas not in ("o3", 1, true) and (t is null) is not true and '
        '(lat between 1 and 2.0 or a like "x%" or within(lat, lon, 1, 2, 3, 4) or near(lat, lon, 1, 2, 3))'
    )


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], r"\$: expected an object"),
        ({}, "'op' must name an operator"),
        ({"op": []}, "'op' must name an operator"),
        ({"op": "xor", "of": []}, "unknown op 'xor'"),
        ({"op": ">", "attribute": "a"}, "> needs 'value'"),
        ({"op": ">", "attribute": "a", "value": 1, "vaule": 2}, "> knows no 'vaule'"),
        ({"op": ">", "attribute": "a", "value": None}, "is null"),
        ({"op": ">", "attribute": 5, "value": 1}, "must be a string"),
        ({"op": ">", "attribute": "a", "value": [1]}, "not list"),
        ({"op": "in", "attribute": "a", "values": "abc"}, "'values' must be a list"),
        ({"op": "in", "attribute": "a", "values": []}, "must not be empty"),
        ({"op": "and", "of": []}, "at least two"),
        ({"op": "and", "of": [{"op": "exists", "attribute": "a"}]}, "at least two"),
        ({"op": "not", "of": [1]}, r"\$\.of: expected an object"),
        ({"op": "not"}, "not needs 'of'"),
        ({"op": "not", "of": {}, "x": 1}, "not knows no 'x'"),
        (
            {"op": "or", "of": [{"op": "exists", "attribute": "a"}, {"op": "<", "attribute": "a", "value": True}]},
            r"\$\.of\[1\]: true and false have no order",
        ),
    ],
)
def test_json_refusals_name_the_path(found: object, reason: str) -> None:
    with pytest.raises(FilterError, match=reason) as caught:
        Filter.from_json(found)
    assert caught.value.reason.startswith("$")


def test_filters_are_equal_by_tree_and_type() -> None:
    assert parse("a = 1") == parse("(a == 1)")
    assert len({parse("a = 1"), parse("a == 1")}) == 1
    assert parse("a == 1") != parse("a == true")
    assert parse("a == 1") != parse("a == 1.0")
    assert parse("a == 1") != "a == 1"


def test_filters_can_be_copied_and_pickled() -> None:
    parsed = parse("a == 1 and near(lat, lon, 1, 2, 3)")
    for again in (copy.deepcopy(parsed), pickle.loads(pickle.dumps(parsed))):
        assert again == parsed
        assert again.normal_form == parsed.normal_form


def test_what_a_filter_tells_about_itself() -> None:
    parsed = parse("a > 1 and (b == 'x' or not c.d in (1, 2)) and within(lat, lon, 1, 2, 3, 4)")
    assert parsed.attributes == {"a", "b", "c.d", "lat", "lon"}
    assert (parsed.cost.predicates, parsed.cost.depth) == (4, 1)
    assert (parsed.cost.conjunctions, parsed.cost.atoms) == (2, 8)
    assert "2 conjunctions of 8 atoms" in str(parsed.cost)
    assert parsed.describe().splitlines()[0] == (
        'a > 1 and b == "x" and lat >= 1 and lat <= 3 and lon >= 2 and lon <= 4'
    )
    assert eval(repr(parsed)) == parsed
    assert str(parsed) == parsed.text


@pytest.mark.parametrize("spelling", [None, 5, b"a > 1", ["a > 1"], F.a])
def test_what_is_no_filter_at_all(spelling: object) -> None:
    with pytest.raises(FilterError):
        as_filter(spelling)
    with pytest.raises(FilterError):
        parse(spelling)  # type: ignore[arg-type]


def test_importing_the_language_is_light() -> None:
    code = "import cluster, sys; sys.exit(bool({'numpy', 'numba', 'ray', 'pyspark'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
