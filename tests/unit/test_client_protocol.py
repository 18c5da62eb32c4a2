"""The pure half of the client, by events: no loop, no socket."""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Any

import msgspec
import pytest

from cluster import frames
from cluster.client import requests as requests_module
from cluster.client.delivery import Delivery, Inbox
from cluster.client.positions import Positions
from cluster.client.protocol import Arrived, ClientProtocol, Durable, Ended, Opened, publication_limits
from cluster.client.publishing import Offer, Publishing
from cluster.client.requests import Request, Requests
from cluster.codec import FrameReader, decode_client_frame, encode_frame
from cluster.errors import CodecError, FilterError, PolicyError, RefusedError
from cluster.frames import Acknowledged, Bye, Done, Dropped, Held, Hello, Notify, Ping, Pong, Publish, Refused, Welcome
from tests.unit.client_broker import notify_frame, split

WELCOME_BACK = Welcome(
    frames.VERSION, 1, 1000, 100, 10_000, 4096, 256, 1000, 10, resumed=True, held=bytes(4) + b"\1\0\0\0", listed=2
)
WELCOME = Welcome(frames.VERSION, 1, 1000, 100, 10_000, 4096, 256, 1000, 10)


def decoded(output: list[bytes]) -> list[Any]:
    return [decode_client_frame(body) for body in FrameReader(1 << 24).feed(b"".join(output))]


def acknowledged(upto: int, window: int = 100, window_bytes: int = 10_000, *rejected: tuple[int, str]) -> Acknowledged:
    return Acknowledged(upto, window, window_bytes, list(rejected))


# Publishing --------------------------------------------------------------------------------------------------------


def one(level: int = 1, size: int = 10) -> Offer:
    return Offer([b"x" * size], level)


def test_nothing_is_numbered_before_there_is_a_connection() -> None:
    publishing = Publishing()
    first, second = one(), one()
    assert not publishing.offer(first)
    assert not publishing.offer(second)
    publishing.withdraw(first)
    assert publishing.unacknowledged == 0
    assert publishing.connected(10, 1000, 4096) == [second]
    assert (first.first_sequence, second.first_sequence) == (0, 1)
    [frame] = decoded(publishing.take())
    assert (frame.first_sequence, split(frame)) == (1, [b"x" * 10])
    publishing.check()


def test_offers_of_one_level_share_a_frame() -> None:
    publishing = Publishing()
    publishing.connected(10, 1000, 4096)
    for level in (1, 1, 0, 0, 0, 1):
        assert publishing.offer(one(level))
    found = [(frame.first_sequence, frame.acknowledge, len(split(frame))) for frame in decoded(publishing.take())]
    assert found == [(1, 1, 2), (3, 0, 3), (6, 1, 1)]
    assert publishing.take() == []


def test_the_window_in_publications_and_in_bytes_holds_offers_back_in_order() -> None:
    publishing = Publishing()
    publishing.connected(2, 35, 4096)
    offers = [one(), one(), one(), one(size=30), one(size=1)]
    assert [publishing.offer(offer) for offer in offers] == [True, True, False, False, False]
    assert publishing.unacknowledged == 2
    publishing.take()
    assert publishing.acknowledge(acknowledged(1, 2, 35)) == [offers[0], offers[2]]
    publishing.take()
    # 2 and 3 are in flight, 20 bytes: the next, of 30, does not fit, and the small one behind it may not overtake.
    assert publishing.acknowledge(acknowledged(2, 2, 35)) == [offers[1]]
    assert publishing.acknowledge(acknowledged(3, 2, 35)) == [offers[2], offers[3], offers[4]]
    assert [offer.first_sequence for offer in offers] == [1, 2, 3, 4, 5]
    publishing.check()


def test_an_offer_larger_than_the_window_goes_in_parts() -> None:
    publishing = Publishing()
    publishing.connected(4, 1000, 4096)
    offer = Offer([bytes([number]) for number in range(10)], 1)
    assert publishing.offer(offer)
    sent = []
    for upto in (4, 8, 10):
        sent += [(frame.first_sequence, len(split(frame))) for frame in decoded(publishing.take())]
        assert publishing.take() == []
        changed = publishing.acknowledge(acknowledged(upto, 4))
        assert changed == ([offer] if upto == 10 else [])
        publishing.check()
    assert sent == [(1, 4), (5, 4), (9, 2)]
    assert offer.settled
    assert publishing.drained


def test_a_publication_larger_than_the_credit_in_bytes_goes_alone() -> None:
    publishing = Publishing()
    publishing.connected(10, 50, 4096)
    small, large = one(), one(size=100)
    publishing.offer(small)
    assert not publishing.offer(large)
    assert len(publishing.take()) == 1
    assert publishing.acknowledge(acknowledged(1, 10, 50)) == [small, large]
    [frame] = decoded(publishing.take())
    assert len(frame.payload) == 100


