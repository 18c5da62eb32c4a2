"""The asyncio shell of the client against a scripted connection point in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from cluster import frames
from cluster.client import Client, Notification, connect
from cluster.client import client as client_module
from cluster.errors import (
    ConfigError,
    ConnectionLostError,
    FilterError,
    KittiwakeError,
    RefusedError,
    RejectedError,
)
from cluster.language import F, parse
from tests.unit.client_broker import Behaviour, Broker, encode, run


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Connecting --------------------------------------------------------------------------------------------------------


def test_connect_is_awaitable_and_a_context() -> None:
    async def main() -> None:
        broker = Broker()
        client = await connect("kittiwake://ignored", client_id="lab", connector=broker.connector)
        assert isinstance(client, Client)
        assert client.connected
        assert client.client_id == "lab"
        assert await client is client
        hello = broker.link.of(frames.Hello)[0]
        assert (hello.version, hello.client_id, hello.receive_window) == (frames.VERSION, "lab", 4096)
        await client.close()
        await client.close()
        assert client.closed
        assert broker.link.closed
        assert len(broker.link.of(frames.Goodbye)) == 1
        async with broker.client() as other:
            assert "lab" in repr(other)
            assert other.limits.attributes == 256
        assert len(broker.link.of(frames.Goodbye)) == 1
        with pytest.raises(ConnectionLostError, match="closed"):
            await other

    run(main)


def test_the_first_connection_is_tried_until_it_stands() -> None:
    async def main() -> None:
        broker = Broker()
        broker.refuse_attempts = 5
        async with broker.client() as client:
            assert client.connected
            assert client.reconnections == 0
        broker.refuse_attempts = 10**9
        with pytest.raises(ConnectionLostError, match=r"no connection to the cluster within 0.01 s: nobody") as caught:
            await broker.client(connect_timeout_s=0.01)
        assert caught.value.code == "unreachable"

    run(main)


def test_hosts_are_tried_in_turn() -> None:
    async def main() -> None:
        good = Broker()
        tried: list[str] = []

        def to(name: str, broker: Broker) -> Callable[..., Awaitable[asyncio.Transport]]:
            async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
                tried.append(name)
                return await broker.connector(factory)

            return connector

        bad = Broker()
        bad.refuse_attempts = 10**9
        connectors = [to("bad", bad), to("good", good), to("worse", bad)]
        async with Client(connectors, backoff_s=(0, 0)):
            assert tried == ["bad", "good"]
            good.link.cut()
            await good.until(lambda: len(good.links) == 2)
            assert tried == ["bad", "good", "worse", "bad", "good"]

    run(main)


@pytest.mark.parametrize("code", ["version", "client_id", "malformed"])
def test_a_login_that_is_refused_is_not_repeated(code: str) -> None:
    async def main() -> None:
        broker = Broker(Behaviour(welcome=False))
        client = broker.client()
        task = asyncio.ensure_future(client)
        await broker.until(lambda: broker.links)
        broker.link.send(frames.Bye(code, "because"))
        with pytest.raises(ConnectionLostError, match="because") as caught:
            await task
        assert caught.value.code == code
        assert len(broker.links) == 1
        assert broker.link.closed

    run(main)


def test_an_answer_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(client_module, "ATTEMPT_TIMEOUT_S", 0.002)
        broker = Broker(Behaviour(welcome=False))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(broker.client()._start())
            await broker.until(lambda: len(broker.links) == 3)
            broker.behaviour.welcome = True
            client = await task
        assert all(link.closed for link in broker.links[:-1])
        await client.close()

    run(main)


def test_a_transport_that_comes_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(client_module, "ATTEMPT_TIMEOUT_S", 0.002)
        broker = Broker()
        late: list[Callable[[], asyncio.Protocol]] = []

        async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            if not late:
                late.append(factory)
                await asyncio.Event().wait()
            return await broker.connector(factory)

        async with Client([connector], backoff_s=(0, 0)) as client:
            await broker.connector(late[0])
            assert [link.closed for link in broker.links] == [False, True]
            await client.publish({})
            assert broker.links[0].upto == 1

    run(main)


def test_closing_before_connecting() -> None:
    async def main() -> None:
        client = Broker().client()
        await client.close()
        with pytest.raises(ConnectionLostError, match="closed"):
            await client
        with pytest.raises(ConnectionLostError, match="closed"):
            await client.publish({})

    run(main)


def test_a_connector_that_breaks_the_rules_ends_the_client() -> None:
    class Rng(random.Random):
        def random(self) -> float:
            raise ZeroDivisionError("no jitter")

    async def main() -> None:
        async def connector(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            raise LookupError("no such way")

        with pytest.raises(ConnectionLostError, match="no such way"):
            await Client([connector], connect_timeout_s=0.01, backoff_s=(0, 0))
        with pytest.raises(ConnectionLostError, match="no jitter") as caught:
            await Client([connector], rng=Rng())
        assert caught.value.code == "internal"

    run(main)


def test_cancelling_a_connect_leaves_nothing() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(welcome=False))
        task = asyncio.ensure_future(broker.client())
        await broker.until(lambda: broker.links)
        await cancelled(task)
        await broker.settle()
        assert broker.link.closed
        assert len(asyncio.all_tasks()) == 1

    run(main)


@pytest.mark.parametrize(
    "options",
    [
        {"client_id": ""},
        {"client_id": "x" * 129},
        {"client_id": "a\n"},
        {"receive_window": 0},
        {"backoff_s": (2, 1)},
        {"url": "tcp://x"},
    ],
)
def test_bad_arguments_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        connect(**options)
    with pytest.raises(ConfigError):
        Client([])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"instance": -1}, r"instance is -1, it must be from 0 to 2\*\*64 - 1"),
        ({"instance": 1 << 64}, f"instance is {1 << 64}, "),
        ({"first_sequence": 0}, r"first_sequence is 0, it must be from 1 to 2\*\*62 - 1"),
        ({"first_sequence": 1 << 62}, f"first_sequence is {1 << 62}, "),
    ],
)
def test_a_life_that_goes_on_says_where(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Client([Broker().connector], **options)  # type: ignore[arg-type]
    for good in ({"instance": 0}, {"instance": (1 << 64) - 1}, {"first_sequence": (1 << 62) - 1}):
        Client([Broker().connector], **good)  # type: ignore[arg-type]


def test_without_a_name_it_has_one_of_its_own() -> None:
    assert connect().client_id != connect().client_id


# Publishing --------------------------------------------------------------------------------------------------------


def test_publish_returns_with_the_acknowledgement() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False))
        async with broker.client() as client:
            task = asyncio.create_task(client.publish({"wind": {"speed": 3}}))
            await broker.until(lambda: broker.link.upto == 1)
            await broker.settle()
            assert not task.done()
            assert client.unacknowledged == 1
            broker.link.acknowledge()
            await task
            assert broker.link.publications() == [(1, {"wind.speed": 3})]
            await client.publish({"a": 1}, ack="none")
            assert client.unacknowledged == 1
            await broker.until(lambda: broker.link.upto == 2)
            assert [frame.acknowledge for frame in broker.link.of(frames.Publish)] == [1, 0]
            with pytest.raises(ValueError, match="'none', 'matched', 'stored'"):
                await client.publish({}, ack="written")  # type: ignore[arg-type]
            with pytest.raises(RefusedError, match="no matched output"):
                await client.publish({}, ack="stored")

    run(main)


def test_concurrent_publications_share_a_frame() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            await asyncio.gather(*(client.publish({"n": n}) for n in range(500)))
            assert len(broker.link.of(frames.Publish)) == 1
            assert broker.link.publications() == [(n + 1, {"n": n}) for n in range(500)]

    run(main)


def test_a_refusal_disturbs_nothing_else() -> None:
    async def main() -> None:
        broker = Broker()
        broker.behaviour.rejects = {2: "attribute 'n' is not liked", 5: "nor this"}
        async with broker.client() as client:
            results = await asyncio.gather(*(client.publish({"n": n}) for n in range(3)), return_exceptions=True)
            assert results[0] == 1
            assert results[2] == 3
            assert isinstance(results[1], RejectedError)
            assert (results[1].reason, results[1].sequence) == ("attribute 'n' is not liked", 2)
            with pytest.raises(RejectedError, match="'n' is nan"):
                await client.publish({"n": float("nan")})
            await client.publish({"n": 3})
            await client.publish({"n": 4}, ack="none")
            await broker.until(lambda: broker.link.upto == 5)
            await broker.settle()
            assert client.rejected == 2
            assert [attributes["n"] for _, attributes in broker.link.publications()] == [0, 1, 2, 3, 4]

    run(main)


def test_the_brokers_limits_hold() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(attributes=2, string_bytes=5, frame_bytes=4096))
        async with broker.client() as client:
            for attributes, limit in (
                ({"a": 1, "b": 2, "c": 3}, "2"),
                ({"a": "longer"}, "5"),
                ({"a": 1, "b" * 256: "x" * 5}, None),
            ):
                if limit is None:
                    await client.publish(attributes)
                else:
                    with pytest.raises(RejectedError, match=f"limit is {limit}"):
                        await client.publish(attributes)

    run(main)


def test_publish_waits_for_the_window_in_order() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False, window=2))
        async with broker.client() as client:
            tasks = [asyncio.create_task(client.publish({"n": n}, ack="none")) for n in range(5)]
            await broker.until(lambda: broker.link.upto == 2)
            await broker.settle()
            assert [task.done() for task in tasks] == [True, True, False, False, False]
            broker.link.acknowledge()
            await broker.until(lambda: broker.link.upto == 4)
            await broker.settle()
            assert [task.done() for task in tasks] == [True] * 4 + [False]
            broker.link.acknowledge()
            await asyncio.gather(*tasks)
            await broker.until(lambda: broker.link.upto == 5)
            assert [attributes["n"] for _, attributes in broker.link.publications()] == [0, 1, 2, 3, 4]
            broker.link.acknowledge()

    run(main)


def test_a_cancelled_publish_is_sent_or_not_and_leaves_no_hole() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False, window=2))
        async with broker.client() as client:
            tasks = [asyncio.create_task(client.publish({"n": n})) for n in range(5)]
            await broker.until(lambda: broker.link.upto == 2)
            await cancelled(tasks[0])  # sent
            await cancelled(tasks[2])  # has no number
            broker.link.acknowledge()
            await broker.until(lambda: broker.link.upto == 4)
            broker.link.acknowledge()
            await asyncio.gather(tasks[1], tasks[3], tasks[4])
            assert broker.link.publications() == [(1, {"n": 0}), (2, {"n": 1}), (3, {"n": 3}), (4, {"n": 4})]
            early = asyncio.create_task(client.publish({"n": 5}))
            await asyncio.sleep(0)  # it has its number, and nothing is written yet
            await cancelled(early)
            late = asyncio.create_task(client.publish({"n": 6}))
            await broker.until(lambda: broker.link.upto == 6)
            broker.link.acknowledge()
            await late
            assert broker.link.publications()[4:] == [(5, {"n": 5}), (6, {"n": 6})]

    run(main)


@pytest.mark.parametrize("ack", ["none", "matched"])
@pytest.mark.parametrize("window", [1, 7, 8192])
def test_publish_many(ack: Any, window: int) -> None:
    async def main() -> None:
        broker = Broker(Behaviour(window=window))
        count = 3000 if window > 1 else 50

        async def source() -> AsyncIterator[dict[str, Any]]:
            for n in range(count):
                if n % 100 == 99:
                    await asyncio.sleep(0)
                yield {"n": n}

        async with broker.client() as client:
            assert await client.publish_many(({"n": n} for n in range(count)), ack=ack) == count
            assert await client.publish_many(source(), ack=ack) == count
            assert await client.publish_many([], ack=ack) == 0
        expected = [*range(count), *range(count)]
        assert [attributes["n"] for _, attributes in broker.link.publications()] == expected
        assert {frame.acknowledge for frame in broker.link.of(frames.Publish)} == {0 if ack == "none" else 1}
        if window == 8192:
            assert len(broker.link.of(frames.Publish)) <= 100

    run(main)


def test_an_asynchronous_source_that_waits_does_not_hold_back_what_it_gave() -> None:
    async def main() -> None:
        broker = Broker()
        more = asyncio.Event()

        async def source() -> AsyncIterator[dict[str, Any]]:
            yield {"n": 0}
            yield {"n": 1}
            await more.wait()
            yield {"n": 2}

        async with broker.client() as client:
            task = asyncio.create_task(client.publish_many(source()))
            await broker.until(lambda: broker.link.upto == 2)
            assert not task.done()
            more.set()
            assert await task == 3

    run(main)


def test_publish_many_stops_where_it_must_and_publishes_what_came_before() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            with pytest.raises(RejectedError, match="'n' is inf"):
                await client.publish_many([{"n": 0}, {"n": 1}, {"n": float("inf")}, {"n": 3}])
            assert broker.link.upto == 2

            def source() -> Any:
                yield {"n": 0}
                raise LookupError("the source broke")

            with pytest.raises(LookupError):
                await client.publish_many(source())
            assert broker.link.upto == 3
            broker.behaviour.rejects = {5: "five", 6: "six"}
            with pytest.raises(RejectedError, match="2 of 4 publications, the first: five") as caught:
                await client.publish_many([{"n": n} for n in range(4)])
            assert caught.value.sequence == 5
            assert broker.link.upto == 7

    run(main)


def test_a_cancelled_publish_many_leaves_no_hole() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False, window=10))
        async with broker.client() as client:
            task = asyncio.create_task(client.publish_many({"n": n} for n in range(1000)))
            await broker.until(lambda: broker.link.upto == 10)
            await broker.settle()
            await cancelled(task)
            broker.behaviour.acknowledge = True
            broker.link.acknowledge()
            await client.publish({"last": True})
            numbers = [sequence for sequence, _ in broker.link.publications()]
            assert numbers == list(range(1, len(numbers) + 1))
            assert broker.link.publications()[-1][1] == {"last": True}
            assert len(numbers) == 11, "what had no number was sent all the same"

    run(main)


# Subscribing -------------------------------------------------------------------------------------------------------


def test_a_stream() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            subscription = await client.subscribe("no2 > 40")
            assert (subscription.id, subscription.filter, subscription.policy) == (0, "no2 > 40", "block")
            broker.link.notify(({"no2": 45.0}, [0]), ({"no2": 46.0}, [0]), publisher="station", first=7)
            found = []
            async for notification in subscription:
                found.append((notification.publisher, notification.sequence, notification.attributes["no2"]))
                if len(found) == 2:
                    break
            assert found == [("station", 7, 45.0), ("station", 8, 46.0)]
            await subscription.update("no2 > 60")
            assert subscription.filter == "no2 > 60"
            assert broker.link.of(frames.Subscribe)[1] == frames.Subscribe(2, 0, "no2 > 60", "block")
            await subscription.close()
            await subscription.close()
            assert len(broker.link.of(frames.Unsubscribe)) == 1
            assert [notification async for notification in subscription] == []
            assert await subscription.take() == []
            with pytest.raises(RefusedError, match="closed"):
                await subscription.update("a")

    run(main)


def test_filters_in_every_spelling() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            expression = (F.no2 > 40) & F.lat.between(40.38, 40.45)
            text = "no2 > 40 and lat between 40.38 and 40.45"
            for filter in (text, expression, parse(text), parse(text).to_json()):
                subscription = await client.subscribe(filter, policy="drop_oldest")
                assert parse(subscription.filter) == parse(text)
            with pytest.raises(FilterError):
                await client.subscribe({"no such": "form"})
            assert len(broker.link.of(frames.Subscribe)) == 4
            assert {frame.policy for frame in broker.link.of(frames.Subscribe)} == {"drop_oldest"}

    run(main)


def test_reading_what_is_queued_does_not_suspend() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            subscription = await client.subscribe("a")
            broker.link.notify(*[({"n": n}, [0]) for n in range(10)])
            await broker.settle()
            for n in range(10):
                step = subscription.__anext__()
                with pytest.raises(StopIteration) as stopped:
                    step.send(None)
                assert stopped.value.value.attributes == {"n": n}

    run(main)


def test_several_streams_share_one_notification_and_its_credit() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client(receive_window=4) as client:
            first = await client.subscribe("a")
            second = await client.subscribe("b")
            third = await client.subscribe("c")
            broker.link.notify(({"n": 1}, [1, 0]), ({"n": 2}, [2]))
            a, b = await anext(first), await anext(second)
            assert a is b
            assert a.subscription_ids == (0, 1)
            await broker.until(lambda: broker.link.of(frames.Consumed))
            assert broker.link.of(frames.Consumed) == [frames.Consumed(1)]
            await third.close()
            await broker.until(lambda: len(broker.link.of(frames.Consumed)) == 2)
            assert broker.link.of(frames.Consumed)[-1] == frames.Consumed(2)

    run(main)


def test_a_group_is_one_stream() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            other = await client.subscribe("other")
            group = await client.subscribe_many(["a", "b", "c"])
            assert group.ids == (1, 2, 3)
            assert group.filters == ("a", "b", "c")
            broker.link.notify(({"n": 1}, [1, 3]), ({"n": 2}, [0]), ({"n": 3}, [2, 0]))
            assert [n.subscription_ids for n in await group.take(1)] == [(1, 3)]
            assert [n.subscription_ids for n in await group.take()] == [(0, 2)]
            assert len(await other.take()) == 2
            with pytest.raises(ValueError, match="limit is 0"):
                await other.take(0)
            assert "3 subscriptions" in repr(group)
            async with group:
                pass
            assert [frame.number for frame in broker.link.of(frames.Unsubscribe)] == [1, 2, 3]
            assert (await client.subscribe_many([])).ids == ()

    run(main)


def test_a_group_is_opened_whole_or_not_at_all() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(refuses={"bad", "worse"}))
        async with broker.client() as client:
            with pytest.raises(FilterError, match="filter 1 of the group: no bad") as caught:
                await client.subscribe_many(["a", "bad", "c", "worse"])
            assert caught.value.position == 3
            await broker.settle()
            assert [frame.number for frame in broker.link.of(frames.Unsubscribe)] == [0, 2]
            with pytest.raises(FilterError, match=r"^no bad at position 3$"):
                await client.subscribe("bad")
            subscription = await client.subscribe("good")
            with pytest.raises(FilterError):
                await subscription.update("bad")
            assert subscription.filter == "good"

    run(main)


def test_the_client_wide_stream() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            subscription = await client.subscribe("a")
            stream = client.notifications()
            with pytest.raises(RuntimeError):
                client.notifications()
            broker.link.notify(({"n": 1}, [0]), ({"n": 2}, [0]))
            assert (await anext(stream)).attributes == {"n": 1}
            broker.link.cut()
            await broker.until(lambda: len(broker.links) == 2)
            assert (await anext(stream)).attributes == {"n": 2}
            assert client._protocol.delivery.taken == 0
            assert not stream.closed
            await stream.close()
            assert stream.closed
            broker.link.notify(({"n": 2}, [0]))
            assert (await anext(subscription)).attributes == {"n": 2}
            assert [n async for n in stream] == []

    run(main)


def test_what_comes_again_on_the_next_connection_is_left_out_and_reported_as_consumed() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client(receive_window=8) as client:
            subscription = await client.subscribe("a")
            broker.link.notify(*[({}, [0])] * 5)
            assert [n.sequence for n in await subscription.take()] == [1, 2, 3, 4, 5]
            broker.link.cut()
            await broker.until(lambda: len(broker.links) == 2)
            await broker.until(lambda: broker.link.of(frames.Subscribe))
            broker.link.notify(*[({}, [0])] * 7, first=1)
            await broker.settle()
            assert [n.sequence for n in await subscription.take()] == [6, 7]
            # What is left out is credit that nobody else would give back.
            await broker.until(lambda: frames.Consumed(7) in broker.link.of(frames.Consumed))
            broker.link.notify(*[({}, [0])] * 7, first=1)
            await broker.until(lambda: frames.Consumed(14) in broker.link.of(frames.Consumed))

    run(main)


def test_drops_are_told() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            subscription = await client.subscribe("a", policy="drop_oldest")
            group = await client.subscribe_many(["b", "c"], policy="drop_oldest")
            broker.link.send(frames.Dropped("drop_oldest", 6, [(0, 5), (1, 2), (2, 1)]))
            await broker.settle()
            assert subscription.dropped == {"drop_oldest": 5}
            assert group.dropped == {"drop_oldest": 3}
            assert client.dropped == {"drop_oldest": 6}
            broker.link.send(frames.Dropped("latest_per_key", 2, [(2, 2)]))
            broker.link.send(frames.Dropped("drop_oldest", 1, [(0, 1)]))
            await broker.settle()
            assert subscription.dropped == {"drop_oldest": 6}
            assert group.dropped == {"drop_oldest": 3, "latest_per_key": 2}
            assert client.dropped == {"drop_oldest": 7, "latest_per_key": 2}

    run(main)


def test_consumption_is_reported_in_steps_and_soon_after_the_last() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client(receive_window=8) as client:
            subscription = await client.subscribe("a")
            broker.link.notify(*[({"n": n}, [0]) for n in range(8)])
            for _ in range(5):
                await anext(subscription)
                await broker.settle()
            assert [frame.count for frame in broker.link.of(frames.Consumed)] == [2, 4]
            # Three lie here unread and one read is not told: it is, without another read.
            await broker.until(lambda: len(broker.link.of(frames.Consumed)) == 3)
            assert broker.link.of(frames.Consumed)[-1].count == 5
            await anext(subscription)
            await broker.until(lambda: broker.link.of(frames.Consumed)[-1].count == 6)

    run(main)


def test_two_readers_share_a_stream() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            subscription = await client.subscribe("a")
            found: list[int] = []

            async def read() -> None:
                async for notification in subscription:
                    found.append(notification.sequence)
                    await asyncio.sleep(0)

            tasks = [asyncio.create_task(read()) for _ in range(3)]
            await broker.settle()
            await cancelled(tasks.pop())
            broker.link.notify(*[({}, [0])] * 20)
            await broker.until(lambda: True)
            await broker.settle()
            await broker.settle()
            await subscription.close()
            await asyncio.gather(*tasks)
            assert sorted(found) == list(range(1, 21))

    run(main)


def test_a_cancelled_read_loses_nothing() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            subscription = await client.subscribe("a")
            waiting = asyncio.ensure_future(subscription.__anext__())
            await broker.settle()
            await cancelled(waiting)
            assert subscription._waiters == []
            for sequence in range(1, 30):
                task = asyncio.ensure_future(subscription.__anext__())
                for _ in range(sequence % 4):
                    await asyncio.sleep(0)
                broker.link.notify(({}, [0]), first=sequence)
                for _ in range(sequence % 3):
                    await asyncio.sleep(0)
                if task.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert (await anext(subscription)).sequence == sequence
                else:
                    assert task.result().sequence == sequence
                assert subscription._waiters == []

    run(main)


@pytest.mark.parametrize("turns", range(6))
def test_a_cancelled_subscribe_is_closed_again(turns: int) -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            task = asyncio.create_task(client.subscribe("a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not task.cancel():
                await (await task).close()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await broker.settle()
            opened = len(broker.link.of(frames.Subscribe))
            assert [frame.number for frame in broker.link.of(frames.Unsubscribe)] == [0] * opened
            assert client._protocol.requests.open_count == 0
            assert client._streams == {}
            assert (await client.subscribe("b")).id in (0, 1)

    run(main)


def test_cancelled_updates_and_closes_happen() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(answer=False))
        async with broker.client() as client:
            opening = asyncio.create_task(client.subscribe("a"))
            await broker.until(lambda: broker.link.of(frames.Subscribe))
            broker.link.answer(broker.link.of(frames.Subscribe)[0])
            subscription = await opening
            update = asyncio.create_task(subscription.update("b"))
            await broker.until(lambda: len(broker.link.of(frames.Subscribe)) == 2)
            await cancelled(update)
            assert subscription.filter == "a"
            broker.link.answer(broker.link.of(frames.Subscribe)[1])
            await broker.settle()
            assert subscription.filter == "b"
            close = asyncio.create_task(subscription.close())
            await broker.until(lambda: broker.link.of(frames.Unsubscribe))
            await cancelled(close)
            again = asyncio.create_task(subscription.close())
            await broker.settle()
            assert not again.done()
            broker.link.answer(broker.link.of(frames.Unsubscribe)[0])
            await again

    run(main)


# The connection ends -----------------------------------------------------------------------------------------------


def test_a_lost_connection_is_renewed_restored_and_resent() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False))
        async with broker.client() as client:
            kept = await client.subscribe("kept")
            group = await client.subscribe_many(["g1", "g2"], policy="drop_oldest")
            closed = await client.subscribe("closed")
            await closed.close()
            await kept.update("kept, updated")
            pending = [asyncio.create_task(client.publish({"n": n})) for n in range(3)]
            await broker.until(lambda: broker.link.upto == 3)
            broker.link.acknowledge(1)
            await pending[0]
            first = broker.link
            broker.behaviour.answer = False
            late = asyncio.create_task(client.subscribe("late"))
            await broker.until(lambda: first.of(frames.Subscribe)[-1].filter == "late")
            first.cut()
            more = asyncio.create_task(client.publish({"n": 3}))
            await broker.until(lambda: len(broker.links) == 2 and len(broker.link.of(frames.Subscribe)) == 4)
            hellos = [link.of(frames.Hello)[0] for link in broker.links]
            assert hellos[0] == hellos[1]
            asked = broker.link.of(frames.Subscribe)
            assert [(frame.number, frame.filter, frame.policy) for frame in asked] == [
                (kept.id, "kept, updated", "block"),
                (group.ids[0], "g1", "drop_oldest"),
                (group.ids[1], "g2", "drop_oldest"),
                (4, "late", "block"),
            ]
            assert broker.link.of(frames.Publish) == [], "published before the subscriptions were restored"
            for frame in asked:
                broker.link.answer(frame)
            assert (await late).id == 4
            await broker.until(lambda: broker.link.upto == 4)
            assert broker.link.publications() == [(2, {"n": 1}), (3, {"n": 2}), (4, {"n": 3})]
            broker.link.acknowledge()
            await asyncio.gather(*pending, more)
            assert client.reconnections == 1
            broker.link.notify(({"n": 9}, [kept.id]))
            assert (await anext(kept)).attributes == {"n": 9}
            broker.behaviour.answer = True

    run(main)


def test_what_was_queued_before_the_connection_was_lost_is_read_and_not_reported() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client(receive_window=4) as client:
            subscription = await client.subscribe("a")
            broker.link.notify(*[({}, [0])] * 3)
            await broker.settle()
            broker.link.cut()
            await broker.until(lambda: len(broker.links) == 2)
            await broker.settle()
            broker.link.notify(({}, [0]), first=4)
            await broker.settle()
            assert [n.sequence for n in await subscription.take()] == [1, 2, 3, 4]
            await broker.until(lambda: broker.link.of(frames.Consumed))
            assert broker.link.of(frames.Consumed) == [frames.Consumed(1)]

    run(main)


@pytest.mark.parametrize("seed", range(8))
def test_publishing_through_cuts_loses_and_doubles_nothing(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        broker = Broker(Behaviour(window=3), rng=rng)
        count = 2000

        async def cutter() -> None:
            while True:
                for _ in range(rng.randrange(1, 60)):
                    await asyncio.sleep(0)
                if broker.link.upto:
                    broker.link.cut()
                    broker.refuse_attempts = rng.randrange(3)
                    broker.behaviour.window = rng.choice([3, 50, 200])
                if len(broker.links) > 30:
                    return

        async with broker.client() as client:
            task = asyncio.create_task(cutter())
            half = client.publish_many({"n": n} for n in range(count))
            singles = [client.publish({"single": n}, ack=rng.choice(["none", "matched"])) for n in range(200)]
            published, *_ = await asyncio.gather(half, *singles)
            assert published == count
            if not task.done():
                await cancelled(task)
        found = [msgspec.msgpack.decode(broker.accepted[sequence]) for sequence in sorted(broker.accepted)]
        assert sorted(broker.accepted) == list(range(1, count + 201))
        assert [attributes["n"] for attributes in found if "n" in attributes] == list(range(count))
        assert [attributes["single"] for attributes in found if "single" in attributes] == list(range(200))
        assert len(broker.links) > 1

    run(main)


def test_being_taken_over_ends_the_client() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False, answer=False, window=1))
        client = await broker.client()
        opening = asyncio.create_task(client.subscribe("a"))
        await broker.until(lambda: broker.link.of(frames.Subscribe))
        broker.link.answer(broker.link.of(frames.Subscribe)[0])
        subscription = await opening
        wide = client.notifications()
        waiters = [
            asyncio.create_task(client.publish({"n": 1})),
            asyncio.create_task(client.publish({"n": 2})),
            asyncio.create_task(client.publish_many({"n": n} for n in range(10))),
            asyncio.create_task(client.subscribe("b")),
            asyncio.create_task(client.subscribe_many(["b", "c"])),
            asyncio.create_task(subscription.update("c")),
            asyncio.ensure_future(wide.__anext__()),
            asyncio.ensure_future(subscription.__anext__()),
        ]
        await broker.settle()
        await wide.close()
        broker.link.notify(({"n": 3}, [0]), ({"n": 4}, [0]))
        await broker.settle()
        broker.link.send(frames.Bye("taken_over", "it has connected again"))
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert isinstance(results[6], StopAsyncIteration)
        assert isinstance(results[7], Notification)
        for result in results[:6]:
            assert isinstance(result, ConnectionLostError)
            assert result.code == "taken_over"
        assert len({id(result) for result in results}) == len(results)
        # What came before the end is read, then the end is told, each time.
        assert (await anext(subscription)).attributes == {"n": 4}
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="connected again"):
                await anext(subscription)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.publish({}),
            lambda: client.publish_many([{}]),
            lambda: client.subscribe("a"),
            lambda: subscription.update("a"),
            lambda: subscription.take(),
        ]
        for call in calls:
            with pytest.raises(ConnectionLostError) as caught:
                await call()
            assert caught.value.code == "taken_over"
        with pytest.raises(ConnectionLostError):
            client.notifications()
        await subscription.close()
        await broker.settle()
        assert len(broker.links) == 1
        assert client.closed
        await client.close()
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_a_broker_that_shuts_down_is_waited_for() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            broker.refuse_attempts = 3
            broker.link.send(frames.Bye("shutdown", "a moment"))
            await client.publish({"n": 1})
            assert len(broker.links) == 2
            assert broker.refuse_attempts == 0

    run(main)


def test_without_reconnect_a_lost_connection_is_the_end() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False))
        async with broker.client(reconnect=False) as client:
            task = asyncio.create_task(client.publish({"n": 1}))
            await broker.until(lambda: broker.link.upto == 1)
            broker.link.cut()
            with pytest.raises(ConnectionLostError, match="cut"):
                await task
            assert len(broker.links) == 1

    run(main)


def test_a_silent_broker_is_given_up() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(heartbeat_ms=2))
        async with broker.client() as client:
            await broker.until(lambda: len(broker.links) > 1)
            assert broker.links[0].closed
            assert "nothing was heard" in client._last_trouble

    run(main)


def test_pings_are_answered() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client():
            broker.link.send(frames.Ping(), frames.Ping())
            await broker.until(lambda: len(broker.link.of(frames.Pong)) == 2)

    run(main)


def test_a_broker_that_sends_nonsense_is_left_and_tried_again() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            broker.link.send_bytes(b"\x02\0\0\0\xc1\xc1")
            await broker.until(lambda: len(broker.links) == 2)
            assert "not valid" in client._last_trouble
            await client.publish({"n": 1})

    run(main)


def test_a_subscription_that_is_not_restored_ends_after_what_it_has() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker.client() as client:
            single = await client.subscribe("single")
            group = await client.subscribe_many(["g1", "g2"])
            good = await client.subscribe("good")
            broker.link.notify(({"n": 1}, [0, 1]))
            await broker.settle()
            broker.behaviour.refuses = {"single", "g2"}
            broker.link.cut()
            await broker.until(lambda: len(broker.links) == 2)
            await broker.settle()
            for stream in (single, group):
                assert (await anext(stream)).attributes == {"n": 1}
                for _ in range(2):
                    with pytest.raises(FilterError):
                        await anext(stream)
            assert sorted(frame.number for frame in broker.link.of(frames.Unsubscribe)) == [0, 1, 2]
            await single.close()
            await group.close()
            broker.link.notify(({"n": 2}, [3]))
            assert (await anext(good)).attributes == {"n": 2}
            assert client._protocol.requests.open_count == 1

    run(main)


def test_delays_between_attempts_double_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        broker = Broker()
        delays: list[float] = []
        real = asyncio.sleep

        async def sleep(delay: float) -> None:
            delays.append(delay)
            await real(0)

        monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
        broker.refuse_attempts = 8
        async with broker.client(backoff_s=(0.1, 1.0), rng=random.Random(5)):
            pass
        same = random.Random(5)
        assert delays == [min(1.0, 0.1 * 2**n) * (0.5 + same.random() / 2) for n in range(8)]
        # A connection that was short-lived does not count as success; one that lived long does.
        for steady_s, expected in ((1e9, [0.1, 0.2, 0.4]), (0.0, [0.1, 0.1, 0.1])):
            monkeypatch.setattr(client_module, "STEADY_S", steady_s)
            delays.clear()
            async with broker.client(backoff_s=(0.1, 1.0)) as client:
                for count in range(1, 4):
                    broker.link.cut()
                    await broker.until(lambda count=count: client.reconnections == count)
            assert all(e / 2 <= delay <= e for e, delay in zip(expected, delays, strict=True))

    run(main)


# Leaving -----------------------------------------------------------------------------------------------------------


def test_closing_waits_for_what_was_asked_for() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False, window=3))
        client = await broker.client()
        subscription = await client.subscribe("a")
        tasks = [asyncio.create_task(client.publish({"n": n})) for n in range(5)]
        await broker.until(lambda: broker.link.upto == 3)
        close = asyncio.create_task(client.close())
        await broker.settle()
        assert not close.done()
        with pytest.raises(ConnectionLostError, match="closing"):
            await client.publish({})
        broker.link.acknowledge()
        await broker.until(lambda: broker.link.upto == 5)
        broker.link.notify(({"n": 1}, [0]))
        broker.link.acknowledge()
        await close
        await asyncio.gather(*tasks)
        assert [n.attributes async for n in subscription] == [{"n": 1}]
        assert isinstance(broker.link.frames[-1], frames.Goodbye)
        assert broker.link.publications()[-1] == (5, {"n": 4})

    run(main)


def test_closing_does_not_wait_for_ever() -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False))
        client = await broker.client()
        task = asyncio.create_task(client.publish({"n": 1}))
        await broker.settle()
        await client.close(timeout_s=0.001)
        with pytest.raises(ConnectionLostError, match="closed") as caught:
            await task
        assert caught.value.code == "closed"
        assert len(broker.link.of(frames.Goodbye)) == 1

    run(main)


def test_closing_does_not_wait_for_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(client_module, "FLUSH_TIMEOUT_S", 0.001)
        broker = Broker()
        client = await broker.client()
        broker.stuck = True
        broker.link._received = lambda frame: None  # type: ignore[method-assign]
        await client.close(timeout_s=0)
        await broker.settle()
        assert broker.link.closed

    run(main)


def test_closing_sends_what_nobody_waits_for() -> None:
    async def main() -> None:
        broker = Broker()
        client = await broker.client()
        await client.publish({"n": 1}, ack="none")
        assert broker.link.upto == 0
        await client.close()
        assert [type(frame).__name__ for frame in broker.link.frames] == ["Hello", "Publish", "Goodbye"]

    run(main)


@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_close_closes(turns: int) -> None:
    async def main() -> None:
        broker = Broker(Behaviour(acknowledge=False))
        client = await broker.client()
        task = asyncio.create_task(client.publish({"n": 1}))
        await broker.settle()
        close = asyncio.create_task(client.close())
        other = asyncio.create_task(client.close())
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        await cancelled(close)
        with pytest.raises(ConnectionLostError):
            await task
        await other
        assert client.closed
        assert broker.link.closed
        await broker.settle()
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_closing_while_there_is_no_connection() -> None:
    async def main() -> None:
        broker = Broker()
        client = await broker.client()
        broker.refuse_attempts = 10**9
        broker.link.cut()
        await broker.settle()
        await client.close()
        assert client.closed
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_a_mistake_of_ours_ends_the_client_and_is_told() -> None:
    async def main() -> None:
        broker = Broker()
        client = await broker.client()
        troubles: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))

        def broken(data: bytes) -> Any:
            raise AssertionError("an invariant is broken")

        client._protocol.receive = broken  # type: ignore[method-assign]
        task = asyncio.create_task(client.publish({"n": 1}))
        with pytest.raises(ConnectionLostError, match="an invariant is broken") as caught:
            await task
        assert caught.value.code == "internal"
        assert isinstance(caught.value.__cause__, AssertionError)
        await client.close()
        assert len(troubles) == 1

    run(main)


@pytest.mark.parametrize("seed", range(10))
def test_everything_at_once_in_pieces(seed: int) -> None:
    """Random calls, cancelled at random, over a stream in random pieces: the client stays consistent."""

    async def main() -> None:
        rng = random.Random(seed)
        broker = Broker(Behaviour(window=20, refuses={"bad"}), rng=rng)
        client = await broker.client(receive_window=16)
        streams: list[Any] = []
        tasks: list[asyncio.Task[Any]] = []

        async def subscribe() -> None:
            streams.append(await client.subscribe(rng.choice(["a", "b", "bad"])))

        async def subscribe_many() -> None:
            streams.append(await client.subscribe_many(["a", rng.choice(["b", "bad"])]))

        async def close() -> None:
            if streams:
                await streams.pop(rng.randrange(len(streams))).close()

        async def read() -> None:
            if streams:
                await rng.choice(streams).take(rng.randrange(1, 5))

        async def publish() -> None:
            await client.publish({"n": rng.random()}, ack=rng.choice(["none", "matched"]))

        async def publish_many() -> None:
            await client.publish_many({"n": n} for n in range(rng.randrange(40)))

        for _ in range(400):
            call = rng.choice([subscribe, subscribe_many, close, read, read, publish, publish, publish_many])
            tasks.append(asyncio.create_task(call()))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.05:
                broker.link.cut()
            numbers = sorted(client._protocol.requests._entries)
            if numbers and not broker.link.closed and rng.random() < 0.5:
                link = broker.link
                outstanding = link.sent_notifications - max([f.count for f in link.of(frames.Consumed)], default=0)
                if outstanding < 16 and client.connected:
                    link.notify(({"x": 1}, rng.sample(numbers, rng.randint(1, len(numbers)))))
            client._publishing.check()
            client._protocol.requests.check()
        for task in tasks:
            if task.get_coro().__name__ == "read":  # type: ignore[union-attr]
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results if isinstance(result, BaseException)} <= {
            asyncio.CancelledError,
            FilterError,
        }
        for stream in streams:
            await stream.close()
        await broker.settle()
        assert client._streams == {}
        assert client._protocol.requests.open_count == 0
        assert sorted(broker.accepted) == list(range(1, len(broker.accepted) + 1))
        await client.publish({"n": 1})
        await client.close()

    run(main)


def test_errors_are_of_the_family() -> None:
    for error in (RejectedError, RefusedError, ConnectionLostError, FilterError, ConfigError):
        assert issubclass(error, KittiwakeError)
    assert encode({}) == b"\x80"
