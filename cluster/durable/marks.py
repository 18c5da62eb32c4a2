"""What a durable session that has moved was offered before, here or at a former home.

Any other session goes by what its connection point remembers of each publisher (`delivering.py`): whatever has come
there has come for all its sessions. Of one that has moved that is not so. What was under way when it moved, and is sent
again after a fault, its former home may have taken though nothing of it had come here; or others here have got it,
while for this session it was lost with its former home. So the session keeps its own *marks*: how far it has been
offered what each publisher sent, at all its homes. Each is a row on disk.

They end together, when nothing that was under way at the move can come again: `durable.publisher_away_s` (an hour)
after the session came to live here, or after the last recovery since, or this incarnation's beginning, whichever is
latest. From then on the session goes by what its connection point remembers, which is right for it, as all that can
still come has come here first while it was here, and is remembered on disk with what the session got of it.

Why that is so. Publications come again from two sides. A connection point sends again what it has taken and has no
acknowledgement for, after a recovery, and at no other time; without a fault an acknowledgement takes a moment, and a
recovery begins the time anew. A publisher's program sends again, on its next connection and before anything new, what
was not acknowledged on the last one; it tries to connect all the time.

What is left, then, has not been acknowledged from before the move until all that time was over: the publisher was cut
off for so long, with the same program or one that goes on with its instance; or a slice that died right at the move
could not be replaced; or a slow subscriber with `block` has kept it waiting, and then a slice died. Such a publication
is judged by what has come here of its publisher: the session may get it a second time without the flag, if it had it at
its former home and nothing later of that publisher came here; and it misses it, if it was lost for it at the move and
something later came for others here. That is the price for a session that does not remember publishers for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from cluster import columns
from cluster.outbox import Chunk
from cluster.watermarks import Watermarks

KEPT = 200_000
"""Publishers whose last sequence is remembered."""


class Marks(Watermarks):
    """Of one session. since_ms: from when on the time until they end counts; None until the next Tick."""

    def __init__(self, marks: Iterable[tuple[str, int, int]] = ()) -> None:
        super().__init__(KEPT)
        self.since_ms: int | None = None
        for publisher, instance, sequence in marks:
            self.raise_to((publisher, instance), sequence)

    def over(self, now_ms: int, away_ms: int) -> bool:
        """Tell whether they can no longer matter; the first question begins the time."""
        if self.since_ms is None:
            self.since_ms = now_ms
        return now_ms - self.since_ms > away_ms

    def new_of(self, chunk: Chunk, mark: Callable[[tuple[str, int], int], bool]) -> Chunk:
        """Return what of a share is new. mark: takes note of one, and tells whether it is."""
        kept: list[int] = []
        of_run = columns.unpack(columns.UINT32, chunk.run)
        for place, (run, sequence) in enumerate(
            zip(of_run, columns.unpack(columns.UINT64, chunk.sequence), strict=True)
        ):
            if mark(chunk.runs[run][:2], sequence):
                kept.append(place)
        return chunk if len(kept) == len(of_run) else chunk.select(np.array(kept, np.int64))