def test_a_window_that_shrinks_below_what_is_in_flight_stops_sending() -> None:
    publishing = Publishing()
    publishing.connected(10, 1000, 4096)
    for _ in range(6):
        publishing.offer(one())
    publishing.take()
    publishing.acknowledge(acknowledged(1, 2))
    assert not publishing.offer(one())
    assert publishing.take() == []
    publishing.acknowledge(acknowledged(5, 2))
    assert [frame.first_sequence for frame in decoded(publishing.take())] == [7]


def test_what_was_in_flight_is_sent_again_under_its_numbers() -> None:
    publishing = Publishing()
    publishing.connected(10, 1000, 4096)
    offers = [one(), one(0), one()]
    for offer in offers:
        publishing.offer(offer)
    publishing.take()
    publishing.acknowledge(acknowledged(1))
    publishing.disconnected()
    late = one()
    assert not publishing.offer(late)
    # The next broker gives less credit and takes smaller frames.
    assert publishing.connected(1, 1000, 100) == []
    assert [(f.first_sequence, f.acknowledge) for f in decoded(publishing.take())] == [(2, 0)]
    assert publishing.acknowledge(acknowledged(2, 10)) == [late]
    assert [(f.first_sequence, f.acknowledge) for f in decoded(publishing.take())] == [(3, 1)]
    assert publishing.acknowledge(acknowledged(4)) == [offers[2], late]
    publishing.check()


def test_a_broker_that_remembers_more_than_was_sent_again_is_believed() -> None:
    publishing = Publishing()
    publishing.connected(4, 1000, 4096)
    offers = [one() for _ in range(4)]
    for offer in offers:
        publishing.offer(offer)
    publishing.take()
    publishing.disconnected()
    publishing.connected(1, 1000, 4096)
    publishing.take()
    assert publishing.acknowledge(acknowledged(3, 1)) == offers[:3]
    publishing.check()
    assert [frame.first_sequence for frame in decoded(publishing.take())] == [4]


def test_rejections_reach_the_offer_over_partial_acknowledgements() -> None:
    publishing = Publishing()
    publishing.connected(10, 1000, 4096)
    single, many, none = one(), Offer([b"a", b"b", b"c"], 1), one(0)
    for offer in (single, many, none):
        publishing.offer(offer)
    publishing.take()
    assert publishing.acknowledge(acknowledged(2, 10, 1000, (1, "one"), (2, "two"))) == [single]
    assert single.rejected == [(1, "one")]
    assert not many.settled
    assert publishing.acknowledge(acknowledged(5, 10, 1000, (4, "four"), (5, "five"), (99, "?"))) == [many]
    assert many.rejected == [(2, "two"), (4, "four")]
    assert publishing.rejected_count == 4
    # Told twice, counted once.
    publishing.acknowledge(acknowledged(5, 10, 1000, (4, "four")))
    assert publishing.rejected_count == 4


@pytest.mark.parametrize("upto", [-1, 1, 2**63])
def test_an_acknowledgement_of_what_was_never_published_is_malformed(upto: int) -> None:
    publishing = Publishing()
    publishing.connected(10, 1000, 4096)
    with pytest.raises(CodecError, match="was acknowledged"):
        publishing.acknowledge(acknowledged(upto))


def test_frames_keep_to_every_limit() -> None:
    publishing = Publishing()
    publishing.connected(100_000, 1 << 30, 1 << 20)
    publishing.offer(Offer([b"x"] * 3000, 1))
    publishing.offer(Offer([b"x" * 1000] * 200, 1))
    publishing.offer(Offer([b"x" * 100_000] * 2, 1))
    counts = []
    for output in publishing.take():
        [frame] = decoded([output])
        assert len(output) <= 64 * 1024 + 4 * 1024 + 64 or len(split(frame)) == 1
        counts.append(len(split(frame)))
    assert sum(counts) == 3202
    assert max(counts) == 1024
    publishing.disconnected()
    publishing.connected(100_000, 1 << 30, 4096)
    again = publishing.take()
    assert all(len(output) <= 4096 + 4 for output in again if len(split(decoded([output])[0])) > 1)


