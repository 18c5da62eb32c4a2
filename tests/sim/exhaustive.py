"""Every schedule of a small cluster: `uv run python -m tests.sim.exhaustive [--scope NAME] [--limit N] [--json]`.

Two access points, two or three matchers, one or two exit points, one connection point; one wish, and up to three
messages of clients, each sent at every possible moment; and one crash at every step. The machines are the real ones.

How: depth first over a graph. The state of the whole cluster is a tuple of numbers (`exhaustive_world.py`), a state
that was reached another way is not entered again (`exhaustive_machines.py`: equal numbers mean equal content, of all
machines, all lanes, the disk, and of what clients have seen as far as a check may ask for it). That is exact, and it
is the strongest of partial-order reductions where only the order of independent deliveries differs: these meet again
in one state. An execution is a path from a state with a choice to the end of the run or to a state known before.

What can happen in a state: the oldest message of a lane is delivered; a matcher that has something to copy or to sweep
out at once goes on by itself (one entry a step); a client sends what is next; whoever is to crash crashes. Three things
are never postponed, as something else that can be postponed shows the same:

    deliveries to the coordinator    it collects answers, in any order; what it says next waits on the lanes from it.
                                     So a slow answer looks to all others like a slow order. Its crash is cut in between
                                     any two of its instructions, which also stands for the loss of the message to it.
    Drained, but for matchers        what a connection point, access point or exit point gathers until it is told
                                     Drained leaves on lanes at whose ends it can wait as well, and anything else that
                                     goes the same way makes it leave first. Not covered: two publications in one batch.
    bytes of clients                 a client's socket is as good as a part of its connection point.

Also not covered: clocks (no Tick, so no time-out, no heartbeat, and what has time to be swept out stays), processes
that start slowly, more than one step of a wish (the strategy is `all_at_once`), clients that reconnect and send again.

Where a scope has too many states, the search is bounded by postponements, as in delay-bounded scheduling (Emmi, Qadeer,
Rakamaric, POPL 2011). There are two usual schedules: one delivers data first, then lets matchers do their own work, and
delivers what the coordinator says when nothing else is left; the other one has all preferences the other way round.
A postponement holds the oldest message of a lane, and with it what is behind, or one step of a matcher's own work, from
any moment until any later one, whatever happens meanwhile. `complete up to K postponements` means: of all schedules
with at most K of them to either, with clients' messages and the crash at every moment of each (these cost nothing),
none is wrong. `complete` means all schedules whatsoever; the scopes named alone-... are searched in that way.

Checked, after each step: a notification is one that the subscription allows at that moment, comes once, and in its
publisher's order; for the subscriptions that do not change it names all of them; what is acknowledged was handed
over; no machine breaks an invariant of its own. At every end: everything has come and is acknowledged; the operation is
over; all serve the coordinator's view; each subscription is at the owner of its group and nowhere else; nothing is left
of another epoch (`exhaustive_world.py`).
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import click

from cluster.config import Layers
from tests.sim import view_mutants
from tests.sim.detection import is_catch
from tests.sim.exhaustive_world import LEFT, RIGHT, Graph, Move, Scope
from tests.sim.mutants import MUTANTS, applied

assert view_mutants, "its mutants are entered on import"

Held = frozenset[Move]
Key = tuple[tuple[int, ...], Held]

BACKWARDS = Move("backwards")
"""Among what is held: the usual schedule is the second one."""

OUT = Layers(access_points=2, matchers=2)
IN = Layers(access_points=2, matchers=3)

OUT_WISH, IN_WISH, EXIT_WISH = {"matchers": 3}, {"matchers": 2}, {"exit_points": 2}

SCOPES: dict[str, Scope] = {
    "matchers-out": Scope("matchers 2 -> 3, one unsubscribes", OUT, OUT_WISH, "unsubscribe", (LEFT, RIGHT)),
    "matchers-out-subscribe": Scope("matchers 2 -> 3, one subscribes", OUT, OUT_WISH, "subscribe", (LEFT, RIGHT)),
    "matchers-in": Scope("matchers 3 -> 2, one unsubscribes", IN, IN_WISH, "unsubscribe", (LEFT, RIGHT)),
    "matchers-in-order": Scope("matchers 3 -> 2, one publishes twice", IN, IN_WISH, "", (LEFT, LEFT, RIGHT)),
    "exit-points-out": Scope("exit points 1 -> 2, one publisher moves", OUT, EXIT_WISH, "", (LEFT, LEFT, RIGHT)),
    # Fewer messages, and so more postponements.
    "small-unsubscribe": Scope("matchers 2 -> 3", OUT, OUT_WISH, "unsubscribe", (LEFT,), access_point=1),
    "small-subscribe": Scope("matchers 2 -> 3", OUT, OUT_WISH, "subscribe", (LEFT,)),
    "small-order": Scope("matchers 3 -> 2, one publishes twice", IN, IN_WISH, "", (LEFT, LEFT)),
    "small-exit-points": Scope("exit points 1 -> 2, one moves and publishes twice", OUT, EXIT_WISH, "", (LEFT, LEFT)),
    # One crash at any step.
    "coordinator-out": Scope("matchers 2 -> 3", OUT, OUT_WISH, "unsubscribe", (LEFT,), "coordinator"),
    "coordinator-in": Scope("matchers 3 -> 2", IN, IN_WISH, "subscribe", (LEFT,), "coordinator"),
    "coordinator-exit-points": Scope("exit points 1 -> 2", OUT, EXIT_WISH, "", (LEFT, LEFT), "coordinator"),
    "newcomer-out": Scope("matchers 2 -> 3", OUT, OUT_WISH, "unsubscribe", (LEFT,), "newcomer"),
    "newcomer-exit-points": Scope("exit points 1 -> 2", OUT, EXIT_WISH, "", (LEFT, LEFT), "newcomer"),
    # Nothing but the change itself, and all there is to it.
    "alone-out": Scope("matchers 2 -> 3, alone", OUT, OUT_WISH, "", (), whole=True),
    "alone-in": Scope("matchers 3 -> 2, alone", IN, IN_WISH, "", (), whole=True),
    "alone-exit-points": Scope("exit points 1 -> 2, alone", OUT, EXIT_WISH, "", (), whole=True),
    "alone-newcomer": Scope("matchers 2 -> 3, alone", OUT, OUT_WISH, "", (), "newcomer", whole=True),
}

LIMIT = 300_000
"""Executions per scope unless something else is asked for; about a minute each, and 1 GB of memory."""


@dataclass
class Outcome:
    """What a search came to.

    states, moves, executions: looked at. complete: all schedules were. postponements: within how many all were, -1 for
    none; levels: executions until that was known of 0, 1, ... failure: what was found; schedule: the way there.
    """

    scope: str
    mutant: str | None = None
    states: int = 0
    moves: int = 0
    executions: int = 0
    complete: bool = False
    postponements: int = -1
    failure: str | None = None
    schedule: list[str] | None = None
    levels: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def verdict(self) -> str:
        """Say what it means."""
        if self.failure is not None:
            return f"FAILED after {self.executions} executions: {self.failure}"
        if self.complete:
            return f"complete, {self.executions} executions"
        if self.postponements < 0:
            return f"not complete, {self.executions} executions"
        return f"complete up to {self.postponements} postponements, {self.executions} executions"


class Search:
    """One scope's search. limit: executions after which it stops."""

    def __init__(self, graph: Graph, limit: int, outcome: Outcome) -> None:
        self._graph = graph
        self._limit = limit
        self._outcome = outcome
        self._came: dict[Key, tuple[Key, Move | None] | None] = {}
        self._ends: set[tuple[int, ...]] = set()
        self._rng = random.Random(0)

    def run(self) -> None:
        """Go through all schedules with no postponement, then with one more, and so on; end at the limit."""
        waits = frozenset(self._graph.postponed)
        layer: list[Key] = [(self._graph.first, waits), (self._graph.first, waits | {BACKWARDS})]
        if self._graph.scope.whole:
            layer = [(self._graph.first, frozenset())]
        self._came = dict.fromkeys(layer)
        outcome = self._outcome
        while layer:
            layer = self._layer(layer)
            if outcome.failure is not None or outcome.executions >= self._limit:
                return
            outcome.postponements += 1
            outcome.levels.append(outcome.executions)
        outcome.complete = True

    def _layer(self, layer: list[Key]) -> list[Key]:
        """Look at what can be reached without another postponement; return what can with one."""
        graph, came, outcome = self._graph, self._came, self._outcome
        beyond: list[Key] = []
        stack = layer
        deeper = False
        while stack:
            if not deeper:
                # From anywhere: where the limit cuts the search off, something of everything was seen.
                place = self._rng.randrange(len(stack))
                stack[place], stack[-1] = stack[-1], stack[place]
            key = stack.pop()
            deeper = False
            state, held = key
            moves = graph.moves(state)
            steps, postpone = self._choices(moves, held)
            if not moves:
                outcome.executions += 1
                if state not in self._ends:
                    self._ends.add(state)
                    if not self._try(key, None):
                        return []
            for move in steps:
                outcome.moves += 1
                after = self._try(key, move)
                if after is None:
                    return []
                then = after, held if move.kind == "send" else held - {move}
                if then in came:
                    outcome.executions += 1
                else:
                    came[then] = key, move
                    stack.append(then)
                    deeper = True
            if postpone is not None:
                then = state, held | {postpone}
                if then not in came:
                    came[then] = key, None
                    beyond.append(then)
            if outcome.executions >= self._limit:
                break
        outcome.states = len(came)
        return beyond

    def _choices(self, moves: list[Move], held: Held) -> tuple[list[Move], Move | None]:
        """Return what may be done, and what may be postponed instead: the usual move, the held ones, a crash."""
        if self._graph.scope.whole:
            return moves, None
        free = [move for move in moves if move in held or move.kind in ("crash", "cut")]
        order = reversed(moves) if BACKWARDS in held else moves
        usual = next((move for move in order if move not in held and move.kind not in ("crash", "cut")), None)
        if usual is None:
            return free, None
        can_wait = len(moves) - len(free) + sum(move in held for move in moves) > 1
        return [usual, *free], usual if can_wait else None

    def _try(self, key: Key, move: Move | None) -> tuple[int, ...] | None:
        """Do it, or with no move check an end; None if it fails, which ends the search."""
        try:
            if move is not None:
                return self._graph.after(key[0], move)
            self._graph.check_rest(key[0])
            return key[0]
        except Exception as error:
            outcome = self._outcome
            outcome.executions += 1
            outcome.failure = f"{type(error).__name__}: {error}"
            outcome.schedule = self._way(key, move)
            outcome.states = len(self._came)
            return None

    def _way(self, key: Key, last: Move | None) -> list[str]:
        """Return what happened until a state and in one move more, in words."""
        steps: list[tuple[Key, Move | None, Held]] = [(key, last, frozenset())]
        while (came := self._came[key]) is not None:
            steps.append((came[0], came[1], key[1] - came[0][1]))
            key = came[0]
        story = self._graph.story = []
        for (state, _), move, postponed in reversed(steps):
            story += [f"    ({self._graph.named(one)} has to wait)" for one in postponed]
            if move is not None:
                with suppress(Exception):
                    self._graph.after(state, move)
        self._graph.story = None
        return story


