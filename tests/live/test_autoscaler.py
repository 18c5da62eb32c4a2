"""The autoscaler on real Ray clusters: layers follow the load out and in, and nothing is lost for it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.launch import Broker, launch, prepare_environment
from actors.recording import Recording
from cluster import connect
from cluster.config import ClientPort, Config, Metrics, Timing
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIGS = Path(__file__).parents[2] / "configs"
LOAD = {"utilization", "slo delay", "slo subscribing", "queue"}

POLICY = """\
apiVersion: kittiwake/v1
kind: ScalingPolicy
metadata: {name: lively}
evaluate_interval_s: 0.5
metrics_interval_s: 0.5
look_back_period_s: 1
layers:
  matcher:          # by what does not depend on the machine
    max_replicas: 2
    triggers: [{type: memory, metric: subscriptions, target_per_replica: 100}]
    upscale_delay_s: 0
    downscale_delay_s: 1
    behavior: {scale_up: {policies: []}, scale_down: {stabilization_window_s: 1, policies: []}}
guards: {warmup_s: 1, min_gain: 0}
"""


async def until_matchers(broker: Broker, count: int) -> dict[str, Any]:
    """Return what explain says once there are so many and nothing is underway."""
    async with asyncio.timeout(90):
        while True:
            found = await broker.admin.autoscaler("explain", count=100)
            if found["observed"].get("matcher") == count and not found["requested"]:
                return found
            await asyncio.sleep(0.1)


def test_it_follows_the_load_and_nothing_is_lost(tmp_path: Path) -> None:
    policy = tmp_path / "lively.yaml"
    policy.write_text(POLICY)
    config = Config(
        name="lively",
        data_directory=str(tmp_path / "data"),
        client_port=ClientPort(port=0),
        timing=Timing(role_lost_ms=10_000),
        metrics=Metrics(port=0),
        autoscaler=str(policy),
    )

    async def story() -> dict[str, Any]:
        async with launch(config) as broker:
            await until_matchers(broker, 1)
            async with traffic(broker), connect(broker.endpoints[0]) as client:
                group = await client.subscribe_many([f"nothing == {number}" for number in range(120)])
                await until_matchers(broker, 2)
                await group.close()
                await until_matchers(broker, 1)
            return await broker.admin.autoscaler("explain", count=100)

    found = asyncio.run(story())
    done = [one for one in found["decisions"] if one["outcome"] == "done"]
    assert [one["decision"]["targets"] for one in done] == [{"matcher": 2}, {"matcher": 1}]
    recorded = [signals for _, signals in Recording(tmp_path / "data" / "signals")]
    assert {signals.sizes["matcher"] for signals in recorded} == {1, 2}
    assert any(signals.delay is not None and sum(signals.delay) for signals in recorded)


def test_the_benchmark_small(tmp_path: Path) -> None:
    plot = tmp_path / "cupus.png"
    command = [
        *(sys.executable, "-m", "bench.autoscale", "--pattern", "cupus", "--seconds", "14", "--quicken", "20"),
        *("--subscriptions", "200", "--clients", "2", "--plot", str(plot), "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["lost"], run["doubled"], run["out_of_order"], run["oracle_differences"]) == (0, 0, 0, 0)
    assert (run["policy"], run["published"] > 5000, run["notifications"] > 5000) == ("balanced", True, True)
    assert plot.stat().st_size > 10_000


def test_the_ready_cluster_and_policy_follow_a_load_that_rises_and_falls_tenfold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """configs/cluster.yaml with configs/autoscaler.yaml on a Ray cluster that somebody else runs, as `address: auto`
    finds it; by the benchmark, which overrides ports and data directory, quickens the policy, and compares all that was
    delivered with what brute force says.
    """
    prepare_environment()
    from ray.cluster_utils import Cluster

    plot = tmp_path / "tenfold.png"
    command = [
        *(sys.executable, "-m", "bench.autoscale", "--pattern", "tenfold", "--config", str(CONFIGS / "cluster.yaml")),
        *("--on-ray", "--seconds", "15", "--peak", "8000", "--quicken", "60", "--subscriptions", "2000"),
        *("--clients", "4", "--after", "15", "--plot", str(plot), "--json"),
    ]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 24, "include_dashboard": False})
    try:
        environment = os.environ | {"RAY_ADDRESS": cluster.address}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    finally:
        cluster.shutdown()
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert (run["lost"], run["doubled"], run["out_of_order"], run["oracle_differences"]) == (0, 0, 0, 0)
    assert (run["policy"], run["config"], run["not_done"]) == ("balanced", "cluster.yaml", 0)
    sizes = [found for _, found in run["sizes"]]
    firsts: dict[str, int] = {}
    for change in run["changes"]:
        for layer, one in change["layers"].items():
            firsts.setdefault(layer, one["from"])
    configured = {"connection_point": 2, "access_point": 2, "matcher": 3, "exit_point": 2}
    assert firsts.items() <= configured.items(), "it began as configured"
    steps = [change for one in run["changes"] for change in one["layers"].values()]
    grown = [one for one in steps if one["to"] > one["from"]]
    assert grown, "it grew"
    assert all(set(one["triggers"]) & LOAD for one in grown), f"for load, {grown}"
    assert sum(sizes[-1].values()) < max(sum(one.values()) for one in sizes), "and shrank again"
    assert all(one["exit_point"] >= -(-one["matcher"] // 4) for one in sizes)
    assert plot.stat().st_size > 10_000
