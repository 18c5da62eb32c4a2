"""The checker is checked: each way of breaking the protocol is caught within its stated number of seeds."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, applied
from tests.sim.run import play


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    if mutant.seeds is None:
        pytest.skip("no mistake as long as views do not change")
    with applied(name):
        assert any(play(seed).failure for seed in range(mutant.seeds)), f"{mutant.what}: {mutant.seeds} seeds passed"


def test_a_mutant_is_gone_afterwards() -> None:
    with applied("drops-untold"):
        pass
    assert play(0).failure is None
