"""What connection points have on disk, where there is no disk: for clusters within a process, and tests.

Portions are written when whoever drives says so, in order; those that wait at a crash are lost, as unsynced writes are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cluster.journal import (
    Append,
    DeadLetter,
    Discard,
    EndSession,
    ForgetMarks,
    OfSession,
    Recovered,
    RemoveSubscription,
    RemoveValid,
    RemoveWithdrawal,
    SaveDeliveries,
    SavedSession,
    SaveMark,
    SaveSession,
    SaveSubscription,
    SaveValid,
    SaveWithdrawal,
    Took,
    Write,
)
from cluster.messages import Store


@dataclass
class _Rows:
    state: bytes = b""
    deliveries: bytes = b""
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    subscriptions: dict[int, SaveSubscription] = field(default_factory=dict)
    segments: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)  # by last position


class SessionDisk:
    """The file of one slot. dead_letters: lines, in the order in which they came."""

    def __init__(self) -> None:
        self.dead_letters: list[bytes] = []
        self._sessions: dict[int, _Rows] = {}
        self._took: dict[tuple[str, int], int] = {}
        self._valid: dict[tuple[str, int, int], SaveValid] = {}
        self._withdrawals: dict[SaveWithdrawal, None] = {}  # the latest last
        self._waiting: deque[Store] = deque()

    def ask(self, portion: Store) -> None:
        """Have a portion wait to be written."""
        self._waiting.append(portion)

    def asked(self) -> list[Write]:
        """Return the writes that wait, in order."""
        return [write for portion in self._waiting for write in portion.writes]

    @property
    def waiting(self) -> int:
        """Portions that wait."""
        return len(self._waiting)

    def sync(self, count: int | None = None) -> int | None:
        """Write the oldest portions, all without a count; return the number up to which all is written, if any was."""
        upto = None
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            portion = self._waiting.popleft()
            for write in portion.writes:
                self._write(write)
            upto = portion.number
        return upto

    def crash(self) -> None:
        """The process has died: what waits is lost."""
        self._waiting.clear()

    def _write(self, write: Write) -> None:
        match write:
            case DeadLetter(line):
                self.dead_letters.append(line)
            case Took(publisher, instance, sequence):
                self._took[publisher, instance] = sequence
            case SaveValid(publisher, instance, sequence):
                self._valid[publisher, instance, sequence] = write
            case RemoveValid(publisher, instance, sequence):
                self._valid.pop((publisher, instance, sequence), None)
            case SaveWithdrawal():
                self._withdrawals.pop(write, None)
                self._withdrawals[write] = None
            case RemoveWithdrawal():
                self._withdrawals.pop(SaveWithdrawal(*write), None)
            case _:
                self._write_session(write)

    def _write_session(self, write: OfSession) -> None:
        rows = self._sessions.setdefault(write.session, _Rows())
        match write:
            case SaveSession(_, state):
                rows.state = state
            case SaveDeliveries(_, deliveries):
                rows.deliveries = deliveries
            case SaveMark(_, publisher, instance, sequence):
                rows.marks[publisher, instance] = sequence
            case ForgetMarks():
                rows.marks.clear()
            case SaveSubscription(_, number):
                rows.subscriptions[number] = write
            case RemoveSubscription(_, number):
                rows.subscriptions.pop(number, None)
            case Append(_, first, last, entries):
                rows.segments[last] = (first, last, entries)
            case Discard(_, upto):
                rows.segments = {last: segment for last, segment in rows.segments.items() if last > upto}
            case EndSession(session):
                del self._sessions[session]

    def read(self) -> Recovered:
        """Return all that is there."""
        sessions = [
            SavedSession(
                session,
                rows.state,
                rows.deliveries,
                [rows.subscriptions[number] for number in sorted(rows.subscriptions)],
                [rows.segments[last] for last in sorted(rows.segments)],
                [(*life, sequence) for life, sequence in sorted(rows.marks.items())],
            )
            for session, rows in sorted(self._sessions.items())
        ]
        took = [Took(*key, sequence) for key, sequence in self._took.items()]
        return Recovered(sessions, took, list(self._valid.values()), list(self._withdrawals))
