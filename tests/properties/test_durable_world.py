"""Durable sessions among all the real machines, in random order: lanes, sockets and disks at their own speed,
connections that are lost, programs that die, crashes of any role, also of the session's home; connection points come
and go, so that sessions change their home, and wishes are taken back.

    no loss     what was acknowledged to its publisher, and published after the subscription was confirmed, comes
    order       per publisher, what comes for the first time comes in order
    doubles     a notification that this program or an earlier one was handed comes again only with the flag; after
                what it has acknowledged, at most a window for each crash of the home
    home        each session lives at one connection point in the end, and nothing is left of it elsewhere
    memory      what a session that has moved remembers of publishers is gone in the end, on disk too; and what is
                published after that, with more crashes, comes as before
    valid       a subscription that is opened later with what is valid gets all of it that was acknowledged by then, and
                before what is live

Clients are the SDK's pure half. `test_a_queue_out_of_order_is_noticed` and its neighbours break the machines, to see
that this sees it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from unittest.mock import patch

import msgpack
import msgspec
import pytest

from cluster import connection_point, validity
from cluster.assembly import Assembly
from cluster.client.delivery import Inbox
from cluster.client.protocol import ClientProtocol, Durable, Ended, Moving
from cluster.client.publishing import Offer
from cluster.codec import decode_message, encode_message
from cluster.config import Config, Layers, Timing, Transitions
from cluster.connection_point import ConnectionPoint
from cluster.durable import DurableSession, Portion
from cluster.durable.marks import Marks
from cluster.durable.sending import Sending
from cluster.frames import UNTIL_UNPUBLISHED
from cluster.journal import Took
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    Died,
    DurableMoved,
    Peer,
    Received,
    Request,
    Tick,
)
from cluster.serving import giving
from cluster.serving.attaching import Attaching
from cluster.serving.delivering import Delivering

SEEDS = 40
TIMING = Timing(client_heartbeat_ms=10**8, role_heartbeat_ms=10**6, role_lost_ms=10**8)
TRANSITIONS = Transitions(move_clients_ms=500)
WINDOW = 4


@dataclass(eq=False)
class Wire:
    """A socket: frames on their way up and down; None at the end of `down` is its close."""

    number: int
    peer: Peer
    client: Someone
    up: list[bytes] = field(default_factory=list)
    down: list[bytes | None] = field(default_factory=list)


class Someone:
    """A client over its connections; `protocol` is another one after its program has died."""

    def __init__(self, world: World, name: str, durable: Durable | None) -> None:
        self.world = world
        self.name = name
        self.durable = durable
        self.wire: Wire | None = None
        self.home: Peer | None = None
        self.inbox = Inbox()
        self.protocol = self.begin()

    def begin(self) -> ClientProtocol:
        self.inbox = Inbox()
        return ClientProtocol(self.name, self.world.rng.getrandbits(60), WINDOW, durable=self.durable)

    def connect(self) -> None:
        world = self.world
        serving = sorted(world.assembly.serving)
        if self.wire is not None or not serving:
            return
        peer = self.home if self.home in serving and world.rng.random() < 0.8 else world.rng.choice(serving)
        assert peer is not None
        world.connections += 1
        self.wire = world.wires[world.connections] = Wire(world.connections, peer, self)
        world.assembly.feed(peer, ClientConnected(world.connections))
        self.protocol.connection_made()
        self.write()

    def write(self) -> None:
        frames = self.protocol.take_output()
        if self.wire is not None:
            self.wire.up += frames

    def lose(self) -> None:
        """The connection is lost, as the client sees it."""
        if self.wire is not None:
            wire, self.wire = self.wire, None
            self.protocol.connection_lost()
            self.world.hang_up(wire)

    def receive(self, data: bytes | None) -> None:
        if data is None:
            self.lose()
            return
        for outcome in self.protocol.receive(data):
            if isinstance(outcome, Moving):
                self.lose()  # as any lost connection
                return
            if isinstance(outcome, Ended):
                assert outcome.reconnect, outcome
                if outcome.address:
                    self.home = Peer(CONNECTION_POINT, int(outcome.address.rpartition(":")[2]))
                self.lose()
                return
        self.write()


class Subscriber(Someone):
    """Its program notes what it is handed, and dies now and then.

    valid: whose publications are valid for ever; then it subscribes late, and is to get these too.

    confirmed: how many publications of each publisher had been offered when the subscription was confirmed.
    handed: what came, as (publisher, n). acknowledged: of these, what the program was done with.
    """

    def __init__(self, world: World, name: str, text: str, least: int, valid: str = "") -> None:
        super().__init__(world, name, Durable())
        self.text = text
        self.valid = valid
        self.subscribed = False
        self.least = least
        self.confirmed: Counter[str] | None = None
        self.handed: set[tuple[str, int]] = set()
        self.acknowledged: set[tuple[str, int]] = set()
        self.last: Counter[str] = Counter()
        self.doubles = 0
        self.forgiven = 0
        self.given = 0
        self.settled = 0  # of those that are valid, when the subscription was asked for
        if not valid:
            self.subscribe()

    def subscribe(self) -> None:
        if not self.subscribed:
            offers = [offer for one in self.world.publishers if one.name == self.valid for offer in one.offers]
            self.settled = sum(1 for _ in takewhile(lambda offer: offer.settled, offers))
        self.subscribed = True
        request = self.protocol.requests.open(self.text, "block", lambda _: None, valid=bool(self.valid))
        self.protocol.delivery.open(request.number, self.inbox, valid=bool(self.valid))
        self.write()

    def receive(self, data: bytes | None) -> None:
        super().receive(data)
        if self.protocol.left_behind:
            self.protocol.take_up(sorted(self.protocol.left_behind), self.inbox)
        entry = self.protocol.requests._entries.get(0)
        if self.confirmed is None and entry is not None and entry.filter is not None:
            self.confirmed = Counter(self.world.offered)

    def die(self) -> None:
        """The program dies; what it was handed and not done with it does not know any more."""
        self.lose()
        self.protocol = self.begin()
        self.forgiven += WINDOW
        if self.confirmed is None and self.subscribed:
            self.subscribe()

    def work(self) -> None:
        """Take one notification, and be done with it, as a rule."""
        if not self.inbox.queue:
            return
        one = self.inbox.queue.popleft()
        key = (one.publisher, int(one.attributes["n"] or 0))
        if key in self.handed:
            assert one.redelivered, f"{self.name} is handed {key} again, without the flag"
            self.doubles += key in self.acknowledged
        else:
            assert key[1] > self.last[key[0]], f"{self.name} is handed {key} after {self.last[key[0]]}"
            self.last[key[0]] = key[1]
        if one.initial:
            assert one.publisher == self.valid, f"{self.name} is given {key} as valid"
            self.given += 1
        self.handed.add(key)
        self.acknowledged.add(key)
        self.protocol.delivery.took(one)
        self.protocol.report_consumed()
        self.write()


class Publisher(Someone):
    """Publishes n = 1, 2, ..., valid for ever or not at all."""

    def __init__(self, world: World, name: str, valid_for_ms: int = 0) -> None:
        super().__init__(world, name, None)
        self.valid_for_ms = valid_for_ms
        self.offers: list[Offer] = []

    def publish(self) -> None:
        offer = Offer((msgpack.packb({"n": len(self.offers) + 1}),), 1, valid_for_ms=self.valid_for_ms)
        self.offers.append(offer)
        self.world.offered[self.name] += 1
        self.protocol.publishing.offer(offer)
        self.write()


class World:
    """All of it. `run` plays a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        layers = Layers(
            connection_points=2,
            access_points=self.rng.randint(1, 2),
            matchers=self.rng.randint(1, 2),
            exit_points=self.rng.randint(1, 2),
        )
        self.offered: Counter[str] = Counter()
        self.connections = 0
        self.moved = 0  # sessions that have come to a connection point, or were said to
        self.wires: dict[int, Wire] = {}
        self.now_ms = 1000
        self.disks = self.rng.choice([0.02, 0.2, 1.0])  # how fast they are
        config = Config(layers=layers, timing=TIMING, transitions=TRANSITIONS)
        self.durable = config.durable
        self.aged = False  # sessions that had moved have forgotten what they were offered elsewhere
        self.assembly = Assembly(config, self._output)
        self.settle()
        self.publishers: list[Publisher] = []
        self.subscribers = [
            Subscriber(self, "all", "n > 0", 1),
            Subscriber(self, "some", "n > 10", 11),
            Subscriber(self, "late", "n > 2", 3, valid="q"),
        ]
        self.publishers = [Publisher(self, "p"), Publisher(self, "q", UNTIL_UNPUBLISHED)]
        self.clients: list[Someone] = [*self.subscribers, *self.publishers]
        self.crashes: Counter[str] = Counter()
        self.crashed_giving = 0

    def _output(self, peer: Peer, connection: int, data: bytes | None) -> None:
        wire = self.wires.get(connection)
        if wire is not None:
            wire.down.append(data)

    def hang_up(self, wire: Wire) -> None:
        if self.wires.pop(wire.number, None) is not None:
            self.assembly.feed(wire.peer, ClientClosed(wire.number))

    def crash(self, peer: Peer) -> None:
        """A role dies; its clients' sockets end."""
        self.crashes[peer.layer] += 1
        incarnation = self.assembly.incarnations[peer]
        if peer.layer == CONNECTION_POINT:
            for subscriber in self.subscribers:
                subscriber.forgiven += WINDOW
            for wire in [wire for wire in self.wires.values() if wire.peer == peer]:
                del self.wires[wire.number]
                if wire.client.wire is wire:
                    wire.client.wire = None
                    wire.client.protocol.connection_lost()
        self.assembly.crash(peer)
        self.assembly.feed(COORDINATOR_PEER, Died(peer, incarnation, "by the test"))

    def tick(self) -> None:
        self.now_ms += 50
        for peer in (COORDINATOR_PEER, *list(self.assembly.roles)):
            self.assembly.feed(peer, Tick(self.now_ms))

    def moves(self) -> list[Callable[[], object]]:
        """Return what may happen next."""
        assembly = self.assembly
        found: list[Callable[[], object]] = []
        for lane in assembly.lanes:
            found.append(lambda lane=lane: self.deliver(*lane))
        for peer in sorted(assembly.touched):
            found.append(lambda peer=peer: assembly.drain(peer))
        for wire in self.wires.values():
            if wire.up:
                found.append(lambda wire=wire: self.up(wire))
            if wire.down:
                found.append(lambda wire=wire: wire.client.receive(wire.down.pop(0)))
        if not found or self.rng.random() < self.disks:
            for peer in assembly.unsynced():
                found.append(lambda peer=peer: assembly.sync(peer, self.rng.choice([1, None])))
        return found

    def up(self, wire: Wire) -> None:
        self.assembly.feed(wire.peer, ClientBytes(wire.number, wire.up.pop(0), self.now_ms * 1000))

    def deliver(self, sender: Peer, receiver: Peer) -> None:
        message = decode_message(encode_message(self.assembly.take(sender, receiver)))
        self.moved += isinstance(message, DurableMoved)
        self.assembly.feed(receiver, Received(sender, message))
        self.assembly.see_flushed(sender)

    def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(100_000):
            found = self.moves()
            if not found:
                return
            self.rng.choice(found)()
        raise AssertionError("it does not come to rest")

    def act(self) -> None:
        """A client, the network or a role does something."""
        rng = self.rng
        what = rng.random()
        if what < 0.02:
            for subscriber in self.subscribers:
                if not subscriber.subscribed:
                    subscriber.subscribe()
        elif what < 0.35:
            rng.choice(self.publishers).publish()
        elif what < 0.65:
            rng.choice(self.subscribers).work()
        elif what < 0.8:
            rng.choice(self.clients).connect()
        elif what < 0.86:
            rng.choice(self.clients).lose()
        elif what < 0.89:
            rng.choice(self.subscribers).die()
        elif what < 0.91:
            self.wish()
        elif what < 0.95 and self.assembly.coordinator._shared.recovery is None:
            self.crash(rng.choice([*sorted(self.assembly.roles), *self.assembly.connection_points()]))
        else:
            self.tick()

    def run(self) -> None:
        with patch.multiple(validity, PIECE=3, PIECE_LOOKS=10, LOOKS=4), patch.multiple(giving, PIECE=3):
            self._run()

    def _run(self) -> None:
        for _ in range(500):
            if self.rng.random() < 0.2:
                self.act()
            home = self.giving()
            if home is not None and self.rng.random() < 0.08 and self.assembly.coordinator._shared.recovery is None:
                self.crashed_giving += 1
                self.crash(home)
            found = self.moves()
            if found:
                self.rng.choice(found)()
        self._heal()
        self._check()
        self._move()
        self._go_on()
        self._heal()
        self._check()
        self._age()
        self._go_on()
        self._heal()
        self._check()

    def sessions(self) -> list[DurableSession]:
        """Return all sessions, wherever they live."""
        points = self.assembly.connection_points()
        return [one for peer in points for one in machine_of(self, peer)._homes._sessions.values()]

    def marked(self) -> bool:
        """Tell whether any of them, or a disk, remembers how far it was offered what each publisher sent."""
        stored = [one.marks for disk in self.assembly.session_disks.values() for one in disk.read().sessions]
        return any(stored) or any(session.marks is not None for session in self.sessions())

    def _move(self) -> None:
        """A connection point where sessions live is to be replaced, or to go."""
        homes = [peer for peer in self.assembly.connection_points() if machine_of(self, peer)._homes.client_ids]
        slot = self.rng.choice(homes).slot
        if len(homes) > 1 and self.rng.random() < 0.5:
            self.ask(connection_points=1)
        else:
            self.ask(replace=[["connection_point", slot]])

    def _age(self) -> None:
        """Nothing happens for a long time."""
        for _ in range(5):
            if not self.marked():
                return
            self.aged = True
            self.now_ms += 1000 * self.durable.publisher_away_s + 2000
            self.tick()
            self.settle()
        raise AssertionError("marks are kept for ever")

    def _go_on(self) -> None:
        """More is published, clients come again, roles die."""
        for _ in range(200):
            what = self.rng.random()
            if what < 0.2:
                self.rng.choice(self.publishers).publish()
            elif what < 0.3:
                self.rng.choice(self.clients).connect()
            elif what < 0.4:
                self.tick()
            elif what < 0.42 and self.assembly.coordinator._shared.recovery is None:
                self.crash(self.rng.choice([*sorted(self.assembly.roles), *self.assembly.connection_points()]))
            found = self.moves()
            if found:
                self.rng.choice(found)()

    def wish(self) -> None:
        """An operator wants something."""
        rng = self.rng
        if rng.random() < 0.2:
            self.assembly.request(Request("abort", b"{}"))
        elif rng.random() < 0.3:
            slot = rng.choice(self.assembly.connection_points()).slot
            self.ask(replace=[["connection_point", slot]])
        else:
            self.ask(connection_points=rng.randint(1, 3))

    def ask(self, **wanted: object) -> None:
        self.assembly.request(Request("scale", msgspec.json.encode(wanted)))

    def giving(self) -> Peer | None:
        """Return a connection point in the midst of giving a session what is valid."""
        for peer in self.assembly.connection_points():
            for session in machine_of(self, peer)._homes._sessions.values():
                if any(initial.upto is not None for initial in session.serving.values()):
                    return peer
        return None

    def _heal(self) -> None:
        for subscriber in self.subscribers:
            if not subscriber.subscribed:
                subscriber.subscribe()
        for _ in range(200):
            self.settle()
            self.tick()
            for client in self.clients:
                client.connect()
            for subscriber in self.subscribers:
                while subscriber.inbox.queue:
                    subscriber.work()
            if not self._owed() and all(client.protocol.state == "open" for client in self.clients):
                return
        raise AssertionError(f"never at rest: {self._owed()}")

    def _owed(self) -> list[str]:
        owed = [f"{one.name} unacknowledged" for one in self.publishers if not all(o.settled for o in one.offers)]
        for one in self.subscribers:
            if one.inbox.queue or one.confirmed is None:
                owed.append(f"{one.name} not done")
        for peer in self.assembly.connection_points():
            gauges = self.assembly.roles[peer].machine.gauges()
            names = ("durable_queued", "durable_bytes", "held_runs", "durable_arriving")
            owed += [f"{peer} {name}" for name in names if gauges[name]]
            if machine_of(self, peer)._leaving.moving is not None:
                owed.append(f"{peer} is leaving")
        return owed

    def _check(self) -> None:
        for one in self.subscribers:
            assert one.confirmed is not None
            for publisher in self.publishers:
                wanted = [*range(max(one.confirmed[publisher.name] + 1, one.least), len(publisher.offers) + 1)]
                if publisher.name == one.valid:
                    wanted += range(one.least, one.settled + 1)
                missing = [n for n in wanted if (publisher.name, n) not in one.handed]
                assert not missing, f"{one.name} has not got {missing} of {publisher.name}"
            assert one.doubles <= one.forgiven, f"{one.name} was handed {one.doubles} again"
        homes: list[str] = []
        for peer in self.assembly.connection_points():
            for session in machine_of(self, peer)._homes._sessions.values():
                session.check()
                homes.append(session.client_id)
        assert sorted(homes) == sorted(one.name for one in self.subscribers)
        stored = {
            peer: [one.session for one in disk.read().sessions] for peer, disk in self.assembly.session_disks.items()
        }
        assert sum(map(len, stored.values())) == len(homes), f"on disk are {stored}"