@pytest.mark.parametrize("seed", range(20))
def test_publishing_at_random_loses_and_doubles_nothing(seed: int) -> None:
    """A broker that drops doubles, on connections that end at any moment, takes every admitted publication once."""
    rng = random.Random(seed)
    publishing = Publishing()
    connected = False
    wire: deque[Publish] = deque()
    accepted: list[bytes] = []
    offered: list[Offer] = []
    settled: list[Offer] = []
    window = window_bytes = 0
    counter = 0
    for _ in range(600):
        match rng.choice(["offer", "offer", "offer", "withdraw", "take", "arrive", "ack", "cut", "connect"]):
            case "offer":
                size = rng.choice([1, 1, 1, 2, 30])
                packed = [f"{counter + i} {'x' * rng.randrange(40)}".encode() for i in range(size)]
                counter += size
                offer = Offer(packed, rng.choice([0, 1]))
                offered.append(offer)
                publishing.offer(offer)
            case "withdraw" if offered:
                settled += [o for o in publishing.withdraw(rng.choice(offered[-5:])) if o.settled]
            case "take":
                for frame in decoded(publishing.take()):
                    assert connected
                    wire.append(frame)
            case "arrive" if wire:
                frame = wire.popleft()
                assert frame.first_sequence <= len(accepted) + 1, "a hole"
                for sequence, payload in enumerate(split(frame), frame.first_sequence):
                    if sequence == len(accepted) + 1:
                        accepted.append(payload)
                    else:
                        assert accepted[sequence - 1] == payload
            case "ack" if connected and publishing.acknowledged < len(accepted):
                window, window_bytes = rng.randrange(1, 40), rng.randrange(50, 2000)
                upto = rng.randint(publishing.acknowledged, len(accepted))
                settled += [o for o in publishing.acknowledge(acknowledged(upto, window, window_bytes)) if o.settled]
            case "cut" if connected and rng.random() < 0.3:
                connected = False
                wire.clear()
                publishing.disconnected()
            case "connect" if not connected:
                connected = True
                window, window_bytes = rng.randrange(1, 40), rng.randrange(50, 2000)
                publishing.connected(window, window_bytes, rng.choice([150, 4096]))
        publishing.check()
    if connected:
        publishing.disconnected()
    publishing.connected(40, 2000, 4096)
    for _ in range(2000):
        for frame in decoded(publishing.take()):
            for sequence, payload in enumerate(split(frame), frame.first_sequence):
                if sequence == len(accepted) + 1:
                    accepted.append(payload)
        if publishing.unacknowledged:
            publishing.acknowledge(acknowledged(len(accepted), 40, 2000))
    assert publishing.drained
    kept = [offer for offer in offered if offer.first_sequence]
    assert accepted == [payload for offer in kept for payload in offer.packed]
    assert [offer.first_sequence for offer in kept] == sorted(offer.first_sequence for offer in kept)
    assert all(offer.settled for offer in kept)


# Requests ----------------------------------------------------------------------------------------------------------


def test_requests_are_sent_answered_and_repeated() -> None:
    requests = Requests()
    opened = requests.open("a", "block")
    assert requests.take() == []
    requests.connected()
    assert decoded(requests.take()) == [frames.Subscribe(1, 0, "a", "block")]
    requests.disconnected()
    requests.connected()
    assert decoded(requests.take()) == [frames.Subscribe(1, 0, "a", "block")]
    assert requests.answer(Done(1)) is opened
    update = requests.update(0, "b")
    other = requests.open("c", "drop_oldest")
    assert decoded(requests.take()) == [
        frames.Subscribe(2, 0, "b", "block"),
        frames.Subscribe(3, 1, "c", "drop_oldest"),
    ]
    requests.disconnected()
    requests.check()
    requests.connected()
    # What was confirmed first, under its number, then what was not answered.
    assert decoded(requests.take()) == [
        frames.Subscribe(4, 0, "a", "block"),
        frames.Subscribe(2, 0, "b", "block"),
        frames.Subscribe(3, 1, "c", "drop_oldest"),
    ]
    assert requests.restoring
    assert requests.answer(Done(4)).kind == "restore"
    assert not requests.restoring
    assert requests.answer(Refused(2, "filter", "no", 7, 8)) is update
    assert isinstance(update.error, FilterError)
    assert (update.error.position, update.error.limit) == (7, 8)
    assert requests.answer(Refused(3, "too_many", "full", None, 10)) is other
    assert isinstance(other.error, RefusedError)
    assert (other.error.code, other.error.limit) == ("too_many", 10)
    assert not requests.knows(1)
    requests.disconnected()
    requests.connected()
    assert decoded(requests.take()) == [frames.Subscribe(5, 0, "a", "block")]
    requests.check()


def test_an_open_that_is_given_up_is_closed_behind_itself() -> None:
    requests = Requests()
    requests.connected()
    requests.open("a", "block")
    requests.close(0)
    assert not requests.closable(0)
    assert decoded(requests.take()) == [frames.Subscribe(1, 0, "a", "block"), frames.Unsubscribe(2, 0)]
    requests.answer(Done(1))
    requests.disconnected()
    requests.connected()
    assert decoded(requests.take()) == [frames.Unsubscribe(2, 0)], "closing is not restored"
    requests.answer(Refused(2, "unknown", "not open", None, None))
    assert not requests.knows(0)
    requests.check()


def test_a_restore_that_is_refused_ends_the_subscription() -> None:
    requests = Requests()
    requests.connected()
    requests.open("a", "block")
    requests.answer(Done(1))
    requests.take()
    requests.disconnected()
    requests.connected()
    requests.take()
    settled = requests.answer(Refused(2, "too_many", "full", None, 1))
    assert (settled.kind, settled.number) == ("restore", 0)
    assert decoded(requests.take()) == [frames.Unsubscribe(3, 0)]
    assert requests.knows(0)
    requests.answer(Done(3))
    assert not requests.knows(0)
    requests.check()


def held(count: int) -> Requests:
    """Return requests that hold so many subscriptions and have lost the connection."""
    requests = Requests()
    requests.connected()
    for number in range(count):
        requests.answer(Done(requests.open(f"a > {number}", "block").id))
    requests.disconnected()
    return requests


