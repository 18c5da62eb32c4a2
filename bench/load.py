"""What the loads of several benchmarks share: who publishes, the subscribers' process, and what it notes.

All times are of the machine's monotonic clock, in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.process import run
from cluster import Client, Notification, connect
from cluster.config import Timing
from cluster.errors import KittiwakeError

PATIENT = Timing(role_lost_ms=5_000)
"""Of a cluster that shares its processors with the load: a role that has to wait for them is not taken for dead."""
QUIET_S = 15.0
"""Without a notification for so long, what is missing is lost."""
LAST_S = 60.0
"""What was asked for before the end of the load has so long to be answered."""
DOUBLES_S = 0.3
"""After everything has come, doubles, if any, come within this time."""


def publisher_name(place: int) -> str:
    """Return the client id of a publisher."""
    return f"publisher-{place}"


async def connected_publishers(urls: list[str], count: int) -> list[Client]:
    """Return the publishers, dealt over the connection points, when all have logged in."""
    clients = [connect(urls[place % len(urls)], client_id=publisher_name(place)) for place in range(count)]
    for client in clients:
        await client
    return clients


@dataclass
class Log:
    """What one subscriber got: a row a notification, in the order of arrival.

    publisher:   the publisher's place. ids: the numbers of the subscriptions that match, row after row; counts: how
                 many.
    redelivered: uint32, the rows that the broker has marked as perhaps delivered before.
    """

    publisher: bytes
    sequence: bytes
    time: bytes
    counts: bytes
    ids: bytes
    redelivered: bytes = b""


class Columns:
    """A Log while it grows."""

    def __init__(self) -> None:
        self.publisher = array("H")
        self.sequence = array("Q")
        self.time = array("d")
        self.counts = array("I")
        self.ids = array("I")
        self.redelivered = array("I")

    def log(self) -> Log:
        """Return what has come until now."""
        return Log(*(column.tobytes() for column in vars(self).values()))


async def read(stream: Any, columns: Columns, publishers: int, last: list[float]) -> None:
    """Note every notification of the stream, until it ends; last[0] becomes the time of the newest."""
    places = {publisher_name(place): place for place in range(publishers)}
    clock = time.monotonic
    publisher, sequence, times, counts, ids, redelivered = vars(columns).values()
    marks = hasattr(Notification, "redelivered")
    async for notification in stream:
        now = clock()
        numbers = notification.subscription_ids
        if marks and notification.redelivered:
            redelivered.append(len(times))
        publisher.append(places.get(notification.publisher, 0xFFFF))
        sequence.append(notification.sequence)
        times.append(now)
        counts.append(len(numbers))
        ids.extend(numbers)
        last[0] = now


async def _subscribers(
    urls: list[str],
    shares: list[list[str]],
    publishers: int,
    pipe: Connection,
    quiet_s: float,
    options: Mapping[str, Any],
) -> None:
    clients = [
        connect(urls[place % len(urls)], client_id=f"subscriber-{place}", **options) for place in range(len(shares))
    ]
    for client in clients:
        await client
    begin = time.monotonic()
    groups = await asyncio.gather(
        *(client.subscribe_many(share) for client, share in zip(clients, shares, strict=True))
    )
    pipe.send(time.monotonic() - begin)
    no_pauses()
    columns = [Columns() for _ in groups]
    last = [time.monotonic()]
    readers = [
        asyncio.create_task(read(group, into, publishers, last)) for group, into in zip(groups, columns, strict=True)
    ]
    wanted: list[int] = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    last[0] = time.monotonic()
    while time.monotonic() - last[0] < quiet_s:
        if all(len(one.sequence) >= count for one, count in zip(columns, wanted, strict=True)):
            break
        await asyncio.sleep(0.02)
    await asyncio.sleep(DOUBLES_S)
    pipe.send([one.log() for one in columns])
    pipe.send(trouble(clients))
    await leave(clients, readers)


def subscribers(
    urls: list[str],
    shares: list[list[str]],
    publishers: int,
    pipe: Connection,
    quiet_s: float = QUIET_S,
    options: Mapping[str, Any] | None = None,
) -> None:
    """The subscribers' process. Sends the seconds that subscribing took; gets how much must arrive, by client; sends
    their logs, and what went wrong.

    shares: the filters of each client. quiet_s: without a notification for so long nothing more is waited for.
    options: further ones of `connect`.
    """
    run(_subscribers(urls, shares, publishers, pipe, quiet_s, options or {}))


def no_pauses() -> None:
    """Nothing here makes many cycles: keep the collector's pauses out of the delays."""
    gc.collect()
    gc.freeze()
    gc.disable()


def trouble(clients: list[Client]) -> list[str]:
    """Return in words what went wrong with these clients."""
    found = []
    if dropped := sum(sum(client.dropped.values()) for client in clients):
        found.append(f"{dropped} notifications dropped")
    if closed := [client.client_id for client in clients if client.closed]:
        found.append(f"ended: {', '.join(closed)}")
    return found


async def leave(clients: list[Client], readers: list[asyncio.Task[None]]) -> None:
    """Close the clients and what reads from them."""
    for reader in readers:
        reader.cancel()
    with contextlib.suppress(KittiwakeError):
        await asyncio.gather(*(client.close() for client in clients))


async def account(clients: list[Client], handed: bytes, pipe: Connection) -> None:
    """End a publisher's process: when all is acknowledged, or after LAST_S, send `handed` and what went wrong; leave
    when told to.
    """
    deadline = time.monotonic() + LAST_S
    while any(client.unacknowledged for client in clients) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    pipe.send(handed)
    wrong = trouble(clients)
    for name in ("unacknowledged", "rejected"):
        if count := sum(getattr(client, name) for client in clients):
            wrong.append(f"{count} publications {name}")
    pipe.send(wrong)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await leave(clients, [])
