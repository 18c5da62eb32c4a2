"""All machines of a cluster in one place, over lanes that somebody else drives.

`cluster.testing.LocalCluster` delivers everything at once, the simulator one message at a time in an order of its
choice. A lane here is a queue that loses nothing; the wire's troubles are `channel.py`'s and tested there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cluster.config import Config
from cluster.coordinator import Coordinator
from cluster.matched_disk import MatchedDisk
from cluster.memory import Memory, Operation, decode_memory, decode_operation
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR,
    COORDINATOR_PEER,
    EXIT_POINT,
    OPERATOR,
    AdoptOutput,
    Again,
    Answer,
    AppendOutput,
    Broadcast,
    CloseClient,
    Connect,
    Disconnect,
    Drained,
    Event,
    Flush,
    Flushed,
    Instruction,
    Join,
    Kill,
    LaneDown,
    LaneUp,
    Message,
    NameOutputClients,
    NotStored,
    OutputMarks,
    OutputSealed,
    Peer,
    Persist,
    ReadOutput,
    Received,
    Request,
    Restored,
    SealOutput,
    Send,
    SendClient,
    ServeClients,
    Spawn,
    Status,
    StatusRequest,
    Stop,
    Store,
    Stored,
)
from cluster.role import Role, make_machine
from cluster.session_disk import SessionDisk

ClientOutput = Callable[[Peer, int, bytes | None], None]
"""Called with a connection point, one of its connections, and bytes for it; None closes it."""


class Disk:
    """What the coordinator has had written."""

    def __init__(self) -> None:
        self._memory: bytes | None = None
        self._entries: dict[int, bytes] = {}

    def write(self, persist: Persist) -> None:
        """Keep it."""
        self._memory = persist.memory
        if persist.entry is not None:
            self._entries[persist.entry[0]] = persist.entry[1]

    def read(self) -> tuple[Memory | None, list[Operation]]:
        """Return the memory and the history."""
        memory = None if self._memory is None else decode_memory(self._memory)
        return memory, [decode_operation(self._entries[number]) for number in sorted(self._entries)]


class Assembly:
    """The machines, by peer, and the lanes between them.

    lanes:        (from, to) -> messages on their way, oldest first; a lane that is empty is absent.
    serving:      the connection points that let clients in.
    touched:      who was handed something, or asks for another turn, since it was last drained.
    incarnations: of the roles there are.
    matched_disk: the logs of matched output.
    session_disks: what each connection point has on disk, or is to have there after `sync`.
    wall_us:      tells a new connection point the time of day, microseconds since 1970; 0 for "as ever".
    starter, stopper: what Spawn and Stop do; instruct: which of a machine's instructions are followed. Whoever drives
                      this may put something slower, or less dependable, in their place.
    """

    def __init__(self, config: Config, client_output: ClientOutput) -> None:
        self._config = config
        self._client_output = client_output
        self.disk = Disk()
        self.matched_disk = MatchedDisk()
        self.session_disks: dict[Peer, SessionDisk] = {}
        self.wall_us: Callable[[], int] = lambda: 0
        self.coordinator = Coordinator(config)
        self.roles: dict[Peer, Role] = {}
        self.incarnations: dict[Peer, int] = {}
        self.lanes: dict[tuple[Peer, Peer], deque[Message]] = {}
        self.serving: set[Peer] = set()
        self.touched: set[Peer] = set()
        self._again: set[Peer] = set()
        self._flushing: set[Peer] = set()
        self._answers: deque[Status | Answer] = deque()  # to operators
        self._linked: dict[tuple[Peer, Peer], int] = {}  # who knows whom as which incarnation
        self._gone: set[tuple[Peer, Peer]] = set()  # who was told to let go of whom
        self.starter: Callable[[Peer, int], None] = self.spawn
        self.stopper: Callable[[Peer, int], None] = self.stop
        self.instruct: Callable[[Peer, list[Instruction]], list[Instruction]] = lambda _, instructions: instructions
        self._perform_all(COORDINATOR_PEER, self.coordinator.start())

    def feed(self, peer: Peer, event: Event) -> None:
        """Hand an event to a machine and put what it sends on the lanes."""
        handler = self.coordinator if peer == COORDINATOR_PEER else self.roles.get(peer)
        if handler is None:
            return  # stopped meanwhile
        self.touched.add(peer)
        self._perform_all(peer, handler.handle(event))

    def deliver(self, sender: Peer, receiver: Peer) -> Message:
        """Take the oldest message off a lane and hand it over; return it."""
        message = self.take(sender, receiver)
        self.feed(receiver, Received(sender, message))
        self.see_flushed(sender)
        return message

    def take(self, sender: Peer, receiver: Peer) -> Message:
        """Take the oldest message off a lane."""
        lane = self.lanes[sender, receiver]
        message = lane.popleft()
        if not lane:
            del self.lanes[sender, receiver]
        return message

    def see_flushed(self, sender: Peer) -> None:
        """Tell a role that waits for it that everything it has sent is delivered, if it is."""
        if sender in self._flushing and not any(lane[0] == sender for lane in self.lanes):
            self._flushing.discard(sender)
            self.feed(sender, Flushed())

    def drain(self, peer: Peer) -> None:
        """Tell a machine that it has got everything that had arrived."""
        self._again.discard(peer)
        self.feed(peer, Drained())
        if peer not in self._again:
            self.touched.discard(peer)

    def unsynced(self) -> list[Peer]:
        """Return the connection points and exit points that wait for their disks."""
        doors = [peer for peer, disk in sorted(self.session_disks.items()) if disk.waiting and peer in self.roles]
        logs = sorted(self.matched_disk.slots.items())
        writers = [Peer(EXIT_POINT, slot) for slot, log in logs if log.wanted > log.synced]
        return [*doors, *(peer for peer in writers if peer in self.roles)]

    def sync(self, peer: Peer, count: int | None = None) -> None:
        """Have the oldest portions of a connection point on disk, all without a count, and tell it; of an exit point,
        all of its rows."""
        if peer.layer == EXIT_POINT:
            upto = self.matched_disk.slot(peer.slot).sync()
        else:
            upto = self.session_disks[peer].sync(count)
        if upto is not None:
            self.feed(peer, Stored(upto))

    def connection_points(self) -> list[Peer]:
        """Return the connection points, by slot."""
        return sorted(peer for peer in self.roles if peer.layer == CONNECTION_POINT)

    def spawn(self, peer: Peer, incarnation: int) -> None:
        """Start a role; it joins at once."""
        machine = make_machine(peer, incarnation, self._config)
        door = f"in-process:{peer.slot}" if peer.layer == CONNECTION_POINT else ""
        join = Join(incarnation, "in-process", 0, door, 0)
        self.roles[peer] = Role(peer, join, machine, self._config)
        self.incarnations[peer] = incarnation
        if peer.layer == CONNECTION_POINT:
            disk = self.session_disks.setdefault(peer, SessionDisk())
            disk.crash()  # whatever an earlier incarnation had not written
            recovered = disk.read()
            if any(recovered):
                self.feed(peer, Restored(recovered, self.wall_us()))
        if peer.layer == EXIT_POINT and self._config.output.path is not None:
            self.matched_disk.slot(peer.slot).begin()
            self.feed(peer, OutputMarks(self.matched_disk.marks()))
        self._linked[COORDINATOR_PEER, peer] = incarnation
        self.feed(COORDINATOR_PEER, LaneUp(peer))
        self.feed(peer, LaneUp(COORDINATOR_PEER))

    def stop(self, peer: Peer, incarnation: int) -> None:
        """End a role; what it has sent and nobody has taken yet is gone, and what was sent to it."""
        if self.incarnations.get(peer) != incarnation:
            return
        del self.roles[peer], self.incarnations[peer]
        for known in (self.serving, self.touched, self._again, self._flushing):
            known.discard(peer)
        if peer in self.session_disks:
            self.session_disks[peer].crash()
        for lane in [lane for lane in self.lanes if peer in lane]:
            del self.lanes[lane]

    def restart_coordinator(self) -> None:
        """The coordinator's process dies and comes again with what is on its disk; what was on its lanes is lost."""
        for lane in [lane for lane in self.lanes if COORDINATOR_PEER in lane]:
            del self.lanes[lane]
        self._answers.clear()
        self.touched.discard(COORDINATOR_PEER)
        self._linked |= {(COORDINATOR_PEER, peer): incarnation for peer, incarnation in self.incarnations.items()}
        for peer in list(self.roles):
            self.feed(peer, LaneDown(COORDINATOR_PEER))
        self.coordinator = Coordinator(self._config, *self.disk.read())
        self._perform_all(COORDINATOR_PEER, self.coordinator.start())
        for peer in list(self.roles):
            self.feed(COORDINATOR_PEER, LaneUp(peer))
            self.feed(peer, LaneUp(COORDINATOR_PEER))
            self.see_flushed(peer)

    def _perform_all(self, peer: Peer, instructions: list[Instruction]) -> None:
        for instruction in self.instruct(peer, instructions):
            self.perform(peer, instruction)

    def perform(self, peer: Peer, instruction: Instruction) -> None:
        """Do what a machine asks for."""
        match instruction:
            case Send(receiver, message):
                self._put(peer, receiver, message)
            case Broadcast(receivers, message):
                for receiver in receivers:
                    self._put(peer, receiver, message)
            case SendClient(connection, data):
                self._client_output(peer, connection, data)
            case CloseClient(connection):
                self._client_output(peer, connection, None)
            case Connect(member):
                if self.incarnations.get(member.peer) != member.incarnation:
                    return  # it has died
                if self._linked.get((peer, member.peer)) != member.incarnation:
                    # What a former incarnation has sent is not taken any more.
                    self.lanes.pop((peer, member.peer), None)
                    self.lanes.pop((member.peer, peer), None)
                self._linked[peer, member.peer] = member.incarnation
                self._linked[member.peer, peer] = self.incarnations[peer]
                self.feed(member.peer, LaneUp(peer))
                self.feed(peer, LaneUp(member.peer))
            case Disconnect(member):
                self._disconnect(peer, member.peer, member.incarnation)
            case ServeClients():
                self.serving.add(peer)
            case Again():  # here nobody waits for a core
                self._again.add(peer)
            case Flush():
                self._flushing.add(peer)
                self.see_flushed(peer)
            case Spawn(spawned, incarnation, _):
                self.starter(spawned, incarnation)
            case Stop(stopped, incarnation) | Kill(stopped, incarnation):
                self.stopper(stopped, incarnation)
            case Persist():
                self.disk.write(instruction)
            case Store():
                self.session_disks[peer].ask(instruction)
            case AppendOutput(number, matched):
                if not self.matched_disk.slot(peer.slot).append(instruction):
                    self.feed(peer, NotStored(number, matched.rows, "overloaded: the output's disk is full"))
            case NameOutputClients(names):
                self.matched_disk.slot(peer.slot).names.update(names)
            case ReadOutput():
                self.matched_disk.slot(peer.slot).sync()
                self.feed(peer, OutputMarks(self.matched_disk.marks()))
            case SealOutput():
                self.feed(peer, OutputSealed())
            case AdoptOutput():
                pass  # there is nothing to seal
            case _:
                pass  # whoever drives this holds no bytes and no clients back

    def request(self, message: StatusRequest | Request) -> Status | Answer | None:
        """Ask the coordinator as an operator does; None if it has not answered yet, or died before it could."""
        self.feed(COORDINATOR_PEER, Received(Peer(OPERATOR, 0), message))
        return self.take_answer()

    def take_answer(self) -> Status | Answer | None:
        """Return what the coordinator has answered since the last call; None if it has not."""
        return self._answers.popleft() if self._answers else None

    def _put(self, sender: Peer, receiver: Peer, message: Message) -> None:
        if receiver.layer == OPERATOR:
            assert isinstance(message, Status | Answer), f"{type(message).__name__} to an operator"
            self._answers.append(message)
            return
        if receiver.layer != COORDINATOR:
            known = self._linked.get((sender, receiver))
            if known is None:
                assert (sender, receiver) in self._gone, f"{sender} has no lane to {receiver}"
                return
            if known != self.incarnations.get(receiver):
                return  # it is no more, which the sender has not been told yet: nobody takes from the lane
        self.lanes.setdefault((sender, receiver), deque()).append(message)

    def crash(self, peer: Peer, kept: Callable[[int], int] = lambda count: 0) -> None:
        """A role's process dies: its lane to the coordinator ends, and what is sent to it is never taken.

        kept: told how many messages of it are on a lane, how many of them still arrive.
        """
        underway = {lane: list(messages) for lane, messages in self.lanes.items() if lane[0] == peer}
        self.stop(peer, self.incarnations[peer])
        for lane, messages in underway.items():
            arriving = messages[: kept(len(messages))]
            if arriving and lane[1] != COORDINATOR_PEER:
                self.lanes[lane] = deque(arriving)
        self.feed(COORDINATOR_PEER, LaneDown(peer))

    def _disconnect(self, peer: Peer, other: Peer, incarnation: int) -> None:
        self._gone.add((peer, other))
        if self._linked.get((peer, other), incarnation + 1) <= incarnation:
            del self._linked[peer, other]
            self.lanes.pop((peer, other), None)
            self.lanes.pop((other, peer), None)
            self.feed(peer, LaneDown(other))
            self.see_flushed(peer)
