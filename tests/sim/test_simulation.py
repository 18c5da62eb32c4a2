"""Some hundred seeds of the simulator, and that a seed means the same run everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.run import play

SEEDS = 300
BLOCKS = 10
OTHER_SEEDS = 10
"""Of each scenario about one thing, beside the SEEDS of them mixed; `python -m tests.sim --scenario` plays more."""
OTHERS = (
    *("still", "matchers", "exit_points", "access_points", "connection_points", "coordinator"),
    *(
        "member_crash",
        "crash",
        "crash_all",
        "valid",
        "valid_crash",
        "valid_moves",
        "output",
        "output_all",
        "output_still",
    ),
)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_promise_is_broken(block: int) -> None:
    size = SEEDS // BLOCKS
    for seed in range(block * size, (block + 1) * size):
        outcome = play(seed)
        assert outcome.failure is None, f"{outcome.story}\nseed {seed}: {outcome.failure}"


@pytest.mark.parametrize("scenario", OTHERS)
def test_no_promise_is_broken_by(scenario: str) -> None:
    for seed in range(OTHER_SEEDS):
        outcome = play(seed, scenario)
        assert outcome.failure is None, f"{outcome.story}\n{scenario}, seed {seed}: {outcome.failure}"


def test_a_run_is_worth_something() -> None:
    """Publications flow, most runs see notifications, and different seeds are different runs."""
    outcomes = [play(seed) for seed in range(20)]
    assert len({outcome.digest for outcome in outcomes}) == len(outcomes)
    assert sum(outcome.publications for outcome in outcomes) > 1_000
    assert sum(outcome.notifications for outcome in outcomes) > 500
    assert sum(outcome.notifications > 0 for outcome in outcomes) > 10
    assert sum(outcome.view_changes for outcome in outcomes) > 20


def test_a_seed_means_the_same_run_under_any_hash_seed() -> None:
    seeds = 6
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(seeds), "--hashes"]
    expected = [f"{seed} {play(seed).digest}" for seed in range(seeds)]
    for hash_seed in ("1", "4242"):
        done = subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[:seeds] == expected


def test_a_failing_seed_prints_its_trace_and_how_to_replay_it() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seeds", "1", "--replay", "0", "--mutant", "rejections-untold"]
    replayed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert replayed.returncode != 0
    assert "was not rejected" in replayed.stderr
    assert "publishes 1..1" in replayed.stdout
