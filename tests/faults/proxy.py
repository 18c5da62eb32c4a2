"""A TCP proxy between clients and a connection point that does to them what networks do.

    async with FaultProxy(tcp_connector("127.0.0.1", 7400)) as proxy:
        async with connect(proxy.url) as client:
            proxy.up.delay_s = 0.1      # from now on, on every connection
            ...
            proxy.reset()               # now

Two kinds of trouble. Settings (`up`: from client to server, `down`: back) hold for every connection until they are
changed or `heal` clears them; bytes stay in order, none is lost:

    delay_s, jitter_s   each piece arrives so much later, and up to so much more, at random
    slice_bytes         it arrives in pieces of so many bytes, each in a turn of its own
    bytes_per_s         so many a second

Acts concern the connections that there are, or the next one:

    reset()             both ends are reset
    cut(up=n)           the next connection is reset when exactly n bytes have gone that way; after one such call each
    go_silent()         nothing passes any more and nobody is told: half-open, for as long as the ends believe in it
    deliver_late()      clients are reset; what they have sent from `hold()` on reaches the server on the former
                        connection when the next one has said its first frame: publications come twice, by two ways
    replay(n)           on the next connection, behind its first frame, the last n frames that `only` accepts are said
                        once more. This breaks the protocol (numbers rise by one) unless all of them are acknowledged

The frames are those of `cluster.frames`: a little-endian uint32 length and that many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, fields
from types import TracebackType

Connector = Callable[[Callable[[], asyncio.Protocol]], Awaitable[asyncio.Transport]]

FRAMES_KEPT = 64
_LENGTH = struct.Struct("<I")
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset."""


@dataclass
class Settings:
    """What happens to bytes that go one way."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    slice_bytes: int | None = None
    bytes_per_s: float | None = None

    def clear(self) -> None:
        """Back to nothing at all."""
        for one in fields(self):
            setattr(self, one.name, one.default)


class FaultProxy:
    """Listens on loopback; every connection gets one of its own upstream.

    upstream: opens a transport to the connection point, as `cluster.client` has it.
    accepted: connections so far. alive: those that still pass something.
    """

    def __init__(self, upstream: Connector, *, rng: random.Random | None = None) -> None:
        self._upstream = upstream
        self._rng = rng or random.Random(0)
        self.up = Settings()
        self.down = Settings()
        self.accepted = 0
        self._relays: set[_Relay] = set()
        self._cuts: deque[tuple[int | None, int | None]] = deque()
        self._recent: deque[bytes] = deque(maxlen=FRAMES_KEPT)
        self._replay: list[bytes] = []
        self._late: list[_Relay] = []

    async def __aenter__(self) -> FaultProxy:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Relay(self).client, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        relays = list(self._relays)
        for relay in relays:
            relay.end()
        await asyncio.gather(*(relay.over() for relay in relays))
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"kittiwake://127.0.0.1:{self.port}"

    @property
    def alive(self) -> int:
        """How many connections pass something."""
        return sum(not relay.silent and not relay.client.lost for relay in self._relays)

    # Acts --------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Clear the settings, and what was ordered for connections to come. What is silent stays it."""
        self.up.clear()
        self.down.clear()
        self._cuts.clear()
        self._replay.clear()

    def reset(self) -> None:
        """Reset every connection, at both ends."""
        for relay in list(self._relays):
            relay.end()

    def cut(self, *, up: int | None = None, down: int | None = None) -> None:
        """Reset one connection to come after so many bytes; called several times, one each, in this order."""
        self._cuts.append((up, down))

    def go_silent(self) -> None:
        """Swallow all that comes on the connections that there are, their ends as well."""
        for relay in self._relays:
            relay.silent = True

    def hold(self) -> None:
        """Keep back what clients send on the connections that there are, for `deliver_late`."""
        for relay in self._relays:
            relay.up.held = bytearray() if relay.up.held is None else relay.up.held

    def deliver_late(self) -> None:
        """Reset the clients of connections that are held, and deliver what they said behind the next first frame."""
        for relay in list(self._relays):
            if relay.up.held is not None:
                self._late.append(relay)
                relay.client.abort()

    def replay(self, count: int, only: Callable[[bytes], bool] = lambda body: True) -> int:
        """Say the last frames again, behind the first frame of the next connection; return how many there are.

        only: which; given a frame's body.
        """
        chosen = [frame for frame in self._recent if only(frame[_LENGTH.size :])]
        self._replay = chosen[-count:] if count else []
        return len(self._replay)

    # For the relays ----------------------------------------------------------------------------------------------

    def began(self, relay: _Relay) -> tuple[int | None, int | None]:
        """A connection begins; return where it is to be cut."""
        self.accepted += 1
        self._relays.add(relay)
        return self._cuts.popleft() if self._cuts else (None, None)

    def ended(self, relay: _Relay) -> None:
        """Both its ends are closed."""
        self._relays.discard(relay)

    def said(self, frame: bytes, *, first: bool) -> bytes:
        """A whole frame has gone from client to server; return what is to follow it."""
        if not first:
            self._recent.append(frame)
            return b""
        again, self._replay = b"".join(self._replay), []
        late, self._late = self._late, []
        for relay in late:
            relay.arrive_late()
        return again


