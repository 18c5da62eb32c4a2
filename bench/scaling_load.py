"""The load that goes on while a cluster scales, in three processes, so that it disturbs little and measures truly.

    subscribers  hold the subscriptions that never change, and note every notification (bench/load.py)
    publisher    publication i is due at begin + i / rate, whatever the broker does; publisher i % publishers sends it
    churner      subscribe request i is due at begin + i / rate; each subscription is closed LIFE_S after that,
                 or when it is acknowledged, whichever is later

All times are of the machine's monotonic clock, in seconds. The publication number i follows from what every
notification carries: i = (sequence - 1) * publishers + the publisher's place.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.load import DOUBLES_S, LAST_S, Columns, account, connected_publishers, leave, no_pauses, read, trouble
from bench.process import run, wait_until
from cluster import Client, connect
from cluster.errors import KittiwakeError

LIFE_S = 1.0
"""How long a churned subscription lives; so many requests are open at a time as come in a second."""


@dataclass
class Lives:
    """The churned subscriptions, a row each. When something never happened its time is infinite.

    filter: place in the churner's filters. number: the client's own for it. due, asked, acked: of the subscribe
    request. closing, closed: when its end was asked for and acknowledged.
    """

    client: bytes
    filter: bytes
    number: bytes
    due: bytes
    asked: bytes
    acked: bytes
    closing: bytes
    closed: bytes


# Publisher -----------------------------------------------------------------------------------------------------


async def _publisher(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, rate: float, end: Any, pipe: Connection
) -> None:
    clients = await connected_publishers(urls, publishers)
    pipe.send(None)
    begin: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    no_pauses()
    handed = array("d")
    distinct = len(publications)
    number = 0
    while (due := begin + number / rate) < end.value:
        await wait_until(due)
        handed.append(time.monotonic())
        await clients[number % publishers].publish(publications[number % distinct], ack="none")
        number += 1
        await asyncio.sleep(0)
    await account(clients, handed.tobytes(), pipe)


def publisher(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, rate: float, end: Any, pipe: Connection
) -> None:
    """The publisher's process. Sends None when it is ready; gets when to begin; ends when it is `end.value`; sends
    when each publication was handed to the SDK, and what went wrong; gets leave to go.
    """
    run(_publisher(urls, publications, publishers, rate, end, pipe))


# Churner -------------------------------------------------------------------------------------------------------


class _Churn:
    """What the churner has done so far."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self.client = array("H")
        self.filter = array("I")
        self.number = array("q")
        self.due = array("d")
        self.asked = array("d")
        self.acked = array("d")
        self.closing = array("d")
        self.closed = array("d")
        self.trouble: list[str] = []

    async def live(self, text: str, place: int, filter: int, due: float) -> None:
        """Subscribe, stay, and leave; each time is noted when it happens."""
        row = len(self.due)
        self.client.append(place)
        self.filter.append(filter)
        self.number.append(-1)
        self.due.append(due)
        for never in (self.acked, self.closing, self.closed):
            never.append(float("inf"))
        self.asked.append(time.monotonic())
        try:
            subscription = await self.clients[place].subscribe(text)
            self.acked[row] = time.monotonic()
            self.number[row] = subscription.id
            await asyncio.sleep(due + LIFE_S - time.monotonic())
            self.closing[row] = time.monotonic()
            await subscription.close()
            self.closed[row] = time.monotonic()
        except KittiwakeError as error:
            self.trouble.append(f"{type(error).__name__}: {error}")

    def lives(self) -> Lives:
        columns = (self.client, self.filter, self.number, self.due, self.asked, self.acked, self.closing, self.closed)
        return Lives(*(column.tobytes() for column in columns))


async def _churner(
    urls: list[str], filters: list[str], count: int, publishers: int, rate: float, end: Any, pipe: Connection
) -> None:
    clients = [connect(urls[place % len(urls)], client_id=f"churner-{place}") for place in range(count)]
    for client in clients:
        await client
    columns = [Columns() for _ in clients]
    last = [0.0]
    readers = [
        asyncio.create_task(read(client.notifications(), into, publishers, last))
        for client, into in zip(clients, columns, strict=True)
    ]
    churn = _Churn(clients)
    pipe.send(None)
    begin: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    no_pauses()
    tasks: set[asyncio.Task[None]] = set()
    number = 0
    while rate and (due := begin + number / rate) < end.value:
        await wait_until(due)
        filter = number % len(filters)
        task = asyncio.create_task(churn.live(filters[filter], number % count, filter, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        await asyncio.sleep(0)
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LAST_S)
        if late:
            churn.trouble.append(f"{len(late)} churned subscriptions unanswered")
            for task in late:
                task.cancel()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await asyncio.sleep(DOUBLES_S)
    pipe.send([one.log() for one in columns])
    pipe.send(churn.lives())
    pipe.send(churn.trouble + trouble(clients))
    await leave(clients, readers)


def churner(
    urls: list[str], filters: list[str], clients: int, publishers: int, rate: float, end: Any, pipe: Connection
) -> None:
    """The churner's process. Sends None when it is ready; gets when to begin; asks for nothing more from `end.value`
    on; gets None when everything was delivered; sends its clients' logs, the lives, and what went wrong.
    """
    run(_churner(urls, filters, clients, publishers, rate, end, pipe))
