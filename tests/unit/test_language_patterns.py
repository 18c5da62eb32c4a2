"""String operators against a slow and obvious matcher, and the patterns that stop a backtracking one."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest

from cluster.errors import FilterError
from cluster.language.patterns import simplify_like, split_like, string_test


def slow_like(pattern: str, text: str) -> bool:
    """Match by the definition, character by character."""

    @cache
    def match(at: int, start: int) -> bool:
        if at == len(pattern):
            return start == len(text)
        character = pattern[at]
        if character == "%":
            return any(match(at + 1, end) for end in range(start, len(text) + 1))
        if start == len(text):
            return False
        if character == "\\":
            return text[start] == pattern[at + 1] and match(at + 2, start + 1)
        return character in ("_", text[start]) and match(at + 1, start + 1)

    return match(0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_like_equals_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    matched = 0
    for _ in range(5000):
        pattern = "".join(rng.choice(("a", "b", "%", "%", "_", "\\%", "\\_", "\\\\")) for _ in range(rng.randrange(7)))
        text = "".join(rng.choice(("a", "b", "%", "_", "\\", "\U0001f600", "\n")) for _ in range(rng.randrange(8)))
        if rng.random() < 0.3:
            text = pattern.replace("%", rng.choice(("", "ab"))).replace("\\", "")
        expected = slow_like(pattern, text)
        matched += expected
        assert string_test("like", pattern)(text) is expected, (pattern, text)
        operator, simple = simplify_like(pattern)
        found = text == simple if operator == "==" else string_test(operator, simple)(text)
        assert found is expected, (pattern, operator, simple, text)
    assert matched > 500


@pytest.mark.parametrize("pattern", ["%aa%aa%", "aa%aa", "%a_%a_%", "%_a%a%", "_%_", "%aba%a"])
def test_pieces_do_not_overlap(pattern: str) -> None:
    for length in range(7):
        for text in map("".join, itertools.product("ab", repeat=length)):
            assert string_test("like", pattern)(text) is slow_like(pattern, text), text


@pytest.mark.parametrize(
    ("pattern", "simple"),
    [
        ("abc", ("==", "abc")),
        ("", ("==", "")),
        ("a\\%b", ("==", "a%b")),
        ("%", ("starts_with", "")),
        ("%%", ("starts_with", "")),
        ("a%", ("starts_with", "a")),
        ("a\\%%%", ("starts_with", "a%")),
        ("%a", ("ends_with", "a")),
        ("%a%", ("contains", "a")),
        ("%%a%%", ("contains", "a")),
        ("a%b", ("like", "a%b")),
        ("%a%b%", ("like", "%a%b%")),
        ("%a%b", ("like", "%a%b")),
        ("a_", ("like", "a_")),
    ],
)
def test_simple_patterns_are_simplified(pattern: str, simple: tuple[str, str]) -> None:
    assert simplify_like(pattern) == simple


@pytest.mark.parametrize("pattern", ["\\", "a\\", "\\a", "%\\n", "\\\\\\"])
def test_a_backslash_that_escapes_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(FilterError, match="a backslash"):
        split_like(pattern)


@pytest.mark.parametrize(
    "pattern", ["%a" * 4000 + "b", "%a_" * 2000 + "b", "%" + "a_" * 2000 + "b%", "a%" * 4000 + "_b", "%" * 8000 + "b"]
)
def test_no_pattern_backtracks(pattern: str) -> None:
    """Backtracking would take longer than anyone waits; so the test ends, or it doesn't."""
    assert string_test("like", pattern)("a" * 65_536) is False


def test_the_plain_operators() -> None:
    assert string_test("starts_with", "ab")("abc")
    assert not string_test("starts_with", "bc")("abc")
    assert string_test("ends_with", "bc")("abc")
    assert not string_test("ends_with", "ab")("abc")
    assert string_test("contains", "b")("abc")
    assert not string_test("contains", "ac")("abc")
