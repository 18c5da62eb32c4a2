"""The autoscaler on real Ray clusters: layers follow the load out and in, and nothing is lost for it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.launch import Broker, launch, prepare_environment
from actors.recording import Recording
from cluster import connect
from cluster.config import ClientPort, Config, Metrics
from tests.live.processes import PATIENCE_S, PATIENT, printed
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIGS = Path(__file__).parents[2] / "configs"
LOAD = {"utilization", "slo delay", "slo subscribing", "queue"}
CONFIGURED = {"connection_point": 2, "access_point": 2, "matcher": 3, "exit_point": 2}
LIGHTER = 40
"""So much that a fast machine grows as well; who has nothing to do is idle on any."""

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
    async with asyncio.timeout(PATIENCE_S):
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
        timing=PATIENT,
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


def lightened(directory: Path) -> Path:
    """Write configs/cluster.yaml with its policy, for a load that any machine can take; return the cluster's path.

    A slice counts as busy at a LIGHTER-th of what the policy says, and no layer grows by more than one. Cores that
    other work keeps busy, the load's own included, hold nothing back.
    """
    cluster = yaml.safe_load((CONFIGS / "cluster.yaml").read_text(encoding="utf-8"))
    policy = yaml.safe_load((CONFIGS / cluster["autoscaler"]).read_text(encoding="utf-8"))
    for name, layer in policy["layers"].items():
        layer["max_replicas"] = CONFIGURED[name] + 1
        for trigger in layer["triggers"]:
            if trigger["type"] == "utilization":
                trigger |= {key: trigger[key] / LIGHTER for key in ("target", "min", "max")}
    policy["guards"]["require_placeable"] = False
    cluster["timing"]["role_lost_ms"] = PATIENT.role_lost_ms
    (directory / cluster["autoscaler"]).write_text(yaml.safe_dump(policy), encoding="utf-8")
    path = directory / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster), encoding="utf-8")
    return path


def test_the_ready_cluster_and_policy_follow_a_load_that_rises_and_falls_tenfold(tmp_path: Path) -> None:
    """configs/cluster.yaml with configs/autoscaler.yaml, lightened, on a Ray cluster that somebody else runs, as
    `address: auto` finds it; by the benchmark, which overrides ports and data directory, quickens the policy, and
    compares all that was delivered with what brute force says.
    """
    prepare_environment()
    from ray.cluster_utils import Cluster

    plot = tmp_path / "tenfold.png"
    command = [
        *(sys.executable, "-m", "bench.autoscale", "--pattern", "tenfold", "--config", str(lightened(tmp_path))),
        *("--on-ray", "--seconds", "15", "--peak", "1500", "--quicken", "60", "--subscriptions", "1000"),
        *("--clients", "4", "--after", "120", "--until-shrunk", "--plot", str(plot), "--json"),
    ]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 24, "include_dashboard": False})
    try:
        said = printed(command, environment=os.environ | {"RAY_ADDRESS": cluster.address})
    finally:
        cluster.shutdown()
    (run,) = json.loads(said.splitlines()[-1])["runs"]
    assert (run["lost"], run["doubled"], run["out_of_order"], run["oracle_differences"]) == (0, 0, 0, 0)
    assert (run["policy"], run["config"], run["not_done"]) == ("balanced", "cluster.yaml", 0)
    assert min(run["published"], run["notifications"]) > 5000
    sizes = [found for _, found in run["sizes"]]
    firsts: dict[str, int] = {}
    for change in run["changes"]:
        for layer, one in change["layers"].items():
            firsts.setdefault(layer, one["from"])
    assert firsts.items() <= CONFIGURED.items(), "it began as configured"
    steps = [change for one in run["changes"] for change in one["layers"].values()]
    grown = [one for one in steps if one["to"] > one["from"]]
    assert grown, "it grew"
    assert all(set(one["triggers"]) & LOAD for one in grown), f"for load, {grown}"
    assert sum(sizes[-1].values()) < max(sum(one.values()) for one in sizes), "and shrank again"
    assert all(one["exit_point"] >= -(-one["matcher"] // 4) for one in sizes)
    assert plot.stat().st_size > 10_000
