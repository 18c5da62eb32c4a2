"""Takes out of hits what others answer for: while key groups move, the index holds subscriptions of other matchers."""

from __future__ import annotations

from cluster.matching.compiled import compiled
from cluster.matching.machine import load16, load64, shift_right, store64
from cluster.matching.search import F_HITS, F_HITS_AT, F_RUNS, F_RUNS_AT, RUN_BYTES

# The constants of splitmix64 as signed integers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


@compiled
def key_group(subscription: int) -> int:
    """As `view.key_group`."""
    z = subscription + _STEP
    z = (z ^ shift_right(z, 30)) * _FIRST
    z = (z ^ shift_right(z, 27)) * _SECOND
    return shift_right(z ^ shift_right(z, 31), 52)


@compiled
def owned(found: int, owners: int, slot: int) -> int:
    """Leave the hits whose key group `slot` owns, where they are; returns how many they are.

    found: the head of the hits, as `search.match` writes it. owners: 16 bits a key group.
    """
    hits = load64(found + F_HITS)
    run_count = load64(found + F_RUNS)
    subscriptions = load64(found + F_HITS_AT)
    runs = load64(found + F_RUNS_AT)
    kept = 0
    kept_runs = 0
    for run in range(run_count):
        at = runs + RUN_BYTES * run
        last = hits
        if run + 1 < run_count:
            last = load64(at + RUN_BYTES + 16)
        begin = kept
        for row in range(load64(at + 16), last):
            subscription = load64(subscriptions + 8 * row)
            if load16(owners + 2 * key_group(subscription)) == slot:
                store64(subscriptions + 8 * kept, subscription)
                kept += 1
        if kept > begin:
            to = runs + RUN_BYTES * kept_runs
            store64(to, load64(at))
            store64(to + 8, load64(at + 8))
            store64(to + 16, begin)
            kept_runs += 1
    store64(found + F_HITS, kept)
    store64(found + F_RUNS, kept_runs)
    return kept
