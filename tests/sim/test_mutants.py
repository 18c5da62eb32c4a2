"""The checker is checked: each way of breaking the protocol is caught within its stated number of seeds.

Those that need more than SEEDS of them are left out here: KITTIWAKE_MUTANT_SEEDS=300 takes them in, in half an hour.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.detection import first_catch, is_catch
from tests.sim.mutants import MUTANTS, applied
from tests.sim.run import play
from tests.sim.shrink import smallest

SEEDS = int(os.environ.get("KITTIWAKE_MUTANT_SEEDS", "40"))

KNOWN = {
    "copy-ends-at-the-first-mark": 7,
    "decided-anew": 12,
    "drop-not-counted": 5,
    "no-channel-recording": 25,
    "outbox-keeps-closed": 6,
    "requests-not-waited": 17,
    "second-death-forgets-the-first": 7,
    "stored-early": 35,
    "switch-with-the-first-connection-point": 15,
    "valid-not-restored": 8,
    "valid-not-written": 3,
    "void-accepted": 9,
    "watermarks-not-kept": 28,
    "withdrawn-stays-on-disk": 3,
    "zombie-at-the-exit-point": 7,
    "zombie-at-the-matcher": 3,
}
"""Seeds that catch a mutant, as last measured: tried before those from 0, most of which pass and take all the time.

Of a mutant that makes some seeds last without end, it is one where that is seen soon. One that does not catch it any
more costs time and proves nothing less: the others are tried then.
"""


@pytest.mark.parametrize("name", sorted(name for name, mutant in MUTANTS.items() if 0 < mutant.seeds <= SEEDS))
def test_the_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    if name in KNOWN:
        assert KNOWN[name] < mutant.seeds
        with applied(name):
            if is_catch(play(KNOWN[name], mutant.scenario).failure):
                return
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
