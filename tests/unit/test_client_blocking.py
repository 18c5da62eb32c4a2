"""The blocking twin, and the default connector, against a connection point behind a TCP socket."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import connect, connect_sync, frames
from cluster.errors import ConfigError, ConnectionLostError, FilterError, RejectedError
from tests.unit.client_broker import Behaviour, Broker


class Server:
    """A broker in a thread of its own."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.broker = Broker(behaviour)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server, self.port = self.run(self.broker.listen())
        self.url = f"kittiwake://127.0.0.1:{self.port}"

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def called() -> Any:
            return function(*arguments, **options)

        return self.run(called())

    def until(self, condition: Callable[[], Any]) -> None:
        self.run(self.broker.until(condition))

    def stop(self) -> None:
        async def stopped() -> None:
            self.server.close()
            for link in self.broker.links:
                link.cut()
            await self.broker.settle()

        self.run(stopped())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextlib.contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[Server]:
    server = Server(behaviour)
    try:
        yield server
    finally:
        server.stop()


def test_the_whole_life_of_a_client() -> None:
    with serving() as server, connect_sync(server.url, client_id="lab") as client:
        broker = server.broker
        assert (client.client_id, client.connected, client.closed) == ("lab", True, False)
        client.publish({"no2": 45.0})
        client.publish({"no2": 46.0}, ack="none")
        assert client.publish_many({"no2": float(n)} for n in range(5000)) == 5000
        assert (client.unacknowledged, client.rejected, client.reconnections) == (0, 0, 0)
        assert client.limits.attributes == 256
        found = [attributes["no2"] for _, attributes in broker.link.publications()]
        assert found == [45.0, 46.0, *range(5000)]
        subscription = client.subscribe("no2 > 40", policy="drop_oldest")
        assert (subscription.id, subscription.filter, subscription.policy) == (0, "no2 > 40", "drop_oldest")
        group = client.subscribe_many(["a", "b"])
        assert (group.ids, group.filters, group.policy) == ((1, 2), ("a", "b"), "block")
        subscription.update("no2 > 60")
        assert subscription.filter == "no2 > 60"
        server.call(broker.link.notify, ({"no2": 61.0}, [0, 2]), ({"no2": 62.0}, [0]))
        assert next(subscription).attributes == {"no2": 61.0}
        last = subscription.get(timeout_s=10)
        assert last is not None
        assert last.attributes == {"no2": 62.0}
        assert next(group).subscription_ids == (0, 2)
        with pytest.raises(TimeoutError):
            group.get(timeout_s=0.001)
        server.call(broker.link.send, frames.Dropped("drop_oldest", 1, [(0, 1)]))
        server.call(broker.link.notify, ({}, [1]))
        next(group)
        assert subscription.dropped == client.dropped == {"drop_oldest": 1}
        assert client.disconnections == {}
        stream = client.notifications()
        server.call(broker.link.notify, ({"wide": 1}, [0]))
        assert next(stream).attributes == {"wide": 1}
        with stream:
            pass
        assert list(stream) == []
        group.close()
        assert list(group) == []
        assert "lab" in repr(client)
        assert "no2 > 60" in repr(subscription)
    assert client.closed
    client.close()
    assert list(subscription) == []
    subscription.close()
    assert isinstance(broker.link.frames[-1], frames.Goodbye)
    for call in (lambda: client.publish({}), lambda: client.publish_many([{}]), lambda: client.subscribe("a")):
        with pytest.raises(ConnectionLostError):
            call()
    assert [thread for thread in threading.enumerate() if thread.name == "kittiwake client"] == []


def test_errors_arrive_in_the_calling_thread() -> None:
    with serving(Behaviour(rejects={2: "two"}, refuses={"bad"})) as server, connect_sync(server.url) as client:
        with pytest.raises(RejectedError, match="'a' is a list"):
            client.publish({"a": []})
        client.publish({})
        with pytest.raises(RejectedError, match="two"):
            client.publish({})
        with pytest.raises(RejectedError, match="'a' is nan"):
            client.publish_many([{"a": 1}, {"a": float("nan")}])
        server.until(lambda: server.broker.link.upto == 3)
        with pytest.raises(FilterError, match="no bad"):
            client.subscribe("bad")
        with pytest.raises(ConfigError):
            connect_sync("http://x")
    with pytest.raises(ConnectionLostError, match="no connection to kittiwake"):
        connect_sync(server.url, connect_timeout_s=0.05)


