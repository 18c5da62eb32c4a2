"""A few seeds of the closed loop; `python -m tests.autoscale` runs more of them, at the policies' own pace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from autoscaler.policy import LayerPolicies, ScalingPolicy, Tolerance
from autoscaler.policy_file import load_policy
from autoscaler.signals import LAYERS
from tests.autoscale.__main__ import main
from tests.autoscale.cluster import Cluster
from tests.autoscale.run import START, play
from tests.autoscale.scenarios import SCENARIOS

CONFIGS = Path(__file__).parents[2] / "configs"
COARSE_S = 60.0
"""Between two signals of a long run here: a day takes seconds."""


@pytest.fixture(scope="module")
def policy() -> ScalingPolicy:
    return load_policy(CONFIGS / "autoscaler.yaml")


def test_a_day_of_steady_load_changes_nothing(policy: ScalingPolicy) -> None:
    outcome = play(1, SCENARIOS["steady"], policy, COARSE_S)
    assert outcome.trouble == []
    assert outcome.late_turns == 0
    assert outcome.card.seconds == pytest.approx(86_400)


def default_tolerance(policy: ScalingPolicy) -> ScalingPolicy:
    """The policy with the tolerance that a layer has by default."""
    layers = {
        name: None if one is None else msgspec.structs.replace(one, tolerance=Tolerance())
        for name in LAYERS
        for one in [policy.layers.of(name)]
    }
    return msgspec.structs.replace(policy, layers=LayerPolicies(**layers))


@pytest.mark.parametrize("name", ["autoscaler", "latency-first", "cost-first", "cupus"])
@pytest.mark.parametrize("seed", [15, 24])
def test_steady_noise_changes_nothing_under_any_policy_with_the_default_tolerance(name: str, seed: int) -> None:
    """Seeds whose exit point is 2 % below the edge of the balanced policy's band; at the pace at which a trend is seen
    in few points. `python -m tests.autoscale --scenario steady` has the whole day.
    """
    policy = default_tolerance(load_policy(CONFIGS / f"{name}.yaml"))
    outcome = play(seed, dataclasses.replace(SCENARIOS["steady"], hours=1.0), policy)
    assert outcome.trouble == []
    assert outcome.card.oscillations == 0
    assert [at for at, _ in outcome.sizes if at > SCENARIOS["steady"].settled_s] == []


def test_peaks_that_recur_are_held_where_the_policy_says_so(policy: ScalingPolicy) -> None:
    """Twenty seconds of eight times the load each ten minutes."""
    spikes = dataclasses.replace(SCENARIOS["spikes"], hours=1.0)
    held = play(0, spikes, policy, 4.0)
    assert held.trouble == []
    assert held.card.oscillations <= 2, "the first shrink, and that it is taken back"
    assert held.late_turns == 0
    thrifty = play(0, spikes, load_policy(CONFIGS / "cost-first.yaml"), 4.0)
    assert thrifty.card.oscillations > 2, "hold_peaks_s is 0: it follows each of them"
    assert sum(thrifty.card.replica_hours.values()) < sum(held.card.replica_hours.values())


def test_a_days_pattern_costs_little_more_than_the_optimum(policy: ScalingPolicy) -> None:
    outcome = play(2, dataclasses.replace(SCENARIOS["daily"], hours=24), policy, COARSE_S)
    assert outcome.trouble == []
    assert 0.5 < outcome.card.cost / outcome.optimum <= 1.3
    assert outcome.card.transitions >= 4, "it follows the load"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["step", "aborts"])
def test_a_load_step_is_answered_within_three_transitions(policy: ScalingPolicy, name: str, seed: int) -> None:
    outcome = play(seed, dataclasses.replace(SCENARIOS[name], hours=0.6), policy)
    assert outcome.trouble == []
    assert outcome.reached_after is not None
    assert outcome.reached_after <= 3
    assert outcome.card.missed <= 5


def test_nothing_shrinks_on_missing_signals(policy: ScalingPolicy) -> None:
    """The load falls to a tenth while the matchers are silent; the others shrink, the matchers only afterwards."""
    scenario = dataclasses.replace(SCENARIOS["missing"], silence=0.01)
    outcome = play(0, scenario, policy, 6.0)
    assert outcome.trouble == []
    silent = [(at, sizes["matcher"]) for at, sizes in outcome.sizes if scenario.silent(at)]
    before = [sizes["matcher"] for at, sizes in outcome.sizes if not scenario.silent(at) and at < 3600]
    assert all(count >= before[-1] for _, count in silent)
    assert outcome.sizes[-1][1]["matcher"] < before[-1], "heard of again, they shrink"


def test_waking_up_is_no_reason_to_grow(policy: ScalingPolicy) -> None:
    """Up to nine tenths busy at eighty times the load, on one slice of each layer, and on time."""
    outcome = play(1, SCENARIOS["wakes"], policy, 30.0)
    assert outcome.trouble == []
    assert outcome.card.missed == 0
    assert max(sum(sizes.values()) for _, sizes in outcome.sizes) == 4


def test_a_steep_rise_is_answered_at_once_by_what_it_needs() -> None:
    """The first transition has the layers that are too small at about the size that they keep."""
    policy = load_policy(CONFIGS / "latency-first.yaml")
    outcome = play(1, dataclasses.replace(SCENARIOS["step"], hours=0.55), policy, 2.0)
    assert outcome.reached_after == 1
    rises = [sizes for at, sizes in outcome.sizes if at > 1800]
    assert rises[0]["matcher"] >= 0.7 * rises[-1]["matcher"]
    assert rises[0]["exit_point"] > START["exit_point"], "in the same transition"


@pytest.mark.parametrize("name", ["autoscaler", "latency-first"])
def test_slices_that_share_full_cores_are_not_made_more(name: str) -> None:
    """Two cores, and ten times a load that two slices carry; without knowing of cores it came to forty of them."""
    policy = load_policy(CONFIGS / f"{name}.yaml")
    outcome = play(0, dataclasses.replace(SCENARIOS["cores"], hours=0.8), policy, 4.0)
    assert outcome.trouble == []
    assert max(sum(sizes.values()) for _, sizes in outcome.sizes) <= 7


@pytest.mark.parametrize("seed", [1, 2])
def test_cores_that_clients_keep_busy_are_full_as_well(policy: ScalingPolicy, seed: int) -> None:
    """By the slices' own time these eight cores have room for five more after the step at 1,800 s, which ask for it."""
    outcome = play(seed, dataclasses.replace(SCENARIOS["clients"], hours=0.55), policy, 4.0)
    assert outcome.trouble == []
    totals = [(at, sum(sizes.values())) for at, sizes in outcome.sizes]
    most = max([4, *(total for at, total in totals if at > 300)])
    assert most <= 5, "one slice a layer, and one more before they were seen full"
    assert outcome.card.missed > 1, "it is asked for more"


