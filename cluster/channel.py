"""One lane: two machines, each message between them once and in order, whatever happens to the wire.

A lane joins two incarnations and outlives its connections. Each end numbers its messages from 1, keeps what is not
acknowledged, and sends again from the first missing one after a reconnect. The receiver takes exactly the next
number: smaller ones are doubles and dropped, larger ones mean that something in between is missing and are dropped
too (go-back-N: on TCP it cannot happen within a connection, so a reorder window would be code without a use).

Frames on the wire: how many bytes follow (a little-endian uint32), a kind byte, a uint64, and for data the message.

    DATA  sequence  message
    ACK   upto      everything up to here was handled; it also moves the window

The window bounds what is unacknowledged, in messages and in bytes; what does not fit waits in `backlog`. An
acknowledgement is sent when an eighth of the window has come in, else with the next tick, so that a quiet lane
pays one small frame a tick and a busy one a frame for many.

Fencing: the handshake (the shell's) names both incarnations; a `Lane` serves one pair and is thrown away with it.

Source: go-back-N with cumulative acknowledgement and credit, as in TCP; the incarnation is Birman's.
"""

from __future__ import annotations

import struct
from collections import deque

from cluster.errors import CodecError

DATA, ACK = 0, 1
_HEADER = struct.Struct("<BQ")
HEADER_BYTES = _HEADER.size
_frame_start = struct.Struct("<IBQ").pack

WINDOW_MESSAGES = 4096
WINDOW_BYTES = 32 << 20