class _End(asyncio.Protocol):
    """One of the two sockets of a connection."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self.transport = transport
        if self._relay.client is self:
            self._relay.begin()

    def data_received(self, data: bytes) -> None:
        self._relay.way_from(self).feed(data)

    def connection_lost(self, exception: Exception | None) -> None:
        self.lost = True
        self._relay.end_lost()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.lost and not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        """Close with a reset, where it is a socket."""
        if self.transport is None or self.lost:
            return
        own: socket.socket | None = self.transport.get_extra_info("socket")
        if own is not None:
            with contextlib.suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class _Relay:
    """One connection: two ends, two ways."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.silent = False
        self.client = _End(self)
        self.server = _End(self)
        self.up = _Way(self, self.server, proxy.up, watch=True)
        self.down = _Way(self, self.client, proxy.down, watch=False)
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    def begin(self) -> None:
        """A client is there: open the other side, and pass bytes."""
        self.up.cut_after, self.down.cut_after = self.proxy.began(self)
        self._tasks = [asyncio.create_task(self._open()), asyncio.create_task(self.down.run())]

    async def _open(self) -> None:
        try:
            await self.proxy._upstream(lambda: self.server)
        except OSError:
            self.end()
            return
        if self._ending:
            self.server.abort()
            return
        await self.up.run()

    def way_from(self, end: _End) -> _Way:
        """Return the way that begins at this end."""
        return self.up if end is self.client else self.down

    def end_lost(self) -> None:
        """One end is closed: the other one closes, when what is on its way has arrived; not if nobody is to know."""
        if self.client.lost and (self.server.lost or self.server.transport is None):
            self._gone()
        elif self.silent or self in self.proxy._late:
            pass
        elif self.client.lost:
            self.up.close()
        else:
            self.down.close()

    def arrive_late(self) -> None:
        """Send the server what was held, and let that be the end."""
        held, self.up.held = self.up.held, None
        if held:
            self.server.write(bytes(held))
        self.up.close()

    def end(self) -> None:
        """Reset both ends."""
        self._ending = True
        self.client.abort()
        self.server.abort()
        if self.server.transport is None:
            self._gone()

    def _gone(self) -> None:
        self._ending = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.proxy.ended(self)

    async def over(self) -> None:
        """Wait until nothing of it runs."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Way:
    """One direction of a connection. held: what was kept back, from `hold` on. cut_after: bytes, then a reset."""

    def __init__(self, relay: _Relay, target: _End, settings: Settings, *, watch: bool) -> None:
        self._relay = relay
        self._target = target
        self._settings = settings
        self._queue: deque[tuple[float, bytes]] = deque()
        self._more = asyncio.Event()
        self._closing = False
        self._free_at = 0.0
        """When the piece before has arrived: none overtakes another."""
        self._watch = watch
        self._partial = bytearray()
        self._first = True
        self._passed = 0
        self.held: bytearray | None = None
        self.cut_after: int | None = None

    def feed(self, data: bytes) -> None:
        """Bytes have come in."""
        if self._relay.silent:
            return
        if self.held is not None:
            self.held += data
            return
        self._queue.append((asyncio.get_running_loop().time(), data))
        self._more.set()

    def close(self) -> None:
        """Nothing more comes in."""
        self._closing = True
        self._more.set()

    async def run(self) -> None:
        """Pass bytes on until the end."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        while True:
            while not self._queue:
                if self._closing:
                    if self._target.transport is not None and not self._target.lost:
                        self._target.transport.close()
                    return
                self._more.clear()
                await self._more.wait()
            came, data = self._queue.popleft()
            jitter = self._relay.proxy._rng.uniform(0, settings.jitter_s) if settings.jitter_s else 0.0
            due = max(came + settings.delay_s + jitter, self._free_at)
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            self._free_at = due
            size = settings.slice_bytes or len(data)
            for begin in range(0, len(data), size):
                piece = data[begin : begin + size]
                if settings.bytes_per_s is not None:
                    await asyncio.sleep(len(piece) / settings.bytes_per_s)
                elif settings.slice_bytes is not None:
                    await asyncio.sleep(0)
                if not self._pass(piece):
                    return

    def _pass(self, piece: bytes) -> bool:
        """Write a piece; return whether the connection goes on."""
        if self._relay.silent:
            return True
        room = None if self.cut_after is None else self.cut_after - self._passed
        is_cut = room is not None and len(piece) >= room
        if is_cut:
            piece = piece[:room]
        self._passed += len(piece)
        for part in self._watched(piece) if self._watch else (piece,):
            self._target.write(part)
        if is_cut:
            # What was written is to arrive before the reset does: it overtakes what lies in a sending buffer.
            asyncio.get_running_loop().call_later(0.01, self._relay.end)
        return not is_cut

    def _watched(self, piece: bytes) -> Iterator[bytes]:
        """Cut the piece where frames end, and put in what is to follow them, each when what is before it is written."""
        partial = self._partial
        while piece:
            needs = _LENGTH.size if len(partial) < _LENGTH.size else _LENGTH.size + _LENGTH.unpack_from(partial)[0]
            taken, piece = piece[: needs - len(partial)], piece[needs - len(partial) :]
            partial += taken
            yield taken
            if len(partial) >= _LENGTH.size and len(partial) == _LENGTH.size + _LENGTH.unpack_from(partial)[0]:
                frame = bytes(partial)
                partial.clear()
                first, self._first = self._first, False
                yield self._relay.proxy.said(frame, first=first)