@pytest.mark.parametrize("seed", range(2))
def test_where_cores_are_free_clients_are_no_reason_not_to_grow(policy: ScalingPolicy, seed: int) -> None:
    plain = dataclasses.replace(SCENARIOS["step"], hours=0.55)
    roomy = dataclasses.replace(plain, cores=64.0, clients=1.6e-3)
    outcome = play(seed, roomy, policy, 4.0)
    assert outcome.sizes == play(seed, plain, policy, 4.0).sizes
    assert outcome.card.transitions >= 2


@pytest.mark.parametrize(("name", "most"), [("stay", 2), ("churn", 4)])
def test_connection_points_are_for_those_who_connect(name: str, most: int) -> None:
    """Clients that stay get no more of them than one with room; of those who come anew each gets the share it needs."""
    policy = load_policy(CONFIGS / "latency-first.yaml")
    outcome = play(1, dataclasses.replace(SCENARIOS[name], hours=1.2), policy, 10.0)
    assert outcome.trouble == []
    assert 2 <= max(sizes["connection_point"] for _, sizes in outcome.sizes) <= most
    if name == "churn":
        assert outcome.card.missed == 0


@pytest.mark.parametrize("at_s", [208, 240])
def test_nothing_shrinks_as_the_load_rises(policy: ScalingPolicy, at_s: float) -> None:
    """One matcher would do, before and after; its wish has held for 240 s shortly after the rise."""
    scenario = dataclasses.replace(SCENARIOS["wakes"], hours=0.16, rate=lambda _, at: 100.0 if at < at_s else 1000.0)
    outcome = play(0, scenario, policy, 4.0)
    assert outcome.trouble == []
    ((shrunk_s, sizes),) = outcome.sizes
    assert sizes["matcher"] == 1
    assert shrunk_s >= at_s + 240


@pytest.mark.parametrize("name", ["skew", "slow", "full", "spikes", "growth", "steal"])
def test_limits_hold_whatever_comes(policy: ScalingPolicy, name: str) -> None:
    scenario = dataclasses.replace(SCENARIOS[name], hours=min(1.0, SCENARIOS[name].hours))
    assert play(3, scenario, policy, 10.0).trouble == []


def test_a_run_is_the_same_each_time(policy: ScalingPolicy) -> None:
    scenario = dataclasses.replace(SCENARIOS["ramp"], hours=0.2)
    assert play(7, scenario, policy, 5.0).sizes == play(7, scenario, policy, 5.0).sizes


def test_the_reckoned_cluster_does_what_it_is_to_stand_for() -> None:
    """Overloaded it is saturated, publications wait and delays grow; larger it works them off."""
    cluster = Cluster(0, SCENARIOS["step"], START)
    cluster.now_s = 1800
    for _ in range(10):
        signals = cluster.step(2.0)
    assert max(one.useful_share or 0 for one in signals.of("matcher")) > 0.9
    assert cluster.queues.waiting["matcher"] > 1000
    assert cluster.request({"matcher": 12, "exit_point": 4, "access_point": 3})
    assert not cluster.request({"matcher": 3}), "one operation at a time"
    for _ in range(60):
        signals = cluster.step(2.0)
    assert cluster.sizes["matcher"] == 12
    assert cluster.queues.waiting["matcher"] == 0
    assert not signals.transition


def test_the_command_prints_a_line_a_seed_and_fails_with_trouble() -> None:
    done = CliRunner().invoke(main, ["--seeds", "1", "--scenario", "full", "--interval", "30", "--sizes"])
    assert done.exit_code == 0, done.output
    assert "full" in done.output
    assert "matcher" in done.output
