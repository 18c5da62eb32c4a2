"""Runs a cluster under load, changes it, and keeps what was seen: no figures yet."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import load, scaling_load, workloads
from bench.load import Log
from bench.process import busy_s, cpu_s
from bench.scaling_figures import Floats
from bench.scaling_load import Lives
from bench.scaling_oracle import Arrived, Churned, Expected, Integers, arrived, churned, expect, notifications_due
from bench.workers import Workers

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
    """The three processes of the load."""

    def __init__(self, options: argparse.Namespace, material: Material, urls: list[str]) -> None:
        self._workers = Workers()
        self.end = self._workers.context.Value("d", float("inf"), lock=False)
        self._options = options
        self._material = material
        self._urls = urls
        self.pids = self._workers.pids
        self.close = self._workers.close

    async def load(self) -> float:
        """Open the subscriptions; return the seconds that it took."""
        options, filters = self._options, self._material.filters
        shares = [filters[place :: options.clients] for place in range(options.clients)]
        self._workers.start("subscribers", load.subscribers, self._urls, shares, options.publishers)
        seconds: float = await self._workers.receive("subscribers")
        return seconds

    async def begin(self) -> float:
        """Have publications and churn begin; return when they do."""
        options, material, urls = self._options, self._material, self._urls
        count = options.publishers
        self._workers.start(
            "publisher", scaling_load.publisher, urls, material.publications, count, options.publish_rate, self.end
        )
        self._workers.start(
            "churner",
            scaling_load.churner,
            urls,
            material.churn,
            CHURN_CLIENTS,
            count,
            options.subscribe_rate,
            self.end,
        )
        for name in ("publisher", "churner"):
            await self._workers.receive(name)
        begin = time.monotonic() + 0.2
        for name in ("publisher", "churner"):
            self._workers.send(name, begin)
        return begin

    async def finish(self, begin: float, subscribe_s: float) -> Traffic:
        """End the load, wait until all has arrived, and return it."""
        self.end.value = time.monotonic()
        handed = np.frombuffer(await self._workers.receive("publisher"), np.float64)
        trouble: list[str] = await self._workers.receive("publisher")
        self._workers.send("subscribers", notifications_due(self._material.expected.counts, len(handed)))
        logs: list[Log] = await self._workers.receive("subscribers")
        trouble += await self._workers.receive("subscribers")
        self._workers.send("churner", None)
        churn_logs: list[Log] = await self._workers.receive("churner")
        lives: Lives = await self._workers.receive("churner")
        trouble += await self._workers.receive("churner")
        self._workers.send("publisher", None)
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
        observed.steps += [(now, step) for step in steps_over(operation)[len(observed.steps) :]]
        _note_parked(observed, status)
        if operation["state"] != "running" or now - observed.requested > timeout_s:
            observed.done = now
            return
        await asyncio.sleep(WATCH_S)


def steps_over(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the view changes of an operation that are over; one is told of from its decision on."""
    ends = {"retire", "abort"}
    return [step for step in operation["steps"] if ends & step["phases_ms"].keys()]


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
    from cluster.config import ClientLimits, ClientPort, Config, Layers, RaySettings

    each = -(-options.subscriptions // options.clients)
    seen: list[Observed] = []
    traffic: Traffic | None = None
    with tempfile.TemporaryDirectory(prefix="kittiwake-bench-") as directory:
        config = Config(
            name="bench",
            data_directory=directory,
            client_port=ClientPort(port=0),
            client_limits=ClientLimits(subscriptions=max(10_000, each)),
            layers=Layers(**start),
            ray=RaySettings(spares=options.spares),
        )
        try:
            async with launch(config, fresh=True) as broker:
                generators = Generators(options, material, broker.endpoints)
                try:
                    subscribe_s = await generators.load()
                    begin = await generators.begin()
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
                    traffic = await generators.finish(begin, subscribe_s)
                finally:
                    await asyncio.to_thread(generators.close)
                # All subscriptions go at once: that, too, is to be borne.
                traffic.trouble += afterwards(await removed(broker))
        except Exception as error:
            if traffic is None:
                raise
            traffic.trouble.append(f"after the load: {type(error).__name__}: {error}")
        return traffic, seen


async def removed(broker: Any) -> dict[str, Any]:
    """Wait until nobody holds a subscription any more, at most LAST_S; return the coordinator's status then."""
    deadline = time.monotonic() + load.LAST_S
    while True:
        status: dict[str, Any] = await broker.admin.status()
        if (not held(status) and status["recovery"] is None) or time.monotonic() > deadline:
            return status
        await asyncio.sleep(WATCH_S)


def held(status: dict[str, Any]) -> int:
    """Return how many subscriptions the slices hold, each counted by all who do."""
    return sum((row.get("counters") or {}).get("subscriptions", 0) for row in status["members"])


def afterwards(status: dict[str, Any]) -> list[str]:
    """Return in words what is wrong when all clients have gone. Nobody here has ended a slice."""
    recoveries = [*status["recoveries"], *filter(None, [status["recovery"]])]
    wrong = [f"taken for dead: {', '.join(recovery['replaced'])}" for recovery in recoveries]
    return [*wrong, *([f"{count} subscriptions are left"] if (count := held(status)) else [])]
