"""A lane delivers each message once and in order, whatever the network loses, doubles, reorders or cuts."""

from __future__ import annotations

import random
import struct

import pytest

from cluster.channel import ACK, DATA, HEADER_BYTES, Lane
from cluster.codec import FrameReader
from cluster.errors import CodecError

HEADER = struct.Struct("<BQ")


def bodies(lane: Lane) -> list[bytes]:
    """Return what the lane wants written, as frame bodies."""
    reader = FrameReader(1 << 20)
    out = reader.feed(b"".join(lane.poll()))
    assert not reader.pending, "half a frame"
    return out


class Network:
    """Two ends and what is between them. faults: the share of frames lost, doubled, put before others."""

    def __init__(self, rng: random.Random, faults: float, resend_ms: int | None, window: tuple[int, int]) -> None:
        self.rng = rng
        self.faults = faults
        self.window = window
        self.ends = [Lane(window_messages=window[0], window_bytes=window[1], resend_ms=resend_ms) for _ in range(2)]
        self.flying: list[list[bytes]] = [[], []]  # by receiver
        self.sent: list[list[bytes]] = [[], []]  # by sender
        self.got: list[list[bytes]] = [[], []]  # by receiver
        self.now_ms = 0

    def send(self, end: int) -> None:
        message = struct.pack("<I", len(self.sent[end])) + self.rng.randbytes(self.rng.choice((0, 1, 10, 60)))
        self.sent[end].append(message)
        self.ends[end].send(message)

    def poll(self, end: int) -> None:
        for body in bodies(self.ends[end]):
            assert self.ends[end].connected, "a lane without a connection wants to write"
            where = self.flying[1 - end]
            chance = self.rng.random()
            if chance < self.faults:
                continue
            if chance < 2 * self.faults:
                where.append(body)
            if chance < 3 * self.faults:
                where.insert(self.rng.randint(0, len(where)), body)
            else:
                where.append(body)

    def arrive(self, end: int) -> None:
        if self.flying[end]:
            message = self.ends[end].receive(self.flying[end].pop(0))
            if message is not None:
                self.got[end].append(message)

    def cut(self) -> None:
        """The connection goes; what flies is lost. A new one begins with what each end has taken."""
        for end in self.ends:
            end.disconnect()
        self.flying = [[], []]

    def connect(self) -> None:
        taken = [end.received for end in self.ends]
        for index, end in enumerate(self.ends):
            end.connect(taken[1 - index])

    def tick(self) -> None:
        self.now_ms += 50
        for end in self.ends:
            end.tick(self.now_ms)

    def check(self) -> None:
        for end in range(2):
            lane = self.ends[end]
            got = self.got[1 - end]
            assert got == self.sent[end][: len(got)], "not once, or not in order"
            flight = len(self.sent[end]) - lane.backlog - lane._acknowledged
            assert flight <= self.window[0]
            held = b"".join(self.sent[end][lane._acknowledged :])
            assert lane.held_bytes == len(held), "bytes held are not those of the messages held"
            flying = self.sent[end][lane._acknowledged : lane._acknowledged + flight]
            assert flight <= 1 or sum(map(len, flying)) <= self.window[1]

    def settle(self) -> None:
        """Nothing is lost any more: everything arrives, and nothing is kept."""
        self.faults = 0
        if not self.ends[0].connected:
            self.connect()
        for _ in range(3000):
            for end in range(2):
                self.poll(end)
                while self.flying[end]:
                    self.arrive(end)
            self.tick()
            if self.got == self.sent[::-1] and not any(lane.held_bytes or lane.backlog for lane in self.ends):
                break
        for end in range(2):
            assert self.got[1 - end] == self.sent[end]
            assert self.ends[end].held_bytes == 0
            assert self.ends[end].backlog == 0
            assert not self.ends[end]._flight


@pytest.mark.parametrize("seed", range(60))
def test_each_message_once_and_in_order_over_a_bad_network(seed: int) -> None:
    rng = random.Random(seed)
    window = rng.choice(((1, 1), (3, 1000), (8, 100), (64, 200), (4096, 1 << 20)))
    network = Network(rng, rng.choice((0.0, 0.05, 0.2)), rng.choice((50, 200, 1000)), window)
    network.connect()
    for _ in range(600):
        step = rng.random()
        end = rng.randrange(2)
        if step < 0.25:
            for _ in range(rng.choice((1, 1, 5, 20))):
                network.send(end)
        elif step < 0.5:
            network.poll(end)
        elif step < 0.92:
            for _ in range(rng.randint(1, 6)):
                network.arrive(end)
        elif step < 0.97:
            network.tick()
        elif network.ends[0].connected:
            network.cut()
        else:
            network.connect()
        network.check()
    network.settle()


