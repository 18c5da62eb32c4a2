"""What hostile clients cost the others: a victim's delays, and the roles' memory, without and under attack.

    uv run python -m bench.hostile --seconds 60 --json

Starts a cluster as in configs/local.yaml, on any free port, without a matched output: joining its segments takes some
20 MB of an exit point now and then, attack or not. A victim publishes at a fixed rate, open loop; a victim
subscriber notes when each publication arrives, its delay counted from when it was due. The attacks of `bench.attacks`
run one after the other, each after as long a time without any, from one process at nice 10: so that what is measured is
the broker and not the generator beside it, and whatever else the machine does falls on both kinds of time alike.
Meanwhile a fresh client logs in twice a second.

issue: the figures of the three attacks that the broker is to shrug off: random bytes, every type of frame cut at every
byte, 100 MB in the first frame; their p99 against the undisturbed one, and the largest growth of any role.

rss_growth_mb is the largest resident size of a role seen under attack, less the one at its beginning. The exit status
is 1 if the victim lost or doubled anything.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing as mp
import os
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.attacks import ATTACKS, Attack
from bench.environment import environment
from bench.load import PATIENT
from bench.process import rss_mb, run, wait_until
from cluster import connect
from cluster.errors import KittiwakeError

QUIET_S = 10.0
"""Without a notification for so long, what is missing is lost."""
WARM_UP_S = 2.0
SETTLE_S = 0.5
"""After an attack: what it has left behind is dealt with in its own time, not in the next undisturbed one."""
ISSUE = ("random bytes", "cut and closed", "cut and held", "100 MB first frame")
SAMPLE_S = 0.1
KNOCK_S = 0.5
NICE = 10


# The victims ---------------------------------------------------------------------------------------------------------


async def _publish(url: str, rate: float, pipe: Connection) -> None:
    """Publish on schedule until told to stop."""
    async with connect(url, client_id="victim-publisher") as client:
        due_times = array("d")
        gc.freeze()
        begin = time.monotonic()
        while not pipe.poll():
            due = begin + len(due_times) / rate
            await wait_until(due)
            await client.publish({"victim": len(due_times), "no2": 45.0, "station": "Plaza de España"}, ack="none")
            due_times.append(due)
            await asyncio.sleep(0)
        while client.unacknowledged:
            await asyncio.sleep(0.001)
        pipe.send((due_times.tobytes(), client.reconnections))


def publisher(url: str, rate: float, pipe: Connection) -> None:
    """The victim publisher's process."""
    run(_publish(url, rate, pipe))


async def _subscribe(url: str, pipe: Connection) -> None:
    async with connect(url, client_id="victim-subscriber") as client:
        subscription = await client.subscribe("victim >= 0")
        numbers, times = array("q"), array("d")
        gc.freeze()

        async def read() -> None:
            async for notification in subscription:
                now = time.monotonic()
                if notification.publisher == "victim-publisher":
                    numbers.append(int(notification.attributes["victim"] or 0))
                    times.append(now)

        reading = asyncio.create_task(read())
        pipe.send(None)
        wanted: int = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        while len(numbers) < wanted and (not times or time.monotonic() - times[-1] < QUIET_S):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)  # doubles, if any, arrive as well
        reading.cancel()
        pipe.send((numbers.tobytes(), times.tobytes(), sum(client.dropped.values()), client.reconnections))


def subscriber(url: str, pipe: Connection) -> None:
    """The victim subscriber's process."""
    run(_subscribe(url, pipe))


# The attackers -------------------------------------------------------------------------------------------------------


async def _attack(
    address: tuple[str, int], names: list[str], seconds: float, scale: float, seed: int, pipe: Connection
) -> None:
    total = sum(ATTACKS[name][0] for name in names)
    pipe.send(None)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    for name in names:
        weight, work = ATTACKS[name]
        share = seconds * weight / total
        attack = Attack(*address, random.Random(f"{seed} {name}"), share, scale)
        calm = time.monotonic()
        await asyncio.sleep(share)
        begin = time.monotonic()
        await work(attack)
        await asyncio.sleep(SETTLE_S)
        pipe.send((name, calm, begin, time.monotonic(), attack.tally))
    pipe.send(None)


def attacker(
    address: tuple[str, int], names: list[str], seconds: float, scale: float, seed: int, pipe: Connection
) -> None:
    """The attackers' process."""
    os.nice(NICE)
    run(_attack(address, names, seconds, scale, seed, pipe))


