"""One connection of a client: from the transport's callbacks to one future that says how it ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.client.client import Client


class Link(asyncio.Protocol):
    """An asyncio protocol that belongs to one attempt to connect.

    opened: True once the login succeeded, False when the link ended before.
    ended:  the reason why the link is over; the client learns of it once, and of nothing afterwards.
    gone:   the transport has said that it is closed, or there never was one.
    """

    def __init__(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        self._client = client
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._over = False
        self.parted = False
        self.opened: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's, as data_received is for these alone
        if self._over:
            self.end("the attempt was given up")
            return
        self._client._link_made(self)

    def data_received(self, data: bytes) -> None:
        if not self._over:
            self._client._link_received(self, data)

    def connection_lost(self, exception: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self.end("the broker closed the connection" if exception is None else str(exception) or repr(exception))

    def write(self, frames: list[bytes]) -> None:
        """Hand the frames to the transport, whose buffer takes all of it: windows bound what there can be."""
        transport = self._transport
        # A transport that is closing tells so in a moment; what would be lost in it is kept for the next link anyway.
        if transport is not None and not self._over and not transport.is_closing():
            transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def part(self) -> None:
        """Its client goes on elsewhere: as an attempt it is over, and as a connection it stays."""
        self.parted = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if not self.ended.done():
            self.ended.set_result("the connection point is about to leave")

    def start_heartbeat(self, interval_s: float) -> None:
        """Look every interval whether the broker has been heard."""
        self._heartbeat = self._loop.call_later(interval_s, self._beat, interval_s)

    def _beat(self, interval_s: float) -> None:
        if self._client._protocol.tick():
            self.start_heartbeat(interval_s)
        else:
            self.end(f"nothing was heard of the broker for {3 * interval_s:g} s")

    def end(self, reason: str, *, flush: bool = False) -> None:
        """End the link; with flush what was written is still sent, otherwise it is thrown away."""
        if self._transport is not None and not self._transport.is_closing():
            if flush:
                self._transport.close()
            else:
                self._transport.abort()
        if self._over:
            return
        self._over = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._client._link_ended(self)
        if not self.opened.done():
            self.opened.set_result(False)
        if not self.ended.done():
            self.ended.set_result(reason)
        if self._transport is None and not self.gone.done():
            self.gone.set_result(None)

    def abort(self) -> None:
        """Throw away what a flushing end has not sent yet."""
        if self._transport is not None:
            self._transport.abort()
