"""Conditions on strings, packed: starts_with, ends_with, contains, like and ranges.

`packing.py` writes a condition as bytes that `strings.holds` evaluates:

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

RANGE, PIECES = 1, 2
HAS_LOW, LOW_OPEN, HAS_HIGH, HIGH_OPEN = 1, 2, 4, 8
ANY_ONE = 256
