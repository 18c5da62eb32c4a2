"""Some notifications of one client as columns: what an outbox holds, cuts, joins and sends."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from cluster import columns
from cluster.columns import U32, UINT32, Column
from cluster.frames import Notify


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Some notifications of one client, in the columns of Notify, ready to be sent as they are.

    It owns its bytes: a slow client keeps no stranger's payload alive.
    """

    runs: list[tuple[str, int, int]]
    run: bytes
    sequence: bytes
    lengths: bytes
    matches: bytes
    numbers: bytes
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that it costs to keep."""
        return len(self.payload) + 6 * len(self.run) + len(self.numbers)

    def __len__(self) -> int:
        return len(self.run) >> 2

    def costs(self) -> Column:
        """Return each notification's part of the size."""
        return columns.u32(self.lengths).astype(np.int64) + 24 + 4 * columns.u32(self.matches).astype(np.int64)

    def frame(self) -> Notify:
        """Return it as the client gets it."""
        return Notify(self.runs, self.run, self.sequence, self.lengths, self.matches, self.numbers, self.payload)

    def select(self, chosen: Column) -> Chunk:
        """Return the notifications at these places (ascending)."""
        lengths, matches = columns.u32(self.lengths), columns.u32(self.matches)
        places = columns.starts(matches)
        # Only the runs that are left: a client with a small window would get the names of all with every frame.
        used, run = np.unique(columns.u32(self.run)[chosen], return_inverse=True)
        return Chunk(
            [self.runs[place] for place in used.tolist()],
            run.astype(U32).tobytes(),
            columns.u64(self.sequence)[chosen].tobytes(),
            lengths[chosen].tobytes(),
            matches[chosen].tobytes(),
            columns.u32(self.numbers)[columns.ranges(places[chosen], matches[chosen])].tobytes(),
            columns.gather(self.payload, columns.starts(lengths), chosen),
        )

    def only(self, live: Column) -> Chunk:
        """Return it without the hits of subscriptions that are not `live` (a mask by number), and without
        notifications that lose all their hits by that."""
        return self.with_hits(live[columns.u32(self.numbers)])

    def with_hits(self, kept: Column) -> Chunk:
        """Return it with the hits that are `kept` (a mask by hit) alone; a notification without any is left out."""
        if kept.all():
            return self
        begins = columns.starts(columns.u32(self.matches))[:-1]
        matches = np.add.reduceat(kept.astype(U32), begins, dtype=U32)
        left = msgspec.structs.replace(
            self, matches=matches.tobytes(), numbers=columns.u32(self.numbers)[kept].tobytes()
        )
        return left.select(np.flatnonzero(matches))

    def rows(self) -> Iterator[Chunk]:
        """Return its notifications one by one.

        Plain Python: `select` costs some 20 µs a call, this 3 a notification.
        """
        of_run = columns.unpack(UINT32, self.run)
        lengths, matches = columns.unpack(UINT32, self.lengths), columns.unpack(UINT32, self.matches)
        first = at = 0
        for place, (run, length, matched) in enumerate(zip(of_run, lengths, matches, strict=True)):
            last, end = first + 4 * matched, at + length
            yield Chunk(
                [self.runs[run]],
                bytes(4),
                self.sequence[8 * place : 8 * place + 8],
                self.lengths[4 * place : 4 * place + 4],
                self.matches[4 * place : 4 * place + 4],
                self.numbers[first:last],
                self.payload[at:end],
            )
            first, at = last, end


def joined(chunks: list[Chunk]) -> Chunk:
    """Return the notifications of these chunks as one, in order; each run is named once."""
    if len(chunks) == 1:
        return chunks[0]
    places: dict[tuple[str, int, int], int] = {}
    run: list[int] = []
    for chunk in chunks:
        own = [places.setdefault(name, len(places)) for name in chunk.runs]
        run += [own[place] for place in columns.unpack(UINT32, chunk.run)]
    return Chunk(
        list(places),
        columns.pack(UINT32, run),
        b"".join([chunk.sequence for chunk in chunks]),
        b"".join([chunk.lengths for chunk in chunks]),
        b"".join([chunk.matches for chunk in chunks]),
        b"".join([chunk.numbers for chunk in chunks]),
        b"".join([chunk.payload for chunk in chunks]),
    )
