"""Shells and lanes over loopback sockets, a whole cluster of them in one process: lanes that are cut lose nothing."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.asking import RunFile, admin_of
from actors.database import StoreError
from actors.shell import Link, Shell
from actors.start import Clocked, start_coordinator, start_role
from actors.store import Store
from actors.transport import Identity
from cluster.client import Client, connect
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.config import ClientPort, Config, Flow, Layers, Timing
from cluster.coordinator import Coordinator
from cluster.errors import KittiwakeError
from cluster.frames import VERSION, Hello, Refused, Subscribe
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    OPERATOR,
    Again,
    Connect,
    Delivered,
    Died,
    Disconnect,
    Drained,
    Event,
    Explained,
    Flush,
    Flushed,
    Instruction,
    Kill,
    LaneDown,
    LaneUp,
    Member,
    Peer,
    Persist,
    Received,
    Send,
    Spawn,
    SpawnFailed,
    StatusRequest,
    Stop,
    Tick,
)
from cluster.role import Role
from tests.unit.conversation import conversation

LOOPBACK = "127.0.0.1"
SECRET = secrets.token_bytes(32)


class Sockets:
    """A cluster whose roles are shells on this loop.

    failures: what machines raised. broken: slots that cannot be started. ended: those that were, by their names.
    """

    def __init__(self, config: Config, directory: Path) -> None:
        self.config = config
        self.coordinator = Coordinator(config)
        self.store = Store(directory / "coordinator.db")
        self.shells: dict[Peer, Shell] = {}
        self.roles: dict[Peer, Role] = {}
        self.doors: list[str] = []
        self.failures: list[BaseException] = []
        self.broken: set[Peer] = set()
        self.ended: list[str] = []
        self.incarnations: dict[Peer, int] = {}
        self._address = (LOOPBACK, 0)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        def supervisor(shell: Shell, address: tuple[str, int]) -> Sockets:
            self.shells[COORDINATOR_PEER] = shell
            self._address = address
            return self

        await start_coordinator(
            self.coordinator, SECRET, host=LOOPBACK, supervisor=supervisor, failed=self.failures.append
        )
        while self.coordinator.state.value != "serving":
            await asyncio.sleep(0.01)
        members: Any = self.coordinator.status()["members"]
        self.doors = [f"kittiwake://{row['client_address']}" for row in members if row["client_address"]]
        self.admin = admin_of(RunFile("test", 0, *self._address, SECRET.hex(), self.doors))

    # As `actors.shell.Supervisor`:

    def spawn(self, peer: Peer, incarnation: int, client_address: str = "") -> None:
        self._do(self._start_role(peer, incarnation, client_address))

    def stop(self, peer: Peer, incarnation: int) -> None:
        if self.incarnations.get(peer) == incarnation:
            self.ended.append(f"{peer.layer}-{peer.slot}-{incarnation}")
            del self.incarnations[peer], self.roles[peer]
            self._do(self.shells.pop(peer).stop())

    def kill(self, peer: Peer, incarnation: int, host: str, pid: int) -> None:
        assert (host, pid) == (LOOPBACK, os.getpid())
        self.stop(peer, incarnation)

    async def die(self, peer: Peer) -> None:
        """A role ends with all that is in it, and the coordinator is told."""
        incarnation = self.incarnations.pop(peer)
        del self.roles[peer]
        await self.shells.pop(peer).stop()
        self.shells[COORDINATOR_PEER].dispatch(Died(peer, incarnation, "killed by the test"))

    def persist(self, memory: bytes, entry: tuple[int, bytes] | None) -> None:
        self.store.write(memory, entry)

    async def _start_role(self, peer: Peer, incarnation: int, client_address: str) -> None:
        if peer in self.broken:
            self.shells[COORDINATOR_PEER].dispatch(SpawnFailed(peer, incarnation, "broken by the test"))
            return
        self.shells[peer], self.roles[peer], _ = await start_role(
            peer,
            incarnation,
            self.config,
            SECRET,
            host=LOOPBACK,
            coordinator=self._address,
            failed=self.failures.append,
            client_address=client_address,
        )
        self.incarnations[peer] = incarnation

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for shell in self.shells.values():
            await shell.stop()
        await asyncio.sleep(0)
        self.store.close()

    def links(self) -> list[tuple[Shell, Link]]:
        """Return both ends of every lane that is connected."""
        return [
            (shell, link)
            for shell in self.shells.values()
            for link in shell._links.values()
            if link.protocol is not None
        ]

    def gauge(self, layer: str, name: str) -> int:
        return sum(role.machine.gauges()[name] for peer, role in self.roles.items() if peer.layer == layer)


PATIENT = Timing(role_lost_ms=60_000)
"""All of these clusters are in one process, which a machine that runs other tests as well may let wait."""


@asynccontextmanager
async def sockets(**sections: Any) -> AsyncIterator[Sockets]:
    sections = {"timing": PATIENT, **sections}
    with tempfile.TemporaryDirectory() as directory:
        config = Config(client_port=ClientPort(port=0), data_directory=directory, **sections)
        cluster = Sockets(config, Path(directory))
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.close()
    assert cluster.failures == []


MANY = Layers(connection_points=2, access_points=2, matchers=3, exit_points=2)


async def read(subscription: Any, count: int, into: dict[str, list[int]]) -> None:
    for _ in range(count):
        one = await anext(subscription)
        into.setdefault(one.publisher, []).append(one.attributes["n"])


@conversation
async def test_a_cluster_over_sockets_delivers() -> None:
    async with (
        sockets(layers=MANY) as cluster,
        connect(cluster.doors[0], client_id="p") as publisher,
        connect(cluster.doors[1], client_id="s") as subscriber,
    ):
        subscription = await subscriber.subscribe("n >= 10")
        await publisher.publish_many({"n": number} for number in range(100))
        got: dict[str, list[int]] = {}
        await read(subscription, 90, got)
        assert got == {"p": list(range(10, 100))}


@conversation
async def test_lanes_that_are_cut_lose_and_double_nothing() -> None:
    """Any end of any lane is cut, again and again, while three publishers publish and filters change."""
    rng = random.Random(1)
    total = 4000
    async with sockets(layers=MANY) as cluster:
        publishers: list[Client] = [
            await connect(cluster.doors[place % 2], client_id=f"p{place}") for place in range(3)
        ]
        async with connect(cluster.doors[1], client_id="s") as subscriber:
            subscription = await subscriber.subscribe("exists n")
            updating = await subscriber.subscribe("other == 1")
            got: dict[str, list[int]] = {}
            reading = asyncio.create_task(read(subscription, 3 * total, got))

            async def publish(publisher: Client) -> None:
                for begin in range(0, total, 50):
                    await publisher.publish_many({"n": begin + step} for step in range(50))

            sending = asyncio.gather(*map(publish, publishers))
            cuts = 0
            while not reading.done():
                if not sending.done():
                    _, link = rng.choice(cluster.links())
                    if link.protocol is not None:
                        link.protocol.abort("cut by the test")
                        cuts += 1
                    await updating.update(f"other == {cuts}")
                await asyncio.sleep(0.005)
            await sending
            assert got == {publisher.client_id: list(range(total)) for publisher in publishers}
            assert cuts > 20
            await publishers[0].publish({"n": -1})
            assert (await anext(subscription)).attributes == {"n": -1}, "no double is on its way"
        assert [one.reconnections for one in publishers] == [0, 0, 0]
        for publisher in publishers:
            await publisher.close()
        assert cluster.gauge(CONNECTION_POINT, "accepted") == 3 * total + 1
        while cluster.coordinator.status()["lost"]:
            await asyncio.sleep(0.01)  # the lane that was cut last


@conversation
async def test_who_comes_before_the_first_tick_is_not_taken_for_silent() -> None:
    async with sockets() as cluster, connect(cluster.doors[0], client_id="early") as early:
        subscription = await early.subscribe("exists n")
        machine: Any = cluster.roles[Peer(CONNECTION_POINT, 0)].machine
        while not (machine._shared.now_ms and cluster.coordinator._shared.now_ms):
            await asyncio.sleep(0.01)
        assert cluster.coordinator.status()["lost"] == 0
        await early.publish({"n": 1})
        assert (await anext(subscription)).attributes == {"n": 1}
        assert early.reconnections == 0


@conversation
async def test_a_stranger_at_a_lane_port_disturbs_nobody() -> None:
    async with sockets() as cluster:
        ports = [shell._server.sockets[0].getsockname()[1] for shell in cluster.shells.values() if shell._server]
        async with connect(cluster.doors[0], client_id="lab") as client:
            subscription = await client.subscribe("exists n")
            for number, port in enumerate(ports * 4):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                writer.write(secrets.token_bytes(100))
                assert await reader.read() == b""
                writer.close()
                await client.publish({"n": number})
                assert (await anext(subscription)).attributes == {"n": number}
        assert all(link.protocol is not None for shell in cluster.shells.values() for link in shell._links.values())


@conversation
async def test_a_client_that_reads_nothing_is_not_read_either() -> None:
    """What it would not read stays within bounds, and others go on; once it reads, it gets all of it."""
    flow = Flow(flight_bytes=1 << 16)
    async with sockets(flow=flow) as cluster:
        host, _, port = cluster.doors[0].removeprefix("kittiwake://").rpartition(":")
        shell = cluster.shells[Peer(CONNECTION_POINT, 0)]
        while shell._acceptor is None or not shell._acceptor.is_open:
            await asyncio.sleep(0.001)  # the coordinator serves before the connection point has heard of it
        reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
        writer.write(encode_frame(Hello(VERSION, "deaf", 1, 10)))
        requests = 60_000
        asked = asyncio.create_task(
            _ask(writer, requests, lambda number: encode_frame(Subscribe(number, 0, "(" + "x" * 40, "block")))
        )
        machine: Any = cluster.roles[Peer(CONNECTION_POINT, 0)].machine
        while not any(one.full_ms is not None for one in machine._shared.connections.values()):
            await asyncio.sleep(0.01)
        async with connect(cluster.doors[0], client_id="other") as other:
            subscription = await other.subscribe("exists n")
            for number in range(100):
                await other.publish({"n": number})
                assert (await anext(subscription)).attributes == {"n": number}
        (deaf,) = (one for one in shell._clients.values() if one._transport is not None)
        assert deaf._transport.get_write_buffer_size() < 1 << 20  # type: ignore[union-attr]
        frames = FrameReader(1 << 20)
        answers: list[int] = []
        while len(answers) < requests:
            for body in frames.feed(await reader.read(1 << 16)):
                frame = decode_server_frame(body)
                if isinstance(frame, Refused):
                    answers.append(frame.request)
        assert answers == list(range(requests))
        await asked
        writer.close()


async def _ask(writer: asyncio.StreamWriter, count: int, frame: Callable[[int], bytes]) -> None:
    for number in range(count):
        writer.write(frame(number))
        if number % 500 == 0:
            await writer.drain()


# While it serves -----------------------------------------------------------------------------------------------------


@conversation
async def test_layers_grow_and_shrink_under_traffic() -> None:
    async with (
        sockets() as cluster,
        connect(cluster.doors[0], client_id="p") as publisher,
        connect(cluster.doors[0], client_id="s") as subscriber,
    ):
        group = await subscriber.subscribe_many([f"rest == {rest}" for rest in range(7)])
        got: list[int] = []
        sent = 0
        done = False

        async def publish() -> None:
            nonlocal sent
            while not done:
                await publisher.publish_many({"n": sent + step, "rest": (sent + step) % 7} for step in range(10))
                sent += 10

        async def read_all() -> None:
            async for one in group:
                if one.attributes["n"] < 0:
                    return
                assert one.subscription_ids == (one.attributes["n"] % 7,)
                got.append(one.attributes["n"])

        publishing, reading = asyncio.create_task(publish()), asyncio.create_task(read_all())
        steps: list[Any] = [
            {"matchers": 3, "exit_points": 2},
            {"access_points": 2, "strategy": "all_at_once"},
            {"replace": [("matcher", 1), ("exit_point", 0)], "strategy": "stop_swap"},
            {"matchers": 1, "exit_points": 1, "access_points": 1},
        ]
        for step in steps:
            operation = await cluster.admin.scale(**step)
            assert operation["state"] == "done", operation
            assert operation["groups_moved"] == operation["groups_minimum"]
        done = True
        await publishing
        await publisher.publish({"n": -1, "rest": 0})
        await reading
        assert got == list(range(sent))
        assert publisher.reconnections == subscriber.reconnections == 0
        while len(cluster.roles) > 4:
            await asyncio.sleep(0.01)  # it is done once the view is; those that leave may take longer
        assert {(peer.layer, peer.slot) for peer in cluster.roles} == {
            (CONNECTION_POINT, 0),
            (ACCESS_POINT, 0),
            (MATCHER, 0),
            (EXIT_POINT, 1),  # the lower of those after the replacement
        }
        assert len(cluster.ended) == 6
        status = await cluster.admin.status()
        assert (status["state"], status["lost"], len(status["members"])) == ("serving", 0, 4)
        memory, history = cluster.store.read()
        assert memory is not None
        assert [one.state for one in history] == ["done"] * 4
        assert memory.view is not None
        assert memory.view.epoch == status["epoch"]


@conversation
async def test_roles_that_die_under_traffic_are_brought_back_and_nothing_is_lost_or_doubled() -> None:
    async with (
        sockets(layers=Layers(matchers=2)) as cluster,
        connect(cluster.doors[0], client_id="p") as publisher,
        connect(cluster.doors[0], client_id="s") as subscriber,
    ):
        group = await subscriber.subscribe_many([f"rest == {rest}" for rest in range(7)])
        got: list[int] = []
        sent = 0
        done = False

        async def publish() -> None:
            nonlocal sent
            while not done:
                await publisher.publish_many({"n": sent + step, "rest": (sent + step) % 7} for step in range(10))
                sent += 10

        async def read_all() -> None:
            async for one in group:
                if one.attributes["n"] < 0:
                    return
                assert one.subscription_ids == (one.attributes["n"] % 7,)
                got.append(one.attributes["n"])

        publishing, reading = asyncio.create_task(publish()), asyncio.create_task(read_all())
        dead = [Peer(MATCHER, 1), Peer(EXIT_POINT, 0), Peer(CONNECTION_POINT, 0)]
        for number, peer in enumerate(dead, start=1):
            before = sent
            while sent == before:
                await asyncio.sleep(0.01)
            await cluster.die(peer)
            while cluster.coordinator.status()["recovered"] != number:
                await asyncio.sleep(0.01)
        done = True
        await publishing
        while not reading.done():
            # The subscriber may be back later than the publisher, and gets nothing of before.
            await publisher.publish({"n": -1, "rest": 0})
            await asyncio.wait([reading], timeout=0.1)
        await reading
        assert got == sorted(set(got)), "in order, and once"
        assert publisher.reconnections == subscriber.reconnections == 1, "its door was opened again where it was"
        # The subscriber's session went down with its connection point; what is lost is of that time alone.
        missing = sorted(set(range(sent)) - set(got))
        assert missing == [] or missing == list(range(missing[0], missing[-1] + 1))
        status = await cluster.admin.status()
        assert [one["replaced"] for one in status["recoveries"]] == [[str(peer)] for peer in dead]
        assert cluster.gauge("connection_point", "unacknowledged_bytes") == 0
        assert (
            sum(role.machine.gauges()["subscriptions"] for role in cluster.roles.values() if role.peer.layer == MATCHER)
            == 7
        )


@conversation
async def test_what_cannot_be_started_ends_the_operation_and_nothing_else() -> None:
    async with sockets() as cluster, connect(cluster.doors[0], client_id="lab") as client:
        cluster.broken.add(Peer(MATCHER, 1))
        operation = await cluster.admin.scale(matchers=2)
        assert operation["state"] == "aborted"
        assert operation["reason"] == "matcher 1 could not be started: broken by the test"
        cluster.broken.clear()
        assert (await cluster.admin.scale(matchers=2))["state"] == "done"
        subscription = await client.subscribe("exists n")
        await client.publish({"n": 1})
        assert (await anext(subscription)).attributes == {"n": 1}
        with pytest.raises(KittiwakeError, match=r"matcher 7 is not in the cluster; its slots are 0, 1"):
            await cluster.admin.replace("matcher", 7)


# A shell alone -------------------------------------------------------------------------------------------------------


class Script:
    """A handler that does what it is told. events: what it has been told, without ticks and drains."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> list[Instruction]:
        if not isinstance(event, Tick | Drained):
            self.events.append(event)
        return []

    def count(self, event: Event) -> int:
        """Return how often it was told this; events of two kinds may be equal, as they are tuples."""
        return sum(type(one) is type(event) and one == event for one in self.events)

    async def until(self, event: Event) -> None:
        while not self.count(event):
            await asyncio.sleep(0.001)


