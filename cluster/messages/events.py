"""Events: what a machine is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.messages.ids import Peer

if TYPE_CHECKING:
    from cluster.marks import Marks


class Received(NamedTuple):
    """A message came on the lane from `peer`."""

    peer: Peer
    message: Any


class LaneUp(NamedTuple):
    """The lane to `peer` is connected; messages sent before were kept."""

    peer: Peer


class LaneDown(NamedTuple):
    """The lane to `peer` has no connection at the moment; what is sent is kept until it has."""

    peer: Peer


class ClientConnected(NamedTuple):
    """A socket was accepted. `connection` is the shell's number for it, never reused."""

    connection: int


class ClientBytes(NamedTuple):
    """Bytes from a client's socket, as they came. `now_us`: microseconds since 1970, a label only."""

    connection: int
    data: bytes
    now_us: int


class ClientClosed(NamedTuple):
    """The socket is gone, whoever closed it."""

    connection: int


class ClientFull(NamedTuple):
    """What was written to the client piles up: it does not read. Until ClientFree more only makes it worse."""

    connection: int


class ClientFree(NamedTuple):
    """The client has read on, and little is left of what had piled up."""

    connection: int


class Tick(NamedTuple):
    """Time passes: milliseconds on a monotonic clock, about every 50 ms."""

    now_ms: int


class Drained(NamedTuple):
    """Everything that had arrived has been handed over: send what was gathered. This is where batches end.

    rested: no Again asks for a rest that is not over.
    """

    rested: bool = True


class Flushed(NamedTuple):
    """The answer to Flush: every peer has handled what was sent to it before."""


class Died(NamedTuple):
    """The process of a slice is no more, as those who run it know for certain, and why."""

    peer: Peer
    incarnation: int
    reason: str


class Restored(NamedTuple):
    """To a connection point, first of all: what an earlier incarnation of its slot has had stored. See journal.py.

    now_us: the present time, microseconds since 1970.
    """

    memory: Any
    now_us: int


class Stored(NamedTuple):
    """Everything that Store (or AppendOutput) has asked for, up to this number, is on disk. They come in order."""

    upto: int


class NotStored(NamedTuple):
    """AppendOutput of this number, of so many rows, has come to nothing, and why: there is no room.

    What is asked for next may have some.
    """

    number: int
    rows: int
    reason: str


class OutputMarks(NamedTuple):
    """To an exit point, first of all, and in answer to ReadOutput: what is written in the logs of all slots.

    marks: owned by the exit point from here on.
    """

    marks: Marks


class OutputState(NamedTuple):
    """How the output of this incarnation stands: rows, segments and their bytes that are committed, tries that failed
    for want of room, whether there is none at the moment, and rows that wait to be committed."""

    rows: int
    segments: int
    bytes: int
    errors: int
    full: bool
    pending: int


class OutputSealed(NamedTuple):
    """The answer to SealOutput: every row is in a committed segment."""


class SpawnFailed(NamedTuple):
    """A slice could not be started, and why."""

    peer: Peer
    incarnation: int
    reason: str


Event = (
    Received
    | LaneUp
    | LaneDown
    | Flushed
    | Died
    | Restored
    | Stored
    | NotStored
    | OutputMarks
    | OutputSealed
    | OutputState
    | SpawnFailed
    | ClientConnected
    | ClientBytes
    | ClientClosed
    | ClientFull
    | ClientFree
    | Tick
    | Drained
)
