"""Which of the notifications that wait are outdated, for subscriptions with the policy latest_per_key(attribute).

Per subscription and value of its attribute the newest notification *claims* that pair; a newer one takes the claim
over. A notification that waits for such subscriptions alone is outdated when it has lost every claim: for each of them
a newer one with the same value waits behind it. So what two subscriptions match stays until both have something newer.

Values are the same if they are equal as numbers (1 and 1.0 are, 2**53 + 1 and 2.0**53 are not), or are the same
bool, or the same string byte for byte; null is a value of its own, and so is an absent attribute. True is not 1.

The claims on one value are kept as columns of subscription numbers, which partition the subscriptions that have
claims on it: so a value that waits costs four bytes a claim, whoever it is that subscribes ten thousand times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from cluster.columns import UINT32, pack, unpack

Key = tuple[str, Any]
"""An attribute and a value as `same_value` returns it."""
Claims = list[tuple[Key, bytes]]
"""Keys, each with the numbers of the subscriptions that go by its attribute; an attribute comes once."""

READERS_PER_CLIENT = 4
"""A client that goes by more attributes than this has its publications decoded whole. A reader is a class of its own,
some 100 µs and 3 kB; it takes 0.36 µs of six attributes, the whole 0.79."""

_ABSENT = ("absent",)
_NULL = ("null",)
_BOOLS = {False: ("bool", False), True: ("bool", True)}
_decode = msgspec.msgpack.Decoder().decode


def same_value(value: Any) -> Any:
    """Return what is equal for values that count as the same, and for no others."""
    if isinstance(value, str):
        return value.encode()  # no string equals a number; and as bytes it never takes more room than it came in
    if isinstance(value, bool):
        return _BOOLS[value]
    if value is None:
        return _NULL
    return _ABSENT if value is msgspec.UNSET else value


@lru_cache(maxsize=256)
def reader_of(attribute: str) -> Callable[[bytes], Any]:
    """Return a function from a publication's bytes to the attribute's value, UNSET where it is absent.

    It skips the other attributes without making objects of them. Of a name that comes twice the last one counts.
    """
    try:
        kind = msgspec.defstruct("Read", [("value", Any, msgspec.UNSET)], rename={"value": attribute}, gc=False)
    except ValueError:  # a name with quotes, backslashes or control characters
        return lambda publication: _decode(publication).get(attribute, msgspec.UNSET)
    decode = msgspec.msgpack.Decoder(kind).decode
    return lambda publication: decode(publication).value  # type: ignore[attr-defined]


class Attributes:
    """The attributes that the subscriptions of one client go by."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}
        self._readers: dict[str, Callable[[bytes], Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def set(self, number: int, attribute: str | None) -> None:
        """Remember what the subscription goes by; None for nothing."""
        if attribute is None:
            self._of.pop(number, None)
            return
        self._of[number] = attribute
        if len(self._readers) < READERS_PER_CLIENT and attribute not in self._readers:
            self._readers[attribute] = reader_of(attribute)

    def keep(self, live: Callable[[int], bool]) -> None:
        """Forget subscriptions that are not live."""
        self._of = {number: attribute for number, attribute in self._of.items() if live(number)}
        used = set(self._of.values())
        self._readers = {attribute: reader for attribute, reader in self._readers.items() if attribute in used}

    def claims(self, numbers: bytes, publication: bytes) -> Claims:
        """Return the claims of a notification with these bytes for these subscriptions."""
        groups: dict[str, list[int]] = {}
        for number in unpack(UINT32, numbers):
            attribute = self._of.get(number)
            if attribute is not None:
                groups.setdefault(attribute, []).append(number)
        if all(attribute in self._readers for attribute in groups):
            values = {attribute: self._readers[attribute](publication) for attribute in groups}
        else:
            decoded = _decode(publication)
            values = {attribute: decoded.get(attribute, msgspec.UNSET) for attribute in groups}
        return [((name, same_value(values[name])), pack(UINT32, group)) for name, group in groups.items()]


@dataclass(slots=True)
class _Claim:
    numbers: bytes
    item: int


class Newest:
    """The claims of what waits. Items are the caller's numbers. Cost: O(claims of the item, and on its values)."""

    def __init__(self) -> None:
        self._claims: dict[Key, list[_Claim]] = {}
        self._keys: dict[int, list[Key]] = {}  # item -> where it has claims left, none of them twice

    def __len__(self) -> int:
        return len(self._keys)

    def outdate(self, claims: Claims) -> list[int]:
        """Something comes with these claims: take them from whoever has them. Return the items that have none left."""
        outdated = []
        for key, numbers in claims:
            before = self._claims.get(key)
            if before is None:
                continue
            left = []
            for claim in before:
                if claim.numbers != numbers:
                    lost = set(unpack(UINT32, numbers))
                    rest = [number for number in unpack(UINT32, claim.numbers) if number not in lost]
                    if rest:
                        left.append(_Claim(pack(UINT32, rest), claim.item))
                        continue
                keys = self._keys[claim.item]
                keys.remove(key)
                if not keys:
                    del self._keys[claim.item]
                    outdated.append(claim.item)
            if left:
                self._claims[key] = left
            else:
                del self._claims[key]
        return outdated

    def add(self, item: int, claims: Claims) -> None:
        """Enter a new item, after `outdate` of its claims."""
        self._keys[item] = [key for key, _ in claims]
        for key, numbers in claims:
            self._claims.setdefault(key, []).append(_Claim(numbers, item))

    def remove(self, item: int) -> None:
        """The item waits no more. Nothing happens where it has no claims."""
        for key in self._keys.pop(item, ()):
            left = [claim for claim in self._claims[key] if claim.item != item]
            if left:
                self._claims[key] = left
            else:
                del self._claims[key]

    def clear(self) -> None:
        """Forget everything."""
        self._claims.clear()
        self._keys.clear()

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        keys: dict[int, list[Key]] = {}
        for key, claims in self._claims.items():
            assert claims, f"an empty list for {key}"
            numbers = [number for claim in claims for number in unpack(UINT32, claim.numbers)]
            assert len(numbers) == len(set(numbers)), f"two claims on {key} of one subscription"
            assert all(claim.numbers for claim in claims), f"an empty claim on {key}"
            for claim in claims:
                keys.setdefault(claim.item, []).append(key)
        assert {item: set(own) for item, own in keys.items()} == {item: set(own) for item, own in self._keys.items()}
        assert all(len(own) == len(set(own)) for own in self._keys.values())