class Actor:
    """A scripted shell, and how to reach it."""

    def __init__(self, layer: str, incarnation: int = 1) -> None:
        self.script = Script()
        self.failures: list[BaseException] = []
        self.identity = Identity(layer, 0, incarnation)
        self.peer = self.identity.peer
        self.shell = Shell(self.identity, SECRET, self.script, failed=self.failures.append)

    async def listen(self) -> Actor:
        port = await self.shell.listen(LOOPBACK)
        self.member = Member(*self.identity, LOOPBACK, port)
        return self

    async def connect(self, other: Actor) -> None:
        self.shell.perform([Connect(other.member)])
        await asyncio.gather(self.script.until(LaneUp(other.peer)), other.script.until(LaneUp(self.peer)))


@asynccontextmanager
async def actors(*wanted: tuple[str, int]) -> AsyncIterator[list[Actor]]:
    made = [await Actor(layer, incarnation).listen() for layer, incarnation in wanted]
    try:
        yield made
    finally:
        for one in made:
            await one.shell.stop()
        await asyncio.sleep(0)


@conversation
async def test_flushed_comes_when_all_that_was_sent_is_taken() -> None:
    async with actors((MATCHER, 1), (EXIT_POINT, 1)) as (one, other):
        await one.connect(other)
        taken: list[int] = []
        one.shell.perform([Send(other.peer, Delivered([number])) for number in range(9)] + [Flush()])
        while not one.script.count(Flushed()):
            taken = [event.message.tokens[0] for event in other.script.events if isinstance(event, Received)]
            assert one.shell.held_bytes() > 0
            await asyncio.sleep(0)
        taken = [event.message.tokens[0] for event in other.script.events if isinstance(event, Received)]
        assert taken == list(range(9))
        assert one.shell.held_bytes() == 0
        one.script.events.clear()
        one.shell.perform([Flush()])  # there is nothing
        await one.script.until(Flushed())


