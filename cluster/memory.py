"""What the coordinator keeps on disk: enough to go on after its own crash, and the history of what it did."""

from __future__ import annotations

import msgspec

from cluster.messages import Install, Member
from cluster.wish import Slots


class Memory(msgspec.Struct, array_like=True):
    """The coordinator's memory.

    epoch:       the highest number that a view was given, agreed upon or not.
    view:        the one in force, None before the first.
    wanted:      the slots that the cluster is on its way to; the view's own at rest.
    strategy:    how to get there.
    operation:   the number of the wish that is being followed, or was last.
    incarnation: the highest that a process was given.
    leaving:     members of former views that have not left yet.
    replaced:    (layer, slot, incarnation) of those that have died since every role last served one view.
    asked:       the number of the last MoveClients.
    configured:  the sizes that the configuration asked for when the cluster was last started, by layer.
    doors:       `host:port` where clients know a connection point, by slot; its next incarnation is to be found there
                 as well. Not after everything has ended: then the configuration says.
    """

    epoch: int = 0
    view: Install | None = None
    wanted: Slots = {}
    strategy: str = "waves"
    operation: int = 0
    incarnation: int = 0
    leaving: list[Member] = []
    replaced: list[tuple[str, int, int]] = []
    configured: dict[str, int] = {}
    asked: int = 0
    doors: dict[int, str] = {}


class Step(msgspec.Struct):
    """One view change of an operation. phases_ms: time spent in each."""

    epoch: int
    groups: int
    entries: int
    bytes: int
    phases_ms: dict[str, int]
    outcome: str


class Operation(msgspec.Struct):
    """A wish and what became of it.

    wanted:         slots by layer. groups_minimum: key groups that must move for it at least.
    former:         the slots that there were when it began.
    state:          running, done, aborted (the steps before the last one stand) or merged (into a later wish).
    started_ms:     on the coordinator's clock. duration_ms: so far, or in all.
    """

    number: int
    wanted: Slots
    strategy: str
    groups_minimum: int
    started_ms: int
    state: str = "running"
    reason: str | None = None
    groups_moved: int = 0
    entries: int = 0
    bytes: int = 0
    duration_ms: int = 0
    steps: list[Step] = []
    former: Slots = {}


def encode_memory(memory: Memory) -> bytes:
    """Return the bytes of a memory."""
    return msgspec.msgpack.encode(memory)


def decode_memory(data: bytes) -> Memory:
    """Return the memory of these bytes. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=Memory)


def encode_operation(operation: Operation) -> bytes:
    """Return the JSON document of an operation."""
    return msgspec.json.encode(operation)


def decode_operation(data: bytes) -> Operation:
    """Return the operation of a JSON document. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=Operation)
