"""The oracle: each operator on each kind of value, and Kleene's tables."""

from __future__ import annotations

import pytest

from cluster import parse

VALUES: dict[str, dict[str, object]] = {
    "absent": {},
    "null": {"a": None},
    "true": {"a": True},
    "false": {"a": False},
    "one": {"a": 1},
    "two": {"a": 2.0},
    "text": {"a": "m"},
    "empty": {"a": ""},
}
T, F, U = True, False, None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        #                          absent null true false one two text empty
        ("a == 1", (U, U, U, U, T, F, U, U)),
        ("a != 1", (U, U, U, U, F, T, U, U)),
        ("a < 2", (U, U, U, U, T, F, U, U)),
        ("a <= 2", (U, U, U, U, T, T, U, U)),
        ("a > 1.0", (U, U, U, U, F, T, U, U)),
        ("a >= 1.0", (U, U, U, U, T, T, U, U)),
        ("a between 2 and 3", (U, U, U, U, F, T, U, U)),
        ("a not between 2 and 3", (U, U, U, U, T, F, U, U)),
        ("a == true", (U, U, T, F, U, U, U, U)),
        ("a != true", (U, U, F, T, U, U, U, U)),
        ("a == 'm'", (U, U, U, U, U, U, T, F)),
        ("a != 'm'", (U, U, U, U, U, U, F, T)),
        ("a < 'm'", (U, U, U, U, U, U, F, T)),
        ("a <= 'm'", (U, U, U, U, U, U, T, T)),
        ("a > ''", (U, U, U, U, U, U, T, F)),
        ("a >= ''", (U, U, U, U, U, U, T, T)),
        ("a < ''  or a == ''", (U, U, U, U, U, U, F, T)),
        ("a between '' and 'a'", (U, U, U, U, U, U, F, T)),
        ("a in (1, 3)", (U, U, U, U, T, F, U, U)),
        ("a in (1, true)", (U, U, T, F, T, F, U, U)),
        ("a in ('m', 2)", (U, U, U, U, F, T, T, F)),
        ("a not in ('m', 2)", (U, U, U, U, T, F, F, T)),
        ("a starts_with 'm'", (U, U, U, U, U, U, T, F)),
        ("a ends_with ''", (U, U, U, U, U, U, T, T)),
        ("a contains 'm'", (U, U, U, U, U, U, T, F)),
        ("a like '_'", (U, U, U, U, U, U, T, F)),
        ("a not like '_'", (U, U, U, U, U, U, F, T)),
        ("exists a", (F, T, T, T, T, T, T, T)),
        ("missing a", (T, F, F, F, F, F, F, F)),
        ("a is null", (F, T, F, F, F, F, F, F)),
        ("a is not null", (T, F, T, T, T, T, T, T)),
        ("a is number", (F, F, F, F, T, T, F, F)),
        ("a is string", (F, F, F, F, F, F, T, T)),
        ("a is bool", (F, F, T, T, F, F, F, F)),
        ("(a > 1) is not true", (T, T, T, T, T, F, T, T)),
        ("not (a > 1) is not true", (F, F, F, F, F, T, F, F)),
        ("(not a > 1) is not true", (T, T, T, T, F, T, T, T)),
        ("near(a, a, 1, 1, 10)", (U, U, U, U, T, F, U, U)),
        ("within(a, a, 1, 1, 1, 1)", (U, U, U, U, T, F, U, U)),
    ],
)
def test_operator_by_kind(text: str, expected: tuple[bool | None, ...]) -> None:
    parsed = parse(text)
    found = {name: parsed.evaluate(attributes) for name, attributes in VALUES.items()}
    assert found == dict(zip(VALUES, expected, strict=True))
    assert [parsed.matches(attributes) for attributes in VALUES.values()] == [each is True for each in expected]


@pytest.mark.parametrize("right", [T, F, U])
@pytest.mark.parametrize("left", [T, F, U])
def test_kleene_tables(left: bool | None, right: bool | None) -> None:
    attributes = {name: value for name, value in (("p", left), ("q", right)) if value is not None}

    def value(text: str) -> bool | None:
        return parse(text).evaluate(attributes)

    order = {F: 0, U: 1, T: 2}
    assert value("p == true and q == true") is min(left, right, key=order.__getitem__)
    assert value("p == true or q == true") is max(left, right, key=order.__getitem__)
    assert value("not p == true") is (None if left is None else not left)
    assert value("(p == true) is not true") is (left is not True)
    assert value("not (p == true and q == true)") is value("p != true or q != true")


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a == 9007199254740993", 9007199254740992, False),
        ("a == 9007199254740993", 9007199254740992.0, False),
        ("a == 9007199254740992", 9007199254740992.0, True),
        ("a < 9007199254740993", 9007199254740992.0, True),
        ("a in (9007199254740993)", 9007199254740992.0, False),
        ("a > 1.8446744073709552e19", 2**64 - 1, False),
        ("a < 1.8446744073709552e19", 2**64 - 1, True),
        ("a >= -9223372036854775808", -(2.0**63), True),
        ("a == 0", -0.0, True),
        ("a >= -0.0", 0, True),
        ("a == 0.1", 0.1, True),
    ],
)
def test_numbers_compare_exactly(text: str, value: float, expected: bool) -> None:
    assert parse(text).evaluate({"a": value}) is expected


def test_a_place_needs_both_numbers() -> None:
    for text in ("within(lat, lon, 0, 0, 1, 1)", "near(lat, lon, 0, 0, 1)"):
        for attributes in ({}, {"lat": 0}, {"lon": 0}, {"lat": 50, "lon": None}, {"lat": True, "lon": 0}):
            assert parse(text).evaluate(attributes) is None
            assert parse(f"not {text}").evaluate(attributes) is None
        assert parse(f"not {text}").evaluate({"lat": 50, "lon": 2**64 - 1}) is True
