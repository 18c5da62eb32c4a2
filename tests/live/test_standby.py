"""The coordinator dies, and another process that has waited for it takes over, on a real Ray cluster under traffic."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.asking import read_run_file
from actors.launch import Broker, launch
from bench.process import is_actor, started_at
from cluster.config import ClientPort, Config, RaySettings
from cluster.errors import KittiwakeError
from tests.live.processes import PATIENCE_S, PATIENT
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Document = dict[str, Any]


async def seen(broker: Broker, holds: Callable[[Document], bool]) -> Document:
    """Wait until the cluster serves and this is so of its status; return the status."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                status = await broker.status()
            except KittiwakeError:
                status = {"state": "away"}
            if status["state"] == "serving" and holds(status):
                return status
            await asyncio.sleep(0.02)


def stands_by(status: Document) -> bool:
    return "standby_pid" in status["coordinator"]


def follows(former: Document) -> Callable[[Document], bool]:
    """The next life, or a later one, is the coordinator."""
    return lambda status: bool(status["coordinator"]["incarnation"] > former["coordinator"]["incarnation"])


def pids(status: Document) -> list[int]:
    return [row["pid"] for row in status["members"]]


def test_who_stands_by_takes_over_and_is_made_up_for(tmp_path: Path) -> None:
    config = Config(
        name="standby",
        data_directory=str(tmp_path),
        client_port=ClientPort(port=0),
        ray=RaySettings(spares=1),
        timing=PATIENT,
    )

    async def story() -> None:
        async with launch(config) as broker, traffic(broker) as made:
            first = await seen(broker, stands_by)
            waiting = first["coordinator"]["standby_pid"]
            assert is_actor(waiting)
            run = read_run_file(config)

            # It dies: the other one is the coordinator, at the same address, and the slices run on.
            os.kill(first["coordinator"]["pid"], signal.SIGKILL)
            second = await seen(broker, follows(first))
            assert second["coordinator"]["pid"] == waiting
            assert second["coordinator"]["incarnation"] == first["coordinator"]["incarnation"] + 1
            assert read_run_file(config) == run
            assert pids(second) == pids(first)
            assert second["metrics_address"] == first["metrics_address"]

            # What Ray starts in its place stands by. A coordinator that is stopped is not replaced; traffic goes on.
            second = await seen(broker, stands_by)
            pid = second["coordinator"]["pid"]
            started = started_at(pid)
            os.kill(pid, signal.SIGSTOP)
            try:
                trips = made.round_trips
                async with asyncio.timeout(PATIENCE_S):
                    while made.round_trips < trips + 5:
                        await asyncio.sleep(0.02)
                with pytest.raises(KittiwakeError, match="does not answer"):
                    await broker.status()
            finally:
                os.kill(pid, signal.SIGCONT)
            assert started_at(pid) == started
            again = await seen(broker, lambda status: True)
            assert again["coordinator"] == second["coordinator"]

            # The one that stands by dies: there is another one, and the coordinator stays.
            os.kill(second["coordinator"]["standby_pid"], signal.SIGKILL)
            gone = second["coordinator"]["standby_pid"]
            third = await seen(broker, lambda now: now["coordinator"].get("standby_pid", gone) != gone)
            assert third["coordinator"]["pid"] == pid

            # A slice and the coordinator at once.
            matcher = next(row["pid"] for row in third["members"] if row["layer"] == "matcher")
            os.kill(pid, signal.SIGKILL)
            os.kill(matcher, signal.SIGKILL)
            fourth = await seen(broker, lambda now: follows(third)(now) and matcher not in pids(now))
            assert fourth["coordinator"]["pid"] == third["coordinator"]["standby_pid"]

            # Both: Ray starts them anew, and one of them goes on.
            fourth = await seen(broker, stands_by)
            os.kill(fourth["coordinator"]["standby_pid"], signal.SIGKILL)
            os.kill(fourth["coordinator"]["pid"], signal.SIGKILL)
            await seen(broker, follows(fourth))
            assert (await broker.admin.scale(matchers=2, timeout_s=PATIENCE_S))["state"] == "done"
            trips = made.round_trips
            async with asyncio.timeout(PATIENCE_S):
                while made.round_trips < trips + 3:
                    await asyncio.sleep(0.02)

    asyncio.run(story())
