"""Notifications at the connection point: credit, slow subscribers with each policy, who is held up and for how long."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from cluster import frames
from cluster.messages import COORDINATOR_PEER, EXIT_POINT, ClientFree, ClientFull, Delivered, Drain, Peer, Received
from cluster.serving.notifying import DROPS_TOLD_MS
from tests.unit.edge import NOW_US, Edge, deliver, publish, small_config


def tokens_of(edge: Edge) -> list[int]:
    """Return the tokens that were reported as delivered since the last call."""
    return [token for _, message in edge.to_peers() if isinstance(message, Delivered) for token in message.tokens]


def sequences_of(edge: Edge, connection: int) -> list[int]:
    """Return the sequences that a client was notified of since the last call."""
    out: list[int] = []
    for frame in edge.heard(connection):
        if isinstance(frame, frames.Notify):
            out += struct.unpack(f"<{len(frame.sequence) // 8}Q", frame.sequence)
    return out


def listening(edge: Edge, name: str = "lab", policy: str = "block", **changed: int) -> tuple[int, int]:
    """Log in and subscribe number 0; return connection and session number."""
    connection = edge.login(name, **changed)
    edge.subscribe(connection, 0, policy=policy)
    return connection, edge.session_number(connection)


def rows(session: int, *numbers: int) -> list[Any]:
    """Return rows of a Deliver to one session, token = sequence = number."""
    return [(number, number, [(session, [0])]) for number in numbers]


def test_a_notification_says_whose_when_and_for_which_subscriptions() -> None:
    edge = Edge()
    connection, session = listening(edge)
    edge.subscribe(connection, 2)
    edge.deliver((70, 9, [(session, [0, 2])]), (71, 10, [(session, [2])]), payload=b"abc")
    assert edge.heard(connection) == [], "written when the round ends"
    edge.drain()
    (notify,) = edge.heard(connection)
    assert notify == frames.Notify(
        [("publisher", 5, NOW_US), ("publisher", 5, NOW_US)],
        struct.pack("<2I", 0, 1),
        struct.pack("<2Q", 9, 10),
        struct.pack("<2I", 3, 3),
        struct.pack("<2I", 2, 1),
        struct.pack("<3I", 0, 2, 2),
        b"abcabc",
    )
    assert edge.to_peers() == [(Peer(EXIT_POINT, 0), Delivered([70, 71]))]


def test_each_client_gets_its_own_part() -> None:
    edge = Edge()
    first, one = listening(edge, "a")
    second, two = listening(edge, "b")
    edge.deliver((1, 11, [(one, [0])]), (2, 12, [(one, [0]), (two, [0])]), (3, 13, [(two, [0])]))
    edge.drain()
    (notify,) = edge.heard(first)
    assert isinstance(notify, frames.Notify)
    assert len(notify.runs) == 2, "runs that are not the client's are not shown"
    assert struct.unpack("<2Q", notify.sequence) == (11, 12)
    assert sequences_of(edge, second) == [12, 13]
    assert tokens_of(edge) == [1, 2, 3]


def test_what_comes_for_a_client_that_is_gone_counts_as_delivered() -> None:
    edge = Edge()
    connection, session = listening(edge)
    edge.close(connection)
    edge.to_peers()
    edge.deliver(*rows(session, 1, 2))
    edge.drain()
    assert tokens_of(edge) == [1, 2]


def test_no_more_is_written_than_the_client_asked_for() -> None:
    edge = Edge()
    connection, session = listening(edge, receive_window=3)
    edge.deliver(*rows(session, *range(1, 6)))
    edge.drain()
    assert sequences_of(edge, connection) == [1, 2, 3]
    edge.say(connection, frames.Consumed(1))
    assert edge.heard(connection) == []
    edge.drain()
    assert sequences_of(edge, connection) == [4]
    edge.say(connection, frames.Consumed(4))
    edge.drain()
    assert sequences_of(edge, connection) == [5]


def test_no_more_bytes_are_written_than_may_be_in_flight() -> None:
    edge = Edge(small_config(flight_bytes=1000))
    connection, session = listening(edge, receive_window=100)
    for number in range(1, 6):
        edge.deliver(*rows(session, number), payload=b"x" * 600)
    edge.drain()
    assert sequences_of(edge, connection) == [1, 2]
    edge.say(connection, frames.Consumed(1))
    edge.drain()
    assert sequences_of(edge, connection) == [3]


def test_reporting_more_than_was_sent_is_malformed() -> None:
    for counts in ((2,), (1, 0), (-1,)):
        edge = Edge()
        connection, session = listening(edge)
        edge.deliver(*rows(session, 1))
        edge.drain()
        edge.heard(connection)
        edge.say(connection, *[frames.Consumed(count) for count in counts])
        assert edge.bye(connection).code == "malformed"


def test_block_holds_back_the_runs_beyond_the_queue_and_drops_nothing() -> None:
    edge = Edge()
    connection, session = listening(edge, receive_window=2)
    for number in range(1, 11):
        edge.deliver(*rows(session, number))
    edge.drain()
    assert sequences_of(edge, connection) == [1, 2]
    # Two are sent and four wait within the limit; 7 to 10 have no place yet.
    assert tokens_of(edge) == [1, 2, 3, 4, 5, 6]
    assert edge.machine.gauges()["held_runs"] == 4
    consumed = 2
    got = []
    told = []
    while consumed < 10:
        edge.say(connection, frames.Consumed(consumed))
        edge.drain()
        got += sequences_of(edge, connection)
        told += tokens_of(edge)
        consumed += 2
    assert got == [3, 4, 5, 6, 7, 8, 9, 10]
    assert told == [7, 8, 9, 10]
    gauges = edge.machine.gauges()
    assert (gauges["held_runs"], gauges["dropped"], gauges["queued"]) == (0, 0, 0)


def test_a_run_is_held_until_the_last_of_its_subscribers_has_room() -> None:
    edge = Edge()
    quick, one = listening(edge, "quick", receive_window=100)
    slow, two = listening(edge, "slow", receive_window=1)
    slower, three = listening(edge, "slower", receive_window=1)
    everybody = [(one, [0]), (two, [0]), (three, [0])]
    for number in range(1, 7):
        edge.deliver((number, number, everybody))
        edge.drain()
    assert tokens_of(edge) == [1, 2, 3, 4, 5]
    assert sequences_of(edge, quick) == [1, 2, 3, 4, 5, 6], "the others are not held up"
    edge.say(slow, frames.Consumed(1))
    edge.drain()
    assert tokens_of(edge) == []
    edge.say(slower, frames.Consumed(1))
    edge.drain()
    assert tokens_of(edge) == [6]


def test_a_client_that_leaves_lets_go_what_it_held() -> None:
    edge = Edge()
    connection, session = listening(edge, receive_window=1)
    for number in range(1, 9):
        edge.deliver(*rows(session, number))
    edge.drain()
    assert tokens_of(edge) == [1, 2, 3, 4, 5]
    edge.close(connection)
    edge.drain()
    assert tokens_of(edge) == [6, 7, 8]


def test_whoever_holds_others_up_and_consumes_nothing_is_sent_off_as_slow() -> None:
    edge = Edge(small_config(stall_ms=2_000))
    connection, session = listening(edge, receive_window=1)
    edge.deliver(*rows(session, *range(1, 9)))
    edge.drain()
    edge.pass_ms(50)
    edge.pass_ms(2_000)
    assert connection not in edge.closed
    edge.pass_ms(1)
    assert edge.bye(connection).code == "slow"
    edge.drain()
    assert sorted(tokens_of(edge)) == list(range(1, 9))


def test_whoever_consumes_a_little_stays() -> None:
    edge = Edge(small_config(stall_ms=2_000))
    connection, session = listening(edge, receive_window=1)
    edge.deliver(*rows(session, *range(1, 12)))
    for count in range(1, 6):
        edge.drain()
        edge.pass_ms(50)
        edge.pass_ms(1_900)
        edge.say(connection, frames.Consumed(count))
    assert connection not in edge.closed


def test_reporting_the_same_count_again_is_no_progress() -> None:
    edge = Edge(small_config(stall_ms=2_000))
    connection, session = listening(edge, receive_window=1)
    edge.deliver(*rows(session, *range(1, 9)))
    edge.drain()
    for _ in range(10):
        edge.pass_ms(500)
        if connection not in edge.closed:
            edge.say(connection, frames.Consumed(0))
    assert edge.bye(connection).code == "slow"


def test_a_stall_that_ended_without_consuming_is_forgotten() -> None:
    """What a client held up was for a subscription that it closed; much later it holds up others anew."""
    edge = Edge(small_config(stall_ms=2_000))
    connection, session = listening(edge, receive_window=1)
    edge.subscribe(connection, 1)
    edge.deliver(*rows(session, *range(1, 9)))
    edge.drain()
    edge.pass_ms(50)
    edge.say(connection, frames.Unsubscribe(9, 0))
    edge.confirm_changes()
    edge.drain()
    edge.pass_ms(5_000)
    edge.deliver(*[(number, number, [(session, [1])]) for number in range(20, 30)])
    edge.drain()
    edge.pass_ms(50)
    assert connection not in edge.closed


def test_a_slow_subscriber_that_holds_nobody_up_may_sleep() -> None:
    edge = Edge(small_config(stall_ms=2_000))
    connection, session = listening(edge, receive_window=1)
    edge.deliver(*rows(session, 1, 2, 3, 4, 5))
    edge.drain()
    for _ in range(20):
        edge.pass_ms(2_000)
        edge.say(connection, frames.Pong())
    assert connection not in edge.closed


def test_drop_oldest_removes_counts_and_tells_and_holds_nobody_up() -> None:
    edge = Edge()
    connection, session = listening(edge, policy="drop_oldest", receive_window=2)
    edge.drain()
    edge.deliver(*rows(session, 1, 2))
    edge.drain()
    edge.deliver(*rows(session, *range(3, 11)))
    edge.drain()
    heard = edge.heard(connection)
    assert [type(frame) for frame in heard] == [frames.Notify, frames.Dropped]
    assert heard[1] == frames.Dropped("drop_oldest", 4, [(0, 4)])
    assert tokens_of(edge) == list(range(1, 11))
    edge.say(connection, frames.Consumed(2))
    edge.drain()
    assert sequences_of(edge, connection) == [7, 8]
    gauges = edge.machine.gauges()
    assert (gauges["dropped"], gauges["notifications"], gauges["queued"]) == (4, 4, 2)


def test_drop_newest_keeps_what_waits_and_holds_nobody_up() -> None:
    edge = Edge()
    connection, session = listening(edge, policy="drop_newest", receive_window=2)
    edge.deliver(*rows(session, 1, 2))
    edge.drain()
    edge.deliver(*rows(session, *range(3, 11)))
    edge.drain()
    heard = edge.heard(connection)
    assert heard[-1] == frames.Dropped("drop_newest", 4, [(0, 4)])
    assert tokens_of(edge) == list(range(1, 11))
    edge.say(connection, frames.Consumed(2))
    edge.drain()
    assert sequences_of(edge, connection) == [3, 4]
    gauges = edge.machine.gauges()
    assert (gauges["dropped"], gauges["dropped_newest"], gauges["dropped_oldest"], gauges["queued"]) == (4, 4, 0, 2)


def test_latest_per_key_tells_what_was_outdated_and_what_the_limit_took() -> None:
    edge = Edge()
    connection, session = listening(edge, policy="latest_per_key(`no 2`)", receive_window=1)
    edge.deliver(*rows(session, 1), payload=msgpack.packb({"x": 0}))
    edge.drain()
    edge.heard(connection)
    for number, value in enumerate((1, 1.0, True, None, "1", 2, 1, 3), 2):
        edge.deliver(*rows(session, number), payload=msgpack.packb({"x": number, "no 2": value}))
    edge.drain()
    # 2 is outdated by 3; then come more values than a queue of four holds.
    assert edge.heard(connection) == [
        frames.Dropped("latest_per_key", 1, [(0, 1)]),
        frames.Dropped("drop_oldest", 3, [(0, 3)]),
    ]
    assert tokens_of(edge) == list(range(1, 10))
    got = []
    for count in range(1, 6):
        edge.say(connection, frames.Consumed(count))
        edge.drain()
        got += sequences_of(edge, connection)
    assert got == [6, 7, 8, 9]
    gauges = edge.machine.gauges()
    assert (gauges["dropped"], gauges["dropped_latest_per_key"], gauges["dropped_oldest"]) == (4, 1, 3)


def test_disconnect_ends_the_session_and_lets_everybody_go() -> None:
    edge = Edge()
    connection, session = listening(edge, policy="disconnect", receive_window=1)
    edge.deliver(*rows(session, 1, 2, 3, 4, 5))
    edge.drain()
    assert connection not in edge.closed
    assert tokens_of(edge) == [1, 2, 3, 4, 5]
    edge.heard(connection)
    edge.deliver(*rows(session, 6, 7))
    edge.drain()
    (bye,) = edge.heard(connection)
    reason = "policy disconnect: more than 4 notifications or 10000 bytes wait, the limit of a client's queue"
    assert bye == frames.Bye("slow", reason)
    assert connection in edge.closed
    assert tokens_of(edge) == [6, 7]
    gauges = edge.machine.gauges()
    assert (gauges["slow_disconnected"], gauges["dropped"], gauges["queued"], gauges["held_runs"]) == (1, 0, 0, 0)
    assert (gauges["sessions"], gauges["refused"]) == (0, 1)


def test_what_comes_at_once_and_fits_in_flight_meets_no_policy() -> None:
    for policy in ("drop_oldest", "drop_newest", "latest_per_key(a)", "disconnect"):
        edge = Edge()
        connection, session = listening(edge, policy=policy, receive_window=50)
        edge.deliver(*rows(session, *range(1, 41)), payload=msgpack.packb({"a": 1}))
        edge.drain()
        assert sequences_of(edge, connection) == list(range(1, 41))
        assert tokens_of(edge) == list(range(1, 41))
        assert connection not in edge.closed


def test_drops_are_counted_at_once_and_told_when_the_client_reads() -> None:
    edge = Edge()
    connection, session = listening(edge, policy="drop_oldest")
    edge.feed(ClientFull(connection))
    edge.deliver(*rows(session, *range(1, 11)))
    edge.drain()
    assert edge.heard(connection) == []
    assert edge.machine.gauges()["dropped_oldest"] == 6
    edge.feed(ClientFree(connection))
    edge.drain()
    dropped, notify = edge.heard(connection)
    assert dropped == frames.Dropped("drop_oldest", 6, [(0, 6)])
    assert isinstance(notify, frames.Notify)


def overflowing(edge: Edge, policy: str = "drop_oldest") -> tuple[int, int]:
    """Return a client and its session whose queue is full, and which was just told that it has lost one."""
    connection, session = listening(edge, policy=policy, receive_window=1)
    edge.deliver(*rows(session, *range(1, 7)))
    edge.drain()
    assert [type(frame) for frame in edge.heard(connection)] == [frames.Notify, frames.Dropped]
    return connection, session


def test_drops_are_told_ten_times_a_second_at_the_most() -> None:
    edge = Edge()
    connection, session = overflowing(edge)
    for number in range(7, 17):
        edge.deliver(*rows(session, number))
        edge.drain()
    assert edge.machine.gauges()["dropped"] == 11, "counted at once"
    edge.pass_ms(DROPS_TOLD_MS - 1)
    edge.drain()
    assert edge.heard(connection) == []
    edge.pass_ms(1)
    edge.drain()
    assert edge.heard(connection) == [frames.Dropped("drop_oldest", 10, [(0, 10)])], "though nothing comes any more"
    edge.pass_ms(DROPS_TOLD_MS)
    edge.drain()
    assert edge.heard(connection) == [], "once"


def test_drops_are_told_before_what_is_written_after_them() -> None:
    edge = Edge()
    connection, session = overflowing(edge)
    edge.deliver(*rows(session, 7))
    edge.drain()
    edge.say(connection, frames.Consumed(1))
    edge.drain()
    dropped, notify = edge.heard(connection)
    assert dropped == frames.Dropped("drop_oldest", 1, [(0, 1)])
    assert isinstance(notify, frames.Notify)
    assert notify.sequence == struct.pack("<Q", 4)


def test_drops_are_told_before_a_change_is_answered_and_before_the_end() -> None:
    edge = Edge()
    connection, session = overflowing(edge)
    edge.deliver(*rows(session, 7))
    edge.drain()
    edge.say(connection, frames.Subscribe(9, 0, "a > 1", "drop_newest"))
    edge.confirm_changes()
    assert edge.heard(connection) == [frames.Dropped("drop_oldest", 1, [(0, 1)]), frames.Done(9)]
    edge.deliver(*rows(session, 8))
    edge.drain()
    edge.feed(Received(COORDINATOR_PEER, Drain()))
    dropped, bye = edge.heard(connection)
    assert dropped == frames.Dropped("drop_newest", 1, [(0, 1)])
    assert isinstance(bye, frames.Bye)


def test_drops_kept_back_for_a_client_that_left_are_forgotten() -> None:
    edge = Edge()
    connection, session = overflowing(edge)
    edge.deliver(*rows(session, 7))
    edge.drain()
    edge.close(connection)
    edge.pass_ms(DROPS_TOLD_MS)
    edge.drain()
    assert edge.heard(connection) == []


def test_where_nobody_blocks_a_full_queue_holds_nobody_up_even_for_a_round() -> None:
    for policy in ("drop_oldest", "drop_newest"):
        edge = Edge()
        _, session = overflowing(edge, policy)
        edge.deliver(*rows(session, *range(100, 110)))
        assert edge.machine.gauges()["held_runs"] == 0


def test_what_also_matches_a_block_subscription_is_not_dropped() -> None:
    edge = Edge()
    connection, session = listening(edge, policy="drop_oldest", receive_window=1)
    edge.subscribe(connection, 1, policy="block")
    edge.deliver((1, 1, [(session, [0])]))
    edge.drain()
    edge.deliver((2, 2, [(session, [0, 1])]), *rows(session, *range(3, 10)))
    edge.drain()
    heard = edge.heard(connection)
    assert heard[-1] == frames.Dropped("drop_oldest", 4, [(0, 4)])
    got = []
    for count in range(1, 6):
        edge.say(connection, frames.Consumed(count))
        edge.drain()
        got += sequences_of(edge, connection)
    assert got == [2, 7, 8, 9]


def test_a_subscriber_at_rest_keeps_no_strangers_bytes() -> None:
    """One notification out of a large Deliver must not keep all of it in memory."""
    edge = Edge()
    connection, session = listening(edge, receive_window=1)
    others = [(9_000 + number, list(range(50))) for number in range(200)]
    edge.deliver((1, 1, [(session, [0])]))
    edge.drain()
    edge.deliver((2, 2, [(session, [0]), *others]), payload=b"z")
    edge.drain()
    edge.heard(connection)
    outbox = edge.machine._shared.connections[connection].session.outbox  # type: ignore[union-attr]
    (chunk,) = (entry.chunk for entry in outbox._queue.values())
    for column in (chunk.run, chunk.sequence, chunk.lengths, chunk.matches, chunk.numbers, chunk.payload):
        assert type(column) is bytes, "a column may be a view of the whole message"
        assert len(column) <= 8


def test_a_frame_names_only_the_runs_of_its_notifications() -> None:
    """Of a large share a client with a small window gets a little at a time, and not every publisher's name with it."""
    edge = Edge()
    connection, session = listening(edge, receive_window=1)
    edge.deliver(*rows(session, 1, 2, 3, 4))
    for count in range(1, 5):
        edge.drain()
        (notify,) = edge.heard(connection)
        assert isinstance(notify, frames.Notify)
        assert (notify.runs, notify.run) == ([("publisher", 5, NOW_US)], bytes(4))
        edge.say(connection, frames.Consumed(count))


