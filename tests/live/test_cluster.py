"""The real thing: Ray, processes, TCP. Slow to start, so few and broad."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.launch import launch, read_status
from cluster import Notification, connect, parse
from cluster.config import ClientPort, Config, Layers
from cluster.errors import KittiwakeError

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FILTERS = [
    "no2 > 60",
    "no2 > 80 or o3 > 90",
    'station starts_with "S1" and not (o3 < 50)',
    "(o3 > 20) is not true",
    "lat between 40.40 and 40.42",
]


def configuration(directory: Path, layers: Layers) -> Config:
    return Config(name="live", data_directory=str(directory), client_port=ClientPort(port=0), layers=layers)


def readings(seed: int, count: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        reading: dict[str, Any] = {"station": f"S{rng.randrange(24)}", "lat": 40.38 + rng.random() * 0.1}
        reading[rng.choice(("no2", "o3"))] = round(rng.random() * 100, 1)
        made.append(reading)
    return made


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def test_several_slices_of_each_layer_deliver_exactly_what_the_oracle_says(tmp_path: Path) -> None:
    layers = Layers(connection_points=2, access_points=2, matchers=3, exit_points=2)
    asyncio.run(_oracle(configuration(tmp_path, layers)))


async def _oracle(config: Config) -> None:
    publishers = {f"publisher-{seed}": readings(seed, 400) for seed in range(4)}
    async with launch(config) as broker:
        assert len(broker.endpoints) == 2
        status = await read_status(config)
        assert status["state"] == "serving"
        assert [row["state"] for row in status["members"]] == ["serving"] * 9

        async def publish(name: str, url: str) -> None:
            async with connect(url, client_id=name) as client:
                for begin in range(0, 400, 50):
                    await client.publish_many(publishers[name][begin : begin + 50])

        got: list[list[Notification]] = [[] for _ in range(3)]
        subscribers = []
        for place in range(3):
            client = await connect(broker.endpoints[place % 2], client_id=f"subscriber-{place}")
            group = await client.subscribe_many(FILTERS[place:])
            subscribers.append((client, group))

        async def read(place: int) -> None:
            async for notification in subscribers[place][1]:
                got[place].append(notification)

        tasks = [asyncio.create_task(read(place)) for place in range(3)]
        await asyncio.gather(*(publish(name, broker.endpoints[place % 2]) for place, name in enumerate(publishers)))
        wanted = [_expected(publishers, FILTERS[place:]) for place in range(3)]
        await eventually(lambda: all(len(got[place]) >= len(wanted[place]) for place in range(3)))
        for task in tasks:
            task.cancel()
        for client, _ in subscribers:
            await client.close()
    for place in range(3):
        seen = {(one.publisher, one.sequence): one.subscription_ids for one in got[place]}
        assert len(seen) == len(got[place]), "a publication arrived twice"
        assert seen == wanted[place]
        for name in publishers:
            sequences = [one.sequence for one in got[place] if one.publisher == name]
            assert sequences == sorted(sequences)
        for one in got[place]:
            assert one.attributes == publishers[one.publisher][one.sequence - 1]


def _expected(publishers: dict[str, list[dict[str, Any]]], texts: list[str]) -> dict[tuple[str, int], tuple[int, ...]]:
    filters = [parse(text) for text in texts]
    wanted = {}
    for name, made in publishers.items():
        for sequence, reading in enumerate(made, 1):
            ids = tuple(number for number, one in enumerate(filters) if one.matches(reading))
            if ids:
                wanted[name, sequence] = ids
    return wanted


def test_a_killed_role_is_replaced_and_all_stop_cleanly(tmp_path: Path) -> None:
    config = configuration(tmp_path, Layers())
    pids = asyncio.run(_killed(config))
    for pid in pids:
        assert not lives(pid), f"process {pid} was left behind"
    with pytest.raises(KittiwakeError, match="no cluster 'live' runs here"):
        asyncio.run(read_status(config))


async def _killed(config: Config) -> list[int]:
    async with launch(config) as broker:
        members = (await broker.status())["members"]
        pids = [row["pid"] for row in members]
        victim = next(row["pid"] for row in members if row["layer"] == "exit_point")
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(30):
            while (status := await read_status(config))["recovered"] != 1:
                await asyncio.sleep(0.02)
        assert status["recoveries"][-1]["replaced"] == ["exit_point 0"]
    return [*pids, *(row["pid"] for row in status["members"])]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
