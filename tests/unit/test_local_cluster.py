"""What users see of a cluster: every promise of the SDK on the real machines, in `cluster.testing.LocalCluster`."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from cluster import F, FilterError, frames
from cluster.client import Client, Subscription
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.config import ClientLimits, Config, Flow, Layers
from cluster.errors import ConnectionLostError, RefusedError
from cluster.messages import CONNECTION_POINT, EXIT_POINT
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation

MANY = Layers(connection_points=2, access_points=2, matchers=3, exit_points=2)
SMALL_FLOW = Flow(publish_window=64, queue_messages=50, receive_window=1000)


async def numbers(subscription: Subscription, count: int) -> list[int]:
    """Take this many notifications; return their attribute n."""
    got: list[int] = []
    while len(got) < count:
        got += [int(one.attributes["n"] or 0) for one in await subscription.take(count - len(got))]
    return got


def gauge(cluster: LocalCluster, layer: str, name: str) -> int:
    """Return a gauge's sum over the slices of a layer."""
    roles = cluster._assembly.roles
    return sum(role.machine.gauges()[name] for peer, role in roles.items() if peer.layer == layer)


# The SDK's example -------------------------------------------------------------------------------------------------


@conversation
async def test_the_example_works_as_printed() -> None:
    async with LocalCluster() as local:

        def connect(url: str, *, client_id: str) -> Client:
            assert url == "kittiwake://127.0.0.1:7400"
            return local.connect(client_id)

        async with connect("kittiwake://127.0.0.1:7400", client_id="lab") as client:
            await client.publish({"station": "Pza. de Espana", "no2": 45.0, "lat": 40.42, "lon": -3.71})
            subscription = await client.subscribe("no2 > 40 and lat between 40.38 and 40.45")
            # From here on beside the print: the first publication came before the subscription.
            await client.publish({"station": "Pza. de Espana", "no2": 61.5, "lat": 40.42, "lon": -3.71})
            async for notification in subscription:
                assert notification.attributes == {
                    "station": "Pza. de Espana",
                    "no2": 61.5,
                    "lat": 40.42,
                    "lon": -3.71,
                }
                assert notification.publisher == "lab"
                assert notification.sequence == 2
                assert notification.time > 1.7e9
                assert notification.subscription_ids == (subscription.id,)
                break
            await subscription.update("no2 > 60")
            await client.publish({"no2": 50.0})
            await client.publish({"no2": 70.0})
            assert (await anext(subscription)).attributes == {"no2": 70.0}
            await subscription.close()


@conversation
async def test_the_python_spelling_of_the_example_s_filter() -> None:
    async with LocalCluster() as local, local.connect("lab") as client:
        subscription = await client.subscribe((F.no2 > 40) & F.lat.between(40.38, 40.45))
        await client.publish_many([{"no2": 50.0, "lat": 41.0}, {"no2": 39, "lat": 40.4}, {"no2": 41, "lat": 40.4}])
        assert (await anext(subscription)).attributes == {"no2": 41, "lat": 40.4}


@conversation
async def test_the_docstring_of_the_module() -> None:
    async with LocalCluster() as cluster, cluster.connect("lab") as client:
        assert client.connected
        status = cluster.status()
        assert (status["state"], status["sessions"]) == ("serving", 1)
    assert client.closed


# Delivery ----------------------------------------------------------------------------------------------------------


@conversation
async def test_publications_cross_connection_points_in_each_publisher_s_order() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as local:
        publishers = [local.connect(f"p{place}", connection_point=place % 2) for place in range(6)]
        subscribers = [local.connect(f"s{place}", connection_point=place % 2) for place in range(4)]
        for client in (*publishers, *subscribers):
            await client
        texts = ["exists n", "n >= 100", "n < 150 and p > 2", "p in (0, 5)"]
        streams = [await client.subscribe(text) for client, text in zip(subscribers, texts, strict=True)]

        async def publish(place: int) -> None:
            await publishers[place].publish_many({"n": number, "p": place} for number in range(300))

        await asyncio.gather(*map(publish, range(6)))
        wants: list[Callable[[int, int], bool]] = [
            lambda n, p: True,
            lambda n, p: n >= 100,
            lambda n, p: n < 150 and p > 2,
            lambda n, p: p in (0, 5),
        ]
        for stream, wanted in zip(streams, wants, strict=True):
            per_publisher = {p: [n for n in range(300) if wanted(n, p)] for p in range(6)}
            total = sum(map(len, per_publisher.values()))
            got: dict[int, list[int]] = {p: [] for p in range(6)}
            for _ in range(total):
                one = await anext(stream)
                assert one.publisher == f"p{one.attributes['p']}"
                got[int(one.attributes["p"] or 0)].append(int(one.attributes["n"] or 0))
            assert got == per_publisher
        for client in (*publishers, *subscribers):
            await client.close()


