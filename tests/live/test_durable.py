"""Durable sessions on a real Ray cluster: their connection point leaves, the one that has taken them over is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.launch import Broker, launch
from actors.session_store import sessions_path
from bench.process import free_ports
from cluster import Client, Notification, Subscription, connect, parse
from cluster.config import ClientPort, Config
from tests.live.processes import PATIENCE_S, PATIENT, eventually
from tests.live.test_recovery import back, member

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FILTERS = ("no2 > 60 or o3 > 60", 'station starts_with "S1" and not (o3 < 50)')
WINDOW = 32
"""What a subscriber may have and not have acknowledged."""
MANY = 300
"""Publications of each publisher between two events, at least."""


class Readings:
    """Publishers that do not stop. made: by publisher, what was published, all of it acknowledged in the end."""

    def __init__(self) -> None:
        self.made: dict[str, list[dict[str, Any]]] = {}
        self.done = False

    async def publish(self, client: Client) -> None:
        rng = random.Random(client.client_id)
        made = self.made.setdefault(client.client_id, [])
        while not self.done:
            chunk: list[dict[str, Any]] = []
            for _ in range(rng.randrange(1, 10)):
                reading: dict[str, Any] = {"station": f"S{rng.randrange(24)}"}
                reading[rng.choice(("no2", "o3"))] = round(rng.random() * 100, 1)
                chunk.append(reading)
            made += chunk
            await client.publish_many(chunk)
            await asyncio.sleep(rng.random() * 0.02)

    async def more(self) -> None:
        """Wait until each has published MANY more."""
        before = {name: len(made) for name, made in self.made.items()}
        await eventually(lambda: all(len(made) >= before[name] + MANY for name, made in self.made.items()))

    def expected(self, text: str, since: dict[str, int]) -> set[tuple[str, int]]:
        """Return what a subscription is to get that was confirmed when so many were made."""
        filter = parse(text)
        return {
            (name, sequence)
            for name, made in self.made.items()
            for sequence, reading in enumerate(made, 1)
            if sequence > since.get(name, 0) and filter.matches(reading)
        }


class Reader:
    """A durable subscriber, whatever its program does. got: everything that it was handed."""

    def __init__(self, readings: Readings, client_id: str, url: str, text: str) -> None:
        self._readings = readings
        self._options: dict[str, Any] = {"client_id": client_id, "durable": True, "receive_window": WINDOW}
        self._url = url
        self.text = text
        self.since: dict[str, int] = {}
        self.got: list[Notification] = []
        self.again = 0
        """How often a program began that did not know what the one before had got."""

    def connect(self) -> Client:
        return connect(self._url, **self._options)

    async def begin(self, client: Client) -> Subscription:
        # What is published while it is being opened may come or not: here nothing is.
        subscription = await client.subscribe(self.text)
        self.since = {name: len(made) for name, made in self._readings.made.items()}
        return subscription

    async def read(self, subscription: Subscription) -> None:
        async for notification in subscription:
            self.got.append(notification)

    def check(self) -> None:
        """Everything once and in order, but for what is flagged: within the window for each time it could be."""
        first: dict[tuple[str, int], Notification] = {}
        doubles = 0
        for one in self.got:
            key = one.publisher, one.sequence
            if key in first:
                assert one.redelivered, f"{key} came again without the flag"
                doubles += 1
            else:
                first[key] = one
            assert one.attributes == self._readings.made[one.publisher][one.sequence - 1]
        assert set(first) == self._readings.expected(self.text, self.since)
        assert doubles <= WINDOW * self.again, f"{doubles} came again"
        for name in self._readings.made:
            sequences = [sequence for publisher, sequence in first if publisher == name]
            assert sequences == sorted(sequences), "out of order"
        positions = [one.position or 0 for one in first.values()]
        assert positions == sorted(positions), "out of order"

    @property
    def missing(self) -> int:
        return len(self._readings.expected(self.text, self.since)) - len(
            {(one.publisher, one.sequence) for one in self.got}
        )


async def slots(broker: Broker) -> list[int]:
    """Return the connection points that there are."""
    return [row["slot"] for row in (await broker.status())["members"] if row["layer"] == "connection_point"]


async def homes(broker: Broker, slot: int) -> int:
    """Return how many durable sessions a connection point says that live with it."""
    return int((await member(broker, "connection_point", slot))["counters"]["durable_sessions"])


def test_the_home_of_sessions_leaves_and_the_next_one_is_killed(tmp_path: Path) -> None:
    port = free_ports(2)
    config = Config(
        name="durable",
        data_directory=str(tmp_path),
        client_port=ClientPort(port=port),
        timing=PATIENT,
    )
    first, second = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    readings = Readings()
    url = f"kittiwake://{second},{first}"
    readers = here, away = Reader(readings, "here", url, FILTERS[0]), Reader(readings, "away", url, FILTERS[1])

    async def story() -> None:
        async with launch(config) as broker, contextlib.AsyncExitStack() as stack:
            assert (await broker.admin.scale(connection_points=2, timeout_s=PATIENCE_S))["state"] == "done"
            # Both sessions begin at the second connection point, one of them beside its publishers.
            attached = await stack.enter_async_context(here.connect())
            attached_stream = await here.begin(attached)
            async with away.connect() as detached:
                stream = await away.begin(detached)
                publishers = [
                    await stack.enter_async_context(connect(f"kittiwake://{at}", client_id=f"publisher-{place}"))
                    for place, at in enumerate((f"{first},{second}", f"{second},{first}"))
                ]
                sending = [asyncio.create_task(readings.publish(one)) for one in publishers]
                for _ in range(20):
                    away.got.append(await anext(stream))
            reading = asyncio.create_task(here.read(attached_stream))
            try:
                await readings.more()
                async with asyncio.timeout(PATIENCE_S):
                    while await homes(broker, 1) != 2:
                        await asyncio.sleep(0.05)

                # Their home leaves.
                assert (await broker.admin.scale(connection_points=1, timeout_s=PATIENCE_S))["state"] == "done"
                async with asyncio.timeout(PATIENCE_S):
                    while await slots(broker) != [0]:
                        await asyncio.sleep(0.05)
                assert sessions_path(tmp_path, 0).exists()
                await readings.more()
                async with asyncio.timeout(PATIENCE_S):
                    while await homes(broker, 0) != 2:
                        await asyncio.sleep(0.05)

                # The next one is killed.
                former = await member(broker, "connection_point", 0)
                os.kill(former["pid"], signal.SIGKILL)
                await back(broker, "connection_point", 0, former)
                here.again += 1
                await readings.more()

                # The other program comes again, by the address of the one that has left and the one that stays.
                detached = await stack.enter_async_context(away.connect())
                assert detached.resumed
                assert detached.held == {0: away.text}
                away.again += 2  # its first program's last ones, and a window at the kill
                collecting = asyncio.create_task(away.read(await detached.take_up(0)))
                try:
                    await readings.more()
                    assert not any(task.done() for task in (*sending, reading, collecting)), "somebody gave up"
                    readings.done = True
                    await asyncio.gather(*sending)
                    await eventually(lambda: not here.missing and not away.missing)
                    await asyncio.sleep(0.2)  # for doubles
                    assert attached.sessions_lost == detached.sessions_lost == 0
                    assert not attached.dropped
                    assert not detached.dropped
                finally:
                    collecting.cancel()
            finally:
                for task in (*sending, reading):
                    task.cancel()
                await asyncio.wait([*sending, reading])

    asyncio.run(story())
    for reader in readers:
        reader.check()
