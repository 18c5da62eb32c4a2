"""Policies on recorded signals: the recording of a reckoned cluster, whose truth is known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from actors.commands.policy_replay import replay as command
from actors.recording import Recorder
from autoscaler.policy import ScalingPolicy
from autoscaler.policy_file import load_policy
from autoscaler.replay import Fit, fit, recorded, replay
from autoscaler.signals import LAYERS, NodeSignals, Signals
from tests.autoscale.run import play
from tests.autoscale.scenarios import SCENARIOS

CONFIGS = Path(__file__).parents[2] / "configs"
INTERVAL_S = 5.0


@pytest.fixture(scope="module")
def policy() -> ScalingPolicy:
    return load_policy(CONFIGS / "autoscaler.yaml")


@pytest.fixture(scope="module")
def recording(policy: ScalingPolicy) -> list[tuple[float, Signals]]:
    """An hour of a load that rises tenfold, under the balanced policy."""
    kept: list[tuple[float, Signals]] = []
    scenario = dataclasses.replace(SCENARIOS["ramp"], hours=1.2)
    play(4, scenario, policy, INTERVAL_S, lambda at_s, signals: kept.append((at_s, signals)))
    return kept


@pytest.fixture(scope="module")
def plant(recording: list[tuple[float, Signals]]) -> Fit:
    found = fit(recording)
    assert found is not None
    return found


def test_the_same_policy_does_about_the_same(
    policy: ScalingPolicy, recording: list[tuple[float, Signals]], plant: Fit
) -> None:
    real, run = recorded(recording, plant, policy), replay(policy, recording, plant, policy)
    assert run.measured_s + run.predicted_s == real.measured_s == pytest.approx(len(recording) * INTERVAL_S)
    assert run.measured_s > 0.4 * real.measured_s, "much of the time it has the same sizes"
    assert run.card.cost == pytest.approx(real.card.cost, rel=0.1)
    assert abs(run.card.transitions - real.card.transitions) <= 3
    assert run.card.missed <= real.card.missed + 3
    assert run.trace.points[-1].sizes["matcher"] == pytest.approx(real.trace.points[-1].sizes["matcher"], abs=1)


def test_a_policy_that_cannot_grow_misses_the_service_level(
    policy: ScalingPolicy, recording: list[tuple[float, Signals]], plant: Fit
) -> None:
    layers = {
        layer: msgspec.structs.replace(one, max_replicas=2)
        for layer in LAYERS
        if (one := policy.layers.of(layer)) is not None
    }
    small = msgspec.structs.replace(policy, layers=msgspec.structs.replace(policy.layers, **layers))
    run, real = replay(small, recording, plant, policy), recorded(recording, plant, policy)
    assert run.card.missed > real.card.missed + 10
    assert run.card.cost < real.card.cost
    assert max(point.sizes["matcher"] for point in run.trace.points) == 2
    late = [point.p99_ms for point in run.trace.points if point.predicted and point.p99_ms is not None]
    assert max(late) > 1000


def test_what_is_predicted_agrees_with_the_truth(policy: ScalingPolicy) -> None:
    """The load of a recording with too many slices, replayed: sizes as the true cluster comes to have them."""
    lavish = msgspec.structs.replace(
        policy,
        layers=msgspec.structs.replace(
            policy.layers,
            matcher=msgspec.structs.replace(policy.layers.matcher, min_replicas=8),  # type: ignore[type-var]
        ),
    )
    kept: list[tuple[float, Signals]] = []
    scenario = dataclasses.replace(SCENARIOS["ramp"], hours=0.6)
    play(5, scenario, lavish, INTERVAL_S, lambda at_s, signals: kept.append((at_s, signals)))
    plant = fit(kept)
    assert plant is not None
    run = replay(policy, kept, plant, policy)
    truth = play(5, scenario, policy, INTERVAL_S)
    assert run.predicted_s > 0.5 * (run.measured_s + run.predicted_s)
    # Never seen at fewer than eight matchers but for the first seconds, the model is off by some: within two of them.
    ends = run.trace.points[-1].sizes["matcher"], truth.sizes[-1][1]["matcher"]
    assert abs(ends[0] - ends[1]) <= 2, ends
    assert run.card.cost == pytest.approx(truth.card.cost, rel=0.35)


def test_missing_signals_stay_missing(policy: ScalingPolicy) -> None:
    kept: list[tuple[float, Signals]] = []
    scenario = dataclasses.replace(SCENARIOS["missing"], silence=0.01, hours=1.6)
    play(6, scenario, policy, 6.0, lambda at_s, signals: kept.append((at_s, signals)))
    plant = fit(kept)
    assert plant is not None
    run = replay(policy, kept, plant, policy)
    first = kept[0][0]
    counts = [point.sizes["matcher"] for point in run.trace.points if 3600 - 54 < point.at_s - first < 5400 - 12]
    assert counts == sorted(counts), "it never shrinks while nothing is heard of the matchers"


def test_nothing_recorded_is_said(policy: ScalingPolicy) -> None:
    assert fit([]) is None


@pytest.fixture(scope="module")
def folder(recording: list[tuple[float, Signals]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signals")
    recorder = Recorder(path)
    for at_s, signals in recording[::2]:
        recorder.add(at_s, signals)
    recorder.close()
    return path


def test_the_command_shows_policies_side_by_side(folder: Path, tmp_path: Path) -> None:
    plot = tmp_path / "replay.png"
    one, other = str(CONFIGS / "autoscaler.yaml"), str(CONFIGS / "cost-first.yaml")
    done = CliRunner().invoke(command, [one, other, "--on", str(folder), "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    for text in ("as recorded", "balanced", "cost-first", "oscillations", "minutes missed: delay", "replica hours"):
        assert text in done.stdout
    assert "judged by the objectives and prices of balanced" in done.stdout
    assert "of the time predicted" in done.stdout
    assert "from a capacity model fitted to the recording, not from a cluster" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_as_json(folder: Path) -> None:
    path = str(CONFIGS / "autoscaler.yaml")
    done = CliRunner().invoke(command, [path, path, "--on", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [run["name"] for run in document["runs"]] == ["as recorded", "balanced", "balanced (autoscaler.yaml)"]
    first, second = document["runs"][1:]
    assert {**first, "name": ""} == {**second, "name": ""}, "the same policy twice comes to the same"
    assert document["recording"]["intervals"] > 100
    assert document["model"]["sizes"]


def test_the_command_names_what_is_wrong(tmp_path: Path, folder: Path) -> None:
    path = str(CONFIGS / "autoscaler.yaml")
    done = CliRunner().invoke(command, [path, "--on", str(tmp_path)])
    assert done.exit_code != 0
    assert "no Parquet file in it" in str(done.exception)
    done = CliRunner().invoke(command, [path, "--on", str(folder), "--plot", str(tmp_path / "x.nothing")])
    assert done.exit_code == 2
    assert "nothing" in done.output


def test_full_cores_hold_a_replayed_policy_by_what_others_take_of_them(
    policy: ScalingPolicy, recording: list[tuple[float, Signals]], plant: Fit
) -> None:
    """The recorded cluster grows tenfold on a machine that clients fill but for a core, and so could do no better."""

    def beside(signals: Signals, others: float) -> Signals:
        slices = sum(one.useful_share or 0.0 for one in signals.slices)
        node = NodeSignals(host="10.0.0.1", cores=64.0, busy=min(64.0, slices + others), slices=slices)
        return msgspec.structs.replace(signals, nodes=(node,))

    def most(others: float) -> int:
        told = [(at_s, beside(signals, others)) for at_s, signals in recording]
        run = replay(policy, told, plant, policy)
        return max(sum(point.sizes.values()) for point in run.trace.points)

    assert most(10.0) == max(sum(signals.sizes.values()) for _, signals in recording)
    assert most(56.0) <= 6, "5 slices at first, busy for about a core and a half"