@conversation
async def test_several_subscriptions_of_one_client_give_one_notification_with_all_ids() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as local, local.connect("lab") as client:
        streams = [await client.subscribe(f"n >= {bound}") for bound in range(20)]
        group = await client.subscribe_many(["n < 100", "exists n"])
        wide = client.notifications()
        await client.publish({"n": 10})
        await client.publish({"n": 1000})
        first, second = await anext(wide), await anext(wide)
        assert first.subscription_ids == (*(stream.id for stream in streams[:11]), *group.ids)
        assert second.subscription_ids == (*(stream.id for stream in streams), group.ids[1])
        await client.publish({"m": 1})
        await client.publish({"n": -1})
        assert (await anext(wide)).subscription_ids == group.ids


@conversation
async def test_an_update_loses_and_doubles_nothing() -> None:
    """A publisher runs on while the filter is replaced by others that match all the same."""
    async with (
        LocalCluster(config=Config(layers=MANY)) as local,
        local.connect("p") as publisher,
        local.connect("s", connection_point=1) as subscriber,
    ):
        subscription = await subscriber.subscribe("n >= 0")
        running = True
        published = 0

        async def publish() -> None:
            nonlocal published
            while running:
                await publisher.publish_many({"n": published + step} for step in range(7))
                published += 7

        publishing = asyncio.create_task(publish())
        for change in range(100):
            await subscription.update(f"n >= {-1 - change} or absent == {change}")
        running = False
        await publishing
        assert published > 100
        assert await numbers(subscription, published) == list(range(published))
        await publisher.publish({"n": -1})
        assert await numbers(subscription, 1) == [-1], "nothing stood between"


@conversation
async def test_an_update_holds_for_everything_published_after_it() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as local, local.connect("lab") as client:
        subscription = await client.subscribe("n == 0")
        for turn in range(1, 50):
            await subscription.update(f"n == {turn}")
            await client.publish_many([{"n": turn - 1}, {"n": turn}, {"n": turn + 1}])
        assert await numbers(subscription, 49) == list(range(1, 50))
        with pytest.raises(FilterError):
            await subscription.update("n >")
        await client.publish({"n": 49})
        assert await numbers(subscription, 1) == [49], "a refused update changes nothing"


@conversation
async def test_after_a_close_nothing_of_it_arrives() -> None:
    async with (
        LocalCluster(config=Config(layers=MANY)) as local,
        local.connect("p") as publisher,
        local.connect("s", connection_point=1) as subscriber,
    ):
        witness = await subscriber.subscribe("exists n")
        wide = subscriber.notifications()
        sequence = itertools.count()
        for _ in range(20):
            closing = await subscriber.subscribe("n >= 0")
            await asyncio.gather(publisher.publish_many({"n": next(sequence)} for _ in range(50)), closing.close())
            await publisher.publish({"n": -1})
            while (one := await anext(wide)).attributes["n"] != -1:
                assert witness.id in one.subscription_ids
            assert one.subscription_ids == (witness.id,)
        assert gauge(local, "matcher", "subscriptions") == 1


@conversation
async def test_refusals_name_the_limit_and_change_nothing() -> None:
    config = Config(client_limits=ClientLimits(subscriptions=3))
    async with LocalCluster(config=config) as local, local.connect("lab") as client:
        with pytest.raises(FilterError) as caught:
            await client.subscribe("n > 1 and n < 0")
        assert caught.value.reason
        held = [await client.subscribe(f"n > {bound}") for bound in range(3)]
        with pytest.raises(RefusedError) as refused:
            await client.subscribe("n > 9")
        assert (refused.value.code, refused.value.limit) == ("too_many", 3)
        await held[0].close()
        await client.subscribe("n > 9")


