"""A scripted connection point in memory: the other side of the SDK in its tests.

It decodes what the client writes with the real codec, keeps it, and answers by itself where `Behaviour` says so; a
test sends whatever else it wants. Nothing waits for time: `until` waits for a condition, looked at whenever something
was received or sent. With `rng` everything it sends arrives in pieces of random sizes.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from cluster import frames
from cluster.client import Client
from cluster.codec import FrameReader, decode_client_frame, encode_frame

F = TypeVar("F", bound=frames.Frame)
encode = msgspec.msgpack.encode


@dataclass
class Behaviour:
    """What the broker does by itself."""

    welcome: bool = True
    acknowledge: bool = True
    answer: bool = True
    window: int = 8192
    window_bytes: int = 2 << 20
    frame_bytes: int = 1 << 20
    heartbeat_ms: int = 60_000
    attributes: int = 256
    string_bytes: int = 64 * 1024
    rejects: dict[int, str] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)
    """Filters that it refuses."""


class Broker:
    """Takes connections one after the other; `links` holds all of them."""

    def __init__(self, behaviour: Behaviour | None = None, rng: random.Random | None = None) -> None:
        self.behaviour = behaviour if behaviour is not None else Behaviour()
        self.rng = rng
        self.links: list[BrokerLink] = []
        self.stuck = False
        """What the client writes last is never taken: its transports close by abort alone."""
        self.refuse_attempts = 0
        """Attempts that fail as if nobody listened."""
        self.accepted: dict[int, bytes] = {}
        """Sequence -> payload, as a broker keeps them that drops doubles."""
        self.doubles = 0
        self.notified: dict[str, int] = {}
        """Publisher -> the last sequence that a client was notified of, over all connections."""
        self._waiters: list[asyncio.Future[None]] = []

    async def connector(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        if self.refuse_attempts > 0:
            self.refuse_attempts -= 1
            raise ConnectionRefusedError("nobody listens")
        link = BrokerLink(self, factory())
        self.links.append(link)
        link.start()
        self.changed()
        return link

    def client(self, client_id: str = "lab", **options: Any) -> Client:
        options.setdefault("backoff_s", (0.0, 0.0))
        return Client([self.connector], client_id=client_id, **options)

    async def listen(self) -> tuple[asyncio.Server, int]:
        """Take connections over TCP, too; return the server and its port."""
        server = await asyncio.get_running_loop().create_server(lambda: _Socket(self), "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    def changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter

    @property
    def link(self) -> BrokerLink:
        """The newest connection."""
        return self.links[-1]

    async def settle(self) -> None:
        """Let everything that is on its way arrive."""
        for _ in range(20):
            await asyncio.sleep(0)


class BrokerLink(asyncio.Transport):
    """One connection: the client's transport and the broker's view of it."""

    def __init__(self, broker: Broker, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._broker = broker
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(64 << 20)
        self._closing = False
        self.frames: list[frames.ClientFrame] = []
        self.upto = 0
        self.sent_notifications = 0

    def start(self) -> None:
        self._protocol.connection_made(self)

    # The client's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closing, "the client writes to a closed transport"
        for body in self._reader.feed(bytes(data)):
            self._received(decode_client_frame(body))
        self._broker.changed()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._broker.stuck:
            self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)
            self._broker.changed()

    # The broker's side

    @property
    def closed(self) -> bool:
        return self._closing

    def cut(self) -> None:
        """Lose the connection as a network does; what was sent and has not arrived is lost."""
        self._lose(ConnectionResetError("cut"))

    def of(self, kind: type[F]) -> list[F]:
        """The frames of this kind that came so far."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def publications(self) -> list[tuple[int, dict[str, Any]]]:
        """(sequence, attributes) in the order they came."""
        found = []
        for publish in self.of(frames.Publish):
            sequence = publish.first_sequence
            for payload in split(publish):
                found.append((sequence, msgspec.msgpack.decode(payload)))
                sequence += 1
        return found

    def send(self, *to_send: frames.Frame) -> None:
        self.send_bytes(b"".join(map(encode_frame, to_send)))

    def send_bytes(self, data: bytes) -> None:
        rng = self._broker.rng
        while data:
            size = rng.choice([1, 2, 3, 5, 100, 5000]) if rng is not None else len(data)
            self._loop.call_soon(self._arrive, data[:size])
            data = data[size:]

    def _arrive(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)
            self._broker.changed()

    def notify(
        self, *notifications: tuple[dict[str, Any], list[int]], publisher: str = "p", first: int | None = None
    ) -> None:
        """Send (attributes, numbers of the matching subscriptions), numbered from `first` or else counted on."""
        notified = self._broker.notified
        first = notified.get(publisher, 0) + 1 if first is None else first
        notified[publisher] = max(notified.get(publisher, 0), first + len(notifications) - 1)
        self.send(notify_frame(*notifications, publisher=publisher, first=first))
        self.sent_notifications += len(notifications)

    def welcome(self) -> None:
        b = self._broker.behaviour
        self.send(
            frames.Welcome(
                frames.VERSION,
                len(self._broker.links),
                b.heartbeat_ms,
                b.window,
                b.window_bytes,
                b.frame_bytes,
                b.attributes,
                b.string_bytes,
                10_000,
            )
        )

    def acknowledge(self, upto: int | None = None, window: int | None = None) -> None:
        b = self._broker.behaviour
        upto = self.upto if upto is None else upto
        rejected = [(sequence, b.rejects.pop(sequence)) for sequence in list(b.rejects) if sequence <= upto]
        self.send(frames.Acknowledged(upto, b.window if window is None else window, b.window_bytes, rejected))

    def answer(self, frame: frames.Subscribe | frames.Unsubscribe) -> None:
        if isinstance(frame, frames.Subscribe) and frame.filter in self._broker.behaviour.refuses:
            self.send(frames.Refused(frame.request, "filter", f"no {frame.filter}", 3, None))
        else:
            self.send(frames.Done(frame.request))

    def _received(self, frame: frames.ClientFrame) -> None:
        self.frames.append(frame)
        behaviour = self._broker.behaviour
        match frame:
            case frames.Hello():
                if behaviour.welcome:
                    self.welcome()
            case frames.Publish():
                payloads = split(frame)
                assert self.upto in (0, frame.first_sequence - 1), "the client left numbers out"
                self.upto = frame.first_sequence + len(payloads) - 1
                for sequence, payload in enumerate(payloads, frame.first_sequence):
                    if sequence in self._broker.accepted:
                        self._broker.doubles += 1
                        assert self._broker.accepted[sequence] == payload, "one number, two publications"
                    self._broker.accepted[sequence] = payload
                if behaviour.acknowledge:
                    self.acknowledge()
            case frames.Subscribe() | frames.Unsubscribe():
                if behaviour.answer:
                    self.answer(frame)
            case frames.Consumed(count):
                assert count <= self.sent_notifications, "more was consumed than was sent"
            case frames.Goodbye():
                self._loop.call_soon(self._lose, None)
            case frames.Pong():
                pass


