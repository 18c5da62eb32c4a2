"""The whole broker under load: publisher -> connection point -> access point -> matchers -> exit point -> subscribers.

    uv run python -m bench.pipeline --workload geofence --subscriptions 10000 --clients 10 --rate max --seconds 10

Starts a real cluster on Ray, one process that holds all subscriber connections, and one that publishes. Filters are
dealt to the clients in turn. With a rate the load is open loop: publication i is due at start + i / rate whatever the
broker does, and its delay counts from then; with `max` it counts from when the publisher handed it to the SDK.

What arrives is compared with what the vectorised brute force (bench.match's `numpy` engine) says should: per client the
publications, how many subscriptions match each, and the sum of their numbers. lost, doubled and out_of_order must be 0;
if not, or if a notification names the wrong subscriptions, the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing as mp
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from bench.environment import environment
from bench.printing import show
from bench.process import cpu_s, rss_mb, run, wait_until
from bench.scaling_oracle import notifications_due
from cluster import connect, parse
from cluster.config import ClientPort, Config, Layers

DISTINCT = 4000
"""Publications made; they are sent over and over, so that the oracle has to look at each once."""
QUIET_S = 15.0
"""Without a notification for so long, what is missing is lost."""
WARM_UP = 2000

Expected = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Per distinct publication and client: how many subscriptions match, and the sum of their numbers."""


# Subscribers ---------------------------------------------------------------------------------------------------


async def _subscribe(url: list[str], shares: list[list[str]], pipe: Connection) -> None:
    gc.freeze()
    clients = [connect(url[place % len(url)], client_id=f"subscriber-{place}") for place in range(len(shares))]
    for client in clients:
        await client
    begin = time.perf_counter()
    groups = await asyncio.gather(
        *(client.subscribe_many(share) for client, share in zip(clients, shares, strict=True))
    )
    pipe.send(time.perf_counter() - begin)
    logs = [(array("Q"), array("I"), array("q"), array("d")) for _ in groups]
    last = [time.monotonic()]

    async def read(place: int) -> None:
        sequences, counts, sums, times = logs[place]
        clock = time.monotonic
        async for notification in groups[place]:
            now = clock()
            ids = notification.subscription_ids
            sequences.append(notification.sequence)
            counts.append(len(ids))
            sums.append(sum(ids))
            times.append(now)
            last[0] = now

    readers = [asyncio.create_task(read(place)) for place in range(len(groups))]
    loop = asyncio.get_running_loop()
    wanted: list[int] = await loop.run_in_executor(None, pipe.recv)
    while time.monotonic() - last[0] < QUIET_S:
        if all(len(log[0]) >= count for log, count in zip(logs, wanted, strict=True)):
            break
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)  # doubles, if any, arrive as well
    dropped = sum(sum(client.dropped.values()) for client in clients)
    pipe.send([[column.tobytes() for column in log] for log in logs])
    pipe.send(dropped)
    for reader in readers:
        reader.cancel()
    for client in clients:
        await client.close()


def subscribers(url: list[str], shares: list[list[str]], pipe: Connection) -> None:
    """The subscribers' process."""
    run(_subscribe(url, shares, pipe))


# Publisher -----------------------------------------------------------------------------------------------------


async def _publish(
    url: list[str], publications: list[dict[str, Any]], rate: float | None, seconds: float, pipe: Connection
) -> None:
    async with connect(url[0], client_id="publisher") as client:
        await client.publish_many(itertools.islice(itertools.cycle(publications), WARM_UP))
        sent = array("d")
        gc.freeze()
        begin = time.monotonic()
        if rate is None:
            await client.publish_many(_timed(publications, begin + seconds, sent))
        else:
            await _open_loop(client, publications, rate, seconds, begin, sent)
        end = time.monotonic()
        pipe.send((begin, end, sent.tobytes()))
        pipe.recv()


def _timed(publications: list[dict[str, Any]], end: float, sent: array[float]) -> Iterator[dict[str, Any]]:
    clock = time.monotonic
    for publication in itertools.islice(itertools.cycle(publications), WARM_UP % len(publications), None):
        now = clock()
        if now >= end:
            return
        sent.append(now)
        yield publication