# Publications that are not -------------------------------------------------------------------------------------------


class Raw(asyncio.Protocol):
    """A client of the wire format alone."""

    def __init__(self) -> None:
        self.frames: list[frames.ServerFrame] = []
        self.lost = False
        self.changed = asyncio.Event()
        self._reader = FrameReader(1 << 24)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.frames += [decode_server_frame(body) for body in self._reader.feed(data)]
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.changed.set()

    def say(self, *said: frames.Frame) -> None:
        self._transport.write(b"".join(map(encode_frame, said)))

    async def until(self, kind: type[frames.Frame]) -> Any:
        """Return the next frame of a kind."""
        while not any(isinstance(one, kind) for one in self.frames):
            self.changed.clear()
            await self.changed.wait()
        at = next(place for place, one in enumerate(self.frames) if isinstance(one, kind))
        return self.frames.pop(at)


def raw(local: LocalCluster, client_id: str = "raw") -> Raw:
    """Log in by hand."""
    protocol = Raw()
    local._open(local._assembly.connection_points()[0], protocol)
    protocol.say(frames.Hello(frames.VERSION, client_id, 5, 100))
    return protocol


def publish_frame(first: int, *pieces: bytes) -> frames.Publish:
    lengths = b"".join(len(piece).to_bytes(4, "little") for piece in pieces)
    return frames.Publish(first, frames.ACKNOWLEDGE_MATCHED, lengths, b"".join(pieces))


@conversation
async def test_publications_that_are_not_well_formed_are_refused_one_by_one() -> None:
    pack = msgpack.packb
    bad = {
        2: pack({"n": math.nan}),
        3: pack({"n": math.inf}),
        4: pack({"n": {"m": 1}}),
        5: pack({"n": [1]}),
        6: pack({1: 1}),
        7: pack({"n": "s" * 65_537}),
        8: pack({f"n{number}": 1 for number in range(257)}),
        9: b"",
        10: b"\xc1",
        11: pack({"n": 1})[:-1],
        12: pack({"n": 1}) + b"\xc0",
        13: pack(7),
    }
    pieces = [bad.get(sequence, pack({"n": sequence})) for sequence in range(1, 15)]
    async with LocalCluster(config=Config(layers=MANY)) as local, local.connect("s") as subscriber:
        subscription = await subscriber.subscribe("n is number or n is null or missing n or exists n")
        client = raw(local)
        await client.until(frames.Welcome)
        client.say(publish_frame(1, *pieces))
        answer = await client.until(frames.Acknowledged)
        assert answer.upto == 14
        assert dict(answer.rejected).keys() == bad.keys()
        assert all(reason for _, reason in answer.rejected)
        assert await numbers(subscription, 2) == [1, 14]
        client.say(publish_frame(15, pack({"n": 15})))
        assert (await client.until(frames.Acknowledged)).rejected == []
        assert not client.lost
        counts = {name: gauge(local, EXIT_POINT, name) for name in ("released", "matched", "unmatched", "rejected")}
        assert counts == {"released": 15, "matched": 3, "unmatched": 0, "rejected": len(bad)}


@conversation
async def test_a_malformed_frame_costs_its_sender_the_connection_and_nobody_else() -> None:
    async with LocalCluster() as local, local.connect("s") as subscriber:
        subscription = await subscriber.subscribe("exists n")
        client = raw(local)
        await client.until(frames.Welcome)
        client.say(publish_frame(1, msgpack.packb({"n": 1})))
        client._transport.write(b"\x03\x00\x00\x00\xc1\xc1\xc1")
        bye = await client.until(frames.Bye)
        assert bye.code == "malformed"
        assert await numbers(subscription, 1) == [1], "what came before it counts"
        async with local.connect("p") as publisher:
            await publisher.publish({"n": 2})
        assert await numbers(subscription, 1) == [2]


