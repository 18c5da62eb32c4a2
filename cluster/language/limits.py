"""How large a filter may be. Each bound keeps the work for one filter small, whoever wrote it."""

from __future__ import annotations

import msgspec


class FilterLimits(msgspec.Struct, frozen=True):
    """The bounds that a filter is held to; the same ones for text, JSON and Python.

    predicates:   predicates in the tree.
    depth:        how deep `not`, parentheses and `is not true` nest. Text counts what is written, so that superfluous
                  parentheses count too; the other spellings count what their canonical text would hold.
    text_bytes:   bytes (UTF-8) of the text as given, and of the canonical text.
    list_values:  values in the list of one `in`.
    conjunctions: conjunctions in the normal form.
    normal_bytes: bytes of the encoded normal form, where one long string may stand in each of many conjunctions.
    name_bytes:   bytes (UTF-8) of an attribute's name.
    """

    predicates: int = 64
    depth: int = 16
    text_bytes: int = 8192
    list_values: int = 256
    conjunctions: int = 1024
    normal_bytes: int = 512 * 1024
    name_bytes: int = 256


DEFAULT_LIMITS = FilterLimits()
