"""The cluster of one small scope as a graph: what can happen in a state, and which state it leads to.

The machines and the assembly are the real ones; the assembly's dictionaries are filled from a state, one thing
happens, and the state is read off again. A matcher's compiled index is replaced by the scan, which agrees with it
(`properties/test_index.py`), as the one can be copied and the other cannot.

A state holds every machine's state, the lanes, the coordinator's disk, and what the clients have seen so far, as far as
it decides what they may see next.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import msgpack
import msgspec

from cluster import assembly, frames, matcher, moving, parse
from cluster.access_point import AccessPoint
from cluster.assembly import Assembly
from cluster.assignment import reassign
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.config import Config, Layers
from cluster.connection_point import ConnectionPoint
from cluster.coordinating.records import State
from cluster.coordinator import Coordinator
from cluster.exit_point import ExitPoint
from cluster.matcher import Matcher
from cluster.matching import Scan
from cluster.memory import encode_memory, encode_operation
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    ClientBytes,
    ClientConnected,
    ClientKey,
    Drained,
    Event,
    Instruction,
    Peer,
    Received,
    Request,
    client_key,
    subscription_id,
)
from cluster.role import Role, make_machine
from cluster.routing import exit_point_of
from cluster.view import even_owners, key_group
from tests.sim.client import require
from tests.sim.exhaustive_machines import Pool, SmallTable

CP = Peer(CONNECTION_POINT, 0)
EAGER = (CONNECTION_POINT, ACCESS_POINT, EXIT_POINT)
"""Layers that are told Drained as soon as they have gathered something; see `exhaustive.py`."""

EVERYTHING = "exists id"
NOTHING = "missing id"
SUBSCRIBER, LEFT, RIGHT, IDLE = 0, 1, 2, 3
"""Clients. The subscriber and RIGHT are served by one access point, LEFT by the other."""

Facts = frozenset[tuple[Any, ...]]


@dataclass(frozen=True)
class Scope:
    """A small cluster, the wish, and what clients do while it is followed.

    what:     in a sentence.
    wish:     the arguments of `scale`.
    change:   subscribe, unsubscribe or replace: what the subscriber does to a subscription that moves; "" for nothing.
    publish:  who publishes one publication each, by client; one client's in this order.
    crash:    who dies once, at any step: "", coordinator, newcomer.
    access_point: the subscriber's; access point 0 hears of everything first in the usual schedule.
    whole:    all schedules are to be looked at at once, without a bound on postponements.
    """

    what: str
    layers: Layers
    wish: dict[str, int]
    change: str
    publish: tuple[int, ...]
    crash: str = ""
    access_point: int = 0
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Move:
    """One thing that can happen; there is one object for each. kind: deliver, drain, send, crash, cut."""

    kind: str
    sender: Peer | None = None
    receiver: Peer | None = None
    number: int = 0


class Handle:
    """Stands for a machine in the assembly: a number, and what the pool knows about it."""

    def __init__(self, pool: Pool, number: int) -> None:
        self._pool = pool
        self.number = number

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        self.number, instructions = self._pool.step(self.number, event)
        return instructions

    def start(self) -> list[Instruction]:
        """Return what a coordinator does first."""
        self.number, instructions = self._pool.step(self.number, None)
        return instructions


class Graph:
    """A scope's states, as tuples of numbers, and the moves between them. `close` it, or use it with `with`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.pool = Pool()
        self._facts: set[tuple[Any, ...]] = set()
        self._cut: int | None = None
        self._moves: dict[tuple[Any, ...], Move] = {}
        self._deliveries: dict[int, list[Move]] = {}  # by the number of the lanes
        self._drains: dict[int, list[Move]] = {}  # by the number of the roles
        self.story: list[str] | None = None  # what happens, while somebody wants to know
        self._patches = [
            patch.multiple(moving, WINDOW_ENTRIES=1, TELL_ENTRIES=1, CHUNK_ENTRIES=1, STEP_US=moving.SEND_US),
            patch.multiple(matcher, Index=Scan, Table=SmallTable, SWEEP_ENTRIES=1),
            patch.multiple(assembly, Role=self._role, Coordinator=self._coordinator, make_machine=lambda *_: None),
        ]
        for one in self._patches:
            one.start()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the modules back what was replaced."""
        for one in reversed(self._patches):
            one.stop()
        self._patches = []

    # Machines ----------------------------------------------------------------------------------------------------

    def _role(self, peer: Peer, join: Any, _: None, config: Config) -> Handle:
        key = peer, join.incarnation
        make: Callable[[], Role] = lambda: Role(peer, join, make_machine(peer, join.incarnation, config), config)  # noqa: E731
        return Handle(self.pool, self.pool.root(key, make))

    def _coordinator(self, config: Config, *disk: Any) -> Handle:
        if not disk or disk[0] is None:
            return Handle(self.pool, self.pool.root("coordinator", lambda: Coordinator(config)))
        memory, history = encode_memory(disk[0]), [encode_operation(one) for one in disk[1]]

        def make() -> Coordinator:
            again = assembly.Disk()
            again._memory, again._entries = memory, dict(enumerate(history))
            return Coordinator(config, *again.read())

        return Handle(self.pool, self.pool.root(("coordinator", memory, *history), make))

    def machine_of(self, peer: Peer) -> Any:
        """Return a machine as it is in the state that is loaded; it is to be looked at only."""
        role = self.pool.machine(self._assembly.roles[peer].number)  # type: ignore[attr-defined]
        assert isinstance(role, Role), f"{peer} is no role"
        return role.machine

    def coordinator(self) -> Coordinator:
        """Return the coordinator as it is in the state that is loaded; it is to be looked at only."""
        machine = self.pool.machine(self._assembly.coordinator.number)  # type: ignore[attr-defined]
        assert isinstance(machine, Coordinator), "another machine"
        return machine

    # The beginning -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Bring the cluster up, the clients in, and the wish to the coordinator."""
        scope = self.scope
        self._config = Config(layers=scope.layers)
        self._assembly = Assembly(self._config, self._client_output)
        self._assembly.instruct = self._instruct
        self._settle()
        self._names = self._choose_names()
        self._sessions: dict[int, int]
        self._sessions = {}
        order = (SUBSCRIBER, LEFT, RIGHT) if not scope.access_point else (LEFT, SUBSCRIBER, IDLE, RIGHT)
        for client in order:
            self._assembly.feed(CP, ClientConnected(client))
            self._write(client, frames.Hello(frames.VERSION, self._names[client], client, 1024))
        self._settle()
        served = [self._sessions[client] & 1 for client in (SUBSCRIBER, LEFT, RIGHT)]
        assert served == [scope.access_point, 1 - scope.access_point, scope.access_point], "other access points"
        self._choose_subscriptions()
        for number in self._standing:
            self._write(SUBSCRIBER, frames.Subscribe(number, number, EVERYTHING, "block"))
        self._settle()
        self._facts.clear()
        wish: dict[str, object] = {**scope.wish, "strategy": "all_at_once"}
        answer = self._assembly.request(self.pool.canonical(Request("scale", msgspec.json.encode(wish))))  # type: ignore[arg-type]
        assert answer is not None, "no answer"
        assert not getattr(answer, "error", ""), answer
        self._unsent = [0] * len(self._names)  # by client: how much of what it is to send it has sent
        self._crashed = not scope.crash
        self._hurry()
        self.first = self._save()

    def _settle(self) -> None:
        assembly_ = self._assembly
        while assembly_.lanes or assembly_.touched:
            while assembly_.lanes:
                sender, receiver = next(iter(assembly_.lanes))
                self._assembly.deliver(sender, receiver)
            for peer in sorted(assembly_.touched):
                assembly_.drain(peer)

    def _choose_names(self) -> list[str]:
        """Return client ids such that LEFT's publications change their exit point, if any do, and RIGHT's do not."""
        before = range(self.scope.layers.exit_points)
        after = range(self.scope.wish.get("exit_points", len(before)))
        moves = before != after
        names = [f"client-{number}" for number in range(64)]
        moving_ = [name for name in names if (exit_point_of(before, name) != exit_point_of(after, name)) is moves]
        staying = [name for name in names if exit_point_of(before, name) == exit_point_of(after, name)]
        left = moving_[0]
        return ["subscriber", left, next(name for name in staying if name != left), "idle"]

    def _choose_subscriptions(self) -> None:
        """Pick subscription numbers: one that is changed, and one for every pair of a present and a next owner."""
        slots = range(self.scope.layers.matchers)
        before = even_owners(list(slots))
        after = reassign(before, list(range(self.scope.wish.get("matchers", len(slots)))))
        now, then = struct.unpack("<4096H", before), struct.unpack("<4096H", after)
        self._key: ClientKey = client_key(CP.slot, self._sessions[SUBSCRIBER])
        pairs: dict[tuple[int, int], list[int]] = {}
        for number in range(400):
            group = key_group(subscription_id(self._key, number))
            pairs.setdefault((now[group], then[group]), []).append(number)
        moves = sorted(pair for pair in pairs if pair[0] != pair[1])
        chosen = [numbers.pop(0) for _, numbers in sorted(pairs.items())]
        self._changed = pairs[moves[0] if moves else min(pairs)].pop(0)
        self._standing = sorted(chosen)
        if self.scope.change in ("unsubscribe", "replace"):
            self._standing.append(self._changed)

    # Clients -----------------------------------------------------------------------------------------------------

    def _write(self, client: int, frame: frames.Frame) -> None:
        self._assembly.feed(CP, ClientBytes(client, encode_frame(frame), 0))

    def _requests(self, client: int) -> int:
        """Return how many frames the client sends in all."""
        if client == SUBSCRIBER:
            return int(bool(self.scope.change))
        return self.scope.publish.count(client)

    def _send(self, client: int) -> None:
        """Let a client send what is next."""
        self._unsent[client] += 1
        if client == SUBSCRIBER:
            self._facts.add(("changing",))
            request: frames.Frame
            if self.scope.change == "unsubscribe":
                request = frames.Unsubscribe(1000, self._changed)
            else:
                text = EVERYTHING if self.scope.change == "subscribe" else NOTHING
                request = frames.Subscribe(1000, self._changed, text, "block")
            self._write(client, request)
            return
        sequence = self._unsent[client]
        if ("changed",) in self._facts:
            self._facts.add(("behind", client, sequence))
        self._facts.add(("sent", client, sequence))
        packed = msgpack.packb({"id": 10 * client + sequence})
        self._write(
            client, frames.Publish(sequence, frames.ACKNOWLEDGE_MATCHED, struct.pack("<I", len(packed)), packed)
        )

    def _client_output(self, peer: Peer, client: int, data: bytes | None) -> None:
        require(data is not None, f"{peer} closes the connection of {client}")
        assert data is not None, "for the type checker"
        for frame in _frames(data):
            match frame:
                case frames.Welcome():
                    self._sessions[client] = frame.session
                case frames.Done(request):
                    if request == 1000:
                        self._facts.add(("changed",))
                case frames.Acknowledged(upto):
                    self._acknowledged(client, upto, frame.rejected)
                case frames.Notify():
                    require(client == SUBSCRIBER, f"client {client} is notified and never subscribed")
                    for publisher, sequence, numbers in _notifications(frame):
                        self._notified(self._names.index(publisher), sequence, numbers)
                case _:
                    require(False, f"client {client} is told {frame}")

    def _possible(self, client: int, sequence: int) -> set[bool]:
        """Return whether the changed subscription is to match a publication: what is possible as of now."""
        before, after = {"subscribe": (False, True), "": (False, False)}.get(self.scope.change, (True, False))
        possible = set()
        if ("behind", client, sequence) not in self._facts:
            possible.add(before)
        if ("changing",) in self._facts and ("before", client, sequence) not in self._facts:
            possible.add(after)
        return possible

    def _notified(self, client: int, sequence: int, numbers: tuple[int, ...]) -> None:
        name = f"{self._names[client]}'s {sequence}"
        require(("sent", client, sequence) in self._facts, f"{name} is delivered and was never sent")
        got = {fact[2] for fact in self._facts if fact[:2] == ("got", client)}
        require(sequence not in got, f"{name} comes twice")
        require(sequence > max(got, default=0), f"{name} comes after {max(got, default=0)}")
        missing = set(self._standing) - {self._changed} - set(numbers)
        require(not missing, f"{name} comes for {numbers}, {sorted(missing)} are missing")
        require(len(numbers) == len(set(numbers)), f"{name} comes for {numbers}")
        strange = set(numbers) - set(self._standing) - {self._changed}
        require(not strange, f"{name} comes for {sorted(strange)}, which were not opened")
        matched = self._changed in numbers
        possible = self._possible(client, sequence)
        require(matched in possible, f"{name} {'comes' if matched else 'does not come'} for {self._changed}")
        self._facts.add(("got", client, sequence))

    def _acknowledged(self, client: int, upto: int, rejected: list[tuple[int, str]]) -> None:
        require(not rejected, f"{rejected} are rejected")
        for sequence in range(1, upto + 1):
            require(
                ("got", client, sequence) in self._facts,
                f"{self._names[client]}'s {sequence} is acknowledged, and the subscriber has not been handed it",
            )
            if ("acknowledged", client, sequence) not in self._facts:
                self._facts.add(("acknowledged", client, sequence))
                if ("changing",) not in self._facts:
                    self._facts.add(("before", client, sequence))

    # States ------------------------------------------------------------------------------------------------------

    def _save(self) -> tuple[int, ...]:
        assembly_ = self._assembly
        intern, number_of = self.pool.intern, self.pool.message_number
        lanes = tuple(
            (sender, receiver, *map(number_of, messages))
            for (sender, receiver), messages in sorted(assembly_.lanes.items(), key=lambda item: item[0])
        )
        roles = tuple(
            (peer, assembly_.incarnations[peer], role.number)  # type: ignore[attr-defined]
            for peer, role in sorted(assembly_.roles.items())
        )
        linked = tuple(sorted(assembly_._linked.items()))
        flags = tuple(map(frozenset, (assembly_.serving, assembly_._flushing, assembly_._gone)))
        disk = assembly_.disk._memory, tuple(sorted(assembly_.disk._entries.items()))
        return (
            assembly_.coordinator.number,  # type: ignore[attr-defined]
            intern(lanes),
            intern(roles),
            intern((linked, flags)),
            intern(disk),
            intern((frozenset(self._facts), tuple(self._unsent), self._crashed)),
        )

    def load(self, state: tuple[int, ...]) -> None:
        """Put the assembly and the clients into a state."""
        assembly_, pool = self._assembly, self.pool
        coordinator, lanes, roles, links, disk, clients = state
        assembly_.coordinator = Handle(pool, coordinator)  # type: ignore[assignment]
        message = pool.message
        assembly_.lanes = {(lane[0], lane[1]): deque(map(message, lane[2:])) for lane in pool.things[lanes]}
        assembly_.roles = {peer: Handle(pool, number) for peer, _, number in pool.things[roles]}  # type: ignore[misc]
        assembly_.incarnations = {peer: incarnation for peer, incarnation, _ in pool.things[roles]}
        linked, (serving, flushing, gone) = pool.things[links]
        assembly_._linked = dict(linked)
        assembly_.serving, assembly_._flushing, assembly_._gone = set(serving), set(flushing), set(gone)
        assembly_.touched, assembly_._again = set(), set()
        assembly_.disk._memory, entries = pool.things[disk]
        assembly_.disk._entries = dict(entries)
        facts, unsent, self._crashed = pool.things[clients]
        self._facts, self._unsent = set(facts), list(unsent)

    # Moves -------------------------------------------------------------------------------------------------------

    def _move(self, kind: str, sender: Peer | None = None, receiver: Peer | None = None, number: int = 0) -> Move:
        key = kind, sender, receiver, number
        move = self._moves.get(key)
        if move is None:
            move = self._moves[key] = Move(kind, sender, receiver, number)
        return move

    def moves(self, state: tuple[int, ...]) -> list[Move]:
        """Return what can happen in a state, the usual first; the list is the caller's."""
        lanes = self._deliveries.get(state[1])
        if lanes is None:
            pairs = [(lane[0], lane[1]) for lane in self.pool.things[state[1]]]
            pairs.sort(key=lambda pair: (pair[1] != COORDINATOR_PEER, pair[0] == COORDINATOR_PEER, pair))
            lanes = self._deliveries[state[1]] = [self._move("deliver", *pair) for pair in pairs]
        if lanes and lanes[0].receiver == COORDINATOR_PEER:
            return [lanes[0], *self._crashes(state, lanes[0])]  # only where it is to crash; see `_hurry`
        drains = self._drains.get(state[2])
        if drains is None:
            busy = [peer for peer, _, number in self.pool.things[state[2]] if self._busy(number)]
            drains = self._drains[state[2]] = [self._move("drain", None, peer) for peer in busy]
        data = [move for move in lanes if move.sender != COORDINATOR_PEER]
        moves = data + drains + lanes[len(data) :]
        unsent = self.pool.things[state[5]][1]
        moves += [self._move("send", None, None, one) for one, sent in enumerate(unsent) if sent < self._requests(one)]
        return moves + self._crashes(state, None) if self.scope.crash else moves

    def _busy(self, number: int) -> bool:
        """Tell whether Drained would change anything in this state of a role."""
        after, instructions = self.pool.step(number, Drained())
        return after != number or bool(instructions)

    @property
    def postponed(self) -> list[Move]:
        """What waits from the beginning: clients may send at any time."""
        return [self._move("send", None, None, one) for one in range(len(self._names)) if self._requests(one)]

    def _crashes(self, state: tuple[int, ...], urgent: Move | None) -> list[Move]:
        """Return the crashes that are possible in a state; urgent: what the coordinator is about to take."""
        crash = self.scope.crash
        if self.pool.things[state[5]][2]:
            return []
        machine = self.pool.machine(state[0])
        assert isinstance(machine, Coordinator), "another machine"
        if machine.state is not State.SERVING:
            return []
        if crash == "coordinator":
            if urgent is None:
                return [self._move("crash", None, COORDINATOR_PEER)]
            assert urgent.sender is not None, "from nobody"
            return [self._move("cut", urgent.sender, None, kept) for kept in range(self._acts(state, urgent))]
        decided = machine._shared.transition is not None and machine._shared.transition.decided
        view = machine._shared.view
        assert view is not None, "no view"
        roles = [peer for peer, _, _ in self.pool.things[state[2]]]
        newcomers = [peer for peer in roles if view.member(peer) is None]
        leaving = {member.peer for member in machine._shared.memory.leaving}
        if decided or urgent is not None:
            return []
        return [self._move("crash", None, peer) for peer in newcomers if peer not in leaving]

    def _acts(self, state: tuple[int, ...], urgent: Move) -> int:
        """Return how many instructions the coordinator follows when it takes this."""
        lane = next(
            lane for lane in self.pool.things[state[1]] if lane[0] == urgent.sender and lane[1] == urgent.receiver
        )
        _, instructions = self.pool.step(state[0], Received(lane[0], self.pool.message(lane[2])))
        return len(instructions)

    def after(self, state: tuple[int, ...], move: Move) -> tuple[int, ...]:
        """Return the state that a move leads to, and with it what is never postponed. Raises what a machine or a check
        raises."""
        self.load(state)
        self._cut = None
        match move:
            case Move("deliver", Peer() as sender, Peer() as receiver):
                self._deliver(sender, receiver)
            case Move("drain", _, Peer() as peer):
                self._tell(f"{peer} goes on by itself")
                self._assembly.feed(peer, Drained())
            case Move("send", number=client):
                what = f"{self.scope.change}s {self._changed}" if client == SUBSCRIBER else "publishes"
                self._tell(f"{self._names[client]} {what}")
                self._send(client)
            case Move("cut", Peer() as sender, number=kept):
                self._cut = kept
                self._deliver(sender, COORDINATOR_PEER)
                self._cut = None
                self._crashed = True
                self._tell(f"{COORDINATOR_PEER} dies after {kept} instructions")
                self._assembly.restart_coordinator()
            case Move("crash", _, Peer() as peer):
                self._crashed = True
                self._tell(f"{peer} dies")
                if peer == COORDINATOR_PEER:
                    self._assembly.restart_coordinator()
                else:
                    self._assembly.crash(peer)
            case _:
                raise AssertionError(f"no such move: {move}")
        self._hurry()
        return self._save()

    def _deliver(self, sender: Peer, receiver: Peer) -> None:
        if self.story is not None:
            self._tell(f"{sender} -> {receiver}: {shown(self._assembly.lanes[sender, receiver][0])}")
        self._assembly.deliver(sender, receiver)

    def _tell(self, text: str) -> None:
        if self.story is not None:
            self.story.append(text)

    def _hurry(self) -> None:
        """Do what is never postponed. A coordinator that is to crash may do so between any two of its steps."""
        assembly_ = self._assembly
        patient = self.scope.crash == "coordinator" and not self._crashed
        while True:
            answer = next((lane for lane in sorted(assembly_.lanes) if lane[1] == COORDINATOR_PEER), None)
            if answer is not None and patient:
                return
            if answer is not None:
                self._deliver(*answer)
                continue
            for peer, role in sorted(assembly_.roles.items()):
                if peer.layer in EAGER and self._busy(role.number):  # type: ignore[attr-defined]
                    assembly_.feed(peer, Drained())
                    break
            else:
                return

    def _instruct(self, peer: Peer, instructions: list[Instruction]) -> list[Instruction]:
        if peer != COORDINATOR_PEER or self._cut is None:
            return instructions
        kept, self._cut = self._cut, 0
        return instructions[:kept]

    def named(self, move: Move) -> str:
        """Return what a postponed move is, in words."""
        match move.kind:
            case "drain":
                return f"{move.receiver}'s own work"
            case "send":
                return self._names[move.number]
            case _:
                return f"{move.sender} -> {move.receiver}"

    # What must hold at rest --------------------------------------------------------------------------------------

    def check_rest(self, state: tuple[int, ...]) -> None:
        """Nothing moves any more: everything must be done, and nothing of the view change left. Raises Violation."""
        self.load(state)
        for client in (LEFT, RIGHT):
            for sequence in range(1, self._requests(client) + 1):
                name = f"{self._names[client]}'s {sequence}"
                require(("got", client, sequence) in self._facts, f"{name} never comes")
                require(("acknowledged", client, sequence) in self._facts, f"{name} is never acknowledged")
        require(not self.scope.change or ("changed",) in self._facts, "the subscriber's request is never answered")
        coordinator = self.coordinator()
        require(coordinator.state is State.SERVING, f"the coordinator is {coordinator.state.value} for ever")
        transition = coordinator._shared.transition
        require(transition is None, f"the view change never ends: {transition and transition.phase}")
        require(not coordinator._shared.memory.leaving, f"{coordinator._shared.memory.leaving} never leave")
        for operation in coordinator._operations.history:
            require(operation.state != "running", "the operation never ends")
            require(self.scope.crash != "" or operation.state == "done", f"the operation is {operation.state}")
        view = coordinator._shared.view
        assert view is not None, "at rest without a view"
        members = {member.peer: member.incarnation for member in view.members}
        require(
            members == self._assembly.incarnations, f"the view has {members}, there are {self._assembly.incarnations}"
        )
        wanted = set(self._standing) - {self._changed}
        if self.scope.change == "replace" or self.scope.change == "subscribe":
            wanted.add(self._changed)
        held: list[int] = []
        for peer in sorted(self._assembly.roles):
            machine = self.machine_of(peer)
            if isinstance(machine, ConnectionPoint):
                served, prepared = machine._shared.view, machine._shared.next
                require(machine.gauges()["in_flight"] == 0, f"{peer} does not know what became of publications")
            else:
                served, prepared = machine._view, getattr(machine, "_next", None)
            require(served == view, f"{peer} serves another view")
            require(prepared is None, f"{peer} keeps the next view")
            if isinstance(machine, Matcher):
                rows = [subscription for subscription, _ in machine.table.rows()]
                require(sorted(machine.index._subscriptions) == sorted(rows), f"{peer}: index and table differ")  # type: ignore[attr-defined]
                require(machine._moving is None and not machine._removed, f"{peer} keeps something of a view change")
                own = [one for one in rows if one not in machine._leftovers]
                require(len(rows) - len(own) == len(machine._leftovers), f"{peer} would sweep out what is not there")
                require(not machine._leftovers.in_the_way, f"{peer} rests, and something is in the way")
                strays = [one for one in own if view.owner_of_group(key_group(one)) != peer.slot]
                require(not strays, f"{peer} holds {strays}, which are others'")
                held += own
            elif isinstance(machine, AccessPoint):
                require(not machine._unanswered, f"{peer} waits for answers")
                require({epoch for epoch, _ in machine._exit_sequences} <= {view.epoch}, f"{peer} numbers old epochs")
            elif isinstance(machine, ExitPoint):
                require(machine._handover is None, f"{peer} keeps a handover")
                require({epoch for epoch, _ in machine._streams} <= {view.epoch}, f"{peer} keeps old streams")
                left = machine.gauges()
                require(left["unacknowledged_runs"] == left["incomplete_shares"] == 0, f"{peer} waits for something")
        expected = sorted(subscription_id(self._key, number) for number in wanted)
        require(sorted(held) == expected, f"the matchers hold {sorted(held)}, the subscriber {expected}")


