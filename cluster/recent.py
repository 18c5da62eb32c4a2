"""What a connection point remembers of the last deliveries, so that it can tell what became of one. Bounded.

Notifications are remembered as the columns they came in, without their payload: nothing is copied, looked through or
decoded before somebody asks. What is older than the bounds is forgotten, whoever it was for: a connection point with
many notifications remembers a shorter time.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from cluster import columns
from cluster.outbox import Chunk

BYTES = 8 << 20
"""Of the columns of what was sent, and as much again of what was dropped: about 400,000 notifications, or 19,000 if
they come one by one."""
FRAMES = 4096
"""Publish frames, over all publishers; and as many publications that were rejected."""
CHUNK_BYTES = 420
"""What a chunk costs beyond its columns, about: nine objects and the tuple that holds them."""

Columns = tuple[list[tuple[str, int, int]], bytes, bytes, bytes, bytes]
"""runs, run, sequence, matches and numbers, as of a chunk."""

Kept = tuple[int, int, str, int, list[tuple[str, int, int]], bytes, bytes, bytes, bytes]
"""Notifications of one session: the session, how many it was sent in all with these (0 if they were dropped), why they
were dropped, bytes, and the columns. A plain tuple: one with names takes twice the time to make."""
_SIZE: Final = 3
_SEQUENCE: Final = 6


class Found(NamedTuple):
    """A notification that is remembered.

    place:    among all that the session was sent, from 1; 0 if it was dropped. reason: why it was dropped, or "".
    taken_us: when a connection point took the publication in, microseconds since 1970.
    numbers:  the client's numbers of the subscriptions that it was for.
    """

    place: int
    reason: str
    taken_us: int
    numbers: list[int]


class Recent:
    """The last notifications sent and dropped, frames taken in and publications rejected, of one connection point.

    limit: bytes, as BYTES.
    """

    def __init__(self, limit: int = BYTES) -> None:
        self._limit = limit
        self._sent: deque[Kept] = deque()
        self._sent_bytes = 0
        self._dropped: deque[Kept] = deque()
        self._dropped_bytes = 0
        # (publisher, first sequence, last sequence, when it was taken in)
        self._taken: deque[tuple[str, int, int, int]] = deque(maxlen=FRAMES)
        self._rejected: deque[tuple[str, int, str]] = deque(maxlen=FRAMES)

    @property
    def held_bytes(self) -> int:
        """What is remembered of notifications, in bytes; at most twice the limit, and a chunk each."""
        return self._sent_bytes + self._dropped_bytes

    def sent(self, session: int, before: int, chunks: list[Chunk]) -> None:
        """These were written to the client's socket, `before` others before them.

        Cost: less than a microsecond a chunk, whatever it holds.
        """
        keep = self._sent.append
        for chunk in chunks:
            run, numbers = chunk.run, chunk.numbers
            before += len(run) >> 2
            size = CHUNK_BYTES + 4 * len(run) + len(numbers)
            self._sent_bytes += size
            keep((session, before, "", size, chunk.runs, run, chunk.sequence, chunk.matches, numbers))
        while self._sent_bytes > self._limit:
            self._sent_bytes -= self._sent.popleft()[_SIZE]

    def dropped(self, session: int, reason: str, chunk: Chunk) -> None:
        """These were dropped, and why."""
        size = CHUNK_BYTES + 4 * len(chunk.run) + len(chunk.numbers)
        self._dropped.append((session, 0, reason, size, *columns_of(chunk)))
        self._dropped_bytes += size
        while self._dropped_bytes > self._limit:
            self._dropped_bytes -= self._dropped.popleft()[_SIZE]

    def watcher(self, session: int) -> Watcher:
        """Return what is to be told of the session's drops."""
        return Watcher(self, session)

    def taken(self, publisher: str, first: int, last: int, now_us: int) -> None:
        """A frame of publications came."""
        self._taken.append((publisher, first, last, now_us))

    def rejected(self, publisher: str, rejected: list[tuple[int, str]]) -> None:
        """The matchers have refused these (sequence, reason)."""
        self._rejected.extend((publisher, sequence, reason) for sequence, reason in rejected[-FRAMES:])

    def find(self, session: int, publisher: str, sequence: int) -> Found | None:
        """Return the newest notification of this publication to this session, None if none is remembered."""
        needle = sequence.to_bytes(8, "little")
        for memory in (self._sent, self._dropped):
            for kept in reversed(memory):
                if kept[0] == session and needle in kept[_SEQUENCE]:
                    _, upto, reason, _, runs, run, sequences, matches, own_numbers = kept
                    found = look((runs, run, sequences, matches, own_numbers), publisher, sequence)
                    if found is not None:
                        place, taken_us, numbers = found
                        own = 0 if reason else upto - (len(run) >> 2) + place + 1
                        return Found(own, reason, taken_us, numbers)
        return None

    def drops(self, session: int, number: int) -> dict[str, int]:
        """Return how many notifications of a subscription were dropped of late, by reason."""
        counts: Counter[str] = Counter()
        for owner, _, reason, _, _, _, _, _, numbers in self._dropped:
            if owner == session:
                counts[reason] += columns.unpack(columns.UINT32, numbers).count(number)
        return {reason: count for reason, count in sorted(counts.items()) if count}

    def taken_us(self, publisher: str, sequence: int) -> int | None:
        """Return when the publication was taken in here, microseconds since 1970; None if that is not remembered."""
        for name, first, last, now_us in reversed(self._taken):
            if first <= sequence <= last and name == publisher:
                return now_us
        return None

    def rejection(self, publisher: str, sequence: int) -> str | None:
        """Return why the publication was refused; None if it was not, as far as is remembered."""
        for name, rejected, reason in reversed(self._rejected):
            if rejected == sequence and name == publisher:
                return reason
        return None


@dataclass(frozen=True, slots=True)
class Watcher:
    """Passes on what one session's queue drops."""

    recent: Recent
    session: int

    def __call__(self, reason: str, chunk: Chunk) -> None:
        """See Recent.dropped."""
        self.recent.dropped(self.session, reason, chunk)


def columns_of(chunk: Chunk) -> Columns:
    """Return what is looked at, without the payload."""
    return chunk.runs, chunk.run, chunk.sequence, chunk.matches, chunk.numbers


def look(kept: Columns, publisher: str, sequence: int) -> tuple[int, int, list[int]] | None:
    """Return the place of the last notification of this publication, when it was taken in, and the subscriptions."""
    runs, run, sequences, matches, numbers = kept
    if sequence.to_bytes(8, "little") not in sequences:
        return None  # at a small part of the cost of what follows
    of = columns.unpack(columns.UINT32, run)
    places = columns.unpack(columns.UINT64, sequences)
    for place in range(len(places) - 1, -1, -1):
        if places[place] == sequence and runs[of[place]][0] == publisher:
            counts = columns.unpack(columns.UINT32, matches)
            begin = sum(islice(counts, place))
            own = columns.unpack(columns.UINT32, numbers)[begin : begin + counts[place]]
            return place, runs[of[place]][-1], list(own)
    return None