# Measuring -----------------------------------------------------------------------------------------------------------


class Sampler:
    """The roles' resident sizes over time. `rows`: (when, megabytes per role)."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.rows: list[tuple[float, dict[str, float]]] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.rows.append((time.monotonic(), {name: rss_mb(pid) for name, pid in self.pids.items()}))
            await asyncio.sleep(SAMPLE_S)

    def growth(self, begin: float, end: float) -> dict[str, float]:
        """Return, per role, the largest size between two times less the last one before."""
        base = [sizes for when, sizes in self.rows if when <= begin][-1]
        seen = [sizes for when, sizes in self.rows if begin <= when <= end] or [base]
        return {name: round(max(sizes[name] for sizes in seen) - base[name], 2) for name in self.pids}


class Knocker:
    """A new client that logs in, asks for something and leaves, again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.times_ms: list[tuple[float, float]] = []
        self.failures: list[str] = []

    async def run(self) -> None:
        """Knock until cancelled."""
        for number in range(1 << 30):
            begin = time.monotonic()
            try:
                async with connect(self._url, client_id=f"knock-{number}") as client:
                    await client.subscribe("knock > 0")
                    self.times_ms.append((begin, (time.monotonic() - begin) * 1e3))
            except KittiwakeError as error:
                self.failures.append(str(error))
            await asyncio.sleep(KNOCK_S)


