"""Making a failing run shorter: the same seed with fewer things that happen, as long as it still fails.

A run is a function of its seed, its scenario, and which of its actions are left out; an action that is left out
does nothing, and everything else is drawn as before as far as it can be. Blocks of actions are left out, large
ones first, then single ones (delta debugging, A. Zeller and R. Hildebrandt, IEEE TSE 28(2), 2002).
"""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.world import World

ATTEMPTS = 200


def fails(seed: int, scenario: str, without: frozenset[int]) -> bool:
    """Tell whether the run fails with these actions left out."""
    world = World(seed, scenario, without)
    try:
        world.run()
    except Exception:
        return True
    finally:
        world.assembly.roles.clear()
    return False


def shrink(seed: int, scenario: str, *, attempts: int = ATTEMPTS) -> frozenset[int]:
    """Return which actions of a failing run can be left out; no more than `attempts` runs are made."""
    world = World(seed, scenario)
    actions = world.plan.actions
    world.assembly.roles.clear()
    return smallest(actions, lambda without: fails(seed, scenario, without), attempts)


def smallest(actions: int, still_fails: Callable[[frozenset[int]], bool], attempts: int) -> frozenset[int]:
    """Return a set of actions without which it still fails, by leaving out blocks of halving size."""
    without: frozenset[int] = frozenset()
    size = max(actions // 2, 1)
    while True:
        for begin in range(0, actions, size):
            block = without | frozenset(range(begin, min(begin + size, actions)))
            if block == without:
                continue
            if attempts == 0:
                return without
            attempts -= 1
            if still_fails(block):
                without = block
        if size == 1:
            return without
        size = max(size // 2, 1)