class _Socket(asyncio.Protocol):
    """Passes between a TCP connection and a link."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link = BrokerLink(self._broker, _Outgoing(transport))
        self._broker.links.append(self._link)
        self._broker.changed()

    def data_received(self, data: bytes) -> None:
        if not self._link.closed:
            self._link.write(data)

    def connection_lost(self, exception: Exception | None) -> None:
        self._link.close()


class _Outgoing(asyncio.Protocol):
    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exception: Exception | None) -> None:
        self._transport.abort() if exception is not None else self._transport.close()


def split(publish: frames.Publish) -> list[bytes]:
    lengths = struct.unpack(f"<{len(publish.lengths) // 4}I", publish.lengths)
    payloads, position = [], 0
    for length in lengths:
        payloads.append(publish.payload[position : position + length])
        position += length
    assert position == len(publish.payload)
    return payloads


def notify_frame(
    *notifications: tuple[dict[str, Any], list[int]], publisher: str = "p", first: int = 1, time_us: int = 1_500_000
) -> frames.Notify:
    count = len(notifications)
    payloads = [encode(attributes) for attributes, _ in notifications]
    numbers = [number for _, matching in notifications for number in matching]
    return frames.Notify(
        [(publisher, 1, time_us)],
        bytes(4 * count),
        struct.pack(f"<{count}Q", *range(first, first + count)),
        struct.pack(f"<{count}I", *map(len, payloads)),
        struct.pack(f"<{count}I", *(len(matching) for _, matching in notifications)),
        struct.pack(f"<{len(numbers)}I", *numbers),
        b"".join(payloads),
    )


def run(main: Any) -> None:
    """Run one asynchronous test; a callback or task that fails makes it fail."""
    troubles: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        async with asyncio.timeout(120):
            await main()

    asyncio.run(watched())
    assert not troubles, troubles