def test_order_is_that_of_arrival_over_exit_points() -> None:
    edge = Edge()
    connection, session = listening(edge, receive_window=100)
    edge.feed(Received(Peer(EXIT_POINT, 0), deliver((1, 5, [(session, [0])]))))
    edge.feed(Received(Peer(EXIT_POINT, 3), deliver((1, 50, [(session, [0])]), publisher="another")))
    edge.feed(Received(Peer(EXIT_POINT, 0), deliver((2, 6, [(session, [0])]))))
    edge.drain()
    assert sequences_of(edge, connection) == [5, 50, 6]
    delivered = {peer.slot: message for peer, message in edge.to_peers()}
    assert delivered == {0: Delivered([1, 2]), 3: Delivered([1])}


def test_tokens_of_two_exit_points_are_told_apart() -> None:
    edge = Edge()
    connection, session = listening(edge, receive_window=1)
    for exit_point in (0, 1):
        for token in (1, 2, 3):
            edge.feed(
                Received(Peer(EXIT_POINT, exit_point), deliver((token, token + 10 * exit_point, [(session, [0])])))
            )
    edge.drain()
    assert {peer.slot: message for peer, message in edge.to_peers()} == {0: Delivered([1, 2, 3]), 1: Delivered([1, 2])}
    edge.say(connection, frames.Consumed(1))
    edge.drain()
    assert edge.to_peers() == [(Peer(EXIT_POINT, 1), Delivered([3]))]


def test_a_notify_frame_stays_below_the_frame_limit() -> None:
    edge = Edge(small_config(flight_bytes=1 << 20, queue_messages=1000, queue_bytes=1 << 20))
    connection, session = listening(edge, receive_window=100)
    edge.deliver(*rows(session, *range(1, 41)), payload=b"x" * 300)
    edge.drain()
    notifies = edge.heard(connection)
    assert len(notifies) > 3
    assert all(len(frame.payload) <= 2048 for frame in notifies if isinstance(frame, frames.Notify))


def test_a_publisher_may_listen_to_itself() -> None:
    edge = Edge()
    connection, session = listening(edge)
    edge.say(connection, publish(1))
    edge.drain()
    edge.to_peers()
    edge.deliver((1, 1, [(session, [0])]))
    edge.drain()
    edge.acknowledge(edge.key(connection), 1)
    assert [type(frame) for frame in edge.heard(connection)] == [frames.Notify, frames.Acknowledged]
