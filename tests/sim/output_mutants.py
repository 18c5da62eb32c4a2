"""Ways to break the matched output; see `mutants.py`. Those with 0 seeds were seen by none of some 60 so far."""

from __future__ import annotations

from typing import Any

from cluster.exit_point import ExitPoint
from cluster.messages import AppendOutput, Event, Instruction, Recover
from cluster.recovery import Recovery
from cluster.written import Written
from tests.sim.mutants import Replace, mutant


@mutant("after a recovery what is written already is written again", seeds=10, scenario="output")
def written_again(replace: Replace) -> None:
    replace(Written, "learn", lambda *_: None)


@mutant("what matched is written after it is handed over", seeds=0, scenario="output")
def written_late(replace: Replace) -> None:
    original = ExitPoint.handle

    def handle(self: ExitPoint, event: Event) -> list[Instruction]:
        out = original(self, event)
        return sorted(out, key=lambda one: isinstance(one, AppendOutput))

    replace(ExitPoint, "handle", handle)


@mutant("stored is acknowledged without waiting for the disk", seeds=10, scenario="output_still")
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


@mutant("an exit point knows only what it has written itself", seeds=15, scenario="output")
def marks_of_own_slot(replace: Replace) -> None:
    original = Written.learn

    def learn(self: Written, marks: dict[tuple[str, int], int]) -> None:
        original(self, {key: mark for key, mark in marks.items() if key in self.__dict__.setdefault("own", {})})

    append = Written.append

    def remember(self: Written, epoch: int, runs: Any, *rest: Any) -> Any:
        own = self.__dict__.setdefault("own", {})
        own.update({(run.publisher, run.instance): None for run in runs})
        return append(self, epoch, runs, *rest)

    replace(Written, "append", remember)
    replace(Written, "learn", learn)
