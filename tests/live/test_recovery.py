"""Roles that are killed on a real Ray cluster, while publishers and subscribers go on: another takes the slot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.launch import Broker, launch
from bench.process import free_ports
from cluster.config import ClientPort, Config, Layers, RaySettings
from cluster.errors import KittiwakeError
from tests.live.processes import Up, parent
from tests.live.test_cluster import lives
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TWO = Layers(connection_points=2, access_points=2, matchers=2, exit_points=2)


def configuration(directory: Path) -> Config:
    return Config(name="recovery", data_directory=str(directory), client_port=ClientPort(port=0), layers=TWO)


async def member(broker: Broker, layer: str, slot: int) -> dict[str, Any]:
    """Return the row of a slice."""
    members = (await broker.status())["members"]
    return next(row for row in members if (row["layer"], row["slot"]) == (layer, slot))


async def back(broker: Broker, layer: str, slot: int, former: dict[str, Any]) -> None:
    """Wait until another incarnation of the slot serves."""
    async with asyncio.timeout(90):
        while True:
            try:
                status = await broker.status()
            except KittiwakeError:
                await asyncio.sleep(0.1)  # the coordinator may have been there as well, and is started anew
                continue
            row = next(row for row in status["members"] if (row["layer"], row["slot"]) == (layer, slot))
            if status["state"] == "serving" and row["state"] == "serving" and row["pid"] != former["pid"]:
                assert row["incarnation"] > former["incarnation"]
                return
            await asyncio.sleep(0.02)


async def strike(broker: Broker, layer: str, slot: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a slice, and wait until another incarnation serves."""
    former = await member(broker, layer, slot)
    os.kill(former["pid"], number)
    await back(broker, layer, slot, former)
    assert not lives(former["pid"]), "of a slot two processes are alive"


def raylet_of(node: Any) -> int:
    """Return the pid of a node's raylet."""
    (process,) = node.all_processes["raylet"]
    return int(process.process.pid)


def test_any_role_may_die(tmp_path: Path) -> None:
    async def story() -> None:
        async with launch(configuration(tmp_path)) as broker:
            async with traffic(broker) as made:
                for layer in ("matcher", "access_point", "exit_point"):
                    for slot in (0, 1):
                        trips = made.round_trips
                        await strike(broker, layer, slot)
                        async with asyncio.timeout(30):
                            while made.round_trips < trips + 3:
                                await asyncio.sleep(0.02)
            async with traffic(broker, publish_at=1):
                await strike(broker, "connection_point", 1)
            status = await broker.status()
            assert status["recovered"] == 7
            async with traffic(broker):  # the connection point is where it was
                operation = await broker.admin.scale(matchers=3, timeout_s=60)
                assert operation["state"] == "done"

    asyncio.run(story())


def test_a_stopped_process_is_replaced_and_changes_nothing_any_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with launch(configuration(tmp_path)) as broker, traffic(broker):
            for layer in ("exit_point", "access_point", "matcher"):
                await strike(broker, layer, 1, signal.SIGSTOP)

    asyncio.run(story())


def test_a_node_that_is_lost_is_made_up_for_on_the_others(raylets: Any, tmp_path: Path) -> None:
    config = Config(
        name="node-loss",
        data_directory=str(tmp_path),
        client_port=ClientPort(port=0),
        layers=TWO,
        ray=RaySettings(address=raylets.address, lane_host="127.0.0.1", cpus_per_role=0.1),
    )

    async def story() -> None:
        async with launch(config) as broker:
            rows = (await broker.status())["members"]
            doors = {parent(row["pid"]) for row in rows if row["layer"] == "connection_point" and row["slot"] == 0}
            lost = next(
                node
                for node in raylets.list_all_nodes()
                if node is not raylets.head_node and raylet_of(node) not in doors
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

    asyncio.run(story())


def test_a_cluster_that_was_killed_comes_back_with_its_view(tmp_path: Path) -> None:
    config = configuration(tmp_path)

    async def first() -> int:
        async with launch(config) as broker:
            assert (await broker.admin.scale(matchers=3, timeout_s=60))["state"] == "done"
            for row in (await broker.status())["members"]:
                os.kill(row["pid"], signal.SIGKILL)
            return int((await broker.status())["epoch"])

    async def second(epoch: int) -> None:
        async with launch(config) as broker:
            status = await broker.status()
            assert status["epoch"] > epoch
            assert sum(row["layer"] == "matcher" for row in status["members"]) == 3
            async with traffic(broker):
                await asyncio.sleep(0.5)

    asyncio.run(second(asyncio.run(first())))


def test_everything_is_killed_with_ray_and_up_goes_on(tmp_path: Path) -> None:
    def begin() -> Up:
        layers = {"connection_points": 1, "access_points": 1, "matchers": 2, "exit_points": 1}
        return Up(tmp_path, name="power", layers=layers, client_port={"port": port})

    port = free_ports(1)
    first = begin()
    second = None
    try:
        first.start()
        _, before = first.status()
        assert first.process is not None
        for pid in (first.process.pid, *first.family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first.process.wait()
        first.assert_gone()
        second = begin().start()
        code, after = second.status()
        assert code == 0
        assert after["epoch"] > before["epoch"]
        assert [row["incarnation"] for row in after["members"]] > [row["incarnation"] for row in before["members"]]
        assert second.stop(signal.SIGTERM) == 0
        second.assert_gone()
    finally:
        for up in (first, second):
            if up is not None:
                up.kill_everything()
