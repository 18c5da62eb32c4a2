"""The simulator's command: `uv run python -m tests.sim --seeds 1000`, and `--replay SEED` for a whole trace."""

from __future__ import annotations

import sys
import time

import click

from tests.sim.mutants import MUTANTS, applied
from tests.sim.run import play
from tests.sim.world import World


@click.command()
@click.option("--seeds", default=300, show_default=True, help="How many seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--replay", type=int, help="Print the whole trace of one seed.")
@click.option("--mutant", type=click.Choice(sorted(MUTANTS)), help="Break the protocol in this way first.")
@click.option("--hashes", is_flag=True, help="Print every seed's trace hash.")
def main(seeds: int, first: int, replay: int | None, mutant: str | None, hashes: bool) -> None:
    """Run the cluster's machines over a seeded network and check what its clients see."""
    with applied(mutant):
        if replay is not None:
            _replay(replay)
            return
        began = time.monotonic()
        steps = publications = notifications = 0
        failed = []
        for seed in range(first, first + seeds):
            outcome = play(seed)
            steps += outcome.steps
            publications += outcome.publications
            notifications += outcome.notifications
            if hashes:
                print(seed, outcome.digest)
            if outcome.failure is not None:
                failed.append(seed)
                if mutant is None and len(failed) == 1:
                    print(outcome.story)
                print(f"seed {seed}: {outcome.failure}")
        print(
            f"{seeds} seeds, {len(failed)} failed: {steps} steps, {publications} publications, "
            f"{notifications} notifications, {time.monotonic() - began:.1f} s"
        )
        if failed and mutant is None:
            sys.exit(f"the whole trace: python -m tests.sim --replay {failed[0]}")


def _replay(seed: int) -> None:
    world = World(seed)
    try:
        world.run()
    finally:
        print("\n".join(world.trace.lines))
        print(f"seed {seed}: {world.trace.digest()}")


if __name__ == "__main__":
    main()