def restored(requests: Requests) -> list[int]:
    """Return the numbers whose restoring was asked for since the last call."""
    return [frame.number for frame in decoded(requests.take())]


def test_beside_a_former_session_a_few_are_restored_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "RESTORES_UNDERWAY", 2)
    requests = held(5)
    requests.connected(waiting=True)
    assert restored(requests) == [0, 1]
    requests.close(3)  # waits; until then both sessions hold it
    (first, second) = requests._restoring
    requests.answer(Done(second))
    assert restored(requests) == [2]
    requests.answer(Done(first))
    assert restored(requests) == [3]
    requests.check()
    requests.disconnected()
    requests.connected(waiting=True)
    assert restored(requests) == [0, 1], "another connection begins anew"
    assert requests.restoring
    requests.go_on()
    assert restored(requests) == [2, 4, 3], "nobody else serves it any more: the rest at once, then what has waited"
    requests.check()


def test_without_a_former_session_all_are_restored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "RESTORES_UNDERWAY", 2)
    requests = held(5)
    requests.connected()
    assert restored(requests) == [0, 1, 2, 3, 4]


def test_numbers_are_used_again_as_late_as_possible() -> None:
    requests = Requests()
    requests.connected()
    for expected in range(3):
        assert requests.open("a", "block").number == expected
    requests.close(1)
    for request in (1, 2, 3, 4):
        requests.answer(Done(request))
    assert requests.open("a", "block").number == 3
    requests._next_number = (1 << 20) - 1
    assert [requests.open("a", "block").number for _ in range(3)] == [(1 << 20) - 1, 1, 4]
    requests.check()


def test_an_answer_to_nothing_is_malformed() -> None:
    with pytest.raises(CodecError, match="request 5"):
        Requests().answer(Done(5))


@pytest.mark.parametrize("seed", range(20))
def test_requests_at_random_agree_with_the_broker(seed: int) -> None:
    """Whatever is cut off, in the end the broker holds what the client holds, with the filters confirmed."""
    rng = random.Random(seed)
    requests = Requests()
    wire: deque[Any] = deque()
    answers: deque[Any] = deque()
    at_broker: dict[int, str] = {}
    confirmed: dict[int, str] = {}
    connected = False

    def settle(request: Request) -> None:
        if request.kind == "close":
            confirmed.pop(request.number, None)
        elif request.kind == "restore":
            assert request.error is None or not requests.closable(request.number)
            if request.error is not None:
                confirmed.pop(request.number, None)
        elif request.error is None:
            confirmed[request.number] = request.filter

    def broker(frame: Any) -> None:
        if isinstance(frame, frames.Unsubscribe):
            at_broker.pop(frame.number, None)
            answers.append(Done(frame.request))
        elif rng.random() < 0.2:
            answers.append(Refused(frame.request, "filter", "no", None, None))
        else:
            at_broker[frame.number] = frame.filter
            answers.append(Done(frame.request))

    for step in range(500):
        match rng.choice(["open", "update", "close", "send", "broker", "broker", "answer", "answer", "cut", "connect"]):
            case "open":
                requests.open(f"open {step}", "block")
            case "update" if confirmed:
                number = rng.choice(sorted(confirmed))
                if requests.closable(number):
                    requests.update(number, f"update {step}")
            case "close" if requests._entries:
                number = rng.choice(sorted(requests._entries))
                if requests.closable(number):
                    requests.close(number)
            case "send":
                wire.extend(decoded(requests.take()))
            case "broker" if wire:
                broker(wire.popleft())
            case "answer" if answers:
                settle(requests.answer(answers.popleft()))
            case "cut" if connected and rng.random() < 0.3:
                connected = False
                requests.disconnected()
                for queue in (wire, answers, at_broker):
                    queue.clear()
            case "connect" if not connected:
                connected = True
                requests.connected()
        requests.check()
    if not connected:
        requests.connected()
    for _ in range(5):
        wire.extend(decoded(requests.take()))
        while wire:
            broker(wire.popleft())
        while answers:
            settle(requests.answer(answers.popleft()))
    assert at_broker == confirmed
    assert not requests.restoring
    assert requests.open_count == len(confirmed)


# Delivery ----------------------------------------------------------------------------------------------------------


def frame(*matching: list[int], first: int = 1) -> Notify:
    """Return a Notify frame of publications that are numbered from `first`; what was numbered before is a double."""
    return notify_frame(*(({"n": place}, numbers) for place, numbers in enumerate(matching)), first=first)


def test_one_subscription_is_delivered_without_looking_at_numbers() -> None:
    delivery, inbox = Delivery(8), Inbox()
    delivery.open(7, inbox)
    assert delivery.notify(frame([7], [7])) == {inbox}
    first, second = inbox.queue
    assert (first.publisher, first.sequence, first.time, first.attributes) == ("p", 1, 1.5, {"n": 0})
    assert first.subscription_ids == second.subscription_ids == (7,)
    assert first.attributes is first.attributes
    assert "publisher='p', sequence=1" in repr(first)


