"""Strings as bytes: equality, order, and the conditions starts_with, ends_with, contains, like and ranges.

`conditions.py` has the form in which a condition is packed.
"""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.conditions import ANY_ONE, HAS_HIGH, HAS_LOW, HIGH_OPEN, LOW_OPEN, RANGE
from cluster.matching.machine import load8, load64, store8, store64


@compiled
def equal(left: int, right: int, length: int) -> bool:
    """Compare bytes."""
    while length >= 8:
        if load64(left) != load64(right):
            return False
        left += 8
        right += 8
        length -= 8
    for index in range(length):  # noqa: SIM110 - generators are not compiled
        if load8(left + index) != load8(right + index):
            return False
    return True


@compiled
def copy(source: int, target: int, length: int) -> None:
    """Copy bytes."""
    while length >= 8:
        store64(target, load64(source))
        source += 8
        target += 8
        length -= 8
    for index in range(length):
        store8(target + index, load8(source + index))


@compiled
def compare(left: int, left_length: int, right: int, right_length: int) -> int:
    """Return a number below, equal to or above 0 as left is before, equal to or after right."""
    for index in range(min(left_length, right_length)):
        difference = load8(left + index) - load8(right + index)
        if difference:
            return difference
    return left_length - right_length


@compiled
def holds(condition: int, size: int, text: int, length: int) -> bool:
    """Tell whether a string satisfies a packed condition of `size` bytes."""
    if load8(condition) == RANGE:
        flags = load8(condition + 1)
        low_length = load64(condition + 8)
        if flags & HAS_LOW:
            order = compare(text, length, condition + 16, low_length)
            if order < 0 or (order == 0 and flags & LOW_OPEN):
                return False
        if flags & HAS_HIGH:
            order = compare(text, length, condition + 16 + low_length, size - 16 - low_length)
            if order > 0 or (order == 0 and flags & HIGH_OPEN):
                return False
        return True
    return _pieces_hold(condition, text, length)


@compiled
def _element(piece: int, index: int) -> int:
    return load8(piece + 8 + 2 * index) | load8(piece + 9 + 2 * index) << 8


@compiled
def _at(piece: int, elements: int, text: int, start: int, end: int) -> int:
    """Return where the piece ends if it lies at `start` of the text, else -1."""
    place = start
    for index in range(elements):
        if place >= end:
            return -1
        element = _element(piece, index)
        byte = load8(text + place)
        if element == ANY_ONE:
            if byte & 0xC0 == 0x80:
                return -1
            place += 1
            while place < end and load8(text + place) & 0xC0 == 0x80:
                place += 1
        elif element != byte:
            return -1
        else:
            place += 1
    return place


@compiled
def _find(piece: int, elements: int, wild: bool, text: int, start: int, end: int) -> int:
    """Return where the piece, leftmost in text[start:end], ends; -1 where it does not lie there."""
    if wild:
        for place in range(start, end):
            found = _at(piece, elements, text, place, end)
            if found >= 0:
                return found
        return -1
    matched = 0
    for place in range(start, end):
        byte = load8(text + place)
        while matched and _element(piece, matched) != byte:
            matched = _element(piece, elements + matched - 1)
        if _element(piece, matched) == byte:
            matched += 1
        if matched == elements:
            return place + 1
    return -1


@compiled
def _pieces_hold(condition: int, text: int, length: int) -> bool:
    pieces = load64(condition) >> 32
    piece = condition + 8
    start = 0
    for index in range(pieces):
        word = load64(piece)
        elements = word & 0x7FFFFFFF
        wild = (word >> 31) & 1
        if index == 0:
            start = _at(piece, elements, text, 0, length)
            if start < 0 or (pieces == 1 and start != length):
                return False
        elif index == pieces - 1:
            # The last piece ends with the text: count its characters back from the end.
            place = length
            for other in range(elements - 1, -1, -1):
                if place <= start:
                    return False
                place -= 1
                element = _element(piece, other)
                if element == ANY_ONE:
                    while place > start and load8(text + place) & 0xC0 == 0x80:
                        place -= 1
                    if load8(text + place) & 0xC0 == 0x80:
                        return False
                elif element != load8(text + place):
                    return False
        elif elements:
            start = _find(piece, elements, wild != 0, text, start, length)
            if start < 0:
                return False
        piece += 8 + 2 * elements * (1 if wild else 2)
    return True
