"""What slow subscribers cost the others.

    uv run python -m bench.slow --clients 100 --rate 500 --seconds 60 --rounds 3 --json

Two loads in turn on one cluster, open loop, `--rounds` times each; `--seconds` is what all of them last together, but
for what it takes to begin and end them. One in ten clients and one in a hundred want everything, the others have the
workload's filters, dealt in turn. In the load "without" slow ones everybody reads as fast as it can; in the load "with"
them the one in ten reads `--slow-rate` notifications a second and the one in a hundred none, so that their queues fill,
with the policy `--policy`. When a load ends they read what is left; each load has new clients.

So the cluster has the same publications to match and the same notifications to place in both. "without", the eleven in
a hundred are a load too: what they get is written, read and decoded on the same machine, if not in the process of the
others, as they have one of their own. The ratio says what it costs the others that a client stops reading, not what it
would cost that it comes at all; it may be below 1.

Delays are counted from when a publication was due, of what was due after the slow ones' queues were full, and in the
other load from the same moment on.

p99_ratio: the median of the others' p99s with slow ones, over that of those without: one p99 against one other is
chance where a hypervisor takes a core away now and then. p99_without_ms, p99_with_ms: in the order of the rounds.
cpu_s: of each process, over all rounds. connection_point_cpu_us: for one publication. lost, doubled, out_of_order,
oracle_differences: of the others over all rounds, against brute force. untold: notifications for slow ones that neither
came nor were counted as dropped to them; there are none, as nothing is dropped in silence. The exit status is 1 if any
of these is not 0, or if anything published was not acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import load, recovery_load
from bench.environment import environment
from bench.load import publisher_name
from bench.printing import show
from bench.process import cpu_s, rss_mb
from bench.recovery import material
from bench.recovery_figures import Counts, Floats, Seen, count
from bench.scaling_figures import quantiles_ms, within
from bench.scaling_oracle import Expected, arrived, notifications_due
from bench.slow_load import NEVER, slow
from bench.workers import Workers
from cluster.messages import CONNECTION_POINT

DRAIN_S = 30.0
WARM_UP_S = 1.0
"""Delays of the first second are not counted, however soon the queues are full."""
WITHOUT, WITH = "without", "with"
EVERYTHING = "not exists no_such_attribute"


@dataclass
class Part:
    """What one load has left. slow: as `slow` sends it. cpu_s, rss_mb: of each process, its seconds in this load and
    its megabytes at the end of it."""

    due: Floats
    acknowledged: Floats
    logs: list[load.Log]
    slow: list[tuple[dict[str, bytes], dict[str, int], int]]
    trouble: list[str]
    rss_mb: dict[str, float]
    cpu_s: dict[str, float]


def books(part: Part, publishers: int) -> tuple[int, int, int]:
    """Return of the slow ones: what neither came nor was told as dropped, doubles, and what was dropped."""
    untold = doubled = dropped = 0
    total = len(part.due)
    for got, drops, _ in part.slow:
        distinct = 0
        for place in range(publishers):
            sequences = np.frombuffer(got.get(publisher_name(place), b""), np.uint64)
            unique = len(np.unique(sequences))
            distinct += unique
            doubled += len(sequences) - unique
        dropped += sum(drops.values())
        untold += abs(total - distinct - sum(drops.values()))
    return untold, doubled, dropped


def judge(part: Part, publishers: int, expected: Expected) -> Counts:
    """Return what was wrong for the others."""
    seen = Seen(part.due, part.acknowledged, publishers, part.logs, expected, [], part.trouble)
    return count(seen)[0]


def full_s(options: argparse.Namespace) -> float:
    """Return after how many seconds of a load the queue of one that reads nothing is full."""
    return float((options.window + options.queue) / options.rate)


def load_s(options: argparse.Namespace) -> float:
    """Return how long one load lasts."""
    return float(options.seconds / (2 * options.rounds))


def p99s_ms(delays: Iterable[Floats]) -> list[float]:
    """Return the p99 of each load that has any delays."""
    return [round(float(np.quantile(one, 0.99)) * 1e3, 3) for one in delays if len(one)]


def ratio(without: list[float], slowed: list[float]) -> float | None:
    """Return the median of the second over that of the first."""
    return round(statistics.median(slowed) / statistics.median(without), 3) if without and slowed else None


def cpu_of(parts: Iterable[Part]) -> dict[str, float]:
    """Return each process's seconds over these loads."""
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.cpu_s.items():
            total[name] = round(total.get(name, 0.0) + seconds, 2)
    return total


