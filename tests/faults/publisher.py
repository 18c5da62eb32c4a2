"""A publisher in a process of its own, that a test may kill at any moment.

    python -m tests.faults.publisher URL CLIENT_ID INSTANCE FIRST_SEQUENCE LAST

Publishes {"n": number} for FIRST_SEQUENCE to LAST, some at a time; writes a line for each number that everything up to
is acknowledged, as soon as it knows; ends when all are.
"""

from __future__ import annotations

import asyncio
import sys

from cluster import connect

AT_A_TIME = 40


async def publish(url: str, client_id: str, instance: int, first: int, last: int) -> None:
    """Publish; say how far it has got."""
    told = first - 1
    async with connect(url, client_id=client_id, instance=instance, first_sequence=first) as client:
        tasks: set[asyncio.Task[None]] = set()
        number = first
        while told < last:
            while number <= last and len(tasks) < AT_A_TIME:
                tasks.add(asyncio.create_task(client.publish({"n": number})))
                number += 1
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if client.acknowledged > told:
                told = client.acknowledged
                print(told, flush=True)


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
