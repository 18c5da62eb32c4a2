"""`uv run python -m tests.autoscale --seeds 20 --scenario daily`: the autoscaler against a cluster that is reckoned."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from actors.recording import Recorder
from autoscaler.policy_file import load_policy
from tests.autoscale.run import play
from tests.autoscale.scenarios import SCENARIOS

CONFIGS = Path(__file__).parents[2] / "configs"


@click.command()
@click.option("--seeds", default=5, show_default=True, help="How many seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--scenario", type=click.Choice(sorted(SCENARIOS)), multiple=True, help="Without it: all of them.")
@click.option("--policy", "path", default=str(CONFIGS / "autoscaler.yaml"), type=click.Path(dir_okay=False))
@click.option("--interval", type=float, help="Seconds between two signals; the scenario's own without it.")
@click.option("--sizes", "shows", is_flag=True, help="Print each change of sizes.")
@click.option("--record", type=click.Path(), help="Write the signals of one seed of one scenario to this folder.")
def main(
    seeds: int,
    first: int,
    scenario: tuple[str, ...],
    path: str,
    interval: float | None,
    shows: bool,
    record: str | None,
) -> None:
    """Run scenarios and check what must hold: limits, no flapping, few transitions after a step, cost, silence."""
    policy = load_policy(path)
    failed = 0
    recorder = None if record is None else Recorder(record)
    if recorder is not None and (seeds != 1 or len(scenario) != 1):
        raise click.UsageError("--record takes --seeds 1 and one --scenario")
    print("scenario  seed  transitions  oscillations  late turns  to SLO  missed min  cost  of optimum  seconds")
    for name in scenario or sorted(SCENARIOS):
        for seed in range(first, first + seeds):
            began = time.monotonic()
            outcome = play(seed, SCENARIOS[name], policy, interval, recorder.add if recorder else lambda _, __: None)
            card = outcome.card
            reached = "-" if outcome.reached_after is None else str(outcome.reached_after)
            print(
                f"{name:8}  {seed:4}  {card.transitions:11}  {card.oscillations:12}  {outcome.late_turns:10}"
                f"  {reached:>6}  {card.missed:10.1f}  {card.cost:4.2f}  {card.cost / outcome.optimum:10.2f}"
                f"  {time.monotonic() - began:7.1f}",
                flush=True,
            )
            if shows:
                for at_s, sizes in outcome.sizes:
                    print(f"    {at_s:9,.0f} s  " + "  ".join(f"{layer} {count}" for layer, count in sizes.items()))
            for text in outcome.trouble:
                print(f"    {text}")
            failed += bool(outcome.trouble)
    if recorder is not None:
        recorder.close()
    if failed:
        sys.exit(f"{failed} runs with trouble")


if __name__ == "__main__":
    main()