# One client id twice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [0, 1], ids=["same connection point", "another connection point"])
def test_the_newest_connection_of_a_client_id_wins(second: int) -> None:
    async def work() -> None:
        async with LocalCluster(config=Config(layers=MANY)) as local, local.connect("p") as publisher:
            older = await local.connect("lab")
            lost = await older.subscribe("exists n")
            newer = await local.connect("lab", connection_point=second)
            with pytest.raises(ConnectionLostError) as caught:
                await anext(lost)
            assert caught.value.code == "taken_over"
            assert older.closed
            subscription = await newer.subscribe("exists n")
            await publisher.publish({"n": 1})
            assert await numbers(subscription, 1) == [1]
            assert gauge(local, CONNECTION_POINT, "sessions") == 2
            assert local.status()["sessions"] == 2
            await newer.close()

    asyncio.run(work())


# Clients that do not keep up -----------------------------------------------------------------------------------------


async def never_reads(local: LocalCluster, policy: str) -> tuple[Client, Subscription]:
    """Open a subscriber that reads nothing for the time being."""
    client = await local.connect("slow", receive_window=20)
    return client, await client.subscribe("loud == true", policy=policy)  # type: ignore[arg-type]


@conversation
async def test_a_slow_subscriber_with_block_stops_its_publishers_and_nobody_else() -> None:
    async with (
        LocalCluster(config=Config(layers=MANY, flow=SMALL_FLOW)) as local,
        local.connect("loud") as loud,
        local.connect("quiet") as quiet,
        local.connect("other", connection_point=1) as other,
    ):
        slow, stream = await never_reads(local, "block")
        heard = await other.subscribe("loud == false")
        total = 2000
        sending = asyncio.create_task(loud.publish_many({"n": number, "loud": True} for number in range(total)))
        for number in range(500):
            await quiet.publish({"n": number, "loud": False})
        assert await numbers(heard, 500) == list(range(500)), "who does not publish to the slow one is not slowed"
        assert not sending.done()
        queued = gauge(local, CONNECTION_POINT, "queued")
        # The queue, and beyond it one publisher's window.
        assert SMALL_FLOW.queue_messages <= queued <= SMALL_FLOW.queue_messages + SMALL_FLOW.publish_window
        assert gauge(local, CONNECTION_POINT, "accepted") < 500 + 20 + queued + SMALL_FLOW.publish_window
        assert await numbers(stream, total) == list(range(total)), "nothing is lost"
        assert await sending == total
        assert stream.dropped == {}
        assert gauge(local, CONNECTION_POINT, "held_runs") == 0
        await slow.close()


@conversation
async def test_a_slow_subscriber_with_drop_oldest_stops_nobody_and_hears_what_it_lost() -> None:
    async with (
        LocalCluster(config=Config(layers=MANY, flow=SMALL_FLOW)) as local,
        local.connect("loud") as loud,
        local.connect("other", connection_point=1) as other,
    ):
        slow, stream = await never_reads(local, "drop_oldest")
        heard = await other.subscribe("loud == true")
        total = 2000
        receiving = asyncio.create_task(numbers(heard, total))
        assert await loud.publish_many({"n": number, "loud": True} for number in range(total)) == total
        assert await receiving == list(range(total))
        assert gauge(local, CONNECTION_POINT, "queued") <= SMALL_FLOW.queue_messages
        dropped = gauge(local, CONNECTION_POINT, "dropped")
        kept = total - dropped
        assert 20 <= kept <= 20 + SMALL_FLOW.queue_messages
        got = await numbers(stream, kept)
        assert got == [*range(20), *range(total - kept + 20, total)], "the first in flight, and the newest"
        await loud.publish({"n": -1, "loud": True})
        assert await numbers(stream, 1) == [-1]
        assert dict(stream.dropped) == dict(slow.dropped) == {"drop_oldest": dropped}, "the books balance"
        await slow.close()


