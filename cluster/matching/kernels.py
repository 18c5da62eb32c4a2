"""The compiled entry points, cached on disk.

numba looks only at an entry point's own source file to see whether its cached code is stale. The code of all other
files here is compiled into it, so each entry point carries a digest of all of them as a free variable, which is part
of numba's key. Without a writable cache directory (neither beside the source nor the user's) the code is
compiled anew in each process.

`index.warm` compiles or loads everything, so that no first message waits for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from cluster.matching import edit, filing, numbers, predicates, search
from cluster.matching import walk as walking
from cluster.matching.layout import (
    A_LISTED,
    A_NEXT,
    H_ATTRIBUTES,
    H_ATTRIBUTES_FREE,
    H_CLUSTERS,
    H_CLUSTERS_FREE,
    H_FREED,
    H_PREDICATES,
    H_PREDICATES_FREE,
    K_BEFORE,
    K_NEXT,
    P_LISTED,
    P_NEXT,
)
from cluster.matching.machine import load64

# Conjunctions that a sweep looks at in passing.
_SWEPT_PER_ADD = 2
_SWEPT_PER_MATCH = 32


_FILES = (
    "blocks.py",
    "compiled.py",
    "edit.py",
    "filing.py",
    "kernels.py",
    "layout.py",
    "machine.py",
    "numbers.py",
    "order.py",
    "pool.py",
    "predicates.py",
    "records.py",
    "search.py",
    "setting.py",
    "strings.py",
    "table.py",
    "tiles.py",
    "walk.py",
)


def _digest() -> int:
    folder = Path(__file__).parent
    digest = 0
    for name in _FILES:
        digest = zlib.crc32((folder / name).read_bytes(), digest)
    return digest


def _compiled(function: Callable[..., Any]) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no place to keep the code
        return njit(**options)(function)


def _entry_points(digest: int) -> tuple[Any, ...]:
    def count_attributes(payload: int, size: int, lengths: int, count: int, names_max: int) -> int:
        if digest < 0:
            return digest
        return walking.count_attributes(payload, size, lengths, count, names_max)

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
        return walking.walk(
            payload, size, lengths, count, starts, reasons, places, entries, names_max, name_max, string_max
        )

    def attribute(m: int, address: int, length: int) -> int:
        if digest < 0:
            return digest
        return predicates.add_attribute(m, address, length)

    def add(m: int, subscription: int, client: int) -> int:
        if digest < 0:
            return digest
        edit.add(m, subscription, client)
        predicates.settle(m)
        filing.sweep(m, _SWEPT_PER_ADD)
        return load64(m + H_FREED)

    def remove(m: int, subscription: int) -> int:
        if digest < 0:
            return digest
        if not edit.remove(m, subscription):
            return -1
        predicates.settle(m)
        return load64(m + H_FREED)

    def sweep(m: int, steps: int) -> int:
        if digest < 0:
            return digest
        forgetting = numbers.forget(m, H_PREDICATES, H_PREDICATES_FREE, P_NEXT, P_LISTED, steps)
        if numbers.forget(m, H_ATTRIBUTES, H_ATTRIBUTES_FREE, A_NEXT, A_LISTED, steps):
            forgetting = True
        if numbers.forget(m, H_CLUSTERS, H_CLUSTERS_FREE, K_NEXT, K_BEFORE, steps):
            forgetting = True
        return 1 if filing.sweep(m, steps) or forgetting else 0

    def match(
        m: int,
        payload: int,
        starts: int,
        entries: int,
        reasons: int,
        first: int,
        count: int,
        publications: int,
        clients: int,
        subscriptions: int,
        capacity: int,
        result: int,
    ) -> int:
        if digest < 0:
            return digest
        filing.sweep(m, _SWEPT_PER_MATCH)
        return search.match(
            m,
            payload,
            starts,
            entries,
            reasons,
            first,
            count,
            publications,
            clients,
            subscriptions,
            capacity,
            result,
        )

    functions = (count_attributes, walk, attribute, add, remove, sweep, match)
    return tuple(_compiled(function) for function in functions)


count_attributes, walk, attribute, add, remove, sweep, match = _entry_points(_digest())
