"""Clients move from a connection point that leaves: nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest

from cluster import Client, ConnectionLostError, Notification, connect, parse
from cluster.client.address import parse_url
from cluster.client.client import NAMED_KEPT
from cluster.client.delivery import Delivery, Inbox
from cluster.client.move import FormerSession, split
from cluster.codec import FrameReader, encode_frame
from cluster.config import Config, Layers, Transitions
from cluster.errors import CodecError
from cluster.frames import Bye, Consumed, Done, Moved, Notify, Ping, Pong
from cluster.testing import LocalCluster


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


FILTERS = ("a > 3", "a <= 3", "b > 5 or a == 4", "exists n")


class Reader:
    """Reads a group of subscriptions; keeps all it gets."""

    def __init__(self) -> None:
        self.got: list[Notification] = []

    async def read(self, group: Any) -> None:
        try:
            async for notification in group:
                self.got.append(notification)
        except ConnectionLostError:
            pass


async def publish(client: Client, made: list[dict[str, Any]], stop: asyncio.Event, seed: int) -> None:
    """Publish until told to stop, in bursts; a few at the least, however soon that is."""
    rng = random.Random(seed)
    while not stop.is_set() or len(made) < 20:
        burst = [
            {"n": len(made) + place, "a": rng.randrange(8), "b": rng.random() * 9}
            for place in range(rng.randrange(1, 9))
        ]
        made += burst
        await client.publish_many(burst)
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(3))
def test_everything_comes_once_and_in_order_while_connection_points_leave(seed: int) -> None:
    asyncio.run(connection_points_leave(seed))


async def connection_points_leave(seed: int) -> None:
    stop = asyncio.Event()
    made: dict[str, list[dict[str, Any]]] = {}
    async with LocalCluster(connection_points=3, matchers=2, exit_points=2) as cluster:
        publishers = [cluster.connect(f"publisher-{place}", connection_point=place) for place in range(3)]
        subscribers = [cluster.connect(f"subscriber-{place}", connection_point=place) for place in range(3)]
        readers = [Reader() for _ in subscribers]
        for client in (*publishers, *subscribers):
            await client
        groups = [await client.subscribe_many(FILTERS) for client in subscribers]
        reading = [asyncio.create_task(reader.read(group)) for reader, group in zip(readers, groups, strict=True)]
        publishing = [
            asyncio.create_task(publish(client, made.setdefault(client.client_id, []), stop, 10 * seed + place))
            for place, client in enumerate(publishers)
        ]
        operation = await cluster.admin.scale(connection_points=1)
        assert operation["state"] == "done"
        operation = await cluster.admin.scale(connection_points=2)
        operation = await cluster.admin.replace("connection_point", 0)
        assert operation["state"] == "done"
        stop.set()
        await asyncio.gather(*publishing)
        assert [client.unacknowledged for client in publishers] == [0, 0, 0]
        total = sum(map(len, made.values()))
        assert total > 50
        for _ in range(20_000):
            if all(len(reader.got) >= total for reader in readers):
                break
            await asyncio.sleep(0.001)
        assert all(client.reconnections == 2 for client in (*publishers[1:], *subscribers[1:])), "each has moved twice"
        for client in (*publishers, *subscribers):
            assert client.connected
            await client.close()
        await asyncio.gather(*reading)
    texts = [parse(text) for text in FILTERS]
    for reader, group in zip(readers, groups, strict=True):
        ids = group.ids
        got: dict[str, list[Any]] = {}
        for notification in reader.got:
            got.setdefault(notification.publisher, []).append(notification)
        for publisher, publications in made.items():
            expected = [one for one in publications if any(text.matches(one) for text in texts)]
            mine = got.get(publisher, [])
            assert [one.attributes for one in mine] == expected
            assert [one.sequence for one in mine] == sorted({one.sequence for one in mine})
            for one in mine:
                matching = tuple(id for id, text in zip(ids, texts, strict=True) if text.matches(one.attributes))
                assert one.subscription_ids == matching


def test_subscriptions_that_are_opened_and_closed_during_a_move_work() -> None:
    asyncio.run(opened_and_closed_during_a_move())


async def opened_and_closed_during_a_move() -> None:
    async with LocalCluster(connection_points=2) as cluster, cluster.connect("p", connection_point=0) as publisher:
        client = await cluster.connect("s", connection_point=1)
        first = await client.subscribe("a > 0")
        second = await client.subscribe("a > 1")
        scaling = asyncio.create_task(cluster.admin.scale(connection_points=1))
        opened = []
        for number in range(20):
            opened.append(await client.subscribe(f"n == {number}"))
            await publisher.publish({"n": number, "a": 1})
        await second.close()
        assert (await scaling)["state"] == "done"
        assert [(await anext(first)).attributes["n"] for _ in range(20)] == list(range(20))
        for number, subscription in enumerate(opened):
            assert (await anext(subscription)).attributes["n"] == number
        await first.update("a > 5")
        await publisher.publish({"a": 2})
        await publisher.publish({"a": 6})
        assert (await anext(first)).attributes == {"a": 6}
        assert client.reconnections == 1
        await client.close()


def test_a_client_that_does_not_reconnect_stays_until_it_is_sent_away() -> None:
    asyncio.run(sent_away())


async def sent_away() -> None:
    config = Config(layers=Layers(connection_points=2), transitions=Transitions(move_clients_ms=1))
    async with LocalCluster(config=config) as cluster:
        client = await cluster.connect("s", connection_point=1, reconnect=False)
        subscription = await client.subscribe("a > 0")
        assert (await cluster.admin.scale(connection_points=1))["state"] == "done"
        with pytest.raises(ConnectionLostError):
            await anext(subscription)


def notify(*entries: tuple[int, tuple[int, ...]], publisher: str = "p") -> Notify:
    """Return a frame: (sequence, numbers that match) each."""
    return Notify(
        [(publisher, 1, 7)],
        u32(*[0] * len(entries)),
        u64(*(sequence for sequence, _ in entries)),
        u32(*[1] * len(entries)),
        u32(*(len(numbers) for _, numbers in entries)),
        b"".join(u32(*numbers) for _, numbers in entries),
        b"\x80" * len(entries),
    )


def session() -> tuple[FormerSession, Delivery, Inbox, Inbox]:
    delivery = Delivery(16)
    inboxes = Inbox(), Inbox()
    for number, inbox in enumerate(inboxes):
        delivery.open(number, inbox)
    return FormerSession(FrameReader(1 << 20), delivery), delivery, *inboxes


def sequences(inbox: Inbox) -> list[int]:
    return [notification.sequence for notification in inbox.queue]


def test_what_both_bring_is_delivered_once_whoever_comes_first() -> None:
    former, delivery, first, _ = session()
    delivery.hold(2)
    former.hold(notify((1, (0,)), (2, (0,))))
    assert sequences(first) == []
    former.receive(encode_frame(notify((1, (0,)), (2, (0,)), (3, (0,)))))
    assert sequences(first) == [1, 2, 3]
    delivery.hold(2)
    former.hold(notify((3, (0,)), (4, (0,))))
    assert sequences(first) == [1, 2, 3]
    former.end()
    assert sequences(first) == [1, 2, 3, 4]
    assert (delivery.received, delivery.taken) == (4, 3), "three were passed over, one lies here"


def test_nothing_is_delivered_behind_a_later_one_of_its_publisher() -> None:
    former, delivery, first, second = session()
    delivery.hold(3)
    former.hold(notify((1, (0,)), (4, (0,))))
    former.hold(notify((1, (1,)), publisher="q"))
    former.receive(encode_frame(notify((3, (0,)))))
    former.end()
    assert (sequences(first), sequences(second)) == ([3, 4], [1])
    assert delivery.taken == 1


def test_the_former_connection_is_answered_and_ends_with_bye() -> None:
    former, _, first, _ = session()
    data = encode_frame(Ping()) + encode_frame(notify((1, (0,)))) + encode_frame(Done(3))
    for place in range(0, len(data), 5):
        former.receive(data[place : place + 5])
    assert sequences(first) == [1]
    assert former.take_output() == [encode_frame(Pong()), encode_frame(Consumed(1))]
    former.confirm()
    assert former.take_output() == [encode_frame(Moved())]
    former.receive(encode_frame(Bye("moved", "")))
    assert former.over
    former.confirm()
    assert former.take_output() == []


def test_a_new_connection_that_is_lost_takes_its_credit_along() -> None:
    former, delivery, first, _ = session()
    delivery.hold(2)
    former.hold(notify((1, (0,)), (2, (0,))))
    former.disconnected()
    delivery.connecting()
    former.receive(encode_frame(notify((1, (0,)))))
    former.end()
    assert sequences(first) == [1, 2]
    for notification in first.queue:
        delivery.took(notification)
    assert delivery.taken == 0


def test_frames_that_do_not_fit_are_refused() -> None:
    good = notify((1, (0,)))
    for wrong in (
        Notify(good.runs, good.run, good.sequence, good.lengths, good.matches, b"", good.payload),
        Notify([], good.run, good.sequence, good.lengths, good.matches, good.numbers, good.payload),
        Notify(good.runs, good.run, b"", good.lengths, good.matches, good.numbers, good.payload),
    ):
        with pytest.raises(CodecError):
            split(wrong)


def test_what_the_broker_has_named_is_a_way_back() -> None:
    async def story() -> None:
        async with LocalCluster(connection_points=3) as cluster:
            async with cluster.connect("lab", connection_point=0, durable=True):
                pass
            async with cluster.connect("lab", connection_point=2, durable=True) as client:
                assert client.url == "kittiwake://in-process:0"  # its session lives there
            async with cluster.connect("other", connection_point=2) as client:
                assert client.url == "the cluster", "as it was given"
                await cluster.admin.scale(connection_points=1)
                assert client.url == "kittiwake://in-process:0"

    asyncio.run(story())


def test_what_was_named_last_comes_first_and_older_names_are_few() -> None:
    client = connect("kittiwake://here:1,[::1]:2")
    for number in range(20):
        client._learn([f"there:{number}", "::1:2"])
    client._learn(["home:5"])
    assert client.url == (
        "kittiwake://home:5,here:1,[::1]:2,there:19,there:18,there:17,there:16,there:15,there:14,there:13"
    )
    assert len(client._connectors) == 1 + 2 + NAMED_KEPT
    client._learn(["there:15"])
    assert client.url.startswith("kittiwake://there:15,here:1,[::1]:2,home:5,there:19,")
    assert parse_url(client.url)[0] == ("there", 15)
