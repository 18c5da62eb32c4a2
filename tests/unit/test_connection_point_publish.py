"""Publications through the connection point: windows, credit, runs, acknowledgements."""

from __future__ import annotations

import struct

import pytest

from cluster import frames
from cluster.messages import ACCESS_POINT, Peer, Publications, Run, Stored
from tests.unit.edge import NOW_US, Edge, hello, packed, publish, small_config

ACCESS = Peer(ACCESS_POINT, 0)


def test_frames_of_one_round_go_out_as_runs_of_one_message() -> None:
    edge = Edge()
    first, second = edge.login("a"), edge.login("b", instance=9)
    edge.say(first, publish(1, 2, no2=45.0))
    edge.say(second, publish(7, 1, no2=1))
    edge.say(first, publish(3, 1, no2=2))
    assert edge.to_peers() == [], "publications are gathered until Drained"
    edge.drain()
    ((peer, message),) = edge.to_peers()
    assert peer == ACCESS
    lengths, payload = packed({"no2": 45.0}, {"no2": 45.0}, {"no2": 1}, {"no2": 2})
    assert message == Publications(
        [
            Run("a", 5, edge.key(first), 1, 2, NOW_US),
            Run("b", 9, edge.key(second), 7, 1, NOW_US, settled=6),
            Run("a", 5, edge.key(first), 3, 1, NOW_US),
        ],
        lengths,
        payload,
    )
    edge.drain()
    assert edge.to_peers() == []


def test_attributes_are_not_looked_at() -> None:
    """Whatever the bytes are, they go on to the matchers, who judge them."""
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Publish(1, 1, struct.pack("<3I", 1, 0, 2), b"\xc1zz"))
    edge.drain()
    ((_, message),) = edge.to_peers()
    assert isinstance(message, Publications)
    assert message.payload == b"\xc1zz"


def test_acknowledgements_are_passed_on_with_the_credit() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 3), publish(4, 2))
    edge.drain()
    edge.acknowledge(edge.key(connection), 3, [(2, "attribute 'a': the value is NaN or infinite")])
    edge.acknowledge(edge.key(connection), 5)
    assert edge.heard(connection) == [
        frames.Acknowledged(3, 8, 400, [(2, "attribute 'a': the value is NaN or infinite")]),
        frames.Acknowledged(5, 8, 400, []),
    ]
    gauges = edge.machine.gauges()
    assert (gauges["accepted"], gauges["acknowledged"], gauges["rejected"]) == (5, 5, 1)
    assert gauges["unacknowledged_bytes"] == 0


def test_an_acknowledgement_for_a_client_that_is_gone_is_dropped() -> None:
    edge = Edge()
    connection = edge.login()
    key = edge.key(connection)
    edge.say(connection, publish(1))
    edge.close(connection)
    again = edge.login()
    edge.acknowledge(key, 1)
    assert edge.heard(again) == []


def test_an_acknowledgement_of_what_was_never_sent_is_a_broken_invariant() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 5))
    edge.acknowledge(edge.key(connection), 1)
    with pytest.raises(AssertionError):
        edge.acknowledge(edge.key(connection), 6)


@pytest.mark.parametrize("upto", [0, 1, 2])
def test_an_acknowledgement_that_comes_again_after_a_recovery_says_nothing_new(upto: int) -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 2), publish(3, 3))
    edge.acknowledge(edge.key(connection), 2)
    edge.heard(connection)
    before = edge.machine.gauges()
    edge.acknowledge(edge.key(connection), upto, [(upto, "bad")] if upto else [])
    assert edge.heard(connection) == []
    assert edge.machine.gauges() == before


