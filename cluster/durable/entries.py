"""A notification that a durable session is owed: in its queue, on disk, and in the frame that the client gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from cluster import columns
from cluster.frames import GIVEN, REDELIVERED, Notify

ENTRY_BYTES = 64
"""What a notification costs beyond its payload and its numbers, about, in memory and on disk."""

Run = tuple[str, int, int]
"""(publisher, instance, microseconds since 1970)."""


class OneEntry(msgspec.Struct, frozen=True, array_like=True):
    """A notification on disk. given: as valid."""

    run: Run
    sequence: int
    numbers: bytes
    payload: bytes
    given: bool = False


decode_entries = msgspec.msgpack.Decoder(list[OneEntry]).decode
"""The notifications of a segment, in the order of their positions."""


class Held(NamedTuple):
    """A subscription. filter: as it was asked for."""

    filter: str
    policy: str
    normal_form: bytes


@dataclass(slots=True)
class Entry:
    """A notification that is not settled.

    count, end: notifications and bytes of the queue up to it, from some start on. blocks: its publisher waits for room.
    given: as valid.
    """

    position: int
    run: Run
    sequence: int
    numbers: bytes
    payload: bytes
    blocks: bool
    given: bool = False
    count: int = 0
    end: int = 0

    @classmethod
    def stored(cls, position: int, one: OneEntry) -> Entry:
        """Return it as it was on disk; nobody waits for room."""
        return cls(position, one.run, one.sequence, one.numbers, one.payload, False, one.given)

    def to_store(self) -> OneEntry:
        """Return it as it is on disk."""
        return OneEntry(self.run, self.sequence, self.numbers, self.payload, self.given)

    @property
    def size(self) -> int:
        """What it costs to keep."""
        return len(self.payload) + len(self.numbers) + ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Portion:
    """Some notifications, for one frame. again: which of them are flagged as delivered before."""

    entries: list[Entry]
    again: list[bool]

    def __len__(self) -> int:
        return len(self.entries)

    def frame(self) -> Notify:
        """Return it as the client gets it."""
        runs: dict[Run, int] = {}
        run = [runs.setdefault(entry.run, len(runs)) for entry in self.entries]
        return Notify(
            list(runs),
            columns.pack(columns.UINT32, run),
            columns.pack(columns.UINT64, [entry.sequence for entry in self.entries]),
            columns.pack(columns.UINT32, [len(entry.payload) for entry in self.entries]),
            columns.pack(columns.UINT32, [len(entry.numbers) // 4 for entry in self.entries]),
            b"".join([entry.numbers for entry in self.entries]),
            b"".join([entry.payload for entry in self.entries]),
            columns.pack(columns.UINT64, [entry.position for entry in self.entries]),
            bytes(
                [
                    REDELIVERED * again | GIVEN * entry.given
                    for again, entry in zip(self.again, self.entries, strict=True)
                ]
            ),
        )
