"""The simulator's command: `uv run python -m tests.sim --seeds 1000`; `--replay SEED` for a trace; `--mutants`."""

from __future__ import annotations

import sys
import time

import click

from tests.sim import recovery_mutants, valid_mutants, view_mutants
from tests.sim.detection import detect
from tests.sim.mutants import MUTANTS, applied
from tests.sim.plan import SCENARIOS
from tests.sim.run import play
from tests.sim.shrink import shrink
from tests.sim.world import World

assert recovery_mutants and valid_mutants and view_mutants, "their mutants are entered on import"  # noqa: PT018


@click.command()
@click.option("--seeds", default=300, show_default=True, help="How many seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--scenario", default="mixed", show_default=True, type=click.Choice(sorted(SCENARIOS)))
@click.option("--replay", type=int, help="Print the whole trace of one seed.")
@click.option("--shrink", "shrinks", is_flag=True, help="With --replay: leave out what the failure does not need.")
@click.option("--mutant", type=click.Choice(sorted(MUTANTS)), help="Break the protocol in this way first.")
@click.option("--mutants", is_flag=True, help="Print for every mutant how many of the seeds catch it.")
@click.option("--hashes", is_flag=True, help="Print every seed's trace hash.")
def main(
    seeds: int,
    first: int,
    scenario: str,
    replay: int | None,
    shrinks: bool,
    mutant: str | None,
    mutants: bool,
    hashes: bool,
) -> None:
    """Run the cluster's machines over a seeded network and check what its clients see."""
    if mutants:
        _table(seeds)
        return
    with applied(mutant):
        if replay is not None:
            _replay(replay, scenario, shrinks)
            return
        began = time.monotonic()
        steps = publications = notifications = changes = 0
        failed = []
        for seed in range(first, first + seeds):
            outcome = play(seed, scenario)
            steps += outcome.steps
            publications += outcome.publications
            notifications += outcome.notifications
            changes += outcome.view_changes
            if hashes:
                print(seed, outcome.digest)
            if outcome.failure is not None:
                failed.append(seed)
                if mutant is None and len(failed) == 1:
                    print(outcome.story)
                print(f"seed {seed}: {outcome.failure}", flush=True)
        print(
            f"{seeds} seeds of {scenario}, {len(failed)} failed: {steps} steps, {publications} publications, "
            f"{notifications} notifications, {changes} view changes, {time.monotonic() - began:.1f} s"
        )
        if failed and mutant is None:
            sys.exit(f"a short trace: python -m tests.sim --scenario {scenario} --replay {failed[0]} --shrink")


def _replay(seed: int, scenario: str, shrinks: bool) -> None:
    without = frozenset[int]()
    if shrinks:
        without = shrink(seed, scenario)
        print(f"without {len(without)} of its actions: {sorted(without)}")
    world = World(seed, scenario, without)
    try:
        world.run()
    finally:
        print("\n".join(world.trace.lines))
        print(f"seed {seed}: {world.trace.digest()}")


def _table(seeds: int) -> None:
    print(f"| mutant | scenario | caught in {seeds} seeds | first |\n|---|---|---|---|")
    missed = []
    for name, mutant in sorted(MUTANTS.items(), key=lambda item: (item[1].scenario, item[0])):
        found = detect(name, seeds)
        print(f"| {mutant.what} (`{name}`) | {mutant.scenario} | {found.caught} | {found.first} |", flush=True)
        if found.first is None:
            missed.append(name)
    if missed:
        sys.exit(f"not caught: {', '.join(missed)}")


if __name__ == "__main__":
    main()
