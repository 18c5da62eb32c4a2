"""Durable sessions over sockets and files: a cluster that stops and one that starts in the same data directory."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from pathlib import Path

from actors.database import StoreError
from actors.session_store import DeadLetters, SessionStore, Writer, dead_letters_path, sessions_path
from actors.shell import Shell
from actors.transport import Identity
from cluster.client import connect
from cluster.config import ClientPort, Config, Durable
from cluster.journal import SaveSession
from cluster.messages import CONNECTION_POINT, COORDINATOR_PEER, Event, Instruction, LaneUp, Store, Stored
from tests.unit.conversation import conversation
from tests.unit.test_shells import PATIENT, Sockets


async def started(directory: Path, name: str) -> Sockets:
    """Start a cluster; its coordinator knows of none before."""
    config = Config(
        client_port=ClientPort(port=0),
        data_directory=str(directory),
        durable=Durable(max_deliver=2),
        timing=PATIENT,
    )
    (directory / name).mkdir()
    cluster = Sockets(config, directory / name)
    await cluster.start()
    return cluster


def test_the_next_cluster_goes_on(tmp_path: Path) -> None:
    @conversation
    async def work() -> None:
        cluster = await started(tmp_path, "one")
        assert not sessions_path(tmp_path, 0).exists(), "there is no file before it is needed"
        async with connect(cluster.doors[0], client_id="p") as publisher:
            async with connect(cluster.doors[0], client_id="lab", durable=True) as client:
                subscription = await client.subscribe("n > 0")
                await publisher.publish({"n": 1})
                await (await anext(subscription)).ack()
            await publisher.publish_many({"n": n} for n in range(2, 502))
        await cluster.close()
        assert cluster.failures == []

        cluster = await started(tmp_path, "two")
        async with (
            connect(cluster.doors[0], client_id="p") as publisher,
            connect(cluster.doors[0], client_id="lab", durable=True) as client,
        ):
            assert client.resumed
            subscription = await client.subscribe("n > 0")
            got = [await anext(subscription) for _ in range(500)]
            assert [one.attributes["n"] for one in got] == list(range(2, 502))
            assert [one.position for one in got] == list(range(2, 502))
            assert not any(one.redelivered for one in got)
            await publisher.publish({"n": 502})
            last = await anext(subscription)
            await last.refuse()
            assert (await anext(subscription)).redelivered
            await last.refuse()
            await publisher.publish({"n": 503})
            assert (await anext(subscription)).attributes == {"n": 503}
        await cluster.close()
        assert cluster.failures == []

    work()
    (letter,) = [json.loads(line) for line in dead_letters_path(tmp_path, 0).read_bytes().splitlines()]
    assert (letter["client_id"], letter["attributes"], letter["deliveries"]) == ("lab", {"n": 502}, 2)


def test_the_next_cluster_has_what_is_valid(tmp_path: Path) -> None:
    @conversation
    async def work() -> None:
        cluster = await started(tmp_path, "one")
        async with connect(cluster.doors[0], client_id="p") as publisher:
            await publisher.publish_many(({"n": n} for n in range(100)), valid_for=600)
            await publisher.unpublish(7)
            await publisher.publish({"n": 100}, valid_for=math.inf)
            await publisher.publish({"n": 101}, valid_for=0.001)
        await cluster.close()
        assert cluster.failures == []

        cluster = await started(tmp_path, "two")
        async with connect(cluster.doors[0], client_id="lab") as client:
            subscription = await client.subscribe("n >= 0", initial="valid")
            got = [await anext(subscription) for _ in range(100)]
            assert [one.attributes["n"] for one in got] == [n for n in range(101) if n != 6]
            assert all(one.initial for one in got)
            async with connect(cluster.doors[0], client_id="p") as publisher:
                await publisher.publish({"n": 102})
            assert (await anext(subscription)).attributes == {"n": 102}
        await cluster.close()
        assert cluster.failures == []

    work()


class Recorder:
    """A machine that asks for a portion to be stored whenever it is told to drain for the first time."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def handle(self, event: Event) -> list[Instruction]:
        self.heard.append(event)
        return [Store(1, (SaveSession(1, b"x"),))] if isinstance(event, LaneUp) else []


def stored(machine: Recorder) -> bool:
    """Tell whether it was told; events of two kinds may be equal, as they are tuples."""
    return any(isinstance(one, Stored) and one.upto == 1 for one in machine.heard)


@conversation
async def test_a_disk_that_fails_ends_the_machine_and_nothing_is_promised() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = SessionStore(sessions_path(Path(directory), 0), DeadLetters(Path(directory) / "letters", 1000))
        for breaks in (False, True):
            machine = Recorder()
            failed = asyncio.get_running_loop().create_future()
            shell = Shell(Identity(CONNECTION_POINT, 0, 1), b"secret", machine, failed=failed.set_result)
            if breaks:
                store._database.execute("PRAGMA query_only = ON")
            shell.session_writer = Writer(store, lambda: store, stored=shell.stored, failed=shell.store_failed)
            shell.dispatch(LaneUp(COORDINATOR_PEER))
            if not breaks:
                while not stored(machine):
                    await asyncio.sleep(0)
                shell.session_writer.close = lambda: None  # type: ignore[method-assign]
            else:
                failure = await failed
                assert isinstance(failure, StoreError)
                assert "sessions-0.db: attempt to write a readonly database" in str(failure)
                assert not stored(machine)
            await shell.stop()
