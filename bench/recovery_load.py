"""The publishers of a run with faults: open loop, and each publication's acknowledgement is timed.

Publication i is due at begin + i / rate, whatever the broker does; publisher i % publishers sends it. While a publisher
waits for its connection or its window, what is due for it waits in line in this process; its delay counts from when
it was due all the same.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from bench.load import connected_publishers, leave, no_pauses, trouble
from bench.process import run, wait_until
from cluster import Client
from cluster.errors import KittiwakeError, RejectedError

NEVER = float("inf")


class _Publishers:
    """latest: by publisher, when the newest acknowledged publication was due; shared with the process that measures."""

    def __init__(self, clients: list[Client], latest: Any) -> None:
        self.clients = clients
        self.latest = latest
        self.acknowledged = array("d")
        self.underway: set[asyncio.Task[None]] = set()
        self.rejected: list[str] = []

    def publish(self, number: int, due: float, publication: dict[str, Any]) -> None:
        """Have a publication sent. Tasks begin in the order in which they are made, so numbers stay in order."""
        self.acknowledged.append(NEVER)
        task = asyncio.create_task(self._publish(number, due, publication))
        self.underway.add(task)
        task.add_done_callback(self.underway.discard)

    async def _publish(self, number: int, due: float, publication: dict[str, Any]) -> None:
        place = number % len(self.clients)
        try:
            await self.clients[place].publish(publication)
        except RejectedError as error:
            self.rejected.append(f"publication {number}: {error}")
        except KittiwakeError:
            return  # the client has ended, which is told as such
        else:
            self.acknowledged[number] = time.monotonic()
            self.latest[place] = max(self.latest[place], due)


async def _publish(
    urls: list[str],
    publications: Sequence[dict[str, Any]],
    publishers: int,
    rate: float,
    end: Any,
    latest: Any,
    drain_s: float,
    pipe: Connection,
) -> None:
    clients = await connected_publishers(urls, publishers)
    pipe.send(None)
    begin: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    no_pauses()
    load = _Publishers(clients, latest)
    number = 0
    while (due := begin + number / rate) < end.value:
        await wait_until(due)
        load.publish(number, due, publications[number % len(publications)])
        number += 1
        await asyncio.sleep(0)
    if load.underway:
        await asyncio.wait(load.underway, timeout=drain_s)
    pipe.send(load.acknowledged.tobytes())
    wrong = trouble(clients)
    if load.rejected:
        wrong.append(f"{len(load.rejected)} publications rejected, the first: {load.rejected[0]}")
    pipe.send((wrong, sum(client.reconnections for client in clients)))
    for task in load.underway:
        task.cancel()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await leave(clients, [])


def publish(
    urls: list[str],
    publications: Sequence[dict[str, Any]],
    publishers: int,
    rate: float,
    end: Any,
    latest: Any,
    drain_s: float,
    pipe: Connection,
) -> None:
    """The publishers' process. Sends None when it is ready; gets when to begin; ends when it is `end.value`; sends when
    each publication was acknowledged (infinite: never, within drain_s of the end), then what went wrong and how often
    it has reconnected; gets leave to go.
    """
    run(_publish(urls, publications, publishers, rate, end, latest, drain_s, pipe))
