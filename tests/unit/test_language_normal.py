"""The normal form, atom by atom: what is pushed, merged, dropped and refused."""

from __future__ import annotations

import msgspec
import pytest

from cluster import FilterError, parse
from cluster.errors import CodecError
from cluster.language import decode_normal, encode_normal, holds, normal_matches
from cluster.language.normal import (
    ABSENT,
    ANY_KIND,
    BOOL,
    NULL,
    NUMBER,
    STRING,
    AnyAtom,
    Interval,
    Kinds,
    Member,
    Near,
    Pattern,
    StringInterval,
)

NOT_NUMBER = ANY_KIND & ~NUMBER


def below(high: float, *, is_open: bool = False) -> Interval:
    return Interval("a", None, high, False, is_open)


def above(low: float, *, is_open: bool = False) -> Interval:
    return Interval("a", low, None, is_open, False)


@pytest.mark.parametrize(
    ("text", "conjunctions"),
    [
        ("a > 5", [[above(5, is_open=True)]]),
        ("a <= 5", [[below(5)]]),
        ("a == 5", [[Member("a", (5,))]]),
        ("a != 5", [[Member("a", (5,), True)]]),
        ("a == 'x'", [[Member("a", ("x",))]]),
        ("a != true", [[Member("a", (False,))]]),
        ("a < 'm'", [[StringInterval("a", None, "m", False, True)]]),
        ("a <= ''", [[Member("a", ("",))]]),
        ("a >= ''", [[Kinds("a", STRING)]]),
        ("a between 1 and 2", [[Interval("a", 1, 2, False, False)]]),
        ("a between 2 and 2.0", [[Member("a", (2,))]]),
        ("a in (3, 'x', 1, true, 3.0)", [[Member("a", (True, 1, 3, "x"))]]),
        ("a not in (3, 1)", [[Member("a", (1, 3), True)]]),
        ("a not in (true)", [[Member("a", (False,))]]),
        ("a not in (true, false, 1)", [[Member("a", (1,), True)]]),
        ("a like 'x'", [[Member("a", ("x",))]]),
        ("a like 'x%'", [[Pattern("a", "starts_with", "x")]]),
        ("a not like '%x%'", [[Pattern("a", "contains", "x", True)]]),
        ("a contains ''", [[Kinds("a", STRING)]]),
        ("a is not null", [[Kinds("a", ANY_KIND & ~NULL)]]),
        ("not exists a", [[Kinds("a", ABSENT)]]),
        # Negation, pushed down.
        ("not a > 5", [[below(5)]]),
        ("not a between 1 and 2", [[below(1, is_open=True)], [above(2, is_open=True)]]),
        ("not (a > 5 or b is null)", [[below(5), Kinds("b", ANY_KIND & ~NULL)]]),
        (
            "(within(a, b, 1, 2, 3, 4)) is not true",
            [
                [below(1, is_open=True), Kinds("b", NUMBER)],
                [above(3, is_open=True), Kinds("b", NUMBER)],
                [Interval("a", 1, 3, False, False), Interval("b", None, 2, False, True)],
                [Interval("a", 1, 3, False, False), Interval("b", 4, None, True, False)],
                [Kinds("a", NOT_NUMBER)],
                [Kinds("b", NOT_NUMBER)],
            ],
        ),
        ("not not a > 5", [[above(5, is_open=True)]]),
        ("(a > 5) is not true", [[below(5)], [Kinds("a", NOT_NUMBER)]]),
        ("not (a > 5) is not true", [[above(5, is_open=True)]]),
        ("(not a > 5) is not true", [[above(5, is_open=True)], [Kinds("a", NOT_NUMBER)]]),
        ("((a > 5) is not true) is not true", [[above(5, is_open=True)]]),
        ("(a in (1, 'x')) is not true", [[Member("a", (1, "x"), True)], [Kinds("a", ABSENT | NULL | BOOL)]]),
        ("(exists a) is not true", [[Kinds("a", ABSENT)]]),
        # Atoms on one attribute, put together.
        ("a > 1 and a > 3 and a <= 9 and a < 9", [[Interval("a", 3, 9, True, True)]]),
        ("a >= 3 and a <= 3", [[Member("a", (3,))]]),
        ("a in (1, 5, 'x') and a > 3", [[Member("a", (5,))]]),
        ("a in (1, 2) and a in (2.0, 3)", [[Member("a", (2,))]]),
        ("a != 1 and a != 2", [[Member("a", (1, 2), True)]]),
        ("a != 1 and a > 3", [[above(3, is_open=True)]]),
        ("a != 5 and a > 3", [[above(3, is_open=True), Member("a", (5,), True)]]),
        ("a not in (1, 'x') and a != 2", [[Member("a", (1, 2), True)]]),
        ("a is number and a > 3", [[above(3, is_open=True)]]),
        ("a is bool and a != true", [[Member("a", (False,))]]),
        ("a is bool and a not in (false, 1)", [[Member("a", (True,))]]),
        ("a is bool and a not in (true, 1)", [[Member("a", (False,))]]),
        ("a is not null and exists a", [[Kinds("a", BOOL | NUMBER | STRING)]]),
        (
            "a starts_with 'x' and a starts_with 'xy' and a != 'y'",
            [[Pattern("a", "starts_with", "x"), Pattern("a", "starts_with", "xy")]],
        ),
        ("a > 1 and a > 1.0", [[above(1, is_open=True)]]),
        ("a > 1 and a >= 1", [[above(1, is_open=True)]]),
        ("a >= 1 and a > 1", [[above(1, is_open=True)]]),
        ("a < 1 and a <= 1", [[below(1, is_open=True)]]),
        ("a <= 1 and a < 1", [[below(1, is_open=True)]]),
        # Doubles and contradictions, dropped.
        ("a > 5 or a > 5", [[above(5, is_open=True)]]),
        ("a > 5 and a < 3 or a == 1", [[Member("a", (1,))]]),
        ("a == 1 or a == true", [[Member("a", (1,))], [Member("a", (True,))]]),
        ("b == 1 and a == 1", [[Member("a", (1,)), Member("b", (1,))]]),
        (
            "(a == 1 or a == 2) and b == 1",
            [[Member("a", (1,)), Member("b", (1,))], [Member("a", (2,)), Member("b", (1,))]],
        ),
    ],
)
def test_normal_form(text: str, conjunctions: list[list[AnyAtom]]) -> None:
    # repr, since to Python True equals 1.
    assert repr(parse(text).normal_form) == repr(tuple(map(tuple, conjunctions)))