def test_a_source_that_blocks_does_not_hold_back_what_it_gave() -> None:
    with serving() as server, connect_sync(server.url) as client:

        def source() -> Iterator[dict[str, int]]:
            for n in range(5):
                yield {"n": n}
                server.until(lambda: server.broker.link.upto == n + 1)  # noqa: B023

        assert client.publish_many(source()) == 5


def test_an_interrupt_in_the_source_ends_the_call_and_leaves_no_hole() -> None:
    with serving(Behaviour(window=5)) as server, connect_sync(server.url) as client:

        def source() -> Iterator[dict[str, int]]:
            for n in range(1000):
                yield {"n": n}
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            client.publish_many(source())
        client.publish({"last": 1})
        sequence, attributes = server.broker.link.publications()[-1]
        assert attributes == {"last": 1}
        assert sorted(server.broker.accepted) == list(range(1, sequence + 1))


def test_a_source_that_breaks_has_published_what_it_gave() -> None:
    with serving() as server, connect_sync(server.url) as client:

        def source() -> Iterator[dict[str, int]]:
            for n in range(1000):
                yield {"n": n}
            raise LookupError("broken")

        with pytest.raises(LookupError):
            client.publish_many(source())
        assert server.broker.link.upto == 1000


def test_a_small_window_slows_the_caller_down() -> None:
    with serving(Behaviour(window=3)) as server, connect_sync(server.url) as client:
        assert client.publish_many([{"n": n} for n in range(9000)], ack="none") == 9000
        client.publish({})
        assert server.broker.link.upto == 9001


def test_a_client_that_ends_ends_the_blocked_call() -> None:
    with serving(Behaviour(acknowledge=False, window=1)) as server, connect_sync(server.url) as client:
        subscription = client.subscribe("a")
        much = threading.Event()

        def source() -> Iterator[dict[str, int]]:
            for n in range(100_000):
                if n == 4000:
                    much.set()
                yield {"n": n}

        with concurrent.futures.ThreadPoolExecutor() as pool:
            reading = pool.submit(next, subscription)
            publishing = pool.submit(client.publish_many, source())
            assert much.wait(10)
            server.until(lambda: server.broker.link.upto == 1)
            server.call(server.broker.link.send, frames.Bye("taken_over", "by another"))
            for future in (reading, publishing):
                with pytest.raises(ConnectionLostError, match="by another") as caught:
                    future.result(10)
                assert caught.value.code == "taken_over"


def test_closing_ends_a_reader_in_another_thread() -> None:
    with serving() as server:
        client = connect_sync(server.url)
        subscription = client.subscribe("a")
        unread = client.subscribe("b")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            reading = pool.submit(list, subscription)
            server.call(server.broker.link.notify, ({"n": 1}, [0]), ({"n": 2}, [1]))
            server.until(lambda: server.broker.link.of(frames.Consumed))
            client.close()
            assert [notification.attributes for notification in reading.result(10)] == [{"n": 1}]
        assert [notification.attributes for notification in unread] == [{"n": 2}]
        assert list(unread) == []


def test_the_asynchronous_client_over_tcp_reconnects_to_another_host() -> None:
    async def main() -> None:
        first, second = Broker(), Broker()
        server, port = await first.listen()
        other_server, other_port = await second.listen()
        url = f"kittiwake://127.0.0.1:{port},127.0.0.1:{other_port}"
        async with server, other_server, asyncio.timeout(120), connect(url, backoff_s=(0, 0)) as client:
            subscription = await client.subscribe("a")
            server.close()
            first.link.cut()
            await client.publish({"n": 1})
            assert second.link.publications() == [(1, {"n": 1})]
            second.link.notify(({"n": 2}, [0]))
            assert (await anext(subscription)).attributes == {"n": 2}
            assert await client.publish_many({"n": n, "text": "x" * 1000} for n in range(2000)) == 2000
        assert isinstance(second.link.frames[-1], frames.Goodbye)

    asyncio.run(main())
