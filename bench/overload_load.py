"""The publishers of the overload: phases of open or closed loop, in rounds, timed by the batch.

A round is one publication of every publisher. Open loop: so many rounds are due by the clock. What is due while
`BACKLOG` publications of a publisher wait for their acknowledgements is given up at the source and counted as refused,
as a sensor would that has nowhere to keep it: flow control has reached it. Closed loop: as many as the window takes.

Publication i is of publisher i % publishers; refused ones have no number.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.load import connected_publishers, leave, no_pauses, trouble
from bench.process import run
from cluster import Client
from cluster.errors import KittiwakeError

TICK_S = 0.005
BATCH = 256
"""Rounds that are offered at once; one frame's worth, so that batches keep their order."""
BACKLOG = 16_384
"""Twice the default window: more than that would wait in the client alone."""


@dataclass
class Batches:
    """What was published, a row a batch of one publisher. acknowledged: infinite when it never was.

    first: the round of its first publication. due: of the whole batch; from the schedule, or when it was offered.
    """

    publisher: bytes
    first: bytes
    count: bytes
    due: bytes
    acknowledged: bytes


@dataclass
class Phase:
    """rate: publications a second over all publishers; None: closed loop.

    begin, end: as it was. offered, refused: publications. acknowledged: within it, whenever they were offered.
    """

    name: str
    rate: float | None
    seconds: float
    begin: float = 0.0
    end: float = 0.0
    offered: int = 0
    refused: int = 0
    acknowledged: int = 0

    @property
    def per_s(self) -> float:
        """Acknowledgements a second."""
        return self.acknowledged / (self.end - self.begin)


class _Load:
    def __init__(self, clients: list[Client], publications: Sequence[dict[str, Any]]) -> None:
        self.clients = clients
        self.publications = publications
        self.rounds = 0
        self.answered = 0
        """Publications acknowledged."""
        self._outstanding = [0] * len(clients)
        self.publisher, self.first, self.count = array("H"), array("Q"), array("I")
        self.due, self.acknowledged = array("d"), array("d")
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[str] = []

    def offer(self, rounds: int, due: float) -> None:
        """Have every publisher send so many. Tasks begin in the order in which they are made."""
        count, distinct = len(self.clients), len(self.publications)
        for place in range(count):
            numbers = range(self.rounds * count + place, (self.rounds + rounds) * count + place, count)
            batch = [self.publications[number % distinct] for number in numbers]
            row = len(self.due)
            for column, value in zip(
                (self.publisher, self.first, self.count, self.due, self.acknowledged),
                (place, self.rounds, rounds, due, float("inf")),
                strict=True,
            ):
                column.append(value)  # type: ignore[attr-defined]
            self._outstanding[place] += rounds
            task = asyncio.create_task(self._send(place, row, batch))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        self.rounds += rounds

    async def _send(self, place: int, row: int, batch: list[dict[str, Any]]) -> None:
        try:
            await self.clients[place].publish_many(batch)
        except KittiwakeError as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        else:
            self.acknowledged[row] = time.monotonic()
            self.answered += len(batch)
        self._outstanding[place] -= len(batch)

    @property
    def outstanding(self) -> int:
        """Publications of the publisher with the most that wait for their acknowledgements."""
        return max(self._outstanding)

    async def run(self, phase: Phase) -> None:
        """Carry out a phase."""
        count = len(self.clients)
        rounds_before, answered_before = self.rounds, self.answered
        phase.begin = time.monotonic()
        until = phase.begin + phase.seconds
        taken = 0
        while (now := time.monotonic()) < until:
            if phase.rate is None:
                if self.outstanding <= BACKLOG - BATCH:
                    self.offer(BATCH, now)
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(0.001)
                continue
            due = int((now - phase.begin) * phase.rate / count) - taken
            while due > 0:
                rounds = min(due, BATCH)
                if self.outstanding + rounds > BACKLOG:
                    phase.refused += due * count
                    taken += due
                    break
                # The batch counts from when its first round was due.
                self.offer(rounds, phase.begin + taken * count / phase.rate)
                taken += rounds
                due -= rounds
                await asyncio.sleep(0)
            await asyncio.sleep(TICK_S)
        phase.end = time.monotonic()
        phase.offered = (self.rounds - rounds_before) * count
        phase.acknowledged = self.answered - answered_before

    def batches(self) -> Batches:
        """Return what was published until now."""
        columns = (self.publisher, self.first, self.count, self.due, self.acknowledged)
        return Batches(*(column.tobytes() for column in columns))


async def _publish(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, drain_s: float, pipe: Connection
) -> None:
    clients = await connected_publishers(urls, publishers)
    no_pauses()
    load = _Load(clients, publications)
    pipe.send(None)
    loop = asyncio.get_running_loop()
    while (phase := await loop.run_in_executor(None, pipe.recv)) is not None:
        await load.run(phase)
        pipe.send(phase)
    if load.tasks:
        await asyncio.wait(load.tasks, timeout=drain_s)
    pipe.send((load.batches(), load.rounds * publishers))
    pipe.send(trouble(clients) + load.failures[:10])
    for task in load.tasks:
        task.cancel()
    await loop.run_in_executor(None, pipe.recv)
    await leave(clients, [])


def publish(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, drain_s: float, pipe: Connection
) -> None:
    """The publishers' process. Sends None when it is ready. Gets a Phase, carries it out and sends it back. Gets None:
    sends all batches and the number of publications, then what went wrong; gets leave to go.
    """
    run(_publish(urls, publications, publishers, drain_s, pipe))