async def _open_loop(
    client: Any, publications: list[dict[str, Any]], rate: float, seconds: float, begin: float, sent: array[float]
) -> None:
    """Publish on schedule."""
    cycle = itertools.islice(itertools.cycle(publications), WARM_UP % len(publications), None)
    for place in range(int(rate * seconds)):
        due = begin + place / rate
        await wait_until(due)
        sent.append(due)
        await client.publish(next(cycle), ack="none")
        await asyncio.sleep(0)
    while client.unacknowledged:
        await asyncio.sleep(0.001)


def publisher(
    url: list[str], publications: list[dict[str, Any]], rate: float | None, seconds: float, pipe: Connection
) -> None:
    """The publisher's process."""
    run(_publish(url, publications, rate, seconds, pipe))


# Oracle --------------------------------------------------------------------------------------------------------


def expected(publications: list[dict[str, Any]], filters: list[str], clients: int) -> Expected:
    """Return what each client should get of each distinct publication, by brute force."""
    from bench.match import make_engine
    from cluster.matching import Batch

    engine = make_engine("numpy")
    for place, text in enumerate(filters):
        engine.add(place, parse(text).normal_form, 0)
    counts = np.zeros((len(publications), clients), np.int32)
    sums = np.zeros((len(publications), clients), np.int64)
    packed = [msgpack.packb(publication) for publication in publications]
    for begin in range(0, len(packed), 250):
        part = packed[begin : begin + 250]
        hits = engine.match(Batch(np.array([len(one) for one in part], "<u4").tobytes(), b"".join(part)))
        publication = hits.publication.astype(np.int64) + begin
        subscription = hits.subscription.astype(np.int64)
        np.add.at(counts, (publication, subscription % clients), 1)
        # The SDK numbers a client's subscriptions from 0 in the order in which it opens them.
        np.add.at(sums, (publication, subscription % clients), subscription // clients)
    return counts, sums


def judge(log: list[bytes], place: int, oracle: Expected, total: int) -> dict[str, int]:
    """Compare what a client got with what it should have got of publications 1 to `total`."""
    counts, sums = oracle
    sequences = np.frombuffer(log[0], np.uint64).astype(np.int64)
    distinct = (np.arange(total)) % len(counts)
    wanted = np.flatnonzero(counts[distinct, place]) + 1
    seen = np.unique(sequences)
    which = (sequences - 1) % len(counts)
    wrong = (np.frombuffer(log[1], np.uint32) != counts[which, place]) | (
        np.frombuffer(log[2], np.int64) != sums[which, place]
    )
    return {
        "lost": len(np.setdiff1d(wanted, seen, assume_unique=True)),
        "doubled": len(sequences) - len(seen),
        "out_of_order": int((np.diff(sequences) < 0).sum()),
        "wrong": int(wrong.sum()),
    }


# Measuring -----------------------------------------------------------------------------------------------------


def usage(pid: int) -> tuple[float, float]:
    """Return a process's CPU seconds and resident megabytes."""
    return cpu_s(pid), rss_mb(pid)


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run one measurement, with its data in `directory`, and return its figures."""
    from actors.launch import launch
    from bench.workloads import workload

    load = workload(options.workload, options.subscriptions, DISTINCT, options.seed)
    shares = [load.filters[place :: options.clients] for place in range(options.clients)]
    rate = None if options.rate == "max" else float(options.rate)
    config = Config(
        name="bench",
        data_directory=directory,
        client_port=ClientPort(port=0),
        layers=Layers(
            connection_points=options.connection_points,
            access_points=options.access_points,
            matchers=options.matchers,
            exit_points=options.exit_points,
        ),
    )
    context = mp.get_context("spawn")
    loop = asyncio.get_running_loop()
    async with launch(config, fresh=True) as broker:
        # The first connection point has the publisher; subscribers are dealt over all.
        ours, theirs = context.Pipe()
        reader = context.Process(target=subscribers, args=(broker.endpoints, shares, theirs), daemon=True)
        reader.start()
        subscribe_s: float = await loop.run_in_executor(None, ours.recv)
        pids = {f"{row['layer']} {row['slot']}": row["pid"] for row in (await broker.status())["members"]} | {
            "subscribers": reader.pid
        }
        before = {name: usage(pid) for name, pid in pids.items()}
        mine, its = context.Pipe()
        writer = context.Process(
            target=publisher, args=(broker.endpoints, load.publications, rate, options.seconds, its), daemon=True
        )
        writer.start()
        begin, end, sent_bytes = await loop.run_in_executor(None, mine.recv)
        after = {name: usage(pid) for name, pid in pids.items()}
        publisher_usage = usage(writer.pid)  # type: ignore[arg-type]
        sent = np.frombuffer(sent_bytes, np.float64)
        total = len(sent) + WARM_UP
        oracle = await loop.run_in_executor(None, expected, load.publications, load.filters, options.clients)
        ours.send(notifications_due(oracle[0], total))
        logs: list[list[bytes]] = await loop.run_in_executor(None, ours.recv)
        dropped: int = await loop.run_in_executor(None, ours.recv)
        mine.send(None)
        writer.join(10)
        reader.join(10)
    verdicts = [judge(log, place, oracle, total) for place, log in enumerate(logs)]
    delays = [np.zeros(0)]
    for log in logs:
        places = np.frombuffer(log[0], np.uint64).astype(np.int64) - 1 - WARM_UP
        timed = places >= 0
        delays.append((np.frombuffer(log[3], np.float64)[timed] - sent[places[timed]]) * 1e3)
    delay = np.concatenate(delays)
    last = max([end, *(float(np.frombuffer(log[3], np.float64)[-1]) for log in logs if log[3])])
    figures: dict[str, Any] = {
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "clients": options.clients,
        "layers": f"{options.connection_points}-{options.access_points}-{options.matchers}-{options.exit_points}",
        "rate": options.rate,
        "seconds": options.seconds,
        "published": len(sent),
        "publications_per_second": round(len(sent) / (last - begin), 1),
        "notifications_per_second": round(len(delay) / (last - begin), 1),
        "notifications_per_publication": round(len(delay) / max(len(sent), 1), 3),
        "ids_per_notification": round(float(oracle[0].sum() / max((oracle[0] > 0).sum(), 1)), 2),
        "delay_ms": {
            "p50": _quantile(delay, 0.5),
            "p99": _quantile(delay, 0.99),
            "max": _quantile(delay, 1.0),
        },
        **{key: sum(verdict[key] for verdict in verdicts) for key in ("lost", "doubled", "out_of_order", "wrong")},
        "dropped": dropped,
        "subscribe_us": round(subscribe_s / options.subscriptions * 1e6, 1),
        "cpu_s": {name: round(after[name][0] - before[name][0], 2) for name in pids}
        | {"publisher": round(publisher_usage[0], 2)},
        "rss_mb": {name: round(after[name][1], 1) for name in pids} | {"publisher": round(publisher_usage[1], 1)},
        "environment": environment(),
    }
    return figures


def _quantile(delay: NDArray[np.float64], q: float) -> float | None:
    return round(float(np.quantile(delay, q)), 3) if len(delay) else None


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if anything was lost, doubled, out of order or wrong."""
    parser = argparse.ArgumentParser(prog="bench.pipeline", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="geofence")
    parser.add_argument("--subscriptions", type=int, default=10_000, help="filters, over all clients")
    parser.add_argument("--clients", type=int, default=10, help="subscriber connections")
    parser.add_argument("--connection-points", type=int, default=1)
    parser.add_argument("--access-points", type=int, default=1)
    parser.add_argument("--matchers", type=int, default=1)
    parser.add_argument("--exit-points", type=int, default=1)
    parser.add_argument("--rate", default="max", help="publications per second, open loop; or max")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kittiwake-bench-") as directory:
        figures = asyncio.run(measure(options, directory))
    show(figures, as_json=options.json)
    failed = figures["lost"] or figures["doubled"] or figures["out_of_order"] or figures["wrong"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