@pytest.mark.parametrize(
    "text",
    [
        "a > 5 and a < 3",
        "a > 5 and a < 5",
        "a > 5 and a <= 5",
        "a == 1 and a == 2",
        "a == 1 and a == true",
        "a == 1 and a != 1",
        "a == 1 and a != 1.0",
        "a == 'x' and a > 1",
        "a > 5 and a is string",
        "a > 5 and missing a",
        "a > 5 and not a > 5",
        "a < ''",
        "a not contains ''",
        "a not like '%'",
        "a not in (true, false)",
        "a is bool and a != true and a != false",
        "a in (1, 2) and a not in (1, 2, 3)",
        "a in (1, 2) and a > 2",
        "a like 'x%' and a == 'y'",
        "a like 'x%' and a not like 'x%'",
        "a starts_with 'x' and a starts_with 'y'",
        "a ends_with 'xz' and a ends_with 'yz'",
        "a < 'b' and a > 'c'",
        "a between 'a' and 'b' and a is number",
        "exists a and missing a",
        "(exists a or missing a) is not true",
        "(a > 5) is not true and a > 5",
        "near(a, b, 0, 0, 1) and a is string",
        "near(a, b, 0, 0, 1) and not near(a, b, 0, 0, 1)",
        "within(a, b, 0, 0, 1, 1) and a > 2",
        "within(a, b, 0, 0, 1, 1) and missing b",
        "(a > 5 and a < 3) or (b == 1 and b == 2)",
    ],
)
def test_a_filter_that_is_never_true_is_refused(text: str) -> None:
    with pytest.raises(FilterError, match="can never be true"):
        parse(text)


def test_a_circle_has_its_box_beside_it() -> None:
    (conjunction,) = parse("near(lat, lon, 40.4, -3.7, 1000)").normal_form
    latitude, near, longitude = conjunction
    assert near == Near("lat", "lon", 40.4, -3.7, 1000.0)
    assert isinstance(latitude, Interval)
    assert isinstance(longitude, Interval)
    assert latitude.low is not None
    assert latitude.low < 40.4 - 0.0089
    assert (latitude.attribute, longitude.attribute) == ("lat", "lon")
    assert len(parse("near(lat, lon, 40.4, 180, 1000)").normal_form) == 2
    assert parse("not near(lat, lon, 40.4, 180, 1000)").normal_form == ((Near("lat", "lon", 40.4, 180, 1000, True),),)


def test_an_empty_conjunction_always_holds() -> None:
    assert normal_matches(((),), {})
    assert not normal_matches(((Kinds("a", NULL),),), {})


def test_holds_is_exact() -> None:
    assert holds(Interval("a", 2**53, None, True, False), {"a": 2**53 + 1})
    assert not holds(Interval("a", 2.0**53, None, True, False), {"a": 2**53})
    assert not holds(Interval("a", 0, None, False, False), {"a": True})
    assert not holds(Member("a", (1,)), {"a": True})
    assert not holds(Member("a", (1,), True), {"a": True})
    assert not holds(Pattern("a", "contains", "1", True), {"a": 1})
    assert holds(Kinds("a", ABSENT | NULL), {})
    assert holds(Near("a", "b", 0, 0, 1, True), {"a": 0, "b": 500})
    assert not holds(Near("a", "b", 0, 0, 1, True), {"a": 0})


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), 2**53 + 1, 1, 1.0, -0.0, 1e300, True, False, "", "é\x00😀"])
def test_encoding_keeps_value_and_type(value: object) -> None:
    form = ((Member("a", (value,)),),)  # type: ignore[arg-type]
    assert repr(decode_normal(encode_normal(form))) == repr(form)


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"\x00",
        b"\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([[["k", "a", 0]]]),
        msgspec.msgpack.encode([[["k", "a", 64]]]),
        msgspec.msgpack.encode([[["x", "a", 1]]]),
        msgspec.msgpack.encode([[["m", "a", []]]]),
        msgspec.msgpack.encode([[["m", "a", [float("nan")]]]]),
        msgspec.msgpack.encode([[["m", "a", [None]]]]),
        msgspec.msgpack.encode([[["i", "a", None, None, False, False]]]),
        msgspec.msgpack.encode([[["i", "a", "x", None, False, False]]]),
        msgspec.msgpack.encode([[["s", "a", None, None, False, False]]]),
        msgspec.msgpack.encode([[["p", "a", "matches", "x"]]]),
        msgspec.msgpack.encode([[["p", "a", "like", "\\x"]]]),
        b"\x91" * 100_000,
    ],
)
def test_bytes_that_are_no_normal_form_are_refused(found: bytes) -> None:
    with pytest.raises(CodecError):
        decode_normal(found)
