"""Instructions: what a machine asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.messages.base import Message
from cluster.messages.ids import Peer
from cluster.messages.membership import Member

if TYPE_CHECKING:
    from cluster.matched import Matched


class Send(NamedTuple):
    """Put the message on the lane to `peer`."""

    peer: Peer
    message: Message


class Broadcast(NamedTuple):
    """Put the message on the lane to each peer; it is encoded once."""

    peers: tuple[Peer, ...]
    message: Message


class Connect(NamedTuple):
    """Keep a lane to this member; an older incarnation's lane ends."""

    member: Member


class SendClient(NamedTuple):
    """Write the bytes to the client's socket."""

    connection: int
    data: bytes


class CloseClient(NamedTuple):
    """Close the socket after what was written has gone out."""

    connection: int


class PauseClient(NamedTuple):
    """Read no more from the client's socket until ResumeClient; what was read already may still come."""

    connection: int


class ResumeClient(NamedTuple):
    """Read from the client's socket again."""

    connection: int


class ServeClients(NamedTuple):
    """Open the client port."""


class RestAccepting(NamedTuple):
    """Accept no clients for so long, after the rest that is not over; those who connect wait."""

    milliseconds: float


class Again(NamedTuple):
    """There is more to do: let others have their turn, then say Drained again, whether or not anything came.

    rest: not before as long has passed as this turn has taken; what takes all of a core, others wait for.
    """

    rest: bool = False


class Disconnect(NamedTuple):
    """Let go of the lane to this member and of what is on it, and say LaneDown; not if another incarnation has it."""

    member: Member


class Flush(NamedTuple):
    """Say Flushed when every peer has handled all that was sent to it so far."""


class Spawn(NamedTuple):
    """Start a process for this slice; it will Join.

    client_address: where the clients of its former incarnation know it, `host:port`; "" for no matter where.
    """

    peer: Peer
    incarnation: int
    client_address: str = ""


class Stop(NamedTuple):
    """End the process of this slice, if there is one."""

    peer: Peer
    incarnation: int


class Kill(NamedTuple):
    """End the process of this slice at once; it may be dead, or stopped. host, pid: its own."""

    peer: Peer
    incarnation: int
    host: str
    pid: int


class Persist(NamedTuple):
    """Let this be on disk before any later instruction is followed.

    memory: replaces the one of before. entry: (number, document) of the history, None for no change there.
    """

    memory: bytes
    entry: tuple[int, bytes] | None


class Store(NamedTuple):
    """Write this to the slot's own file, as a whole or not at all, in the order of the numbers; then say Stored.

    writes: see `journal.py`.
    """

    number: int
    writes: tuple[Any, ...]


class AppendOutput(NamedTuple):
    """Write these rows to the slot's log of matched output before anything is sent that this or a later event asks for,
    so that they survive the process; then, if `sync`, have them on disk soon and say Stored.

    Numbers rise by one. Where there is no room nothing of it is written, and NotStored is said.
    """

    number: int
    matched: Matched
    sync: bool


class NameOutputClients(NamedTuple):
    """Write down these clients' ids for the rows that name them; see NameClients."""

    names: list[tuple[int, str]]
    ended: list[int]


class ReadOutput(NamedTuple):
    """Have this slot's log on disk, then say OutputMarks with what all slots' logs hold now."""


class SealOutput(NamedTuple):
    """Have all rows of this slot in committed segments, and say OutputSealed: nothing will be written any more."""


class AdoptOutput(NamedTuple):
    """Seal what slots other than these have left behind, if nobody plays them."""

    slots: tuple[int, ...]


Instruction = (
    Send
    | Broadcast
    | Connect
    | SendClient
    | CloseClient
    | PauseClient
    | ResumeClient
    | ServeClients
    | RestAccepting
    | Again
    | Disconnect
    | Flush
    | Spawn
    | Stop
    | Kill
    | Persist
    | Store
    | AppendOutput
    | NameOutputClients
    | ReadOutput
    | SealOutput
    | AdoptOutput
)
