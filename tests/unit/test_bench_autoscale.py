"""The benchmark of the autoscaler: its patterns, its figures, its command line; without a cluster."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autoscaler.policy_file import load_policy
from bench import autoscale, autoscale_pattern, autoscale_plot, autoscale_report, autoscale_run
from bench.autoscale_run import Material, Run
from bench.scaling_oracle import Arrived, Expected
from cluster.config import Layers, load_config

LAYERS = ("connection_point", "access_point", "matcher", "exit_point")


def test_publications_are_due_as_the_rate_says() -> None:
    due = autoscale_pattern.due_times([(0, 10), (10, 10), (10, 100), (20, 100), (20, 0), (30, 0)])
    assert len(due) == 1100
    assert (np.diff(due) > 0).all()
    counts, _ = np.histogram(due, [0, 10, 20, 30])
    assert counts.tolist() == [100, 1000, 0]


def test_a_rate_that_rises_evenly_is_followed_within_a_piece() -> None:
    due = autoscale_pattern.due_times([(0, 0), (10, 100)])
    assert len(due) == 500
    counts, _ = np.histogram(due, [0, 5, 10])
    assert counts.tolist() == pytest.approx([125, 375], abs=1)


def test_a_day_goes_from_night_to_peak_tenfold() -> None:
    rates = [rate for _, rate in autoscale_pattern.day(96, 1000)]
    assert (max(rates), min(rates)) == (pytest.approx(1000), pytest.approx(100, rel=0.01))
    assert rates.index(max(rates)) == 32  # at 8 o'clock


def test_cupus_is_seven_rates() -> None:
    points = autoscale_pattern.cupus(70, 2)
    assert points[:3] == [(0, 190), (10, 190), (10, 584)]
    assert points[-1] == (70, 190)


@pytest.mark.parametrize("name", ["autoscaler.yaml", "latency-first.yaml", "cost-first.yaml", "cupus.yaml"])
@pytest.mark.parametrize("times", [1, 10, 100])
def test_every_policy_can_be_quickened(name: str, times: float) -> None:
    before = load_policy(autoscale.CONFIGS / name)
    after = autoscale_run.quickened(before, times)
    one, other = before.layers.of("matcher"), after.layers.of("matcher")
    assert one is not None
    assert other is not None
    assert other.downscale_delay_s == pytest.approx(one.downscale_delay_s / times)
    assert other.max_replicas == one.max_replicas
    assert after.evaluate_interval_s >= after.metrics_interval_s >= 0.25


def sizes(**counts: int) -> dict[str, int]:
    return dict.fromkeys(LAYERS, 1) | counts


def a_run(**parts: Any) -> Run:
    """Ten publications, one a second from 100 on, to one client; 20 ms each but the fourth, which took 0.5 s."""
    due = 100 + np.arange(10.0)
    late = np.full(10, 0.02)
    late[3] = 0.5
    rows = Arrived(np.arange(10), np.zeros(10, np.int64), due + late, np.ones(10, np.int64), np.zeros(10, np.int64))
    made: dict[str, Any] = {
        "policy": load_policy(autoscale.CONFIGS / "autoscaler.yaml"),
        "begin": 100.0,
        "end": 110.0,
        "due": due,
        "handed": due,
        "logs": [rows],
        "sizes": [(100.0, sizes()), (104.0, sizes(matcher=2)), (108.0, sizes(matcher=1))],
        "operations": [{"state": "done"}, {"state": "done"}, {"state": "aborted"}],
        "explained": {},
        "trouble": [],
    }
    return Run(**made | parts)


OPTIONS = argparse.Namespace(
    pattern="day",
    config=None,
    quicken=1.0,
    workload="opensense",
    subscriptions=1,
    target_ms=100.0,
    clients=1,
    publishers=1,
)
MATERIAL = Material([{"a": 1}], ["a > 0"], Expected(1, np.array([0, 1]), np.array([0])))


def test_the_figures_of_a_run() -> None:
    found = autoscale_report.figures_of(OPTIONS, MATERIAL, a_run())
    assert (found["lost"], found["doubled"], found["out_of_order"], found["oracle_differences"]) == (0, 0, 0, 0)
    assert (found["transitions"], found["not_done"], found["oscillations"]) == (2, 1, 1)
    assert found["seconds_missed"] == 1
    assert found["late_share"] == 0.1
    assert found["first_reaction_s"] == 4
    assert found["delay_after_first_reaction_ms"]["max"] == pytest.approx(20, abs=0.01)
    assert found["replica_hours"]["matcher"] == pytest.approx(14 / 3600, abs=1e-4)
    assert found["cost"] == pytest.approx((14 * 0.04 + 30 * 0.02) / 3600, abs=1e-5)
    assert found["sizes"][1] == [4.0, sizes(matcher=2)]
    assert not autoscale_report.failed(found)


def test_what_is_lost_fails_it() -> None:
    run = a_run(due=100 + np.arange(11.0), handed=100 + np.arange(11.0))
    found = autoscale_report.figures_of(OPTIONS, MATERIAL, run)
    assert found["lost"] == 1
    assert autoscale_report.failed(found)


def test_the_table_and_the_plot(tmp_path: Path) -> None:
    run = a_run()
    found = autoscale_report.figures_of(OPTIONS, MATERIAL, run)
    head, line = autoscale_report.lines([found])
    assert head.split()[0] == "POLICY"
    assert line.split()[0] == "balanced"
    path = tmp_path / "plot.png"
    autoscale_plot.draw([run, a_run()], autoscale_pattern.day(10, 10), 100, "a day", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_sizes_follow_the_operations() -> None:
    operations = [
        {"state": "done", "started_ms": 5000, "duration_ms": 1500, "wanted": {"matcher": [0, 1]}},
        {"state": "aborted", "started_ms": 9000, "duration_ms": 100, "wanted": {"matcher": [0, 1, 2]}},
    ]
    assert autoscale_run.sizes_over_time(1.0, {"matcher": 1}, operations) == [
        (1.0, {"matcher": 1}),
        (6.5, {"matcher": 2}),
    ]


class Changing:
    """An admin of a cluster that grows, is still shrinking when it is asked again, and then has shrunk."""

    def __init__(self) -> None:
        grown = {"state": "done", "started_ms": 5000, "duration_ms": 1500, "wanted": {"matcher": [0, 1]}}
        back = {"state": "running", "started_ms": 9000, "duration_ms": 0, "wanted": {"matcher": [0]}}
        self._answers = [[grown], [grown, back], [grown, back | {"state": "done", "duration_ms": 500}]]
        self.asked = 0

    async def transitions(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self._answers[self.asked - 1]


def test_it_is_watched_until_it_has_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale_run, "LOOK_S", 0)
    admin = Changing()
    watched = options("--after", "600", "--until-shrunk")
    asyncio.run(autoscale_run.watch(admin, watched, 1.0, {"matcher": 1}))  # type: ignore[arg-type]
    assert admin.asked == 3
    asyncio.run(autoscale_run.watch(admin, options("--after", "0"), 1.0, {"matcher": 1}))  # type: ignore[arg-type]
    assert admin.asked == 3, "only if that is asked for"


def test_the_command_line_names_its_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        autoscale.main(["--pattern", "week"])
    assert "cupus" in capsys.readouterr().err


def test_tenfold_is_a_tenth_all_and_a_tenth_again() -> None:
    due = autoscale_pattern.due_times(autoscale_pattern.tenfold(30, 100))
    counts, _ = np.histogram(due, [0, 10, 20, 30])
    assert counts.tolist() == [100, 1000, 100]


def options(*arguments: str) -> argparse.Namespace:
    return autoscale._parser().parse_args(arguments)


def test_a_configuration_is_run_as_it_is_but_for_ports_and_places(tmp_path: Path) -> None:
    given = ("--config", str(autoscale.CONFIGS / "cluster.yaml"), "--subscriptions", "50000", "--clients", "2")
    ready = load_config(autoscale.CONFIGS / "cluster.yaml")
    own = autoscale_run.configuration(options(*given), str(tmp_path), tmp_path / "policy.json")
    assert (own.layers, own.flow, own.timing, own.output) == (ready.layers, ready.flow, ready.timing, ready.output)
    assert (own.client_port.port, own.metrics.port, own.directory) == (0, 0, tmp_path)
    assert own.ray == msgspec.structs.replace(ready.ray, address=None)
    assert own.client_limits.subscriptions == 25_000
    on_ray = autoscale_run.configuration(options(*given, "--on-ray"), str(tmp_path), tmp_path / "policy.json")
    assert on_ray.ray == ready.ray
    without = autoscale_run.configuration(options(), str(tmp_path), tmp_path / "policy.json")
    assert (without.layers, without.metrics.enabled) == (Layers(), False)


def test_the_configurations_policy_is_run_unless_another_is_named() -> None:
    given = ("--config", str(autoscale.CONFIGS / "cluster.yaml"), "--pattern", "day")
    assert autoscale._policies(options(*given)) == [autoscale.CONFIGS / "autoscaler.yaml"]
    assert len(autoscale._policies(options("--pattern", "day"))) == 4
    with pytest.raises(SystemExit):
        autoscale.main(["--on-ray"])


def test_the_first_reaction_is_the_first_growth_and_what_asked_for_it_is_told() -> None:
    """A cluster that begins too large shrinks first; that is no reaction to the load."""
    run = a_run(sizes=[(100.0, sizes(matcher=3)), (102.0, sizes()), (106.0, sizes(matcher=2))])
    assert autoscale_report.first_reaction_s(run) == 6
    assert autoscale_report.first_reaction_s(a_run(sizes=[(100.0, sizes(matcher=3)), (102.0, sizes())])) == 0
    wishes = [
        {"trigger": "utilization", "wish": 1.5},
        {"trigger": "queue", "wish": 2},
        {"trigger": "slo", "wish": None},
    ]
    decision = {
        "rate": 9.0,
        "targets": {"matcher": 2},
        "layers": [
            {"layer": "matcher", "size": 1, "proposals": wishes},
            {"layer": "exit_point", "size": 1, "proposals": []},
        ],
    }
    entries = [
        {"outcome": "done", "operation": 7, "decision": decision},
        {"outcome": "aborted", "operation": 8, "decision": decision},
    ]
    assert autoscale_report.changes(a_run(explained={"decisions": entries})) == [
        {"operation": 7, "rate": 9.0, "layers": {"matcher": {"from": 1, "to": 2, "triggers": ["queue"]}}}
    ]
    found = autoscale_report.figures_of(OPTIONS, MATERIAL, a_run())
    assert found["late_share_after_first_reaction"] == 0