def seconds_of(layer: str, cpu: dict[str, float]) -> float:
    """Return what the slices of a layer have used."""
    return sum(seconds for name, seconds in cpu.items() if name.rpartition(" ")[0] == layer)


def delays_s(part: Part, publishers: int, warm_up_s: float = WARM_UP_S) -> Floats:
    """Return the delays of the others' notifications, without the beginning."""
    found = [np.zeros(0)]
    for log in part.logs:
        rows = arrived(log, publishers)
        due = part.due[rows.number[(rows.number >= 0) & (rows.number < len(part.due))]]
        chosen = within(due, (part.due[0] + warm_up_s, np.inf))
        found.append((rows.time - due)[chosen])
    return np.concatenate(found)


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run a cluster with both loads; return the figures."""
    from actors.launch import launch
    from cluster.config import ClientPort, Config, Flow, Layers

    slow_count = max(1, round(options.clients * 0.1))
    never_count = max(1, round(options.clients * 0.01))
    others = argparse.Namespace(**vars(options) | {"clients": options.clients - slow_count - never_count})
    publications, filters, expected = material(others)
    config = Config(
        name="slow",
        data_directory=directory,
        client_port=ClientPort(port=0),
        timing=load.PATIENT,
        layers=Layers(connection_points=options.connection_points),
        flow=Flow(queue_messages=options.queue),
    )
    paces = {
        WITHOUT: [0.0] * (slow_count + never_count),
        WITH: [1 / options.slow_rate] * slow_count + [NEVER] * never_count,
    }
    parts: dict[str, list[Part]] = {WITHOUT: [], WITH: []}
    async with launch(config) as broker:
        for turn in range(options.rounds):
            for name, own in parts.items():
                label = f"{name}-{turn}"
                own.append(await _part(options, others, broker, label, paces[name], publications, filters, expected))
        status = await broker.status()
    return figures(options, others.clients, parts, expected) | {"lost_roles": status["lost"]}


def figures(
    options: argparse.Namespace, others: int, parts: dict[str, list[Part]], expected: Expected
) -> dict[str, Any]:
    """Return what the loads have found."""
    everything = [*parts[WITHOUT], *parts[WITH]]
    counts = [judge(part, options.publishers, expected) for part in everything]
    told = [books(part, options.publishers) for part in everything]
    warm_up_s = max(WARM_UP_S, full_s(options))
    delays = {name: [delays_s(part, options.publishers, warm_up_s) for part in own] for name, own in parts.items()}
    p99s = {name: p99s_ms(own) for name, own in delays.items()}
    cpu = {name: cpu_of(own) for name, own in parts.items()}
    published = {name: sum(len(part.due) for part in own) for name, own in parts.items()}
    reasons: dict[str, int] = {}
    for part in parts[WITH]:
        for _, drops, _ in part.slow:
            for reason, number in drops.items():
                reasons[reason] = reasons.get(reason, 0) + number
    return {
        "clients": options.clients,
        "others": others,
        "policy": options.policy,
        "rate": options.rate,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "subscriptions": options.subscriptions,
        "seed": options.seed,
        "delay_without_ms": quantiles_ms(np.concatenate(delays[WITHOUT])),
        "delay_with_ms": quantiles_ms(np.concatenate(delays[WITH])),
        "p99_without_ms": p99s[WITHOUT],
        "p99_with_ms": p99s[WITH],
        "p99_ratio": ratio(p99s[WITHOUT], p99s[WITH]),
        "cpu_s": cpu,
        "connection_point_cpu_us": {
            name: round(1e6 * seconds_of(CONNECTION_POINT, own) / published[name], 1) for name, own in cpu.items()
        },
        "acknowledged": sum(int(np.isfinite(part.acknowledged).sum()) for part in everything),
        "unacknowledged": sum(int((~np.isfinite(part.acknowledged)).sum()) for part in everything),
        "lost": sum(one.lost for one in counts),
        "doubled": sum(one.doubled_flagged + one.doubled_unflagged for one in counts) + sum(one[1] for one in told),
        "out_of_order": sum(one.out_of_order for one in counts),
        "oracle_differences": sum(one.oracle_differences for one in counts),
        "untold": sum(one[0] for one in told),
        "dropped": reasons,
        "slow_reconnections": sum(one[2] for part in parts[WITH] for one in part.slow),
        "rss_mb": {name: own[-1].rss_mb for name, own in parts.items()},
        "trouble": [one for part in everything for one in part.trouble],
        "environment": environment(),
    }


async def _part(
    options: argparse.Namespace,
    others: argparse.Namespace,
    broker: Any,
    name: str,
    paces: list[float],
    publications: list[dict[str, Any]],
    filters: list[str],
    expected: Expected,
) -> Part:
    """Run one load from its beginning to its end."""
    workers = Workers()
    end = workers.context.Value("d", float("inf"), lock=False)
    latest = workers.context.Array("d", options.publishers, lock=False)
    urls = broker.endpoints
    pids = {f"{row['layer']} {row['slot']}": row["pid"] for row in (await broker.status())["members"]}
    try:
        shares = [filters[place :: others.clients] for place in range(others.clients)]
        workers.start("subscribers", load.subscribers, urls, shares, options.publishers, quiet_s=DRAIN_S)
        await workers.receive("subscribers")
        workers.start("slow", slow, urls, name, paces, EVERYTHING, options.policy, options.window)
        await workers.receive("slow")
        workers.start(
            "publishers",
            recovery_load.publish,
            urls,
            publications,
            options.publishers,
            options.rate,
            end,
            latest,
            DRAIN_S,
        )
        await workers.receive("publishers")
        begin = time.monotonic() + 0.2
        end.value = begin + load_s(options)
        pids |= workers.pids
        used = {role: cpu_s(pid) for role, pid in pids.items()}
        workers.send("publishers", begin)
        acknowledged = np.frombuffer(await workers.receive("publishers", load_s(options) + 300), np.float64)
        used = {role: cpu_s(pid) - used[role] for role, pid in pids.items()}
        sizes = {role: round(rss_mb(pid), 1) for role, pid in pids.items()}
        trouble: list[str] = (await workers.receive("publishers"))[0]
        workers.send("subscribers", notifications_due(expected.counts, len(acknowledged)))
        logs: list[load.Log] = await workers.receive("subscribers")
        trouble += await workers.receive("subscribers")
        workers.send("slow", None)
        behind = await workers.receive("slow")
        workers.send("publishers", None)
    finally:
        await asyncio.to_thread(workers.close)
    due = begin + np.arange(len(acknowledged)) / options.rate
    return Part(due, acknowledged, logs, behind, trouble, sizes, used)


WRONG = ("lost", "doubled", "out_of_order", "oracle_differences", "untold", "unacknowledged", "lost_roles", "trouble")
"""Of these there must be none."""


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="bench.slow", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--clients", type=int, default=100, help="subscribers; a tenth is slow, a hundredth never reads"
    )
    parser.add_argument("--slow-rate", type=float, default=1.0, help="notifications a second that a slow one reads")
    parser.add_argument("--policy", default="drop_oldest", help="of the slow ones' subscriptions")
    parser.add_argument("--window", type=int, default=256, help="of the slow ones: notifications that lie unread")
    parser.add_argument("--queue", type=int, default=512, help="flow.queue_messages: what waits for a client at most")
    parser.add_argument("--rate", type=float, default=500.0, help="publications per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="that all loads last together")
    parser.add_argument("--rounds", type=int, default=3, help="how often each of the two loads has its turn")
    parser.add_argument("--workload", default="geofence")
    parser.add_argument("--subscriptions", type=int, default=10_000, help="of the others")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--connection-points", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if options.clients < 3 or min(options.rate, options.seconds, options.slow_rate, options.publishers) <= 0:
        raise SystemExit("bench.slow: at least three clients, and rates, seconds and publishers above 0")
    if min(options.rounds, options.window, options.queue) < 1:
        raise SystemExit("bench.slow: --rounds, --window and --queue are at least 1")
    if load_s(options) < full_s(options) + WARM_UP_S:
        raise SystemExit(
            f"bench.slow: a load lasts {load_s(options):g} s, and the slow ones' queues are full after "
            f"{full_s(options):g} s: more --seconds, or fewer --rounds, or a smaller --window or --queue"
        )
    with tempfile.TemporaryDirectory(prefix="kittiwake-slow-") as directory, contextlib.redirect_stdout(sys.stderr):
        figures = asyncio.run(measure(options, directory))
    show(figures, as_json=options.json)
    return 1 if any(figures[name] for name in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