@conversation
async def test_flushed_waits_for_a_lane_without_a_connection_until_it_is_let_go_of() -> None:
    async with actors((MATCHER, 1), (EXIT_POINT, 1)) as (one, other):
        await one.connect(other)
        await other.shell.stop()
        await one.script.until(LaneDown(other.peer))
        one.shell.perform([Send(other.peer, Delivered([1])), Flush()])
        for _ in range(3):
            one.shell._tick()
        assert not one.script.count(Flushed())
        one.shell.perform([Disconnect(other.member)])
        await one.script.until(Flushed())


@conversation
async def test_who_asks_to_be_drained_after_a_rest_has_one_whatever_else_comes() -> None:
    """A turn that took a while is followed by as long a rest, in which others' turns say so."""
    async with actors((MATCHER, 1)) as (one,):
        drains: list[bool] = []

        def handle(event: Event) -> list[Instruction]:
            if not isinstance(event, Drained):
                return []
            drains.append(event.rested)
            if not event.rested or len(drains) > 10:
                return []
            time.sleep(0.02)
            return [Again(rest=True)]

        one.script.handle = handle  # type: ignore[method-assign]
        one.shell.tell(Tick(1))
        while len(drains) < 10:
            one.shell.tell(Tick(1))
            await asyncio.sleep(0.005)
        assert drains[0], "nothing had been asked for"
        assert False in drains, "no turn fell into a rest"
        assert drains.count(True) > 1, "rests end"


