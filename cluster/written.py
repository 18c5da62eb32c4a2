"""What an exit point has written of what it released: each matched publication once, whatever crashes.

Within one life of the cluster's lanes nothing is released twice (`exit_point.py`), so nothing is written twice. After
Recover everything that was not acknowledged comes again and is released and delivered again; what of it is in the
output already, of whichever slot, must not be written again. So between Recover and Resume, when no exit point writes,
each looks up how far every publisher's publications are written: its *marks*. A publication at or below its publisher's
mark was released before the crash, and is written if anything matched it then.

`ack="stored"`: the acknowledgement of a run with matches waits until its rows are on disk. A run without any has
nothing to wait for. What is released again after a recovery and was written before is on disk: looking up has seen
to that.

Where the disk has no room the rows are not written, and are counted as lost; whoever asked for `stored` is told
`overloaded` for them. They are delivered all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cluster.handover import Pending, Publisher, PublisherKey
from cluster.matched import Answer, Found, Matched, MatchedRun, hits_of
from cluster.messages import AppendOutput, NotStored, OutputState, Run, Stored

Waiting = tuple[PublisherKey, Publisher, Pending]


class Written:
    """The part of an exit point that writes.

    counters: output_appended rows were to be written, output_lost of them had no room, output_overloaded of those had
              asked to be stored. state: what the writer says of itself.
    """

    def __init__(self) -> None:
        self._marks: dict[PublisherKey, int] = {}  # of before the last recovery, for publishers that are not beyond
        self._number = 0
        self.state = OutputState(0, 0, 0, 0, False, 0)
        self._waiting: deque[tuple[int, Waiting, list[int]]] = deque()
        self.counters = dict.fromkeys(("output_appended", "output_lost", "output_overloaded"), 0)

    def gauges(self) -> dict[str, int]:
        """Return the counters, and the runs that wait for the disk."""
        state = self.state
        return self.counters | {
            "output_unstored_runs": len(self._waiting),
            "output_rows": state.rows,
            "output_segments": state.segments,
            "output_bytes": state.bytes,
            "output_errors": state.errors,
            "output_disk_full": int(state.full),
            "output_pending_rows": state.pending,
        }

    def learn(self, marks: dict[PublisherKey, int]) -> None:
        """Take over what is written; owned here from now on."""
        self._marks = marks

    def forget(self) -> None:
        """What waited for the disk comes again."""
        self._waiting.clear()

    def append(
        self, epoch: int, runs: Sequence[Run], answers: Sequence[Answer], found: Found, skips: Sequence[int]
    ) -> AppendOutput | None:
        """Return what is to be written of a batch, None if nothing is.

        found: the publications that matched and are released for the first time since the last recovery; at least one.
        skips: per run, how many of its first publications are not.
        """
        kept: list[MatchedRun] = []
        rows = len(found)
        first = 0
        sync = False
        for run, skip in zip(runs, skips, strict=True):
            key = (run.publisher, run.instance)
            mark = self._marks.get(key, 0) if self._marks else 0
            if mark:
                before = min(mark - run.first_sequence + 1, run.count)
                if before > skip:
                    rows -= sum(first <= place < first + before for place in found)
                    skip = before
                if run.last_sequence >= mark:
                    del self._marks[key]
            kept.append(
                MatchedRun(
                    run.publisher, run.instance, run.first_sequence, run.count, skip, run.time_us, run.published_us
                )
            )
            sync |= run.stored
            first += run.count
        if not rows:
            return None
        self._number += 1
        self.counters["output_appended"] += rows
        return AppendOutput(self._number, Matched(epoch, rows, kept, hits_of(answers)), sync)

    def wait(self, number: int, waiting: Waiting, sequences: list[int]) -> None:
        """Have a run wait until append `number` is on disk. sequences: of its publications that matched."""
        self._waiting.append((number, waiting, sequences))

    def stored(self, event: Stored | NotStored) -> list[Waiting]:
        """Return the runs that need not wait any more."""
        done: list[Waiting] = []
        if isinstance(event, Stored):
            while self._waiting and self._waiting[0][0] <= event.upto:
                done.append(self._waiting.popleft()[1])
            return done
        self.counters["output_lost"] += event.rows
        kept: deque[tuple[int, Waiting, list[int]]] = deque()
        for number, waiting, sequences in self._waiting:
            if number == event.number:
                waiting[2].rejected += [(sequence, event.reason) for sequence in sequences]
                self.counters["output_overloaded"] += len(sequences)
                done.append(waiting)
            else:
                kept.append((number, waiting, sequences))
        self._waiting = kept
        return done
