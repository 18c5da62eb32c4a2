"""Cell T6: the SDK through bad links, over real machines, with traffic all the while.

Judged is what the README promises today. A publisher: everything acknowledged is delivered once and in order, whatever
its link does, and it goes on by itself. A subscriber whose session is not durable: in order and once; nothing is
missing while its connection lasts; after a reconnect its subscriptions are in force before anything that it publishes
itself goes out, and from then on nothing is missing again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster import frames
from cluster.client import Client
from cluster.client.address import Connector
from cluster.codec import decode_client_frame
from cluster.config import Config, Layers, Timing
from cluster.errors import ConnectionLostError
from cluster.messages import EXIT_POINT
from cluster.testing import LocalCluster
from tests.faults.proxy import FaultProxy
from tests.unit.conversation import conversation

LAYERS = Layers(connection_points=2, access_points=2, matchers=2, exit_points=2)
PATIENT = Config(layers=LAYERS)
NERVOUS = Config(layers=LAYERS, timing=Timing(client_heartbeat_ms=50))
"""A connection that says nothing is noticed soon."""
QUICK = {"backoff_s": (0.002, 0.01), "connect_timeout_s": 30.0}
BURST = 20
ROUNDS = 12
"""Faults in one test, each under traffic."""

Act = Callable[[FaultProxy, random.Random], Awaitable[None]]


async def nothing_but_delay(proxy: FaultProxy, rng: random.Random) -> None:
    proxy.up.delay_s = proxy.down.delay_s = rng.choice((0.0, 0.01, 0.02))
    proxy.up.jitter_s = proxy.down.jitter_s = rng.choice((0.0, 0.01))


async def slices(proxy: FaultProxy, rng: random.Random) -> None:
    proxy.up.slice_bytes = rng.choice((1, 3, 100))
    proxy.down.slice_bytes = rng.choice((1, 7, None))


async def bandwidth(proxy: FaultProxy, rng: random.Random) -> None:
    proxy.up.bytes_per_s = proxy.down.bytes_per_s = rng.choice((20_000.0, 200_000.0))


async def resets(proxy: FaultProxy, rng: random.Random) -> None:
    await asyncio.sleep(rng.random() * 0.02)
    proxy.reset()


async def resets_in_pieces(proxy: FaultProxy, rng: random.Random) -> None:
    proxy.up.slice_bytes = 5
    proxy.down.jitter_s = 0.002
    await asyncio.sleep(rng.random() * 0.02)
    proxy.reset()


async def cuts_within_frames(proxy: FaultProxy, rng: random.Random) -> None:
    way = rng.choice(("up", "down"))
    proxy.cut(**{way: rng.randrange(1, 400)})
    proxy.reset()


async def half_open(proxy: FaultProxy, rng: random.Random) -> None:
    await asyncio.sleep(rng.random() * 0.02)
    proxy.go_silent()


async def late_doubles(proxy: FaultProxy, rng: random.Random) -> None:
    proxy.hold()
    await asyncio.sleep(0.005 + rng.random() * 0.01)
    proxy.deliver_late()


LASTING: dict[str, Act] = {"delay": nothing_but_delay, "slices": slices, "bandwidth": bandwidth}
"""The connection survives these."""
CUTTING: dict[str, Act] = {
    "reset": resets,
    "reset in pieces": resets_in_pieces,
    "cut": cuts_within_frames,
    "half-open": half_open,
    "late doubles": late_doubles,
}


def config_for(name: str) -> Config:
    """Return the configuration for a fault: a heartbeat that is soon missed would end connections that are but slow."""
    return NERVOUS if name == "half-open" else PATIENT


def way_to(local: LocalCluster, *places: int) -> Connector:
    """Return a connector to these connection points in turn, as a URL with several hosts has it."""
    turn = 0

    async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        nonlocal turn
        place = places[turn % len(places)]
        turn += 1
        return local._open(local._assembly.connection_points()[place], factory())

    return connector


def through(proxy: FaultProxy, client_id: str) -> Client:
    """Return a client whose only way leads through the proxy."""

    async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        transport, _ = await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", proxy.port)
        return transport

    return Client([connector], client_id=client_id, rng=random.Random(client_id), **QUICK)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def reading(stream: AsyncIterator[object], into: list[int]) -> AsyncIterator[None]:
    async def read() -> None:
        async for notification in stream:
            into.append(notification.attributes["n"])  # type: ignore[attr-defined]

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()


def doubles(local: LocalCluster) -> int:
    """Return how many publications the exit points have dropped as doubles."""
    roles = local._assembly.roles.items()
    return sum(role.machine.gauges()["duplicates"] for peer, role in roles if peer.layer == EXIT_POINT)


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


# A publisher -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LASTING, *CUTTING])
@pytest.mark.parametrize("places", [(0,), (0, 1)], ids=["same", "changing"])
def test_what_is_acknowledged_through_a_bad_link_is_delivered_once_and_in_order(
    name: str, places: tuple[int, ...]
) -> None:
    act = LASTING.get(name) or CUTTING[name]

    @conversation
    async def story() -> None:
        rng = random.Random(f"{name} {places}")
        got: list[int] = []
        acknowledged: list[int] = []
        done = False
        async with LocalCluster(config=config_for(name)) as local, FaultProxy(way_to(local, *places), rng=rng) as proxy:
            subscriber = await local.connect("subscriber", connection_point=1)
            publisher = await through(proxy, "publisher")
            stream = await subscriber.subscribe("n >= 0")

            async def publish() -> None:
                while not done:
                    first = len(acknowledged)
                    await publisher.publish_many({"n": number} for number in range(first, first + BURST))
                    acknowledged.extend(range(first, first + BURST))
                    await asyncio.sleep(0)

            async with reading(stream, got):
                publishing = asyncio.create_task(publish())
                for number in range(ROUNDS):
                    before = publisher.reconnections
                    await act(proxy, rng)
                    if name in CUTTING:
                        await eventually(lambda before=before: publisher.reconnections > before)  # type: ignore[misc]
                    else:
                        mark = len(acknowledged)
                        await eventually(lambda mark=mark: len(acknowledged) > mark)  # type: ignore[misc]
                    if number % 3 == 2:
                        proxy.heal()
                proxy.heal()
                done = True
                await publishing
                await eventually(lambda: len(got) >= len(acknowledged))
            assert got == acknowledged, "lost, doubled or out of order"
            assert publisher.unacknowledged == 0
            assert name != "late doubles" or places == (0,) or doubles(local) > 0, "nothing came twice"
            if name in CUTTING:
                assert publisher.reconnections >= ROUNDS
            else:
                assert publisher.reconnections == 0
            await publisher.close()
            await subscriber.close()

    story()


@conversation
async def test_frames_that_come_again_after_a_reconnect_are_dropped() -> None:
    async with LocalCluster(config=PATIENT) as local, FaultProxy(way_to(local, 0, 1)) as proxy:
        subscriber = await local.connect("subscriber")
        publisher = await through(proxy, "publisher")
        stream = await subscriber.subscribe("n >= 0")
        got: list[int] = []
        async with reading(stream, got):
            for begin in range(0, 200, 20):
                await publisher.publish_many({"n": number} for number in range(begin, begin + 20))
                before = publisher.reconnections
                count = proxy.replay(3, only=lambda body: isinstance(decode_client_frame(body), frames.Publish))
                assert count > 0, "there was nothing to say again"
                proxy.reset()
                await eventually(lambda before=before: publisher.reconnections > before)  # type: ignore[misc]
            await publisher.publish({"n": 200})
            await eventually(lambda: len(got) >= 201)
        assert got == list(range(201))
        assert doubles(local) >= 10, "none of the frames arrived again"
        await publisher.close()
        await subscriber.close()


@conversation
async def test_a_client_that_may_not_reconnect_ends_and_says_why() -> None:
    async with LocalCluster(config=NERVOUS) as local, FaultProxy(way_to(local, 0)) as proxy:

        async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            transport, _ = await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", proxy.port)
            return transport

        client = await Client([connector], client_id="once", reconnect=False)
        await client.publish({"n": 1})
        proxy.go_silent()
        with pytest.raises(ConnectionLostError, match=r"nothing was heard of the broker for 0\.15 s"):
            await client.publish({"n": 2})
        assert client.closed
        await client.close()


# A subscriber ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LASTING)
def test_a_slow_or_sliced_link_loses_a_subscriber_nothing(name: str) -> None:
    @conversation
    async def story() -> None:
        rng = random.Random(name)
        async with LocalCluster(config=config_for(name)) as local, FaultProxy(way_to(local, 0), rng=rng) as proxy:
            subscriber = await through(proxy, "subscriber")
            publisher = await local.connect("publisher", connection_point=1)
            stream = await subscriber.subscribe("n >= 0")
            got: list[int] = []
            async with reading(stream, got):
                for begin in range(0, ROUNDS * BURST, BURST):
                    await LASTING[name](proxy, rng)
                    await publisher.publish_many({"n": number} for number in range(begin, begin + BURST))
                proxy.heal()
                await eventually(lambda: len(got) >= ROUNDS * BURST)
            assert got == list(range(ROUNDS * BURST))
            assert subscriber.reconnections == 0
            await publisher.close()
            await subscriber.close()

    story()


@pytest.mark.parametrize("name", [name for name in CUTTING if name != "late doubles"])
def test_a_subscriber_that_reconnects_misses_nothing_from_its_own_next_publication_on(name: str) -> None:
    @conversation
    async def story() -> None:
        rng = random.Random(name)
        async with LocalCluster(config=config_for(name)) as local, FaultProxy(way_to(local, 0, 1), rng=rng) as proxy:
            subscriber = await through(proxy, "subscriber")
            publisher = await local.connect("publisher", connection_point=1)
            stream = await subscriber.subscribe("n >= 0 or probe > 0")
            probes = await subscriber.subscribe("probe > 0")
            wanted = await subscriber.subscribe("n < 0")
            await wanted.update("n >= 0 and n < 100000")
            ids = {stream.id, wanted.id}
            got: list[int] = []
            next_number = 0
            required: list[int] = []
            done = False

            async def publish() -> None:
                nonlocal next_number
                while not done:
                    await publisher.publish({"n": next_number})
                    next_number += 1
                    await asyncio.sleep(0)

            async def read() -> None:
                async for notification in wanted:
                    assert set(notification.subscription_ids) == ids
                    got.append(int(notification.attributes["n"] or 0))

            reader, publishing = asyncio.create_task(read()), asyncio.create_task(publish())
            drained = asyncio.create_task(drain(stream))
            for number in range(1, ROUNDS + 1):
                before = subscriber.reconnections
                await CUTTING[name](proxy, rng)
                await eventually(lambda before=before: subscriber.reconnections > before)  # type: ignore[misc]
                proxy.heal()
                await eventually(lambda: subscriber.connected)
                at = subscriber.reconnections
                await subscriber.publish({"probe": number})
                first = next_number + 1  # the one before may have been under way
                last = first + BURST

                def over(last: int = last, at: int = at) -> bool:
                    return bool(got and got[-1] > last) or subscriber.reconnections > at

                await eventually(over)
                if subscriber.reconnections == at:  # else it was cut once more
                    required += range(first, last)
            done = True
            await publishing
            await publisher.publish({"n": next_number})
            await eventually(lambda: got[-1:] == [next_number])
            assert got == sorted(set(got)), "doubled, or out of order"
            assert set(required) <= set(got), f"missing: {sorted(set(required) - set(got))}"
            assert len(required) >= BURST * 3, "the connections did not last"
            assert (stream.closed, probes.closed, wanted.filter) == (False, False, "n >= 0 and n < 100000")
            for task in (reader, drained):
                task.cancel()
            await publisher.close()
            await subscriber.close()

    story()


async def drain(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass
