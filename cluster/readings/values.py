"""What an attribute may hold, checked where data enters."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cluster.language.normal import Value

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1
DEPTH_MAX = 32


class ValueRefused(ValueError):
    """A value that no publication can carry; the text names the attribute."""


def flatten(nested: Mapping[str, object]) -> dict[str, Value]:
    """Return a JSON object as flat attributes: `{"a": {"b": 1}}` becomes `{"a.b": 1}`.

    Raises: ValueRefused for lists, numbers that are not finite or do not fit in 64 bits, empty names, nesting deeper
            than DEPTH_MAX, and names that occur twice once flattened. An empty object gives nothing.
    """
    flat: dict[str, Value] = {}
    _flatten(nested, "", flat, 0)
    return flat


def _flatten(nested: Mapping[str, object], prefix: str, flat: dict[str, Value], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueRefused(f"objects are nested deeper than {DEPTH_MAX}")
    for key, value in nested.items():
        if not key:
            raise ValueRefused(f"an attribute's name is empty{f' in {prefix[:-1]!r}' if prefix else ''}")
        if not is_unicode(key):
            raise ValueRefused("an attribute's name is not valid Unicode")
        name = prefix + key
        if isinstance(value, Mapping):
            _flatten(value, name + ".", flat, depth + 1)
        elif name in flat:
            raise ValueRefused(f"attribute {name!r} occurs twice")
        else:
            flat[name] = check_value(name, value)


def check_value(name: str, value: object) -> Value:
    """Return the value if an attribute may hold it; raise ValueRefused if not."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_unicode(value):
            raise ValueRefused(f"attribute {name!r} is not valid Unicode")
        return value
    if isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise ValueRefused(f"attribute {name!r} does not fit in 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueRefused(f"attribute {name!r} is not a finite number")
        return value
    kind = "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
    raise ValueRefused(f"attribute {name!r} is {kind}; only scalars and objects can be published")


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded: it holds no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
