"""What the walker says of a publication's attributes, and why it refuses one; `walk.py` has an entry's four words."""

from __future__ import annotations

ENTRY_BYTES = 32

# Kinds of value in word 1. WHOLE is an integer >= 0, NEGATIVE one below; the index compares them exactly by that.
NIL, BOOLEAN, WHOLE, NEGATIVE, DOUBLE, TEXT = 0, 1, 2, 3, 4, 5

# Why a publication is refused; the texts are in batch.py.
(
    ACCEPTED,
    TRUNCATED,
    TRAILING,
    NOT_A_MAP,
    TOO_MANY_ATTRIBUTES,
    NAME_NOT_STRING,
    NAME_EMPTY,
    NAME_TOO_LONG,
    NAME_NOT_UTF8,
    VALUE_NESTED,
    VALUE_BINARY,
    VALUE_INVALID,
    VALUE_NOT_FINITE,
    STRING_TOO_LONG,
    STRING_NOT_UTF8,
) = range(15)
