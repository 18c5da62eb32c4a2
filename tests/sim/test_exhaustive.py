"""The exhaustive search: a beginning of every scope, and that it sees mistakes.

The command goes further; how far is in its output.
"""

import pytest

from tests.sim.exhaustive import SCOPES, explore

EXECUTIONS = 100

CATCHES = {
    "copy-ends-at-the-first-mark": ("small-unsubscribe", 1_000),
    "no-channel-recording": ("small-unsubscribe", 1_000),
    "tombstone-dropped": ("small-unsubscribe", 1_000),
    "dual-write-ends-at-switch": ("small-subscribe", 5_000),
    "confirmed-by-one-owner": ("small-subscribe", 25_000),
    "swap-on-the-first-marker": ("small-unsubscribe", 1_000),
    "release-by-completion": ("small-order", 15_000),
}
"""A mutant -> the scope in which it is caught, and within how many executions."""


@pytest.mark.parametrize("scope", SCOPES)
def test_nothing_is_wrong(scope: str) -> None:
    outcome = explore(scope, EXECUTIONS)
    assert outcome.failure is None, "\n".join([*(outcome.schedule or ()), str(outcome.failure)])
    assert outcome.executions >= EXECUTIONS or outcome.complete


@pytest.mark.parametrize("mutant", CATCHES)
def test_a_mistake_is_found(mutant: str) -> None:
    scope, limit = CATCHES[mutant]
    outcome = explore(scope, limit, mutant)
    assert outcome.failure is not None, f"{mutant} passes {outcome.executions} executions"
    assert outcome.schedule, "no schedule is told"


def test_a_schedule_is_readable_and_the_same_again() -> None:
    first, second = (explore("small-unsubscribe", 1_000, "copy-ends-at-the-first-mark") for _ in range(2))
    assert first.schedule == second.schedule
    assert first.schedule is not None
    assert any(line.startswith("access_point 1 -> matcher 0: Mark(epoch 2)") for line in first.schedule)
