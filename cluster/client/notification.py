"""One notification, as the application sees it."""

from __future__ import annotations

import struct

import msgspec

from cluster.client.attributes import Value
from cluster.codec import decode

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

    def __repr__(self) -> str:
        return (
            f"Notification(publisher={self.publisher!r}, sequence={self.sequence}, time={self.time!r}, "
            f"subscription_ids={self.subscription_ids}, attributes={self.attributes!r})"
        )


def decode_numbers(data: bytes) -> tuple[int, ...]:
    """Return the uint32 of the bytes, ascending."""
    return tuple(sorted(struct.unpack(f"<{len(data) // 4}I", data)))
