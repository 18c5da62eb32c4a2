"""A connection point with clients at its port and nobody behind it: what the tests of that machine have in common."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np

from cluster import frames
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.columns import U32, U64
from cluster.config import ClientLimits, Config, Flow, Timing
from cluster.connection_point import ConnectionPoint
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    DATA_LAYERS,
    EXIT_POINT,
    Acknowledge,
    Changed,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    CloseClient,
    Deliver,
    Drained,
    Event,
    Instruction,
    Member,
    Message,
    Peer,
    Received,
    Send,
    SendClient,
    Serve,
    Tick,
    client_key,
)
from cluster.view import first_view

START_MS = 1_000_000
NOW_US = 1_700_000_000_000_000


def small_config(**flow: int) -> Config:
    """Return limits that a test can reach in a few lines."""
    return Config(
        client_limits=ClientLimits(
            connections=6,
            waiting_clients=3,
            first_frame_bytes=256,
            login_ms=5_000,
            frame_bytes=4096,
            partial_frame_ms=10_000,
            publications_per_frame=8,
            subscriptions=3,
        ),
        flow=Flow(
            **{
                "publish_window": 8,
                "publish_window_bytes": 400,
                "publish_pool_bytes": 1000,
                "publish_floor_bytes": 100,
                "receive_window": 100,
                "queue_messages": 4,
                "queue_bytes": 10_000,
                "stall_ms": 30_000,
                **flow,
            }
        ),
        timing=Timing(client_heartbeat_ms=10_000),
    )


def packed(*publications: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return lengths and payload as in a Publish frame."""
    pieces = [msgpack.packb(one) for one in publications]
    return struct.pack(f"<{len(pieces)}I", *map(len, pieces)), b"".join(pieces)


def publish(first: int, count: int = 1, acknowledge: int = 1, **attributes: Any) -> frames.Publish:
    """Return a Publish frame of `count` equal publications."""
    return frames.Publish(first, acknowledge, *packed(*[attributes or {"a": 1}] * count))


def hello(client_id: str = "lab", **changed: int) -> frames.Hello:
    """Return a good Hello."""
    values = {"version": frames.VERSION, "instance": 5, "receive_window": 10} | changed
    return frames.Hello(values["version"], client_id, values["instance"], values["receive_window"])


def deliver(
    *rows: tuple[int, int, list[tuple[int, list[int]]]], payload: bytes = b"xy", publisher: str = "publisher"
) -> Deliver:
    """Return a Deliver. rows: (token, publisher's sequence, [(session, numbers that match)]), one run each."""
    entries = sorted((session, place, numbers) for place, (_, _, whom) in enumerate(rows) for session, numbers in whom)
    sessions = sorted({session for session, _, _ in entries})
    u32 = lambda values: np.array(values, U32).tobytes()  # noqa: E731
    return Deliver(
        [(publisher, 5, NOW_US, token) for token, _, _ in rows],
        u32(range(len(rows))),
        np.array([sequence for _, sequence, _ in rows], U64).tobytes(),
        u32([len(payload)] * len(rows)),
        payload * len(rows),
        u32(sessions),
        u32([sum(one[0] == session for one in entries) for session in sessions]),
        u32([place for _, place, _ in entries]),
        u32([len(numbers) for _, _, numbers in entries]),
        u32([number for _, _, numbers in entries for number in numbers]),
    )


