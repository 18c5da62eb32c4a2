"""Ways to break the matched output; see `mutants.py`. Those with 0 seeds were seen by none of some 60 to 80 so far."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from cluster.exit_point import ExitPoint
from cluster.marks import Marks
from cluster.matcher import Matcher
from cluster.messages import AppendOutput, Event, Instruction, Recover
from cluster.recovery import Recovery
from cluster.written import Written
from tests.sim.mutants import Replace, mutant


@mutant("after a recovery what is written already is written again", seeds=40, scenario="output")
def written_again(replace: Replace) -> None:
    replace(Written, "learn", lambda *_: None)


@mutant("what matched is written after it is handed over", seeds=0, scenario="output")
def written_late(replace: Replace) -> None:
    original = ExitPoint.handle

    def handle(self: ExitPoint, event: Event) -> list[Instruction]:
        out = original(self, event)
        return sorted(out, key=lambda one: isinstance(one, AppendOutput))

    replace(ExitPoint, "handle", handle)


@mutant("stored is acknowledged without waiting for the disk", seeds=40, scenario="output_still")
def stored_early(replace: Replace) -> None:
    def wait(self: Written, number: int, waiting: Any, sequences: list[int]) -> None:
        waiting[2].waits -= 1

    replace(Written, "wait", wait)


@mutant("an exit point looks up what is written before all others have stopped", seeds=0, scenario="output")
def looked_up_early(replace: Replace) -> None:
    connect = Recovery.connect

    def early(self: Recovery, view: Any, told: Any) -> list[Instruction]:
        self.writes = False
        return connect(self, view, told)

    received = ExitPoint._received

    def look(self: ExitPoint, peer: Any, message: Any) -> None:
        received(self, peer, message)
        if isinstance(message, Recover):
            self._rebuild(message.epoch)
            self._out = [one for one in self._out if type(one).__name__ != "Rebuilt"]
            self._rebuilding = None

    replace(Recovery, "connect", early)
    replace(ExitPoint, "_received", look)


@mutant("an exit point knows only what it has written itself", seeds=40, scenario="output")
def marks_of_own_slot(replace: Replace) -> None:
    original = Written.learn

    def learn(self: Written, marks: Marks) -> None:
        own = self.__dict__.setdefault("own", {})
        for key in [key for key in marks.upto if key not in own]:
            marks.forget(key)
        original(self, marks)

    append = Written.append

    def remember(self: Written, epoch: int, runs: Any, *rest: Any) -> Any:
        own = self.__dict__.setdefault("own", {})
        own.update({(run.publisher, run.instance): None for run in runs})
        return append(self, epoch, runs, *rest)

    replace(Written, "append", remember)
    replace(Written, "learn", learn)


@mutant(
    "what matched nothing when it was first released is delivered after a recovery", seeds=20, scenario="output_all"
)
def decided_anew(replace: Replace) -> None:
    replace(Written, "undelivered", lambda *_: set())


@mutant("a record tells nothing of what was released before it without one", seeds=0, scenario="output")
def between_records(replace: Replace) -> None:
    original = Marks.take

    def take(self: Marks, matched: Any) -> None:
        runs = [msgspec.structs.replace(run, since=0) for run in matched.runs]
        original(self, msgspec.structs.replace(matched, runs=runs))

    replace(Marks, "take", take)


@mutant("a matcher that finds nothing shows nothing, where everything is written", seeds=5, scenario="output_all")
def nothing_shown(replace: Replace) -> None:
    original = Matcher._answer

    def _answer(self: Matcher, publications: Any, hits: Any, ranges: list[int], shown: bool) -> Any:
        return original(self, publications, hits, ranges, shown and hits.count > 0)

    replace(Matcher, "_answer", _answer)


@mutant("stored does not wait for what matches nothing, where that is written", seeds=20, scenario="output_all")
def stored_matches_alone(replace: Replace) -> None:
    original = ExitPoint._write

    def _write(self: ExitPoint, share: Any, results: Any, found: Any, skips: Any, owed: Any) -> None:
        original(self, share, results, found, skips, owed)
        first = 0
        for run, (_, _, pending) in zip(share.runs, owed, strict=True):
            if pending.waits and not any(found[place][1] for place in found if first <= place < first + run.count):
                pending.waits = 0
                self._written._waiting = deque(  # type: ignore[union-attr]
                    one
                    for one in self._written._waiting
                    if one[1][2] is not pending  # type: ignore[union-attr]
                )
            first += run.count

    replace(ExitPoint, "_write", _write)
