"""What a hostile client can do to a connection point, as short scripts that each own their sockets.

Every attack is bounded in connections, bytes and time, talks to one address, and returns how each of its connections
ended: the code of the Bye that came, `closed` or `reset` without one, `left` when the attacker went first, `held` when
it was still open at the end, `no login` when the connection point would not let it in.

They speak the wire format and not the SDK, which would refuse most of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgpack

from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.errors import CodecError
from cluster.frames import (
    ACKNOWLEDGE_MATCHED,
    VERSION,
    Acknowledged,
    Bye,
    Consumed,
    Frame,
    Goodbye,
    Hello,
    Pong,
    Publish,
    Refused,
    Subscribe,
    Unsubscribe,
    Welcome,
)

CONCURRENT = 64
"""Connections of one attack that are open at once, but for those that are meant to stay."""
PATIENCE_S = 15.0
"""How long a connection waits for the broker to end it; above every deadline of the default limits."""
MEGABYTE = 1 << 20


@dataclass
class Tally:
    """How the connections of one attack ended, and what else came back."""

    ends: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0


class Wire:
    """One hostile connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally) -> None:
        self._reader = reader
        self._writer = writer
        self._tally = tally
        self._frames = FrameReader(64 * MEGABYTE)
        self._bye: str | None = None
        self.welcome: Welcome | None = None
        self.acknowledged = 0

    async def send(self, data: bytes) -> bool:
        """Write and wait until the socket takes more; False when the connection is gone."""
        try:
            self._writer.write(data)
            self._tally.sent_bytes += len(data)
            await self._writer.drain()
        except OSError:
            return False
        return not self._reader.at_eof()

    async def login(self, client_id: str, window: int = 1024) -> bool:
        """Say Hello; False when the answer is not Welcome."""
        instance = random.getrandbits(63)
        await self.send(encode_frame(Hello(VERSION, client_id, instance, window)))
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(PATIENCE_S):
                while self.welcome is None and await self._take():
                    pass
        return self.welcome is not None

    async def _take(self) -> bool:
        """Read once; False at the end of the stream."""
        data = await self._reader.read(65536)
        try:
            for body in self._frames.feed(data):
                match decode_server_frame(body):
                    case Bye(code):
                        self._bye = code
                    case Welcome() as welcome:
                        self.welcome = welcome
                    case Refused(_, code):
                        self._tally.refused[code] += 1
                    case Acknowledged(upto, _, _, rejected):
                        self.acknowledged = upto
                        self._tally.rejected += len(rejected)
                    case _:
                        pass
        except CodecError:
            self._bye = "damaged"  # the broker's own frames must never be
        return bool(data)

    async def acknowledgement(self, upto: int) -> bool:
        """Wait until everything up to this sequence is acknowledged; False when the connection ends before."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(PATIENCE_S):
                while self.acknowledged < upto and await self._take():
                    pass
        return self.acknowledged >= upto

    async def ending(self, patience_s: float = PATIENCE_S, *, answer: bool = False) -> None:
        """Wait until the broker ends the connection, and count how. answer: keep the heartbeat up."""
        try:
            async with asyncio.timeout(patience_s):
                while await self._take():
                    if answer:
                        await self.send(encode_frame(Pong()))
            end = self._bye or "closed"
        except TimeoutError:  # an OSError too, so it comes first
            end = "held"
        except OSError:
            end = self._bye or "reset"
        self._tally.ends[end] += 1
        self._writer.transport.abort()

    def leave(self, end: str = "left") -> None:
        """Cut the connection from this side and count it."""
        self._tally.ends[end] += 1
        self._writer.transport.abort()


@dataclass
class Attack:
    """The means of one attack. seconds: how long it may last. scale: of the full number of connections."""

    host: str
    port: int
    rng: random.Random
    seconds: float
    scale: float
    tally: Tally = field(default_factory=Tally)

    def count(self, full: int) -> int:
        """Return how many of the full number to make."""
        return max(1, math.ceil(full * self.scale))

    async def open(self, *, receive_buffer: int | None = None) -> Wire:
        """Connect. receive_buffer: bytes that the kernel keeps for us, small for those that will not read."""
        loop = asyncio.get_running_loop()
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        plain.setblocking(False)
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(plain, (self.host, self.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=65536)
        return Wire(reader, writer, self.tally)

    async def paced(self, works: Iterable[Callable[[], Awaitable[None]]], total: int, *, stay: bool = False) -> None:
        """Start one piece of work after the other, evenly over the attack's time. stay: any number at once."""
        room = asyncio.Semaphore(total if stay else CONCURRENT)
        begin = time.monotonic()

        async def guarded(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except OSError:
                self.tally.ends["refused"] += 1
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            for place, work in enumerate(works):
                wait = begin + self.seconds * place / total - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                await room.acquire()
                group.create_task(guarded(work))


# Before login --------------------------------------------------------------------------------------------------------


async def random_bytes(attack: Attack) -> None:
    """10,000 strings of random bytes, a connection each: a third as they are, a third framed, a third after login."""
    total = attack.count(10_000)

    async def one(place: int) -> None:
        data = attack.rng.randbytes(attack.rng.randint(1, 4000))
        wire = await attack.open()
        if place % 3 == 2 and not await wire.login(f"random-{place}"):
            wire.leave("no login")
            return
        await wire.send(data if place % 3 == 0 else framed(data))
        if place % 3 == 0 and (len(data) < 4 or int.from_bytes(data[:4], "little") <= 4096):
            wire.leave()  # an unfinished frame: the cut ones look at that
        else:
            await wire.ending()

    await attack.paced((lambda place=place: one(place) for place in range(total)), total)  # type: ignore[misc]


def framed(body: bytes) -> bytes:
    """Return the body with its length in front."""
    return struct.pack("<I", len(body)) + body


def every_frame() -> list[Frame]:
    """Return one valid frame of each type that a client sends."""
    payload = msgpack.packb({"no2": 45.0, "station": "Plaza de España"})
    return [
        Hello(VERSION, "cut", 1, 1024),
        Publish(1, ACKNOWLEDGE_MATCHED, struct.pack("<I", len(payload)), payload),
        Subscribe(1, 0, 'no2 > 40 and station starts_with "Pza"', "block"),
        Unsubscribe(2, 0),
        Consumed(0),
        Pong(),
        Goodbye(),
    ]


def _cuts() -> Iterator[tuple[bool, bytes]]:
    """Every frame type cut after every byte; whether it comes after login."""
    for frame in every_frame():
        data = encode_frame(frame)
        for end in range(1, len(data)):
            yield not isinstance(frame, Hello), data[:end]


async def _cut(attack: Attack, place: int, after_login: bool, data: bytes, *, hold: bool) -> None:
    wire = await attack.open()
    if after_login and not await wire.login(f"cut-{hold}-{place}"):
        wire.leave("no login")
        return
    await wire.send(data)
    if hold:
        await wire.ending(attack.seconds if attack.scale < 1 else PATIENCE_S)
    else:
        wire.leave()


async def _all_cuts(attack: Attack, *, hold: bool) -> None:
    cuts = list(_cuts())
    chosen = attack.rng.sample(list(enumerate(cuts)), attack.count(len(cuts)))
    works = (lambda place=place, cut=cut: _cut(attack, place, *cut, hold=hold) for place, cut in chosen)
    await attack.paced(works, len(chosen), stay=hold)


async def cut_and_closed(attack: Attack) -> None:
    """Each frame type cut after every byte, and the connection closed."""
    await _all_cuts(attack, hold=False)


async def cut_and_held(attack: Attack) -> None:
    """Each frame type cut after every byte, and the connection held open."""
    await _all_cuts(attack, hold=True)


async def huge_first_frame(attack: Attack) -> None:
    """100 MB announced and sent in the first frame, on 100 sockets."""
    size = 100 * MEGABYTE
    piece = bytes(65536)

    async def one() -> None:
        wire = await attack.open()
        # What the broker says is read at once: a write that fails would throw it away.
        ending = asyncio.ensure_future(wire.ending())
        going = await wire.send(struct.pack("<I", size))
        sent = 0
        while going and sent < size:
            going = await wire.send(piece)
            sent += len(piece)
            await asyncio.sleep(0)
        await ending

    total = attack.count(100)
    await attack.paced(itertools.repeat(one, total), total)


async def silent(attack: Attack) -> None:
    """700 connections that say nothing, and 50 that say a byte of Hello now and then."""
    hello = encode_frame(Hello(VERSION, "drip", 1, 1024))
    patience_s = attack.seconds if attack.scale < 1 else PATIENCE_S

    async def mute() -> None:
        await (await attack.open()).ending(patience_s)

    async def drip() -> None:
        wire = await attack.open()
        ending = asyncio.ensure_future(wire.ending(patience_s))
        for byte in hello[:-1]:
            if ending.done():
                break
            await wire.send(bytes([byte]))
            await asyncio.wait([ending], timeout=0.25)
        await ending

    mutes, drips = attack.count(700), attack.count(50)
    works = itertools.chain(itertools.repeat(drip, drips), itertools.repeat(mute, mutes))
    await attack.paced(works, mutes + drips, stay=True)


# After login ---------------------------------------------------------------------------------------------------------


async def _logged_in(attack: Attack, full: int, work: Callable[[Wire, int], Awaitable[None]], name: str) -> None:
    """Run `work` on `full` connections that have logged in; it leaves them open or counts their end itself."""

    async def one(place: int) -> None:
        wire = await attack.open()
        if await wire.login(f"{name}-{place}"):
            await work(wire, place)
        else:
            wire.leave("no login")

    total = attack.count(full)
    await attack.paced((lambda place=place: one(place) for place in range(total)), total)  # type: ignore[misc]


async def bombs(attack: Attack) -> None:
    """1 MB of empty maps, of empty arrays, deep nesting, a count of 4 milliards: as frames, on 100 connections."""
    size = MEGABYTE - 16
    bodies = [
        b"\xdd" + struct.pack(">I", size) + b"\x80" * size,
        b"\xdd" + struct.pack(">I", size) + b"\x90" * size,
        b"\x91" * size + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\x95\x02" + b"\xdd" + struct.pack(">I", size) + b"\x80" * size,  # in the place of Publish.first_sequence
    ]

    async def work(wire: Wire, place: int) -> None:
        await wire.send(framed(bodies[place % len(bodies)]))
        await wire.ending()

    await _logged_in(attack, 100, work, "bomb")


def bad_publications() -> list[bytes]:
    """Return publications that are not well-formed or over a limit."""
    pack = msgpack.packb
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    return [
        pack({"x": math.nan}),
        pack({"x": math.inf}),
        pack({"x": -math.inf}),
        pack({"x": {"y": 1}}),
        pack({"x": [1, 2]}),
        pack({"x": deep}),
        pack({"x": b"bytes"}),
        pack({1: 1}),
        pack({"x": msgpack.ExtType(1, b"x")}),
        pack({"": 1}),
        pack({"n" * 257: 1}),
        pack({"x": "s" * 65_537}),
        pack({f"a{number}": number for number in range(257)}),
        pack({"x": 1, "y": 2})[:-1],
        pack({"x": 1}) + b"\x00",
        b"\x82\xa1x\x01\xa1x\x02",  # a key twice: the last wins
        b"\x81\xa1\xff\x01",  # not UTF-8
        b"\xc1",
        b"",
        b"\xdf\xff\xff\xff\xff",
        pack([1, 2, 3]),
        pack(None),
        b"\x80",
        b"\xde\x40\x00" + b"\x80" * 16_384,
    ]


async def bad_publications_attack(attack: Attack) -> None:
    """NaN, nesting, wrong types, huge values: each alone, all in a frame, and 1 MB in one; on 60 connections."""
    bad = bad_publications()
    runs: list[list[bytes]] = [[one] for one in bad]
    runs += [bad, [b"\x80" * (MEGABYTE - 64)], [b"\xc1"] * 8000, [b""] * 8000, [b"\x80"] * 8000]

    async def work(wire: Wire, place: int) -> None:
        sequence = 1
        for run in [runs[(place + step) % len(runs)] for step in range(4)]:
            lengths = struct.pack(f"<{len(run)}I", *map(len, run))
            await wire.send(encode_frame(Publish(sequence, ACKNOWLEDGE_MATCHED, lengths, b"".join(run))))
            sequence += len(run)
            if not await wire.acknowledgement(sequence - 1):
                break
        wire.leave("left" if wire.acknowledged == sequence - 1 else "unanswered")

    await _logged_in(attack, 60, work, "bad")


async def over_credit(attack: Attack) -> None:
    """Publishing without looking at the credit, in messages and in bytes, on 40 connections."""
    small = msgpack.packb({"attack": True})
    large = msgpack.packb({"attack": "s" * 60_000})

    async def work(wire: Wire, place: int) -> None:
        one, count = (small, 4096) if place % 2 else (large, 15)
        ending = asyncio.ensure_future(wire.ending(attack.seconds))
        sequence = 1
        for _ in range(8):
            lengths = struct.pack(f"<{count}I", *[len(one)] * count)
            if not await wire.send(encode_frame(Publish(sequence, ACKNOWLEDGE_MATCHED, lengths, one * count))):
                break
            sequence += count
            await asyncio.sleep(0)
        await ending

    await _logged_in(attack, 40, work, "credit")


async def absurd_numbers(attack: Attack) -> None:
    """Subscription numbers and counts below 0, at and beyond every edge, on 100 connections."""
    edge = 1 << 20
    frames: list[Frame] = [
        Subscribe(1, -1, "attack > 1", "block"),
        Subscribe(1, edge, "attack > 1", "block"),
        Subscribe((1 << 64) - 1, (1 << 64) - 1, "attack > 1", "block"),
        Subscribe(-(1 << 63), edge - 1, "attack > 1", "drop_oldest"),
        Subscribe(1, edge - 1, "attack > 1", "drop_oldest"),
        Unsubscribe(1, -5),
        Unsubscribe(1, 1 << 63),
        Consumed(1 << 63),
        Consumed(-1),
        Publish(0, ACKNOWLEDGE_MATCHED, bytes(4), b""),
        Publish(1 << 62, ACKNOWLEDGE_MATCHED, bytes(4), b""),
        Publish(1, 7, bytes(4), b""),
        Publish(1, ACKNOWLEDGE_MATCHED, b"\xff\xff\xff\xff" * 2, b"x"),
    ]

    async def work(wire: Wire, place: int) -> None:
        frame = frames[place % len(frames)]
        await wire.send(encode_frame(frame))
        await wire.ending(min(2.0, attack.seconds))

    await _logged_in(attack, 100, work, "absurd")


def costly_filters() -> list[str]:
    """Return filters at and beyond the limits: depth, predicates, lists, conjunctions, patterns, text."""
    pairs = " and ".join(f"(a{number} > 1 or b{number} < 2)" for number in range(10))
    values = ", ".join(f'"v{number}"' for number in range(256))
    return [
        "(" * 16 + "attack > 1" + ")" * 16,
        "(" * 4000 + "attack > 1" + ")" * 4000,
        "not " * 2000 + "attack > 1",
        " or ".join(f"a{number} > {number}" for number in range(64)),
        " or ".join(f"a{number} > {number}" for number in range(65)),
        pairs,  # 1,024 conjunctions
        pairs + " and (a10 > 1 or b10 < 2)",  # 2,048
        f"attack in ({values})",
        " and ".join(f"x{number} in ({values[: 100 * 7]}1)" for number in range(6)),
        " and ".join(f'x{number} like "%a%b%c%d%e%f%g%"' for number in range(64)),
        f'attack contains "{"a" * 8000}"',
        "x" * 8192,
        "x > 1 " * 1300,
        '{"and": ' * 1000 + "1",
        '{"and": [' + ",".join(['{">": ["a", 1]}'] * 400) + "]}",
        "near(lat, lon, 90, 180, 20000000) and within(lat, lon, -90, -180, 90, 180)",
    ]


async def costly_filters_attack(attack: Attack) -> None:
    """Filters at and beyond the limits, 50 on each of 20 connections, opened, replaced and closed again."""
    filters = costly_filters()

    async def work(wire: Wire, place: int) -> None:
        for step in range(50):
            text = filters[(place + step) % len(filters)]
            if not await wire.send(encode_frame(Subscribe(step, step % 20, text, "block"))):
                break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(attack.seconds):
                await wire._take()
        wire.leave()

    await _logged_in(attack, 20, work, "costly")


async def never_reads(attack: Attack) -> None:
    """20 connections that ask and never read: refusals, publications' answers, and the victim's own publications."""
    bad = encode_frame(Subscribe(1, 0, "(", "block")) * 500
    lengths = struct.pack("<1000I", *[1] * 1000)

    async def one(place: int) -> None:
        wire = await attack.open(receive_buffer=4096)
        if not await wire.login(f"deaf-{place}", 65_536):
            wire.leave("no login")
            return
        deadline = time.monotonic() + attack.seconds
        if place % 4 == 3:
            every = "exists victim or missing victim"
            data = [encode_frame(Subscribe(number, number, every, "drop_oldest")) for number in range(100)]
        elif place % 4 == 2:
            data = [
                encode_frame(Publish(1 + 1000 * step, ACKNOWLEDGE_MATCHED, lengths, b"\xc1" * 1000))
                for step in range(8)
            ]
        else:
            data = [bad] * 400
        for piece in data:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                    if not await wire.send(piece):
                        break
            except TimeoutError:
                break
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 1.0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await wire.send(encode_frame(Pong()))
        wire.leave("held" if not wire._writer.transport.is_closing() else "closed")

    total = attack.count(20)
    seconds, attack.seconds = attack.seconds, attack.seconds * 0.9
    async with asyncio.TaskGroup() as group:
        for place in range(total):
            group.create_task(one(place))
    attack.seconds = seconds


async def taken_over(attack: Attack) -> None:
    """One client id that logs in 300 times in a row without leaving."""

    async def one() -> None:
        wire = await attack.open()
        if not await wire.login("the one"):
            wire.leave("no login")
            return
        await wire.ending(min(2.0, attack.seconds))

    total = attack.count(300)
    await attack.paced(itertools.repeat(one, total), total)


ATTACKS: dict[str, tuple[float, Callable[[Attack], Awaitable[None]]]] = {
    "random bytes": (5.0, random_bytes),
    "cut and closed": (1.0, cut_and_closed),
    "cut and held": (1.0, cut_and_held),
    "100 MB first frame": (1.0, huge_first_frame),
    "silent": (1.0, silent),
    "bombs": (1.0, bombs),
    "bad publications": (1.0, bad_publications_attack),
    "over credit": (1.0, over_credit),
    "absurd numbers": (1.0, absurd_numbers),
    "costly filters": (1.0, costly_filters_attack),
    "never reads": (1.5, never_reads),
    "taken over": (0.5, taken_over),
}
"""Name -> its share of the time, and the attack."""