def machine_of(world: World, peer: Peer) -> ConnectionPoint:
    machine = world.assembly.roles[peer].machine
    assert isinstance(machine, ConnectionPoint)
    return machine


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_history(seed: int) -> None:
    World(seed).run()


def test_the_histories_have_what_they_are_about() -> None:
    crashes: Counter[str] = Counter()
    doubles = given = crashed_giving = moved = aged = 0
    for seed in range(8):
        world = World(seed)
        world.run()
        crashes += world.crashes
        given += sum(one.given for one in world.subscribers)
        crashed_giving += world.crashed_giving
        moved += world.moved
        aged += world.aged
        doubles += sum(one.doubles for one in world.subscribers)
    assert len(crashes) == 4, crashes
    assert crashes[CONNECTION_POINT] > 5
    assert doubles > 0
    assert given > 20
    assert crashed_giving > 0
    assert moved > 3
    assert aged > 2


def caught() -> bool:
    """Tell whether one of the seeds fails."""
    for seed in range(SEEDS):
        try:
            World(seed).run()
        except AssertionError:
            return True
    return False


def test_a_queue_out_of_order_is_noticed() -> None:
    take = Sending.take

    def reordered(self: Sending, end: int) -> list[Portion]:
        if len(self.ready) > 1:
            self.ready.rotate(1)
        return take(self, end)

    with patch.object(Sending, "take", reordered):
        assert caught()


