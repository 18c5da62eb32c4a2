"""One notification, as the application sees it."""

from __future__ import annotations

import struct

import msgspec

from cluster.client.attributes import Value
from cluster.client.positions import Positions
from cluster.codec import decode
from cluster.errors import SessionError

_attributes = msgspec.msgpack.Decoder(dict[str, Value])


class Notification(msgspec.Struct, gc=False, eq=False, weakref=False):
    """A publication on its way to this client; once per client, however many of its subscriptions match.

    The streams of all matching subscriptions are given this same object. Nothing is decoded before it is asked for.
    """

    _run: tuple[str, int, int]
    """(publisher, instance, microseconds since 1970)."""
    sequence: int
    """The publisher's own number of the publication; rises within one publisher and life of its client."""
    _payload: bytes
    _numbers: bytes | tuple[int, ...]
    """Little-endian uint32 as they came, or decoded and ascending."""
    _holders: int
    """Streams that have not taken it yet; 0 or below: it does not count as credit (any more)."""
    _decoded: dict[str, Value] | None = None
    position: int = 0
    """Of a durable session: its place among all notifications of the session, which names it for good; else 0."""
    redelivered: bool = False
    """It may have been delivered before, to this program or an earlier one, and was not acknowledged."""
    _positions: Positions | None = None
    initial: bool = False
    """It was valid when its subscription was opened, or restored after a lost connection; False for a live one."""

    @property
    def attributes(self) -> dict[str, Value]:
        """The publication's attributes. Decoded at the first use and kept; shared, so don't change the dict.

        Raises: CodecError where the bytes are not a publication.
        """
        decoded = self._decoded
        if decoded is None:
            decoded = self._decoded = decode(_attributes, self._payload)
        return decoded

    @property
    def publisher(self) -> str:
        """The publishing client's id."""
        return self._run[0]

    @property
    def time(self) -> float:
        """When a connection point took the publication in: seconds since 1970-01-01 UTC, to the microsecond."""
        return self._run[2] / 1e6

    @property
    def instance(self) -> int:
        """Tells apart the lives of a publisher; (publisher, instance, sequence) names a publication for good."""
        return self._run[1]

    @property
    def subscription_ids(self) -> tuple[int, ...]:
        """The ids of this client's subscriptions that match, ascending."""
        numbers = self._numbers
        if isinstance(numbers, bytes):
            numbers = self._numbers = decode_numbers(numbers)
        return numbers

    @property
    def payload(self) -> bytes:
        """The attributes as they came: one msgpack map."""
        return self._payload

    async def ack(self, *, upto: bool = False) -> None:
        """Acknowledge: the durable session need not bring this again; with `upto`, nor anything up to its position.

        Without `manual_ack` that happens by itself when the stream is asked for the next one. It is on its way when
        this returns; a crash of the broker before it is there brings the notification again, flagged.
        Raises: SessionError where the session is not durable or has ended; ConnectionLostError when the client has.
        """
        self._of_session().acknowledge(self.position, upto=upto)

    async def refuse(self) -> None:
        """Ask for this again: it comes flagged, before what is new, and after `max_deliver` times it goes to the
        dead letters. Nothing happens where it is acknowledged. Raises: as `ack`."""
        self._of_session().refuse(self.position)
        self._holders = 0  # that the stream goes on does not settle it

    def _of_session(self) -> Positions:
        if self._positions is None:
            raise SessionError("only a durable session's notifications are acknowledged one by one")
        return self._positions

    def __repr__(self) -> str:
        return (
            f"Notification(publisher={self.publisher!r}, sequence={self.sequence}, time={self.time!r}, "
            f"subscription_ids={self.subscription_ids}, attributes={self.attributes!r})"
        )


def decode_numbers(data: bytes) -> tuple[int, ...]:
    """Return the uint32 of the bytes, ascending."""
    return tuple(sorted(struct.unpack(f"<{len(data) // 4}I", data)))
