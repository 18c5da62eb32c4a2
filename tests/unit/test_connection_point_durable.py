"""What a connection point refuses to the client of a durable session: the reason; the session stays as it was."""

from __future__ import annotations

import pytest

from cluster import frames
from cluster.columns import UINT64, pack
from cluster.config import Config
from cluster.messages import (
    COORDINATOR_PEER,
    DurableEnded,
    Event,
    FindHome,
    HomeFound,
    Instruction,
    MoveClients,
    Received,
    Tick,
)
from tests.unit.edge import START_MS, Edge
from tests.unit.test_valid_disk import OTHER, Bench


def greet(edge: Edge, client_id: str = "lab", *, max_deliver: int = 0) -> int:
    """Connect and say Hello for a durable session; return the connection."""
    connection = edge.connect()
    edge.say(connection, frames.Hello(frames.VERSION, client_id, 5, 10, durable=True, max_deliver=max_deliver))
    return connection


def live_here(edge: Edge, connection: int, client_id: str = "lab") -> None:
    """The coordinator says that the session is to live here."""
    edge.feed(Received(COORDINATOR_PEER, HomeFound(client_id, connection, edge.slot, "")))
    edge.drain()


class Unticked(Bench):
    """A connection point that has not had its first tick."""

    def feed(self, event: Event) -> list[Instruction]:
        return [] if event == Tick(START_MS) else super().feed(event)


def served(bench: Bench | None = None) -> tuple[Bench, int]:
    """Return a connection point, and the connection of a durable session that was sent the positions 1 to 3."""
    bench = bench or Bench()
    connection = greet(bench)
    live_here(bench, connection)
    bench.sync()
    assert isinstance(bench.heard(connection)[0], frames.Welcome)
    bench.say(connection, frames.Subscribe(0, 0, "a > 1", "block"))
    bench.confirm_changes()
    bench.drain()
    bench.sync()
    assert bench.heard(connection) == [frames.Done(0)]
    for sequence in (1, 2, 3):
        bench.deliver((0, sequence, [(bench.session_number(connection), [0])]))
    bench.drain()
    bench.sync()
    (notify,) = bench.heard(connection)
    assert isinstance(notify, frames.Notify)
    assert notify.positions == pack(UINT64, [1, 2, 3])
    return bench, connection


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (frames.Consumed(4), "position 4 reported as consumed, which was never sent"),
        (frames.Settle(pack(UINT64, [4]), b""), "Settle names a position that was never sent"),
        (frames.Settle(b"", pack(UINT64, [4])), "Settle names a position that was never sent"),
        (frames.Settle(bytes(7), b""), "the columns of Settle are not of uint64"),
        (frames.Settle(b"", bytes(9)), "the columns of Settle are not of uint64"),
    ],
)
def test_who_settles_what_there_is_not_is_sent_off_and_owed_what_it_was(said: frames.Frame, words: str) -> None:
    bench, connection = served()
    somebody = bench.login("somebody else")
    bench.say(connection, said)
    bye = bench.bye(connection)
    assert (bye.code, bye.reason) == ("malformed", words)
    bench.close(connection)
    assert (bench.machine.gauges()["durable_sessions"], bench.machine.gauges()["durable_queued"]) == (1, 3)
    assert somebody not in bench.closed
    again = greet(bench)
    bench.drain()
    bench.sync()
    notified = [one for one in bench.heard(again) if isinstance(one, frames.Notify)]
    assert [(one.positions, one.redelivered) for one in notified] == [(pack(UINT64, [1, 2, 3]), b"\1\1\1")]


def test_only_a_durable_session_settles_single_notifications() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Settle(b"", b""))
    bye = edge.bye(connection)
    assert (bye.code, bye.reason) == ("malformed", "Settle in a session that is not durable")


def test_deliveries_are_not_counted_below_none() -> None:
    edge = Edge()
    connection = greet(edge, max_deliver=-1)
    bye = edge.bye(connection)
    assert (bye.code, bye.reason) == ("durable", "max_deliver is -1")
    assert edge.to_peers() == [], "nobody else hears of it"


def test_a_session_is_not_begun_where_it_would_have_to_leave_at_once() -> None:
    edge = Edge()
    connection = greet(edge)
    assert (COORDINATOR_PEER, FindHome("lab", connection)) in edge.to_peers()
    edge.feed(Received(COORDINATOR_PEER, MoveClients(["elsewhere:1"], 1)))
    live_here(edge, connection)
    bye = edge.bye(connection)
    assert (bye.code, bye.reason) == ("shutdown", "this connection point is about to leave")
    assert (COORDINATOR_PEER, DurableEnded("lab")) in edge.to_peers(), "it has no home yet, and may have another"
    assert edge.machine.gauges()["durable_sessions"] == 0


def test_no_session_comes_to_where_all_are_about_to_go_and_other_clients_do() -> None:
    before = Bench(others=True)
    connection = greet(before)
    live_here(before, connection)
    before.close(connection)
    session = before.machine._homes.find("lab")
    assert session is not None
    session.freeze(OTHER)
    before.drain()
    before.sync()
    bench = before.again()
    for client_id in ("lab", "another"):
        connection = greet(bench, client_id)
        bye = bench.bye(connection)
        assert (bye.code, bye.reason) == (
            "unavailable", "the durable sessions of this connection point are about to move",
        )  # fmt: skip
    assert not [one for one in bench.to_peers() if isinstance(one[1], FindHome)]
    assert bench.login("not durable") not in bench.closed
    assert bench.machine.gauges()["durable_sessions"] == 1


def test_who_leaves_before_the_first_tick_is_expected_back_for_the_whole_time() -> None:
    bench, connection = served(Unticked())
    bench.close(connection)
    expires_ms = 1000 * Config().durable.expires_s
    up_ms = 5 * expires_ms  # what the machine's clock shows says nothing of the session
    for now_ms in (up_ms, up_ms + expires_ms):
        bench.feed(Tick(now_ms))
        assert bench.machine.gauges()["durable_sessions"] == 1
    bench.feed(Tick(up_ms + expires_ms + 1000))
    assert bench.machine.gauges()["durable_sessions"] == 0
