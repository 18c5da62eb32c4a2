"""Runs a cluster under load, changes it, and keeps what was seen: no figures yet."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import scaling_load, workloads
from bench.process import busy_s, cpu_s
from bench.scaling_figures import Floats
from bench.scaling_load import Lives, Log
from bench.scaling_oracle import Arrived, Churned, Expected, Integers, arrived, churned, expect

LAYERS = ("connection_points", "access_points", "matchers", "exit_points")
DISTINCT = 2000
"""Publications made; they are sent over and over, so that the oracle has to look at each once."""
CHURN_FILTERS = 4000
CHURN_CLIENTS = 4
SETTLE_S = 2.0
"""From the beginning of the load to the first window: the churned subscriptions are as many as they will be."""
WATCH_S = 0.05
"""Between two looks at the coordinator's status."""
HEARTBEAT_S = 0.5
"""After a change the roles have told their counters within this time."""
ANSWER_S = 300.0
"""What a load generator may take for an answer."""

Slices = dict[str, int]


@dataclass
class Change:
    """One thing to do under load. wish: slots by layer. replace: a layer, of which the lowest slot is replaced."""

    name: str
    wish: Slices = field(default_factory=dict)
    replace: str | None = None


@dataclass
class Observed:
    """A change as it was seen. steps: the view changes, each with the time when it was first seen to be over."""

    change: Change
    begin: float
    requested: float = 0.0
    done: float = 0.0
    end: float = 0.0
    operation: dict[str, Any] = field(default_factory=dict)
    steps: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    parked: dict[str, int] = field(default_factory=dict)
    cores_before: dict[str, float] = field(default_factory=dict)
    """How many processors each role and load generator kept busy, and all processes of the machine together."""


@dataclass
class Material:
    """The workload and its oracle; made once for all runs. matches: of the churned filters."""

    publications: list[dict[str, Any]]
    filters: list[str]
    churn: list[str]
    expected: Expected
    matches: list[Integers]


@dataclass
class Traffic:
    """What the load generators saw. due, handed: of each publication."""

    due: Floats
    handed: Floats
    logs: list[Arrived]
    churn_logs: list[Arrived]
    lives: Churned
    trouble: list[str]
    subscribe_s: float


def make_material(options: argparse.Namespace) -> Material:
    """Make the workload, and find out by brute force what matches what."""
    count = options.subscriptions
    source = workloads.source(options.workload, count + CHURN_FILTERS, DISTINCT, options.seed)
    conditions = list(source.conditions)
    publications: list[dict[str, Any]] = list(source.publications())
    forms = [workloads.form(one) for one in conditions]
    texts = [workloads.text(one) for one in conditions]
    expected = expect(publications, forms[:count], options.clients)
    churn = expect(publications, forms[count:], 1)
    publication = np.repeat(np.arange(len(publications)), churn.counts[:, 0])
    matches = [publication[churn.ids == filter] for filter in range(CHURN_FILTERS)]
    return Material(publications, texts[:count], texts[count:], expected, matches)


class Generators:
    """The three processes of the load, and the pipes to them."""

    def __init__(self, options: argparse.Namespace, material: Material, urls: list[str]) -> None:
        context = mp.get_context("spawn")
        self.end = context.Value("d", float("inf"), lock=False)
        self._context = context
        self._options = options
        self._material = material
        self._urls = urls
        self._processes: list[Any] = []
        self.pids: dict[str, int] = {}
        self._pipes: dict[str, Any] = {}

    def _start(self, name: str, *arguments: Any) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=getattr(scaling_load, name), args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        self._processes.append(process)
        self.pids[name] = process.pid or 0
        self._pipes[name] = ours

    async def _receive(self, name: str) -> Any:
        def wait() -> Any:
            pipe = self._pipes[name]
            if not pipe.poll(ANSWER_S):
                raise TimeoutError(f"the {name} did not answer within {ANSWER_S:g} s")
            return pipe.recv()

        try:
            return await asyncio.to_thread(wait)
        except EOFError:
            raise RuntimeError(f"the {name} ended") from None

    async def load(self) -> float:
        """Open the subscriptions; return the seconds that it took."""
        options, filters = self._options, self._material.filters
        shares = [filters[place :: options.clients] for place in range(options.clients)]
        self._start("subscribers", self._urls, shares, options.publishers)
        seconds: float = await self._receive("subscribers")
        return seconds

    async def begin(self) -> float:
        """Have publications and churn begin; return when they do."""
        options, material, urls = self._options, self._material, self._urls
        count = options.publishers
        self._start("publisher", urls, material.publications, count, options.publish_rate, self.end)
        self._start("churner", urls, material.churn, CHURN_CLIENTS, count, options.subscribe_rate, self.end)
        for name in ("publisher", "churner"):
            await self._receive(name)
        begin = time.monotonic() + 0.2
        for name in ("publisher", "churner"):
            self._pipes[name].send(begin)
        return begin

    async def finish(self, begin: float, subscribe_s: float) -> Traffic:
        """End the load, wait until all has arrived, and return it."""
        self.end.value = time.monotonic()
        handed = np.frombuffer(await self._receive("publisher"), np.float64)
        trouble: list[str] = await self._receive("publisher")
        counts = self._material.expected.counts
        repeats = np.bincount(np.arange(len(handed)) % len(counts), minlength=len(counts))
        self._pipes["subscribers"].send(((counts > 0) * repeats[:, None]).sum(axis=0).tolist())
        logs: list[Log] = await self._receive("subscribers")
        trouble += await self._receive("subscribers")
        self._pipes["churner"].send(None)
        churn_logs: list[Log] = await self._receive("churner")
        lives: Lives = await self._receive("churner")
        trouble += await self._receive("churner")
        self._pipes["publisher"].send(None)
        count = self._options.publishers
        return Traffic(
            begin + np.arange(len(handed)) / self._options.publish_rate,
            handed,
            [arrived(log, count) for log in logs],
            [arrived(log, count) for log in churn_logs],
            churned(lives),
            trouble,
            subscribe_s,
        )

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join(5)


