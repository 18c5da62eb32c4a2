"""The proxy itself: what passes, what does not, and who learns of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator

from cluster.client.address import tcp_connector
from tests.faults.proxy import FaultProxy
from tests.unit.conversation import conversation


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


class Server:
    """Keeps what each connection says, and answers each piece in capitals. ends: how each connection ended."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.pieces: list[list[int]] = []
        self.ends: list[str] = []
        self.changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(self.got)
        self.got.append(b"")
        self.pieces.append([])
        self.ends.append("open")
        try:
            while data := await reader.read(1 << 20):
                self.got[place] += data
                self.pieces[place].append(len(data))
                self.changed.set()
                writer.write(data.upper())
            self.ends[place] = "closed"
        except ConnectionError:
            self.ends[place] = "reset"
        except asyncio.CancelledError:
            pass
        self.changed.set()
        writer.close()

    async def until(self, got: list[bytes]) -> None:
        """Wait for exactly this."""
        while self.got != got:
            self.changed.clear()
            await self.changed.wait()

    async def until_ended(self, place: int) -> str:
        """Wait for the end of a connection; return how it ended."""
        while self.ends[place] == "open":
            self.changed.clear()
            await self.changed.wait()
        return self.ends[place]


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Server, FaultProxy]]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        async with FaultProxy(tcp_connector("127.0.0.1", port), rng=random.Random(7)) as proxy:
            yield server, proxy
    finally:
        listening.close()
        await listening.wait_closed()


async def opened(proxy: FaultProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


@conversation
async def test_without_orders_it_passes_everything_both_ways_and_ends_with_its_ends() -> None:
    async with proxied() as (server, proxy):
        reader, writer = await opened(proxy)
        writer.write(frame(b"hello"))
        assert await reader.readexactly(9) == frame(b"HELLO")
        writer.close()
        assert await server.until_ended(0) == "closed"
        assert server.got == [frame(b"hello")]
        assert (proxy.accepted, proxy.alive) == (1, 0)


@conversation
async def test_slices_and_jitter_keep_the_order() -> None:
    async with proxied() as (server, proxy):
        proxy.up.slice_bytes = 1
        proxy.up.jitter_s = proxy.down.jitter_s = 0.01
        reader, writer = await opened(proxy)
        said = b"".join(frame(b"%d" % number) for number in range(100))
        for begin in range(0, len(said), 37):
            writer.write(said[begin : begin + 37])
            await asyncio.sleep(0)
        assert await reader.readexactly(len(said)) == said
        assert server.got == [said]
        assert len(server.pieces[0]) > 3


@conversation
async def test_a_delay_and_a_bandwidth_take_their_time() -> None:
    async with proxied() as (_, proxy):
        loop = asyncio.get_running_loop()
        reader, writer = await opened(proxy)
        proxy.up.delay_s = 0.05
        proxy.down.delay_s = 0.05
        begin = loop.time()
        writer.write(frame(b"x"))
        await reader.readexactly(5)
        assert loop.time() - begin >= 0.1
        proxy.heal()
        proxy.up.bytes_per_s = 1000
        begin = loop.time()
        writer.write(frame(b"y" * 96))
        await reader.readexactly(100)
        assert loop.time() - begin >= 0.1


@conversation
async def test_reset_reaches_both_ends() -> None:
    async with proxied() as (server, proxy):
        reader, writer = await opened(proxy)
        writer.write(frame(b"a"))
        await reader.readexactly(5)
        proxy.reset()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert await server.until_ended(0) == "reset"
        writer.close()


@conversation
async def test_a_cut_lets_exactly_so_many_bytes_through_once() -> None:
    async with proxied() as (server, proxy):
        proxy.cut(up=7)
        reader, writer = await opened(proxy)
        writer.write(frame(b"abcdef"))
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        assert await server.until_ended(0) == "reset"
        assert server.got == [frame(b"abcdef")[:7]]
        writer.close()
        reader, writer = await opened(proxy)
        writer.write(frame(b"abcdef"))
        assert await reader.readexactly(10) == frame(b"ABCDEF")
        writer.close()


@conversation
async def test_half_open_tells_nobody_anything() -> None:
    async with proxied() as (server, proxy):
        reader, writer = await opened(proxy)
        writer.write(frame(b"a"))
        await reader.readexactly(5)
        proxy.go_silent()
        writer.write(frame(b"b"))
        writer.close()
        other_reader, other = await opened(proxy)
        other.write(frame(b"c"))
        assert await other_reader.readexactly(5) == frame(b"C")
        assert server.got == [frame(b"a"), frame(b"c")]
        assert server.ends == ["open", "open"]
        assert (proxy.accepted, proxy.alive) == (2, 1)
        other.close()


@conversation
async def test_what_was_held_arrives_on_the_former_connection_behind_the_next_hello() -> None:
    async with proxied() as (server, proxy):
        reader, writer = await opened(proxy)
        writer.write(frame(b"hello"))
        await reader.readexactly(9)
        proxy.hold()
        writer.write(frame(b"late"))
        await writer.drain()
        await asyncio.sleep(0.01)
        proxy.deliver_late()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert server.got == [frame(b"hello")]
        assert server.ends == ["open"]
        again_reader, again = await opened(proxy)
        again.write(frame(b"hello")[:6])
        await asyncio.sleep(0.01)
        assert server.got[0] == frame(b"hello"), "half a frame is none"
        again.write(frame(b"hello")[6:])
        await again_reader.readexactly(9)
        assert await server.until_ended(0) == "closed"
        assert server.got == [frame(b"hello") + frame(b"late"), frame(b"hello")]
        again.close()
        writer.close()


@conversation
async def test_a_replay_follows_the_first_frame_of_the_next_connection() -> None:
    async with proxied() as (server, proxy):
        reader, writer = await opened(proxy)
        said = [b"hello", b"p1", b"s1", b"p2", b"p3"]
        writer.write(b"".join(map(frame, said)))
        await reader.readexactly(sum(len(frame(one)) for one in said))
        proxy.reset()
        assert proxy.replay(2, only=lambda body: body.startswith(b"p")) == 2
        _, again = await opened(proxy)
        again.write(frame(b"hello") + frame(b"p4"))
        await server.until([b"".join(map(frame, said)), b"".join(map(frame, (b"hello", b"p2", b"p3", b"p4")))])
        again.close()
        writer.close()


@conversation
async def test_nobody_behind_it_is_a_connection_that_ends() -> None:
    listening = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    async with FaultProxy(tcp_connector("127.0.0.1", port)) as proxy:
        reader, writer = await opened(proxy)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