class Lane:
    """One end of a lane; both directions.

    `send` and `receive` gather what must go out; `poll` hands it over. Between them `sent` <= `acknowledged` plus the
    window. Without a connection (`connected` false) `poll` gives nothing and `backlog` grows: who sends is
    held back by the ends' own windows.

    resend_ms: go back after this long without an acknowledgement while connected; None on a transport that
               does not lose (TCP), where a resend would only answer a slow peer with more work.
    """

    def __init__(
        self,
        *,
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
        resend_ms: int | None = None,
    ) -> None:
        assert window_messages >= 1, "a lane without a window"
        assert window_bytes >= 1, "a lane without a window"
        self._window_messages = window_messages
        self._window_bytes = window_bytes
        self._tell_messages = window_messages // 8
        self._tell_bytes = window_bytes // 8
        self._resend_ms = resend_ms
        self.connected = False
        # Sending: sequences up to `_acknowledged` are done with, `_flight` follows, then `_backlog`.
        self._acknowledged = 0
        self._flight: deque[bytes] = deque()
        self._flight_bytes = 0
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._out: list[bytes] = []
        self._progress_ms: int | None = None
        self._least: tuple[int, int] | None = None  # messages and bytes held, when a confirmation came
        # Receiving: everything up to `_received` was given to the machine, up to `_told` the peer knows.
        self._received = 0
        self._told = 0
        self._untold_bytes = 0
        self.duplicates = 0
        self.resent = 0

    # Sending -----------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Messages that wait for the window or for a connection."""
        return len(self._backlog)

    @property
    def held_bytes(self) -> int:
        """Bytes kept for sending or resending."""
        return self._flight_bytes + self._backlog_bytes

    def take_backlog(self) -> tuple[int, int]:
        """Return the messages, and their bytes, that the peer has yet to handle: the least since the last call.

        It is looked at when a confirmation comes: between two of them what is handled looks as if it were not.
        """
        now = (len(self._flight) + len(self._backlog), self.held_bytes)
        least, self._least = self._least, None
        return now if least is None else min(now, least)

    def send(self, message: bytes) -> None:
        """Put a message on the lane; it is kept until the peer has handled it."""
        if not self._backlog and self.connected and self._fits(len(message)):
            self._launch(message)
        else:
            self._backlog.append(message)
            self._backlog_bytes += len(message)

    def _fits(self, size: int) -> bool:
        return not self._flight or (
            len(self._flight) < self._window_messages and self._flight_bytes + size <= self._window_bytes
        )

    def _launch(self, message: bytes) -> None:
        self._flight.append(message)
        self._flight_bytes += len(message)
        self._out.append(_frame_start(HEADER_BYTES + len(message), DATA, self._acknowledged + len(self._flight)))
        self._out.append(message)

    def _refill(self) -> None:
        while self._backlog and self._fits(len(self._backlog[0])):
            message = self._backlog.popleft()
            self._backlog_bytes -= len(message)
            self._launch(message)

    def poll(self) -> list[bytes]:
        """Return what to write now: frames in pieces, of data first the length and the header, then the message.

        The caller owns the list.
        """
        out = self._out
        if out:
            self._out = []
        return out

    # Connections -------------------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """The last sequence taken from the peer; each end tells the other in the handshake."""
        return self._received

    def connect(self, peer_received: int) -> None:
        """A connection stands; the peer has taken everything up to `peer_received`. Raises CodecError on nonsense."""
        if peer_received < self._acknowledged:
            raise CodecError(f"has taken {peer_received}, and acknowledged {self._acknowledged} before")
        self._settle(peer_received)
        self.connected = True
        self._told = self._received
        self._untold_bytes = 0
        self._progress_ms = None
        self._go_back()
        self._refill()

    def disconnect(self) -> None:
        """The connection is gone. What was polled may be lost; it is still held."""
        self.connected = False
        self._out.clear()

    def _go_back(self) -> None:
        self._out.clear()
        self.resent += len(self._flight)
        for place, message in enumerate(self._flight, self._acknowledged + 1):
            self._out.append(_frame_start(HEADER_BYTES + len(message), DATA, place))
            self._out.append(message)

    def _settle(self, upto: int) -> None:
        if upto > self._acknowledged + len(self._flight):
            raise CodecError(f"acknowledges {upto}, only {self._acknowledged + len(self._flight)} were sent")
        while self._acknowledged < upto:
            self._flight_bytes -= len(self._flight.popleft())
            self._acknowledged += 1
            self._progress_ms = None

    # Receiving ---------------------------------------------------------------------------------------------

    def receive(self, body: bytes) -> bytes | None:
        """Take one frame's body, without its length; return its message if it is the next one. Raises CodecError."""
        if len(body) < HEADER_BYTES:
            raise CodecError(f"a lane frame of {len(body)} bytes, the header alone has {HEADER_BYTES}")
        kind, number = _HEADER.unpack_from(body)
        if kind == ACK:
            self._settle(number)
            held = (len(self._flight) + len(self._backlog), self._flight_bytes + self._backlog_bytes)
            if self._least is None or held < self._least:
                self._least = held
            self._refill()
            return None
        if kind != DATA:
            raise CodecError(f"a lane frame of kind {kind}")
        if number != self._received + 1:
            self.duplicates += number <= self._received
            # Say where we are: after a loss the sender learns it, after a double it is harmless.
            self._tell()
            return None
        self._received = number
        self._untold_bytes += len(body)
        if number - self._told >= self._tell_messages or self._untold_bytes >= self._tell_bytes:
            self._tell()
        return body[HEADER_BYTES:]

    def _tell(self) -> None:
        self._told = self._received
        self._untold_bytes = 0
        self._out.append(_frame_start(HEADER_BYTES, ACK, self._received))

    def tick(self, now_ms: int) -> None:
        """Time passes: acknowledge what is not yet acknowledged; resend where the transport may lose."""
        if not self.connected:
            return
        if self._told < self._received:
            self._tell()
        if self._resend_ms is not None and self._flight:
            if self._progress_ms is None:
                self._progress_ms = now_ms
            elif now_ms - self._progress_ms >= self._resend_ms:
                self._progress_ms = now_ms
                self._go_back()
                self._tell()  # going back has thrown away what was to be told
