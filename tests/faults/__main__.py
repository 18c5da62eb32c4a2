"""Cell T6 at full size: many publishers through bad links to a cluster on Ray, and what became of their publications.

    uv run python -m tests.faults --clients 200 --seconds 60 --seed 1 --json

Publishers reach two connection points through four proxies, two each; every now and then one proxy does one of the
things of `test_link.py` to whoever is on it. Subscribers have good links. At the end everything is healed, and within
30 s all must be acknowledged and delivered: once, and in each publisher's order. The exit status is 1 if not.

away_s: how long publishers were without a connection each time, from when they noticed; p50, p95, max.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from bench.printing import show
from bench.recovery_figures import quantiles
from cluster import Client, connect
from cluster.client.address import parse_url, tcp_connector
from cluster.errors import KittiwakeError
from tests.faults.proxy import FaultProxy
from tests.faults.test_link import CUTTING, LASTING

PROXIES = 4
SUBSCRIBERS = 4
HEARTBEAT_MS = 500
DRAIN_S = 30.0
LOOK_S = 0.01


class Publisher:
    """One client and what it has had acknowledged: its publications are numbered from 0."""

    def __init__(self, place: int, proxies: list[FaultProxy]) -> None:
        self.place = place
        first, second = proxies[place % PROXIES], proxies[(place + 1) % PROXIES]
        self.client: Client = connect(f"{first.url},127.0.0.1:{second.port}", client_id=f"p{place}")
        self.published = self.acknowledged = 0
        self.trouble: str | None = None
        self.away: list[float] = []
        self._gone_at: float | None = None

    async def publish(self, rate: float, end: float) -> None:
        """Publish at a rate until the time is over, then wait for the last acknowledgement."""
        tasks: set[asyncio.Task[None]] = set()
        while time.monotonic() < end:
            tasks.add(asyncio.create_task(self._publish(self.published)))
            self.published += 1
            tasks = {task for task in tasks if not task.done()}
            await asyncio.sleep(1 / rate)
        if tasks:
            await asyncio.wait(tasks)

    async def _publish(self, number: int) -> None:
        try:
            await self.client.publish({"place": self.place, "n": number})
            self.acknowledged += 1
        except KittiwakeError as error:
            self.trouble = f"{self.client.client_id}: {error}"

    def look(self, now: float) -> None:
        """Note whether there is a connection."""
        if self.client.connected:
            if self._gone_at is not None:
                self.away.append(now - self._gone_at)
                self._gone_at = None
        elif self._gone_at is None:
            self._gone_at = now


async def _read(stream: Any, got: dict[int, list[int]]) -> None:
    async for notification in stream:
        attributes = notification.attributes
        got.setdefault(int(attributes["place"]), []).append(int(attributes["n"]))


async def _faults(proxies: list[FaultProxy], rng: random.Random, made: Counter[str], interval_s: float) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * interval_s)
        proxy = rng.choice(proxies)
        if rng.random() < 0.4:
            proxy.heal()
        name = rng.choice([*LASTING, *CUTTING])
        made[name] += 1
        await (LASTING.get(name) or CUTTING[name])(proxy, rng)


async def _look(publishers: list[Publisher]) -> None:
    while True:
        now = time.monotonic()
        for publisher in publishers:
            publisher.look(now)
        await asyncio.sleep(LOOK_S)


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run a cluster and the bad links; return the figures."""
    from actors.launch import launch
    from cluster.config import ClientPort, Config, Layers, Timing

    rng = random.Random(f"faults {options.seed}")
    config = Config(
        name="faults",
        data_directory=directory,
        client_port=ClientPort(port=0),
        layers=Layers(connection_points=2),
        timing=Timing(client_heartbeat_ms=HEARTBEAT_MS),
    )
    made: Counter[str] = Counter()
    got: dict[int, list[int]] = {}
    async with launch(config) as broker, contextlib.AsyncExitStack() as stack:
        ways = [tcp_connector(*parse_url(broker.endpoints[place % 2])[0]) for place in range(PROXIES)]
        proxies = [await stack.enter_async_context(FaultProxy(way, rng=rng)) for way in ways]
        tasks: list[asyncio.Task[Any]] = []
        share = -(-options.clients // SUBSCRIBERS)
        for place in range(SUBSCRIBERS):
            client = connect(broker.endpoints[place % 2], client_id=f"subscriber-{place}")
            await stack.enter_async_context(client)
            stream = await client.subscribe(f"place >= {place * share} and place < {(place + 1) * share}")
            tasks.append(asyncio.create_task(_read(stream, got)))
        publishers = [Publisher(place, proxies) for place in range(options.clients)]
        for begin in range(0, len(publishers), 50):
            await asyncio.gather(*(one.client._start() for one in publishers[begin : begin + 50]))
        end = time.monotonic() + options.seconds
        publishing = [asyncio.create_task(one.publish(options.rate / options.clients, end)) for one in publishers]
        trouble = asyncio.create_task(_faults(proxies, rng, made, options.interval))
        looking = asyncio.create_task(_look(publishers))
        await asyncio.sleep(options.seconds)
        trouble.cancel()
        for proxy in proxies:
            proxy.heal()
            proxy.reset()  # what is half-open or held is over
        _, late = await asyncio.wait(publishing, timeout=DRAIN_S)
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and sum(map(len, got.values())) < sum(one.acknowledged for one in publishers):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)  # doubles, if any, arrive as well
        for task in (*tasks, *late, looking):
            task.cancel()
        await asyncio.gather(*(one.client.close() for one in publishers), return_exceptions=True)
    away = [seconds for one in publishers for seconds in one.away]
    figures = judge({one.place: one.published for one in publishers}, got)
    return {
        "clients": options.clients,
        "seconds": options.seconds,
        "seed": options.seed,
        "published": sum(one.published for one in publishers),
        "acknowledged": sum(one.acknowledged for one in publishers),
        "unacknowledged": sum(one.published - one.acknowledged for one in publishers),
        **figures,
        "faults": dict(sorted(made.items())),
        "reconnections": sum(one.client.reconnections for one in publishers),
        "away_s": quantiles(away),
        "trouble": [one.trouble for one in publishers if one.trouble is not None],
    }


def judge(published: dict[int, int], got: dict[int, list[int]]) -> dict[str, int]:
    """Return what was lost, doubled and out of order; by publisher's place, how many it published and what came."""
    lost = doubled = out_of_order = strangers = 0
    for place, count in published.items():
        numbers = got.get(place, [])
        firsts = list(dict.fromkeys(numbers))
        lost += count - len(set(firsts) & set(range(count)))
        strangers += len(set(firsts) - set(range(count)))
        doubled += len(numbers) - len(firsts)
        highest = -1
        for number in firsts:
            out_of_order += number < highest
            highest = max(highest, number)
    strangers += sum(len(numbers) for place, numbers in got.items() if place not in published)
    return {"lost": lost, "doubled": doubled, "out_of_order": out_of_order, "strangers": strangers}


WRONG = ("unacknowledged", "lost", "doubled", "out_of_order", "strangers", "trouble")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="tests.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1000.0, help="publications per second, over all clients")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between faults, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if min(options.clients, options.rate, options.seconds, options.interval) <= 0:
        raise SystemExit("tests.faults: every number must be positive")
    with tempfile.TemporaryDirectory(prefix="kittiwake-faults-") as directory, contextlib.redirect_stdout(sys.stderr):
        figures = asyncio.run(measure(options, directory))
    show(figures, as_json=options.json)
    return 1 if any(figures[name] for name in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
