"""Publications with `valid_for`, as users see them: the SDK on the real machines, in `cluster.testing.LocalCluster`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster import RejectedError
from cluster.client import Client, Subscription
from cluster.config import Config, Flow, Layers, ValidSettings
from cluster.messages import CONNECTION_POINT, Tick
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation

MANY = Layers(connection_points=3, access_points=2, matchers=2, exit_points=2)


async def take(subscription: Subscription, count: int) -> list[tuple[int, bool]]:
    """Take so many notifications; return attribute n and whether it was an initial one."""
    got: list[tuple[int, bool]] = []
    while len(got) < count:
        got += [(int(one.attributes["n"] or 0), one.initial) for one in await subscription.take(count - len(got))]
    return got


async def rest(client: Client, subscription: Subscription) -> list[tuple[int, bool]]:
    """Publish one more that matches; return what came before it."""
    await client.publish({"n": -1})
    got: list[tuple[int, bool]] = []
    while (-1, False) not in got:
        got += await take(subscription, 1)
    assert got[-1] == (-1, False)
    return got[:-1]


def gauge(cluster: LocalCluster, name: str) -> int:
    """Return a gauge's sum over the connection points."""
    roles = cluster._assembly.roles
    return sum(role.machine.gauges()[name] for peer, role in roles.items() if peer.layer == CONNECTION_POINT)


README = Path(__file__).parents[2] / "README.md"


@conversation
async def test_the_example_of_the_readme_prints_what_it_says() -> None:
    text = README.read_text(encoding="utf-8").partition("<!-- valid:begin -->")[2].partition("<!-- valid:end -->")[0]
    code = text.partition("```python\n")[2].partition("```")[0].replace("from cluster import connect\n", "")
    said = [line.partition("  # ")[2] for line in code.splitlines() if "print(" in line]
    printed: list[str] = []
    async with LocalCluster() as local:
        names = {
            "connect": lambda _, client_id: local.connect(client_id),
            "url": "kittiwake://127.0.0.1:7400",
            "print": lambda *what: printed.append(" ".join(map(str, what))),
        }
        body = "async def example():\n" + "".join(f"    {line}\n" for line in code.splitlines())
        exec(compile(body, "README.md", "exec"), names)
        await names["example"]()  # type: ignore[operator]
        assert gauge(local, "valid_publications") == 1
    assert printed == said
    assert len(said) == 3


