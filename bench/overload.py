"""Overload: what the cluster does with half as much again as it can, and how soon it is as before.

    uv run python -m bench.overload --seconds 300 --json

Four phases: closed loop for `--calibrate` seconds, of which the second half's acknowledgements a second are the
capacity K; 50 % of K for `--calm` seconds; 150 % of K for `--seconds`; and 50 % again for `--after`. All loads but the
first are open loop; what flow control keeps at the source beyond a client's backlog is given up there and counted as
refused (bench/overload_load.py). Delays are those of acknowledgements, from when a batch was due. The capacity is that
of this benchmark's own publishers and subscribers together with the cluster on one machine: they share its processors.

offered_ratio: what was due during the overload and dealt with, offered or refused, over K: the publishers may be too
               slow to make so much.
goodput_ratio: acknowledgements a second during the overload, over K.
normal_s:      from the end of the overload until the delays' p99 of every further second is within twice that of the
               calm phase, or within 20 ms of it.
rss_mb:        of each role by pid: at the end of the calm phase, the largest in the first and in the second half of
               the overload, and at the end. rss_growth_mb: the largest growth from the one half to the other.
lost, doubled, out_of_order, oracle_differences: of all that was acknowledged, against brute force.

The exit status is 1 if any of the last line is not 0, or if something was not acknowledged; with `--bars` also when the
goodput is below 90 %, RSS grows by more than 5 % and 16 MB from half to half, or it takes more than 30 s to be normal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from typing import Any

import numpy as np

from bench import load, overload_load
from bench.environment import environment
from bench.overload_load import Batches, Phase
from bench.printing import show
from bench.process import rss_mb
from bench.recovery import material
from bench.recovery_figures import Floats, Integers, Seen, count
from bench.scaling_figures import quantiles_ms, within
from bench.scaling_oracle import notifications_due
from bench.workers import Workers

DRAIN_S = 30.0
SAMPLE_S = 0.25
GOODPUT = 0.9
NORMAL_S = 30.0
NORMAL_FACTOR, NORMAL_MS = 2.0, 20.0
GROWTH, GROWTH_MB = 0.05, 16.0

Samples = list[tuple[float, dict[str, float]]]


def acknowledgements(batches: Batches, publishers: int, total: int) -> tuple[Floats, Floats]:
    """Return when each publication was due and acknowledged, by its number."""
    publisher = np.frombuffer(batches.publisher, np.uint16).astype(np.int64)
    first = np.frombuffer(batches.first, np.uint64).astype(np.int64)
    counts = np.frombuffer(batches.count, np.uint32).astype(np.int64)
    offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    number: Integers = (np.repeat(first, counts) + offset) * publishers + np.repeat(publisher, counts)
    due, acknowledged = np.zeros(total), np.full(total, np.inf)
    due[number] = np.repeat(np.frombuffer(batches.due, np.float64), counts)
    acknowledged[number] = np.repeat(np.frombuffer(batches.acknowledged, np.float64), counts)
    return due, acknowledged


def normal_after_s(due: Floats, acknowledged: Floats, phase: Phase, calm_p99_ms: float) -> float | None:
    """Return the seconds from the beginning of the phase until every further second is as the calm phase was.

    None when the last one is not.
    """
    limit_ms = max(NORMAL_FACTOR * calm_p99_ms, calm_p99_ms + NORMAL_MS)
    normal: float | None = 0.0
    for second in range(int(phase.end - phase.begin)):
        chosen = within(due, (phase.begin + second, phase.begin + second + 1))
        if not chosen.any():
            continue
        p99_ms = float(np.quantile(acknowledged[chosen] - due[chosen], 0.99, method="higher")) * 1e3
        if p99_ms > limit_ms:
            normal = None
        elif normal is None:
            normal = float(second)
    return normal


def sizes(samples: Samples, calm: Phase, over: Phase) -> tuple[dict[str, dict[str, float]], float, bool]:
    """Return the roles' resident sizes, the largest growth within the overload, and whether all are bounded."""
    half = (over.begin + over.end) / 2
    found: dict[str, dict[str, float]] = {}
    growth, bounded = 0.0, True
    for role in samples[0][1]:
        series = [(when, size[role]) for when, size in samples if role in size]

        def largest(begin: float, end: float, series: list[tuple[float, float]] = series) -> float:
            return max((size for when, size in series if begin <= when < end), default=float("nan"))

        before = [size for when, size in series if when <= calm.end][-1:] or [float("nan")]
        row = {
            "calm": round(before[0], 1),
            "first_half": round(largest(over.begin, half), 1),
            "second_half": round(largest(half, over.end), 1),
            "end": round(series[-1][1], 1),
        }
        found[role] = row
        grown = row["second_half"] - row["first_half"]
        growth = max(growth, grown)
        bounded = bounded and grown <= max(GROWTH * row["first_half"], GROWTH_MB)
    return found, round(growth, 1), bounded