def test_a_group_sees_its_numbers_ascending() -> None:
    delivery, inbox = Delivery(8), Inbox()
    for number in (3, 1, 2):
        delivery.open(number, inbox)
    assert delivery.notify(frame([3, 1], [2])) == {inbox}
    assert [notification.subscription_ids for notification in inbox.queue] == [(1, 3), (2,)]


def test_several_streams_get_the_same_object_and_consume_it_together() -> None:
    delivery, a, b, c = Delivery(8), Inbox(), Inbox(), Inbox()
    for number, inbox in enumerate((a, b, c)):
        delivery.open(number, inbox)
    delivery.open(3, a)
    assert delivery.notify(frame([0, 1, 3], [0, 3], [1])) == {a, b}
    assert a.queue[0] is b.queue[0]
    assert a.queue[0].subscription_ids == (0, 1, 3)
    assert (len(a.queue), len(b.queue), len(c.queue)) == (2, 2, 0)
    delivery.took(a.queue.popleft())
    assert delivery.taken == 0
    delivery.took(b.queue.popleft())
    assert delivery.taken == 1
    delivery.close(b)
    assert delivery.taken == 2
    delivery.close(a)
    assert (delivery.taken, delivery.received) == (3, 3)


def test_a_closed_stream_releases_what_still_comes() -> None:
    delivery, a, b = Delivery(8), Inbox(), Inbox()
    delivery.open(0, a)
    delivery.open(1, b)
    assert delivery.notify(frame([0, 1], [0])) == {a, b}
    delivery.took(b.queue.popleft())
    delivery.close(a)
    assert delivery.taken == 2
    # Not answered yet: the broker still uses number 0, so b is not alone.
    assert delivery.notify(frame([0], [0, 1], first=3)) == {b}
    assert delivery.taken == 3
    assert [notification.subscription_ids for notification in b.queue] == [(0, 1)]
    assert not a.queue
    delivery.forget(0)
    assert delivery.notify(frame([1], first=5)) == {b}
    assert delivery.taken == 3


def test_the_wide_stream_takes_everything_while_it_is_open() -> None:
    delivery, a, wide = Delivery(8), Inbox(), Inbox()
    delivery.open(0, a)
    delivery.open(1, a)
    delivery.open_wide(wide)
    assert delivery.notify(frame([0, 1], [1])) == {wide}
    assert [notification.subscription_ids for notification in wide.queue] == [(0, 1), (1,)]
    delivery.close(wide)
    assert delivery.taken == 2
    assert delivery.notify(frame([1], first=3)) == {a}


def test_reports_are_due_every_quarter_window() -> None:
    delivery, inbox = Delivery(8), Inbox()
    delivery.open(0, inbox)
    delivery.notify(frame([0], [0], [0]))
    assert delivery.report_at == 2
    assert delivery.report() is None
    delivery.took(inbox.queue.popleft())
    assert not delivery.at_rest
    assert delivery.report() == 1
    assert delivery.report_at == 3
    delivery.took(inbox.queue.popleft())
    delivery.took(inbox.queue.popleft())
    assert delivery.report() == 3
    assert delivery.at_rest


def test_what_lies_here_from_the_last_connection_is_on_no_credit() -> None:
    delivery, a, b = Delivery(4), Inbox(), Inbox()
    delivery.open(0, a)
    delivery.open(1, b)
    delivery.notify(frame([0, 1], [0], [1], [0]))
    assert delivery.connecting() == 4
    delivery.notify(frame([0], first=5))
    while a.queue:
        delivery.took(a.queue.popleft())
    while b.queue:
        delivery.took(b.queue.popleft())
    assert delivery.taken == 1
    # Under a flapping connection the window shrinks, so that what lies here stays bounded.
    first = 6
    for expected in (4, 4, 1, 1):
        assert delivery.connecting() == expected
        delivery.notify(frame(*[[0]] * expected, first=first))
        first += expected


def test_what_comes_again_after_a_fault_is_left_out_and_counts_as_consumed() -> None:
    delivery, a, b = Delivery(8), Inbox(), Inbox()
    delivery.open(0, a)
    delivery.open(1, b)
    delivery.notify(frame([0], [1], [0, 1]))
    assert delivery.notify(frame([0, 1], [1], [0], [1], first=2)) == {a, b}
    assert [notification.sequence for notification in a.queue] == [1, 3, 4]
    assert [notification.sequence for notification in b.queue] == [2, 3, 5]
    assert [notification.attributes["n"] for notification in a.queue] == [0, 2, 2], "each with its own bytes"
    assert [notification.subscription_ids for notification in b.queue] == [(1,), (0, 1), (1,)]
    assert (delivery.received, delivery.taken, delivery.doubles) == (7, 2, 2)
    assert delivery.notify(frame([0], [1], first=4)) == set(), "nothing but doubles"
    assert (delivery.received, delivery.taken, delivery.doubles) == (9, 4, 4)
    for inbox in (a, b):
        while inbox.queue:
            delivery.took(inbox.queue.popleft())
    assert delivery.taken == delivery.received


