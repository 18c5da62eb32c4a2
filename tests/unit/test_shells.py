"""Shells and lanes over loopback sockets, a whole cluster of them in one process: lanes that are cut lose nothing."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from actors.shell import Link, Shell
from actors.start import start_role
from actors.transport import Identity
from cluster.client import Client, connect
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.config import ClientPort, Config, Flow, Layers, Timing
from cluster.coordinator import Coordinator, expected_slots
from cluster.frames import VERSION, Hello, Refused, Subscribe
from cluster.messages import CONNECTION_POINT, COORDINATOR, COORDINATOR_PEER, Peer
from cluster.role import Role
from tests.unit.conversation import conversation

LOOPBACK = "127.0.0.1"
SECRET = secrets.token_bytes(32)


class Sockets:
    """A cluster whose roles are shells on this loop. failures: what machines raised."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.coordinator = Coordinator(config)
        self.shells: dict[Peer, Shell] = {}
        self.roles: dict[Peer, Role] = {}
        self.doors: list[str] = []
        self.failures: list[BaseException] = []

    async def start(self) -> None:
        shell = Shell(Identity(COORDINATOR, 0, 1), SECRET, self.coordinator, failed=self.failures.append)
        self.shells[COORDINATOR_PEER] = shell
        port = await shell.listen(LOOPBACK)
        for peer in expected_slots(self.config):
            await self.start_role(peer, port)
        while self.coordinator.state.value != "serving":
            await asyncio.sleep(0.01)

    async def start_role(self, peer: Peer, coordinator_port: int) -> None:
        self.shells[peer], self.roles[peer], door = await start_role(
            peer,
            1,
            self.config,
            SECRET,
            host=LOOPBACK,
            coordinator=(LOOPBACK, coordinator_port),
            failed=self.failures.append,
        )
        if door:
            self.doors.append(f"kittiwake://{door}")

    async def stop(self) -> None:
        for shell in self.shells.values():
            await shell.stop()
        await asyncio.sleep(0)

    def links(self) -> list[tuple[Shell, Link]]:
        """Return both ends of every lane that is connected."""
        return [
            (shell, link)
            for shell in self.shells.values()
            for link in shell._links.values()
            if link.protocol is not None
        ]

    def gauge(self, layer: str, name: str) -> int:
        return sum(role.machine.gauges()[name] for peer, role in self.roles.items() if peer.layer == layer)


@asynccontextmanager
async def sockets(**sections: Any) -> AsyncIterator[Sockets]:
    cluster = Sockets(Config(client_port=ClientPort(port=0), **sections))
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
    assert cluster.failures == []


MANY = Layers(connection_points=2, access_points=2, matchers=3, exit_points=2)


async def read(subscription: Any, count: int, into: dict[str, list[int]]) -> None:
    for _ in range(count):
        one = await anext(subscription)
        into.setdefault(one.publisher, []).append(one.attributes["n"])


@conversation
async def test_a_cluster_over_sockets_delivers() -> None:
    async with (
        sockets(layers=MANY) as cluster,
        connect(cluster.doors[0], client_id="p") as publisher,
        connect(cluster.doors[1], client_id="s") as subscriber,
    ):
        subscription = await subscriber.subscribe("n >= 10")
        await publisher.publish_many({"n": number} for number in range(100))
        got: dict[str, list[int]] = {}
        await read(subscription, 90, got)
        assert got == {"p": list(range(10, 100))}


