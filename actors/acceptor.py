"""The client port: it is taken first, so that its number is known, and opened later.

One connection is accepted a turn of the loop, where a server of asyncio's takes all that wait: however many knock at
once, those who are served have their turns between them. What is not accepted waits in the kernel, at no cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

BACKLOG = 1024
REST_S = 1.0
"""How long it may rest at most."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SHORTAGE_S = 1.0
"""Without a file descriptor left, or memory, the next try is after this time."""

log = logging.getLogger("kittiwake")


class Acceptor:
    """Accepts connections on every address of the port.

    make: returns the protocol of the next one. is_open: whether anybody may come, if not at once.
    """

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self.is_open = False
        self._rests_until = 0.0
        self._waiting: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[object]] = set()

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the port, any free one for 0, on all addresses of the host; return the first one. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                door = socket.socket(family, kind, protocol)
                self._sockets.append(door)
                door.setblocking(False)
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                door.bind((address[0], port, *address[2:]))
                port = door.getsockname()[1]
        except OSError as error:
            self.close()
            raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from error
        bound: tuple[str, int] = self._sockets[0].getsockname()[:2]
        return bound

    def open(self) -> None:
        """Accept from now on; nothing if it does already."""
        if not self.is_open:
            self.is_open = True
            for door in self._sockets:
                door.listen(BACKLOG)
            if self._waiting is None:
                self._watch()

    def rest(self, seconds: float) -> None:
        """Accept nobody for so long after the present rest, if there is one; who connects waits. REST_S at most."""
        now = self._loop.time()
        self._rests_until = min(max(self._rests_until, now) + seconds, now + REST_S)
        self._unwatch()
        self._waiting = self._loop.call_at(self._rests_until, self._watch)

    def close(self) -> None:
        """Give the port up."""
        self.is_open = False
        self._unwatch()
        for door in self._sockets:
            door.close()
        self._sockets.clear()

    def _watch(self) -> None:
        self._waiting = None
        if self.is_open:
            for door in self._sockets:
                self._loop.add_reader(door, self._accept, door)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        for door in self._sockets:
            self._loop.remove_reader(door)

    def _accept(self, door: socket.socket) -> None:
        try:
            accepted, _ = door.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            log.error("no client can be accepted: %s", error.strerror)
            self.rest(SHORTAGE_S)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._serve(accepted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            await self._loop.connect_accepted_socket(self._make, accepted)