@pytest.mark.parametrize("alone", [True, False])
def test_doubles_are_known_over_connections_and_by_publisher_and_life(alone: bool) -> None:
    delivery, inbox, other = Delivery(16), Inbox(), Inbox()
    delivery.open(0, inbox)
    if not alone:
        delivery.open(1, other)
    delivery.notify(frame([0], [0]))
    delivery.connecting()
    assert (delivery.received, delivery.taken) == (0, 0)
    delivery.notify(frame([0], [0], [0]))
    assert [notification.sequence for notification in inbox.queue] == [1, 2, 3]
    assert (delivery.received, delivery.taken) == (3, 2), "of this connection's credit two are consumed"
    for notify in (
        notify_frame(({"n": 0}, [0]), publisher="q"),
        Notify([("p", 2, 1)], *columns_of(frame([0]))),
        Notify([("p", 1, 99)], *columns_of(frame([0], first=3))),
    ):
        delivery.notify(notify)
    names = [(notification.publisher, notification.instance) for notification in inbox.queue]
    assert names == [("p", 1)] * 3 + [("q", 1), ("p", 2)], "the time is no part of a name"


def test_columns_that_do_not_fit_say_nothing_about_doubles() -> None:
    delivery, inbox = Delivery(8), Inbox()
    delivery.open(0, inbox)
    good = frame([0], [0])
    columns = {name: getattr(good, name) for name in good.__struct_fields__}
    with pytest.raises(CodecError):
        delivery.notify(Notify(**(columns | {"payload": b""})))
    delivery.notify(good)
    assert [notification.sequence for notification in inbox.queue] == [1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_any_resend_delivers_each_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    delivery, inboxes = Delivery(1000), [Inbox(), Inbox(), Inbox()]
    for number, inbox in enumerate(inboxes):
        delivery.open(number, inbox)
    matching = [rng.sample(range(3), rng.randint(1, 3)) for _ in range(60)]
    last = 0
    while last < len(matching):
        if rng.random() < 0.2:
            delivery.connecting()
        first = rng.randint(max(last - 10, 0), last)
        count = rng.randint(1, 8)
        delivery.notify(frame(*map(sorted, matching[first : first + count]), first=first + 1))
        last = max(last, min(first + count, len(matching)))
    for number, inbox in enumerate(inboxes):
        expected = [place + 1 for place, numbers in enumerate(matching) if number in numbers]
        assert [notification.sequence for notification in inbox.queue] == expected


def test_drops_are_counted_by_reason() -> None:
    delivery, a, b = Delivery(4), Inbox(), Inbox()
    delivery.open(0, a)
    delivery.open(1, b)
    delivery.drop(Dropped("drop_oldest", 5, [(0, 4), (1, 2), (9, 1)]))
    delivery.drop(Dropped("drop_oldest", 1, [(0, 1)]))
    assert (a.dropped, b.dropped, delivery.dropped) == ({"drop_oldest": 5}, {"drop_oldest": 2}, {"drop_oldest": 6})


def test_the_broker_s_word_on_a_policy_has_its_place_and_limit() -> None:
    requests = Requests()
    requests.connected()
    request = requests.open("a", "latest_per_key(b")
    requests.answer(Refused(1, "policy", "no", 16, 8))
    assert isinstance(request.error, PolicyError)
    assert (request.error.reason, request.error.position, request.error.limit) == ("no", 16, 8)
    assert str(request.error) == "no at position 16"


def test_each_bye_is_counted_by_code_over_all_connections() -> None:
    protocol = opened()
    protocol.receive(encode_frame(Bye("slow", "too slow")))
    protocol.connection_lost()
    protocol.connection_made()
    protocol.receive(encode_frame(WELCOME))
    protocol.receive(encode_frame(Bye("slow", "too slow")) + encode_frame(Bye("shutdown", "is ignored")))
    assert protocol.byes == {"slow": 2}


@pytest.mark.parametrize("field", ["run", "sequence", "lengths", "matches", "numbers", "payload"])
@pytest.mark.parametrize("change", [lambda data: data + b"\x01\0\0\0", lambda data: data[:-1], lambda data: b""])
def test_columns_that_do_not_fit_are_malformed(field: str, change: Any) -> None:
    delivery, inbox = Delivery(8), Inbox()
    delivery.open(0, inbox)
    good = frame([0], [0])
    columns = {name: getattr(good, name) for name in good.__struct_fields__}
    columns[field] = change(columns[field])
    with pytest.raises(CodecError):
        delivery.notify(Notify(**columns))
    assert not inbox.queue


def test_a_run_that_is_not_there_and_a_match_of_nothing_are_malformed() -> None:
    delivery = Delivery(8)
    good = frame([0])
    with pytest.raises(CodecError, match="run"):
        delivery.notify(Notify(good.runs, struct.pack("<I", 1), *columns_of(good)[1:]))
    with pytest.raises(CodecError, match="matches"):
        delivery.notify(frame([]))


@pytest.mark.parametrize(("positions", "again"), [(b"", b"\0\0"), (bytes(15), b"\0\0"), (bytes(16), b"\0")])
def test_positions_that_do_not_fit_deliver_nothing(positions: bytes, again: bytes) -> None:
    delivery, inbox = Delivery(8), Inbox()
    delivery.open(0, inbox)
    two = frame([0], [0])
    with pytest.raises(CodecError, match="positions of the notifications do not fit the session"):
        delivery.notify(msgspec.structs.replace(two, positions=bytes(16), redelivered=b"\0\0"))  # not durable
    delivery.session_began(Positions(manual=False))
    with pytest.raises(CodecError, match="positions of the notifications do not fit the session"):
        delivery.notify(msgspec.structs.replace(two, positions=positions, redelivered=again))
    assert not inbox.queue
    delivery.notify(msgspec.structs.replace(two, positions=struct.pack("<2Q", 1, 2), redelivered=b"\0\0"))
    assert [one.sequence for one in inbox.queue] == [1, 2]


@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_what_is_valid_for_no_number_of_a_subscription_is_malformed(number: int) -> None:
    delivery, inbox = Delivery(8), Inbox()
    delivery.open(0, inbox)
    good = frame([0])
    columns = good.runs, good.run, good.sequence, good.lengths, good.payload
    with pytest.raises(CodecError, match=f"valid publications for subscription {number}"):
        delivery.notify_valid(frames.NotifyValid(number, True, *columns), counted=True)
    assert not inbox.queue
    assert delivery.notify_valid(frames.NotifyValid(0, True, *columns), counted=True) == {inbox}


def columns_of(notify: Notify) -> list[Any]:
    return [getattr(notify, name) for name in notify.__struct_fields__[1:]]


# The whole ---------------------------------------------------------------------------------------------------------


def opened(window: int = 8) -> ClientProtocol:
    protocol = ClientProtocol("lab", 77, window)
    protocol.connection_made()
    assert decoded(protocol.take_output()) == [Hello(frames.VERSION, "lab", 77, window)]
    assert protocol.receive(encode_frame(WELCOME)) == [Opened(WELCOME)]
    return protocol


def test_a_conversation_in_any_cut() -> None:
    conversation = [
        WELCOME,
        Ping(),
        Done(1),
        acknowledged(1),
        frame([0], [0]),
        Dropped("drop_oldest", 1, [(0, 1)]),
        Bye("shutdown", "until later"),
        frame([0]),
    ]
    data = b"".join(map(encode_frame, conversation))
    for seed in range(50):
        rng = random.Random(seed)
        protocol = ClientProtocol("lab", 77, 8)
        inbox = Inbox()
        request = protocol.requests.open("a", "block")
        protocol.delivery.open(request.number, inbox)
        offer = one()
        protocol.publishing.offer(offer)
        protocol.connection_made()
        outcomes: list[Any] = []
        output = protocol.take_output()
        position = 0
        while position < len(data):
            size = rng.choice([1, 2, 3, 10, 1000])
            outcomes += protocol.receive(data[position : position + size])
            if position == 0 or protocol.state == "open":
                output += protocol.take_output()
            position += size
        assert outcomes == [
            Opened(WELCOME),
            offer,
            request,
            offer,
            Arrived({inbox}),
            Ended("shutdown", "until later", reconnect=True),
        ]
        assert len(inbox.queue) == 2
        kinds = {type(found) for found in decoded(output)}
        assert kinds <= {Hello, Pong, frames.Subscribe, Publish}
        assert protocol.receive(data) == [], "something was heard after Bye"


def test_publications_wait_until_subscriptions_are_restored() -> None:
    protocol = opened()
    protocol.requests.open("a", "block")
    protocol.take_output()
    protocol.receive(encode_frame(Done(1)))
    protocol.publishing.offer(one())
    assert [type(found) for found in decoded(protocol.take_output())] == [Publish]
    protocol.connection_lost()
    assert protocol.take_output() == []
    protocol.connection_made()
    protocol.receive(encode_frame(WELCOME))
    assert [type(found) for found in decoded(protocol.take_output())] == [Hello, frames.Subscribe]
    protocol.receive(encode_frame(Done(2)))
    [publish] = decoded(protocol.take_output())
    assert (type(publish), publish.first_sequence) == (Publish, 1)


def test_publications_of_a_client_that_moves_do_not_wait_while_its_former_session_hears_them() -> None:
    protocol = opened()
    protocol.requests.open("a", "block")
    protocol.take_output()
    protocol.receive(encode_frame(Done(1)))
    protocol.publishing.offer(one())
    protocol.take_output()
    protocol.part()
    protocol.connection_made()
    protocol.receive(encode_frame(WELCOME))
    assert [type(found) for found in decoded(protocol.take_output())] == [Hello, frames.Subscribe, Publish]
    protocol.settle()  # it has broken off
    protocol.publishing.offer(one())
    assert protocol.take_output() == []
    protocol.receive(encode_frame(Done(2)))
    [publish] = decoded(protocol.take_output())
    assert (type(publish), publish.first_sequence) == (Publish, 2)


@pytest.mark.parametrize("code", ["malformed", "version", "client_id", "too_large", "over_credit", "taken_over"])
def test_the_broker_ends_a_client(code: str) -> None:
    assert opened().receive(encode_frame(Bye(code, "why"))) == [Ended(code, "why", reconnect=False)]


@pytest.mark.parametrize("code", ["shutdown", "timeout", "slow", "moved", "too_many"])
def test_the_broker_ends_a_connection(code: str) -> None:
    assert opened().receive(encode_frame(Bye(code, "why"))) == [Ended(code, "why", reconnect=True)]


def test_somebody_else_answers() -> None:
    for answer in (b"HTTP/1.1 400 Bad Request\r\n", encode_frame(Ping()), b"\0\0\0\0", b"\x01\0\0\0\xc1"):
        protocol = ClientProtocol("lab", 1, 8)
        protocol.connection_made()
        [ended] = protocol.receive(answer)
        assert isinstance(ended, Ended)
        assert (ended.code, ended.reconnect) == ("malformed", False)
        assert "not a connection point" in ended.reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([WELCOME_BACK, Held([(0, "a", "block")]), Ping()], "Ping came in place of Held"),
        ([msgspec.structs.replace(WELCOME_BACK, held=b"\0\0\0", listed=0)], "Welcome.held is not a column of uint32"),
    ],
)
def test_a_session_that_is_not_told_in_full_is_none(answer: list[frames.ServerFrame], words: str) -> None:
    protocol = ClientProtocol("lab", 77, 8, durable=Durable())
    protocol.connection_made()
    [ended] = protocol.receive(b"".join(map(encode_frame, answer)))
    assert isinstance(ended, Ended), "it was open for a moment"
    assert (ended.code, ended.reconnect) == ("malformed", False)
    assert words in ended.reason
    assert (protocol.state, protocol.welcome, protocol.sessions, protocol.left_behind) == ("ended", None, 0, {})