@lru_cache(maxsize=4096)
def _frames(data: bytes) -> tuple[frames.ServerFrame, ...]:
    return tuple(decode_server_frame(body) for body in FrameReader(1 << 20).feed(data))


def _notifications(frame: frames.Notify) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return publisher, sequence and numbers of each notification in a frame."""
    count = len(frame.run) // 4
    matches = struct.unpack(f"<{count}I", frame.matches)
    numbers = struct.unpack(f"<{sum(matches)}I", frame.numbers)
    rows = []
    at = 0
    for run, sequence, matched in zip(
        struct.unpack(f"<{count}I", frame.run), struct.unpack(f"<{count}Q", frame.sequence), matches, strict=True
    ):
        rows.append((frame.runs[run][0], sequence, numbers[at : at + matched]))
        at += matched
    return rows


def shown(message: Any) -> str:
    """Return a message for people: what tells it from others."""
    name = type(message).__name__
    parts = []
    for field in ("epoch", "access_point", "sequence", "first_sequence", "end"):
        value = getattr(message, field, None)
        if isinstance(value, int):
            parts.append(f"{field} {value}")
    for field in ("changes", "entries"):
        value = getattr(message, field, None)
        if isinstance(value, list) and value:
            parts.append(f"{field} {[getattr(one, 'change', one) for one in value]}")
    runs = getattr(message, "runs", None)
    if runs:
        parts.append(
            "runs "
            + ", ".join(
                f"{run.publisher} {run.first_sequence}" if hasattr(run, "publisher") else str(run[0]) for run in runs
            )
        )
    return f"{name}({', '.join(parts)})"


assert parse(EVERYTHING).matches({"id": 1}), "a filter that matches everything does not"
assert not parse(NOTHING).matches({"id": 1}), "a filter that matches nothing does"