def test_promising_what_is_not_on_disk_is_noticed() -> None:
    def at_once(self: Delivering, exit_point: int, runs: object, used: object, held: object) -> None:
        """Nothing waits."""

    with patch.object(Delivering, "_hold_until_stored", at_once):
        assert caught()


def test_sequences_that_are_not_restored_are_noticed() -> None:
    restore = Attaching.restore

    def forgetful(self: Attaching, recovered: object) -> None:
        restore(self, recovered._replace(took=[]))  # type: ignore[attr-defined]

    assert Took is not None
    with patch.object(Attaching, "restore", forgetful):
        assert caught()


def test_what_both_homes_have_taken_is_noticed() -> None:
    take_over = DurableSession.take_over

    def forgetful(self: DurableSession, state: bytes, deliveries: bytes, entries: Any, _: object) -> None:
        take_over(self, state, deliveries, entries, [])

    with patch.object(DurableSession, "take_over", forgetful):
        assert caught()


def test_marks_that_end_too_early_are_noticed() -> None:
    with patch.object(connection_point, "FORGET_MS", 50), patch.object(Marks, "over", lambda *_: True):
        assert caught()


def test_a_missing_flag_is_noticed() -> None:
    with patch.object(Sending, "_portion", lambda _, entries: Portion(entries, [False] * len(entries))):
        assert caught()