class Edge:
    """The machine, its clients' sides, and what it sent to its peers."""

    def __init__(self, config: Config | None = None, slot: int = 0, *, access_points: int = 1) -> None:
        self.slot = slot
        self.machine = ConnectionPoint(slot, 1, config or small_config())
        self.sent: list[tuple[Peer, Message]] = []
        self.written: dict[int, list[frames.ServerFrame]] = {}
        self.closed: set[int] = set()
        self.now_ms = START_MS
        self._readers: dict[int, FrameReader] = {}
        self._connections = 0
        members = [Member(layer, 0, 1, "host", 1) for layer in DATA_LAYERS]
        members += [Member(ACCESS_POINT, number, 1, "host", 1) for number in range(1, access_points)]
        if slot:
            members.append(Member("connection_point", slot, 1, "host", 1))
        view = first_view(members)
        self.feed(Received(COORDINATOR_PEER, view.install()))
        self.instructions = self.feed(Received(COORDINATOR_PEER, Serve(1)))
        self.feed(Tick(self.now_ms))

    def feed(self, event: Event) -> list[Instruction]:
        """Hand over an event and sort what comes out."""
        out = self.machine.handle(event)
        for instruction in out:
            match instruction:
                case Send(peer, message):
                    self.sent.append((peer, message))
                case SendClient(connection, data):
                    assert connection not in self.closed, "written after the close"
                    for body in self._readers[connection].feed(data):
                        self.written.setdefault(connection, []).append(decode_server_frame(body))
                case CloseClient(connection):
                    self.closed.add(connection)
        return out

    def drain(self) -> None:
        """Everything that had arrived was handed over."""
        self.feed(Drained())

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass in one step."""
        self.now_ms += milliseconds
        self.feed(Tick(self.now_ms))

    def connect(self) -> int:
        """Open a connection; return its number."""
        self._connections += 1
        self._readers[self._connections] = FrameReader(1 << 24)
        self.feed(ClientConnected(self._connections))
        return self._connections

    def close(self, connection: int) -> None:
        """The client's socket is gone."""
        self.feed(ClientClosed(connection))

    def say(self, connection: int, *said: frames.Frame) -> None:
        """A client's frames arrive in one piece."""
        self.raw(connection, b"".join(encode_frame(frame) for frame in said))

    def raw(self, connection: int, data: bytes) -> None:
        """Bytes of a client arrive."""
        self.feed(ClientBytes(connection, data, NOW_US))

    def login(self, client_id: str = "lab", **changed: int) -> int:
        """Connect and log in; return the connection's number, with nothing left to hear or to send."""
        connection = self.connect()
        self.say(connection, hello(client_id, **changed))
        (welcome,) = self.heard(connection)
        assert isinstance(welcome, frames.Welcome), welcome
        self.sent.clear()
        return connection

    def heard(self, connection: int) -> list[frames.ServerFrame]:
        """Return what the client was told since the last call."""
        return self.written.pop(connection, [])

    def bye(self, connection: int) -> frames.Bye:
        """Return the Bye that the client was told last; the connection must be closed behind it."""
        last = self.heard(connection)[-1]
        assert isinstance(last, frames.Bye), last
        assert connection in self.closed
        return last

    def to_peers(self) -> list[tuple[Peer, Message]]:
        """Return what was sent to other machines since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def key(self, connection: int) -> int:
        """Return the client's key."""
        session = self.machine._shared.connections[connection].session
        assert session is not None, "not logged in"
        return session.key

    def session_number(self, connection: int) -> int:
        """Return the number of the session at this connection."""
        return self.key(connection) & 0xFFFFFFFF

    @property
    def since(self) -> int:
        """The epoch of the last Recover, which exit points have heard as well."""
        return self.machine._recovered

    def acknowledge(self, key: int, upto: int, rejected: list[tuple[int, str]] | None = None) -> None:
        """The exit point acknowledges."""
        outcomes = [(0, len(rejected or []), 0)]
        self.feed(Received(Peer(EXIT_POINT, 0), Acknowledge([(key, upto, rejected or [])], outcomes, self.since)))

    def confirm_changes(self) -> None:
        """Answer all subscription changes that were sent, as the access point does."""
        for peer, message in self.to_peers():
            changes = getattr(message, "changes", None)
            if changes is not None:
                self.feed(Received(peer, Changed([change.change for change in changes], 99)))

    def subscribe(self, connection: int, number: int, text: str = "a > 1", policy: str = "block") -> None:
        """Open a subscription and have it confirmed."""
        self.say(connection, frames.Subscribe(number, number, text, policy))
        self.confirm_changes()
        assert self.heard(connection) == [frames.Done(number)]

    def deliver(self, *rows: tuple[int, int, list[tuple[int, list[int]]]], payload: bytes = b"xy") -> None:
        """A Deliver comes from exit point 0."""
        self.feed(Received(Peer(EXIT_POINT, 0), deliver(*rows, payload=payload)))


def own_key(slot: int, session: int) -> int:
    """Return a client's key as a plain number."""
    return int(client_key(slot, session))
