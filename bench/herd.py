"""A thundering herd: thousands of clients lose their connections at once, and come back at once.

    uv run python -m bench.herd --clients 2000 --rounds 3 --json

Every client has a subscription for itself alone. All are cut off in the same moment (their transports are aborted) and
reconnect as the SDK does it by itself. A client is back when it has got a notification of something that it has
published itself after the cut, which by the SDK's promise goes out only when its subscription is in force again. Then a
stranger publishes one more thing for each client; who does not get exactly that has lost its subscription.

back_s:    from the cut until clients were back, over all rounds: p50, p95, and the last one.
not_back:  clients that were not within `--timeout` seconds. lost, doubled: of the stranger's publications.
cores:     what the connection points used in a second before the first cut, and in one after the last client was back.
The exit status is 1 if anybody was not back, or anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench import load
from bench.environment import environment
from bench.printing import show
from bench.process import cpu_s, run
from bench.recovery_figures import finite, quantiles
from bench.workers import Workers
from cluster import Client, connect
from cluster.client.address import Connector, parse_url, tcp_connector
from cluster.errors import KittiwakeError

BUSY_S = 1.0
CONNECTING = 200
"""Clients that log in at a time at the beginning, which is no herd."""
DOUBLES_S = 0.3


class Member:
    """One client of the herd. back: when its own publication of this round came; heard: numbers of the stranger's."""

    def __init__(self, url: str, number: int) -> None:
        self.number = number
        self.back: float | None = None
        self.round = 0
        self.heard: list[int] = []
        self._transport: asyncio.Transport | None = None
        self._way = self._watched(tcp_connector(*parse_url(url)[0]))
        self.client: Client = connect(url, client_id=f"herd-{number}", connector=self._way, connect_timeout_s=60.0)

    def _watched(self, connector: Connector) -> Connector:
        async def opened(factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            self._transport = await connector(factory)
            return self._transport

        return opened

    async def begin(self) -> asyncio.Task[None]:
        """Connect and subscribe."""
        await self.client
        stream = await self.client.subscribe(f"member == {self.number}")
        return asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async for notification in stream:
            attributes = notification.attributes
            if "stranger" in attributes:
                self.heard.append(attributes["stranger"])
            elif attributes["round"] == self.round and self.back is None:
                self.back = time.monotonic()

    def cut(self, round: int) -> None:
        """Lose the connection."""
        self.round, self.back = round, None
        if self._transport is not None:
            self._transport.abort()

    async def come_back(self) -> None:
        """Publish for oneself; it goes out when the connection and the subscription are there again."""
        with contextlib.suppress(KittiwakeError):
            await self.client.publish({"member": self.number, "round": self.round})


async def _herd(urls: list[str], numbers: range, timeout_s: float, pipe: Connection) -> None:
    members = [Member(urls[number % len(urls)], number) for number in numbers]
    readers: list[asyncio.Task[None]] = []
    for begin in range(0, len(members), CONNECTING):
        readers += await asyncio.gather(*(member.begin() for member in members[begin : begin + CONNECTING]))
    pipe.send(None)
    loop = asyncio.get_running_loop()
    while (order := await loop.run_in_executor(None, pipe.recv)) is not None:
        what, value = order
        if what == "cut":
            at = time.monotonic()
            for member in members:
                member.cut(value)
            ways = [asyncio.create_task(member.come_back()) for member in members]
            while any(member.back is None for member in members) and time.monotonic() < at + timeout_s:
                await asyncio.sleep(0.01)
            for way in ways:
                way.cancel()
            pipe.send([None if member.back is None else member.back - at for member in members])
        else:
            deadline = time.monotonic() + timeout_s
            while any(value not in member.heard for member in members) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            await asyncio.sleep(DOUBLES_S)
            heard = [member.heard.count(value) for member in members]
            pipe.send((heard.count(0), sum(max(count - 1, 0) for count in heard)))
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*(member.client.close() for member in members), return_exceptions=True)


def herd(urls: list[str], numbers: range, timeout_s: float, pipe: Connection) -> None:
    """A process of clients. Sends None when all are there. Gets ("cut", round) and sends seconds until each was back;
    gets ("heard", number) and sends how many have not heard it, and doubles; gets None, and goes.
    """
    run(_herd(urls, numbers, timeout_s, pipe))


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run a cluster and its herd; return the figures."""
    from actors.launch import launch
    from cluster.config import ClientPort, Config, Layers

    config = Config(
        name="herd",
        data_directory=directory,
        client_port=ClientPort(port=0),
        timing=load.PATIENT,
        layers=Layers(connection_points=options.connection_points),
    )
    workers = Workers()
    names = [f"herd {place}" for place in range(options.processes)]

    async def tell(order: Any) -> list[Any]:
        for name in names:
            workers.send(name, order)
        return [await workers.receive(name) for name in names]

    async with launch(config) as broker:
        members = (await broker.status())["members"]
        pids = [row["pid"] for row in members if row["layer"] == "connection_point"]

        async def cores() -> float:
            before = sum(map(cpu_s, pids))
            await asyncio.sleep(BUSY_S)
            return round((sum(map(cpu_s, pids)) - before) / BUSY_S, 2)

        try:
            for place, name in enumerate(names):
                numbers = range(place, options.clients, options.processes)
                workers.start(name, herd, broker.endpoints, numbers, options.timeout)
            for name in names:
                await workers.receive(name)
            before = await cores()
            back: list[float | None] = []
            lost = doubled = 0
            async with connect(broker.endpoints[0], client_id="stranger") as stranger:
                for number in range(1, options.rounds + 1):
                    back += [one for part in await tell(("cut", number)) for one in part]
                    await stranger.publish_many({"member": n, "stranger": number} for n in range(options.clients))
                    for missing, again in await tell(("heard", number)):
                        lost += missing
                        doubled += again
            after = await cores()
            status = await broker.status()
            for name in names:
                workers.send(name, None)
        finally:
            await asyncio.to_thread(workers.close)
    rounds = [back[at : at + options.clients] for at in range(0, len(back), options.clients)]
    return {
        "clients": options.clients,
        "rounds": options.rounds,
        "connection_points": options.connection_points,
        "back_s": quantiles(back),
        "last_back_s": [quantiles(one)["max"] for one in rounds],
        "not_back": sum(one is None for one in back),
        "lost": lost,
        "doubled": doubled,
        "sessions": status["sessions"],
        "lost_roles": status["lost"],
        "cores": {"before": finite(before), "after": finite(after)},
        "environment": environment(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if somebody was not back, or anything was lost or doubled."""
    parser = argparse.ArgumentParser(prog="bench.herd", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3, help="how often all are cut off")
    parser.add_argument("--connection-points", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="that the clients are in")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to be back, and to hear")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if min(options.clients, options.rounds, options.connection_points, options.processes) < 1 or options.timeout <= 0:
        raise SystemExit("bench.herd: every number must be positive")
    with tempfile.TemporaryDirectory(prefix="kittiwake-herd-") as directory, contextlib.redirect_stdout(sys.stderr):
        figures = asyncio.run(measure(options, directory))
    show(figures, as_json=options.json)
    return 1 if any(figures[name] for name in ("not_back", "lost", "doubled", "lost_roles")) else 0


if __name__ == "__main__":
    sys.exit(main())