async def carry_out(broker: Any, observed: Observed, strategy: str, timeout_s: float) -> None:
    """Ask for the change and watch until it is over, or the time is."""
    admin = broker.admin
    change = observed.change
    wish: dict[str, Any] = dict(change.wish)
    if change.replace is not None:
        members = (await admin.status())["members"]
        wish["replace"] = [(change.replace, min(row["slot"] for row in members if row["layer"] == change.replace))]
    observed.requested = time.monotonic()
    number = (await admin.scale(**wish, strategy=strategy, wait=False))["number"]
    while True:
        status = await admin.status()
        now = time.monotonic()
        operation = status["operation"]
        assert operation["number"] == number, "somebody else scales this cluster"
        observed.operation = operation
        observed.steps += [(now, step) for step in operation["steps"][len(observed.steps) :]]
        _note_parked(observed, status)
        if operation["state"] != "running" or now - observed.requested > timeout_s:
            observed.done = now
            return
        await asyncio.sleep(WATCH_S)


async def wait_before(broker: Any, generators: Generators, observed: Observed, seconds: float) -> None:
    """Let the load go on, and see how busy everyone is."""
    pids = {f"{row['layer']} {row['slot']}": row["pid"] for row in (await broker.admin.status())["members"]}
    pids |= generators.pids
    used = {name: cpu_s(pid) for name, pid in pids.items()}
    busy = busy_s()
    begin = time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - begin
    observed.cores_before = {name: round((cpu_s(pid) - used[name]) / passed, 2) for name, pid in pids.items()}
    observed.cores_before["machine"] = round((busy_s() - busy) / passed, 2)


def _note_parked(observed: Observed, status: dict[str, Any]) -> None:
    for row in status["members"]:
        for name, value in (row.get("counters") or {}).items():
            if name.startswith("parked_"):
                observed.parked[name] = max(observed.parked.get(name, 0), value)


async def drive(
    options: argparse.Namespace, material: Material, start: Slices, changes: Sequence[Change], strategy: str
) -> tuple[Traffic, list[Observed]]:
    """Run a cluster and carry out the changes one after the other, under one load."""
    from actors.launch import launch
    from cluster.config import ClientLimits, ClientPort, Config, Layers

    each = -(-options.subscriptions // options.clients)
    with tempfile.TemporaryDirectory(prefix="kittiwake-bench-") as directory:
        config = Config(
            name="bench",
            data_directory=directory,
            client_port=ClientPort(port=0),
            client_limits=ClientLimits(subscriptions=max(10_000, each)),
            layers=Layers(**start),
        )
        async with launch(config, fresh=True) as broker:
            generators = Generators(options, material, broker.endpoints)
            try:
                subscribe_s = await generators.load()
                begin = await generators.begin()
                seen: list[Observed] = []
                await asyncio.sleep(begin + SETTLE_S - time.monotonic())
                for change in changes:
                    observed = Observed(change, begin=time.monotonic())
                    seen.append(observed)
                    await wait_before(broker, generators, observed, options.seconds_before)
                    await carry_out(broker, observed, strategy, options.timeout)
                    await asyncio.sleep(max(options.seconds_after, HEARTBEAT_S))
                    observed.end = time.monotonic()
                    _note_parked(observed, await broker.admin.status())
                    if observed.operation["state"] != "done":
                        break
                return await generators.finish(begin, subscribe_s), seen
            finally:
                generators.close()
