"""Layers that grow, shrink and have slices replaced on real Ray clusters, while publishers and subscribers go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.asking import open_admin
from actors.launch import Broker, launch
from cluster.config import ClientPort, Config, RaySettings, Timing, Transitions
from cluster.errors import KittiwakeError
from tests.live.processes import parent, tree, wait_for
from tests.live.test_cluster import lives
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAVES = Transitions(wave_groups=256)  # a dozen for two newcomers; by default they are smaller
PATIENT = Timing(role_lost_ms=10_000)  # a machine that runs other tests as well may let a process wait


async def scale(broker: Broker, **wish: Any) -> dict[str, Any]:
    """Scale and return the operation, which must be done, with the fewest moves."""
    operation = await broker.admin.scale(**wish, timeout_s=60)
    assert operation["state"] == "done", operation["reason"]
    assert operation["groups_moved"] == operation["groups_minimum"]
    return operation


async def slots(broker: Broker, layer: str) -> list[int]:
    """Return the slots of a layer, once those that leave have left."""
    async with asyncio.timeout(30):
        while True:
            members = (await broker.admin.status())["members"]
            if all(row["state"] == "serving" for row in members):
                return [row["slot"] for row in members if row["layer"] == layer]
            await asyncio.sleep(0.02)


# On several nodes ----------------------------------------------------------------------------------------------------


def test_on_three_nodes_of_a_ray_cluster(raylets: Any, tmp_path: Path) -> None:
    config = Config(
        name="nodes",
        data_directory=str(tmp_path),
        client_port=ClientPort(port=0),
        transitions=WAVES,
        timing=PATIENT,
        ray=RaySettings(address=raylets.address, lane_host="127.0.0.1", cpus_per_role=0.2),
    )

    async def story() -> list[int]:
        async with launch(config) as broker:
            async with traffic(broker):
                await scale(broker, matchers=2, exit_points=2, access_points=2)
                members = (await broker.admin.status())["members"]
                nodes = {parent(row["pid"]) for row in members}
                await scale(broker, replace=[("matcher", 1)])
                await scale(broker, matchers=1, exit_points=1, access_points=1)
            assert len(members) == 7
            assert len(nodes) == 3, "the slices are spread over the nodes"
            return [row["pid"] for row in members]

    pids = asyncio.run(story())
    wait_for(lambda: not any(lives(pid) for pid in pids), 20, "processes were left behind on the nodes")


# On one machine -----------------------------------------------------------------------------------------------------


class Live:
    """A cluster that lasts for all tests of this file, and the loop that it lives on."""

    def __init__(self, runner: asyncio.Runner, config: Config, broker: Broker) -> None:
        self._runner = runner
        self.config = config
        self.broker = broker

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(90):
                return await work

        return self._runner.run(bounded())


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    config = Config(
        name="scaling",
        data_directory=str(tmp_path_factory.mktemp("scaling")),
        client_port=ClientPort(port=0),
        transitions=WAVES,
        timing=PATIENT,
    )
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        broker = runner.run(stack.enter_async_context(launch(config)))
        try:
            yield Live(runner, config, broker)
        finally:
            runner.run(stack.aclose())


def test_matchers_come_and_go(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            operation = await scale(live.broker, matchers=3)
            assert operation["groups_moved"] == 2730
            assert await slots(live.broker, "matcher") == [0, 1, 2]
            await scale(live.broker, matchers=1)
            assert await slots(live.broker, "matcher") == [0]

    live.run(story())


def test_exit_points_come_and_go(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            await scale(live.broker, exit_points=2)
            assert await slots(live.broker, "exit_point") == [0, 1]
            await asyncio.sleep(0.2)
            await scale(live.broker, exit_points=1)
            assert await slots(live.broker, "exit_point") == [0]

    live.run(story())


def test_access_points_come_and_go(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            await scale(live.broker, access_points=2)
            assert await slots(live.broker, "access_point") == [0, 1]
            await asyncio.sleep(0.2)
            await scale(live.broker, access_points=1)
            assert await slots(live.broker, "access_point") == [0]

    live.run(story())


def test_several_layers_at_once(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            operation = await scale(live.broker, matchers=2, exit_points=2, access_points=2, strategy="all_at_once")
            assert len(operation["steps"]) == 1
            await scale(live.broker, matchers=1, exit_points=1, strategy="stop_swap")
            await scale(live.broker, access_points=1)

    live.run(story())


def test_slices_are_replaced(live: Live) -> None:
    async def story() -> None:
        before = {(row["layer"], row["slot"]): row["pid"] for row in (await live.broker.admin.status())["members"]}
        layers = ("access_point", "matcher", "exit_point")
        async with traffic(live.broker):
            old = {layer: await slots(live.broker, layer) for layer in layers}
            for layer in layers:
                (slot,) = old[layer]
                operation = await open_admin(live.config).replace(layer, slot, timeout_s=60)
                assert operation["state"] == "done"
                assert operation["former"][layer] == [slot]
            for layer in layers:
                (slot,) = await slots(live.broker, layer)
                assert [slot] != old[layer]
                async with asyncio.timeout(20):
                    while lives(before[layer, old[layer][0]]):
                        await asyncio.sleep(0.02)

    live.run(story())


def test_a_later_wish_takes_over_and_an_abort_leaves_no_trace(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            before = await slots(live.broker, "matcher")
            first = await live.broker.admin.scale(matchers=4, wait=False)
            later = await scale(live.broker, matchers=2)
            assert (await live.broker.admin.wait(first["number"]))["number"] == later["number"]
            await live.broker.admin.scale(matchers=3, wait=False)
            aborted = await live.broker.admin.abort()
            assert aborted["reason"] == "by the operator"
            assert len(await slots(live.broker, "matcher")) == 2
            await scale(live.broker, matchers=1)
            assert len(before) == len(await slots(live.broker, "matcher")) == 1
            states = [one["state"] for one in (await live.broker.admin.transitions())[-4:]]
            assert states == ["merged", "done", "aborted", "done"]

    live.run(story())


def is_actor(pid: int, kind: str) -> bool:
    """Tell whether a process plays an actor of this class."""
    try:
        return kind.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def newcomer(known: set[int]) -> int | None:
    """Return the pid of a role's process that is just being started: a child of our own Ray."""
    return next((pid for pid in tree(os.getpid()).keys() - known if is_actor(pid, "RoleActor")), None)


