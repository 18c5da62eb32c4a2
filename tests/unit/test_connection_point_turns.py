"""The connection point among clients that want more than their share: turns, unread answers, changes under way."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cluster import frames
from cluster.codec import encode_frame
from cluster.columns import mask_with
from cluster.config import Config
from cluster.frames import SUBSCRIPTION_BITS
from cluster.messages import (
    Again,
    ChangeSubscriptions,
    ClientBytes,
    ClientFree,
    ClientFull,
    CloseClient,
    Drained,
    Instruction,
    PauseClient,
    Publications,
    ResumeClient,
)
from cluster.serving.changes import CHANGE_BYTES_UNDERWAY, CHANGES_UNDERWAY
from tests.unit.edge import NOW_US, Edge, publish

HEARTBEAT_MS = Config().timing.client_heartbeat_ms


def flood(edge: Edge, connection: int, *said: frames.Frame) -> list[Instruction]:
    """A client's frames arrive in one piece; return what the machine wants done."""
    return edge.feed(ClientBytes(connection, b"".join(map(encode_frame, said)), NOW_US))


def bad_requests(count: int) -> list[frames.Frame]:
    """Return requests that are refused one by one."""
    return [frames.Subscribe(request, 0, "(", "block") for request in range(count)]


def rounds(edge: Edge, most: int = 10_000) -> int:
    """Drain for as long as the machine asks for another turn; return how many rounds that took."""
    for number in range(1, most):
        if Again() not in edge.feed(Drained()):
            return number
    raise AssertionError("it never comes to rest")


def test_a_flood_of_requests_takes_turns_with_the_others() -> None:
    edge = Edge(Config())
    loud, quiet = edge.login("loud"), edge.login("quiet")
    out = flood(edge, loud, *bad_requests(1000))
    first = len(edge.heard(loud))
    assert 0 < first < 100, "one turn is far from all of it"
    assert PauseClient(loud) in out
    edge.say(quiet, publish(1))
    out = edge.feed(Drained())
    assert [type(message) for _, message in edge.to_peers()] == [Publications], "who is not behind does not wait"
    assert Again() in out
    assert ResumeClient(loud) not in out
    answered = first + len(edge.heard(loud))
    assert rounds(edge) > 5
    said = edge.heard(loud)
    assert [one.request for one in said if isinstance(one, frames.Refused)] == list(range(answered, 1000))


def test_everybody_behind_gets_on_in_every_round() -> None:
    edge = Edge(Config())
    clients = [edge.login(f"client-{number}") for number in range(30)]
    for client in clients:
        flood(edge, client, *bad_requests(200))
        edge.heard(client)
    for _ in range(10):
        edge.drain()
        assert all(edge.heard(client) for client in clients)
    rounds(edge)
    assert all(isinstance(last := edge.heard(client)[-1], frames.Refused) and last.request == 199 for client in clients)


def test_a_client_is_read_again_when_it_has_caught_up() -> None:
    edge = Edge(Config())
    loud = edge.login()
    assert PauseClient(loud) in flood(edge, loud, *bad_requests(100))
    out: list[Instruction] = []
    while not out or Again() in out:
        out = edge.feed(Drained())
    assert ResumeClient(loud) in out
    edge.say(loud, frames.Unsubscribe(7, 7))
    assert frames.Done(7) in edge.heard(loud)


def test_the_order_of_a_client_s_frames_holds_through_turns() -> None:
    """Publications between requests stay between them."""
    edge = Edge(Config())
    loud = edge.login()
    said: list[frames.Frame] = []
    for number in range(100):
        said += [publish(number + 1), frames.Subscribe(number, number, "a > 1", "block")]
    flood(edge, loud, *said)
    rounds(edge)
    story: list[int] = []
    for _, message in edge.to_peers():
        if isinstance(message, Publications):
            story += [2 * run.first_sequence - 2 for run in message.runs]
        elif isinstance(message, ChangeSubscriptions):
            story += [2 * (change.subscription & 0xFFFFF) + 1 for change in message.changes]
    assert story == list(range(200))


