"""Publishers and subscribers on a real cluster, and whether everybody got what was due.

What was published is remembered, and filters are evaluated on it afterwards: each subscriber must have got exactly
what matches, once, in each publisher's order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

from actors.launch import Broker
from cluster import Client, Notification, connect, parse
from tests.live.processes import PATIENCE_S, Up

FILTERS = [
    "no2 > 60",
    "no2 > 80 or o3 > 90",
    'station starts_with "S1" and not (o3 < 50)',
    "(o3 > 20) is not true",
    "lat between 40.40 and 40.42",
]
PUBLISHERS = 3
SUBSCRIBERS = 3
_numbers = itertools.count()


class Traffic:
    """Publishers, and subscribers that keep all they get; one more client subscribes, publishes, and takes it back.

    published: by publisher, in order. got: by subscriber. round_trips: of that client.
    """

    def __init__(self) -> None:
        self.published: dict[str, list[dict[str, Any]]] = {}
        self.got: list[list[Notification]] = [[] for _ in range(SUBSCRIBERS)]
        self.round_trips = 0
        self.done = False

    async def publish(self, client: Client) -> None:
        made = self.published.setdefault(client.client_id, [])
        rng = random.Random(client.client_id)
        while not self.done:
            chunk: list[dict[str, Any]] = []
            for _ in range(rng.randrange(1, 30)):
                reading: dict[str, Any] = {"station": f"S{rng.randrange(24)}", "lat": 40.38 + rng.random() * 0.1}
                reading[rng.choice(("no2", "o3"))] = round(rng.random() * 100, 1)
                chunk.append(reading)
            made += chunk
            await client.publish_many(chunk)
            await asyncio.sleep(rng.random() * 0.02)

    async def read(self, group: Any, into: list[Notification]) -> None:
        async for notification in group:
            into.append(notification)

    async def go_round(self, client: Client) -> None:
        """What is subscribed to holds as soon as that is acknowledged, and not any more once it is taken back."""
        while not self.done:
            number = self.round_trips
            subscription = await client.subscribe(f"trip == {number}")
            trips: list[dict[str, Any]] = [{"trip": number - 1}, {"trip": number}]
            self.published.setdefault(client.client_id, []).extend(trips)
            await client.publish_many(trips)
            assert (await anext(subscription)).attributes == {"trip": number}
            await subscription.close()
            self.round_trips += 1
            await asyncio.sleep(0.005)

    def expected(self, texts: list[str]) -> dict[tuple[str, int], tuple[int, ...]]:
        filters = [parse(text) for text in texts]
        wanted = {}
        for name, made in self.published.items():
            for sequence, reading in enumerate(made, 1):
                ids = tuple(number for number, one in enumerate(filters) if one.matches(reading))
                if ids:
                    wanted[name, sequence] = ids
        return wanted

    def check(self, place: int) -> None:
        got = self.got[place]
        seen = {(one.publisher, one.sequence): one.subscription_ids for one in got}
        assert len(seen) == len(got), "a publication arrived twice"
        assert seen == self.expected(FILTERS[place:])
        for name in self.published:
            sequences = [one.sequence for one in got if one.publisher == name]
            assert sequences == sorted(sequences), "out of order"
        for one in got:
            assert one.attributes == self.published[one.publisher][one.sequence - 1]


@contextlib.asynccontextmanager
async def traffic(broker: Broker | Up, *, publish_at: int | None = None) -> AsyncIterator[Traffic]:
    """Have traffic; at the end all that is due must arrive, and nothing else.

    publish_at: the place of the endpoint that publishers alone use, and may lose; the others use the first one. Without
    it all endpoints are used, and no connection may be lost.
    """
    made = Traffic()
    life = next(_numbers)
    async with contextlib.AsyncExitStack() as stack:

        async def client(name: str, place: int) -> Client:
            endpoint = broker.endpoints[place % len(broker.endpoints)]
            if publish_at is not None:
                endpoint = broker.endpoints[publish_at if name == "publisher" else 0]
            return await stack.enter_async_context(connect(endpoint, client_id=f"{name}-{life}-{place}"))

        subscribers = [await client("subscriber", place) for place in range(SUBSCRIBERS)]
        groups = [await one.subscribe_many(FILTERS[place:]) for place, one in enumerate(subscribers)]
        publishers = [await client("publisher", place) for place in range(PUBLISHERS)]
        rounder = await client("rounder", 0)
        reading = [asyncio.create_task(made.read(group, got)) for group, got in zip(groups, made.got, strict=True)]
        sending = [asyncio.create_task(made.publish(one)) for one in publishers]
        sending.append(asyncio.create_task(made.go_round(rounder)))
        try:
            yield made
            async with asyncio.timeout(PATIENCE_S):
                while made.round_trips <= 10 or min(map(len, made.got)) <= 100:  # there is to be traffic
                    assert not any(task.done() for task in [*sending, *reading]), "somebody gave up"
                    await asyncio.sleep(0.02)
            assert not any(task.done() for task in [*sending, *reading]), "somebody gave up"
            made.done = True
            await asyncio.gather(*sending)
            wanted = [made.expected(FILTERS[place:]) for place in range(SUBSCRIBERS)]
            async with asyncio.timeout(PATIENCE_S):
                while not all(len(made.got[place]) >= len(wanted[place]) for place in range(SUBSCRIBERS)):
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)  # for doubles
        finally:
            for task in [*sending, *reading]:
                task.cancel()
            await asyncio.wait([*sending, *reading])
        steady = [*subscribers, rounder, *(publishers if publish_at is None else ())]
        assert [one.reconnections for one in steady] == [0] * len(steady)
    for place in range(SUBSCRIBERS):
        made.check(place)