def quantiles(delays_ms: NDArray[np.float64] | list[float]) -> dict[str, float | None]:
    """Return p50, p99 and the maximum."""
    if not len(delays_ms):
        return {"p50": None, "p99": None, "max": None}
    return {name: round(float(np.quantile(delays_ms, q)), 3) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run one measurement, with its data in `directory`, and return its figures."""
    import msgspec

    from actors.launch import launch
    from cluster.config import OutputSettings, load_config

    config = load_config(Path(__file__).parent.parent / "configs" / "local.yaml")
    config = msgspec.structs.replace(
        config,
        name="hostile",
        data_directory=directory,
        client_port=msgspec.structs.replace(config.client_port, port=0),
        timing=PATIENT,
        output=OutputSettings(),
    )
    names = options.attacks.split(",") if options.attacks else list(ATTACKS)
    loads_before = os.getloadavg()
    context = mp.get_context("spawn")
    loop = asyncio.get_running_loop()

    async def told(pipe: Connection) -> Any:
        return await loop.run_in_executor(None, pipe.recv)

    async with launch(config, fresh=True) as broker:
        url = broker.endpoints[0]
        host, _, port = url.removeprefix("kittiwake://").rpartition(":")
        reader_pipe, theirs = context.Pipe()
        reader = context.Process(target=subscriber, args=(url, theirs), daemon=True)
        reader.start()
        await told(reader_pipe)
        writer_pipe, theirs = context.Pipe()
        writer = context.Process(target=publisher, args=(url, options.rate, theirs), daemon=True)
        writer.start()
        attack_pipe, theirs = context.Pipe()
        args = ((host, int(port)), names, options.seconds / 2, options.scale, options.seed, theirs)
        enemy = context.Process(target=attacker, args=args, daemon=True)
        enemy.start()
        await told(attack_pipe)  # its start is not a part of the attack
        await asyncio.sleep(WARM_UP_S)
        sampler = Sampler({f"{row['layer']} {row['slot']}": row["pid"] for row in (await broker.status())["members"]})
        knocker = Knocker(url)
        helpers = [asyncio.create_task(sampler.run()), asyncio.create_task(knocker.run())]
        attack_pipe.send(None)
        windows: list[tuple[str, float, float, float, Any]] = []
        while (row := await told(attack_pipe)) is not None:
            windows.append(row)
        await asyncio.sleep(SETTLE_S)
        for helper in helpers:
            helper.cancel()
        status = await broker.status()
        writer_pipe.send(None)
        due_bytes, writer_reconnections = await told(writer_pipe)
        due = np.frombuffer(due_bytes, np.float64)
        reader_pipe.send(len(due))
        number_bytes, time_bytes, dropped, reader_reconnections = await told(reader_pipe)
        for process in (writer, reader, enemy):
            process.join(10)
    numbers = np.frombuffer(number_bytes, np.int64)
    arrivals = np.frombuffer(time_bytes, np.float64)
    sent = due[numbers]
    delays = (arrivals - sent) * 1e3

    def between(*spans: tuple[float, float]) -> dict[str, float | None]:
        chosen = np.zeros(len(sent), np.bool_)
        for begin, end in spans:
            chosen |= (sent >= begin) & (sent < end)
        return quantiles(delays[chosen])

    def knocks(*spans: tuple[float, float]) -> dict[str, float | None]:
        return quantiles([took for when, took in knocker.times_ms if any(begin <= when < end for begin, end in spans)])

    calm = [(quiet, begin) for _, quiet, begin, _, _ in windows]
    hostile = {name: (begin, end) for name, _, begin, end, _ in windows}
    before, during = between(*calm), between(*hostile.values())
    named = [hostile[name] for name in ISSUE if name in hostile]
    issue_p99 = between(*named)["p99"]
    attacks = {
        name: {
            "seconds": round(end - begin, 1),
            "connections": sum(tally.ends.values()),
            "ends": dict(tally.ends.most_common()),
            "rejected_publications": tally.rejected,
            "refused_requests": dict(tally.refused),
            "sent_mb": round(tally.sent_bytes / 1e6, 1),
            "rss_growth_mb": sampler.growth(begin, end),
            "victim_before_ms": between((quiet, begin)),
            "victim_ms": between((begin, end)),
        }
        for name, quiet, begin, end, tally in windows
    }
    return {
        "rate": options.rate,
        "seconds": options.seconds,
        "scale": options.scale,
        "published": len(due),
        "p50_before_ms": before["p50"],
        "p50_during_ms": during["p50"],
        "p99_before_ms": before["p99"],
        "p99_during_ms": during["p99"],
        "p99_ratio": _ratio(during["p99"], before["p99"]),
        "max_before_ms": before["max"],
        "max_during_ms": during["max"],
        "lost": len(np.setdiff1d(np.arange(len(due)), numbers)),
        "doubled": len(numbers) - len(np.unique(numbers)),
        "out_of_order": int((np.diff(numbers) < 0).sum()),
        "dropped": dropped,
        "victim_reconnections": writer_reconnections + reader_reconnections,
        "login_ms": {"before": knocks(*calm), "during": knocks(*hostile.values())},
        "logins_failed": len(knocker.failures),
        "issue": {
            "p99_ms": issue_p99,
            "p99_ratio": _ratio(issue_p99, before["p99"]),
            "rss_growth_mb": max(
                [0.0, *(size for begin, end in named for size in sampler.growth(begin, end).values())]
            ),
        },
        "rss_growth_mb": sampler.growth(windows[0][2], windows[-1][3]),
        "rss_mb": {name: round(size, 1) for name, size in sampler.rows[-1][1].items()},
        "lost_roles": status["lost"],
        "attacks": attacks,
        "load_average": [round(load, 2) for load in loads_before],
        "environment": environment(),
    }


def _ratio(during: float | None, before: float | None) -> float | None:
    return round(during / before, 2) if during and before else None


def table(figures: dict[str, Any]) -> Iterable[str]:
    """Return the figures as lines for people."""
    yield f"{'attack':20} {'connections':>11}  {'p99 ms before, in it':>20}  {'RSS growth, MB':28}  how they ended"
    for name, row in figures["attacks"].items():
        role, growth = max(row["rss_growth_mb"].items(), key=lambda item: item[1])
        ends = ", ".join(f"{end} {count:,}" for end, count in row["ends"].items())
        victim = f"{row['victim_before_ms']['p99']} {row['victim_ms']['p99']}"
        yield f"{name:20} {row['connections']:11,}  {victim:>20}  {f'{growth:.1f} ({role})':28}  {ends}"
    yield ""
    for key, value in figures.items():
        if key != "attacks":
            yield f"{key:22} {value}"


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if the victim lost or doubled anything."""
    parser = argparse.ArgumentParser(prog="bench.hostile", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="half of it undisturbed, half under attack")
    parser.add_argument("--rate", type=float, default=500.0, help="the victim's publications per second")
    parser.add_argument("--scale", type=float, default=1.0, help="of the attacks' full numbers of connections")
    parser.add_argument("--attacks", default="", help=f"comma-separated, of: {', '.join(ATTACKS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kittiwake-hostile-") as directory:
        figures = asyncio.run(measure(options, directory))
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(table(figures)))
    return 1 if figures["lost"] or figures["doubled"] or figures["out_of_order"] else 0


if __name__ == "__main__":
    sys.exit(main())