def test_what_a_client_sent_before_it_left_counts_though_it_was_behind() -> None:
    edge = Edge(Config())
    loud = edge.login()
    flood(edge, loud, *bad_requests(100), publish(1, acknowledge=0))
    edge.close(loud)
    assert edge.to_peers() == [], "its turn has not come"
    rounds(edge)
    sent = [message for _, message in edge.to_peers()]
    assert [type(message).__name__ for message in sent] == ["SessionClosed", "Publications"]
    assert loud not in edge.machine._shared.connections


def test_a_paused_client_is_not_taken_for_a_silent_one() -> None:
    edge = Edge(Config())
    loud = edge.login()
    half = encode_frame(frames.Unsubscribe(5000, 5000))
    filters = [frames.Subscribe(number, number, "a > 1", "block") for number in range(CHANGES_UNDERWAY + 10)]
    edge.raw(loud, b"".join(map(encode_frame, filters)) + half[:-1])
    rounds(edge)
    edge.pass_ms(100 * HEARTBEAT_MS)
    assert loud not in edge.closed
    edge.confirm_changes()
    rounds(edge)
    edge.confirm_changes()
    edge.raw(loud, half[-1:])
    rounds(edge)
    assert edge.heard(loud)[-1] == frames.Done(5000)


def test_changes_under_way_are_bounded_over_all_clients() -> None:
    edge = Edge(Config())
    first, second = edge.login("first"), edge.login("second")
    flood(edge, first, *(frames.Subscribe(number, number, "a > 1", "block") for number in range(2000)))
    rounds(edge)
    assert edge.machine.gauges()["changes_underway"] == CHANGES_UNDERWAY
    flood(edge, second, publish(1), frames.Subscribe(1, 1, "a > 1", "block"), publish(2))
    assert Again() not in edge.feed(Drained()), "nothing to do until a matcher answers"
    published = [run for _, message in edge.sent if isinstance(message, Publications) for run in message.runs]
    assert [run.first_sequence for run in published] == [1], "a publication does not overtake the change before it"
    for _ in range(3):
        edge.confirm_changes()
        rounds(edge)
    edge.confirm_changes()
    assert frames.Done(1) in edge.heard(second)
    assert sum(isinstance(one, frames.Done) for one in edge.heard(first)) == 2000
    assert edge.machine.gauges()["changes_underway"] == 0


def test_large_normal_forms_under_way_are_bounded_in_bytes() -> None:
    edge = Edge(Config())
    client = edge.login()
    costly = " and ".join(f"(a{number} > 1 or b{number} < 2)" for number in range(10))
    flood(edge, client, *(frames.Subscribe(number, number, costly, "block") for number in range(10)))
    rounds(edge)
    forms = [
        len(change.normal_form or b"")
        for _, message in edge.sent
        if isinstance(message, ChangeSubscriptions)
        for change in message.changes
    ]
    assert forms[0] > CHANGE_BYTES_UNDERWAY // 2, "the filter is as costly as it was meant to be"
    assert len(forms) == 2
    for _ in range(5):
        edge.confirm_changes()
        rounds(edge)
    assert [one for one in edge.heard(client) if isinstance(one, frames.Done)] == [
        frames.Done(number) for number in range(10)
    ]


def test_a_costly_filter_is_paid_for_in_turns() -> None:
    edge = Edge(Config())
    client = edge.login()
    terms = " and ".join(f"(a{number} > 1 or b{number} < 2)" for number in range(11))
    flood(edge, client, frames.Subscribe(1, 1, terms, "block"), frames.Unsubscribe(2, 2))
    (refused,) = edge.heard(client)
    assert isinstance(refused, frames.Refused)
    assert rounds(edge) > 5
    assert edge.heard(client) == [frames.Done(2)]


def test_who_does_not_read_is_not_listened_to() -> None:
    edge = Edge(Config())
    deaf = edge.login()
    assert edge.feed(ClientFull(deaf)) == [PauseClient(deaf)]
    flood(edge, deaf, *bad_requests(10))
    edge.drain()
    assert edge.heard(deaf) == []
    edge.feed(ClientFree(deaf))
    rounds(edge)
    assert len(edge.heard(deaf)) == 10


