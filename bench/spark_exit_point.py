"""What writing costs an exit point that runs, and when a publisher hears that its publication is stored.

    uv run python -m bench.spark_exit_point --rate 5000 --seconds 8 --stored-rate 1000 --stored-s 8

A cluster on Ray, one process a layer, with one client that subscribes to everything and one that publishes readings of
the generator, so that each matches; first without matched output, then with it (segments of the default age). Prints
one JSON object:

    exit_point_cpu_share        {off, on}: processor seconds of a second that the exit point's process took at --rate,
                                by the kernel's accounts, after --warm-up-s of the same
    rates                       {off, on}: publications a second while that was so; below --rate the broker was busy
    writer_cpu_share            on - off: appending, syncing, sealing, merging, and what it does to the rest
    stored_ack_ms               {p50, p99, max}: from when a publication was due until it is acknowledged as stored
                                (ack="stored": each fdatasync is shared by all that wait), at --stored-rate, one by one
    rows, lost, doubled         of the output: every publication of the second cluster has to be there once
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.process import cpu_s, run, wait_until
from cluster import Client, connect
from cluster.config import ClientPort, Config, OutputSettings
from cluster.output.reader import open_log
from cluster.readings.generator import CityGenerator

TICK_S = 0.01
DISTINCT = 5000


def readings() -> Iterator[dict[str, Any]]:
    """Return readings without end."""
    made = list(CityGenerator(DISTINCT, seed=1))
    while True:
        yield from made


async def paced(rate: float, seconds: float, given: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Yield readings at a rate, a few every hundredth of a second."""
    begin, number = time.monotonic(), 0
    while number < rate * seconds:
        due = min(int((time.monotonic() - begin) * rate) + 1, int(rate * seconds))
        for _ in range(number, due):
            yield next(given)
        number = max(number, due)
        await asyncio.sleep(TICK_S)


async def stored_delays(client: Client, rate: float, seconds: float, given: Iterator[dict[str, Any]]) -> list[float]:
    """Publish one by one, open loop; return how many seconds after it was due each was acknowledged as stored."""
    delays: list[float] = []

    async def one(due: float, reading: dict[str, Any]) -> None:
        await client.publish(reading, ack="stored")
        delays.append(time.monotonic() - due)

    begin = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            await wait_until(due := begin + number / rate)
            tasks.create_task(one(due, next(given)))
            await asyncio.sleep(0)
    return delays


async def consume(notifications: Any) -> None:
    """Read and throw away."""
    async for _ in notifications:
        pass


async def measure(options: argparse.Namespace, directory: Path, output: bool) -> dict[str, Any]:
    """Run a cluster with or without output."""
    from actors.launch import launch

    settings = OutputSettings(path=str(directory / "output")) if output else OutputSettings()
    config = Config(
        name="bench", data_directory=str(directory / "data"), client_port=ClientPort(port=0), output=settings
    )
    found: dict[str, Any] = {}
    async with launch(config, fresh=True) as broker, contextlib.AsyncExitStack() as stack:
        listener = await stack.enter_async_context(connect(broker.endpoints[0], client_id="listener"))
        consumer = asyncio.create_task(consume(await listener.subscribe("exists quantity")))
        publisher = await stack.enter_async_context(connect(broker.endpoints[0], client_id="publisher"))
        (pid,) = (row["pid"] for row in (await broker.status())["members"] if row["layer"] == "exit_point")
        given = readings()
        published = await publisher.publish_many(paced(options.rate, options.warm_up_s, given))
        begin, used = time.monotonic(), cpu_s(pid)
        published += await publisher.publish_many(paced(options.rate, options.seconds, given))
        wall = time.monotonic() - begin
        found["share"] = round((cpu_s(pid) - used) / wall, 4)
        found["rate"] = round(options.rate * options.seconds / wall)
        if output:
            delays = await stored_delays(publisher, options.stored_rate, options.stored_s, given)
            published += len(delays)
            found["stored"] = delays
        found["published"] = published
        consumer.cancel()
    return found


def counts(folder: Path, published: int) -> dict[str, int]:
    """Compare the output with what was published, by one publisher: sequences from 1 on, each once."""
    log = open_log(folder)
    parts = [
        table.column("sequence").to_numpy()
        for slot, there in log.slots().items()
        for table in log.rows(slot, there.first, there.next, ["sequence"])
    ]
    sequences = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    distinct = len(np.unique(sequences))
    return {"rows": published, "lost": published - distinct, "doubled": len(sequences) - distinct}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kittiwake-bench-") as folder:
        off = run(measure(options, Path(folder, "off"), False))
        on = run(measure(options, Path(folder, "on"), True))
        counted = counts(Path(folder, "on", "output"), on["published"])
    stored = 1000 * np.array(on["stored"])
    return {
        "exit_point_cpu_share": {"off": off["share"], "on": on["share"]},
        "rates": {"off": off["rate"], "on": on["rate"]},
        "writer_cpu_share": round(on["share"] - off["share"], 4),
        "stored_ack_ms": {
            "p50": round(float(np.percentile(stored, 50)), 1),
            "p99": round(float(np.percentile(stored, 99)), 1),
            "max": round(float(stored.max()), 1),
        },
        **counted,
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench.spark_exit_point",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--rate", type=float, default=5000.0, help="publications a second, each of which matches")
    made.add_argument("--seconds", type=float, default=8.0)
    made.add_argument("--warm-up-s", type=float, default=2.0)
    made.add_argument("--stored-rate", type=float, default=1000.0)
    made.add_argument("--stored-s", type=float, default=8.0)
    made.add_argument("--folder", type=Path, default=None, help="where it writes; a temporary place by default")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit status."""
    found = measured(parser().parse_args(arguments))
    print(json.dumps(found), flush=True)
    return 1 if found["lost"] or found["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
