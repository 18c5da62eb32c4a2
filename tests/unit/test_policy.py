"""What policies are called on the wire, and how a value becomes the key of latest_per_key."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from cluster import PolicyError, latest_per_key
from cluster.columns import UINT32, pack
from cluster.conflation import READERS_PER_CLIENT, Attributes, Newest, reader_of, same_value
from cluster.language.limits import FilterLimits
from cluster.policy import SPELLINGS, Policy, policy_of

NAMES = ("station", "wind.speed", "in", "Latest", "no 2", "a`b", '"', "\\", "é", "(", ")", "latest_per_key", " ", "\n")


@pytest.mark.parametrize("text", ["block", "drop_oldest", "drop_newest", "disconnect"])
def test_plain_policies(text: str) -> None:
    assert policy_of(text) == Policy(text)
    assert policy_of(text).text == text


@pytest.mark.parametrize("name", NAMES)
def test_any_attribute_can_be_spelled(name: str) -> None:
    assert policy_of(latest_per_key(name)) == Policy("latest_per_key", name)


def test_spaces_and_the_spelling() -> None:
    assert latest_per_key("station") == "latest_per_key(station)"
    assert latest_per_key("no 2") == "latest_per_key(`no 2`)"
    assert policy_of(" latest_per_key ( station ) ") == Policy("latest_per_key", "station")


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("", f"policy '', known are {', '.join(SPELLINGS)}", None),
        ("latest", "policy 'latest', known are block,", None),
        ("Block", "known are block,", None),
        ("latest_per_key", "policy latest_per_key needs its attribute: latest_per_key(attribute)", 14),
        ("latest_per_key()", "policy latest_per_key: expected an attribute's name", 15),
        ("latest_per_key(", "policy latest_per_key: expected an attribute's name", 15),
        ("latest_per_key(in)", "a keyword stands in backticks: `in`", 15),
        ("latest_per_key('a')", "policy latest_per_key: expected an attribute's name", 15),
        ("latest_per_key(``)", "policy latest_per_key: an attribute's name must not be empty", 15),
        ("latest_per_key(a", "policy latest_per_key: expected ')' after its attribute", 16),
        ("latest_per_key(a, b)", "policy latest_per_key: expected ')' after its attribute", 16),
        ("latest_per_key(a) b", "policy latest_per_key: expected the end after its attribute", 18),
        ("latest_per_key(é)", "stands in backticks", 15),
        ("latest_per_key(`a)", "a name that doesn't end", 15),
        ("drop_oldest(a)", "policy drop_oldest takes no attribute", 11),
        ("latest_per_key(\ud800)", "a lone surrogate", 15),
    ],
)
def test_refusals_say_what_and_where(text: str, reason: str, position: int | None) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_of(text)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.limit is None
    assert (f"at position {position}" in str(caught.value)) == (position is not None)


def test_limits_are_named() -> None:
    limits = FilterLimits(name_bytes=8, text_bytes=64)
    assert policy_of("latest_per_key(abcdefgh)", limits).attribute == "abcdefgh"
    with pytest.raises(PolicyError, match="more than 8 bytes") as caught:
        policy_of("latest_per_key(abcdefghi)", limits)
    assert (caught.value.position, caught.value.limit, caught.value.code) == (15, 8, "policy")
    with pytest.raises(PolicyError, match="more than 64") as caught:
        policy_of(f"latest_per_key({' ' * 100}a)", limits)
    assert (caught.value.position, caught.value.limit) == (15 + 64, 64)


# Keys --------------------------------------------------------------------------------------------------------------

DIFFERENT: list[list[Any]] = [
    [1, 1.0],
    [0, 0.0, -0.0],
    [2**53, float(2**53)],
    [2**53 + 1],
    [2**64 - 1],
    [-(2**63), -float(2**63)],
    [0.1],
    [True],
    [False],
    [None],
    [msgspec.UNSET],
    [""],
    ["1"],
    ["True"],
    ["null"],
    ["absent"],
    ["\u00e9"],
    ["e\u0301"],
    ["a"],
    ["A"],
]


def test_which_values_are_the_same() -> None:
    for place, group in enumerate(DIFFERENT):
        for other, others in enumerate(DIFFERENT):
            for one in group:
                for two in others:
                    equal = same_value(one) == same_value(two)
                    assert equal == (place == other), (one, two)
                    assert not equal or hash(same_value(one)) == hash(same_value(two))


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_read_from_the_publication_s_bytes(name: str) -> None:
    read = reader_of(name)
    for value in (1, 1.5, True, None, "text", 2**64 - 1, -(2**63), "x" * 70_000):
        publication = {"before": "b" * 40, name: value, "value": 7, "after": None}
        found = read(msgpack.packb(publication))
        assert (type(found), found) == (type(value), value)
    assert read(msgpack.packb({"value": 7})) is msgspec.UNSET
    assert read(msgpack.packb({})) is msgspec.UNSET
    twice = b"\x82" + msgpack.packb(name) + b"\x01" + msgpack.packb(name) + b"\x02"
    assert read(twice) == 2, "the last one counts, as in matching"
    single = b"\x81" + msgpack.packb(name) + msgpack.packb(0.5, use_single_float=True)
    assert read(single) == 0.5


def test_claims_by_attribute_with_few_and_with_many() -> None:
    few, many = Attributes(), Attributes()
    for number, name in enumerate(("a", "b", "a")):
        few.set(number, name)
        many.set(number, name)
    for number in range(10, 12 + READERS_PER_CLIENT):
        many.set(number, f"other {number}")
    publication = msgpack.packb({"a": 1.0, "c": "x"})
    for attributes in (few, many):
        assert attributes.claims(pack(UINT32, [0, 1, 2, 9]), publication) == [
            (("a", 1), pack(UINT32, [0, 2])),
            (("b", same_value(msgspec.UNSET)), pack(UINT32, [1])),
        ]
    last = 11 + READERS_PER_CLIENT
    assert many.claims(pack(UINT32, [last]), msgpack.packb({f"other {last}": "v"})) == [
        ((f"other {last}", b"v"), pack(UINT32, [last]))
    ]
    few.set(0, None)
    assert few.claims(pack(UINT32, [0, 2]), publication) == [(("a", 1), pack(UINT32, [2]))]
    few.keep(lambda number: number == 1)
    assert few.claims(pack(UINT32, [0, 1, 2]), publication) == [(("b", same_value(msgspec.UNSET)), pack(UINT32, [1]))]
    few.keep(lambda number: False)
    assert not few


def test_an_item_without_claims_left_is_outdated() -> None:
    newest = Newest()
    both, one, two = (pack(UINT32, numbers) for numbers in ([1, 2], [1], [2]))
    a, b = ("key", 1), ("other", 1)
    assert newest.outdate([(a, both)]) == []
    newest.add(10, [(a, both)])
    assert newest.outdate([(a, one)]) == []
    newest.add(11, [(a, one)])
    newest.check()
    assert newest.outdate([(b, two)]) == [], "another attribute"
    assert newest.outdate([(a, two)]) == [10]
    newest.add(12, [(a, two)])
    newest.check()
    assert newest.outdate([(a, both)]) == [11, 12]
    newest.check()
    assert len(newest) == 0


def test_an_item_with_two_attributes_and_one_that_leaves() -> None:
    newest = Newest()
    one, two = pack(UINT32, [1]), pack(UINT32, [2])
    newest.add(5, [(("a", 1), one), (("b", 1), two)])
    assert newest.outdate([(("a", 1), one)]) == []
    newest.add(6, [(("a", 1), one)])
    newest.remove(5)
    newest.remove(5)
    newest.check()
    assert newest.outdate([(("b", 1), two)]) == []
    assert newest.outdate([(("a", 1), one)]) == [6]
    assert len(newest) == 0