async def _sample(pids: dict[str, int], samples: Samples) -> None:
    while True:
        with contextlib.suppress(OSError):
            samples.append((time.monotonic(), {role: rss_mb(pid) for role, pid in pids.items()}))
        await asyncio.sleep(SAMPLE_S)


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run a cluster through the phases; return the figures."""
    from actors.launch import launch
    from cluster.config import ClientPort, Config, Layers

    publications, filters, expected = material(options)
    config = Config(
        name="overload",
        data_directory=directory,
        client_port=ClientPort(port=0),
        timing=load.PATIENT,
        layers=Layers(
            connection_points=options.connection_points,
            access_points=options.access_points,
            matchers=options.matchers,
            exit_points=options.exit_points,
        ),
    )
    workers = Workers()
    samples: Samples = []
    async with launch(config) as broker:
        shares = [filters[place :: options.clients] for place in range(options.clients)]
        pids = {f"{row['layer']} {row['slot']}": row["pid"] for row in (await broker.status())["members"]}
        sampler = asyncio.create_task(_sample(pids, samples))
        try:
            workers.start(
                "subscribers", load.subscribers, broker.endpoints, shares, options.publishers, quiet_s=DRAIN_S
            )
            await workers.receive("subscribers")
            workers.start(
                "publishers", overload_load.publish, broker.endpoints, publications, options.publishers, DRAIN_S
            )
            await workers.receive("publishers")

            async def carry_out(phase: Phase) -> Phase:
                workers.send("publishers", phase)
                carried_out = await workers.receive("publishers", phase.seconds + 60)
                assert isinstance(carried_out, Phase), "the answer to a phase"
                return carried_out

            warm_up = await carry_out(Phase("warm up", None, options.calibrate / 2))
            closed = await carry_out(Phase("calibrate", None, options.calibrate / 2))
            capacity = closed.per_s
            calm = await carry_out(Phase("calm", 0.5 * capacity, options.calm))
            over = await carry_out(Phase("overload", options.factor * capacity, options.seconds))
            after = await carry_out(Phase("after", 0.5 * capacity, options.after))
            workers.send("publishers", None)
            batches, total = await workers.receive("publishers")
            trouble: list[str] = await workers.receive("publishers")
            workers.send("subscribers", notifications_due(expected.counts, total))
            logs: list[load.Log] = await workers.receive("subscribers")
            trouble += await workers.receive("subscribers")
            status = await broker.status()
            workers.send("publishers", None)
        finally:
            sampler.cancel()
            await asyncio.to_thread(workers.close)
    due, acknowledged = acknowledgements(batches, options.publishers, total)
    counts, examples = count(Seen(due, acknowledged, options.publishers, logs, expected, [], trouble))

    def delays(phase: Phase) -> dict[str, float | None]:
        own = (acknowledged - due)[within(due, (phase.begin, phase.end))]
        return quantiles_ms(own[np.isfinite(own)])

    normal = normal_after_s(due, acknowledged, after, delays(calm)["p99"] or 0.0)
    rss, growth, bounded = sizes(samples, calm, over)
    return {
        "capacity_per_s": round(capacity, 1),
        "goodput_per_s": round(over.per_s, 1),
        "goodput_ratio": round(over.per_s / capacity, 3) if capacity else None,
        "offered_ratio": round((over.offered + over.refused) / (over.end - over.begin) / capacity, 3)
        if capacity
        else None,
        "normal_s": normal,
        "rss_growth_mb": growth,
        "bars": {
            "goodput": over.per_s >= GOODPUT * capacity > 0,
            "rss": bounded,
            "normal": normal is not None and normal <= NORMAL_S,
        },
        "phases": {
            phase.name: {
                "offered": phase.offered,
                "refused": phase.refused,
                "acknowledged_per_s": round(phase.per_s, 1),
                "ack_delay_ms": delays(phase),
            }
            for phase in (closed, calm, over, after)
        },
        "warm_up": warm_up.offered,
        "acknowledged": int(np.isfinite(acknowledged).sum()),
        "unacknowledged": int((~np.isfinite(acknowledged)).sum()),
        "lost": counts.lost,
        "doubled": counts.doubled_flagged + counts.doubled_unflagged,
        "out_of_order": counts.out_of_order,
        "oracle_differences": counts.oracle_differences,
        "notifications": counts.notifications,
        "rss_mb": rss,
        "factor": options.factor,
        "seconds": options.seconds,
        "subscriptions": options.subscriptions,
        "seed": options.seed,
        "lost_roles": status["lost"],
        "examples": examples,
        "trouble": trouble,
        "environment": environment(),
    }


WRONG = ("lost", "doubled", "out_of_order", "oracle_differences", "unacknowledged", "lost_roles", "trouble")
"""Of these there must be none."""


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="bench.overload", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="of overload")
    parser.add_argument("--factor", type=float, default=1.5, help="of the capacity, during the overload")
    parser.add_argument("--calibrate", type=float, default=10.0, help="seconds of closed loop")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds at half the capacity, before")
    parser.add_argument("--after", type=float, default=40.0, help="seconds at half the capacity, after")
    parser.add_argument("--workload", default="geofence")
    parser.add_argument("--subscriptions", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=10, help="connections that hold them")
    parser.add_argument("--publishers", type=int, default=4)
    for layer in ("connection-points", "access-points", "matchers", "exit-points"):
        parser.add_argument(f"--{layer}", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bars", action="store_true", help="the exit status judges speed and memory as well")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if min(options.seconds, options.factor, options.calibrate, options.calm, options.after, options.clients) <= 0:
        raise SystemExit("bench.overload: every number must be positive")
    with tempfile.TemporaryDirectory(prefix="kittiwake-overload-") as directory, contextlib.redirect_stdout(sys.stderr):
        figures = asyncio.run(measure(options, directory))
    show(figures, as_json=options.json)
    wrong = any(figures[name] for name in WRONG)
    return 1 if wrong or (options.bars and not all(figures["bars"].values())) else 0


if __name__ == "__main__":
    sys.exit(main())
