"""Memory that compiled code writes to, with its address known; and rooms, in which it is used again and again.

Asking numpy for an array and for its address takes about two microseconds, and new memory its page faults. Where one
batch comes after the other, a room gives the same memory each time.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

KEPT = 1 << 17
"""Words that a room keeps at the least; 1 MiB, of which the system backs what is written to."""


def address(array: np.ndarray) -> int:
    """Return where an array's data lies."""
    return int(array.__array_interface__["data"][0])


class Memory:
    """Some 64-bit words, not cleared.

    size:             in words.
    at:               the address; valid as long as `words` lives.
    words, unsigned:  as signed and as unsigned integers.
    octets:           as bytes.
    """

    __slots__ = ("at", "octets", "size", "unsigned", "words")

    def __init__(self, size: int) -> None:
        array = np.empty(size, np.int64)
        self.size = size
        self.at = address(array)
        self.words = memoryview(cast(Any, array))  # numpy's annotations do not call it a buffer
        self.octets = self.words.cast("B")
        self.unsigned = self.octets.cast("Q")


class Room:
    """Gives out memory, the same again: whoever takes some ends what was there."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = Memory(KEPT)

    def take(self, size: int) -> Memory:
        """Return memory of at least so many words; no more than KEPT or four times as many are kept for it."""
        memory = self._memory
        if size <= memory.size <= max(KEPT, 4 * size):
            return memory
        memory = self._memory = Memory(max(KEPT, size + size // 4))
        return memory