@conversation
async def test_a_peer_that_is_gone_gets_nothing_and_is_not_let_in_again() -> None:
    async with actors((MATCHER, 1), (EXIT_POINT, 1), (EXIT_POINT, 2)) as (one, old, new):
        await one.connect(old)
        await old.connect(one)  # does nothing: there is a lane
        one.shell.perform([Disconnect(old.member), Send(old.peer, Delivered([1]))])
        await old.script.until(LaneDown(one.peer))
        old.shell._links.clear()
        old.shell.perform([Connect(one.member)])
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert one.peer in old.shell._links, "it goes on trying"
        assert one.script.count(LaneUp(old.peer)) == 1, "and is not let in"
        await new.connect(one)
        one.shell.perform([Disconnect(old.member), Send(new.peer, Delivered([2]))])  # an older one than there is
        await new.script.until(Received(one.peer, Delivered([2])))
        assert not one.failures


@conversation
async def test_a_peer_that_never_was_is_a_mistake() -> None:
    class Sender(Script):
        def handle(self, event: Event) -> list[Instruction]:
            return [Send(Peer(MATCHER, 9), Delivered([1]))] if isinstance(event, LaneUp) else []

    async with actors((MATCHER, 1)) as (one,):
        one.shell.handler = Sender()
        one.shell.dispatch(LaneUp(Peer(EXIT_POINT, 0)))
        assert [str(error) for error in one.failures] == ["matcher 0 has no lane to matcher 9"]


