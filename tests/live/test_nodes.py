"""A cluster on a Ray cluster of three nodes that somebody else runs: it spreads over them, and one of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.launch import prepare_environment
from cluster.config import ClientPort, Config, Layers, RaySettings
from tests.live.lasting import Lasting, lasting
from tests.live.processes import PATIENT, lives, parent, wait_for
from tests.live.test_recovery import back
from tests.live.test_scaling import WAVES, scale, slots
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ONE = {"matchers": 1, "exit_points": 1, "access_points": 1}
TWO = {"matchers": 2, "exit_points": 2, "access_points": 2}


@pytest.fixture(scope="module")
def raylets() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine."""
    prepare_environment()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def live(raylets: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    config = Config(
        name="nodes",
        data_directory=str(tmp_path_factory.mktemp("nodes")),
        client_port=ClientPort(port=0),
        layers=Layers(connection_points=2),
        transitions=WAVES,
        timing=PATIENT,
        ray=RaySettings(address=raylets.address, lane_host="127.0.0.1", cpus_per_role=0.1),
    )
    with lasting(config) as made:
        yield made


def raylet_of(node: Any) -> int:
    """Return the pid of a node's raylet."""
    (process,) = node.all_processes["raylet"]
    return int(process.process.pid)


def test_slices_are_spread_over_the_nodes_and_leave_nothing_there(live: Lasting) -> None:
    broker = live.broker

    async def story() -> list[int]:
        async with traffic(broker):
            await scale(broker, **TWO)
            members = (await broker.status())["members"]
            assert len(members) == 8
            assert len({parent(row["pid"]) for row in members}) == 3, "the slices are spread over the nodes"
            await scale(broker, replace=[("matcher", 1)])
            await scale(broker, **ONE)
            for layer in ("matcher", "exit_point", "access_point"):
                assert len(await slots(broker, layer)) == 1
        left = {row["pid"] for row in (await broker.status())["members"]}
        return [row["pid"] for row in members if row["pid"] not in left]

    pids = live.run(story())
    wait_for(lambda: not any(map(lives, pids)), "processes were left behind on the nodes")


def test_a_node_that_is_lost_is_made_up_for_on_the_others(live: Lasting, raylets: Any) -> None:
    broker = live.broker

    async def story() -> None:
        await scale(broker, **TWO)
        rows = (await broker.status())["members"]
        doors = {parent(row["pid"]) for row in rows if row["layer"] == "connection_point" and row["slot"] == 0}
        lost = next(
            node for node in raylets.list_all_nodes() if node is not raylets.head_node and raylet_of(node) not in doors
        )
        lost_pid = raylet_of(lost)
        gone = [row for row in rows if parent(row["pid"]) == lost_pid]
        assert gone, "nothing runs on a node"
        others = any(row["layer"] == "connection_point" for row in gone)
        async with traffic(broker, publish_at=1 if others else 0):
            await asyncio.to_thread(raylets.remove_node, lost, allow_graceful=False)
            for row in gone:
                await back(broker, row["layer"], row["slot"], row)
        for row in (await broker.status())["members"]:  # `back` has seen a coordinator
            assert parent(row["pid"]) != lost_pid

    live.run(story())
