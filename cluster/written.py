"""What an exit point has written of what it released: each matched publication once, whatever crashes.

Within one life of the cluster's lanes nothing is released twice (`exit_point.py`), so nothing is written twice. After
Recover everything that was not acknowledged comes again and is released and delivered again; what of it is in the
output already, of whichever slot, must not be written again. So between Recover and Resume, when no exit point writes,
each looks up how far every publisher's publications are written (`marks.py`). One at or below its publisher's mark was
released before the crash, and is written if anything matched it then. If nothing did, that is decided as well: it is
delivered to nobody now, though it may match a subscription that was opened meanwhile.

`ack="stored"`: the acknowledgement of a run with rows waits until they are on disk. A run without any has nothing to
wait for: one that matched nothing, where not everything is written. What is released again after a recovery and was
written before is on disk: looking up has seen to that.

Where the disk has no room the rows are not written, and are counted as lost; whoever asked for `stored` is told
`overloaded` for them. They are delivered all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cluster.handover import Pending, Publisher, PublisherKey
from cluster.marks import Marks
from cluster.matched import Answer, Found, Matched, MatchedRun, hits_of
from cluster.messages import AppendOutput, NotStored, OutputState, Run, Stored

Waiting = tuple[PublisherKey, Publisher, Pending]


class Written:
    """The part of an exit point that writes.

    counters: output_appended rows were to be written, output_lost of them had no room, output_overloaded of those had
              asked to be stored. state: what the writer says of itself.
    """

    def __init__(self) -> None:
        self._marks = Marks()  # of before the last recovery, for publishers that are not beyond
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

    def learn(self, marks: Marks) -> None:
        """Take over what is written; owned here from now on."""
        self._marks = marks

    def forget(self) -> None:
        """What waited for the disk comes again."""
        self._waiting.clear()

    def covered(self, run: Run) -> int:
        """Return what no record need say any more of a publisher that nothing is known of but its first run here."""
        return max(self._marks.upto.get((run.publisher, run.instance), 0), run.settled)

    def undelivered(self, runs: Sequence[Run]) -> set[int]:
        """Return which publications of these runs matched nothing when they were first released."""
        places: set[int] = set()
        first = 0
        for run in runs if self._marks.unmatched else ():
            unmatched = self._marks.unmatched.get((run.publisher, run.instance))
            if unmatched is not None:
                places.update(first + at for at in range(run.count) if run.first_sequence + at in unmatched)
            first += run.count
        return places

    def append(
        self,
        epoch: int,
        runs: Sequence[Run],
        publishers: Sequence[Publisher],
        answers: Sequence[Answer],
        found: Found,
        skips: Sequence[int],
    ) -> AppendOutput | None:
        """Return what is to be written of a batch, None if nothing is.

        publishers: per run, whose it is.
        found: the publications that matched, or all that are well-formed, of those that are released for the first time
               since the last recovery; at least one.
        skips: per run, how many of its first publications are not.
        """
        skips = list(skips)
        rows = len(found)
        if self._marks:
            rows -= self._written_before(runs, found, skips)
            if not rows:
                return None
        kept: list[MatchedRun] = []
        sync = False
        for run, publisher, skip in zip(runs, publishers, skips, strict=True):
            kept.append(
                MatchedRun(
                    run.publisher,
                    run.instance,
                    run.first_sequence,
                    run.count,
                    skip,
                    run.time_us,
                    run.published_us,
                    publisher.covered + 1,
                    run.settled,
                )
            )
            publisher.covered = max(publisher.covered, run.last_sequence)
            sync |= run.stored
        self._number += 1
        self.counters["output_appended"] += rows
        return AppendOutput(self._number, Matched(epoch, rows, kept, hits_of(answers)), sync)

    def _written_before(self, runs: Sequence[Run], found: Found, skips: list[int]) -> int:
        """Return how many of these are at or below their publishers' marks; have those skipped."""
        rows = first = 0
        for at, run in enumerate(runs):
            key = (run.publisher, run.instance)
            mark = self._marks.upto.get(key, 0)
            if mark:
                before = min(mark - run.first_sequence + 1, run.count)
                if before > skips[at]:
                    rows += sum(first <= place < first + before for place in found)
                    skips[at] = before
                if run.last_sequence >= mark:
                    self._marks.forget(key)
            first += run.count
        return rows

    def wait(self, number: int, waiting: Waiting, sequences: list[int]) -> None:
        """Have a run wait until append `number` is on disk. sequences: of its publications that are rows."""
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
