"""The handshake of a lane over loopback sockets: who gets in, who does not, and what either end learns of it."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from actors import transport
from actors.transport import FRAME_BYTES, HANDSHAKE_BYTES, Answer, Call, Challenge, Identity, LaneProtocol, Ready, proof
from cluster.channel import Lane
from cluster.messages import EXIT_POINT, MATCHER

SECRET = secrets.token_bytes(32)
MATCHER_0 = Identity(MATCHER, 0, 3)
EXIT_0 = Identity(EXIT_POINT, 0, 1)

encode = msgspec.msgpack.encode


class End:
    """One end: what its protocols said. received: what it tells the peer of its receiving half; None fences."""

    def __init__(self, own: Identity, *, secret: bytes = SECRET, target: Identity | None = None) -> None:
        self.own = own
        self.secret = secret
        self.target = target
        self.received: int | None = 0
        self.ups: list[tuple[Identity, int]] = []
        self.bodies: list[bytes] = []
        self.downs: list[str] = []
        self.asked: list[Identity] = []
        self.protocols: list[LaneProtocol] = []
        self.at_up: Callable[[LaneProtocol], None] = lambda protocol: None
        self.changed = asyncio.Event()

    def protocol(self) -> LaneProtocol:
        """Return a protocol for a new connection."""
        return LaneProtocol(
            self.own,
            self.secret,
            target=self.target,
            received=self._received,
            up=self._up,
            frames=self._frames,
            down=self._down,
        )

    def _received(self, other: Identity) -> int | None:
        self.asked.append(other)
        return self.received

    def _up(self, protocol: LaneProtocol, other: Identity, peer_received: int) -> None:
        self.ups.append((other, peer_received))
        self.protocols.append(protocol)
        self.at_up(protocol)
        self.changed.set()

    def _frames(self, protocol: LaneProtocol, bodies: list[bytes]) -> None:
        self.bodies += bodies
        self.changed.set()

    def _down(self, protocol: LaneProtocol, reason: str) -> None:
        self.downs.append(reason)
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that this end was told makes the condition true."""
        async with asyncio.timeout(120):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def listening(end: End) -> tuple[asyncio.Server, int]:
    """Listen with this end; return the server and its port."""
    server = await asyncio.get_running_loop().create_server(end.protocol, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def conversation(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a loop of its own, in which every connection is closed at the end."""

    def test() -> None:
        asyncio.run(work())

    test.__name__ = work.__name__
    test.__doc__ = work.__doc__
    return test


async def meet(listener: End, dialler: End, then: Callable[[], Awaitable[None]]) -> None:
    """Let the one dial the other, wait for `then`, and close both."""
    server, port = await listening(listener)
    dialling, _ = await asyncio.get_running_loop().create_connection(dialler.protocol, "127.0.0.1", port)
    try:
        await then()
    finally:
        dialling.abort()
        server.close()
        await dialler.until(lambda: dialler.downs)
        await listener.until(lambda: listener.downs)


# Both ends are ours ----------------------------------------------------------------------------------------------


@conversation
async def test_both_ends_learn_who_the_other_is_and_where_it_stands() -> None:
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)
    listener.received, dialler.received = 17, 4

    async def both_up() -> None:
        await listener.until(lambda: listener.ups)
        await dialler.until(lambda: dialler.ups)

    await meet(listener, dialler, both_up)
    assert listener.ups == [(MATCHER_0, 4)]
    assert dialler.ups == [(EXIT_0, 17)]


@conversation
async def test_frames_pass_in_both_directions() -> None:
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)
    lanes = Lane(), Lane()

    async def talk() -> None:
        await listener.until(lambda: listener.ups)
        await dialler.until(lambda: dialler.ups)
        for end, lane in ((listener, lanes[0]), (dialler, lanes[1])):
            lane.connect(0)
            lane.send(b"x" * 100_000)
            lane.send(b"")
            end.protocols[0].write(lane.poll())
        await listener.until(lambda: len(listener.bodies) == 2)
        await dialler.until(lambda: len(dialler.bodies) == 2)

    await meet(listener, dialler, talk)
    for end, lane in ((listener, lanes[0]), (dialler, lanes[1])):
        assert [lane.receive(body) for body in end.bodies] == [b"x" * 100_000, b""]


@conversation
async def test_frames_right_behind_ready_are_frames() -> None:
    """A listener with a backlog sends it at once: it arrives in one piece with the end of the handshake."""
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)
    lane = Lane()
    lane.send(b"small")
    lane.send(b"x" * 10 * HANDSHAKE_BYTES)

    def resend(protocol: LaneProtocol) -> None:
        lane.connect(0)
        protocol.write(lane.poll())

    listener.at_up = resend

    async def arrived() -> None:
        await dialler.until(lambda: len(dialler.bodies) == 2 or dialler.downs)

    await meet(listener, dialler, arrived)
    assert len(dialler.ups) == 1
    other = Lane()
    assert [other.receive(body) for body in dialler.bodies] == [b"small", b"x" * 10 * HANDSHAKE_BYTES]


@conversation
async def test_a_dialler_without_the_secret_is_refused() -> None:
    """It finds that the listener cannot know its secret, and says nothing more."""
    listener, dialler = End(EXIT_0), End(MATCHER_0, secret=b"guess", target=EXIT_0)

    async def refused() -> None:
        await dialler.until(lambda: dialler.downs)

    await meet(listener, dialler, refused)
    assert listener.ups == dialler.ups == []
    assert dialler.downs == ["the listener does not know the cluster's secret"]
    assert listener.asked == [], "nothing about the lane is told"


@pytest.mark.parametrize(
    "target",
    [Identity(EXIT_POINT, 1, 1), Identity(MATCHER, 0, 1), Identity(EXIT_POINT, 0, 2)],
    ids=["slot", "layer", "incarnation"],
)
def test_a_call_for_somebody_else_is_refused(target: Identity) -> None:
    async def work() -> None:
        listener, dialler = End(EXIT_0), End(MATCHER_0, target=target)

        async def refused() -> None:
            await dialler.until(lambda: dialler.downs)

        await meet(listener, dialler, refused)
        assert listener.ups == dialler.ups == []
        assert listener.downs[0].startswith(f"a call for {target.layer} {target.slot}, this is")

    asyncio.run(work())


@conversation
async def test_a_call_for_any_incarnation_learns_which_one_answers() -> None:
    listener = End(EXIT_0._replace(incarnation=9))
    dialler = End(MATCHER_0, target=EXIT_0._replace(incarnation=0))

    async def up() -> None:
        await dialler.until(lambda: dialler.ups)

    await meet(listener, dialler, up)
    assert dialler.ups == [(EXIT_0._replace(incarnation=9), 0)]


@conversation
async def test_a_stale_incarnation_is_fenced_by_the_listener() -> None:
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)
    listener.received = None

    async def refused() -> None:
        await dialler.until(lambda: dialler.downs)

    await meet(listener, dialler, refused)
    assert listener.asked == [MATCHER_0]
    assert listener.ups == dialler.ups == []
    assert "is fenced" in listener.downs[0]


@conversation
async def test_a_stale_incarnation_is_fenced_by_the_dialler() -> None:
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)
    dialler.received = None

    async def refused() -> None:
        await dialler.until(lambda: dialler.downs)

    await meet(listener, dialler, refused)
    assert dialler.asked == [EXIT_0]
    assert listener.ups == dialler.ups == []
    assert "is fenced" in dialler.downs[0]


# A stranger at one end ---------------------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


async def strange_caller(listener: End, said: bytes, then: Callable[[bytes], bytes] | None = None) -> bytes:
    """Say something to a listener, perhaps answer what comes, and return all it says until it hangs up."""
    server, port = await listening(listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    heard = b""
    try:
        async with asyncio.timeout(120):
            if then is not None:
                heard = await reader.read(4096)
                writer.write(then(heard))
            heard += await reader.read()
    except ConnectionResetError:
        pass
    finally:
        writer.transport.abort()
        server.close()
        await listener.until(lambda: listener.downs)
    return heard


def call(**changed: Any) -> bytes:
    values = {"nonce": bytes(transport.NONCE_BYTES), "target": EXIT_0} | changed
    return framed(encode(Call(*MATCHER_0, *values["target"], values["nonce"])))


@pytest.mark.parametrize(
    "said",
    [
        framed(b"GET / HTTP/1.1\r\n\r\n"),
        framed(b""),
        framed(b"\xc0"),
        framed(encode([1, 2, 3])),
        framed(encode(Answer(bytes(32), 0))),
        framed(encode(Ready(0))),
        call(nonce=b""),
        call(nonce=bytes(33)),
        framed(b"\xdd\xff\xff\xff\xff"),
        framed(b"\x91" * 4000),
    ],
    ids=["http", "empty", "nil", "numbers", "answer", "ready", "no nonce", "long nonce", "bomb", "deep"],
)
def test_garbage_ends_the_connection_without_a_word(said: bytes) -> None:
    listener = End(EXIT_0)
    assert asyncio.run(_strange(listener, said)) == b""
    assert listener.ups == listener.asked == []
    assert len(listener.downs) == 1


async def _strange(listener: End, said: bytes) -> bytes:
    return await strange_caller(listener, said)


@pytest.mark.parametrize("announced", [HANDSHAKE_BYTES + 1, 100 << 20, (1 << 32) - 1])
def test_a_frame_before_the_proof_is_at_most_four_kilobytes(announced: int) -> None:
    listener = End(EXIT_0)
    heard = asyncio.run(_strange(listener, struct.pack("<I", announced)))
    assert heard == b""
    assert listener.downs == [f"a frame of {announced} bytes was announced, the limit is {HANDSHAKE_BYTES}"]


def test_the_first_characters_of_another_protocol_are_a_frame_too_large() -> None:
    listener = End(EXIT_0)
    assert asyncio.run(_strange(listener, b"GET / HTTP/1.1\r\n\r\n")) == b""
    assert "the limit is" in listener.downs[0]


@pytest.mark.parametrize("kind", ["guess", "replay", "reflection"])
def test_a_caller_that_only_pretends_is_not_answered(kind: str) -> None:
    """guess: a proof of noise; replay: one from another conversation; reflection: the listener's own."""
    listener = End(EXIT_0)

    def answer(heard: bytes) -> bytes:
        challenge = msgspec.msgpack.decode(heard[4:], type=Challenge)
        proofs = {
            "guess": bytes(32),
            "replay": proof(SECRET, "dialler", MATCHER_0, EXIT_0, (bytes(32), bytes(32))),
            "reflection": challenge.proof,
        }
        return framed(encode(Answer(proofs[kind], 0)))

    async def work() -> bytes:
        return await strange_caller(listener, call(), answer)

    heard = asyncio.run(work())
    assert len(heard) < 200, "a challenge, and no Ready"
    assert listener.downs == ["the caller does not know the cluster's secret"]
    assert listener.ups == listener.asked == []


@pytest.mark.parametrize("said", [b"", b"\x10", call()[:-1], call()], ids=["nothing", "a byte", "most", "no answer"])
def test_silence_ends_the_connection(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_S", 0.02)
    listener = End(EXIT_0)
    asyncio.run(_strange(listener, said))
    assert listener.downs == ["no handshake in time"]
    assert listener.ups == []


async def strange_listener(dialler: End, say: Callable[[bytes], bytes]) -> None:
    """Answer a dialler's call with something; wait until it gives up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(say(await reader.read(4096)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection, _ = await asyncio.get_running_loop().create_connection(dialler.protocol, "127.0.0.1", port)
    await dialler.until(lambda: dialler.downs)
    connection.abort()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["garbage", "ready at once", "wrong proof", "too large", "its own call back"])
def test_a_dialler_does_not_trust_whoever_answers(kind: str) -> None:
    dialler = End(MATCHER_0, target=EXIT_0)

    def say(heard: bytes) -> bytes:
        return {
            "garbage": framed(b"\xc1" * 10),
            "ready at once": framed(encode(Ready(0))),
            "wrong proof": framed(encode(Challenge(1, bytes(32), bytes(32)))),
            "too large": struct.pack("<I", FRAME_BYTES),
            "its own call back": heard,
        }[kind]

    asyncio.run(strange_listener(dialler, say))
    assert dialler.ups == dialler.asked == []
    assert len(dialler.downs) == 1
    assert dialler.downs[0] != "closed by the peer", "it was the dialler that ended it"


def test_a_dialler_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_S", 0.02)
    dialler = End(MATCHER_0, target=EXIT_0)
    asyncio.run(strange_listener(dialler, lambda heard: b""))
    assert dialler.downs == ["no handshake in time"]


@conversation
async def test_after_the_handshake_a_frame_over_the_limit_ends_the_connection() -> None:
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)

    async def overdo() -> None:
        await listener.until(lambda: listener.ups)
        await dialler.until(lambda: dialler.ups)
        assert dialler.protocols[0]._transport is not None
        dialler.protocols[0]._transport.write(struct.pack("<I", FRAME_BYTES + 1))
        await listener.until(lambda: listener.downs)

    await meet(listener, dialler, overdo)
    assert listener.bodies == []
    assert "the limit is" in listener.downs[0]


@conversation
async def test_the_peer_s_end_is_told_once_with_its_reason() -> None:
    listener, dialler = End(EXIT_0), End(MATCHER_0, target=EXIT_0)

    async def cut() -> None:
        await listener.until(lambda: listener.ups)
        await dialler.until(lambda: dialler.ups)
        dialler.protocols[0].abort("had enough")

    await meet(listener, dialler, cut)
    assert dialler.downs == ["had enough"]
    assert len(listener.downs) == 1


def test_every_conversation_has_a_proof_of_its_own() -> None:
    nonces = (bytes(32), bytes(31) + b"\x01")
    said = {
        proof(secret, side, caller, listener, pair)
        for secret in (SECRET, b"other")
        for side in ("dialler", "listener")
        for caller, listener in ((MATCHER_0, EXIT_0), (EXIT_0, MATCHER_0), (MATCHER_0._replace(incarnation=4), EXIT_0))
        for pair in (nonces, nonces[::-1])
    }
    assert len(said) == 24
