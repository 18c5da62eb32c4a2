"""Numbers for things that cannot be renumbered, because too much names them: predicates, attributes, clusters.

A freed number waits in a list and is given out first. When the highest numbers are free they are forgotten, so that the
tables shrink again; at most a few dozen in one call. A free number's entry in `nexts` carries a mark.
"""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.machine import load32, load64, store32, store64

_FREE = 1 << 31
_FORGOTTEN_MAX = 32


@compiled
def take(m: int, highest: int, free: int, nexts: int, befores: int) -> int:
    """Return a number that is not in use. highest, free: header words; nexts, befores: 32-bit tables."""
    number = load64(m + free)
    if number == 0:
        number = load64(m + highest) + 1
        store64(m + highest, number)
        return number
    following = load32(m + nexts + 4 * number) & ~_FREE
    store64(m + free, following)
    if following:
        store32(m + befores + 4 * following, 0)
    store32(m + nexts + 4 * number, 0)
    return number


@compiled
def give_back(m: int, highest: int, free: int, nexts: int, befores: int, number: int) -> None:
    """Take a number out of use."""
    head = load64(m + free)
    store32(m + nexts + 4 * number, head | _FREE)
    store32(m + befores + 4 * number, 0)
    if head:
        store32(m + befores + 4 * head, number)
    store64(m + free, number)
    forget(m, highest, free, nexts, befores, _FORGOTTEN_MAX)


@compiled
def forget(m: int, highest: int, free: int, nexts: int, befores: int, most: int) -> bool:
    """Forget up to `most` free numbers at the end of a table; tell whether there may be more."""
    for _ in range(most):
        last = load64(m + highest)
        if last == 0 or not load32(m + nexts + 4 * last) & _FREE:
            return False
        following = load32(m + nexts + 4 * last) & ~_FREE
        before = load32(m + befores + 4 * last)
        if before:
            store32(m + nexts + 4 * before, following | _FREE)
        else:
            store64(m + free, following)
        if following:
            store32(m + befores + 4 * following, before)
        store32(m + nexts + 4 * last, 0)
        store64(m + highest, last - 1)
    return True
