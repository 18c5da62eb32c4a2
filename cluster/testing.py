"""A whole cluster in one process, for users' own tests: the real machines, without Ray and without sockets.

    async with LocalCluster() as cluster:
        async with cluster.connect("lab") as client:
            ...

            await cluster.admin.scale(matchers=3)

What is delivered, in which order and with which acknowledgements is exactly what a cluster does; only speed,
crashes and distance are missing. Needs the `testing` extra (numpy and numba), not Ray.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cluster.admin import Admin, Question
from cluster.assembly import Assembly
from cluster.client import Client
from cluster.client.address import Connector
from cluster.config import Config, Layers
from cluster.errors import KittiwakeError
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    Answer,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    Peer,
    Status,
    Tick,
)

TICK_S = 0.05


class LocalCluster:
    """The machines of a cluster on the running loop. config: replaces the layer counts and gives limits.

    admin: scales it, as `cluster.admin` says.
    """

    def __init__(
        self,
        *,
        connection_points: int = 1,
        access_points: int = 1,
        matchers: int = 1,
        exit_points: int = 1,
        config: Config | None = None,
    ) -> None:
        self._config = config or Config(
            layers=Layers(
                connection_points=connection_points,
                access_points=access_points,
                matchers=matchers,
                exit_points=exit_points,
            )
        )
        self._sockets: dict[tuple[Peer, int], _Transport] = {}
        self._next_connection = 1
        self._pump_due = False
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self.admin = Admin(self._ask)

    async def __aenter__(self) -> LocalCluster:
        self._loop = asyncio.get_running_loop()
        self._assembly = Assembly(self._config, self._client_output)
        self._assembly.stopper = self._stop
        self._assembly.wall_us = lambda: time.time_ns() // 1000
        self._pump()
        assert self._assembly.serving, "the cluster does not serve"
        self._tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for transport in list(self._sockets.values()):
            transport.cut()
        await asyncio.sleep(0)
        # A matcher's index reserves much address space: it goes now, not when the collector comes by.
        self._assembly.roles.clear()

    def connect(self, client_id: str, *, connection_point: int = 0, **options: Any) -> Client:
        """Return a client of this cluster, as `cluster.connect` does; options are the same.

        connection_point: which of them, counted from 0; when that one is no more, the client goes to the first.
        """
        chosen = self._assembly.connection_points()[connection_point]

        async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            serving = self._assembly.serving
            return self._open(chosen if chosen in serving else min(serving), factory())

        return Client(connectors=[connector], client_id=client_id, resolve=self._resolve, **options)

    def _resolve(self, address: str) -> Connector:
        """Return what connects to a connection point by its address in this cluster."""
        peer = Peer(CONNECTION_POINT, int(address.rpartition(":")[2]))

        async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            return self._open(peer, factory())

        return connector

    def status(self) -> dict[str, object]:
        """Return the coordinator's status document."""
        return self._assembly.coordinator.status()

    async def _ask(self, question: Question) -> Answer | Status:
        if self._closed:
            raise KittiwakeError("the local cluster is closed")
        answer = self._assembly.request(question)
        if answer is None:
            self._pump()  # it has asked a role, which answers at once
            answer = self._assembly.take_answer()
        assert answer is not None, "a coordinator that cannot crash has not answered"
        self._schedule()
        return answer

    def _stop(self, peer: Peer, incarnation: int) -> None:
        """End a role; the sockets of its clients end with it."""
        self._assembly.stop(peer, incarnation)
        if peer not in self._assembly.roles:
            for key in [key for key in self._sockets if key[0] == peer]:
                self._loop.call_soon(self._sockets[key].cut)

    def _open(self, peer: Peer, protocol: asyncio.Protocol) -> asyncio.Transport:
        if self._closed:
            raise ConnectionRefusedError("the local cluster is closed")
        if peer not in self._assembly.serving:
            raise ConnectionRefusedError(f"{peer} does not serve")
        number = self._next_connection
        self._next_connection += 1
        transport = self._sockets[peer, number] = _Transport(self, peer, number, protocol)
        self._assembly.feed(peer, ClientConnected(number))
        protocol.connection_made(transport)
        return transport

    def client_wrote(self, transport: _Transport, data: bytes) -> None:
        """Bytes from a client's end."""
        if not self._closed:
            self._assembly.feed(transport.peer, ClientBytes(transport.number, data, time.time_ns() // 1000))
            self._schedule()

    def client_left(self, transport: _Transport) -> None:
        """A client's end has closed."""
        if self._sockets.pop((transport.peer, transport.number), None) is not None and not self._closed:
            self._assembly.feed(transport.peer, ClientClosed(transport.number))
            self._schedule()

    def _client_output(self, peer: Peer, connection: int, data: bytes | None) -> None:
        transport = self._sockets.get((peer, connection))
        if transport is None:
            return
        if data is not None:
            transport.arrive(data)
        else:
            self._loop.call_soon(transport.cut)

    def _schedule(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Deliver until nothing moves; a machine drains when nothing is on its way to it."""
        self._pump_due = False
        if self._closed:
            return
        assembly = self._assembly
        while True:
            while assembly.lanes:
                assembly.deliver(*next(iter(assembly.lanes)))
            if not assembly.touched:
                unsynced = assembly.unsynced()
                if not unsynced:
                    return
                for peer in unsynced:
                    assembly.sync(peer)
            for peer in sorted(assembly.touched):
                assembly.drain(peer)

    def _tick(self) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        for peer in (COORDINATOR_PEER, *self._assembly.roles):
            self._assembly.feed(peer, Tick(now_ms))
        self._schedule()
        self._ticker = self._loop.call_later(TICK_S, self._tick)


class _Transport(asyncio.Transport):
    """A client's end of a connection that never was a socket."""

    def __init__(self, cluster: LocalCluster, peer: Peer, number: int, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._cluster = cluster
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self.peer = peer
        self.number = number

    def write(self, data: Any) -> None:
        """Hand the bytes over at once."""
        if not self._closing:
            self._cluster.client_wrote(self, bytes(data))

    def arrive(self, data: bytes) -> None:
        """Give the client bytes in a later turn of the loop, as a socket does."""
        self._loop.call_soon(self._give, data)

    def _give(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def is_closing(self) -> bool:
        """Tell whether the end is closed."""
        return self._closing

    def close(self) -> None:
        """Close; the other end learns it."""
        if not self._closing:
            self._closing = True
            self._cluster.client_left(self)
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """As close: nothing waits in a buffer here."""
        self.close()

    def cut(self) -> None:
        """The cluster's end closes."""
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """There is nothing to tell."""
        return default

    def get_write_buffer_size(self) -> int:
        """Nothing is ever buffered."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered."""
