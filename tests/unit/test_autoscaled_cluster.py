"""A whole cluster of shells over loopback sockets, whose autoscaler follows the load: out, in, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.autoscaling import Autoscaling
from actors.recording import Recording
from autoscaler.policy import ScalingPolicy
from cluster import connect
from cluster.config import Metrics
from cluster.messages import COORDINATOR_PEER, MATCHER
from tests.unit.autoscaling import layer, policy
from tests.unit.conversation import conversation
from tests.unit.test_shells import Sockets, sockets

INTERVAL_MS = 100


def by_match_time(**parts: Any) -> ScalingPolicy:
    """A policy that splits as soon as there is anything to match, and merges when there is nothing, on any machine."""
    split = {"type": "split_merge", "split_above_ms": 0.0002, "merge_below_ms": 0.00005, "window_n": 20}
    section = layer(split | {"min_window_s": 0.2, "max_window_s": 1}, max_replicas=2)
    made: dict[str, Any] = {
        "metrics_interval_s": INTERVAL_MS / 1000,
        "evaluate_interval_s": 0.1,
        "look_back_period_s": 0.5,
        "layers": {"matcher": section},
        "guards": {"warmup_s": 0.3, "min_gain": 0},
    }
    return policy(**made | parts)


@asynccontextmanager
async def autoscaled(made: ScalingPolicy) -> AsyncIterator[tuple[Sockets, Autoscaling]]:
    """A cluster of one slice a layer, with its autoscaler."""
    async with sockets(metrics=Metrics(enabled=False, interval_ms=INTERVAL_MS)) as cluster:
        autoscaling = Autoscaling(cluster.coordinator, made, cluster.config.directory)
        autoscaling.begin(cluster.shells[COORDINATOR_PEER])
        yield cluster, autoscaling
        assert cluster.failures == []


async def until_matchers(cluster: Sockets, count: int) -> None:
    async with asyncio.timeout(120):
        while True:
            observed = cluster.coordinator.observed()
            if observed.sizes[MATCHER] == count and not observed.changing:
                return
            await asyncio.sleep(0.02)


async def newest(cluster: Sockets) -> dict[str, Any]:
    (entry,) = (await cluster.admin.autoscaler("explain", count=1))["decisions"]
    return dict(entry)


@conversation
async def test_it_grows_with_the_load_and_shrinks_after_it_and_nothing_is_lost() -> None:
    async with autoscaled(by_match_time()) as (cluster, _):
        async with connect(cluster.doors[0]) as subscriber, connect(cluster.doors[0], client_id="load") as publisher:
            group = await subscriber.subscribe_many([f"reading > {bound}" for bound in range(0, 2000, 10)])
            got: list[int] = []
            sent = 0
            done = False

            async def read() -> None:
                async for one in group:
                    got.append(one.sequence)

            async def publish() -> None:
                nonlocal sent
                while not done:
                    sent += 100
                    await publisher.publish_many({"reading": number % 1000 + 1} for number in range(100))
                    await asyncio.sleep(0.002)

            reader, load = asyncio.create_task(read()), asyncio.create_task(publish())
            await until_matchers(cluster, 2)
            done = True
            await load
            await until_matchers(cluster, 1)
            async with asyncio.timeout(120):
                while len(got) < sent:
                    await asyncio.sleep(0.02)
            reader.cancel()
            assert got == list(range(1, sent + 1))
        async with asyncio.timeout(120):  # it hears of the end at its next tick
            targets: list[int] = []
            while targets != [2, 1]:
                await asyncio.sleep(0.05)
                found = (await cluster.admin.autoscaler("explain", count=100))["decisions"]
                targets = [one["decision"]["targets"][MATCHER] for one in found if one["outcome"] == "done"]
        signals = Path(cluster.config.data_directory) / "signals"
        await asyncio.to_thread(cluster.shells[COORDINATOR_PEER].companions[-1].close)
        recorded = [row for _, row in Recording(signals)]
        assert {row.sizes[MATCHER] for row in recorded} == {1, 2}
        assert max(row.publications_per_s or 0 for row in recorded) > 100
        assert any(row.delay is not None and sum(row.delay) for row in recorded)


@conversation
async def test_a_pause_holds_it_and_operators_still_scale() -> None:
    """A cluster where nothing waits, by a policy that sizes by what waits."""
    async with autoscaled(by_match_time(layers={"matcher": layer({"type": "queue", "target_per_replica": 1000})})) as (
        cluster,
        _,
    ):
        assert (await cluster.admin.autoscaler("pause"))["paused"]
        operation = await cluster.admin.scale(matchers=2)
        assert operation["state"] == "done"
        async with asyncio.timeout(120):  # it would shrink at once
            while (entry := await newest(cluster))["decision"]["held"] != "paused" or entry["repeats"] < 5:
                await asyncio.sleep(0.05)
        assert cluster.coordinator.observed().sizes[MATCHER] == 2
        await cluster.admin.autoscaler("resume")
        await until_matchers(cluster, 1)


@conversation
async def test_what_cannot_be_started_is_in_the_explanation() -> None:
    from cluster.messages import Peer

    grow = layer({"type": "ratio", "of": "access_point", "one_per": 0.5})
    async with sockets(metrics=Metrics(enabled=False, interval_ms=INTERVAL_MS)) as cluster:
        cluster.broken.add(Peer(MATCHER, 1))
        autoscaling = Autoscaling(
            cluster.coordinator, by_match_time(layers={"matcher": grow}), cluster.config.directory
        )
        autoscaling.begin(cluster.shells[COORDINATOR_PEER])
        async with asyncio.timeout(120):
            while True:
                found = await cluster.admin.autoscaler("explain", count=50)
                if ended := [one for one in found["decisions"] if one["outcome"] == "aborted"]:
                    break
                await asyncio.sleep(0.05)
        assert "broken by the test" in ended[0]["reason"]
        assert cluster.coordinator.observed().sizes[MATCHER] == 1
