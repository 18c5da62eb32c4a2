"""Layers that grow, shrink and have slices replaced on real Ray clusters, while publishers and subscribers go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.asking import open_admin
from actors.launch import Broker
from cluster.config import ClientPort, Config, Transitions
from cluster.errors import KittiwakeError
from tests.live.lasting import Lasting, lasting
from tests.live.processes import PATIENCE_S, PATIENT, lives, tree
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAVES = Transitions(wave_groups=256)  # a dozen for two newcomers; by default they are smaller


async def scale(broker: Broker, **wish: Any) -> dict[str, Any]:
    """Scale and return the operation, which must be done, with the fewest moves."""
    operation = await broker.admin.scale(**wish, timeout_s=PATIENCE_S)
    assert operation["state"] == "done", operation["reason"]
    assert operation["groups_moved"] == operation["groups_minimum"]
    return operation


async def slots(broker: Broker, layer: str) -> list[int]:
    """Return the slots of a layer, once those that leave have left."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            members = (await broker.admin.status())["members"]
            if all(row["state"] == "serving" for row in members):
                return [row["slot"] for row in members if row["layer"] == layer]
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    config = Config(
        name="scaling",
        data_directory=str(tmp_path_factory.mktemp("scaling")),
        client_port=ClientPort(port=0),
        transitions=WAVES,
        timing=PATIENT,
    )
    with lasting(config) as made:
        yield made


def test_matchers_come_and_go(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            operation = await scale(live.broker, matchers=3)
            assert operation["groups_moved"] == 2730
            assert await slots(live.broker, "matcher") == [0, 1, 2]
            await scale(live.broker, matchers=1)
            assert await slots(live.broker, "matcher") == [0]

    live.run(story())


def test_exit_points_come_and_go(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            await scale(live.broker, exit_points=2)
            assert await slots(live.broker, "exit_point") == [0, 1]
            await asyncio.sleep(0.2)
            await scale(live.broker, exit_points=1)
            assert await slots(live.broker, "exit_point") == [0]

    live.run(story())


def test_access_points_come_and_go(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            await scale(live.broker, access_points=2)
            assert await slots(live.broker, "access_point") == [0, 1]
            await asyncio.sleep(0.2)
            await scale(live.broker, access_points=1)
            assert await slots(live.broker, "access_point") == [0]

    live.run(story())


def test_several_layers_at_once(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            operation = await scale(live.broker, matchers=2, exit_points=2, access_points=2, strategy="all_at_once")
            assert len(operation["steps"]) == 1
            await scale(live.broker, matchers=1, exit_points=1, strategy="stop_swap")
            await scale(live.broker, access_points=1)

    live.run(story())


def test_slices_are_replaced(live: Lasting) -> None:
    async def story() -> None:
        before = {(row["layer"], row["slot"]): row["pid"] for row in (await live.broker.admin.status())["members"]}
        layers = ("access_point", "matcher", "exit_point")
        async with traffic(live.broker):
            old = {layer: await slots(live.broker, layer) for layer in layers}
            for layer in layers:
                (slot,) = old[layer]
                operation = await open_admin(live.config).replace(layer, slot, timeout_s=PATIENCE_S)
                assert operation["state"] == "done"
                assert operation["former"][layer] == [slot]
            for layer in layers:
                (slot,) = await slots(live.broker, layer)
                assert [slot] != old[layer]
                async with asyncio.timeout(PATIENCE_S):
                    while lives(before[layer, old[layer][0]]):
                        await asyncio.sleep(0.02)

    live.run(story())


def test_a_later_wish_takes_over_and_an_abort_leaves_no_trace(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            before = await slots(live.broker, "matcher")
            first = await live.broker.admin.scale(matchers=3, wait=False)
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


def test_a_coordinator_that_is_killed_is_started_anew_and_goes_on(live: Lasting) -> None:
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
            async with asyncio.timeout(PATIENCE_S):
                while operation is None or operation["state"] == "running":
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(KittiwakeError):
                        operation = (await live.broker.admin.transitions())[-1]
            assert operation["state"] in ("done", "aborted")
            await scale(live.broker, matchers=3)
            await scale(live.broker, matchers=1, exit_points=1)
            assert (await live.broker.status())["lost"] == 0

    live.run(story())


def test_a_newcomer_that_is_killed_ends_the_operation_and_nothing_else(live: Lasting) -> None:
    async def story() -> None:
        async with traffic(live.broker):
            before = (await live.broker.admin.status())["epoch"]
            known = set(tree(os.getpid()))
            scaling = asyncio.create_task(live.broker.admin.scale(matchers=2, timeout_s=PATIENCE_S))
            async with asyncio.timeout(PATIENCE_S):
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
