"""Lanes over TCP: the handshake, and the frames of `cluster.channel` on a socket.

On the wire each frame is a little-endian uint32 length and its body. The first four bodies are the handshake, in which
both ends prove that they know the cluster's secret, without sending it:

    dialler  -> Call(layer, slot, incarnation, target, nonce)
    listener -> Challenge(incarnation, nonce, proof)      proof: HMAC-SHA256 over both nonces and both identities
    dialler  -> Answer(proof, received)                   received: the last lane sequence taken, to resume from
    listener -> Ready(received)

Nothing else is read before the proof; a stranger can make us hold one frame of 4 kB for 5 s. Traffic itself is not
encrypted: lanes belong on a private network or loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from cluster.codec import FrameReader, decode
from cluster.errors import CodecError
from cluster.messages import Peer

HANDSHAKE_BYTES = 4096
HANDSHAKE_S = 5.0
FRAME_BYTES = 256 << 20
"""A lane frame is at most a batch and its hits; this only stops nonsense."""
NONCE_BYTES = 32


class Identity(NamedTuple):
    """Who stands at an end of a lane."""

    layer: str
    slot: int
    incarnation: int

    @property
    def peer(self) -> Peer:
        """The slot without the incarnation."""
        return Peer(self.layer, self.slot)


class Call(msgspec.Struct, array_like=True, frozen=True):
    """Opens the handshake: who calls, whom it wants. A target incarnation of 0 takes any."""

    layer: str
    slot: int
    incarnation: int
    target_layer: str
    target_slot: int
    target_incarnation: int
    nonce: bytes


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    """The listener's proof, and the nonce for the caller's."""

    incarnation: int
    nonce: bytes
    proof: bytes


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """The caller's proof, and where its receiving half stands."""

    proof: bytes
    received: int


class Ready(msgspec.Struct, array_like=True, frozen=True):
    """Where the listener's receiving half stands; lane frames follow."""

    received: int


_encode = msgspec.msgpack.Encoder().encode
_call = msgspec.msgpack.Decoder(Call)
_challenge = msgspec.msgpack.Decoder(Challenge)
_answer = msgspec.msgpack.Decoder(Answer)
_ready = msgspec.msgpack.Decoder(Ready)


def proof(secret: bytes, side: str, caller: Identity, listener: Identity, nonces: tuple[bytes, bytes]) -> bytes:
    """Return what only a holder of the secret can say about this very conversation."""
    text = _encode((side, caller, listener, nonces))
    return hmac.digest(secret, text, hashlib.sha256)


def framed(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return len(body).to_bytes(4, "little") + body


class Reading:
    """The side of a socket that reads, of a protocol that has a transport or None."""

    _transport: asyncio.Transport | None

    def pause(self) -> None:
        """Leave what the other end sends in the kernel, whose window then stops it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Take what it sends again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class LaneProtocol(Reading, asyncio.Protocol):
    """One TCP connection of a lane, either end.

    up:     called once the handshake is done, with the peer's identity and what it has received; returns what we
            have received, or None to refuse it. frames: called with the bodies of complete lane frames.
    down:   called when the connection is gone, with the reason, whether or not it ever was up.
    target: for a dialler, whom it calls; None for a listener.
    """

    def __init__(
        self,
        own: Identity,
        secret: bytes,
        *,
        target: Identity | None,
        received: Callable[[Identity], int | None],
        up: Callable[[LaneProtocol, Identity, int], None],
        frames: Callable[[LaneProtocol, list[bytes]], None],
        down: Callable[[LaneProtocol, str], None],
    ) -> None:
        self._own = own
        self._secret = secret
        self._target = target
        self._received = received
        self._up = up
        self._frames = frames
        self._down = down
        self._reader = FrameReader(HANDSHAKE_BYTES)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._other: Identity | None = None
        self._other_nonce = b""
        self._answered = False
        self._open = False
        self._deadline: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._reason = "closed by the peer"

    def connection_made(self, transport: Any) -> None:
        """The socket stands; a dialler calls."""
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.abort, "no handshake in time")
        if self._target is not None:
            transport.write(framed(_encode(Call(*self._own, *self._target, self._nonce))))

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            bodies = self._reader.feed(data)
            while bodies and not self._open:
                self._handshake(bodies.pop(0))
            # A listener's first frames may come in one piece with its Ready.
            if bodies:
                self._frames(self, bodies)
        except CodecError as error:
            self.abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._open = False
        self._down(self, self._reason if exc is None else str(exc))

    def abort(self, reason: str) -> None:
        """Give the connection up."""
        self._reason = reason
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after what was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def write(self, pieces: list[bytes]) -> None:
        """Write lane frames as `Lane.poll` gives them."""
        assert self._transport is not None, "written before the connection"
        # In one piece: many small ones, each for itself, take the system twice as long, and a large one is copied fast.
        self._transport.write(b"".join(pieces))

    def _handshake(self, body: bytes) -> None:
        if self._target is None and self._other is None:
            self._called(decode(_call, body))
        elif self._target is None and not self._answered:
            self._proved(decode(_answer, body))
        elif self._other is None:
            self._challenged(decode(_challenge, body))
        else:
            self._ready(decode(_ready, body).received)

    def _write(self, message: msgspec.Struct) -> None:
        assert self._transport is not None, "written before the connection"
        self._transport.write(framed(_encode(message)))

    def _proof(self, side: str) -> bytes:
        assert self._other is not None, "a proof before both names are known"
        if self._target is None:
            return proof(self._secret, side, self._other, self._own, (self._other_nonce, self._nonce))
        return proof(self._secret, side, self._own, self._other, (self._nonce, self._other_nonce))

    def _called(self, call: Call) -> None:
        if (call.target_layer, call.target_slot) != self._own[:2] or call.target_incarnation not in (
            0,
            self._own.incarnation,
        ):
            raise CodecError(f"a call for {call.target_layer} {call.target_slot}, this is {self._own}")
        if len(call.nonce) != NONCE_BYTES:
            raise CodecError(f"a nonce of {len(call.nonce)} bytes")
        self._other = Identity(call.layer, call.slot, call.incarnation)
        self._other_nonce = call.nonce
        self._write(Challenge(self._own.incarnation, self._nonce, self._proof("listener")))

    def _challenged(self, challenge: Challenge) -> None:
        assert self._target is not None, "only a dialler is challenged"
        self._other = self._target._replace(incarnation=challenge.incarnation)
        self._other_nonce = challenge.nonce
        if not hmac.compare_digest(challenge.proof, self._proof("listener")):
            raise CodecError("the listener does not know the cluster's secret")
        self._reader.limit = FRAME_BYTES
        received = self._received(self._other)
        if received is None:
            raise CodecError(f"{self._other} is fenced")
        self._write(Answer(self._proof("dialler"), received))

    def _proved(self, answer: Answer) -> None:
        assert self._other is not None, "an answer before the call"
        if not hmac.compare_digest(answer.proof, self._proof("dialler")):
            raise CodecError("the caller does not know the cluster's secret")
        self._answered = True
        received = self._received(self._other)
        if received is None:
            raise CodecError(f"{self._other} is fenced")
        self._write(Ready(received))
        self._ready(answer.received)

    def _ready(self, peer_received: int) -> None:
        assert self._other is not None, "ready before both names are known"
        if self._deadline is not None:
            self._deadline.cancel()
        self._reader.limit = FRAME_BYTES
        self._open = True
        self._up(self, self._other, peer_received)
