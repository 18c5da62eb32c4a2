"""What slow subscribers cost the others.

    uv run python -m bench.slow --clients 100 --rate 500 --seconds 60 --json

Twice the same load on one cluster, open loop, the delay counted from when a publication was due: first everybody reads
as fast as it can, then one in ten reads `--slow-rate` notifications a second and one in a hundred none at all. Those
wanted everything all along, so that their queues fill, with the policy `--policy`; the others have the workload's
filters, dealt in turn. When the load ends the slow ones read what is left.

p99_ratio: the others' p99 with slow ones, over that without. lost, doubled, out_of_order, oracle_differences: of the
others, against brute force. untold: notifications for slow ones that neither came nor were counted as dropped to them;
there are none, as nothing is dropped in silence. The exit status is 1 if any of these is not 0, or if anything
published was not acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bench import load, recovery_load
from bench.environment import environment
from bench.load import publisher_name
from bench.printing import show
from bench.process import rss_mb, run
from bench.recovery import material
from bench.recovery_figures import Counts, Floats, Seen, count
from bench.scaling_figures import quantiles_ms, within
from bench.scaling_oracle import Expected, arrived, notifications_due
from bench.workers import Workers
from cluster import Client, connect

DRAIN_S = 30.0
WARM_UP_S = 1.0
"""Delays of the first second are not counted."""
EVERYTHING = "not exists no_such_attribute"
REST_S = 3.0
"""Without a notification for so long, a slow one has everything."""


@dataclass
class _Reader:
    """A slow subscriber. pace: seconds between two notifications; infinite: none until the end; 0: as they come."""

    client: Client
    pace: float
    sequences: dict[str, array[int]] = field(default_factory=dict)
    last: float = 0.0

    async def read(self, stream: Any, hurry: asyncio.Event) -> None:
        if self.pace == float("inf"):
            await hurry.wait()
        async for notification in stream:
            self.sequences.setdefault(notification.publisher, array("Q")).append(notification.sequence)
            self.last = time.monotonic()
            if self.pace and not hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.pace):
                        await hurry.wait()


async def _slow(
    urls: list[str], run_name: str, paces: list[float], filter: str, policy: Any, window: int, pipe: Connection
) -> None:
    hurry = asyncio.Event()
    readers: list[_Reader] = []
    tasks: list[asyncio.Task[None]] = []
    for place, pace in enumerate(paces):
        url = urls[place % len(urls)]
        client = await connect(url, client_id=f"{run_name}-slow-{place}", receive_window=window)
        readers.append(_Reader(client, pace))
        stream = await client.subscribe(filter, policy=policy)
        tasks.append(asyncio.create_task(readers[-1].read(stream, hurry)))
    pipe.send(None)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    hurry.set()
    asked = time.monotonic()
    while time.monotonic() - max([asked, *(one.last for one in readers)]) < REST_S:
        await asyncio.sleep(0.05)
    pipe.send(
        [
            (
                {name: sequences.tobytes() for name, sequences in one.sequences.items()},
                dict(one.client.dropped),
                one.client.reconnections,
            )
            for one in readers
        ]
    )
    await load.leave([one.client for one in readers], tasks)


def slow(
    urls: list[str], run_name: str, paces: list[float], filter: str, policy: Any, window: int, pipe: Connection
) -> None:
    """The slow ones' process. Sends None when they are there; gets None when the load is over; sends, for each, the
    sequences it got by publisher, what was dropped by reason, and how often it reconnected.
    """
    run(_slow(urls, run_name, paces, filter, policy, window, pipe))


@dataclass
class Part:
    """What one of the two loads has left. slow: as `slow` sends it."""

    due: Floats
    acknowledged: Floats
    logs: list[load.Log]
    slow: list[tuple[dict[str, bytes], dict[str, int], int]]
    trouble: list[str]
    rss_mb: dict[str, float]


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


def delays_s(part: Part, publishers: int) -> Floats:
    """Return the delays of the others' notifications, without the beginning."""
    found = [np.zeros(0)]
    for log in part.logs:
        rows = arrived(log, publishers)
        due = part.due[rows.number[(rows.number >= 0) & (rows.number < len(part.due))]]
        chosen = within(due, (part.due[0] + WARM_UP_S, np.inf))
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
        "without": [0.0] * (slow_count + never_count),
        "with": [1 / options.slow_rate] * slow_count + [float("inf")] * never_count,
    }
    parts: dict[str, Part] = {}
    async with launch(config) as broker:
        for name in ("without", "with"):
            parts[name] = await _part(options, others, broker, name, paces[name], publications, filters, expected)
        status = await broker.status()
    counts = {name: judge(part, options.publishers, expected) for name, part in parts.items()}
    told = {name: books(part, options.publishers) for name, part in parts.items()}
    delays = {name: quantiles_ms(delays_s(part, options.publishers)) for name, part in parts.items()}
    p99 = delays["without"]["p99"], delays["with"]["p99"]
    reasons: dict[str, int] = {}
    for _, drops, _ in parts["with"].slow:
        for reason, number in drops.items():
            reasons[reason] = reasons.get(reason, 0) + number
    return {
        "clients": options.clients,
        "slow": slow_count,
        "never": never_count,
        "policy": options.policy,
        "rate": options.rate,
        "seconds": options.seconds,
        "subscriptions": options.subscriptions,
        "seed": options.seed,
        "delay_without_ms": delays["without"],
        "delay_with_ms": delays["with"],
        "p99_ratio": round(p99[1] / p99[0], 3) if p99[0] and p99[1] else None,
        "acknowledged": sum(int(np.isfinite(part.acknowledged).sum()) for part in parts.values()),
        "unacknowledged": sum(int((~np.isfinite(part.acknowledged)).sum()) for part in parts.values()),
        "lost": sum(one.lost for one in counts.values()),
        "doubled": sum(one.doubled_flagged + one.doubled_unflagged for one in counts.values())
        + sum(one[1] for one in told.values()),
        "out_of_order": sum(one.out_of_order for one in counts.values()),
        "oracle_differences": sum(one.oracle_differences for one in counts.values()),
        "untold": sum(one[0] for one in told.values()),
        "dropped": reasons,
        "slow_reconnections": sum(one[2] for one in parts["with"].slow),
        "rss_mb": {name: part.rss_mb for name, part in parts.items()},
        "lost_roles": status["lost"],
        "trouble": [one for part in parts.values() for one in part.trouble],
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
        end.value = begin + options.seconds
        workers.send("publishers", begin)
        acknowledged = np.frombuffer(await workers.receive("publishers", options.seconds + 300), np.float64)
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
    return Part(due, acknowledged, logs, behind, trouble, sizes)


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
    parser.add_argument("--window", type=int, default=4096, help="of the slow ones: notifications that lie unread")
    parser.add_argument("--queue", type=int, default=8192, help="flow.queue_messages: what waits for a client at most")
    parser.add_argument("--rate", type=float, default=500.0, help="publications per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the two loads")
    parser.add_argument("--workload", default="geofence")
    parser.add_argument("--subscriptions", type=int, default=10_000, help="of the others")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--connection-points", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if options.clients < 3 or min(options.rate, options.seconds, options.slow_rate, options.publishers) <= 0:
        raise SystemExit("bench.slow: at least three clients, and rates, seconds and publishers above 0")
    with tempfile.TemporaryDirectory(prefix="kittiwake-slow-") as directory, contextlib.redirect_stdout(sys.stderr):
        figures = asyncio.run(measure(options, directory))
    show(figures, as_json=options.json)
    return 1 if any(figures[name] for name in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
