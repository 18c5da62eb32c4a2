"""Text -> tree -> text: grammar, canonical form, and where and why a text is refused."""

from __future__ import annotations

import pytest

from cluster.errors import FilterError
from cluster.language.printer import name_text, text_of
from cluster.language.text import tree_of_text
from cluster.language.tree import And, Comparison, IsNotTrue, KindTest, Membership, Not, Or, Range, StringMatch


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a=1", "a == 1"),
        ("a<>1", "a != 1"),
        ("a!=-1.5e3", "a != -1500.0"),
        ("A >= 1 AnD b IS nuLL", "A >= 1 and b is null"),
        ("  a\t<\n1\r\n", "a < 1"),
        ("a == TRUE", "a == true"),
        ("((a > 1))", "a > 1"),
        ("(a > 1 and b > 1) and c > 1", "a > 1 and b > 1 and c > 1"),
        ("(a > 1 and b > 1) or c > 1", "a > 1 and b > 1 or c > 1"),
        ("a > 1 and (b > 1 or c > 1)", "a > 1 and (b > 1 or c > 1)"),
        ("not (a > 1)", "not a > 1"),
        ("not (a in (1,2))", "a not in (1, 2)"),
        ("not (a between 1 and 2)", "a not between 1 and 2"),
        ("not a like 'x%'", 'a not like "x%"'),
        ("not (a is null)", "a is not null"),
        ("not exists(a)", "not exists a"),
        ("not (a > 1 and b > 1)", "not (a > 1 and b > 1)"),
        ("(not (a > 1)) and b > 1", "not a > 1 and b > 1"),
        ("not (not (a > 1))", "not not a > 1"),
        ("( a>1 )is  not\ttrue", "(a > 1) is not true"),
        ("not ((a > 1) is not true)", "not (a > 1) is not true"),
        ("((a > 1) is not true) is not true", "((a > 1) is not true) is not true"),
        ("(a > 1 or b > 1) is not true", "(a > 1 or b > 1) is not true"),
        ("`a` > 1", "a > 1"),
        ("`and` > 1 and `a``b` > 1", "`and` > 1 and `a``b` > 1"),
        ("number > 1 and string > 1 and bool == true", "number > 1 and string > 1 and bool == true"),
        ("a is NUMBER", "a is number"),
        ("a.b.c > 1", "a.b.c > 1"),
        ("a == 'it''s'", 'a == "it\'s"'),
        (r"a == 'c:\x'", r"a == 'c:\x'"),
        (r'a == "\u00e9\ud83d\ude00\n\/"', 'a == "é😀\\n/"'),
        ('a == "\\\\\n"', 'a == "\\\\\\n"'),
        ("within(lat,lon,40,-4,41.0,-3)", "within(lat, lon, 40, -4, 41.0, -3)"),
        ("NEAR (lat,lon,40,-4,5)", "near(lat, lon, 40, -4, 5)"),
        ("a == -0.0", "a == -0.0"),
        ("a in (1, 1, 1.0, true)", "a in (1, 1, 1.0, true)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    tree = tree_of_text(text)
    assert text_of(tree) == canonical
    assert repr(tree_of_text(canonical)) == repr(tree)


def test_not_binds_tighter_than_and_and_and_tighter_than_or() -> None:
    one, two, three = (Comparison(name, ">", 1) for name in "abc")
    assert tree_of_text("not a > 1 and b > 1 or c > 1") == Or((And((Not(one), two)), three))
    assert tree_of_text("a > 1 or b > 1 and not c > 1") == Or((one, And((two, Not(three)))))


def test_each_predicate_has_its_node() -> None:
    assert tree_of_text("a between 1 and 2 and b == 1") == And((Range("a", 1, 2), Comparison("b", "==", 1)))
    assert tree_of_text("a in (1, 'x')") == Membership("a", (1, "x"))
    assert tree_of_text("a not contains 'x'") == Not(StringMatch("a", "contains", "x"))
    assert tree_of_text("missing a") == KindTest("a", "missing")
    assert tree_of_text("(exists a) is not true") == IsNotTrue(KindTest("a", "exists"))


def test_names_that_need_backticks_get_them() -> None:
    assert name_text("a.b_1") == "a.b_1"
    assert [name_text(name) for name in ("1a", "a.", "a b", "é", "Not", "a.1")] == [
        "`1a`",
        "`a.`",
        "`a b`",
        "`é`",
        "`Not`",
        "`a.1`",
    ]


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "an empty filter"),
        ("  \n", 3, "an empty filter"),
        ("a", 1, "expected an operator after 'a'"),
        ("a >", 3, "expected a value, found the end"),
        ("a > b", 4, "not with another attribute"),
        ("a > `b`", 4, "not with another attribute"),
        ("40 < a", 0, "stands on the left"),
        ("1 < a < 5", 0, "stands on the left"),
        ("a > 1 < 5", 6, "expected and, or, or the end, found '<'"),
        ("a > 1 b > 2", 6, "expected and, or, or the end, found 'b'"),
        ("a > 1 and", 9, "expected a predicate, found the end"),
        ("a > 1 or or b > 1", 9, "expected a predicate, found 'or'"),
        ("(a > 1", 6, "expected ')', found the end"),
        ("a > 1)", 5, "expected and, or, or the end, found ')'"),
        ("a > null", 4, "is null"),
        ("a > nan", 4, "NaN and infinities"),
        ("a > -inf", 4, "NaN and infinities"),
        ("a > 1e400", 4, "beyond the range of a double"),
        ("a > 18446744073709551616", 4, "64 bits"),
        ("a > -9223372036854775809", 4, "64 bits"),
        ("a > " + "9" * 5000, 4, "64 bits"),
        ("a > 01", 4, "not a number"),
        ("a > .5", 4, "not a number"),
        ("a > 5.", 4, "not a number"),
        ("a > +5", 4, "not a number"),
        ("a > 5x", 4, "not a number"),
        ("a > true", 4, "no order"),
        ("a between 1 or 2", 12, "expected 'and'"),
        ("a between 2 and 1", 10, "lower bound first"),
        ("a between 1 and 'x'", 10, "two numbers or two strings"),
        ("a between true and true", 10, "two numbers or two strings"),
        ("a in 1", 5, "expected '('"),
        ("a in ()", 6, "must not be empty"),
        ("a in (1,)", 8, "expected a value"),
        ("a in (1 2)", 8, "expected ')'"),
        ("a in (b)", 6, "not with another attribute"),
        ("a not > 1", 6, "after not, found '>'"),
        ("a not", 5, "after not, found the end"),
        ("a like 5", 7, "like needs a string"),
        ("a like 'x\\'", 7, "character 1 of the pattern"),
        ("a like 'x\\y'", 7, "a backslash"),
        ("a is", 4, "expected null, number, string or bool"),
        ("a is true", 5, "a bool is compared"),
        ("a is not true", 9, "in parentheses"),
        ("a is list", 5, "expected null, number, string or bool after is, found 'list'"),
        ("a > 1 is not true", 6, "in parentheses"),
        ("(a > 1 is not true)", 7, "in parentheses"),
        ("(a > 1) is true", 11, "only 'is not true'"),
        ("(a > 1) is not false", 11, "only 'is not true'"),
        ("(a > 1) is", 10, "only 'is not true'"),
        ("exists 5", 7, "expected an attribute's name"),
        ("exists (a", 9, "expected ')'"),
        ("within(lat, lon, 1, 2, 3)", 24, "expected ','"),
        ("within(lat, 5, 1, 2, 3, 4)", 12, "expected an attribute's name"),
        ("a > 1 and within(lat, lon, 3, 2, 1, 4)", 10, "south <= north"),
        ("within(lat, lon, -91, 2, 1, 4)", 0, "south must be between -90 and 90"),
        ("within(lat, lon, -9, 2, 1, 181)", 0, "east must be between -180 and 180"),
        ("near(lat, lon, 1, 2, '3')", 21, "near needs numbers"),
        ("near(lat, lon, 1, 2, true)", 21, "near needs numbers"),
        ("near(lat, lon, 1, 2, -1)", 0, "must not be negative"),
        ("a == 'x", 5, "a string that doesn't end"),
        ("a == 'x''", 5, "a string that doesn't end"),
        ('a == "x\\"', 5, "a string that doesn't end"),
        ("`a > 1", 0, "a name that doesn't end"),
        ("`` > 1", 0, "must not be empty"),
        ('a == "ab\\q"', 8, "\\q is not an escape"),
        ('a == "ab\\u12g4"', 8, "\\u is not an escape"),
        ('a == "\\ud800x"', 5, "lone surrogate"),
        ("a == '\ud800'", 6, "lone surrogate"),
        ("a > 1 && b > 2", 6, "write and"),
        ("a > 1 || b > 2", 6, "write or"),
        ("!(a > 1)", 0, "write not"),
        ("señal > 1", 2, "backticks"),
        ("a > 1; b", 5, "unexpected ';'"),
        ("a > 1 and b >> 1", 13, "expected a value, found '>'"),
        # Whatever comes first in reading order is what is reported.
        ("a >> 1 and b == 'open", 3, "expected a value"),
        ("a\u00a0> 1", 1, "unexpected"),
    ],
)
def test_a_refusal_names_position_and_reason(text: str, position: int, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        tree_of_text(text)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.limit is None
