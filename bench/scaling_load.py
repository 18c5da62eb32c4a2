"""The load that goes on while a cluster scales, in three processes, so that it disturbs little and measures truly.

    subscribers  hold the subscriptions that never change, and note every notification
    publisher    publication i is due at begin + i / rate, whatever the broker does; publisher i % publishers sends it
    churner      subscribe request i is due at begin + i / rate; each subscription is closed LIFE_S after that,
                 or when it is acknowledged, whichever is later

All times are of the machine's monotonic clock, in seconds. The publication number i follows from what every
notification carries: i = (sequence - 1) * publishers + the publisher's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.process import run, wait_until
from cluster import Client, connect
from cluster.errors import KittiwakeError

LIFE_S = 1.0
"""How long a churned subscription lives; so many requests are open at a time as come in a second."""
QUIET_S = 15.0
"""Without a notification for so long, what is missing is lost."""
LAST_S = 60.0
"""What was asked for before the end of the load has so long to be answered."""
DOUBLES_S = 0.3
"""After everything has come, doubles, if any, come within this time."""


def publisher_name(place: int) -> str:
    """Return the client id of a publisher."""
    return f"publisher-{place}"


@dataclass
class Log:
    """What one subscriber got: a row a notification, in the order of arrival.

    publisher: the publisher's place. ids: the numbers of the subscriptions that match, row after row; counts: how many.
    """

    publisher: bytes
    sequence: bytes
    time: bytes
    counts: bytes
    ids: bytes


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


class _Columns:
    """A Log while it grows."""

    def __init__(self) -> None:
        self.publisher = array("H")
        self.sequence = array("Q")
        self.time = array("d")
        self.counts = array("I")
        self.ids = array("I")

    def log(self) -> Log:
        return Log(*(column.tobytes() for column in vars(self).values()))


async def _read(stream: Any, columns: _Columns, publishers: int, last: list[float]) -> None:
    places = {publisher_name(place): place for place in range(publishers)}
    clock = time.monotonic
    publisher, sequence, times, counts, ids = vars(columns).values()
    async for notification in stream:
        now = clock()
        numbers = notification.subscription_ids
        publisher.append(places.get(notification.publisher, 0xFFFF))
        sequence.append(notification.sequence)
        times.append(now)
        counts.append(len(numbers))
        ids.extend(numbers)
        last[0] = now


# Subscribers ---------------------------------------------------------------------------------------------------


async def _subscribers(urls: list[str], shares: list[list[str]], publishers: int, pipe: Connection) -> None:
    clients = [connect(urls[place % len(urls)], client_id=f"subscriber-{place}") for place in range(len(shares))]
    for client in clients:
        await client
    begin = time.monotonic()
    groups = await asyncio.gather(
        *(client.subscribe_many(share) for client, share in zip(clients, shares, strict=True))
    )
    pipe.send(time.monotonic() - begin)
    _no_pauses()
    columns = [_Columns() for _ in groups]
    last = [time.monotonic()]
    readers = [
        asyncio.create_task(_read(group, into, publishers, last)) for group, into in zip(groups, columns, strict=True)
    ]
    wanted: list[int] = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    last[0] = time.monotonic()
    while time.monotonic() - last[0] < QUIET_S:
        if all(len(one.sequence) >= count for one, count in zip(columns, wanted, strict=True)):
            break
        await asyncio.sleep(0.02)
    await asyncio.sleep(DOUBLES_S)
    pipe.send([one.log() for one in columns])
    pipe.send(_trouble(clients))
    await _leave(clients, readers)


def subscribers(urls: list[str], shares: list[list[str]], publishers: int, pipe: Connection) -> None:
    """The subscribers' process. Sends the seconds that subscribing took; gets how much must arrive, by client; sends
    their logs, and what went wrong.
    """
    run(_subscribers(urls, shares, publishers, pipe))


# Publisher -----------------------------------------------------------------------------------------------------


async def _publisher(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, rate: float, end: Any, pipe: Connection
) -> None:
    clients = [connect(urls[place % len(urls)], client_id=publisher_name(place)) for place in range(publishers)]
    for client in clients:
        await client
    pipe.send(None)
    begin: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    _no_pauses()
    handed = array("d")
    distinct = len(publications)
    number = 0
    while (due := begin + number / rate) < end.value:
        await wait_until(due)
        handed.append(time.monotonic())
        await clients[number % publishers].publish(publications[number % distinct], ack="none")
        number += 1
        await asyncio.sleep(0)
    deadline = time.monotonic() + LAST_S
    while any(client.unacknowledged for client in clients) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    pipe.send(handed.tobytes())
    trouble = _trouble(clients)
    for name in ("unacknowledged", "rejected"):
        if count := sum(getattr(client, name) for client in clients):
            trouble.append(f"{count} publications {name}")
    pipe.send(trouble)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await _leave(clients, [])


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
    columns = [_Columns() for _ in clients]
    last = [0.0]
    readers = [
        asyncio.create_task(_read(client.notifications(), into, publishers, last))
        for client, into in zip(clients, columns, strict=True)
    ]
    churn = _Churn(clients)
    pipe.send(None)
    begin: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    _no_pauses()
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
    pipe.send(churn.trouble + _trouble(clients))
    await _leave(clients, readers)


def churner(
    urls: list[str], filters: list[str], clients: int, publishers: int, rate: float, end: Any, pipe: Connection
) -> None:
    """The churner's process. Sends None when it is ready; gets when to begin; asks for nothing more from `end.value`
    on; gets None when everything was delivered; sends its clients' logs, the lives, and what went wrong.
    """
    run(_churner(urls, filters, clients, publishers, rate, end, pipe))


# Common --------------------------------------------------------------------------------------------------------


def _no_pauses() -> None:
    """Nothing here makes many cycles: keep the collector's pauses out of the delays."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _trouble(clients: list[Client]) -> list[str]:
    trouble = []
    if dropped := sum(sum(client.dropped.values()) for client in clients):
        trouble.append(f"{dropped} notifications dropped")
    if closed := [client.client_id for client in clients if client.closed]:
        trouble.append(f"ended: {', '.join(closed)}")
    return trouble


async def _leave(clients: list[Client], readers: list[asyncio.Task[None]]) -> None:
    for reader in readers:
        reader.cancel()
    with contextlib.suppress(KittiwakeError):
        await asyncio.gather(*(client.close() for client in clients))