@contextlib.asynccontextmanager
async def monkeypatched() -> AsyncIterator[pytest.MonkeyPatch]:
    """Give a patch that is taken back."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def closed_door(*_: object) -> None:
    """Let nobody in."""
    raise ConnectionRefusedError("the door is closed")


@conversation
async def test_a_new_subscription_gets_the_valid_ones_that_match_then_live_ones() -> None:
    async with (
        LocalCluster(config=Config(layers=MANY)) as cluster,
        cluster.connect("one", connection_point=0) as one,
        cluster.connect("two", connection_point=1) as two,
        cluster.connect("lab", connection_point=2) as lab,
    ):
        await one.publish({"n": 1}, valid_for=60)
        await one.publish({"n": 2})
        await one.publish_many([{"n": 3}, {"n": 4}, {"m": 5}], valid_for=math.inf)
        await two.publish({"n": 6}, valid_for=60, ack="none")
        await two.publish({"n": 7})
        subscription = await lab.subscribe("n < 100", initial="valid")
        await one.publish({"n": 8}, valid_for=60)
        assert await take(subscription, 5) == [(1, True), (3, True), (4, True), (6, True), (8, False)]
        plain = await lab.subscribe("n < 100")
        await one.publish({"n": 9})
        assert await take(plain, 1) == [(9, False)]
        assert gauge(cluster, "valid_publications") == 6
        assert gauge(cluster, "valid_questions") == 0


@conversation
async def test_what_is_unpublished_is_given_to_nobody_from_any_connection_point() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as cluster:
        async with cluster.connect("sensor", connection_point=0) as sensor:
            first = await sensor.publish({"n": 1}, valid_for=math.inf)
            second = await sensor.publish({"n": 2}, valid_for=math.inf)
            await sensor.publish({"n": 3}, valid_for=math.inf)
            await sensor.unpublish(first)
        async with (
            cluster.connect("sensor", connection_point=1) as again,
            cluster.connect("thief", connection_point=1) as thief,
            cluster.connect("lab", connection_point=2) as lab,
        ):
            await again.unpublish(second)  # of another life
            await thief.unpublish(3, instance="any")  # of another publisher
            assert await take(await lab.subscribe("n < 100", initial="valid"), 2) == [(2, True), (3, True)]
            await again.unpublish(second, instance="any")
            # Under number 2 of this life nothing is valid any more, it is unpublished before it is published.
            await again.publish_many([{"n": -2}, {"n": 4}], valid_for=math.inf)
            subscription = await lab.subscribe("n < 100", initial="valid")
            assert await rest(again, subscription) in ([(3, True), (-2, True)], [(-2, True), (3, True)])
            with pytest.raises(ValueError, match="sequence is 0"):
                await again.unpublish(0)
        assert gauge(cluster, "valid_publications") == 2


@conversation
async def test_what_has_expired_is_given_to_nobody_and_its_memory_returns() -> None:
    async with (
        LocalCluster(connection_points=2) as cluster,
        cluster.connect("sensor") as sensor,
        cluster.connect("lab", connection_point=1) as lab,
    ):
        await sensor.publish_many([{"n": n} for n in range(100)], valid_for=60)
        await sensor.publish({"n": 100}, valid_for=600)
        assert gauge(cluster, "valid_bytes") > 0
        for peer, role in cluster._assembly.roles.items():
            if peer.layer == CONNECTION_POINT:
                cluster._assembly.feed(peer, Tick(role.machine._shared.now_ms + 61_000))  # type: ignore[attr-defined]
        assert await rest(sensor, await lab.subscribe("n < 1000", initial="valid")) == [(100, True)]
        assert gauge(cluster, "valid_publications") == 1
        assert gauge(cluster, "valid_expired") == 100


@conversation
async def test_a_returning_subscriber_is_given_what_it_has_missed_and_nothing_twice() -> None:
    async with (
        LocalCluster(config=Config(layers=MANY)) as cluster,
        monkeypatched() as monkeypatch,
        cluster.connect("sensor", connection_point=0) as sensor,
        cluster.connect("lab", connection_point=1, backoff_s=(0.0, 0.0)) as lab,
    ):
        await sensor.publish({"n": 1}, valid_for=math.inf)
        subscription = await lab.subscribe("n < 100", initial="valid")
        await sensor.publish({"n": 2}, valid_for=math.inf)
        assert await take(subscription, 2) == [(1, True), (2, False)]
        door = cluster._open
        monkeypatch.setattr(cluster, "_open", closed_door)
        for (peer, _), transport in list(cluster._sockets.items()):
            if peer.slot == 1:
                transport.cut()
        while lab.connected:
            await asyncio.sleep(0)
        await sensor.publish({"n": 3}, valid_for=math.inf)
        await sensor.publish({"n": 4})  # missed for good
        monkeypatch.setattr(cluster, "_open", door)
        assert await take(subscription, 1) == [(3, True)]
        assert await rest(sensor, subscription) == []
        assert lab.reconnections == 1


@conversation
async def test_a_connection_point_that_leaves_hands_over_what_is_valid() -> None:
    async with (
        LocalCluster(config=Config(layers=MANY)) as cluster,
        cluster.connect("sensor", connection_point=2) as sensor,
        cluster.connect("lab", connection_point=2) as lab,
    ):
        await sensor.publish_many([{"n": n} for n in range(1000)], valid_for=3600)
        subscription = await lab.subscribe("n < 2000", initial="valid")
        assert await take(subscription, 1000) == [(n, True) for n in range(1000)]
        await asyncio.wait_for(cluster.admin.scale(connection_points=1), 120)
        assert gauge(cluster, "valid_publications") == 1000
        late = await lab.subscribe("n < 2000", initial="valid")
        assert await take(late, 1000) == [(n, True) for n in range(1000)]
        assert await rest(sensor, late) == []
        assert await take(subscription, 1) == [(-1, False)]  # nothing twice by the move


@conversation
async def test_beyond_the_limits_a_publication_is_delivered_and_not_kept() -> None:
    valid = ValidSettings(publications=2, bytes=10_000, for_s_max=100)
    async with LocalCluster(config=Config(valid=valid)) as cluster, cluster.connect("lab") as lab:
        subscription = await lab.subscribe("n < 100")
        await lab.publish({"n": 1}, valid_for=10)
        with pytest.raises(RejectedError, match=r"not kept as valid: valid for 101 s, the limit is 100 s") as caught:
            await lab.publish({"n": 2}, valid_for=101)
        assert caught.value.sequence == 2
        with pytest.raises(RejectedError, match=r"2 of 3 publications, the first: .* 2 publications are valid"):
            await lab.publish_many([{"n": 3}, {"n": 4}, {"n": 5}], valid_for=math.inf)
        assert (lab.rejected, lab.not_kept) == (0, 3)
        assert await take(subscription, 5) == [(n, False) for n in range(1, 6)]
        assert await rest(lab, await lab.subscribe("n < 100", initial="valid")) == [(1, True), (3, True)]
        for bad in (-1, math.nan, 1e300):
            with pytest.raises(ValueError, match="valid_for is"):
                await lab.publish({"n": 1}, valid_for=bad)
        with pytest.raises(ValueError, match="initial is 'all'"):
            await lab.subscribe("n < 100", initial="all")  # type: ignore[arg-type]


@conversation
async def test_a_small_window_takes_the_valid_ones_bit_by_bit_and_live_ones_wait_behind_them() -> None:
    config = Config(layers=Layers(connection_points=2), flow=Flow(receive_window=4, queue_messages=1000))
    async with (
        LocalCluster(config=config) as cluster,
        cluster.connect("sensor") as sensor,
        cluster.connect("lab", connection_point=1) as lab,
    ):
        await sensor.publish_many([{"n": n} for n in range(20)], valid_for=60)
        subscription = await lab.subscribe("n >= 0", initial="valid")
        await sensor.publish_many([{"n": n} for n in range(20, 30)], valid_for=60)
        assert gauge(cluster, "valid_given") <= 4
        assert await take(subscription, 30) == [(n, n < 20) for n in range(30)]


@conversation
async def test_a_group_and_the_wide_stream_are_given_what_is_valid_too() -> None:
    async with LocalCluster() as cluster, cluster.connect("lab") as lab:
        await lab.publish_many([{"n": n} for n in range(4)], valid_for=60)
        group = await lab.subscribe_many(["n < 2", "n >= 2"], initial="valid")
        got = [one.attributes["n"] for one in await group.take(4)]
        while len(got) < 4:
            got += [one.attributes["n"] for one in await group.take(4)]
        assert sorted(map(int, got)) == [0, 1, 2, 3]  # type: ignore[arg-type]
        wide = lab.notifications()
        await lab.subscribe("n == 3", initial="valid")
        (one,) = await wide.take(1)
        assert (one.attributes["n"], one.initial) == (3, True)
