"""Brings the cluster to what the decider says: three sets, one transition at a time.

    planned     the sizes of the last decision that wanted a change
    requested   the operation that the coordinator was asked for, until it has ended
    observed    the sizes of the view, as the signals tell

Nothing is requested while an operation runs, whoever asked for it: the decider holds during a transition, and a
decision that comes between a request and the first signals that show it is dropped. A request that the coordinator
refuses, or that is given up (a process did not start, the view change was aborted), is tried again after a pause that
doubles with each failure in a row, 10 s to 10 minutes; a decision for other sizes may be tried at once. An operator's
own `kittiwake scale` is an operation as any other; what it leads to is where the next decision begins.

State: `memory()` is what has to survive the coordinator's process, as an operator or a guard meant it to last: mode,
pause, and which layers' growth was in vain, how often. All else is harmless to lose. Windows and delays begin with the
present size, so that a shrink after a restart waits its whole time again; the capacity model learns anew, and until
then sizes go by ratio; an operation that ran on ends under the coordinator's own memory and shows in the signals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from autoscaler.decider import BETWEEN, Decider
from autoscaler.decision import Decision
from autoscaler.effectiveness import Block
from autoscaler.signals import LAYERS, Signals

KEPT: Final = 500
"""Decisions that explain can show; those in a row that say the same count as one."""
PAUSE_S: Final = 10.0
PAUSE_S_MAX: Final = 600.0
FORGOTTEN_S: Final = 600.0
"""A request of which nothing was heard for so long is taken for lost."""
MODES: Final = ("auto", "advise", "manual")

QUIET: Final = ("", "advised", "waiting")
"""Outcomes of decisions by which nothing was done."""

PLURALS: Final = {layer: f"{layer}s" for layer in LAYERS}
"""As `kittiwake scale` names them."""


class Request(msgspec.Struct, frozen=True):
    """Instruction: ask the coordinator for these sizes; layers that are not named stay. strategy: None for its own.

    Performing it twice is harmless: the second asks for what is there. Its outcome comes back by `accepted`, `refused`
    and `ended`.
    """

    sizes: dict[str, int]
    strategy: str | None = None

    @property
    def wish(self) -> dict[str, Any]:
        """The arguments of the coordinator's `scale`."""
        wish: dict[str, Any] = {PLURALS[layer]: size for layer, size in self.sizes.items()}
        return wish if self.strategy is None else {**wish, "strategy": self.strategy}


class Memory(msgspec.Struct, frozen=True):
    """What survives. mode, paused: an operator's; None while the policy's own hold. blocks: by layer."""

    mode: str | None = None
    paused: bool | None = None
    blocks: dict[str, Block] = {}


class Entry(msgspec.Struct, kw_only=True):
    """A decision and what became of it.

    outcome: empty if nothing was to be asked for; else `advised`, `waiting`, `requested`, `running`, `done`, `merged`,
             `refused` or `aborted`.
    reason:  of one that waits why; of a refused or aborted one, the coordinator's words.
    repeats: how many decisions in a row said the same; `decision` is the newest of them, since_s the first one's time.
    """

    decision: Decision
    since_s: float
    outcome: str = ""
    reason: str = ""
    operation: int | None = None
    repeats: int = 1


class Failure(msgspec.Struct, frozen=True):
    """The last request that came to nothing. count: how many for these sizes in a row."""

    sizes: dict[str, int]
    reason: str
    until_s: float
    count: int