def test_a_coordinator_that_is_killed_is_started_anew_and_goes_on(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            await scale(live.broker, matchers=2)
            (victim,) = (pid for pid in tree(os.getpid()) if is_actor(pid, "CoordinatorActor"))
            before = (await live.broker.admin.status())["epoch"]
            await live.broker.admin.scale(matchers=1, exit_points=2, wait=False)
            while (await live.broker.admin.status())["epoch"] < before + 2:
                await asyncio.sleep(0.005)
            os.kill(victim, signal.SIGKILL)
            operation = None
            async with asyncio.timeout(30):
                while operation is None or operation["state"] == "running":
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(KittiwakeError):
                        operation = (await live.broker.admin.transitions())[-1]
            assert operation["state"] in ("done", "aborted")
            await scale(live.broker, matchers=3)
            await scale(live.broker, matchers=1, exit_points=1)
            assert (await live.broker.status())["lost"] == 0

    live.run(story())


def test_a_newcomer_that_is_killed_ends_the_operation_and_nothing_else(live: Live) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            before = (await live.broker.admin.status())["epoch"]
            known = set(tree(os.getpid()))
            scaling = asyncio.create_task(live.broker.admin.scale(matchers=2, timeout_s=60))
            async with asyncio.timeout(30):
                while (victim := newcomer(known)) is None:
                    await asyncio.sleep(0.001)
            os.kill(victim, signal.SIGKILL)
            operation = await scaling
            assert operation["state"] == "aborted"
            assert operation["reason"].startswith("matcher ")
            assert len(await slots(live.broker, "matcher")) == 1
            assert (await live.broker.admin.status())["epoch"] == before
            await scale(live.broker, matchers=2)
            await scale(live.broker, matchers=1)

    live.run(story())
