"""The benchmarks of overload, slow subscribers, herds and writing, small: they end and lose nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.live.processes import printed

pytestmark = pytest.mark.live


def figures_of(name: str, *arguments: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(printed([sys.executable, "-m", f"bench.{name}", *arguments, "--json"]))
    assert figures["lost_roles"] == 0
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    return figures


def test_overload_ends_and_everything_acknowledged_is_delivered() -> None:
    figures = figures_of(
        "overload", "--seconds", "2", "--calibrate", "2", "--calm", "1", "--after", "2", "--subscriptions", "200"
    )
    assert (figures["out_of_order"], figures["oracle_differences"], figures["unacknowledged"]) == (0, 0, 0)
    assert figures["acknowledged"] == sum(phase["offered"] for phase in figures["phases"].values()) + figures["warm_up"]
    assert figures["notifications"] > 0
    assert set(figures["bars"]) == {"goodput", "rss", "normal"}


def test_whom_slow_subscribers_cost_something_is_told() -> None:
    figures = figures_of(
        "slow", "--clients", "12", "--rate", "300", "--seconds", "3", "--rounds", "1",
        "--subscriptions", "500", "--window", "16", "--queue", "50",
    )  # fmt: skip
    assert (figures["out_of_order"], figures["oracle_differences"], figures["untold"]) == (0, 0, 0)
    assert figures["dropped"]["drop_oldest"] > 0
    assert figures["acknowledged"] > 0


def test_a_small_herd_comes_back_whole() -> None:
    figures = figures_of("herd", "--clients", "60", "--rounds", "2")
    assert (figures["not_back"], figures["sessions"]) == (0, 60)
    assert figures["back_s"]["max"] is not None


def test_what_writing_costs_a_running_exit_point_is_measured() -> None:
    command = [sys.executable, "-m", "bench.spark_exit_point", "--rate", "500", "--seconds", "1", "--warm-up-s", "0.5"]
    more = ["--stored-rate", "200", "--stored-s", "1"]
    figures = json.loads(printed([*command, *more]).splitlines()[-1])
    assert (figures["rows"], figures["lost"], figures["doubled"]) == (250 + 500 + 200, 0, 0)
    assert 0 < figures["stored_ack_ms"]["p50"] <= figures["stored_ack_ms"]["p99"] <= figures["stored_ack_ms"]["max"]
    assert set(figures["exit_point_cpu_share"]) == {"off", "on"}