def test_a_reconnected_client_goes_on_where_its_acknowledgements_ended() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(41, 2), publish(43, 1))
    edge.acknowledge(edge.key(connection), 43)
    assert edge.heard(connection)[-1] == frames.Acknowledged(43, 8, 400, [])


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (frames.Publish(1, 1, b"", b""), "or empty"),
        (frames.Publish(1, 1, b"\1\0\0", b"x"), "not a column"),
        (frames.Publish(1, 1, struct.pack("<I", 2), b"x"), "do not fit"),
        (frames.Publish(1, 1, struct.pack("<2I", 0xFFFFFFFF, 2), b"x"), "do not fit"),
        (frames.Publish(1, 2, struct.pack("<I", 1), b"x"), "no matched output"),
        (frames.Publish(1, 3, struct.pack("<I", 1), b"x"), "acknowledge level 3"),
        (frames.Publish(1, 1, struct.pack("<I", 1), b"x", 0, -1), "published at -1 us"),
        (frames.Publish(1, -1, struct.pack("<I", 1), b"x"), "acknowledge level -1"),
        (publish(0), "first sequence of 0"),
        (publish(-3), "first sequence"),
        (publish(1 << 62), "first sequence"),
    ],
)
def test_a_malformed_publish_ends_the_connection(frame: frames.Publish, word: str) -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frame)
    bye = edge.bye(connection)
    assert bye.code == "malformed"
    assert word in bye.reason
    edge.drain()
    assert [type(message).__name__ for _, message in edge.to_peers()] == ["SessionClosed"]


@pytest.mark.parametrize("second", [1, 2, 4, 99])
def test_sequences_have_no_holes_and_do_not_repeat(second: int) -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 2), publish(second))
    bye = edge.bye(connection)
    assert bye == frames.Bye("malformed", f"sequence {second} where 3 was due")


def test_too_many_publications_in_a_frame() -> None:
    edge = Edge(small_config(publish_window=100))
    connection = edge.login()
    edge.say(connection, publish(1, 8))
    assert edge.heard(connection) == []
    edge.say(connection, publish(9, 9))
    assert edge.bye(connection).code == "too_large"


def test_more_than_the_window_is_over_credit() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 8))
    assert edge.heard(connection) == []
    edge.say(connection, publish(9))
    assert edge.bye(connection).code == "over_credit"


def test_acknowledged_publications_make_room_in_the_window() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 4), publish(5, 4))
    edge.acknowledge(edge.key(connection), 4)
    edge.say(connection, publish(9, 4))
    assert [type(frame) for frame in edge.heard(connection)] == [frames.Acknowledged]
    edge.say(connection, publish(13))
    assert edge.bye(connection).code == "over_credit"


def test_more_bytes_than_the_window_is_over_credit_but_one_frame_alone_always_goes() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 1, text="x" * 500))
    assert edge.heard(connection) == []
    edge.say(connection, publish(2))
    assert edge.bye(connection).code == "over_credit"
    connection = edge.login()
    edge.say(connection, publish(1, 1, text="x" * 300), publish(2, 1, text="x" * 50))
    assert edge.heard(connection) == []
    edge.say(connection, publish(3, 1, text="x" * 50))
    assert edge.bye(connection).code == "over_credit"


def test_windows_shrink_as_publishers_share_the_pool() -> None:
    """A pool of 1,000 bytes: 400 for one or two publishers, a share for more, never less than the floor of 100."""
    edge = Edge()
    expected = [400, 400, 333, 250, 200, 166]
    connections = []
    for number, window_bytes in enumerate(expected):
        connection = edge.login(f"p{number}")
        edge.say(connection, publish(1))
        edge.acknowledge(edge.key(connection), 1)
        assert edge.heard(connection) == [frames.Acknowledged(1, 8, window_bytes, [])]
        connections.append(connection)
    for connection in connections[1:]:
        edge.close(connection)
    edge.say(connections[0], publish(2))
    edge.acknowledge(edge.key(connections[0]), 2)
    assert edge.heard(connections[0]) == [frames.Acknowledged(2, 8, 400, [])]


def ample() -> Edge:
    """A window of 1,000 publications and 20,000 bytes, frames of at most 4,096."""
    return Edge(small_config(publish_window=1000, publish_window_bytes=20_000, publish_pool_bytes=1 << 20))


def told_once(edge: Edge, connection: int) -> None:
    """Let the client publish 1 and hear of it, as the first acknowledgement tells the credit."""
    edge.say(connection, publish(1, acknowledge=0))
    edge.acknowledge(edge.key(connection), 1)
    assert edge.heard(connection) == [frames.Acknowledged(1, 1000, 20_000, [])]