@pytest.mark.parametrize("seed", range(40))
def test_reconnects_alone_need_no_resend_timer(seed: int) -> None:
    """As on TCP: within a connection nothing is lost, at its end everything that flies may be."""
    rng = random.Random(1000 + seed)
    network = Network(rng, 0.0, None, rng.choice(((2, 50), (16, 400), (4096, 1 << 20))))
    for _ in range(500):
        step = rng.random()
        end = rng.randrange(2)
        if step < 0.3:
            network.send(end)
        elif step < 0.55:
            network.poll(end)
        elif step < 0.9:
            network.arrive(end)
        elif step < 0.95:
            network.tick()
        elif network.ends[0].connected:
            network.cut()
        else:
            network.connect()
        network.check()
    network.settle()
    assert not any(lane.duplicates > len(network.sent[0]) + len(network.sent[1]) for lane in network.ends)


def pair(**options: int) -> tuple[Lane, Lane]:
    one, other = Lane(**options), Lane(**options)
    one.connect(0)
    other.connect(0)
    return one, other


def test_without_a_connection_messages_wait_and_nothing_is_written() -> None:
    lane = Lane()
    lane.send(b"a")
    lane.send(b"b")
    assert lane.backlog == 2
    assert lane.poll() == []
    lane.connect(0)
    assert bodies(lane) == [HEADER.pack(DATA, 1) + b"a", HEADER.pack(DATA, 2) + b"b"]
    assert lane.backlog == 0


def test_what_fits_no_window_goes_alone() -> None:
    one, other = pair(window_messages=4, window_bytes=10)
    one.send(b"x" * 100)
    one.send(b"y")
    assert [len(body) - HEADER_BYTES for body in bodies(one)] == [100]
    assert one.backlog == 1
    assert other.receive(HEADER.pack(DATA, 1) + b"x" * 100) == b"x" * 100
    one.receive(bodies(other)[0])
    assert [body[HEADER_BYTES:] for body in bodies(one)] == [b"y"]


def test_a_busy_lane_acknowledges_every_eighth_of_its_window() -> None:
    one, other = pair(window_messages=80)
    for _ in range(80):
        one.send(b"m")
    acknowledgements = 0
    for body in bodies(one):
        other.receive(body)
        acknowledgements += len(bodies(other))
    assert acknowledgements == 8


def test_a_quiet_lane_acknowledges_with_the_tick() -> None:
    one, other = pair()
    one.send(b"m")
    other.receive(bodies(one)[0])
    assert bodies(other) == []
    other.tick(50)
    assert bodies(other) == [HEADER.pack(ACK, 1)]
    other.tick(100)
    assert bodies(other) == []


def test_a_double_is_dropped_counted_and_answered() -> None:
    one, other = pair()
    one.send(b"m")
    body = bodies(one)[0]
    assert other.receive(body) == b"m"
    assert other.receive(body) is None
    assert other.duplicates == 1
    assert bodies(other) == [HEADER.pack(ACK, 1)]


def test_a_resend_does_not_swallow_the_acknowledgement_that_is_due() -> None:
    one, other = pair(resend_ms=100)
    one.send(b"mine")
    bodies(one)
    one.tick(0)
    other.send(b"theirs")
    assert one.receive(bodies(other)[0]) == b"theirs"
    one.tick(200)
    assert HEADER.pack(ACK, 1) in bodies(one)


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", HEADER.pack(DATA, 1)[:-1], HEADER.pack(7, 1), HEADER.pack(ACK, 1), HEADER.pack(ACK, (1 << 64) - 1)],
)
def test_nonsense_is_refused(body: bytes) -> None:
    lane = Lane()
    lane.connect(0)
    with pytest.raises(CodecError):
        lane.receive(body)


def test_a_peer_that_has_taken_more_than_was_sent_is_refused() -> None:
    lane = Lane()
    lane.send(b"m")
    with pytest.raises(CodecError):
        lane.connect(1)


def test_a_peer_that_has_lost_what_it_acknowledged_is_refused() -> None:
    """It is not the incarnation that the lane was made for; waiting for it would wait for ever."""
    one, other = pair()
    one.send(b"m")
    other.receive(bodies(one)[0])
    other.tick(50)
    one.receive(bodies(other)[0])
    one.disconnect()
    with pytest.raises(CodecError):
        one.connect(0)
