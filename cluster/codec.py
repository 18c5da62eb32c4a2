"""Frames and messages <-> bytes, and the bytes of a stream <-> frames.

Decoding is always typed: msgspec rejects at the first byte that does not fit, without building what it refuses, so
a megabyte of empty maps costs a peer its connection and us 40 microseconds. Whatever bytes arrive, the only
exception is CodecError.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from cluster.errors import CodecError
from cluster.frames import ClientFrame, Frame, ServerFrame
from cluster.messages import AnyMessage, Message

T = TypeVar("T")

_LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_client_frames: msgspec.msgpack.Decoder[ClientFrame] = msgspec.msgpack.Decoder(ClientFrame)
_server_frames: msgspec.msgpack.Decoder[ServerFrame] = msgspec.msgpack.Decoder(ServerFrame)
_messages: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode_frame(frame: Frame) -> bytes:
    """Return the frame with its length in front, ready for the socket."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


def decode_client_frame(body: bytes | memoryview) -> ClientFrame:
    """Return the frame that a client sent. Raises CodecError, which says what does not fit."""
    return decode(_client_frames, body)


def decode_server_frame(body: bytes | memoryview) -> ServerFrame:
    """Return the frame that a connection point sent. Raises CodecError."""
    return decode(_server_frames, body)


def encode_message(message: Message) -> bytes:
    """Return the message's bytes, for one lane frame."""
    return _encoder.encode(message)


def decode_message(body: bytes | memoryview) -> AnyMessage:
    """Return the message that a peer sent. Raises CodecError."""
    return decode(_messages, body)


def decode(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview) -> T:
    """Run a typed decoder; every way in which bytes can be wrong ends in CodecError."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise CodecError(f"not a valid frame: {error}") from error


class FrameTooLargeError(CodecError):
    """A frame announced more bytes than allowed; nothing of it was kept."""

    code = "too_large"

    def __init__(self, announced: int, limit: int) -> None:
        self.announced = announced
        self.limit = limit
        super().__init__(f"a frame of {announced} bytes was announced, the limit is {limit}")


class FrameReader:
    """Cuts a byte stream into frame bodies.

    Holds at most `limit` + 4 bytes plus the last chunk given; `limit` may be raised at any time. `pending` is the
    number of bytes of an unfinished frame: a caller with a deadline for partial frames asks for it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Take what the socket gave and return the bodies that are complete.

        Raises: FrameTooLargeError at the header of a frame over the limit. Frames before it in the same chunk
                are lost with the connection; the reader is of no use afterwards.
        """
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < 4 or len(rest) < 4 + self._announced(rest, 0):
                return []
            data = bytes(rest)
            rest.clear()
        bodies = []
        position, end = 0, len(data)
        while end - position >= 4:
            stop = position + 4 + self._announced(data, position)
            if stop > end:
                break
            bodies.append(data[position + 4 : stop])
            position = stop
        if position < end:
            rest += data[position:] if position else data
        return bodies

    def _announced(self, data: bytes | bytearray, position: int) -> int:
        length: int = _LENGTH.unpack_from(data, position)[0]
        if length > self.limit:
            raise FrameTooLargeError(length, self.limit)
        return length