@conversation
async def test_lanes_that_are_cut_lose_and_double_nothing() -> None:
    """Any end of any lane is cut, again and again, while three publishers publish and filters change."""
    rng = random.Random(1)
    total = 4000
    async with sockets(layers=MANY, timing=Timing(role_lost_ms=60_000)) as cluster:
        publishers: list[Client] = [
            await connect(cluster.doors[place % 2], client_id=f"p{place}") for place in range(3)
        ]
        async with connect(cluster.doors[1], client_id="s") as subscriber:
            subscription = await subscriber.subscribe("exists n")
            updating = await subscriber.subscribe("other == 1")
            got: dict[str, list[int]] = {}
            reading = asyncio.create_task(read(subscription, 3 * total, got))

            async def publish(publisher: Client) -> None:
                for begin in range(0, total, 50):
                    await publisher.publish_many({"n": begin + step} for step in range(50))

            sending = asyncio.gather(*map(publish, publishers))
            cuts = 0
            while not reading.done():
                if not sending.done():
                    _, link = rng.choice(cluster.links())
                    if link.protocol is not None:
                        link.protocol.abort("cut by the test")
                        cuts += 1
                    await updating.update(f"other == {cuts}")
                await asyncio.sleep(0.005)
            await sending
            assert got == {publisher.client_id: list(range(total)) for publisher in publishers}
            assert cuts > 20
            await publishers[0].publish({"n": -1})
            assert (await anext(subscription)).attributes == {"n": -1}, "no double is on its way"
        assert [one.reconnections for one in publishers] == [0, 0, 0]
        for publisher in publishers:
            await publisher.close()
        assert cluster.gauge(CONNECTION_POINT, "accepted") == 3 * total + 1
        while cluster.coordinator.status()["lost"]:
            await asyncio.sleep(0.01)  # the lane that was cut last


@conversation
async def test_who_comes_before_the_first_tick_is_not_taken_for_silent() -> None:
    async with sockets() as cluster, connect(cluster.doors[0], client_id="early") as early:
        subscription = await early.subscribe("exists n")
        machine: Any = cluster.roles[Peer(CONNECTION_POINT, 0)].machine
        while not (machine._now_ms and cluster.coordinator._now_ms):
            await asyncio.sleep(0.01)
        assert cluster.coordinator.status()["lost"] == 0
        await early.publish({"n": 1})
        assert (await anext(subscription)).attributes == {"n": 1}
        assert early.reconnections == 0


@conversation
async def test_a_stranger_at_a_lane_port_disturbs_nobody() -> None:
    async with sockets() as cluster:
        ports = [shell._server.sockets[0].getsockname()[1] for shell in cluster.shells.values() if shell._server]
        async with connect(cluster.doors[0], client_id="lab") as client:
            subscription = await client.subscribe("exists n")
            for number, port in enumerate(ports * 4):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                writer.write(secrets.token_bytes(100))
                assert await reader.read() == b""
                writer.close()
                await client.publish({"n": number})
                assert (await anext(subscription)).attributes == {"n": number}
        assert all(link.protocol is not None for shell in cluster.shells.values() for link in shell._links.values())


@conversation
async def test_a_client_that_reads_nothing_is_not_read_either() -> None:
    """What it would not read stays within bounds, and others go on; once it reads, it gets all of it."""
    flow = Flow(flight_bytes=1 << 16)
    async with sockets(flow=flow) as cluster:
        host, _, port = cluster.doors[0].removeprefix("kittiwake://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
        writer.write(encode_frame(Hello(VERSION, "deaf", 1, 10)))
        requests = 60_000
        asked = asyncio.create_task(
            _ask(writer, requests, lambda number: encode_frame(Subscribe(number, 0, "(" + "x" * 40, "block")))
        )
        shell = cluster.shells[Peer(CONNECTION_POINT, 0)]
        machine: Any = cluster.roles[Peer(CONNECTION_POINT, 0)].machine
        while not any(one.full_ms is not None for one in machine._connections.values()):
            await asyncio.sleep(0.01)
        async with connect(cluster.doors[0], client_id="other") as other:
            subscription = await other.subscribe("exists n")
            for number in range(100):
                await other.publish({"n": number})
                assert (await anext(subscription)).attributes == {"n": number}
        (deaf,) = (one for one in shell._clients.values() if one._transport is not None)
        assert deaf._transport.get_write_buffer_size() < 1 << 20  # type: ignore[union-attr]
        frames = FrameReader(1 << 20)
        answers: list[int] = []
        while len(answers) < requests:
            for body in frames.feed(await reader.read(1 << 16)):
                frame = decode_server_frame(body)
                if isinstance(frame, Refused):
                    answers.append(frame.request)
        assert answers == list(range(requests))
        await asked
        writer.close()


async def _ask(writer: asyncio.StreamWriter, count: int, frame: Callable[[int], bytes]) -> None:
    for number in range(count):
        writer.write(frame(number))
        if number % 500 == 0:
            await writer.drain()
