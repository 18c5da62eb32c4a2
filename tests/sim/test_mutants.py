"""The checker is checked: each way of breaking the protocol is caught within its stated number of seeds.

Those that need more than SEEDS of them are left out here: KITTIWAKE_MUTANT_SEEDS=300 takes them in, in half an hour.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.detection import first_catch
from tests.sim.mutants import MUTANTS, applied
from tests.sim.run import play
from tests.sim.shrink import smallest

SEEDS = int(os.environ.get("KITTIWAKE_MUTANT_SEEDS", "40"))


@pytest.mark.parametrize("name", sorted(name for name, mutant in MUTANTS.items() if 0 < mutant.seeds <= SEEDS))
def test_the_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    assert first_catch(name, mutant.seeds) is not None, f"{mutant.what}: {mutant.seeds} seeds passed"


def test_a_mutant_is_gone_afterwards() -> None:
    with applied("drops-untold"):
        pass
    assert play(0).failure is None


def test_what_a_failure_does_not_need_is_left_out() -> None:
    needed = {3, 17}
    tried = []

    def still_fails(without: frozenset[int]) -> bool:
        tried.append(without)
        return not needed & without

    without = smallest(40, still_fails, 200)
    assert without == frozenset(range(40)) - needed
    assert len(tried) <= 200
