"""Exit points that write, as shells over sockets: stored, taken over, sealed at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.output_writer import OutputWriter
from cluster import OverloadedError
from cluster.client import connect
from cluster.config import ClientPort, Config, Layers, OutputSettings
from cluster.messages import EXIT_POINT, Peer
from cluster.output.disk import LocalDisk
from cluster.output.reader import open_log
from cluster.output.rows import attributes_of
from cluster.output.verify import verify
from tests.unit.test_shells import PATIENT, Sockets


def settings(directory: Path, **output: Any) -> Config:
    return Config(
        data_directory=str(directory),
        client_port=ClientPort(port=0),
        layers=Layers(exit_points=2),
        timing=PATIENT,
        output=OutputSettings(path="output", segment_age_s=0.3, **output),
    )


def rows_in(place: Path) -> list[dict[str, Any]]:
    found = verify(LocalDisk(place))
    assert not found.problems, found.problems
    log = open_log(place)
    return [
        row
        for slot, there in log.slots().items()
        for table in log.rows(slot, there.first, there.next)
        for row in table.to_pylist()
    ]


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


def writer_of(cluster: Sockets, slot: int) -> OutputWriter:
    writer = cluster.shells[Peer(EXIT_POINT, slot)].output
    assert isinstance(writer, OutputWriter)
    return writer


def test_what_matched_is_written_once_whatever_ends(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Sockets(settings(tmp_path), tmp_path)
        await cluster.start()
        try:
            async with connect(cluster.doors[0], client_id="lab") as lab:
                subscription = await lab.subscribe("n > 10")
                names = [f"publisher-{number}" for number in range(4)]
                sent = 0
                for turn in range(4):
                    for name in names:
                        async with connect(cluster.doors[0], client_id=f"{name}-{turn}") as publisher:
                            await publisher.publish_many(
                                ({"n": number, "of": name, "exact": 2**53 + 1} for number in range(21)), ack="stored"
                            )
                            sent += 10
                    if turn == 1:
                        await cluster.die(Peer(EXIT_POINT, 0))
                        await until(lambda: Peer(EXIT_POINT, 0) in cluster.roles)
                    if turn == 2:
                        await cluster.admin.scale(exit_points=1)
                await until(lambda: len(rows_in(tmp_path / "output")) == sent)
                del subscription
        finally:
            await cluster.close()
        assert not cluster.failures
        rows = rows_in(tmp_path / "output")
        assert len(rows) == sent == 160
        assert {(row["publisher"], row["sequence"]) for row in rows} == {
            (f"publisher-{number}-{turn}", sequence)
            for number in range(4)
            for turn in range(4)
            for sequence in range(12, 22)
        }
        assert all(row["clients"] == ["lab"] and len(row["subscriptions"]) == 1 for row in rows)
        assert all(attributes_of(row)["exact"] == 2**53 + 1 for row in rows)
        for row in rows:
            assert row["time_published"] <= row["time_released"]
            assert row["time_accepted"] <= row["time_released"]

    asyncio.run(story())


def test_no_room_is_told_to_those_who_asked_and_to_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        cluster = Sockets(settings(tmp_path), tmp_path)
        await cluster.start()
        try:
            async with (
                connect(cluster.doors[0], client_id="lab") as lab,
                connect(cluster.doors[0], client_id="publisher") as publisher,
            ):
                subscription = await lab.subscribe("n > 0")
                await publisher.publish({"n": 1}, ack="stored")
                for slot in (0, 1):
                    fill(writer_of(cluster, slot), monkeypatch)
                with pytest.raises(OverloadedError, match="No space left"):
                    await publisher.publish({"n": 2}, ack="stored")
                await publisher.publish({"n": 3})
                monkeypatch.undo()
                await publisher.publish({"n": 4}, ack="stored")
                got = [(await anext(subscription)).attributes["n"] for _ in range(4)]
                assert got == [1, 2, 3, 4]
                gauges = [cluster.roles[Peer(EXIT_POINT, slot)].machine.gauges() for slot in (0, 1)]
                assert sum(one["output_lost"] for one in gauges) == 2
                assert sum(one["output_overloaded"] for one in gauges) == 1
                machines = [cluster.roles[Peer(EXIT_POINT, slot)].machine for slot in (0, 1)]
                await until(lambda: sum(one.gauges()["output_rows"] for one in machines) == 2)
                assert sum(one.gauges()["output_errors"] for one in machines) >= 2
                assert sum(one["output_appended"] for one in gauges) == 4
        finally:
            await cluster.close()
        assert [row["sequence"] for row in rows_in(tmp_path / "output")] == [1, 4]

    asyncio.run(story())


def fill(writer: OutputWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the writer's disk take half of what is written, and no more."""
    import errno

    file: Any = writer._writer._file

    def write(data: bytes) -> None:
        type(file).write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file, "write", write)
