"""The coordinator under wishes, failures and its own crashes in any order: it agrees with itself, and comes to rest.

The roles here have no more than the membership part of a view change, and check that what they are told makes sense:
no view is begun within another, given up after its decision, or retired before it, and a recovery is resumed only when
all have done their part. Any process may fail at any time, told or untold, and lanes be cut for so long that a role is
held for dead. The coordinator may crash between any two events.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from cluster.assignment import fewest_moves
from cluster.config import Config, Layers, Timing, Transitions
from cluster.coordinating.records import State
from cluster.coordinating.wishes import STRATEGIES
from cluster.coordinator import Coordinator
from cluster.memory import decode_memory, decode_operation
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    OPERATOR,
    Abort,
    Answer,
    Begin,
    Commit,
    Died,
    Disconnect,
    Drain,
    Emptied,
    Ended,
    Event,
    Failed,
    Gone,
    Heartbeat,
    Install,
    Installed,
    Join,
    Kill,
    LaneDown,
    LaneUp,
    Left,
    Message,
    MoveClients,
    Peer,
    Persist,
    Prepare,
    Prepared,
    Ready,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Request,
    Resume,
    Retire,
    Send,
    Serve,
    Settled,
    Spawn,
    SpawnFailed,
    Stop,
    Tick,
)
from cluster.transition import Phase
from cluster.view import View, view_of
from cluster.wish import PLURALS, slots_of

CONFIG = Config(
    layers=Layers(connection_points=2, matchers=2),
    timing=Timing(role_lost_ms=1_500),
    transitions=Transitions(
        wave_groups=256, start_timeout_ms=3_000, prepare_timeout_ms=3_000, move_clients_ms=2_000, slow_switch_ms=100
    ),
)


@dataclass
class Process:
    """A role. inbox: what the coordinator has sent, in order; stubborn: its clients do not move of themselves."""

    peer: Peer
    incarnation: int
    stubborn: bool
    inbox: deque[Message | str] = field(default_factory=lambda: deque(["join"]))
    view: View | None = None
    after: View | None = None
    decided: bool = False
    cut: bool = False
    moving: bool = False
    left: bool = False
    recovering: bool = False
    rebuilt: int = 0
    marks: set[int] = field(default_factory=set)

    def take(self, processes: dict[Peer, Process]) -> list[Message]:
        """Take the oldest message; return the answers."""
        message = self.inbox.popleft()
        match message:
            case "join":
                door = f"door {self.peer.slot}" if self.peer.layer == CONNECTION_POINT else ""
                return [Join(self.incarnation, "host", 1, door, 1)]
            case "ready":
                return [Ready(self._next_epoch(), 1, 10)] if self.after is not None else []
            case Install():
                assert self.after is None, f"{self.peer} gets a view within a change"
                self.view = view_of(message)
                return [Installed(message.epoch)]
            case Recover(epoch):
                assert self.view is None or epoch > self.view.epoch, f"{self.peer}: the view goes back to {epoch}"
                self.view, self.after, self.decided = view_of(message), None, False
                self.left = self.view.member(self.peer) is None
                self.recovering = self.peer.layer == CONNECTION_POINT and not self.left
                return [Installed(epoch), Left()] if self.left else [Installed(epoch)]
            case Rebuild(epoch):
                assert self.recovering, f"{self.peer} is to rebuild and not recovering"
                self.rebuilt = epoch
                return [Rebuilt(epoch)]
            case Resume(epoch):
                if self.view is not None and self.view.epoch == epoch:
                    self.recovering = False
                return []
            case Prepare(epoch):
                assert not self.recovering, f"{self.peer} prepares {epoch} within a recovery"
                assert self.view is not None, f"{self.peer} prepares and has no view"
                assert self.after is None, f"{self.peer} prepares {epoch} within another change"
                assert epoch > self.view.epoch
                self.after, self.decided = view_of(message), False
                self.marks.clear()
                return [Prepared(epoch)]
            case Begin(epoch):
                assert self._next_epoch() == epoch
                if self.peer.layer == EXIT_POINT:
                    return [Ready(epoch, 0, 0)]
                for other in processes.values():
                    other.marked(self.peer.slot, epoch)
                return []
            case Commit(epoch):
                assert epoch in (self._next_epoch(), self.view and self.view.epoch), f"{self.peer}: commit of {epoch}"
                self.decided = self.after is not None
                return [Ended(epoch)]
            case Retire(epoch):
                if self.after is not None:
                    assert self.decided, f"{self.peer} retires {epoch} before its decision"
                    assert self.after.epoch == epoch
                    self.view, self.after = self.after, None
                assert self.view is not None
                assert self.view.epoch == epoch
                self.left = self.view.member(self.peer) is None
                return [Settled(epoch), Left()] if self.left else [Settled(epoch)]
            case Abort(epoch):
                assert not (self.decided and self._next_epoch() == epoch), f"{self.peer}: {epoch} is decided"
                self.after = None
                return [Settled(epoch)]
            case MoveClients(_, number):
                self.asked = number
                return [] if self.stubborn else [Emptied(number)]
            case Drain():
                return [Emptied(self.asked)] if self.asked else []
            case Serve():
                self.asked = 0
                return []
            case Gone(member):
                assert member.peer != self.peer
                return []
            case _:
                raise AssertionError(f"{self.peer} is told {message}")

    def _next_epoch(self) -> int:
        return -1 if self.after is None else self.after.epoch

    def marked(self, access_point: int, epoch: int) -> None:
        """A Mark comes by another way; with the last one a matcher is ready."""
        if self.peer.layer == MATCHER and self.view is not None and self._next_epoch() == epoch:
            self.marks.add(access_point)
            if self.marks >= set(self.view.access_points) and "ready" not in self.inbox:
                self.inbox.append("ready")


class World:
    """A coordinator, its disk and its processes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.processes: dict[Peer, Process] = {}
        self.memory: bytes | None = None
        self.entries: dict[int, bytes] = {}
        self.now_ms = 1_000
        self.healed = False
        self.highest = 0
        self.started_ms = 0
        self.late_ms = 0  # the last Tick came so late
        self.machine = Coordinator(CONFIG)
        self.perform(self.machine.start())

    def feed(self, event: Event) -> Answer | None:
        return self.perform(self.machine.handle(event))

    def perform(self, out: list[Any]) -> Answer | None:
        answer = None
        for one in out:
            match one:
                case Spawn(peer, incarnation):
                    assert incarnation > self.highest, "an incarnation comes again"
                    self.highest = incarnation
                    assert peer not in self.processes or self.processes[peer].view is None
                    stubborn = self.rng.random() < 0.5
                    self.processes[peer] = Process(peer, incarnation, stubborn)
                case Stop(peer, incarnation):
                    if peer in self.processes and self.processes[peer].incarnation == incarnation:
                        owes = self.owes(self.processes.pop(peer))
                        assert not owes or self.now_ms - self.started_ms > 1_500, f"{peer} may owe something"
                case Kill(peer, incarnation):
                    if peer in self.processes and self.processes[peer].incarnation == incarnation:
                        process = self.processes.pop(peer)
                        assert process.cut or self.late_ms > 0, f"{peer} was alive, and could be heard"
                case Persist(memory, entry):
                    self.memory = memory
                    if entry is not None:
                        self.entries[entry[0]] = entry[1]
                case Send(peer, message) if peer.layer == OPERATOR:
                    assert isinstance(message, Answer)
                    answer = message
                case Send(peer, message):
                    if isinstance(message, Prepare):
                        operation = self.machine._operations.present
                        assert operation is not None, "a view change that nobody asked for"
                        assert operation.state == "running", "a view change for a wish that has ended"
                    if isinstance(message, Commit):
                        assert self.memory is not None
                        view = decode_memory(self.memory).view
                        assert view is not None
                        assert view.epoch == message.epoch, "told before it is on disk"
                    if isinstance(message, Recover | Resume):
                        self.check_recovery(message)
                    if peer in self.processes:
                        self.processes[peer].inbox.append(message)
                case Disconnect():
                    pass
                case _:
                    raise AssertionError(f"{one} from the coordinator")
        return answer

    def owes(self, process: Process) -> bool:
        """Tell whether the process may not be ended: it is of a view that is or was decided, alive, and heard."""
        assert self.memory is not None
        memory = decode_memory(self.memory)
        members: list[Any] = [] if memory.view is None else memory.view.members
        known = {(one.peer, one.incarnation) for one in (*members, *memory.leaving)}
        return (process.peer, process.incarnation) in known and not process.left and not process.cut

    def check_recovery(self, message: Recover | Resume) -> None:
        """Its view is on disk before it is told; it is over when everybody who lives has done his part."""
        assert self.memory is not None
        view = decode_memory(self.memory).view
        assert view is not None
        assert view.epoch == message.epoch, "told before it is on disk"
        if isinstance(message, Resume):
            for process in self.processes.values():
                if process.recovering:
                    assert process.view is not None
                    assert (process.view.epoch, process.rebuilt) == (message.epoch, message.epoch), f"{process.peer}"

    def whole(self) -> bool:
        """Tell whether every member of the view is alive."""
        view = self.machine._shared.view
        members = () if view is None else view.members
        alive = {peer: process.incarnation for peer, process in self.processes.items()}
        return all(alive.get(one.peer) == one.incarnation for one in members)

    def crash(self) -> None:
        """The coordinator dies and comes again; what was on its lanes is lost."""
        if self.memory is None or decode_memory(self.memory).view is None:
            return
        history = [decode_operation(self.entries[number]) for number in sorted(self.entries)]
        assert self.memory is not None
        self.machine = Coordinator(CONFIG, decode_memory(self.memory), history)
        for process in self.processes.values():
            process.inbox = deque(["join"])
            process.cut = False
        self.started_ms = self.now_ms
        self.perform(self.machine.start())

    def work(self) -> bool:
        """Let one process take one message; tell whether there was one."""
        able = [one for one in self.processes.values() if one.inbox and not one.cut]
        if not able:
            return False
        process = self.rng.choice(able)
        for message in process.take(self.processes):
            if not self.healed and isinstance(message, Prepared | Ready) and self.rng.random() < 0.02:
                message = Failed(message.epoch, "out of luck")
            if self.processes.get(process.peer) is process:
                self.feed(Received(process.peer, message))
        return True

    def tick(self, milliseconds: int = 50) -> None:
        self.now_ms += milliseconds
        self.late_ms = milliseconds if milliseconds > 250 else 0
        for process in list(self.processes.values()):
            if not process.cut and "join" not in process.inbox:
                self.feed(Received(process.peer, Heartbeat({})))
        self.feed(Tick(self.now_ms))

    def disturb(self) -> None:
        """Do one of the things that may happen."""
        rng = self.rng
        kind = rng.choice(["wish", "wish", "wish", "abort", "lane", "lane", "spawn", "death", "crash", "crash", "wait"])
        peers = sorted(self.processes)
        if kind == "wish":
            arguments: dict[str, Any] = {
                name: rng.randint(1, 4) for name in rng.sample(sorted(PLURALS), rng.randint(0, 2))
            }
            arguments["strategy"] = rng.choice(STRATEGIES)
            if rng.random() < 0.3:
                peer = rng.choice(peers)
                arguments["replace"] = [list(peer)]
            self.feed(Received(Peer(OPERATOR, 0), Request("scale", msgspec.json.encode(arguments))))
        elif kind == "abort":
            self.feed(Received(Peer(OPERATOR, 0), Request("abort", b"")))
        elif kind == "lane":
            process = self.processes[rng.choice(peers)]
            process.cut = not process.cut
            self.feed(LaneDown(process.peer) if process.cut else LaneUp(process.peer))
        elif kind in ("spawn", "death"):
            process = self.processes.pop(rng.choice(peers))
            if process.inbox and process.inbox[0] == "join":
                self.feed(SpawnFailed(process.peer, process.incarnation, "no room"))
            else:
                self.feed(LaneDown(process.peer))
                if rng.random() < 0.7:
                    self.feed(Died(process.peer, process.incarnation, "killed"))
        elif kind == "crash":
            self.crash()
        else:
            self.tick(rng.choice([50, 200, 1_000]))

    def mend(self) -> None:
        """From here on nothing fails."""
        self.healed = True
        for process in self.processes.values():
            if process.cut:
                process.cut = False
                self.feed(LaneUp(process.peer))

    def rest(self) -> None:
        """Go on until nothing happens any more."""
        quiet_ms = 0
        for _ in range(20_000):
            if self.work():
                quiet_ms = 0
                continue
            recovery = self.machine._shared.recovery
            if quiet_ms > 10_000 and not (recovery is not None and recovery.retries):
                return
            self.tick()
            quiet_ms += 50
        raise AssertionError("it does not come to rest")

    def check(self) -> None:
        """What must hold at rest."""
        machine = self.machine
        assert machine.state is State.SERVING
        assert machine._shared.transition is None
        assert machine._shared.recovery is None
        view = machine._shared.view
        assert view is not None
        assert self.memory is not None
        memory = decode_memory(self.memory)
        assert memory.view == view.install()
        assert memory.leaving == []
        assert memory.replaced == []
        assert memory.wanted == slots_of(view), "what is wanted is there"
        assert {one.peer: one.incarnation for one in view.members} == {
            peer: process.incarnation for peer, process in self.processes.items()
        }, "there is nobody else"
        for process in self.processes.values():
            assert process.view is not None
            assert (process.view.epoch, process.after) == (view.epoch, None), f"{process.peer}"
            assert not process.recovering, f"{process.peer} never goes on"
            assert process.peer.layer in PLURALS.values()
        operations = [decode_operation(self.entries[number]) for number in sorted(self.entries)]
        assert all(one.state in ("done", "aborted", "merged") for one in operations)
        if operations and operations[-1].state == "done":
            assert operations[-1].wanted == slots_of(view)
            assert fewest_moves(view.owners, view.matchers) == 0
        for one in operations:
            assert one.groups_moved <= sum(step.groups for step in one.steps)
            epochs = [step.epoch for step in one.steps]
            assert epochs == sorted(set(epochs)), "a number is used once"


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_whatever_happens_it_comes_to_rest_with_one_view(first: int) -> None:
    for seed in range(first, first + 10):
        rng = random.Random(seed)
        world = World(rng)
        world.feed(Tick(world.now_ms))
        while world.work():
            pass
        for _ in range(rng.randint(1, 12)):
            world.disturb()
            for _ in range(rng.choice([0, 1, 3, 6, 12, 20, 40, 100])):
                if not world.work():
                    world.tick()
        try:
            world.mend()
            transition = world.machine._shared.transition
            last = None
            if (
                world.whole()
                and world.machine.state is State.SERVING
                and (transition is None or transition.phase is Phase.ABORTING)
            ):
                # What has been begun may still be given up; this one has nothing to do with it.
                last = world.feed(Received(Peer(OPERATOR, 0), Request("scale", b'{"exit_points":2,"matchers":2}')))
            world.rest()
            world.check()
            if last is not None and not last.error:
                assert decode_operation(world.entries[max(world.entries)]).state == "done"
            # Whatever it has been through, it can still be scaled.
            world.feed(Received(Peer(OPERATOR, 0), Request("scale", b'{"matchers":3,"access_points":2}')))
            world.rest()
            world.check()
            assert decode_operation(world.entries[max(world.entries)]).state == "done"
            assert len(world.machine._shared.view.matchers) == 3  # type: ignore[union-attr]
            assert len([one for one in world.processes if one.layer == ACCESS_POINT]) == 2
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
