"""All machines of a cluster in one place, over lanes that somebody else drives.

`cluster.testing.LocalCluster` delivers everything at once, the simulator one message at a time in an order of its
choice. A lane here is a queue that loses nothing; the wire's troubles are `channel.py`'s and tested there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cluster.config import Config
from cluster.coordinator import Coordinator, expected_slots
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    Again,
    Broadcast,
    CloseClient,
    Connect,
    Drained,
    Event,
    Instruction,
    Join,
    LaneUp,
    Message,
    Peer,
    Received,
    Send,
    SendClient,
    ServeClients,
)
from cluster.role import Role, make_machine

ClientOutput = Callable[[Peer, int, bytes | None], None]
"""Called with a connection point, one of its connections, and bytes for it; None closes it."""


class Assembly:
    """The machines, by peer, and the lanes between them.

    lanes:   (from, to) -> messages on their way, oldest first; a lane that is empty is absent.
    serving: the connection points that let clients in.
    touched: who was handed something, or asks for another turn, since it was last drained.
    """

    def __init__(self, config: Config, client_output: ClientOutput) -> None:
        self._client_output = client_output
        self.coordinator = Coordinator(config)
        self.roles: dict[Peer, Role] = {}
        self.lanes: dict[tuple[Peer, Peer], deque[Message]] = {}
        self.serving: set[Peer] = set()
        self.touched: set[Peer] = set()
        self._again: set[Peer] = set()
        for peer in expected_slots(config):
            machine = make_machine(peer, 1, config)
            self.roles[peer] = Role(peer, Join(1, "in-process", 0, "", 0), machine, config)
        for peer in self.roles:
            self.feed(peer, LaneUp(COORDINATOR_PEER))

    def feed(self, peer: Peer, event: Event) -> None:
        """Hand an event to a machine and put what it sends on the lanes."""
        handler = self.coordinator if peer == COORDINATOR_PEER else self.roles[peer]
        self.touched.add(peer)
        for instruction in handler.handle(event):
            self._perform(peer, instruction)

    def deliver(self, sender: Peer, receiver: Peer) -> Message:
        """Take the oldest message off a lane and hand it over; return it."""
        lane = self.lanes[sender, receiver]
        message = lane.popleft()
        if not lane:
            del self.lanes[sender, receiver]
        self.feed(receiver, Received(sender, message))
        return message

    def drain(self, peer: Peer) -> None:
        """Tell a machine that it has got everything that had arrived."""
        self._again.discard(peer)
        self.feed(peer, Drained())
        if peer not in self._again:
            self.touched.discard(peer)

    def connection_points(self) -> list[Peer]:
        """Return the connection points, by slot."""
        return [peer for peer in self.roles if peer.layer == CONNECTION_POINT]

    def _perform(self, peer: Peer, instruction: Instruction) -> None:
        match instruction:
            case Send(receiver, message):
                self.lanes.setdefault((peer, receiver), deque()).append(message)
            case Broadcast(receivers, message):
                for receiver in receivers:
                    self.lanes.setdefault((peer, receiver), deque()).append(message)
            case SendClient(connection, data):
                self._client_output(peer, connection, data)
            case CloseClient(connection):
                self._client_output(peer, connection, None)
            case Connect(member):
                self.feed(member.peer, LaneUp(peer))
                self.feed(peer, LaneUp(member.peer))
            case ServeClients():
                self.serving.add(peer)
            case Again():
                self._again.add(peer)
            case _:
                pass  # PauseClient, ResumeClient: whoever drives this holds no bytes back