def test_damage_after_the_login_is_worth_another_connection() -> None:
    for data in (b"\xff\xff\xff\xff", encode_frame(WELCOME), encode_frame(Done(9)), encode_frame(acknowledged(1))):
        [ended] = opened().receive(encode_frame(Ping()) + data)
        assert isinstance(ended, Ended)
        assert (ended.code, ended.reconnect) == ("malformed", True)


def test_another_version_is_refused() -> None:
    protocol = ClientProtocol("lab", 1, 8)
    protocol.connection_made()
    [ended] = protocol.receive(encode_frame(Welcome(frames.VERSION + 1, 1, 1, 1, 1, 1, 1, 1, 1)))
    assert isinstance(ended, Ended)
    assert (ended.code, ended.reconnect) == ("version", False)


def test_heartbeats() -> None:
    protocol = opened()
    assert [protocol.tick() for _ in range(3)] == [True, True, True]
    protocol.receive(encode_frame(Ping()))
    assert decoded(protocol.take_output()) == [Pong()]
    assert [protocol.tick() for _ in range(4)] == [True, True, True, False]


def test_consumption_is_reported_with_whatever_is_written() -> None:
    protocol = opened(window=4)
    inbox = Inbox()
    protocol.delivery.open(protocol.requests.open("a", "block").number, inbox)
    protocol.take_output()
    protocol.receive(encode_frame(frame([0], [0])))
    protocol.delivery.took(inbox.queue.popleft())
    assert decoded(protocol.take_output()) == [frames.Consumed(1)]
    assert protocol.take_output() == []
    protocol.delivery._step = protocol.delivery.report_at = 1000
    protocol.delivery.took(inbox.queue.popleft())
    assert protocol.take_output() == []
    protocol.report_consumed()
    protocol.report_consumed()
    assert decoded(protocol.take_output()) == [frames.Consumed(2)]


def test_leaving_writes_what_was_taken_then_goodbye() -> None:
    protocol = opened()
    protocol.publishing.offer(one())
    protocol.leave()
    assert [type(found) for found in decoded(protocol.take_output())] == [Publish, frames.Goodbye]
    protocol.publishing.offer(one())
    assert protocol.take_output() == []


def test_the_end_gives_back_what_nobody_will_settle() -> None:
    protocol = opened()
    settled, pending = one(), one()
    protocol.publishing.offer(settled)
    protocol.take_output()
    protocol.receive(encode_frame(acknowledged(1)))
    protocol.publishing.offer(pending)
    request = protocol.requests.open("a", "block")
    assert protocol.abandon() == ([pending], [request])
    assert (settled.lost, pending.lost, request.lost) == (False, True, True)


def test_limits_leave_room_for_the_frame() -> None:
    limits = publication_limits(WELCOME)
    publishing = Publishing()
    publishing.connected(10, 1 << 20, WELCOME.frame_bytes)
    publishing.offer(one(size=limits.publication_bytes))
    [output] = publishing.take()
    assert len(output) - 4 <= WELCOME.frame_bytes
    assert (limits.attributes, limits.string_bytes) == (WELCOME.attributes, WELCOME.string_bytes)
