"""The compiled entry points, cached on disk.

numba looks only at an entry point's own source file to see whether its cached code is stale. The code of all other
files here is compiled into it, so each entry point carries a digest of all of them as a free variable, which is part
of numba's key. Without a writable cache directory (neither beside the source nor the user's) the code is
compiled anew in each process.

`warm` compiles or loads everything, so that no first message waits for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from cluster.matching import walk as walking


def _digest() -> int:
    folder = Path(__file__).parent
    digest = 0
    for name in ("machine.py", "walk.py"):
        digest = zlib.crc32((folder / name).read_bytes(), digest)
    return digest


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place to keep the code
        return njit(nogil=True)(function)


def _entry_points(digest: int) -> tuple[Any, ...]:
    one = walking.count_attributes
    two = walking.walk

    def count_attributes(payload: int, size: int, lengths: int, count: int, names_max: int) -> int:
        if digest < 0:
            return digest
        return one(payload, size, lengths, count, names_max)

    def walk(
        payload: int,
        size: int,
        lengths: int,
        count: int,
        starts: int,
        reasons: int,
        places: int,
        entries: int,
        names_max: int,
        name_max: int,
        string_max: int,
    ) -> int:
        if digest < 0:
            return digest
        return two(payload, size, lengths, count, starts, reasons, places, entries, names_max, name_max, string_max)

    return _compiled(count_attributes), _compiled(walk)


count_attributes, walk = _entry_points(_digest())
