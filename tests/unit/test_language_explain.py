"""What an explanation says of single predicates, and how it looks."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.language import parse
from cluster.language.explain import Explanation

EXAMPLES: list[tuple[str, dict[str, Any], str, str, float | None]] = [
    ("no2 > 40", {}, "absent", "no2 is absent", None),
    ("no2 > 40", {"no2": None}, "null", "no2 is null", None),
    ("no2 > 40", {"no2": "45"}, "other_type", 'no2 is the string "45", not a number', None),
    ("no2 > 40", {"no2": [1]}, "other_type", "no2 is of type list, not a number", None),
    ("no2 > 40", {"no2": 38.5}, "below", "no2 is the number 38.5: 1.5 below 40", 1.5),
    ("no2 > 40", {"no2": 40.0}, "equal", "no2 is the number 40.0: equal", None),
    ("no2 > 40", {"no2": 41}, "above", "no2 is the number 41: 1 above 40", 1.0),
    ("not no2 > 40", {"no2": 41}, "above", "no2 is the number 41: 1 above 40", 1.0),
    ("a == 9007199254740992.0", {"a": 2**53 + 1}, "above", "1 above 9007199254740992.0", 1.0),
    ("a < 1e308", {"a": -1.7e308}, "below", "a is the number -1.7e+308: below 1e+308", None),
    ("a == true", {"a": False}, "different", "a is the bool false: different", None),
    ("a == true", {"a": True}, "equal", "equal", None),
    ("a != true", {"a": 1}, "other_type", "a is the number 1, not a bool", None),
    ('s < "b"', {"s": "c"}, "above", 's is the string "c": behind "b"', None),
    ("a between 1 and 3", {"a": 7}, "above", "4 above 3", 4.0),
    ("a between 1 and 3", {"a": -1}, "below", "2 below 1", 2.0),
    ("a not between 1 and 3", {"a": 3}, "within", "a is the number 3: within", None),
    ("a in (1, 2)", {"a": 3}, "not_listed", "a is the number 3: is not among the 2", None),
    ("a not in (1, 2)", {"a": 2.0}, "listed", "a is the number 2.0: is among the 2", None),
    ('a in (1, "x")', {"a": True}, "other_type", "a is the bool true, not a number or a string", None),
    ('s starts_with "Pza"', {"s": "Calle"}, "not_matched", 's is the string "Calle": not what starts_with', None),
    ('s like "P%"', {"s": "Pza"}, "matched", "it is like that", None),
    ('s contains "x"', {"s": 1}, "other_type", "s is the number 1, not a string", None),
    ("exists a", {}, "is_other_kind", "a is absent", None),
    ("missing a", {"a": None}, "is_other_kind", "a is null", None),
    ("a is number", {"a": 5}, "is_kind", "a is the number 5", None),
    ("within(la, lo, 40, -4, 41, -3)", {"la": 42, "lo": -3.5}, "outside", "(42, -3.5) is outside", None),
    ("within(la, lo, 40, -4, 41, -3)", {"la": 40, "lo": -3.5}, "inside", "(40, -3.5) is inside", None),
    ("within(la, lo, 40, -4, 41, -3)", {"la": 91, "lo": -3.5}, "no_place", "no latitude and longitude", None),
    ("near(la, lo, 40, -3, 100)", {"la": 40, "lo": -3}, "near", "(40, -3) is 0 m away", None),
    ("near(la, lo, 40, -3, 100)", {"la": 40}, "absent", "lo is absent", None),
    ("`a b` > 1", {}, "absent", "`a b` is absent", None),
]


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: f"{case[0]} {case[1]}")
def test_what_a_predicate_found(case: tuple[str, dict[str, Any], str, str, float | None]) -> None:
    text, attributes, reason, detail, off_by = case
    found = parse(text).explain(attributes)
    assert found.kind == "predicate"
    assert (found.reason, found.off_by) == (reason, off_by)
    assert detail in found.detail


def test_how_far_away_it_is() -> None:
    found = parse("near(lat, lon, 40.4, -3.7, 5000)").explain({"lat": 40.5, "lon": -3.7})
    # A tenth of a degree along a meridian of the sphere: 2 pi R / 3600 = 11,119.5 m.
    assert found.reason == "far"
    assert found.off_by == pytest.approx(6119.5, abs=0.1)
    assert found.detail == "(40.5, -3.7) is 11,119.5 m away: 6,119.51 m too far"


def test_as_text() -> None:
    text = 'no2 > 40 and (lat between 40.38 and 40.45 or station starts_with "Pza") and (t > 5) is not true'
    found = parse(text).explain({"no2": 38.0, "lat": 40.42})
    assert str(found).splitlines() == [
        "false   and",
        "  * false   no2 > 40  -- no2 is the number 38.0: 2 below 40",
        "    true    or",
        "    * true    lat between 40.38 and 40.45  -- lat is the number 40.42: within",
        '      unknown station starts_with "Pza"  -- station is absent',
        "    true    is not true",
        "    * unknown t > 5  -- t is absent",
        "to match, 1 predicate would have to come out otherwise:",
        "  no2 > 40",
    ]


def test_one_that_matches_has_nothing_to_change() -> None:
    found = parse("a > 1 or b > 1").explain({"a": 2})
    assert found.to_change() == ()
    assert str(found).splitlines() == [
        "true    or",
        "  * true    a > 1  -- a is the number 2: 1 above 1",
        "    unknown b > 1  -- b is absent",
    ]


def test_of_a_disjunction_the_easiest_branch_is_to_change() -> None:
    found = parse("a > 1 and b > 1 or c > 1").explain({"a": 0, "b": 0})
    assert [one.text for one in found.to_change()] == ["c > 1"]


def test_as_json() -> None:
    assert parse("a > 1 and exists b").explain({"a": 0}).to_json() == {
        "kind": "and",
        "value": "false",
        "text": "a > 1 and exists b",
        "position": 0,
        "decided_by": [0, 1],
        "operands": [
            {
                "kind": "predicate",
                "value": "false",
                "text": "a > 1",
                "position": 0,
                "reason": "below",
                "detail": "a is the number 0: 1 below 1",
                "off_by": 1.0,
            },
            {
                "kind": "predicate",
                "value": "false",
                "text": "exists b",
                "position": 10,
                "reason": "is_other_kind",
                "detail": "b is absent",
            },
        ],
    }


def test_long_texts_are_cut_in_the_text_and_whole_in_json() -> None:
    found = parse(f"a in ({', '.join(map(str, range(100)))})").explain({"a": "x" * 500})
    assert max(map(len, str(found).splitlines())) < 250
    assert isinstance(found, Explanation)
    assert "98, 99)" in found.to_json()["text"]


def test_the_deepest_filter_is_explained() -> None:
    text = "not (a > 1 and " * 8 + "b > 1" + ")" * 8
    found = parse(text).explain({"a": 2})
    assert found.value is None
