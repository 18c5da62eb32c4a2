"""Conditions on strings, packed: starts_with, ends_with, contains, like and ranges.

A condition is packed by `pack_pattern` and `pack_range` into bytes that `strings.holds` evaluates:

    byte 0       operator
    RANGE        byte 1: flags; bytes 8..15: length of the low bound; then low, high
    others       bytes 4..7: number of pieces; then per piece 8 bytes (length in elements | wild << 31), and
                 the elements as 16-bit numbers: a byte, or ANY_ONE for one character; then, for pieces
                 without ANY_ONE, their failure table for Knuth, Morris and Pratt's search, 16 bits an element

starts_with x is like `x%`, and so on: a pattern is its pieces between `%`. As in patterns.py the leftmost place of each
piece is the best. Bytes of UTF-8 compare like code points, and a piece's first byte never equals a
continuation byte, so that places found in bytes are places in characters; ANY_ONE takes one whole character.
"""

from __future__ import annotations

import struct

from cluster.language.patterns import split_like

RANGE, PIECES = 1, 2
HAS_LOW, LOW_OPEN, HAS_HIGH, HIGH_OPEN = 1, 2, 4, 8
ANY_ONE = 256


def pack_range(low: str | None, high: str | None, low_open: bool, high_open: bool) -> bytes:
    """Pack a range of strings."""
    flags = HAS_LOW * (low is not None) | LOW_OPEN * low_open
    flags |= HAS_HIGH * (high is not None) | HIGH_OPEN * high_open
    low_bytes, high_bytes = (low or "").encode(), (high or "").encode()
    return struct.pack("<BB6xq", RANGE, flags, len(low_bytes)) + low_bytes + high_bytes


def pack_pattern(operator: str, text: str) -> bytes:
    """Pack a string pattern; text is a LIKE pattern for `like`, else the characters themselves."""
    if operator == "like":
        pieces = split_like(text)
    else:
        literal: list[str | None] = list(text)
        pieces = {
            "starts_with": [literal, []],
            "ends_with": [[], literal],
            "contains": [[], literal, []],
        }[operator]
    packed = [struct.pack("<B3xI", PIECES, len(pieces))]
    for piece in pieces:
        elements: list[int] = []
        for character in piece:
            elements.extend([ANY_ONE] if character is None else character.encode())
        wild = ANY_ONE in elements
        table = [] if wild else _failure_table(elements)
        packed.append(struct.pack("<q", len(elements) | wild << 31))
        packed.append(struct.pack(f"<{len(elements) + len(table)}H", *elements, *table))
    return b"".join(packed)


def _failure_table(elements: list[int]) -> list[int]:
    """Return for each place the length of the longest proper prefix that ends there too."""
    table = [0] * len(elements)
    length = 0
    for place in range(1, len(elements)):
        while length and elements[place] != elements[length]:
            length = table[length - 1]
        length += elements[place] == elements[length]
        table[place] = length
    return table