def test_acknowledgements_that_nobody_waits_for_are_told_together_with_the_next_tick() -> None:
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    for sequence in range(2, 10):
        edge.say(connection, publish(sequence, acknowledge=0))
        edge.acknowledge(edge.key(connection), sequence)
    assert edge.heard(connection) == []
    gauges = edge.machine.gauges()
    assert (gauges["acknowledged"], gauges["unacknowledged_bytes"]) == (9, 0), "it is known all the same"
    edge.pass_ms(50)
    assert edge.heard(connection) == [frames.Acknowledged(9, 1000, 20_000, [])]
    edge.pass_ms(50)
    assert edge.heard(connection) == []


def test_whoever_waits_is_told_at_once_of_all_before() -> None:
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    levels = [0, 1, 0, 0]
    for sequence, level in enumerate(levels, 2):
        edge.say(connection, publish(sequence, acknowledge=level))
    for upto in (3, 4):
        edge.acknowledge(edge.key(connection), upto)
    assert edge.heard(connection) == [frames.Acknowledged(3, 1000, 20_000, [])], "3 is waited for, 4 is not"
    edge.acknowledge(edge.key(connection), 5, [(5, "bad")])
    assert edge.heard(connection) == [frames.Acknowledged(5, 1000, 20_000, [(5, "bad")])], "a rejection is told"
    edge.pass_ms(50)
    assert edge.heard(connection) == []


def test_what_is_valid_is_told_at_once() -> None:
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    lengths, payload = packed({"a": 1})
    edge.say(connection, frames.Publish(2, 0, lengths, payload, valid_for_ms=1000))
    edge.acknowledge(edge.key(connection), 2)
    assert edge.heard(connection) == [], "it is to be on disk first"
    edge.drain()
    edge.feed(Stored(1))
    assert edge.heard(connection) == [frames.Acknowledged(2, 1000, 20_000, [])]


def test_a_publisher_that_may_want_its_credit_is_told_at_once() -> None:
    """It has half of its publications left, and a frame of 4,096 bytes fits: until then acknowledgements may wait."""
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    sequence, size = 2, len(packed({"text": "x" * 100})[1])
    while (sequence - 1) * size <= 20_000 - 4096:
        edge.say(connection, publish(sequence, acknowledge=0, text="x" * 100))
        edge.drain()
        edge.acknowledge(edge.key(connection), sequence)
        sequence += 1
        assert edge.heard(connection) == []
    edge.say(connection, publish(sequence, acknowledge=0, text="x" * 100))
    edge.acknowledge(edge.key(connection), sequence)
    assert edge.heard(connection) == [frames.Acknowledged(sequence, 1000, 20_000, [])]
    first = sequence + 1
    for sequence in range(first, first + 504, 8):
        edge.say(connection, publish(sequence, 8, acknowledge=0))
        edge.drain()
    assert sequence + 7 - (first - 1) == 504
    edge.acknowledge(edge.key(connection), first + 7)
    assert edge.heard(connection) == [frames.Acknowledged(first + 7, 1000, 20_000, [])]
    edge.acknowledge(edge.key(connection), first + 15)
    assert edge.heard(connection) == [], "496 are not told, of 1,000"


def test_a_changed_credit_is_told_at_once() -> None:
    edge = Edge(small_config(publish_window=1000, publish_window_bytes=20_000, publish_pool_bytes=30_000))
    first, second = edge.login("a"), edge.login("b")
    told_once(edge, first)
    edge.say(second, publish(1))
    edge.say(first, publish(2, acknowledge=0), publish(3, acknowledge=0))
    edge.acknowledge(edge.key(first), 2)
    assert edge.heard(first) == [frames.Acknowledged(2, 1000, 15_000, [])]
    edge.acknowledge(edge.key(first), 3)
    assert edge.heard(first) == []


def test_a_client_is_told_what_was_gathered_before_bye() -> None:
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    edge.say(connection, publish(2, acknowledge=0))
    edge.acknowledge(edge.key(connection), 2)
    edge.say(connection, publish(7, acknowledge=0))
    told, bye = edge.heard(connection)
    assert told == frames.Acknowledged(2, 1000, 20_000, [])
    assert isinstance(bye, frames.Bye)
    edge.pass_ms(50)
    assert edge.heard(connection) == []


