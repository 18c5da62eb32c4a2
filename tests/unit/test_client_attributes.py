"""What a publication may be, and how an address is read."""

from __future__ import annotations

import decimal
import enum
import random
import types
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster.client.address import parse_url
from cluster.client.attributes import AttributePacker, Limits
from cluster.errors import ConfigError, RejectedError


def packed(attributes: Any, limits: Limits | None = None) -> Any:
    packer = AttributePacker(limits)
    first = packer.pack(attributes)
    assert packer.pack(attributes) == first, "the fast way and the slow way differ"
    return msgspec.msgpack.decode(first)


class Level(enum.IntEnum):
    HIGH = 3


class Kind(enum.StrEnum):
    GAS = "gas"


class Name(str):
    pass


def test_plain_values_pass_unchanged() -> None:
    attributes = {
        "station": "Pza. de España",
        "no2": 45.0,
        "count": 7,
        "low": -(2**63),
        "high": 2**64 - 1,
        "valid": True,
        "note": None,
        "empty": "",
        "zero": -0.0,
        "name with spaces, any character ✓": 1,
    }
    assert packed(attributes) == attributes
    assert [type(value) for value in packed(attributes).values()] == [type(value) for value in attributes.values()]
    assert packed({}) == {}


def test_nesting_is_flattened() -> None:
    assert packed({"wind": {"speed": 3.5, "gust": {"max": 9}}, "t": 1}) == {
        "wind.speed": 3.5,
        "wind.gust.max": 9,
        "t": 1,
    }
    assert packed({"wind": {}}) == {}
    assert packed(types.MappingProxyType({"a": 1})) == {"a": 1}


def test_subclasses_and_numpy_become_plain() -> None:
    found = packed(
        {
            "level": Level.HIGH,
            "kind": Kind.GAS,
            Name("name"): Name("value"),
            "float64": np.float64(1.5),
            "float32": np.float32(0.5),
            "int": np.int16(-7),
            "uint": np.uint64(2**64 - 1),
            "bool": np.bool_(True),
            "str": np.str_("x"),
            "zero dimensions": np.array(4),
        }
    )
    assert found == {
        "level": 3,
        "kind": "gas",
        "name": "value",
        "float64": 1.5,
        "float32": 0.5,
        "int": -7,
        "uint": 2**64 - 1,
        "bool": True,
        "str": "x",
        "zero dimensions": 4,
    }
    assert found["bool"] is True


LIMITS = Limits(attributes=3, string_bytes=10, publication_bytes=100)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"a": float("nan")}, "'a' is nan, only finite"),
        ({"a": float("-inf")}, "'a' is -inf, only finite"),
        ({"a": np.float64("inf")}, "'a' is inf"),
        ({"a": 2**64}, r"'a' is 18446744073709551616, integers go from -2\*\*63 to 2\*\*64 - 1"),
        ({"a": -(2**63) - 1}, "'a' is -9223372036854775809"),
        ({"a": 10**5000}, "'a' is a int, integers go"),
        ({"a": "x" * 11}, "'a' takes 11 bytes, the limit is 10"),
        ({"a": "é" * 6}, "'a' takes 12 bytes, the limit is 10"),
        ({"a": "\ud800"}, "'a' is not valid UTF-8"),
        ({"a": [1, 2]}, "'a' is a list; values are"),
        ({"a": b"x"}, "'a' is a bytes"),
        ({"a": datetime(2017, 1, 1)}, "'a' is a datetime"),
        ({"a": decimal.Decimal(1)}, "'a' is a Decimal"),
        ({"a": 1j}, "'a' is a complex"),
        ({"a": np.array([1])}, "'a' is a ndarray"),
        ({"a": np.longdouble(1)}, "'a' is a longdouble"),
        ({"": 1}, "name is empty"),
        ({"é" * 129: 1}, "longer than 256 bytes"),
        ({"\udfff": 1}, "not valid UTF-8"),
        ({1: 1}, "attribute name 1 is a int"),
        ({None: 1}, "attribute name None is a NoneType"),
        ({"a": {"b": 1}, "a.b": 2}, "'a.b' is given twice"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "4 attributes, the limit is 3"),
        ({"a": {str(i): i for i in range(4)}}, "4 attributes, the limit is 3"),
        ({"n" * 100: 1}, "takes 104 bytes, the limit is 100"),
        ([("a", 1)], "not a list"),
        ("text", "not a str"),
    ],
)
def test_refusals_name_the_attribute_and_the_limit(attributes: Any, says: str) -> None:
    packer = AttributePacker(LIMITS)
    for _ in range(2):
        with pytest.raises(RejectedError, match=says):
            packer.pack(attributes)
    assert packer.pack({"a": 1}) == msgspec.msgpack.encode({"a": 1}), "a refusal disturbed the packer"


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**64, -(2**63) - 1, "x" * 11, "é" * 6, "\ud800", [1], b"x", 1j, decimal.Decimal(1)],
)
def test_a_known_name_opens_no_short_cut(value: Any) -> None:
    packer = AttributePacker(LIMITS)
    packer.pack({"a": 1, "b": 2})
    with pytest.raises(RejectedError, match="'b' "):
        packer.pack({"a": 1, "b": value})
    with pytest.raises(RejectedError, match="name 1 is"):
        packer.pack({"a": 1, 1: 2})
    assert packer.pack({"b": 2}) == msgspec.msgpack.encode({"b": 2})


def test_what_contains_itself_is_refused() -> None:
    attributes: dict[str, Any] = {}
    attributes["a"] = attributes
    with pytest.raises(RejectedError, match="nested more than 16 deep"):
        AttributePacker().pack(attributes)


def test_the_slow_way_gives_the_same_bytes() -> None:
    rng = random.Random(1)
    values = [None, True, False, 0, -1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 1e308, 5e-324, "", "x", "é", "\x00", "𝄞"]
    for _ in range(500):
        attributes = {f"name {rng.randrange(50)}": rng.choice(values) for _ in range(rng.randrange(12))}
        fast, slow = AttributePacker(), AttributePacker()
        fast.pack(attributes)
        assert fast.pack(attributes) == slow.pack(types.MappingProxyType(attributes))
        assert msgspec.msgpack.decode(fast.pack(attributes)) == attributes


def test_known_names_stay_bounded() -> None:
    packer = AttributePacker()
    for number in range(10_000):
        packer.pack({f"name {number}": number})
    assert len(packer._known) <= 4096


def test_addresses() -> None:
    assert parse_url("kittiwake://localhost") == [("localhost", 7400)]
    assert parse_url("kittiwake://a:1,b:65535/") == [("a", 1), ("b", 65535)]
    assert parse_url("kittiwake://[::1]:80,[fe80::1]") == [("::1", 80), ("fe80::1", 7400)]


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "kittiwake://",
        "kittiwake://a,",
        "kittiwake://a:",
        "kittiwake://a:0",
        "kittiwake://a:65536",
        "kittiwake://a:-1",
        "kittiwake://a:٣",
        "kittiwake://a:1:2",
        "kittiwake://:80",
        "kittiwake://[::1",
        "kittiwake://[::1]80",
        "kittiwake://a/path",
        "kittiwake://user@a",
    ],
)
def test_bad_addresses_are_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        parse_url(url)
