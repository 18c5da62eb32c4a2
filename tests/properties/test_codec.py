"""decode(encode(m)) = m; whatever bytes come, CodecError and nothing else; a stream may be cut anywhere."""

from __future__ import annotations

import random
import struct
import typing
from typing import Any

import msgpack
import msgspec
import pytest

from cluster import frames, messages
from cluster.codec import (
    FrameReader,
    FrameTooLargeError,
    decode_client_frame,
    decode_message,
    decode_server_frame,
    encode_frame,
    encode_message,
)
from cluster.errors import CodecError

CLIENT_FRAMES = typing.get_args(frames.ClientFrame)
SERVER_FRAMES = typing.get_args(frames.ServerFrame)
MESSAGES = typing.get_args(messages.AnyMessage)


def draw(kind: Any, rng: random.Random) -> Any:
    """Return a random value of a field's type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is int:
        return rng.choice((0, 1, 127, 128, 65536, (1 << 63) - 1, (1 << 64) - 1, -1, -(1 << 63), rng.getrandbits(40)))
    if kind is bool:
        return rng.random() < 0.5
    if kind is str:
        return "".join(rng.choice("aZ é€\U0001f426\0\n\"'") for _ in range(rng.randint(0, 40)))
    if kind is bytes:
        return rng.randbytes(rng.choice((0, 1, 4, 300, 70_000 if rng.random() < 0.05 else 8)))
    if kind is type(None):
        return None
    if origin is list:
        return [draw(parts[0], rng) for _ in range(rng.choice((0, 1, 3, 20)))]
    if origin is tuple:
        return tuple(draw(part, rng) for part in parts)
    if origin is dict:
        return {draw(parts[0], rng): draw(parts[1], rng) for _ in range(rng.randint(0, 5))}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return draw_struct(kind, rng)
    choices = typing.get_args(kind)
    assert choices, f"no way to draw {kind}"
    return draw(rng.choice(choices), rng)


def draw_struct(kind: type[msgspec.Struct], rng: random.Random) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{name: draw(hints[name], rng) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", [*CLIENT_FRAMES, *SERVER_FRAMES], ids=lambda kind: kind.__name__)
def test_frames_come_back_as_they_were(kind: type[frames.Frame]) -> None:
    rng = random.Random(kind.__name__)
    decode = decode_client_frame if kind in CLIENT_FRAMES else decode_server_frame
    for _ in range(100):
        frame = draw_struct(kind, rng)
        wire = encode_frame(frame)
        assert struct.unpack("<I", wire[:4])[0] == len(wire) - 4
        again = decode(wire[4:])
        assert again == frame
        assert type(again) is kind


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_messages_come_back_as_they_were(kind: type[messages.Message]) -> None:
    rng = random.Random(kind.__name__)
    for _ in range(60):
        message = draw_struct(kind, rng)
        again = decode_message(encode_message(message))
        assert again == message
        assert type(again) is kind


def test_every_kind_has_a_tag_of_its_own() -> None:
    for kinds in (CLIENT_FRAMES + SERVER_FRAMES, MESSAGES):
        tags = [kind.__struct_config__.tag for kind in kinds]
        assert len(set(tags)) == len(tags)
    defined = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
    }
    assert defined == set(MESSAGES), "a message is missing in AnyMessage"


def expect_frame_or_codec_error(decode: Any, body: bytes) -> bool:
    """Return whether it decodes; whatever else than CodecError is raised fails the test by itself."""
    try:
        decode(body)
    except CodecError:
        return False
    return True


def test_damaged_bytes_raise_the_codecs_error_and_nothing_else() -> None:
    rng = random.Random(2)
    refused = 0
    for _ in range(8000):
        kind = rng.choice([*CLIENT_FRAMES, *SERVER_FRAMES, *MESSAGES])
        body = bytearray(encode_message(draw_struct(kind, rng)))
        for _ in range(rng.randint(1, 4)):
            way = rng.randrange(4)
            if way == 0 and body:
                body[rng.randrange(min(len(body), 64))] = rng.randrange(256)
            elif way == 1:
                del body[rng.randint(0, len(body)) :]
            elif way == 2:
                at = rng.randint(0, min(len(body), 64))
                body[at:at] = rng.randbytes(rng.randint(1, 6))
            elif body:
                at = rng.randrange(min(len(body), 64))
                del body[at : at + rng.randint(1, 4)]
        for decode in (decode_client_frame, decode_server_frame, decode_message):
            refused += not expect_frame_or_codec_error(decode, bytes(body))
    assert refused > 8000


def test_random_bytes_raise_the_codecs_error_and_nothing_else() -> None:
    rng = random.Random(3)
    for _ in range(10_000):
        body = rng.randbytes(rng.randint(0, 60))
        for decode in (decode_client_frame, decode_server_frame, decode_message):
            expect_frame_or_codec_error(decode, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\x80" * 1_000_000,  # a million empty maps
        b"\x91" * 100_000,  # nested 100,000 deep
        b"\xdd\xff\xff\xff\xff",  # an array of four billion
        b"\xdd\xff\xff\xff\xff\x02",
        b"\xc6\xff\xff\xff\xff",  # four gigabytes of bytes
        b"\x95\x02\x01\x01\xc4\xff",  # bytes that are not there
        b"\x94\x05\x01",
        b"\x92\xa1x\x01",  # a tag that is no number
        b"\x92\xcc\xfa\x01",  # an unknown tag
        msgpack.packb([1, 1, "x", 1.5, 1]),  # a float where a number is due
        msgpack.packb([1, 1, b"x", 1, 1]),  # bytes where text is due
        b"\x95\x01\x01\xa2\xff\xfe\x01\x01",  # text that is not UTF-8
        msgpack.packb([5, [[[]]]]),
    ],
    ids=range(15),
)
def test_hostile_bytes_raise_the_codecs_error(body: bytes) -> None:
    for decode in (decode_client_frame, decode_server_frame, decode_message):
        with pytest.raises(CodecError):
            decode(body)


@pytest.mark.parametrize("kind", [*CLIENT_FRAMES, *SERVER_FRAMES], ids=lambda kind: kind.__name__)
def test_a_frame_cut_at_any_byte_is_refused(kind: type[frames.Frame]) -> None:
    body = encode_frame(draw_struct(kind, random.Random(4)))[4:]
    decode = decode_client_frame if kind in CLIENT_FRAMES else decode_server_frame
    for cut in range(0, len(body), 1 + len(body) // 500):
        with pytest.raises(CodecError):
            decode(body[:cut])


def test_any_slicing_of_a_stream_gives_the_same_frames() -> None:
    rng = random.Random(5)
    for _ in range(300):
        bodies = [rng.randbytes(rng.choice((0, 1, 3, 4, 5, 100))) for _ in range(rng.randint(0, 12))]
        stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
        reader = FrameReader(100)
        got: list[bytes] = []
        at = 0
        while at < len(stream):
            step = rng.choice((1, 2, 3, 4, 5, 9, 50, 1000))
            got += reader.feed(stream[at : at + step])
            at += step
            whole = 0
            for body in got:
                whole += 4 + len(body)
            assert reader.pending == min(at, len(stream)) - whole
        assert got == bodies
        assert reader.pending == 0
        assert all(type(body) is bytes for body in got)


def test_a_frame_over_the_limit_is_refused_at_its_header() -> None:
    for limit in (0, 5, 4096):
        reader = FrameReader(limit)
        assert reader.feed(struct.pack("<I", limit) + b"x" * limit) == [b"x" * limit]
        header = struct.pack("<I", limit + 1)
        assert reader.feed(header[:3]) == []
        with pytest.raises(FrameTooLargeError) as caught:
            reader.feed(header[3:])
        assert (caught.value.announced, caught.value.limit) == (limit + 1, limit)
        assert caught.value.code == "too_large"


def test_a_reader_holds_no_more_than_one_frame() -> None:
    reader = FrameReader(1000)
    rng = random.Random(6)
    for _ in range(2000):
        body = rng.randbytes(rng.randint(0, 1000))
        wire = struct.pack("<I", len(body)) + body
        at = rng.randint(0, len(wire))
        reader.feed(wire[:at])
        assert reader.pending <= 1004
        assert reader.feed(wire[at:])[-1:] == [body] or at == len(wire)


def test_a_raised_limit_counts_from_the_next_frame() -> None:
    reader = FrameReader(10)
    assert reader.feed(struct.pack("<I", 3) + b"abc") == [b"abc"]
    reader.limit = 100
    assert reader.feed(struct.pack("<I", 50) + b"x" * 50) == [b"x" * 50]
