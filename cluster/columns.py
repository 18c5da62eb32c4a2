"""Columns: little-endian arrays that travel inside `bytes`, as vectors and as plain Python numbers.

Vector work costs about a microsecond a call, whatever the length; plain Python about 0.05 a value. So what is done
per hit is vector work, what is done per notification, of which there may be one or thousands, is plain.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.frames import SUBSCRIPTION_BITS

U16 = np.dtype("<u2")
U32 = np.dtype("<u4")
U64 = np.dtype("<u8")

Column = NDArray[Any]

MASK_PAGE = 4096


def u16(data: bytes) -> Column:
    """Return the bytes as a read-only uint16 column."""
    return np.frombuffer(data, U16)


def u32(data: bytes) -> Column:
    """Return the bytes as a read-only uint32 column."""
    return np.frombuffer(data, U32)


def u64(data: bytes) -> Column:
    """Return the bytes as a read-only uint64 column."""
    return np.frombuffer(data, U64)


def starts(counts: Column) -> Column:
    """Return where each group begins when groups of these sizes lie in a row; int64, one longer than counts."""
    result = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=result[1:])
    return result


def mask_with(mask: Column, number: int) -> Column:
    """Return the mask (of single bytes), longer where that takes for `number`, with zeros in the new places.

    Far numbers cost no memory: beyond a page of them the mask has room for every subscription number at once, in a
    mapping of its own, of which the system backs only the pages that are written. (Doubling would write all of it, and
    so may an allocator that has the memory at hand.)
    """
    if number < len(mask):
        return mask
    if number < MASK_PAGE:
        grown = np.zeros(MASK_PAGE, mask.dtype)
    else:
        room = mmap.mmap(-1, 1 << SUBSCRIPTION_BITS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            room.madvise(mmap.MADV_NOHUGEPAGE)
        grown = np.frombuffer(room, mask.dtype)
    grown[: len(mask)] = mask
    return grown


def ranges(first: Column, counts: Column) -> Column:
    """Return first[0], first[0]+1, ... (counts[0] of them), then first[1], ...; int64."""
    if not len(counts):
        return np.zeros(0, np.int64)
    ends = np.cumsum(counts, dtype=np.int64)
    return np.arange(ends[-1]) + np.repeat(first - (ends - counts), counts)


def gather(payload: bytes | memoryview, offsets: Column, chosen: Column) -> bytes:
    """Return the chosen slices of payload, joined; slice i lies between offsets[i] and offsets[i + 1]."""
    if len(chosen) == len(offsets) - 1 and (not len(chosen) or (chosen[0] == 0 and len(payload) == offsets[-1])):
        # All of them, in order (chosen is ascending): no copy.
        return bytes(payload)
    begins = offsets[chosen].tolist()
    ends = offsets[chosen + 1].tolist()
    return b"".join([payload[begin:end] for begin, end in zip(begins, ends, strict=True)])


UINT32, UINT64 = "I", "Q"

assert sys.byteorder == "little", "columns are little-endian, and so must the machine be"
assert array(UINT32).itemsize == 4, "a column of uint32 is an array of unsigned ints"
assert array(UINT64).itemsize == 8, "a column of uint64 is an array of unsigned long longs"


def unpack(kind: str, data: bytes) -> list[int]:
    """Return a column's numbers; kind is UINT32 or UINT64."""
    return array(kind, data).tolist()


def pack(kind: str, numbers: Iterable[int]) -> bytes:
    """Return the numbers as a column."""
    return array(kind, numbers).tobytes()


def cut(payload: bytes, lengths: list[int]) -> list[bytes]:
    """Return the payload in slices of these lengths."""
    return [payload[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]
