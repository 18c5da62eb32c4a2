"""Cell T22: a publisher's process is killed between send and acknowledgement, and another one goes on with its work."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest

from cluster import connect
from cluster.errors import ConfigError, ConnectionLostError
from cluster.testing import LocalCluster
from tests.faults.proxy import FaultProxy
from tests.faults.test_link import PATIENT, doubles, eventually, reading, way_to
from tests.unit.conversation import conversation

INSTANCE = 2**63 + 5
KILLS = 6


@conversation
async def test_a_killed_publisher_that_goes_on_from_its_acknowledgements_doubles_and_loses_nothing() -> None:
    rng = random.Random(22)
    last = 3000
    got: list[int] = []
    kills = 0
    async with LocalCluster(config=PATIENT) as local, FaultProxy(way_to(local, 0, 1)) as proxy:
        subscriber = await local.connect("subscriber")
        stream = await subscriber.subscribe("n >= 0")
        proxy.down.delay_s = 0.03
        async with reading(stream, got):
            acknowledged = 0
            while acknowledged < last:
                arguments = (proxy.url, "publisher", str(INSTANCE), str(acknowledged + 1), str(last))
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "tests.faults.publisher", *arguments, stdout=asyncio.subprocess.PIPE
                )
                assert process.stdout is not None
                # Some of these lives end before their first acknowledgement, some send more than they hear of.
                lives_to = acknowledged + rng.choice((0, rng.randrange(1, 400)))
                async for line in process.stdout:
                    acknowledged = int(line)
                    if kills < KILLS and lives_to < acknowledged < last and process.returncode is None:
                        # More of it has arrived than it can have heard of.
                        await eventually(lambda heard=acknowledged: len(got) > heard)  # type: ignore[misc]
                        process.kill()
                        kills += 1
                        break
                # What it had said before it died is known as well, or is not: either way nothing is doubled.
                if rng.random() < 0.5:
                    async for line in process.stdout:
                        acknowledged = int(line)
                await process.wait()
            await eventually(lambda: len(got) >= last)
        assert got == list(range(1, last + 1)), "lost, doubled or out of order"
        assert kills == KILLS
        assert doubles(local) > 0, "nothing was sent again that had arrived"
        await subscriber.close()


@conversation
async def test_without_its_instance_a_new_life_is_somebody_else() -> None:
    async with LocalCluster(config=PATIENT) as local:
        subscriber = await local.connect("subscriber")
        stream = await subscriber.subscribe("n >= 0")
        async with local.connect("publisher") as first:
            await first.publish({"n": 1})
        async with local.connect("publisher") as second:
            assert second.instance != first.instance
            await second.publish({"n": 1})
        assert [(await anext(stream)).sequence for _ in range(2)] == [1, 1]
        async with local.connect("publisher", instance=first.instance, first_sequence=1) as third:
            await third.publish({"n": 1})  # the cluster has it
            assert third.acknowledged == 1
            await third.publish({"n": 2})
        assert (await anext(stream)).attributes == {"n": 2}
        await subscriber.close()


@conversation
async def test_a_life_goes_on_from_any_number_and_an_other_instance_ends_it() -> None:
    async with LocalCluster(config=PATIENT) as local:
        publisher = await local.connect("publisher", instance=7, first_sequence=1000)
        assert (publisher.instance, publisher.acknowledged, publisher.unacknowledged) == (7, 999, 0)
        await publisher.publish_many({"n": number} for number in range(50))
        assert (publisher.acknowledged, publisher.unacknowledged) == (1049, 0)
        async with local.connect("publisher", instance=8):
            await eventually(lambda: publisher.closed)
            with pytest.raises(ConnectionLostError) as caught:
                await publisher.publish({"n": 50})
            assert caught.value.code == "taken_over"
        await publisher.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"instance": -1}, "instance is -1"),
        ({"instance": 1 << 64}, "instance is 18446744073709551616"),
        ({"first_sequence": 0}, "first_sequence is 0"),
        ({"first_sequence": 1 << 62}, "first_sequence is 4611686018427387904"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        connect(**options)  # type: ignore[arg-type]
