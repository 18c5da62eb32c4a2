"""Exit points that are killed while they write, on a real Ray cluster: each matched publication is written once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.launch import Broker, launch
from bench.process import free_ports
from cluster import connect
from cluster.config import ClientPort, Config, Layers, OutputSettings
from cluster.output.reader import SlotRange, open_log
from cluster.output.rows import attributes_of
from tests.live.processes import COMMAND, PATIENCE_S, PATIENT, Up, printed
from tests.live.test_recovery import strike
from tests.live.traffic import FILTERS, Traffic, traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def rows_in(place: Path) -> list[dict[str, Any]]:
    """Return all rows, after `kittiwake output verify` has found nothing wrong."""
    printed([*COMMAND, "output", "verify", str(place)])
    log = open_log(place)
    return [
        row
        for slot, there in log.slots().items()
        for table in log.rows(slot, there.first, there.next)
        for row in table.to_pylist()
    ]


async def write_stored(broker: Broker, made: Traffic, acknowledged: list[int], enough: asyncio.Event) -> None:
    """Publish what matches, one by one, and keep what was acknowledged as stored, until it is enough."""
    async with connect(broker.endpoints[0], client_id="careful") as client:
        mine = made.published.setdefault("careful", [])
        while not enough.is_set():
            mine.append({"no2": 99.0, "station": "S1", "lat": 40.4})
            acknowledged.append(await client.publish(mine[-1], ack="stored"))
            await asyncio.sleep(0.002)


def test_exit_points_die_while_they_write(tmp_path: Path) -> None:
    config = Config(
        name="output",
        data_directory=str(tmp_path),
        client_port=ClientPort(port=0),
        layers=Layers(access_points=2, exit_points=2),
        timing=PATIENT,
        output=OutputSettings(path="output", segment_age_s=0.5),
    )
    place = tmp_path / "output"
    kept: list[Traffic] = []
    acknowledged: list[int] = []

    async def story() -> None:
        async with launch(config) as broker, traffic(broker) as made:
            kept.append(made)
            enough = asyncio.Event()
            careful = asyncio.create_task(write_stored(broker, made, acknowledged, enough))
            for slot in (0, 1, 0):
                before = len(acknowledged)
                async with asyncio.timeout(PATIENCE_S):
                    while len(acknowledged) < before + 20:
                        await asyncio.sleep(0.02)
                await strike(broker, "exit_point", slot)
                await asyncio.to_thread(rows_in, place)
            enough.set()
            await careful
        rows = rows_in(place)
        (made,) = kept
        wanted = made.expected(FILTERS)
        trips = {name for name in made.published if name.startswith("rounder")}
        seen = {(row["publisher"], row["sequence"]): row for row in rows}
        assert len(seen) == len(rows)
        assert wanted.keys() <= seen.keys(), "something that matched is not there"
        assert {name for name, _ in seen.keys() - wanted.keys()} <= trips, "something is there that matched nothing"
        assert all(("careful", sequence) in seen for sequence in acknowledged)
        for (name, sequence), row in seen.items():
            assert attributes_of(row) == made.published[name][sequence - 1]
            if (name, sequence) in wanted and name not in trips:
                assert len(row["clients"]) >= 1
                assert all(client.startswith("subscriber") for client in row["clients"])

    asyncio.run(story())


def test_what_is_killed_leaves_nothing_unread_and_goes_on(tmp_path: Path) -> None:
    """Of an exit point that dies at the end the rows are sealed by `up`, of a whole cluster that dies by who reads; and
    where everything was killed, with Ray, `up` goes on.
    """
    output = {"path": str(tmp_path / "output"), "segment_age_s": 3600}
    up = Up(tmp_path, name="power", client_port={"port": free_ports(1)}, output=output)
    place = tmp_path / "output"

    async def publish(first: int) -> None:
        endpoint = up.endpoints[0]
        async with connect(endpoint, client_id="reader") as reader, connect(endpoint, client_id=f"p{first}") as client:
            await reader.subscribe("exists n")
            await client.publish_many(({"n": number} for number in range(first, first + 300)), ack="stored")

    def written() -> list[int]:
        lines = printed([*COMMAND, "output", "tail", "-n", "1000", str(place)]).splitlines()
        return sorted(json.loads(line)["attributes"]["n"] for line in lines)

    try:
        up.start()
        asyncio.run(publish(0))
        _, status = up.status()
        (exit_point,) = (row["pid"] for row in status["members"] if row["layer"] == "exit_point")
        os.kill(exit_point, signal.SIGKILL)
        assert up.stop(signal.SIGTERM) == 0
        up.assert_gone()
        assert [each for slot, each in open_log(place).slots().items()] == [SlotRange(0, 300)], "`up` has sealed all"

        up.start()
        endpoints, (_, before) = up.endpoints, up.status()
        asyncio.run(publish(300))
        up.kill()
        assert written() == list(range(600))

        up.start()
        code, after = up.status()
        assert (code, up.endpoints) == (0, endpoints)
        assert after["epoch"] > before["epoch"]
        assert [row["incarnation"] for row in after["members"]] > [row["incarnation"] for row in before["members"]]
        assert up.stop(signal.SIGTERM) == 0
        up.assert_gone()
    finally:
        up.kill_everything()
