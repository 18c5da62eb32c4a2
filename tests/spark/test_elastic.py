"""A cluster grows and shrinks while a streaming query follows its output: each matched publication once, in order."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from cluster import Client, connect
from cluster.config import ClientPort, Config, Layers, OutputSettings
from cluster.spark.jobs import running
from cluster.spark.jobs.options import JobOptions
from tests.unit.test_shells import PATIENT, Sockets

PUBLISHERS = 4
STEP_ROWS = 300
"""Rows that the query takes between two changes of the cluster."""


class Feed:
    """Publishers that go on until they are told to stop. published: how many each has; every third matches nothing."""

    def __init__(self) -> None:
        self.published: dict[str, int] = defaultdict(int)
        self.done = False

    async def publish(self, client: Client) -> None:
        while not self.done:
            first = self.published[client.client_id] + 1
            chunk = [
                {"station": "Retiro", "quantity": "no2", "no2": float(number % 100), "wanted": number % 3 > 0}
                for number in range(first, first + 12)
            ]
            self.published[client.client_id] += len(chunk)
            await client.publish_many(chunk)
            await asyncio.sleep(0.03)

    def matched(self) -> set[tuple[str, int]]:
        return {
            (name, sequence)
            for name, count in self.published.items()
            for sequence in range(1, count + 1)
            if sequence % 3 > 0
        }


def rows_read(query: StreamingQuery) -> dict[int, int]:
    """Return how many rows of each slot the query has taken: the offsets at which its last batch ended."""
    failure = query.exception()
    assert failure is None, failure
    last: Any = query.lastProgress
    end = None if last is None else last["sources"][0]["endOffset"]
    found = json.loads(end) if isinstance(end, str) else end or {}
    return {int(slot): offset for slot, offset in found.items()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)


def test_the_cluster_changes_its_size_while_a_query_follows(spark: SparkSession, tmp_path: Path) -> None:
    out, lake = tmp_path / "output", tmp_path / "lake"
    config = Config(
        data_directory=str(tmp_path),
        client_port=ClientPort(port=0),
        layers=Layers(matchers=1, exit_points=1),
        timing=PATIENT,
        output=OutputSettings(path=str(out), segment_age_s=0.3),
    )
    feed = Feed()

    def follow() -> StreamingQuery:
        frame = running.Input(path=str(out)).follow(spark, running.columns_of("store"))
        (query,) = running.start("store", frame, JobOptions(), lake, trigger_s=0.5)
        return query

    async def story() -> StreamingQuery:
        cluster = Sockets(config, tmp_path)
        await cluster.start()
        clients = []
        try:
            lab = await connect(cluster.doors[0], client_id="lab")
            clients.append(lab)
            subscription = await lab.subscribe("wanted == true")
            reading = asyncio.create_task(consume(subscription))
            query = await asyncio.to_thread(follow)
            for number in range(PUBLISHERS):
                clients.append(await connect(cluster.doors[0], client_id=f"publisher-{number}"))
            sending = [asyncio.create_task(feed.publish(client)) for client in clients[1:]]
            await until(lambda: sum(rows_read(query).values()) > STEP_ROWS)
            for layers in ({"exit_points": 2}, {"matchers": 2}, {"exit_points": 1, "matchers": 1}):
                before = rows_read(query)
                await cluster.admin.scale(**layers)
                # The query goes on with every slot that writes.
                playing = range(layers.get("exit_points", 2))
                await until(
                    lambda slots=playing, before=before: all(  # type: ignore[misc]
                        rows_read(query).get(slot, 0) > before.get(slot, 0) + STEP_ROWS // 2 for slot in slots
                    )
                )
            feed.done = True
            await asyncio.gather(*sending)
            reading.cancel()
        finally:
            for client in clients:
                await client.close()
            await cluster.close()
        assert not cluster.failures
        return query

    query = asyncio.run(story())
    query.processAllAvailable()
    query.stop()
    rows = [
        (row["publisher"], row["sequence"], row["epoch"], row["slot"], row["offset"])
        for row in spark.read.parquet(str(lake / "store"))
        .select("publisher", "sequence", "epoch", "slot", "offset")
        .collect()
    ]
    assert {row[3] for row in rows} == {0, 1}
    assert len({row[2] for row in rows}) >= 4, "there were changes of view between the rows"
    assert {(publisher, sequence) for publisher, sequence, *_ in rows} == feed.matched()
    assert len(rows) == len(feed.matched()), "a row is there twice"
    offsets: dict[int, list[int]] = defaultdict(list)
    for *_, slot, offset in rows:
        offsets[slot].append(offset)
    assert {slot: sorted(found) for slot, found in offsets.items()} == {
        slot: list(range(len(found))) for slot, found in offsets.items()
    }
    for name in feed.published:
        mine = sorted((epoch, slot, offset, sequence) for of, sequence, epoch, slot, offset in rows if of == name)
        sequences = [sequence for *_, sequence in mine]
        assert sequences == sorted(sequences), f"{name} is out of order"
        assert len({(epoch, slot) for epoch, slot, *_ in mine}) == len({epoch for epoch, *_ in mine})


async def consume(notifications: Any) -> None:
    async for _ in notifications:
        pass
