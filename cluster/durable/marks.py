"""What a durable session that has moved was offered before, here or at a former home.

It keeps for itself how far it has been offered what each publisher sent: the connection point, where others may have
got more or less of it, cannot know.
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
    """Of one session."""

    def __init__(self, marks: Iterable[tuple[str, int, int]] = ()) -> None:
        super().__init__(KEPT)
        for publisher, instance, sequence in marks:
            self.raise_to((publisher, instance), sequence)

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
