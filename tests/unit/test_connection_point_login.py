"""Connections, logins and the limits before and after them: each way to be sent off, with its code."""

from __future__ import annotations

import random
import struct

import pytest

from cluster import frames
from cluster.codec import encode_frame
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    ClientBytes,
    ClientClosed,
    Drain,
    DurableHomes,
    LaneUp,
    Peer,
    Received,
    Send,
    SendClient,
    ServeClients,
    SessionClosed,
    SessionOpened,
    SessionTaken,
)
from tests.unit.edge import NOW_US, Edge, hello, publish, small_config


def test_clients_are_let_in_when_the_coordinator_says_so() -> None:
    assert Edge().instructions == [ServeClients()]


def test_a_login_is_welcomed_with_the_limits_in_force() -> None:
    edge = Edge()
    connection = edge.connect()
    edge.say(connection, hello("lab"))
    assert edge.heard(connection) == [frames.Welcome(frames.VERSION, 1 << 20, 10_000, 8, 400, 4096, 256, 65_536, 3)]
    assert edge.to_peers() == [(COORDINATOR_PEER, SessionOpened("lab", edge.key(connection), 5))]
    assert connection not in edge.closed


@pytest.mark.parametrize(
    ("greeting", "code", "word"),
    [
        (hello(version=2), "version", "version 2"),
        (hello(""), "client_id", "1 to 128"),
        (hello("x" * 129), "client_id", "128 bytes"),
        (hello("é" * 65), "client_id", "128 bytes"),
        (hello("two\nlines"), "client_id", "printable"),
        (hello("nul\0"), "client_id", "printable"),
        (hello(instance=-1), "malformed", "instance"),
        (hello(receive_window=0), "malformed", "receive window of 0"),
        (frames.Pong(), "malformed", "Pong before Hello"),
        (publish(1), "malformed", "Publish before Hello"),
        (frames.Goodbye(), "malformed", "Goodbye before Hello"),
    ],
)
def test_a_bad_greeting_ends_with_its_reason(greeting: frames.Frame, code: str, word: str) -> None:
    edge = Edge()
    connection = edge.connect()
    edge.say(connection, greeting)
    bye = edge.bye(connection)
    assert bye.code == code
    assert word in bye.reason
    assert edge.to_peers() == [], "nobody else hears of it"


@pytest.mark.parametrize("client_id", ["x" * 128, "é" * 64, "name with spaces", "ñandú"])
def test_client_ids_up_to_the_limit_are_taken(client_id: str) -> None:
    Edge().login(client_id, receive_window=100)


def test_a_second_hello_is_malformed() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, hello())
    assert edge.bye(connection).code == "malformed"


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\xc1", b"\x04\x00\x00\x00junk"])
def test_bytes_that_are_no_frame_are_malformed(data: bytes) -> None:
    for logged_in in (False, True):
        edge = Edge()
        connection = edge.login() if logged_in else edge.connect()
        edge.raw(connection, data)
        assert edge.bye(connection).code == "malformed"


def test_the_first_frame_may_have_256_bytes_a_later_one_4096() -> None:
    edge = Edge()
    connection = edge.connect()
    edge.raw(connection, struct.pack("<I", 257))
    bye = edge.bye(connection)
    assert (bye.code, "256" in bye.reason) == ("too_large", True)
    connection = edge.login()
    edge.raw(connection, struct.pack("<I", 4096))
    assert edge.heard(connection) == []
    edge.close(connection)
    connection = edge.login()
    edge.raw(connection, struct.pack("<I", 4097))
    assert edge.bye(connection).code == "too_large"


def test_a_hello_may_come_in_pieces() -> None:
    edge = Edge()
    connection = edge.connect()
    wire = encode_frame(hello())
    for at in range(len(wire) - 1):
        edge.raw(connection, wire[at : at + 1])
        assert edge.heard(connection) == []
    edge.raw(connection, wire[-1:])
    assert isinstance(edge.heard(connection)[0], frames.Welcome)


def test_without_hello_a_connection_ends_after_five_seconds() -> None:
    edge = Edge()
    connection = edge.connect()
    edge.raw(connection, encode_frame(hello())[:6])
    edge.pass_ms(5_000)
    assert connection not in edge.closed
    edge.pass_ms(1)
    assert edge.bye(connection) == frames.Bye("timeout", "no Hello within 5000 ms")


