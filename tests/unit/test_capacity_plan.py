"""`kittiwake autoscaler plan`: a load in, slices and reasons out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from actors.commands.capacity_plan import lines, plan
from actors.recording import Recorder
from autoscaler.capacity import CapacityModel
from autoscaler.costs import Load
from autoscaler.signals import LAYERS
from cluster.messages import MATCHER
from tests.unit.test_capacity import reported, sizes

CONFIGS = Path(__file__).parents[2] / "configs"


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments)


@pytest.fixture
def interest(tmp_path: Path) -> Path:
    path = tmp_path / "interest.json"
    path.write_text(
        json.dumps(
            {
                "publications_per_second": 9000,
                "matches_per_publication": 20,
                "subscriptions": 100_000,
                "bytes_per_publication": 200,
            }
        )
    )
    return path


def test_a_summary_of_interest_is_enough(interest: Path) -> None:
    done = ran("--interest", str(interest), "--policy", str(CONFIGS / "autoscaler.yaml"), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["load"] == {
        "publications_per_s": 9000,
        "subscriptions": 100_000,
        "notifications_per_publication": 20,
    }
    assert set(document["layers"]) == set(LAYERS)
    for one in document["layers"].values():
        assert one["utilization"] <= one["target"]
        assert "nothing was measured yet" in one["confidence"]
    assert document["currency"] == "EUR"
    assert document["cost_per_hour"] > 0
    assert document["capacity_per_s"] > 9000


def test_options_go_before_the_summary_and_a_recording_before_the_prior(interest: Path, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "signals")
    for second in range(1, 200):
        load = Load(200.0 + 10 * second, 200_000, 2)
        recorder.add(float(second), reported(sizes(1 + second // 100), load))
    recorder.close()
    arguments = ("--interest", str(interest), "--rate", "4000", "--subscriptions", "200000", "--notifications", "2")
    before = json.loads(ran(*arguments, "--json").stdout)
    after = json.loads(ran(*arguments, "--on", str(tmp_path / "signals"), "--json").stdout)
    assert before["layers"][MATCHER]["slices"] == 1
    assert after["layers"][MATCHER]["slices"] == 4, "this cluster is slower than the one of the prior"
    assert "199 observations at 2 sizes" in after["layers"][MATCHER]["confidence"]
    after["layers"][MATCHER]["confidence"] = "alone"
    for layer in set(LAYERS) - {MATCHER}:
        after["layers"][layer]["confidence"] = "together"
    told = [line for line in lines(after) if line.startswith("Learned")]
    assert told == [
        "Learned of connection points, access points, exit points: together.",
        "Learned of matchers: alone.",
    ]


def test_it_says_when_no_number_will_do() -> None:
    done = ran("--rate", "900000", "--subscriptions", "1000")
    assert done.exit_code == 0, done.output
    assert "none will do" in done.stdout
    assert "no number of matchers keeps to 60%" in done.stdout
    assert "Learned: nothing was measured yet" in done.stdout


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    assert "give --interest or --rate" in ran().output
    broken = tmp_path / "broken.json"
    broken.write_text('{"publications_per_second": 1}')
    done = ran("--interest", str(broken))
    assert "broken.json: interest summary" in str(done.exception)
    assert "cannot be read" in str(ran("--interest", str(tmp_path / "gone.json")).exception)


def test_each_layer_may_have_a_target_of_its_own() -> None:
    load = Load(20_000, 1_000_000, 2)
    half = CapacityModel().plan(load, {layer: 0.3 if layer == MATCHER else 0.6 for layer in LAYERS})
    whole = CapacityModel().plan(load, 0.6)
    assert (half[MATCHER].count or 0) > (whole[MATCHER].count or 0)