@conversation
async def test_one_client_with_both_policies_loses_only_what_it_allowed() -> None:
    async with LocalCluster(config=Config(flow=SMALL_FLOW)) as local, local.connect("p") as publisher:
        client = await local.connect("slow", receive_window=20)
        kept = await client.subscribe("kind == 1", policy="block")
        shed = await client.subscribe("kind == 2", policy="drop_oldest")
        total = 400
        sending = asyncio.create_task(
            publisher.publish_many({"n": number, "kind": 1 + (number % 8 != 0)} for number in range(total))
        )
        wanted = [number for number in range(total) if number % 8 == 0]
        got: list[int] = []
        while len(got) < len(wanted):
            reading = asyncio.create_task(numbers(kept, 1))
            while not reading.done():
                if shed._queue:
                    await shed.take()
                await asyncio.sleep(0)
            got += reading.result()
        assert got == wanted
        assert await sending == total
        await client.close()


# Reconnects ----------------------------------------------------------------------------------------------------------

QUICK = (0.0, 0.01)


@conversation
async def test_a_client_comes_back_with_its_subscriptions() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as local, local.connect("p") as publisher:
        subscriber = await local.connect("s", connection_point=1, backoff_s=QUICK)
        streams = [await subscriber.subscribe(f"n >= {bound}") for bound in (0, 10)]
        ids = [stream.id for stream in streams]
        for turn in range(1, 6):
            next(one for (peer, _), one in local._sockets.items() if peer.slot == 1).cut()
            while subscriber.reconnections < turn or not subscriber.connected:
                await asyncio.sleep(0)
            # An answer on the new connection comes after the subscriptions are restored.
            probe = await subscriber.subscribe("probe == true")
            await probe.close()
            await publisher.publish({"n": 10 + turn})
            for stream in streams:
                assert await numbers(stream, 1) == [10 + turn]
        assert [stream.id for stream in streams] == ids
        assert gauge(local, "matcher", "subscriptions") == 2, "the old sessions' are gone"
        await subscriber.close()


@conversation
async def test_publications_are_sent_again_and_not_doubled() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as local:
        publishers = [await local.connect(f"p{place}", backoff_s=QUICK) for place in range(3)]
        subscriber = await local.connect("s", connection_point=1)
        subscription = await subscriber.subscribe("exists n")
        total = 3000

        async def publish(publisher: Client) -> None:
            for begin in range(0, total, 100):
                await publisher.publish_many({"n": begin + step} for step in range(100))

        sending = asyncio.gather(*map(publish, publishers))
        got: dict[str, list[int]] = {publisher.client_id: [] for publisher in publishers}
        cuts = 0
        while sum(map(len, got.values())) < 3 * total:
            for one in await subscription.take():
                got[one.publisher].append(int(one.attributes["n"] or 0))
            if not sending.done() and cuts < 40:
                cuts += 1
                for (peer, _), transport in list(local._sockets.items()):
                    if peer.slot == 0 and (transport.number + cuts) % 3:
                        transport.cut()
        await sending
        assert cuts > 10
        assert sum(publisher.reconnections for publisher in publishers) > 10
        assert all(numbers == list(range(total)) for numbers in got.values())
        await publishers[0].publish({"n": -1})
        assert await numbers(subscription, 1) == [-1], "no double is on its way"
        assert gauge(local, EXIT_POINT, "released") == 3 * total + 1
        for client in (*publishers, subscriber):
            await client.close()


@conversation
async def test_a_publication_without_acknowledgement_is_delivered_too() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher, local.connect("s") as subscriber:
        subscription = await subscriber.subscribe("exists n")
        for number in range(100):
            await publisher.publish({"n": number}, ack="none")
        assert await numbers(subscription, 100) == list(range(100))


@conversation
async def test_what_a_leaving_client_has_published_is_delivered() -> None:
    async with LocalCluster(config=Config(layers=MANY)) as local, local.connect("s") as subscriber:
        subscription = await subscriber.subscribe("exists n")
        for number in range(20):
            async with local.connect(f"p{number}", connection_point=number % 2) as publisher:
                await publisher.publish({"n": number}, ack="none")
        assert Counter(await numbers(subscription, 20)) == Counter(range(20))


@conversation
async def test_the_end_of_the_cluster_is_told() -> None:
    async with LocalCluster() as local:
        client = await local.connect("lab", reconnect=False)
        subscription = await client.subscribe("exists n")
    with pytest.raises(ConnectionLostError):
        await anext(subscription)
    with pytest.raises(ConnectionLostError):
        await client.publish({"n": 1})
    await client.close()
