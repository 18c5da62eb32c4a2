"""Scaling under load: what do publishers and subscribers notice while a layer grows, shrinks or is replaced?

    uv run python -m bench.scaling --from 1-1-1 --to 1-3-1 --subscriptions 100000 \\
        --publish-rate 2000 --subscribe-rate 1000 --strategy waves --strategy stop_swap --plot scaling.png

The paper's experiment. Slices are given as access points - matchers - exit points; a fourth number before them is
that of the connection points. A real cluster runs on a Ray of its own; the load is open loop (bench/scaling_load.py):
the delay of a notification counts from when its publication was due, that of an acknowledgement from when its request
was due, whatever the broker does. `--subscribe-rate` is that of subscribe requests; each is followed by its unsubscribe
request a second later, so the broker has twice as many changes to make.

before: `--seconds-before` until the request to scale. during: until the coordinator says that it is done, which
        includes the start of new processes. after: `--seconds-after` from then. A delay belongs to the window in which
        its publication was due. start and moving: the parts of during before and after new processes were up. With
        `--spares` they are up before the load begins.
longest_gap_ms: the longest time without any delivery, while at least one was due, that overlaps the change.
lost, doubled, out_of_order, oracle_differences: of all that was delivered, also to the subscriptions that came and went
        (bench/scaling_oracle.py). They must be 0; if not, or if the change was not done, the exit status is 1.
trouble: what else went wrong, in words, such as a slice that was taken for dead, be it after the load, when all clients
        leave at once; then the exit status is 1 as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from bench import scaling_matrix, scaling_plot, workloads
from bench.scaling_figures import Span, spans
from bench.scaling_report import Deliveries, all_figures, deliveries, failed
from bench.scaling_run import LAYERS, Change, Observed, Slices, drive, make_material

STRATEGIES = ("waves", "all_at_once", "stop_swap")


def slices(text: str) -> Slices:
    """Read `1-3-1` or, with connection points, `2-1-3-1`. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"[1-9]\d?(-[1-9]\d?){2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not three or four numbers from 1, such as 1-3-1")
    counts = [int(part) for part in text.split("-")]
    return dict(zip(LAYERS, [1, *counts] if len(counts) == 3 else counts, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from", dest="start", type=slices, default="1-1-1", metavar="[CP-]AP-M-EP")
    parser.add_argument("--to", dest="goal", type=slices, default="1-3-1", metavar="[CP-]AP-M-EP")
    parser.add_argument("--replace", metavar="LAYER", help="also replace the lowest slot of this layer, e.g. matcher")
    parser.add_argument("--workload", choices=workloads.NAMES, default="geofence")
    parser.add_argument("--subscriptions", type=int, default=100_000, help="that last, over all clients")
    parser.add_argument("--clients", type=int, default=10, help="connections that hold them")
    parser.add_argument("--publishers", type=int, default=4, help="connections that publish")
    parser.add_argument("--publish-rate", type=float, default=2000.0, help="publications per second")
    parser.add_argument("--subscribe-rate", type=float, default=1000.0, help="subscribe requests per second")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="waves; several: a run for each")
    parser.add_argument("--spares", type=int, default=0, help="ray.spares: processes that are warm, to be newcomers")
    parser.add_argument("--seconds-before", type=float, default=5.0)
    parser.add_argument("--seconds-after", type=float, default=5.0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that one change may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw throughput and delay over time")
    parser.add_argument("--matrix", action="store_true", help="every layer out and in at two sizes; one table")
    parser.add_argument("--matrix-subscriptions", type=int, nargs="+", default=[10_000, 100_000], metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON object a change on stdout")
    return parser


def change_of(options: argparse.Namespace) -> Change:
    """Return the change that the command line asks for. Raises SystemExit when that is none."""
    wish = {layer: count for layer, count in options.goal.items() if count != options.start[layer]}
    if not wish and options.replace is None:
        raise SystemExit("bench.scaling: --from and --to are the same and nothing is to be replaced")
    name = " ".join(f"{layer} {options.start[layer]}->{count}" for layer, count in wish.items())
    return Change(name + (f" {options.replace} replaced" if options.replace else ""), wish, options.replace)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if anything was lost, doubled, out of order or wrong, or a change failed."""
    options = _parser().parse_args(arguments)
    if min(options.subscriptions, options.clients, options.publishers) < 1 or options.publish_rate <= 0:
        raise SystemExit("bench.scaling: subscriptions, clients, publishers and the publish rate must be positive")
    strategies = options.strategy or ["waves"]
    if options.matrix:
        return scaling_matrix.run(options, strategies[0])
    change = change_of(options)
    material = make_material(options)
    rows: list[dict[str, Any]] = []
    drawn: list[tuple[str, Deliveries, Observed, list[Span]]] = []
    for strategy in strategies:
        with contextlib.redirect_stdout(sys.stderr):  # Ray tells there of a process that was ended
            traffic, seen = asyncio.run(drive(options, material, options.start, [change], strategy))
        rows += all_figures(options, material, traffic, seen, strategy)
        laid = spans(seen[0].requested, seen[0].done, seen[0].steps)
        drawn.append((strategy, deliveries(traffic), seen[0], laid))
        if options.json:
            print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        print(scaling_matrix.comparison(rows))
    if options.plot is not None:
        runs = [
            scaling_plot.Run(name, found.due, found.arrival, seen.begin, seen.requested, seen.done, seen.end, laid)
            for name, found, seen, laid in drawn
        ]
        scaling_plot.draw(runs, f"{change.name}, {options.subscriptions:,} subscriptions", options.plot)
    return 1 if any(failed(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