class Controller:
    """The machine. It is told the time by `tick`; whoever runs it performs the requests that come back."""

    def __init__(self, decider: Decider, memory: Memory | None = None) -> None:
        self._decider = decider
        memory = memory or Memory()
        self._mode = memory.mode
        self._paused = memory.paused
        decider.effectiveness.blocks.update(memory.blocks)
        self._apply()
        self._now_s = 0.0
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._requested: Entry | None = None
        self._asked_s = 0.0
        self._failure: Failure | None = None
        self.planned: dict[str, int] = {}
        self.observed: dict[str, int] = {}

    @property
    def requested(self) -> dict[str, int]:
        """The sizes that were asked for and are underway; empty if nothing is."""
        return {} if self._requested is None else dict(self._requested.decision.targets)

    @property
    def policy_name(self) -> str:
        """The policy's metadata.name."""
        return self._decider.policy.metadata.name

    @property
    def mode(self) -> str:
        """The mode in force."""
        return self._decider.mode

    @property
    def paused(self) -> bool:
        """Whether everything is frozen."""
        return self._decider.paused

    @property
    def last(self) -> Decision | None:
        """The newest decision."""
        return self._entries[-1].decision if self._entries else None

    def memory(self) -> Memory:
        """Return what has to survive; to be written when it differs from what was written last."""
        return Memory(self._mode, self._paused, dict(self._decider.effectiveness.blocks))

    # Time --------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float, signals: Signals) -> list[Request]:
        """Take in the signals of one metrics interval; return what is to be asked for, if anything: one at most."""
        self._now_s = max(now_s, self._now_s)
        self.observed = dict(signals.sizes)
        decision = self._decider.decide(now_s, signals)
        if self._requested is not None and now_s - self._asked_s > FORGOTTEN_S:
            self.ended("aborted", "nothing was heard of it")
        if decision.held == BETWEEN:
            return []
        entry = self._note(decision)
        if not decision.targets:
            self.planned = {}
            return []
        self.planned = dict(decision.targets)
        if self.mode == "advise":
            entry.outcome = "advised"
            return []
        if self._requested is not None:
            entry.outcome, entry.reason = "waiting", "the former request has not ended yet"
            return []
        failed = self._failure
        if failed is not None and failed.sizes == decision.targets and now_s < failed.until_s:
            entry.outcome = "waiting"
            entry.reason = (
                f"tried {failed.count} times in vain, again in {failed.until_s - now_s:.0f} s: {failed.reason}"
            )
            return []
        entry.outcome = "requested"
        self._requested, self._asked_s = entry, now_s
        return [Request(dict(decision.targets), decision.strategy)]

    # What came of a request -----------------------------------------------------------------------------------------

    def accepted(self, operation: int) -> None:
        """The coordinator has begun the operation of this number."""
        if self._requested is not None:
            self._requested.operation = operation
            self._requested.outcome = "running"

    def refused(self, reason: str) -> None:
        """The coordinator has refused the request, or could not be asked."""
        self._failed("refused", reason)

    def ended(self, state: str, reason: str | None = None) -> None:
        """The operation has ended: `done`, `merged` (into a later wish) or `aborted`, as the coordinator calls it."""
        if state == "aborted":
            self._failed("aborted", reason or "no reason was given")
        elif self._requested is not None:
            self._requested.outcome = state
            self._requested, self._failure = None, None

    def _failed(self, outcome: str, reason: str) -> None:
        entry, self._requested = self._requested, None
        if entry is None:
            return
        entry.outcome, entry.reason = outcome, reason
        targets = entry.decision.targets
        count = self._failure.count + 1 if self._failure is not None and self._failure.sizes == targets else 1
        pause_s = min(PAUSE_S * 2 ** (count - 1), PAUSE_S_MAX)
        self._failure = Failure(dict(targets), reason, self._now_s + pause_s, count)

    # Operators ---------------------------------------------------------------------------------------------------

    def set_mode(self, mode: str) -> None:
        """Change the mode until it is changed again, restarts included."""
        assert mode in MODES, f"mode {mode!r}"
        self._mode = mode
        self._apply()

    def pause(self) -> None:
        """Freeze everything until `resume`, restarts included."""
        self._paused = True
        self._apply()

    def resume(self) -> None:
        """End a pause, the policy's own as well."""
        self._paused = False
        self._apply()

    def _apply(self) -> None:
        policy = self._decider.policy
        self._decider.mode = policy.mode if self._mode is None else self._mode
        self._decider.paused = policy.paused if self._paused is None else self._paused

    def entries(self, count: int) -> list[Entry]:
        """Return the last `count` decisions with what became of them, oldest first."""
        return list(self._entries)[-count:] if count > 0 else []

    def _note(self, decision: Decision) -> Entry:
        last = self._entries[-1] if self._entries else None
        quiet = last is not None and last.outcome in QUIET and not decision.notes
        if last is not None and quiet and _same(last.decision, decision):
            last.decision, last.outcome, last.reason = decision, "", ""
            last.repeats += 1
            return last
        entry = Entry(decision=decision, since_s=decision.at_s)
        self._entries.append(entry)
        return entry


def _same(one: Decision, other: Decision) -> bool:
    """Tell whether two decisions lead to the same for the same cause, whatever the figures are."""
    return list(_gist(one)) == list(_gist(other))


def _gist(decision: Decision) -> Iterator[object]:
    yield from (decision.held.partition(",")[0], decision.mode, decision.targets)
    for layer in decision.layers:
        yield layer.layer, layer.size, layer.target, layer.missing
        yield [(stage.name, stage.blocked) for stage in layer.stages]
