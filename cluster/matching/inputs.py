"""The words of the form in which a filter is handed over to be filed; `records.py` has the table of them."""

from __future__ import annotations

IN_EQUAL, IN_SET, IN_STRING, IN_RANGE, IN_EXACT, IN_KINDS, IN_NEAR = range(1, 8)

# Flags of EXACT; each bound's kind is DOUBLE, WHOLE or NEGATIVE.
HAS_LOW, LOW_OPEN, HAS_HIGH, HIGH_OPEN, LOW_KIND, HIGH_KIND = 1, 2, 4, 8, 4, 8  # the kinds are shifts

# Types of predicates; a prefix or suffix of more bytes is a STRING.
EQUAL, SET, STRING, PREFIX, SUFFIX = 1, 2, 3, 4, 5
AFFIX_MAX = 63
