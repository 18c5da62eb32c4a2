"""Roles that are killed on a real Ray cluster, while publishers and subscribers go on: another takes the slot."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from actors.launch import Broker, launch, read_status
from cluster.config import ClientPort, Config, Layers, Timing
from cluster.errors import KittiwakeError
from tests.live.lasting import Lasting, lasting
from tests.live.processes import PATIENCE_S, lives, wait_for
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TWO = Layers(connection_points=2, access_points=2, matchers=2, exit_points=2)


KILLED = (("matcher", 0), ("access_point", 1), ("exit_point", 0))
STOPPED = (("exit_point", 1), ("access_point", 0), ("matcher", 1))
"""Who dies of which signal: each slice of these layers once."""


async def member(broker: Broker, layer: str, slot: int) -> dict[str, Any]:
    """Return the row of a slice."""
    members = (await broker.status())["members"]
    return next(row for row in members if (row["layer"], row["slot"]) == (layer, slot))


async def back(broker: Broker, layer: str, slot: int, former: dict[str, Any]) -> None:
    """Wait until another incarnation of the slot serves."""
    async with asyncio.timeout(PATIENCE_S):
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


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    config = Config(
        name="recovery",
        data_directory=str(tmp_path_factory.mktemp("recovery")),
        client_port=ClientPort(port=0),
        layers=TWO,
        timing=Timing(role_lost_ms=4_000),  # one that is stopped is waited for so long
    )
    with lasting(config) as made:
        yield made


def test_any_role_may_die(live: Lasting) -> None:
    broker = live.broker

    async def story() -> None:
        before = (await broker.status())["recovered"]
        async with traffic(broker) as made:
            for layer, slot in KILLED:
                trips = made.round_trips
                await strike(broker, layer, slot)
                async with asyncio.timeout(PATIENCE_S):
                    while made.round_trips < trips + 3:
                        await asyncio.sleep(0.02)
        async with traffic(broker, publish_at=1):
            await strike(broker, "connection_point", 1)
        status = await broker.status()
        assert status["recovered"] == before + 4
        assert status["recoveries"][-1]["replaced"] == ["connection_point 1"]
        async with traffic(broker):  # the connection point is where it was
            operation = await broker.admin.scale(matchers=3, timeout_s=PATIENCE_S)
            assert operation["state"] == "done"

    live.run(story())


def test_a_stopped_process_is_replaced_and_changes_nothing_any_more(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            for layer, slot in STOPPED:
                await strike(live.broker, layer, slot, signal.SIGSTOP)

    live.run(story())


def test_a_cluster_that_was_killed_comes_back_with_its_view(live: Lasting) -> None:
    """The last test: it ends the cluster that the others use, and starts the next one."""

    async def kill() -> tuple[int, list[int]]:
        assert (await live.broker.admin.scale(matchers=1, timeout_s=PATIENCE_S))["state"] == "done"
        pids = [row["pid"] for row in (await live.broker.status())["members"]]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return int((await live.broker.status())["epoch"]), pids

    async def come_back(epoch: int) -> list[int]:
        async with launch(live.config) as broker:
            status = await broker.status()
            assert status["epoch"] > epoch
            assert sum(row["layer"] == "matcher" for row in status["members"]) == 1
            async with traffic(broker):
                await asyncio.sleep(0.5)
            return [row["pid"] for row in (await broker.status())["members"]]

    epoch, killed = live.run(kill())
    live.end()
    started = live.run(come_back(epoch))
    wait_for(lambda: not any(map(lives, [*killed, *started])), "processes were left behind")
    with pytest.raises(KittiwakeError, match="no cluster 'recovery' runs here"):
        live.run(read_status(live.config))
