"""One run: the cluster's machines, the network between them, the clients, and who moves next.

A scheduler without real time: at each step one of the things that could happen does, drawn by weight from a seeded
generator. A message is delivered (lanes are first in, first out, each at its own speed; some are stopped and later
released), bytes of a client's socket arrive (cut anywhere), a machine is told Drained, a client or the network does
something from the plan. The clock moves a little at each step; every 50 ms of it all machines get a Tick.

After the plan's actions everything is healed: lanes released, clients connected and eager. Then the cluster must come
to rest with nothing owed, and after the clients have left with nothing kept.

Every message goes through its encoding, so nothing passes between machines that could not pass between processes.
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from unittest.mock import patch

import msgpack
import msgspec

from cluster import columns, matcher, moving, validity
from cluster.assembly import Assembly
from cluster.codec import decode_message, encode_message
from cluster.config import OutputSettings
from cluster.connection_point import ConnectionPoint
from cluster.frames import UNTIL_UNPUBLISHED
from cluster.matcher import Matcher
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    Commit,
    Deliver,
    Heartbeat,
    Peer,
    Received,
    Recover,
    Tick,
)
from cluster.outbox import REASONS
from cluster.serving.shared import DROPPED_FOR
from tests.sim import checker
from tests.sim.client import NEVER, Client, Publication, Session, Violation, require
from tests.sim.output import check_output, check_stored
from tests.sim.plan import (
    BROKEN_FILTERS,
    BROKEN_POLICIES,
    FILTERS,
    LOSSY_POLICIES,
    SCENARIOS,
    draw_attributes,
    draw_broken,
    draw_plan,
)
from tests.sim.scaling import Scaling
from tests.sim.trace import Trace

TICK_MS = 50
VALID_FOR_MS = (100, 1_000, 30_000, UNTIL_UNPUBLISHED)
HEALING_STEPS = 60_000
"""Far above what a healthy seed needs (some thousands, more where silence alone tells of deaths); more means that
something never ends."""

WINDOW = 3
"""So that a move of the few subscriptions of a run takes several steps."""

Lane = tuple[Peer, Peer]
Move = Callable[[], None]


@dataclass(eq=False)
class Wire:
    """A client's socket: bytes on their way up to the connection point and down to the client.

    hung_up: the client has cut it; after `up` the connection point is told. shut: the connection point has.
    """

    number: int
    peer: Peer
    client: Client | None
    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    hung_up: bool = False
    shut: bool = False
    reading: bool = True
    weight: float = 1.0


class World:
    """Everything of one seed. `run` returns when the seed has passed and raises what was found otherwise.

    without: the numbers of actions that are left out, to find a shorter run that fails in the same way.
    """

    def __init__(self, seed: int, scenario: str = "mixed", without: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self._without = without
        self.rng = random.Random(seed)
        self._policies = random.Random(f"policies of {seed}")  # apart: the rest of a seed is as it was without them
        self.plan = dataclasses.replace(draw_plan(self.rng), **SCENARIOS[scenario])
        if self.plan.output:
            config = msgspec.structs.replace(
                self.plan.config, output=OutputSettings(path="output", all=self.plan.output_all)
            )
            self.plan = dataclasses.replace(self.plan, config=config)
        self.trace = Trace()
        self.now_ms = self.rng.randint(0, 1 << 40)
        self._start_ms = self.now_ms
        self._next_tick_ms = self.now_ms
        self.wires: dict[int, Wire] = {}
        self._next_wire = 1
        self.clients: list[Client] = []
        self.publications: list[Publication] = []
        self._by_bytes: dict[bytes, Publication] = {}
        self.handed: set[tuple[int, int, int]] = set()
        self.longest_ending = 0  # steps that healing or leaving took
        self._stopped: set[Lane] = set()
        self._speeds: dict[Lane, float] = {}
        self.healing = False
        self._afterwards: list[Move] = []
        self._recovered = False  # something has died, or was held for dead, and a recovery has begun
        self.assembly = Assembly(self.plan.config, self._client_output)
        self.assembly.wall_us = lambda: 1000 * self.now_ms
        self.scaling = Scaling(self)
        layers = self.plan.config.layers
        self.note(
            f"seed {seed}: {layers.connection_points} connection points, {layers.access_points} access points, "
            f"{layers.matchers} matchers, {layers.exit_points} exit points, {self.plan.clients} clients"
        )
        for _ in range(self.plan.clients):
            self._add_client(f"client-{len(self.clients)}")

    def note(self, text: str) -> int:
        """Write a line of the trace; return its stamp."""
        return self.trace.note(self.now_ms - self._start_ms, text)

    # The run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the seed to its end. Raises Violation, or whatever a machine raised."""
        sweep = Matcher._sweep
        # Some runs have so much to sweep, for their few subscriptions, that the next view changes come meanwhile.
        own = random.Random(f"sweeps of {self.seed}")
        often = own.choice((1.0, 0.05, 0.01))

        def seldom(machine: Matcher, most: int) -> int:
            return sweep(machine, most) if self.healing or own.random() < often else 0

        with (
            patch.multiple(moving, WINDOW_ENTRIES=WINDOW, TELL_ENTRIES=2, CHUNK_ENTRIES=2, STEP_US=2 * moving.TAKE_US),
            patch.multiple(matcher, SWEEP_ENTRIES=1, TICK_ENTRIES=1),
            patch.object(Matcher, "_sweep", seldom),
            # Few enough that answers come in several pieces, and pieces in several turns.
            patch.multiple(validity, PIECE=3, PIECE_LOOKS=10, LOOKS=4),
        ):
            self._run()

    def _run(self) -> None:
        self._tick()
        left = self.plan.actions
        waited = 0
        while left:
            if self.rng.random() * (1 + self.plan.act_weight) < self.plan.act_weight:
                if not self.assembly.serving:
                    waited += 1
                    if waited > HEALING_STEPS:
                        raise Violation(f"for {HEALING_STEPS} steps nobody serves clients")
                    self._stopped.clear()  # else it may never be
                    self._step()
                    continue
                waited = 0
                left -= 1
                if left not in self._without:
                    self._act()
            self._step()
        self._heal()
        self._check_rest()
        for client in self.clients:
            if client.state == "open":
                client.leave()
        # What a client that was cut off had unpublished is asked again in a while, if the question was lost in a crash.
        self._settle(
            "the clients have left", lambda: not self.wires and not self._gauge("connection_point", "valid_questions")
        )
        self._check_empty()

    def _heal(self) -> None:
        self.note("everything is healed")
        self.healing = True
        self._stopped.clear()
        self._speeds.clear()
        for client in self.clients:
            client.eager = True
        for wire in self.wires.values():
            wire.reading = True
        self._settle("all is delivered", self._content)

    def _content(self) -> bool:
        """See to it that every client is connected and reports what it consumed; tell whether all are idle."""
        content = self.scaling.at_rest
        for client in self.clients:
            if client.state == "ended":
                continue
            if client.state == "off":
                self._connect(client)
            client.consume()
            content = content and client.idle
            if client.asked_to_move and client.idle:
                client.say_moved()
        return content

    def _settle(self, what: str, reached: Callable[[], bool]) -> None:
        rests = 0
        for step in range(HEALING_STEPS):
            done = reached()
            if self._step(quiet=done):
                continue
            rests = rests + 1 if done else 0
            if rests == 2:
                self.longest_ending = max(self.longest_ending, step)
                return
            if rests:
                self._tick()  # time alone must bring nothing new
        raise Violation(f"after {HEALING_STEPS} steps this has not come: {what}")

    def _step(self, *, quiet: bool = False) -> bool:
        """Let one thing happen; return False if nothing could. quiet: the clock stands still."""
        if not quiet:
            self.now_ms += self.rng.choice((0, 0, 1, 1, 2, 4))
            if self.now_ms >= self._next_tick_ms:
                self._tick()
        moves: list[Move] = []
        weights: list[float] = []
        for lane in self.assembly.lanes:
            if lane not in self._stopped:
                moves.append(lambda lane=lane: self._deliver(lane))  # type: ignore[misc]
                weights.append(self._speed(lane))
        for place in range(len(self.scaling.starting)):
            moves.append(lambda place=place: self.scaling.started(place))  # type: ignore[misc]
            weights.append(0.2)
        for place in range(len(self.scaling.news)):
            moves.append(lambda place=place: self.scaling.told(place))  # type: ignore[misc]
            weights.append(0.1)
        for peer in self.assembly.unsynced():
            disk = peer, peer  # fast or slow, and stopped for a while, as a lane is
            if disk not in self._stopped:
                moves.append(lambda peer=peer: self._sync(peer))  # type: ignore[misc]
                weights.append(self._speed(disk))
        for peer in sorted(self.assembly.touched):
            moves.append(lambda peer=peer: self._drain(peer))  # type: ignore[misc]
            weights.append(0.3)
        for wire in self.wires.values():
            if wire.up or wire.hung_up:
                moves.append(lambda wire=wire: self._carry_up(wire))  # type: ignore[misc]
                weights.append(wire.weight)
            if (wire.down or wire.shut) and wire.reading:
                moves.append(lambda wire=wire: self._carry_down(wire))  # type: ignore[misc]
                weights.append(wire.weight)
        if not moves:
            return False
        self.rng.choices(moves, weights)[0]()
        afterwards, self._afterwards = self._afterwards, []
        for move in afterwards:
            move()
        return True

    def after_this(self, move: Move) -> None:
        """Have something done when what happens at the moment has happened."""
        self._afterwards.append(move)

    def _speed(self, lane: Lane) -> float:
        speed = self._speeds.get(lane)
        if speed is None:
            slow = self.rng.random() < 0.25 * self.plan.trouble
            speed = self._speeds[lane] = self.rng.choice((0.02, 0.1)) if slow else self.rng.choice((0.5, 1.0, 2.0))
        return speed

    # Machines and lanes ------------------------------------------------------------------------------------------

    def _deliver(self, lane: Lane) -> None:
        sender, receiver = lane
        message = self.assembly.take(sender, receiver)
        body = encode_message(message)
        again = decode_message(body)
        require(again == message, f"{message} changes in its encoding")
        shown = "" if isinstance(message, Heartbeat) else f" {zlib.crc32(body):08x}"
        self.note(f"{sender} -> {receiver}  {type(message).__name__}{shown}")
        if isinstance(again, Deliver):
            self._remember(receiver.slot, again)
        if isinstance(again, Commit) and receiver.layer == CONNECTION_POINT:
            self._commit(receiver, Received(sender, again))
        else:
            if isinstance(again, Recover):
                self._recovered = True
                self._rebind(receiver)
            self.assembly.feed(receiver, Received(sender, again))
        self.assembly.see_flushed(sender)

    def _commit(self, peer: Peer, event: Received) -> None:
        """Let a connection point serve the next view; note which sessions' access points it changes."""
        machine = self._machine(peer.slot)
        before = {number: session.access_point for number, session in machine._shared.sessions.items()}
        self.assembly.feed(peer, event)
        changed = {
            number for number, session in machine._shared.sessions.items() if session.access_point != before[number]
        }
        for client in self.clients:
            session = client.session
            if session is not None and session.connection_point == peer.slot and session.number in changed:
                session.rebound = True

    def _rebind(self, peer: Peer) -> None:
        """What clients of a connection point have underway is sent again, changes first."""
        for client in self.clients:
            session = client.session
            if session is not None and session.connection_point == peer.slot and peer.layer == CONNECTION_POINT:
                session.rebound = True

    def role_stopped(self, peer: Peer) -> None:
        """A role is no more, and neither are its ends of lanes and wires."""
        self._stopped = {lane for lane in self._stopped if peer not in lane}
        for wire in self.wires.values():
            if wire.peer == peer:
                wire.shut = True
                wire.up.clear()

    def _remember(self, slot: int, deliver: Deliver) -> None:
        ends = columns.starts(columns.u32(deliver.lengths)).tolist()
        packed = [deliver.payload[begin:end] for begin, end in pairwise(ends)]
        publication = iter(columns.u32(deliver.publication).tolist())
        for session, count in zip(
            columns.u32(deliver.sessions).tolist(), columns.u32(deliver.notifications).tolist(), strict=True
        ):
            for _ in range(count):
                self.handed.add((slot, session, self._by_bytes[packed[next(publication)]].number))

    def _drain(self, peer: Peer) -> None:
        self.note(f"{peer} drained")
        self.assembly.drain(peer)

    def _sync(self, peer: Peer) -> None:
        if peer.layer == EXIT_POINT:
            self.note(f"{peer} has its rows on disk")
            self.assembly.sync(peer)
            return
        count = self.rng.randint(1, self.assembly.session_disks[peer].waiting)
        self.note(f"{peer} has {count} portions on disk")
        self.assembly.sync(peer, count)

    def _tick(self) -> None:
        self._next_tick_ms = self.now_ms + TICK_MS
        self.note("tick")
        for peer in (COORDINATOR_PEER, *self.assembly.roles):
            before = peer in self.assembly.touched
            self.assembly.feed(peer, Tick(self.now_ms))
            if not before and peer == COORDINATOR_PEER:
                self.assembly.touched.discard(peer)
        self._check_bounds()

    # Wires -------------------------------------------------------------------------------------------------------

    def _client_output(self, peer: Peer, connection: int, data: bytes | None) -> None:
        wire = self.wires.get(connection)
        if wire is None:
            return
        assert wire.peer == peer, f"{peer} writes to a connection of {wire.peer}"
        if data is None:
            wire.shut = True
            wire.up.clear()
        else:
            assert not wire.shut, f"{peer} writes to a connection that it has closed"
            wire.down += data

    def _connect(self, client: Client) -> None:
        serving = [peer for peer in self.assembly.connection_points() if peer in self.assembly.serving]
        if not serving:
            return
        peer = self.rng.choice(serving)
        wire = Wire(self._next_wire, peer, client)
        self._next_wire += 1
        if self.rng.random() < 0.2 * self.plan.trouble:
            wire.weight = 0.05
        self.wires[wire.number] = wire
        self.note(f"{client.name} connects to {peer}")
        self.assembly.feed(peer, ClientConnected(wire.number))
        client.connect(peer.slot, lambda data: self._write(wire, data))

    def _write(self, wire: Wire, data: bytes) -> None:
        if not wire.shut:
            wire.up += data

    def _hang_up(self, wire: Wire) -> None:
        """The client's end is cut: some of what it wrote may still arrive."""
        assert wire.client is not None, "hung up already"
        kept = self.rng.randint(0, len(wire.up))
        self.note(f"{wire.client.name} is cut off, {len(wire.up) - kept} bytes are lost")
        del wire.up[kept:]
        wire.down.clear()
        wire.hung_up = True
        client, wire.client = wire.client, None
        client.lost()

    def _wire_of(self, client: Client) -> Wire | None:
        return next((wire for wire in self.wires.values() if wire.client is client), None)

    def _carry_up(self, wire: Wire) -> None:
        if wire.up and not wire.shut:
            count = len(wire.up) if self.rng.random() < 0.7 else self.rng.randint(1, len(wire.up))
            data = bytes(wire.up[:count])
            del wire.up[:count]
            self.note(f"{wire.peer} reads {count} bytes of wire {wire.number}")
            self.assembly.feed(wire.peer, ClientBytes(wire.number, data, self.now_ms * 1000))
            return
        self.note(f"{wire.peer} sees the end of wire {wire.number}")
        self.assembly.feed(wire.peer, ClientClosed(wire.number))
        del self.wires[wire.number]

    def _carry_down(self, wire: Wire) -> None:
        if wire.down:
            count = len(wire.down) if self.rng.random() < 0.7 else self.rng.randint(1, len(wire.down))
            data = bytes(wire.down[:count])
            del wire.down[:count]
            if wire.client is not None:
                self.note(f"{wire.client.name} reads {count} bytes")
                wire.client.receive(data)
            return
        wire.hung_up, wire.shut = True, False
        wire.up.clear()
        client, wire.client = wire.client, None
        if client is not None:
            self._parted(client)

    def _parted(self, client: Client) -> None:
        """The connection point has closed; a client that was replaced by another of its name ends for good."""
        taken = client.byes[-1:] == ["taken_over"]
        client.byes.clear()
        rivals = [other for other in self.clients if other is not client and other.client_id == client.client_id]
        require(not taken or len(rivals) > 0, f"{client.name} was taken over, and there never was another of its name")
        if taken and any(other.state != "ended" for other in rivals):
            client.state = "ended"
            self.note(f"{client.name} has ended for good")
        client.lost()

    # Clients -----------------------------------------------------------------------------------------------------

    def _add_client(self, client_id: str) -> Client:
        name = f"{client_id}.{sum(one.client_id == client_id for one in self.clients)}"
        instance = self.rng.getrandbits(64)
        window = self.rng.choice(self.plan.receive_windows)
        client = Client(name, client_id, instance, window, self.plan.config, self.rng, self.note)
        client.eager = self.rng.random() < 0.6
        client.resolve = self._resolve  # type: ignore[method-assign]
        client.clock = lambda: self.now_ms  # type: ignore[method-assign]
        client.acknowledged_hook = self._acknowledged  # type: ignore[method-assign]
        client.doubles_may_come = lambda: self._recovered or self.scaling.deaths > 0  # type: ignore[method-assign]
        self.clients.append(client)
        return client

    def _resolve(self, publisher: str, packed: bytes) -> Publication:
        publication = self._by_bytes.get(packed)
        require(publication is not None, f"a notification of what nobody has published: {packed!r}")
        assert publication is not None, "for the type checker"
        require(publication.attributes is not None, f"#{publication.number} is malformed and was delivered")
        require(publication.publisher.client_id == publisher, f"#{publication.number} came as {publisher}'s")
        return publication

    def _acknowledged(self, publication: Publication) -> None:
        if self.plan.output:
            check_stored(self.assembly.matched_disk, publication)
        present = self._present_sessions()
        checker.check_acknowledged(publication, present, self.handed)
        for session in present:
            if checker.required_numbers(session, publication, publication.acknowledged):
                require(
                    (publication.publisher.instance, publication.sequence) not in self._beyond_the_queue(session),
                    f"#{publication.number} is acknowledged, {session.name()}'s queue has no place for it",
                )

    def _beyond_the_queue(self, session: Session) -> set[tuple[int, int]]:
        """Return instance and sequence of what waits at the connection point for a place within its limits."""
        outbox = self._machine(session.connection_point)._shared.sessions[session.number].outbox
        return {
            (entry.chunk.runs[run][1], sequence)
            for entry in outbox._beyond
            if not outbox.admits(entry.position)
            for run, sequence in zip(
                columns.u32(entry.chunk.run).tolist(), columns.u64(entry.chunk.sequence).tolist(), strict=True
            )
        }

    def _present_sessions(self) -> list[Session]:
        """Return the sessions that both ends hold for open."""
        present = []
        for client in self.clients:
            session = client.session
            if session is None or Peer(CONNECTION_POINT, session.connection_point) not in self.assembly.roles:
                continue
            if session.number in self._machine(session.connection_point)._shared.sessions:
                present.append(session)
        return present

    def _machine(self, slot: int) -> ConnectionPoint:
        machine = self.assembly.roles[Peer(CONNECTION_POINT, slot)].machine
        assert isinstance(machine, ConnectionPoint), "not a connection point"
        return machine

    # Actions -----------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        rng, trouble = self.rng, self.plan.trouble
        if rng.random() < 0.15 * self.plan.scaling:
            self._reshape()
            return
        if rng.random() < 0.02 * self.plan.deaths * trouble:
            self.scaling.crash_member()
            return
        client = rng.choice(self.clients)
        if client.state == "ended":
            return
        if client.state == "off":
            self._connect(client)
            return
        if client.state == "open":
            actions: list[tuple[float, Callable[[Client], None]]] = [
                (6, self._publish),
                (2, self._subscribe),
                (1.5, self._update),
                (1, self._unsubscribe),
                (2, self._consume),
                (0.5 * trouble, self._change_pace),
                (0.4 * trouble, lambda client: client.leave()),
            ]
            if self.plan.validity:
                actions += [(2 * self.plan.validity, self._unpublish)]
            if client.asked_to_move:
                actions += [(3, lambda client: client.leave()), (3, lambda client: client.say_moved())]
        else:
            actions = []
        actions += [
            (1.2 * trouble, self._cut),
            (0.4 * trouble, self._usurp),
            (1.5 * trouble, self._swizzle),
            (1, lambda client: None),
        ]
        rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0](client)

    def _reshape(self) -> None:
        """Something happens to the cluster itself."""
        trouble = self.plan.trouble
        actions = [
            (4, self.scaling.wish),
            (0.5 * trouble, self.scaling.abort),
            (self.plan.crashes * trouble, self.scaling.crash_coordinator),
            (0.7 * trouble, self.scaling.crash_newcomer),
        ]
        self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()
        afterwards, self._afterwards = self._afterwards, []
        for move in afterwards:
            move()

    def _publish(self, client: Client) -> None:
        made = []
        for offset in range(self.rng.choice((1, 1, 2, 5, 12))):
            number = len(self.publications) + 1
            attributes = None if self.rng.random() < 0.04 else draw_attributes(self.rng, number)
            packed = draw_broken(self.rng, number) if attributes is None else msgpack.packb(attributes)
            sequence = len(client.publications) + offset + 1
            publication = Publication(number, client, sequence, packed, attributes)
            if self.plan.validity and self.rng.random() < 0.6 * self.plan.validity:
                publication.valid_for_ms = self.rng.choice(VALID_FOR_MS)
            self.publications.append(publication)
            self._by_bytes.setdefault(packed, publication)
            made.append(publication)
        client.publish(made)

    def _subscribe(self, client: Client) -> None:
        if self.rng.random() < 0.1:
            if self.rng.random() < 0.3:
                client.subscribe("a > 3", self._policies.choice(BROKEN_POLICIES), broken=True)
            else:
                client.subscribe(self.rng.choice(BROKEN_FILTERS), "block", broken=True)
        else:
            policy = self.rng.choice(("block", "lossy"))
            if policy == "lossy":
                policy = self._policies.choice(LOSSY_POLICIES)
            elif self._policies.random() < 0.25:
                policy = "disconnect"
            valid = self.plan.validity > 0 and self.rng.random() < 0.6
            client.subscribe(self.rng.choice(FILTERS), policy, broken=False, valid=valid)

    def _unpublish(self, client: Client) -> None:
        valid = [one for one in client.publications[: client.acknowledged] if one.valid_for_ms]
        if valid:
            sequence = self.rng.choice(valid).sequence
            if self.rng.random() < 0.5:
                client.unpublish(client.instance, sequence, [client.publications[sequence - 1]])
                return
            lives = [one for one in self.clients if one.client_id == client.client_id]
            alike = [one.publications[sequence - 1] for one in lives if len(one.publications) >= sequence]
            client.unpublish(None, sequence, [one for one in alike if one.valid_for_ms])

    def _update(self, client: Client) -> None:
        if client.desired:
            number = self.rng.choice(sorted(client.desired))
            broken = self.rng.random() < 0.15
            client.update(number, self.rng.choice(BROKEN_FILTERS if broken else FILTERS), broken=broken)

    def _unsubscribe(self, client: Client) -> None:
        if client.desired and self.rng.random() < 0.9:
            client.unsubscribe(self.rng.choice(sorted(client.desired)))
        else:
            client.unsubscribe(1 << 19)  # never opened: Done all the same

    def _consume(self, client: Client) -> None:
        client.consume(self.rng.choice((1, 3, None)))

    def _change_pace(self, client: Client) -> None:
        wire = self._wire_of(client)
        if wire is not None and self.rng.random() < 0.4:
            wire.reading = not wire.reading
        else:
            client.eager = not client.eager

    def _cut(self, client: Client) -> None:
        wire = self._wire_of(client)
        if wire is not None:
            self._hang_up(wire)

    def _usurp(self, client: Client) -> None:
        """Another program connects under the same name; where the old one is off it is gone."""
        if sum(one.state != "ended" for one in self.clients) > 10:
            return
        self._connect(self._add_client(client.client_id))

    def _swizzle(self, client: Client) -> None:
        """Stop some lanes, or release some in any order."""
        if self._stopped and self.rng.random() < 0.6:
            lane = self.rng.choice(sorted(self._stopped))
            self._stopped.discard(lane)
            self.note(f"released {lane[0]} -> {lane[1]}")
        elif self._speeds:
            lane = self.rng.choice(sorted(self._speeds))
            self._stopped.add(lane)
            self.note(f"stopped {lane[0]} -> {lane[1]}")

    # What must hold ----------------------------------------------------------------------------------------------

    def _check_bounds(self) -> None:
        """Queues: a subscriber's is within its limit but for what publishers still wait for."""
        self.scaling.check_bounds()
        flow = self.plan.config.flow
        unacknowledged = sum(client.unacknowledged for client in self.clients)
        for peer in self.assembly.connection_points():
            for session in self._machine(peer.slot)._shared.sessions.values():
                outbox = session.outbox
                require(
                    outbox.queued <= flow.queue_messages + unacknowledged,
                    f"{session.client_id} at {peer}: {outbox.queued} queued, {unacknowledged} unacknowledged",
                )
                flying = outbox.sent - outbox.consumed
                require(flying <= flow.receive_window, f"{session.client_id} at {peer}: {flying} in flight")
                require(
                    session.flight_bytes <= max(flow.publish_window_bytes, self.plan.config.client_limits.frame_bytes),
                    f"{session.client_id} at {peer}: {session.flight_bytes} bytes unacknowledged",
                )

    def _check_rest(self) -> None:
        """Everything is delivered: judge it, and balance the books."""
        now = self.note("everything is at rest")
        for client in self.clients:
            for session in client.sessions:
                checker.check_session(session, self.publications, now)
                dated = not self._gauge("connection_point", "valid_handed_over")
                checker.check_served(session, self.publications, dated=dated)
            if client.state != "ended":
                require(client.acknowledged == len(client.publications), f"{client.name}: not all is acknowledged")
        live = [client for client in self.clients if client.state != "ended"]
        names = [client.client_id for client in live]
        require(len(set(names)) == len(names), f"several clients are connected under one name: {sorted(names)}")
        sessions = self._gauge("connection_point", "sessions")
        require(sessions == len(live), f"{sessions} sessions for {len(live)} clients")
        wanted = sum(len(client.desired) for client in live)
        for layer in ("connection_point", "matcher"):
            held = self._gauge(layer, "subscriptions")
            require(held == wanted, f"the {layer}s hold {held} subscriptions, the clients {wanted}")
        self._check_books()
        if self.plan.output:
            everything = self.plan.output_all
            check_output(self.assembly.matched_disk, self.clients, self.publications, now, everything=everything)
        self.scaling.check_rest()

    def _gauge(self, layer: str, name: str) -> int:
        return self.scaling.stopped.get((layer, name), 0) + sum(
            role.machine.gauges()[name] for peer, role in self.assembly.roles.items() if peer.layer == layer
        )

    def _check_books(self) -> None:
        gauge = self._gauge
        accepted = gauge("connection_point", "accepted")
        routed = gauge("access_point", "publications")
        undisturbed = not self._recovered  # else publications were sent again
        released, doubles = gauge("exit_point", "released"), gauge("exit_point", "duplicates")
        parts = [gauge("exit_point", name) for name in ("matched", "unmatched", "rejected")]
        require(sum(parts) == released, f"{released} released, but matched, unmatched, rejected: {parts}")
        outcomes = [gauge("connection_point", f"outcome_{name}") for name in ("matched", "unmatched", "rejected")]
        repeated, abandoned = gauge("connection_point", "outcome_repeated"), gauge("connection_point", "abandoned")
        # A connection point that has left was not waited for by publishers that had.
        unknown = self.scaling.stopped.get(("connection_point", "in_flight"), 0)
        entered = sum(outcomes) + repeated + abandoned + unknown
        require(entered == accepted, f"{accepted} accepted, of {entered} it is known at rest what became of them")
        if undisturbed:
            require(abandoned == 0, f"{abandoned} abandoned, and no slice has died")
            known = f"connection points know of {outcomes}, {repeated} doubles"
            require(unknown > 0 or outcomes == parts, f"matched, unmatched, rejected: {parts}; {known}")
            require(unknown > 0 or repeated == doubles, f"{doubles} doubles; {known}")
            require(accepted == routed, f"{accepted} accepted, {routed} routed")
            for peer, role in self.assembly.roles.items():
                if peer.layer == "matcher" and not self.plan.scaling:
                    seen = role.machine.gauges()["publications"]
                    require(seen == routed, f"{peer} has seen {seen} of {routed}")
            require(accepted == released + doubles, f"{accepted} accepted, {released} released, {doubles} doubles")
        certain = sum(one.acknowledged != NEVER for one in self.publications)
        sent = sum(one.sent != NEVER for one in self.publications)
        require(certain <= released, f"{released} released, {certain} acknowledged")
        require(released <= sent or not undisturbed, f"{sent} sent, {released} released")
        broken = sum(one.rejected for one in self.publications)
        maybe = sum(one.attributes is None and one.sent != NEVER for one in self.publications)
        require(broken <= parts[2], f"{parts[2]} rejected, told were {broken}")
        require(parts[2] <= maybe or not undisturbed, f"{parts[2]} rejected, sent {maybe}")
        seen = sum(len(session.received) for client in self.clients for session in client.sessions)
        sessions = [session for client in self.clients for session in client.sessions]
        told = sum(session.dropped for session in sessions)
        for reason in REASONS:
            own = sum(session.dropped_for.get(reason, 0) for session in sessions)
            counted = gauge("connection_point", DROPPED_FOR[reason])
            require(own <= counted, f"{own} told as dropped by {reason}, {counted} counted")
            if all(session.ended == NEVER for session in sessions):
                require(own == counted, f"{own} told as dropped by {reason}, {counted} counted, nobody has left")
        written, dropped = gauge("connection_point", "notifications"), gauge("connection_point", "dropped")
        handed = gauge("exit_point", "notifications")
        require(seen <= written and told <= dropped, f"{seen} seen of {written}, {told} told of {dropped} dropped")
        by_reason = sum(gauge("connection_point", name) for name in DROPPED_FOR.values())
        require(by_reason == dropped, f"{by_reason} dropped by all reasons, {dropped} dropped")
        require(written + dropped <= handed, f"{written} written and {dropped} dropped of {handed}")

    def _check_empty(self) -> None:
        """The clients have left: nothing is kept."""
        self.note("the clients have left")
        for layer, names in (
            ("connection_point", ("sessions", "connections", "queued", "unacknowledged_bytes", "held_runs")),
            ("connection_point", ("subscriptions",)),
            ("matcher", ("subscriptions",)),
            ("exit_point", ("unacknowledged_runs", "incomplete_shares")),
        ):
            for name in names:
                left = self._gauge(layer, name)
                require(left == 0, f"{left} {name} are left at the {layer}s")
        for peer in self.assembly.connection_points():
            machine = self._machine(peer.slot)
            require(not machine._changes.underway, f"{len(machine._changes.underway)} changes are left at {peer}")
            require(not machine._shared.touched and not machine._gathering, f"work is left at {peer}")
            require(
                machine._publishing.publishers == 0, f"{machine._publishing.publishers} publishers are left at {peer}"
            )
            machine._validity.store.check()
            asked = machine.gauges()["valid_questions"]
            require(not asked and not machine._validity._asking, f"{asked} questions are left at {peer}")
        sessions = self.assembly.coordinator.status()["sessions"]
        require(sessions == 0, f"{sessions} sessions are left at the coordinator")