def test_a_frame_has_ten_seconds_to_be_complete() -> None:
    edge = Edge()
    connection = edge.login()
    wire = encode_frame(frames.Pong())
    edge.raw(connection, wire[:3])
    edge.pass_ms(9_000)
    edge.raw(connection, wire[3:4])  # a trickle does not help
    edge.pass_ms(1_001)
    assert edge.bye(connection).code == "timeout"


def test_frames_that_are_completed_in_time_never_time_out() -> None:
    edge = Edge()
    connection = edge.login()
    wire = encode_frame(frames.Pong())
    for _ in range(8):
        edge.raw(connection, wire[:3])
        edge.pass_ms(9_000)
        edge.raw(connection, wire[3:] + wire[:3])
        edge.pass_ms(9_000)
        edge.raw(connection, wire[3:])
    assert connection not in edge.closed


def test_silence_ends_a_connection_after_three_heartbeats() -> None:
    edge = Edge()
    connection = edge.login()
    for _ in range(3):
        edge.pass_ms(10_000)
    assert edge.heard(connection) == [frames.Ping()] * 3
    assert connection not in edge.closed
    edge.pass_ms(1)
    assert edge.bye(connection).code == "timeout"


def test_whoever_answers_pings_stays() -> None:
    edge = Edge()
    connection = edge.login()
    for _ in range(10):
        edge.pass_ms(10_000)
        assert edge.heard(connection) == [frames.Ping()]
        edge.say(connection, frames.Pong())
    assert connection not in edge.closed


def test_too_many_that_wait_for_their_hello_push_out_the_oldest() -> None:
    edge = Edge()
    waiting = [edge.connect() for _ in range(4)]
    assert edge.bye(waiting[0]).code == "too_many"
    assert not edge.closed & set(waiting[1:])
    for connection in waiting[1:]:
        edge.say(connection, hello(f"c{connection}"))
        assert isinstance(edge.heard(connection)[0], frames.Welcome)


def test_too_many_connections_are_refused_and_those_that_stand_stay() -> None:
    edge = Edge()
    connections = [edge.login(f"c{number}") for number in range(6)]
    late = edge.connect()
    assert edge.bye(late).code == "too_many"
    edge.feed(ClientClosed(late))
    assert not edge.closed & set(connections)
    edge.close(connections[0])
    edge.login("again")


def test_the_newest_login_of_a_name_wins() -> None:
    edge = Edge()
    old = edge.login("lab")
    old_key = edge.key(old)
    edge.subscribe(old, 0)
    new = edge.connect()
    edge.say(new, hello("lab", instance=6))
    assert edge.bye(old).code == "taken_over"
    assert isinstance(edge.heard(new)[0], frames.Welcome)
    sent = [message for peer, message in edge.to_peers() if peer == COORDINATOR_PEER]
    assert sent == [SessionClosed("lab", old_key), SessionOpened("lab", edge.key(new), 6)]
    edge.feed(ClientClosed(old))
    assert new not in edge.closed


def test_the_coordinator_may_say_that_a_login_elsewhere_won() -> None:
    edge = Edge(slot=1)
    connection = edge.login()
    key = edge.key(connection)
    for stranger in (key + 1, key ^ (1 << 32)):
        edge.feed(Received(COORDINATOR_PEER, SessionTaken(stranger, False)))
        assert connection not in edge.closed
    edge.feed(Received(COORDINATOR_PEER, SessionTaken(key, False)))
    assert edge.bye(connection).code == "taken_over"
    edge.feed(Received(COORDINATOR_PEER, SessionTaken(key, False)))


def test_the_same_instance_that_is_elsewhere_now_has_moved() -> None:
    edge = Edge(slot=1)
    old = edge.login("lab")
    new = edge.connect()
    edge.say(new, hello("lab"))
    assert edge.bye(old).code == "moved"
    edge.feed(Received(COORDINATOR_PEER, SessionTaken(edge.key(new), True)))
    assert edge.bye(new).code == "moved"
    assert "moved" in frames.RECONNECT_CODES


def test_the_cluster_says_bye_to_all_when_it_stops() -> None:
    edge = Edge()
    connections = [edge.login("a"), edge.login("b"), edge.connect()]
    edge.feed(Received(COORDINATOR_PEER, Drain()))
    assert [edge.bye(connection).code for connection in connections] == ["shutdown"] * 3