def test_a_client_that_is_gone_is_told_nothing() -> None:
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    edge.say(connection, publish(2, acknowledge=0))
    edge.acknowledge(edge.key(connection), 2)
    edge.close(connection)
    edge.pass_ms(50)
    assert edge.heard(connection) == []


def test_a_client_is_told_what_was_gathered_before_a_ping() -> None:
    """So the Pong says that it knows, and the publication does not come again."""
    edge = ample()
    connection = edge.login()
    told_once(edge, connection)
    edge.say(connection, publish(2, acknowledge=0))
    edge.acknowledge(edge.key(connection), 2)
    edge.drain()
    edge.to_peers()
    edge.pass_ms(10_000)
    assert edge.heard(connection) == [frames.Acknowledged(2, 1000, 20_000, []), frames.Ping()]
    edge.say(connection, frames.Pong())
    assert settled(edge, connection, 3) == 2


def test_the_floor_holds_for_any_number_of_publishers() -> None:
    edge = Edge(small_config(publish_pool_bytes=300))
    for number in range(6):
        connection = edge.login(f"p{number}")
        edge.say(connection, publish(1))
        edge.acknowledge(edge.key(connection), 1)
    assert edge.heard(connection) == [frames.Acknowledged(1, 8, 100, [])]


def test_what_a_client_that_left_had_published_is_still_sent() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1, 2))
    edge.close(connection)
    edge.drain()
    sent = [message for peer, message in edge.to_peers() if peer == ACCESS]
    assert len(sent) == 1
    assert edge.machine.gauges()["unacknowledged_bytes"] == 0


def test_each_client_keeps_to_one_access_point() -> None:
    edge = Edge(access_points=3)
    connections = [edge.login(f"c{number}") for number in range(6)]
    for connection in connections:
        edge.say(connection, publish(1), frames.Subscribe(1, 1, "a > 1", "block"), publish(2))
    edge.drain()
    by_client: dict[int, set[Peer]] = {}
    for peer, message in edge.to_peers():
        if isinstance(message, Publications):
            for run in message.runs:
                by_client.setdefault(run.client, set()).add(peer)
        else:
            by_client.setdefault(message.changes[0].subscription >> 20, set()).add(peer)  # type: ignore[attr-defined]
    assert [len(peers) for peers in by_client.values()] == [1] * 6
    assert len({peer for peers in by_client.values() for peer in peers}) == 3


def test_a_publisher_that_is_taken_over_begins_anew() -> None:
    edge = Edge()
    old = edge.login("lab")
    edge.say(old, publish(1, 8))
    new = edge.connect()
    edge.say(new, hello("lab"))
    edge.say(new, publish(3, 6))
    assert [type(frame) for frame in edge.heard(new)] == [frames.Welcome]
    edge.drain()
    sent = [message for _, message in edge.to_peers() if isinstance(message, Publications)]
    assert [(run.first_sequence, run.count) for message in sent for run in message.runs] == [(1, 8), (3, 6)]


def settled(edge: Edge, connection: int, first: int) -> int:
    """Publish one; return what its run says of earlier ones."""
    edge.say(connection, publish(first))
    edge.drain()
    ((_, message),) = edge.to_peers()
    assert isinstance(message, Publications)
    return message.runs[0].settled


def test_a_run_says_what_its_publisher_does_not_send_again() -> None:
    edge = Edge()
    connection = edge.login()
    assert settled(edge, connection, 41) == 40
    edge.acknowledge(edge.key(connection), 41)
    assert settled(edge, connection, 42) == 40, "it is told, and may not have heard"
    edge.pass_ms(10_000)
    edge.acknowledge(edge.key(connection), 42)
    assert settled(edge, connection, 43) == 40
    edge.pass_ms(10_000)
    edge.say(connection, frames.Pong())
    assert settled(edge, connection, 44) == 41, "42 came after the first Ping"
    edge.say(connection, frames.Pong(), frames.Pong())
    assert settled(edge, connection, 45) == 41, "the second told of nothing new, and a third was not asked for"
    edge.pass_ms(10_000)
    edge.say(connection, frames.Pong())
    assert settled(edge, connection, 46) == 42
    edge.acknowledge(edge.key(connection), 46)
    for sequence in range(47, 55):
        assert settled(edge, connection, sequence) == max(42, sequence - 8), "no more than its window comes again"
