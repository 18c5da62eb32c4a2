"""Each policy with a client that does not read, through the SDK and the real machines; the README's table, executed."""

from __future__ import annotations

import ast
import asyncio
import re
from typing import Any

import pytest

from actors.commands.broker import describe
from cluster import ConnectionLostError, PolicyError, latest_per_key
from cluster.client import Client, Stream
from cluster.config import Config, Flow
from cluster.messages import CONNECTION_POINT
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation
from tests.unit.test_readme_semantics import README, code

SMALL = Config(flow=Flow(queue_messages=3))
QUICK = (0.0, 0.01)


def rows() -> list[list[str]]:
    """Return the README's table of policies."""
    section = re.search(r"<!-- policies:begin -->\n(.*)<!-- policies:end -->", README.read_text("utf-8"), re.DOTALL)
    assert section is not None
    lines = [line for line in section[1].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = rows()
PUBLISHED = ["A1", "A2", "B3", "A4", "A5", "C6", "A7"]


def reading(name: str) -> dict[str, Any]:
    return {"station": name[0], "n": int(name[1:])}


def name_of(attributes: Any) -> str:
    return f"{attributes['station']}{attributes['n']}"


def counters(cluster: LocalCluster, *names: str) -> list[int]:
    """Return counters of the only connection point."""
    (gauges,) = (
        role.machine.gauges() for peer, role in cluster._assembly.roles.items() if peer.layer == CONNECTION_POINT
    )
    return [gauges[name] for name in names]


async def read(stream: Stream, count: int) -> list[str]:
    return [name_of((await anext(stream)).attributes) for _ in range(count)]


def test_the_table_has_all_policies() -> None:
    names = [code(row[0].removesuffix("(default)")).partition("(")[0] for row in ROWS]
    assert names == ["block", "drop_oldest", "drop_newest", "latest_per_key", "disconnect"]
    text = README.read_text("utf-8")
    assert f"`{' '.join(PUBLISHED)}` are published" in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_readme_s_table(row: list[str]) -> None:
    policy = code(row[0].removesuffix("(default)"))
    gets, dropped = code(row[2]).split(), ast.literal_eval(code(row[3]))

    @conversation
    async def work() -> None:
        async with LocalCluster(config=SMALL) as local, local.connect("p") as publisher:
            client = await local.connect("slow", receive_window=1, reconnect=False)
            stream = await client.subscribe("exists n", policy=policy)
            assert stream.policy == policy

            async def publish() -> None:
                for name in PUBLISHED:
                    await publisher.publish(reading(name))

            sending = asyncio.create_task(publish())
            if policy == "block":
                while publisher.unacknowledged == 0 or counters(local, "held_runs") == [0]:
                    await asyncio.sleep(0)
                assert counters(local, "accepted", "acknowledged", "queued") == [5, 4, 4], "the publisher waits"
            else:
                await sending
            assert await read(stream, len(gets)) == gets
            await sending
            if policy == "disconnect":
                with pytest.raises(ConnectionLostError, match="slow: policy disconnect: more than 3 notif"):
                    await anext(stream)
                assert client.disconnections == {"slow": 1}
                assert counters(local, "slow_disconnected") == [1]
                return
            assert counters(local, "queued") == [0]
            # What is told of drops comes before what is published afterwards.
            await publisher.publish(reading("Z9"))
            assert await read(stream, 1) == ["Z9"]
            assert dict(stream.dropped) == dict(client.dropped) == dropped
            assert counters(local, "dropped") == [sum(dropped.values())]
            for reason in ("oldest", "newest", "latest_per_key"):
                wanted = dropped.get(reason if reason == "latest_per_key" else f"drop_{reason}", 0)
                assert counters(local, f"dropped_{reason}") == [wanted]
            assert counters(local, "slow_disconnected") == [0]
            await client.close()

    work()


async def flood(publisher: Client, count: int) -> None:
    """Publish as fast as it goes: ten stations in turn."""
    await publisher.publish_many({"station": "ABCDEFGHIJ"[n % 10], "n": n} for n in range(count))


@conversation
async def test_latest_per_key_conflates_a_flood_and_ends_with_the_newest_of_each() -> None:
    flow = Flow(publish_window=64, queue_messages=50)
    async with LocalCluster(config=Config(flow=flow)) as local, local.connect("p") as publisher:
        client = await local.connect("slow", receive_window=20)
        stream = await client.subscribe("exists n", policy="latest_per_key(station)")
        total = 3000
        await flood(publisher, total)
        assert counters(local, "queued") == [10], "one for each station"
        got = [int(name[1:]) for name in await read(stream, 30)]
        assert got == [*range(20), *range(total - 10, total)]
        await publisher.publish(reading("Z9"))
        assert await read(stream, 1) == ["Z9"]
        assert dict(stream.dropped) == dict(client.dropped) == {"latest_per_key": total - 30}
        await client.close()


@conversation
async def test_the_slow_one_costs_nobody_anything_but_with_block() -> None:
    """Every policy without block, each with a client that never reads: publisher and reader go on."""
    flow = Flow(publish_window=64, queue_messages=50)
    async with (
        LocalCluster(config=Config(flow=flow)) as local,
        local.connect("p") as publisher,
        local.connect("reader") as reader,
    ):
        heard = await reader.subscribe("exists n")
        clients = {}
        for policy in ("drop_oldest", "drop_newest", latest_per_key("n"), "disconnect"):
            clients[policy] = await local.connect(policy, receive_window=20, reconnect=False)
            await clients[policy].subscribe("exists n", policy=policy)
        total = 1000
        receiving = asyncio.create_task(read(heard, total))
        await flood(publisher, total)
        assert [int(name[1:]) for name in await receiving] == list(range(total))
        assert counters(local, "held_runs") == [0]
        lost = total - 20 - 50
        # Each value comes once: nothing is outdated, and the limit does it all.
        assert counters(local, "dropped_oldest", "dropped_newest", "dropped_latest_per_key") == [2 * lost, lost, 0]
        assert counters(local, "dropped", "slow_disconnected", "sessions") == [3 * lost, 1, 5]
        assert clients["disconnect"].closed
        for client in clients.values():
            await client.close()


@conversation
async def test_a_client_that_was_disconnected_comes_back() -> None:
    async with LocalCluster(config=SMALL) as local, local.connect("p") as publisher:
        client = await local.connect("slow", receive_window=1, backoff_s=QUICK)
        stream = await client.subscribe("exists n", policy="disconnect")
        for name in PUBLISHED[:5]:
            await publisher.publish(reading(name))
        assert client.disconnections == {} or client.disconnections == {"slow": 1}
        while client.reconnections < 1 or not client.connected:
            await asyncio.sleep(0)
        assert client.disconnections == {"slow": 1}
        probe = await client.subscribe("probe == true")  # its answer comes after what was restored
        await probe.close()
        assert await read(stream, 1) == ["A1"]
        await publisher.publish(reading("C6"))
        assert await read(stream, 1) == ["C6"]
        assert client.dropped == {}
        await client.close()


@conversation
async def test_the_strictest_of_several_decides_and_each_is_told() -> None:
    async with LocalCluster(config=SMALL) as local, local.connect("p") as publisher:
        client = await local.connect("slow", receive_window=1)
        weak = await client.subscribe("exists n", policy="latest_per_key(station)")
        strong = await client.subscribe("station == 'B'", policy="drop_newest")
        everything = client.notifications()
        for name in ("A1", "B2", "B3", "A4", "A5", "B6"):
            await publisher.publish(reading(name))
        # A1 in flight; B2 and B3 keep their place; A5 has taken A4's; B6 came to a full queue.
        assert await read(everything, 4) == ["A1", "B2", "B3", "A5"]
        await publisher.publish(reading("Z9"))
        assert await read(everything, 1) == ["Z9"]
        assert weak.dropped == {"latest_per_key": 1, "drop_newest": 1}
        assert strong.dropped == {"drop_newest": 1}
        assert client.dropped == {"latest_per_key": 1, "drop_newest": 1}
        await client.close()


@conversation
async def test_a_bad_policy_is_refused_with_what_and_where() -> None:
    async with LocalCluster() as local, local.connect("c") as client:
        with pytest.raises(PolicyError, match=r"needs its attribute: latest_per_key\(attribute\)") as caught:
            await client.subscribe("exists n", policy="latest_per_key")
        assert (caught.value.position, caught.value.limit, caught.value.code) == (14, None, "policy")
        with pytest.raises(PolicyError, match="more than 256 bytes") as caught:
            await client.subscribe("exists n", policy=latest_per_key("x" * 257))
        assert (caught.value.position, caught.value.limit) == (15, 256)
        with pytest.raises(
            PolicyError, match="filter 0 of the group: policy 'drop_some', known are block, drop_oldest"
        ):
            await client.subscribe_many(["a > 1", "b > 1"], policy="drop_some")
        assert counters(local, "subscriptions") == [0]


@conversation
async def test_status_shows_drops_by_reason() -> None:
    async with LocalCluster(config=SMALL) as local, local.connect("p") as publisher:
        client = await local.connect("slow", receive_window=1)
        await client.subscribe("exists n", policy="latest_per_key(station)")
        for name in PUBLISHED:
            await publisher.publish(reading(name))
        while True:
            text = describe(local.status())
            if "dropped=" in text:
                break
            await asyncio.sleep(0.02)
        assert " dropped=3 dropped_latest_per_key=3" in text
        await client.close()
