"""Vector helpers for columns: little-endian arrays that travel inside `bytes`.

No loop here runs over publications or hits but the one in `gather`, which joins slices of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U16 = np.dtype("<u2")
U32 = np.dtype("<u4")
U64 = np.dtype("<u8")

Column = NDArray[Any]


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
