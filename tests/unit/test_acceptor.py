"""The client port: taken before it is opened, closed to newcomers for a while, one connection a turn."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import actors.acceptor
from actors.acceptor import Acceptor

LOOPBACK = "127.0.0.1"


class Greeting(asyncio.Protocol):
    """Says hello to whoever is accepted."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@asynccontextmanager
async def acceptor() -> AsyncIterator[tuple[Acceptor, int]]:
    one = Acceptor(Greeting)
    try:
        _, port = await one.bind(LOOPBACK, 0)
        yield one, port
    finally:
        one.close()


async def greeted(port: int, patience_s: float = 5.0) -> bool:
    """Tell whether who connects now is accepted in time."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        async with asyncio.timeout(patience_s):
            return await reader.readexactly(5) == b"hello"
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()


def test_the_port_is_taken_and_refuses_until_it_is_opened() -> None:
    async def work() -> None:
        async with acceptor() as (one, port):
            with pytest.raises(ConnectionRefusedError):
                await greeted(port)
            one.open()
            one.open()
            assert await greeted(port)
            with pytest.raises(OSError, match=f"{LOOPBACK} port {port}: Address already in use"):
                await Acceptor(Greeting).bind(LOOPBACK, port)

    run(work())


def test_who_connects_during_a_rest_is_accepted_after_it() -> None:
    async def work() -> None:
        async with acceptor() as (one, port):
            one.open()
            one.rest(0.2)
            one.rest(0.2)
            loop = asyncio.get_running_loop()
            begin = loop.time()
            assert all(await asyncio.gather(*(greeted(port) for _ in range(20))))
            assert loop.time() - begin >= 0.39, "the second rest is not after the first"

    run(work())


def test_a_rest_outlasts_being_opened() -> None:
    async def work() -> None:
        async with acceptor() as (one, port):
            one.rest(0.5)
            one.open()
            assert not await greeted(port, 0.1)
            assert await greeted(port)

    run(work())


def test_no_rest_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.acceptor, "REST_S", 0.1)

    async def work() -> None:
        async with acceptor() as (one, port):
            one.open()
            for _ in range(1_000):
                one.rest(60)
            assert await greeted(port)

    run(work())


def test_others_have_a_turn_between_two_connections() -> None:
    async def work() -> None:
        made: list[int] = []
        turns = 0

        class Counting(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                del transport
                made.append(turns)

        one = Acceptor(Counting)
        _, port = await one.bind(LOOPBACK, 0)
        one.open()
        plain = [socket.create_connection((LOOPBACK, port)) for _ in range(10)]
        while len(made) < 10:
            turns += 1
            await asyncio.sleep(0)
        one.close()
        for each in plain:
            each.close()
        assert len(set(made)) == 10

    run(work())


def test_without_descriptors_it_tries_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.acceptor, "SHORTAGE_S", 0.05)

    class Short(socket.socket):
        tries = 0

        def accept(self) -> Any:
            Short.tries += 1
            if Short.tries < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "socket", Short)

    async def work() -> None:
        async with acceptor() as (one, port):
            one.open()
            assert await greeted(port)

    run(work())
    assert Short.tries == 3


def test_the_port_is_free_after_close() -> None:
    async def work() -> None:
        async with acceptor() as (one, port):
            one.open()
            assert await greeted(port)
            one.close()
            with pytest.raises(ConnectionRefusedError):
                await greeted(port)
            again = Acceptor(Greeting)
            assert await again.bind(LOOPBACK, port) == (LOOPBACK, port)
            again.close()

    run(work())


def test_nagle_is_off() -> None:
    async def work() -> None:
        seen: list[int] = []

        class Looking(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                plain = transport.get_extra_info("socket")
                seen.append(plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        one = Acceptor(Looking)
        _, port = await one.bind(LOOPBACK, 0)
        one.open()
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        while not seen:
            await asyncio.sleep(0.01)
        writer.close()
        one.close()
        assert seen == [1]

    run(work())