def test_goodbye_is_a_clean_end() -> None:
    edge = Edge()
    connection = edge.login()
    key = edge.key(connection)
    edge.say(connection, publish(1), frames.Goodbye(), publish(2))
    assert edge.heard(connection) == []
    assert connection in edge.closed
    assert edge.to_peers() == [(COORDINATOR_PEER, SessionClosed("lab", key))]
    edge.drain()
    ((_, publications),) = edge.to_peers()
    assert publications.runs[0].count == 1  # type: ignore[attr-defined]


def test_bytes_after_the_end_are_ignored() -> None:
    edge = Edge()
    connection = edge.login()
    edge.raw(connection, b"\x04\x00\x00\x00junk")
    edge.bye(connection)
    assert edge.feed(ClientBytes(connection, encode_frame(publish(1)), NOW_US)) == []
    assert edge.feed(ClientClosed(connection)) == []
    assert edge.feed(ClientBytes(4711, b"x", NOW_US)) == []


def test_session_numbers_do_not_come_back_with_a_later_incarnation() -> None:
    edge = Edge()
    first = edge.session_number(edge.login("a"))
    second = edge.session_number(edge.login("b"))
    assert second == first + 1 == (1 << 20) + 1


def test_nothing_is_kept_of_clients_that_are_gone() -> None:
    edge = Edge()
    for round_ in range(50):
        connection = edge.login(f"client-{round_}")
        edge.say(connection, publish(1, 3))
        edge.subscribe(connection, 0)
        edge.deliver(*[(1, place, [(edge.session_number(connection), [0])]) for place in range(1, 30)])
        edge.close(connection)
        edge.confirm_changes()
        edge.drain()
        edge.to_peers()
    gauges = edge.machine.gauges()
    for name in ("connections", "sessions", "queued", "unacknowledged_bytes", "subscriptions", "held_runs"):
        assert gauges[name] == 0, name
    machine = edge.machine
    assert not machine._changes.underway
    assert not machine._shared.by_client_id
    assert not machine._connections._waiting
    assert not machine._shared.touched
    assert machine._publishing.publishers == 0


def test_hostile_bytes_harm_nobody_else() -> None:
    """Random bytes and cut frames end their own connection, or wait; the machine never raises."""
    rng = random.Random(7)
    edge = Edge()
    good = edge.login("good")
    kinds = (hello("bad"), publish(1, 3), frames.Subscribe(1, 1, "a > 1", "block"), frames.Consumed(1), frames.Pong())
    for _ in range(3000):
        connection = edge.connect()
        if rng.random() < 0.5:
            edge.say(connection, hello("bad"))
        wire = bytearray(encode_frame(rng.choice(kinds)))
        for _ in range(rng.randint(0, 3)):
            wire[rng.randrange(len(wire))] = rng.randrange(256)
        edge.raw(connection, bytes(wire[: rng.randint(1, len(wire))]) if rng.random() < 0.5 else bytes(wire))
        edge.raw(connection, rng.randbytes(rng.randint(0, 30)))
        edge.close(connection)
        edge.heard(connection)
    edge.drain()
    edge.to_peers()
    edge.say(good, publish(1))
    edge.drain()
    assert len(edge.to_peers()) == 1
    assert edge.heard(good) == []


def test_an_unexpected_message_is_a_broken_invariant() -> None:
    edge = Edge()
    with pytest.raises(AssertionError, match="connection_point 0 got SessionOpened"):
        edge.feed(Received(Peer(CONNECTION_POINT, 1), SessionOpened("x", 1, 1)))
    assert edge.feed(LaneUp(COORDINATOR_PEER)) == [Send(COORDINATOR_PEER, DurableHomes([], []))]


def test_what_is_written_is_whole_frames() -> None:
    edge = Edge(small_config())
    connection = edge.connect()
    out = edge.feed(ClientBytes(connection, encode_frame(hello()), NOW_US))
    writes = [one for one in out if isinstance(one, SendClient)]
    assert len(writes) == 1
    assert struct.unpack("<I", writes[0].data[:4])[0] == len(writes[0].data) - 4
    assert [type(one) for one in out] == [SendClient, Send]
