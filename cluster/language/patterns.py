"""The four string operators: starts_with, ends_with, contains and like.

All compare code points as they are, without case folding or Unicode normalisation. In a LIKE pattern `%` stands for
any run of characters (the empty one and line ends included), `_` for exactly one, and a backslash takes the meaning
away from the `%`, `_` or backslash behind it; before anything else, or at the end, a backslash is refused.

A LIKE pattern isn't handed to `re`: `%a%a%a%b` as `.*a.*a.*a.*b` backtracks for minutes on a long string of a's.
Between two `%` the leftmost place is always the best one, so the pieces are looked for one after the other, each by
`str.find`, or where it holds `_` by the shift-and algorithm. Worst case: n * m / 64 word operations for a string of n
and a pattern of m characters.
Source: shift-and, Baeza-Yates and Gonnet, A new approach to text searching, CACM 35(10), 1992.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from cluster.errors import FilterError

OPERATORS = ("starts_with", "ends_with", "contains", "like")

_ANY_ONE = None  # stands for `_` in a parsed piece
_Piece = list[str | None]


def split_like(pattern: str) -> list[_Piece]:
    """Return the pieces of a LIKE pattern between its `%`; a character is itself, `_` is None.

    One piece more than there are `%`. Raises FilterError for a backslash that escapes nothing.
    """
    piece: _Piece = []
    pieces = [piece]
    characters = enumerate(pattern)
    for index, character in characters:
        if character == "\\":
            _, escaped = next(characters, (0, ""))
            if escaped == "" or escaped not in "%_\\":
                raise FilterError(
                    "a backslash in a like pattern may only stand before % _ or another backslash "
                    f"(character {index} of the pattern)"
                )
            piece.append(escaped)
        elif character == "%":
            piece = []
            pieces.append(piece)
        else:
            piece.append(_ANY_ONE if character == "_" else character)
    return pieces


def simplify_like(pattern: str) -> tuple[str, str]:
    """Return an equivalent (operator, text), simpler than `like` where there is one.

    The operator is one of `==`, `starts_with`, `ends_with`, `contains` and `like`.
    """
    pieces = split_like(pattern)
    if any(_ANY_ONE in piece for piece in pieces):
        return "like", pattern
    texts = ["".join(character for character in piece if character) for piece in pieces]
    if len(texts) == 1:
        return "==", texts[0]
    inner = [text for text in texts[1:-1] if text]
    first, last = texts[0], texts[-1]
    if not inner and not last:
        return "starts_with", first
    if not inner and not first:
        return "ends_with", last
    if len(inner) == 1 and not first and not last:
        return "contains", inner[0]
    return "like", pattern


class _Segment:
    """One piece of a LIKE pattern, ready to be looked for."""

    __slots__ = ("_literal", "_masks", "_wild", "length")

    def __init__(self, piece: _Piece) -> None:
        self.length = len(piece)
        self._literal = None if _ANY_ONE in piece else "".join(character for character in piece if character)
        # Bit i of a mask is set where position i of the piece accepts the character; `_wild` serves all others.
        self._wild = sum(1 << index for index, character in enumerate(piece) if character is _ANY_ONE)
        self._masks: dict[str, int] = {}
        for index, character in enumerate(piece):
            if character is not None:
                self._masks[character] = self._masks.get(character, self._wild) | 1 << index

    def find(self, text: str, start: int, end: int) -> int:
        """Return where the piece first lies inside text[start:end], or -1."""
        if self._literal is not None:
            return text.find(self._literal, start, end)
        state = 0
        last = 1 << self.length - 1
        for index in range(start, end):
            state = (state << 1 | 1) & self._masks.get(text[index], self._wild)
            if state & last:
                return index + 1 - self.length
        return -1


def _like(pattern: str) -> Callable[[str], bool]:
    segments = [_Segment(piece) for piece in split_like(pattern)]
    first, last = segments[0], segments[-1]
    if len(segments) == 1:

        def matches_whole(text: str) -> bool:
            return len(text) == first.length and first.find(text, 0, len(text)) == 0

        return matches_whole
    middle = [segment for segment in segments[1:-1] if segment.length]

    def matches(text: str) -> bool:
        start, end = first.length, len(text) - last.length
        if start > end:
            return False
        if first.length and first.find(text, 0, start) != 0:
            return False
        if last.length and last.find(text, end, len(text)) != end:
            return False
        for segment in middle:
            found = segment.find(text, start, end)
            if found < 0:
                return False
            start = found + segment.length
        return True

    return matches


@lru_cache(maxsize=4096)
def string_test(operator: str, text: str) -> Callable[[str], bool]:
    """Return a function that says whether a string matches; kept for the 4096 pairs used last."""
    if operator == "starts_with":
        return lambda value: value.startswith(text)
    if operator == "ends_with":
        return lambda value: value.endswith(text)
    if operator == "contains":
        return lambda value: text in value
    assert operator == "like", operator
    return _like(text)
