"""What exit points have in their logs of matched output, where there is no disk: for clusters within a process, and
tests.

What is appended survives the process, as a write to a file does. Whether it would survive the machine, whoever drives
says: then the exit point hears Stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.marks import Marks
from cluster.matched import Matched, MatchedRow, rows_of
from cluster.messages import AppendOutput


@dataclass
class SlotRows:
    """The log of one slot. rows: the place of each is its offset.

    appended, synced: numbers of the present writer's last append, and of the last that is on disk. full: there is no
    room. names: of clients. durable: so many of the rows would survive the machine.
    """

    rows: list[MatchedRow] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    appended: int = 0
    synced: int = 0
    wanted: int = 0
    full: bool = False
    durable: int = 0

    def append(self, asked: AppendOutput) -> bool:
        """Write; tell whether there was room."""
        if self.full:
            return False
        self.keep(asked.matched)
        self.appended = asked.number
        if asked.sync:
            self.wanted = asked.number
        return True

    def keep(self, matched: Matched) -> None:
        """Take the rows of a record."""
        self.rows += rows_of(matched)
        self.marks.take(matched)

    def sync(self) -> int | None:
        """Have all on disk; return the number of the last append that is, None if nobody waits for any."""
        self.durable = len(self.rows)
        self.synced, waited = self.appended, self.wanted > self.synced
        return self.synced if waited else None

    def begin(self) -> None:
        """Another incarnation writes from here on."""
        self.appended = self.synced = self.wanted = 0
        self.durable = len(self.rows)


class MatchedDisk:
    """The logs of all slots."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotRows] = {}

    def slot(self, number: int) -> SlotRows:
        """Return a slot's log, made if there is none."""
        return self.slots.setdefault(number, SlotRows())

    def marks(self) -> Marks:
        """Return how far each publisher is written, in any log."""
        marks = Marks()
        for slot in self.slots.values():
            marks.merge(slot.marks)
        return marks

    def all_rows(self) -> Iterable[tuple[int, int, MatchedRow]]:
        """Yield (slot, offset, row) of all rows."""
        for number, slot in sorted(self.slots.items()):
            for offset, row in enumerate(slot.rows):
                yield number, offset, row
