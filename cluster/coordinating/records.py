"""What the coordinator keeps of each slice's process, and the states that it is in itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cluster.messages import Join, Member, Peer
from cluster.messages import Report as Measured


class State(Enum):
    """What the cluster is doing; see `coordinator.py`."""

    GATHERING = "gathering"
    INSTALLING = "installing"
    RESUMING = "resuming"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(slots=True)
class Report:
    """What is known of a role's process. join: None until it has; heard_ms: its last message, or when it was asked for.

    told, installed: of a newcomer: it was sent the view; it has its lanes.
    asked:          of a connection point: the number of the MoveClients that holds, 0 for none.
    moved, emptied: its clients have moved, and wait for what is underway; the last has gone.
    left: it owes nothing any more, and can be stopped.
    dead: it is known to be no more, before anybody could do something about it.
    measured, measured_before: its last report, and the one before.
    """

    incarnation: int
    heard_ms: int
    join: Join | None = None
    connected: bool = True
    told: bool = False
    installed: bool = False
    asked: int = 0
    moved: bool = False
    emptied: bool = False
    left: bool = False
    dead: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    measured: Measured | None = None
    measured_before: Measured | None = None

    @property
    def moving(self) -> bool:
        """Whether it was asked to let its clients move."""
        return self.asked > 0

    def member(self, peer: Peer) -> Member:
        """Return the role as a view names it."""
        assert self.join is not None, f"{peer} has not joined"
        return Member(peer.layer, peer.slot, self.join.incarnation, self.join.host, self.join.port)
