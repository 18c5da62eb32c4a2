"""The slow subscribers' process: each wants everything, and reads at its own pace or not at all.

It is not the process of the others, whose delays are measured: what a slow one takes of its own loop delays nobody
else's notifications.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bench import load
from bench.process import run
from cluster import Client, connect

REST_S = 3.0
"""Without a notification for so long, a slow one has everything."""
NEVER = float("inf")


@dataclass
class _Reader:
    """A slow subscriber. pace: seconds between two notifications; infinite: none until the end; 0: as they come."""

    client: Client
    pace: float
    sequences: dict[str, array[int]] = field(default_factory=dict)
    last: float = 0.0

    async def read(self, stream: Any, hurry: asyncio.Event) -> None:
        if self.pace == NEVER:
            await hurry.wait()
        async for notification in stream:
            self.sequences.setdefault(notification.publisher, array("Q")).append(notification.sequence)
            self.last = time.monotonic()
            if self.pace and not hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.pace):
                        await hurry.wait()


async def _slow(
    urls: list[str], run_name: str, paces: list[float], filter: str, policy: Any, window: int, pipe: Connection
) -> None:
    hurry = asyncio.Event()
    readers: list[_Reader] = []
    tasks: list[asyncio.Task[None]] = []
    for place, pace in enumerate(paces):
        url = urls[place % len(urls)]
        client = await connect(url, client_id=f"{run_name}-slow-{place}", receive_window=window)
        readers.append(_Reader(client, pace))
        stream = await client.subscribe(filter, policy=policy)
        tasks.append(asyncio.create_task(readers[-1].read(stream, hurry)))
    pipe.send(None)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    hurry.set()
    asked = time.monotonic()
    while time.monotonic() - max([asked, *(one.last for one in readers)]) < REST_S:
        await asyncio.sleep(0.05)
    pipe.send(
        [
            (
                {name: sequences.tobytes() for name, sequences in one.sequences.items()},
                dict(one.client.dropped),
                one.client.reconnections,
            )
            for one in readers
        ]
    )
    await load.leave([one.client for one in readers], tasks)


def slow(
    urls: list[str], run_name: str, paces: list[float], filter: str, policy: Any, window: int, pipe: Connection
) -> None:
    """The slow ones' process. Sends None when they are there; gets None when the load is over; sends, for each, the
    sequences it got by publisher, what was dropped by reason, and how often it reconnected.
    """
    run(_slow(urls, run_name, paces, filter, policy, window, pipe))