def explore(name: str, limit: int = LIMIT, mutant: str | None = None) -> Outcome:
    """Search a scope; with a mutant, the machines are broken in that way."""
    outcome = Outcome(name, mutant)
    began = time.monotonic()
    gc.disable()  # it would look at millions of tuples again and again, and there is little to collect
    try:
        with applied(mutant), Graph(SCOPES[name]) as graph:
            Search(graph, limit, outcome).run()
    finally:
        gc.enable()
        gc.collect()
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


@click.command()
@click.option("--scope", type=click.Choice(sorted(SCOPES)), multiple=True, help="Which; all unless given.")
@click.option("--limit", default=LIMIT, show_default=True, help="Executions per scope.")
@click.option("--mutant", type=click.Choice(sorted(MUTANTS)), help="Break the protocol in this way first.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document per scope instead.")
def main(scope: tuple[str, ...], limit: int, mutant: str | None, as_json: bool) -> None:
    """Go through all schedules of small view changes, as far as the limit allows."""
    failed = False
    for name in scope or SCOPES:
        outcome = explore(name, limit, mutant)
        if as_json:
            print(json.dumps(asdict(outcome)), flush=True)
        else:
            if outcome.schedule is not None:
                print("\n".join(outcome.schedule))
            sizes = f"{outcome.states} states, {outcome.moves} moves, {outcome.seconds} s"
            print(f"{name} ({SCOPES[name].what}): {outcome.verdict()}; {sizes}", flush=True)
        failed = failed or is_catch(outcome.failure)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
