"""The autoscaler under a load that rises and falls tenfold: delay and sizes over time, under one policy or several.

    uv run python -m bench.autoscale --pattern cupus --json --plot cupus.png
    uv run python -m bench.autoscale --pattern day --json --plot day.png
    uv run python -m bench.autoscale --pattern tenfold --config configs/cluster.yaml --json --plot tenfold.png

cupus: CUPUS's elasticity experiment (cupus-mcs-2015 section 6.1, experiment 2): 5,000 subscriptions, 95 to 1,000
       publications a second, here in steps up and down again. `--factor` multiplies the rates.
day:   a day in `--seconds`, night to peak tenfold (`--peak`), under the four policies of configs/ one after the other,
       each with a cluster of its own that starts with one slice a layer; their durations are divided by `--quicken`.
tenfold: a tenth of `--peak`, all of it, and a tenth again, each for a third of the time.

`--config` takes a cluster's configuration, with its sizes to start with and, if no `--policy` is given, the policy that
it names; ports and data directory are the benchmark's. It runs on a Ray of its own, with `--on-ray` on that of the
configuration (`ray.address`).

The load is open loop: a delay counts from when a publication was due. `first_reaction_s` is when the first growth was
done; `seconds_missed` are seconds of which the 99th percentile was above `--target-ms`. Everything that was delivered
is compared with what brute force says. Exit code 1 if anything was lost, doubled, out of order or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from bench import autoscale_pattern, autoscale_plot, workloads
from bench.autoscale_report import failed, figures_of, lines
from bench.autoscale_run import drive, make_material
from bench.environment import environment
from cluster.config import load_config

CONFIGS = Path(__file__).parents[1] / "configs"
POLICIES = {
    "cupus": ["autoscaler.yaml"],
    "day": ["autoscaler.yaml", "latency-first.yaml", "cost-first.yaml", "cupus.yaml"],
    "tenfold": ["autoscaler.yaml"],
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.autoscale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pattern", choices=tuple(POLICIES), default="cupus")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a cluster's; without it one slice a layer")
    parser.add_argument("--on-ray", action="store_true", help="on the Ray cluster of --config, not one of its own")
    parser.add_argument("--policy", action="append", type=Path, metavar="FILE", help="several: a run for each")
    parser.add_argument("--seconds", type=float, default=300.0, help="of load")
    parser.add_argument("--factor", type=float, default=1.0, help="multiplies the rates of cupus")
    parser.add_argument(
        "--peak", type=float, default=2000.0, help="publications per second at the peak of day and tenfold"
    )
    parser.add_argument("--quicken", type=float, default=10.0, help="divides the durations of the policies; 1: none")
    parser.add_argument("--workload", choices=workloads.NAMES, default="opensense")
    parser.add_argument("--subscriptions", type=int, default=5000, help="over all clients")
    parser.add_argument("--clients", type=int, default=10, help="connections that hold them")
    parser.add_argument("--publishers", type=int, default=4, help="connections that publish")
    parser.add_argument("--target-ms", type=float, default=100.0)
    parser.add_argument("--decisions", type=int, default=0, help="print so many of the last decisions to stderr")
    parser.add_argument(
        "--after", type=float, default=2.0, help="seconds that it is watched after the last publication"
    )
    parser.add_argument("--until-shrunk", action="store_true", help="and no longer than until it is below its largest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _policies(options: argparse.Namespace) -> list[Path]:
    """Return the policy that the configuration names, else those of the pattern."""
    if options.config is not None and (named := load_config(options.config).autoscaler) is not None:
        return [Path(named)]
    return [CONFIGS / name for name in POLICIES[options.pattern]]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.on_ray and options.config is None:
        parser.error("--on-ray needs --config")
    policies = options.policy or _policies(options)
    if options.pattern == "cupus":
        points = autoscale_pattern.cupus(options.seconds, options.factor)
    elif options.pattern == "day":
        points = autoscale_pattern.day(options.seconds, options.peak)
    else:
        points = autoscale_pattern.tenfold(options.seconds, options.peak)
    due = autoscale_pattern.due_times(points)
    material = make_material(options)
    runs, rows = [], []
    for path in policies:
        print(f"{path}: {len(due)} publications in {options.seconds:g} s", file=sys.stderr)
        run = asyncio.run(drive(options, material, path, due))
        runs.append(run)
        rows.append(figures_of(options, material, run))
        if options.decisions:
            from autoscaler.explain import text_of

            shown = run.explained["decisions"][-options.decisions :]
            print(text_of({**run.explained, "decisions": shown}), file=sys.stderr)
    if options.plot is not None:
        title = f"{options.pattern}: {options.workload}, {options.subscriptions:,} subscriptions"
        autoscale_plot.draw(runs, points, options.target_ms, title, options.plot)
    if options.json:
        print(json.dumps({"runs": rows, "environment": environment()}))
    else:
        print("\n".join(lines(rows)))
    return 1 if any(map(failed, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