def test_who_does_not_read_gets_no_notifications_until_it_does() -> None:
    edge = Edge(Config())
    deaf = edge.login()
    edge.subscribe(deaf, 1)
    edge.feed(ClientFull(deaf))
    edge.deliver((1, 1, [(edge.session_number(deaf), [1])]))
    edge.drain()
    assert edge.heard(deaf) == []
    out = [*edge.feed(ClientFree(deaf)), *edge.feed(Drained())]
    assert ResumeClient(deaf) in out
    (notify,) = edge.heard(deaf)
    assert isinstance(notify, frames.Notify)


def test_drops_are_told_when_the_client_reads_again_and_not_one_by_one() -> None:
    edge = Edge(Config())
    deaf = edge.login(receive_window=1)
    edge.subscribe(deaf, 1, policy="drop_oldest")
    session = edge.session_number(deaf)
    edge.feed(ClientFull(deaf))
    queue = Config().flow.queue_messages
    for begin in range(0, 3 * queue, queue):
        edge.deliver(*((begin + step, begin + step + 1, [(session, [1])]) for step in range(queue)))
        edge.drain()
    assert edge.heard(deaf) == []
    edge.feed(ClientFree(deaf))
    edge.drain()
    dropped = [one for one in edge.heard(deaf) if isinstance(one, frames.Dropped)]
    assert [one.notifications for one in dropped] == [2 * queue]


def test_who_reads_nothing_for_three_heartbeats_is_sent_off_as_slow() -> None:
    edge = Edge(Config())
    deaf, other = edge.login("deaf"), edge.login("other")
    edge.feed(ClientFull(deaf))
    edge.pass_ms(2 * HEARTBEAT_MS)
    assert deaf not in edge.closed
    edge.say(other, frames.Pong())
    edge.pass_ms(HEARTBEAT_MS + 1)
    assert edge.bye(deaf).code == "slow"
    assert other not in edge.closed
    assert edge.feed(ClientFree(deaf)) == [], "the socket's last word comes too late"


def test_a_bad_frame_in_the_middle_of_a_backlog_ends_the_connection_there() -> None:
    edge = Edge(Config())
    loud = edge.login()
    flood(edge, loud, *bad_requests(100), frames.Consumed(5), publish(1))
    rounds(edge)
    assert edge.bye(loud).code == "malformed"
    assert not any(isinstance(message, Publications) for _, message in edge.to_peers())
    assert edge.feed(Drained()) == []


def test_goodbye_behind_a_backlog_is_a_clean_end() -> None:
    edge = Edge(Config())
    loud = edge.login()
    flood(edge, loud, *bad_requests(100), publish(1), frames.Goodbye(), frames.Pong())
    out: list[Instruction] = []
    while CloseClient(loud) not in out:
        out = edge.feed(Drained())
    assert any(isinstance(message, Publications) for _, message in edge.to_peers())
    assert loud not in edge.machine._shared.connections


def test_a_subscription_number_far_away_costs_no_memory() -> None:
    """Two hundred clients with one subscription each, at the largest number there is."""
    page = 4096

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    edge = Edge(Config())
    clients = [edge.login(f"client-{number}") for number in range(200)]
    edge.subscribe(clients[0], 1)
    before = resident()
    for client in clients:
        edge.subscribe(client, (1 << SUBSCRIPTION_BITS) - 1, policy="drop_oldest")
    assert resident() - before < 20_000_000, "a byte for each number would be 400 MB"


def test_a_mask_keeps_what_it_holds() -> None:
    mask = np.zeros(64, np.bool_)
    mask[63] = True
    for number in (63, 64, 4095, 4096, (1 << SUBSCRIPTION_BITS) - 1, 5):
        mask = mask_with(mask, number)
        assert len(mask) > number
        mask[number] = True
    assert np.flatnonzero(mask).tolist() == [5, 63, 64, 4095, 4096, (1 << SUBSCRIPTION_BITS) - 1]