class Recorder:
    """A supervisor that writes down what it is asked for. full: the disk is."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.full = False

    def spawn(self, peer: Peer, incarnation: int, client_address: str) -> None:
        self.asked.append(("spawn", (peer, incarnation, client_address)))

    def stop(self, peer: Peer, incarnation: int) -> None:
        self.asked.append(("stop", (peer, incarnation)))

    def kill(self, peer: Peer, incarnation: int, host: str, pid: int) -> None:
        self.asked.append(("kill", (peer, incarnation, host, pid)))

    def persist(self, memory: bytes, entry: tuple[int, bytes] | None) -> None:
        if self.full:
            raise StoreError("the disk is full")
        self.asked.append(("persist", (memory, entry)))


@conversation
async def test_what_follows_from_a_memory_waits_until_it_is_on_disk() -> None:
    peer = Peer(MATCHER, 1)

    class Deciding(Script):
        def handle(self, event: Event) -> list[Instruction]:
            asked = [Persist(b"m", (1, b"{}")), Spawn(peer, 5, "door"), Stop(peer, 4), Kill(peer, 3, "host", 99)]
            return asked if isinstance(event, LaneUp) else []

    async with actors((COORDINATOR, 1)) as (one,):
        supervisor = Recorder()
        one.shell.handler = Deciding()
        one.shell.supervisor = supervisor
        one.shell.dispatch(LaneUp(peer))
        assert supervisor.asked == [
            ("persist", (b"m", (1, b"{}"))),
            ("spawn", (peer, 5, "door")),
            ("stop", (peer, 4)),
            ("kill", (peer, 3, "host", 99)),
        ]
        supervisor.full = True
        one.shell.dispatch(LaneUp(peer))
        assert len(supervisor.asked) == 4, "nothing follows from what is not on disk"
        assert [str(error) for error in one.failures] == ["the disk is full"]


def test_the_coordinator_knows_the_time_of_what_it_is_told() -> None:
    told: list[Event] = []

    class Machine:
        def handle(self, event: Event) -> list[Instruction]:
            told.append(event)
            return []

    clocked = Clocked(Machine())  # type: ignore[arg-type]
    asked = Received(Peer("operator", 0), StatusRequest())
    clocked.handle(asked)
    tick, event = told
    assert isinstance(tick, Tick)
    assert tick.now_ms > 0
    assert event == asked
    told.clear()
    clocked.handle(Tick(5))
    clocked.handle(Drained())
    assert told == [Tick(5), Drained()], "these need no other"


@conversation
async def test_a_coordinator_of_a_later_life_is_found_at_the_same_address() -> None:
    async with actors((MATCHER, 5), (COORDINATOR, 1)) as (role, first):
        place = first.member
        role.shell.perform([Connect(Member(*first.peer, 0, place.host, place.port))])
        await asyncio.gather(role.script.until(LaneUp(first.peer)), first.script.until(LaneUp(role.peer)))
        role.shell.perform([Send(first.peer, Delivered([1]))])
        await first.script.until(Received(role.peer, Delivered([1])))
        (link,) = role.shell._links.values()
        assert link.protocol is not None
        link.protocol.abort("cut by the test")
        while role.script.count(LaneUp(first.peer)) < 2:
            await asyncio.sleep(0.001)
        role.shell.perform([Send(first.peer, Delivered([2]))])
        await first.script.until(Received(role.peer, Delivered([2])))  # the same lane goes on
        await first.shell.stop()
        await role.script.until(LaneDown(first.peer))
        role.shell.perform([Send(first.peer, Delivered([3]))])  # lost with the life that it was for
        second = Actor(COORDINATOR, 2)
        await second.shell.listen(LOOPBACK, place.port)
        await second.script.until(LaneUp(role.peer))
        while role.script.count(LaneUp(first.peer)) < 3:
            await asyncio.sleep(0.001)
        role.shell.perform([Send(first.peer, Delivered([4]))])
        await second.script.until(Received(role.peer, Delivered([4])))
        assert not second.script.count(Received(role.peer, Delivered([3])))
        await second.shell.stop()


@conversation
async def test_why_is_asked_over_sockets_of_two_connection_points() -> None:
    async with (
        sockets(layers=MANY) as cluster,
        connect(cluster.doors[0], client_id="roof") as roof,
        connect(cluster.doors[1], client_id="lab") as lab,
    ):
        subscription = await lab.subscribe("n >= 10")
        await roof.publish({"n": 9})
        await roof.publish({"n": 10})
        assert (await anext(subscription)).sequence == 2
        who: dict[str, Any] = {"client_id": "lab", "number": subscription.id, "publisher": "roof"}
        codes = [
            (await cluster.admin.why({"n": n}, sequence=sequence, **who))["delivery"]["code"]
            for sequence, n in ((1, 9), (2, 10), (3, 10))
        ]
        assert codes[0] == "not_matching"
        assert codes[1] in ("delivered", "consumed")
        assert codes[2] == "not_published"


@conversation
async def test_an_operator_that_leaves_before_its_answer_does_no_harm() -> None:
    async with sockets() as cluster, connect(cluster.doors[0], client_id="lab") as lab:
        await lab.subscribe("exists n")
        peer = Peer(CONNECTION_POINT, 0)
        handler = cluster.shells[peer].handler
        cluster.shells[peer].handler = None  # it answers nothing
        asking = asyncio.create_task(cluster.admin.why({"n": 1}, client_id="lab"))
        questions = cluster.coordinator._questions
        while not questions._open:
            await asyncio.sleep(0.001)
        asking.cancel()
        coordinator = cluster.shells[COORDINATOR_PEER]
        while any(link.layer == OPERATOR for link in coordinator._links):
            await asyncio.sleep(0.001)
        (number,) = questions._open
        cluster.shells[peer].handler = handler
        coordinator.dispatch(Received(peer, Explained(number, b"{}")))
        assert not questions._open
        assert (await cluster.admin.why({"n": 1}, client_id="lab"))["matches"] is True
