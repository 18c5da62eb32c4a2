"""Runs a cluster under one policy while the load rises and falls, and keeps what was seen: no figures yet."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from autoscaler.controller import KEPT
from autoscaler.policy import ScalingPolicy
from autoscaler.policy_check import contradictions
from autoscaler.policy_file import load_policy
from bench import load, workloads
from bench.load import LAST_S, Log, account, connected_publishers, no_pauses
from bench.process import run, wait_until
from bench.scaling_figures import Floats
from bench.scaling_oracle import Arrived, Expected, arrived, expect, notifications_due
from bench.workers import Workers
from cluster.admin import Admin
from cluster.config import ClientPort, Config, Metrics, load_config

DISTINCT = 2000
LOOK_S = 0.5
LEAST_INTERVAL_S = 0.25
"""Least interval of metrics and evaluations, however much a policy is quickened."""


@dataclass
class Material:
    """The workload and its oracle; made once for all runs."""

    publications: list[dict[str, Any]]
    filters: list[str]
    expected: Expected


@dataclass
class Run:
    """What was seen under one policy. Times in seconds of the machine's monotonic clock.

    due: of each publication. sizes: (time, slices by layer), the first at the beginning. operations: as
    `kittiwake transitions` has them. explained: the autoscaler's last decisions.
    """

    policy: ScalingPolicy
    begin: float
    end: float
    due: Floats
    handed: Floats
    logs: list[Arrived]
    sizes: list[tuple[float, dict[str, int]]]
    operations: list[dict[str, Any]]
    explained: dict[str, Any]
    trouble: list[str]


def quickened(policy: ScalingPolicy, times: float) -> ScalingPolicy:
    """Return the policy with its durations divided, so that a day of minutes is to it what a day of hours is.

    How often it measures and evaluates is divided as well, but not below LEAST_INTERVAL_S. Not the times that a
    schedule's crons name: those are of the wall clock.
    """
    if times == 1:
        return policy

    def quick(value: Any) -> Any:
        if isinstance(value, list):
            return [quick(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            key: one / times if key.endswith("_s") and isinstance(one, int | float) else quick(one)
            for key, one in value.items()
        }

    document = quick(msgspec.to_builtins(policy))
    metrics = max(LEAST_INTERVAL_S, document["metrics_interval_s"])
    document["metrics_interval_s"] = metrics
    for key in ("evaluate_interval_s", "look_back_period_s"):
        document[key] = max(metrics, document[key])
    for objective in document["slo"]:
        objective["window_s"] = max(metrics, objective["window_s"])
        rates = objective["burn_rate"]
        rates["fast"]["window_s"] = max(metrics, rates["fast"]["window_s"])
        rates["slow"]["window_s"] = max(2 * rates["fast"]["window_s"], rates["slow"]["window_s"])
    for layer in document["layers"].values():
        for trigger in () if layer is None else layer["triggers"]:
            if trigger["type"] == "split_merge":
                trigger["min_window_s"] = max(metrics, trigger["min_window_s"])
                trigger["max_window_s"] = max(trigger["min_window_s"], trigger["max_window_s"])
    quick_policy = msgspec.convert(document, ScalingPolicy)
    wrong = list(contradictions(quick_policy))
    assert not wrong, f"{policy.metadata.name} cannot be quickened {times:g} times: {wrong}"
    return quick_policy


def make_material(options: argparse.Namespace) -> Material:
    """Make the workload, and find out by brute force what matches what."""
    source = workloads.source(options.workload, options.subscriptions, DISTINCT, options.seed)
    conditions = list(source.conditions)
    publications: list[dict[str, Any]] = list(source.publications())
    expected = expect(publications, [workloads.form(one) for one in conditions], options.clients)
    return Material(publications, [workloads.text(one) for one in conditions], expected)


async def _publisher(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, due: bytes, pipe: Connection
) -> None:
    clients = await connected_publishers(urls, publishers)
    pipe.send(None)
    begin: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    no_pauses()
    handed = array("d")
    for number, after in enumerate(np.frombuffer(due, np.float64).tolist()):
        await wait_until(begin + after)
        handed.append(time.monotonic())
        await clients[number % publishers].publish(publications[number % len(publications)], ack="none")
        await asyncio.sleep(0)
    await account(clients, handed.tobytes(), pipe)


def publisher(
    urls: list[str], publications: Sequence[dict[str, Any]], publishers: int, due: bytes, pipe: Connection
) -> None:
    """The publisher's process: publication i is due at begin + due[i], whatever the broker does.

    Sends None when it is ready; gets when to begin; sends when each was handed to the SDK, and what went wrong; gets
    leave to go.
    """
    run(_publisher(urls, publications, publishers, due, pipe))


def sizes_over_time(
    begin: float, initial: dict[str, int], operations: Sequence[dict[str, Any]]
) -> list[tuple[float, dict[str, int]]]:
    """Return the sizes from the beginning on; an operation's are taken to hold from its end."""
    found = [(begin, dict(initial))]
    for one in operations:
        if one["state"] == "done":
            at = (one["started_ms"] + one["duration_ms"]) / 1e3
            found.append((at, {layer: len(slots) for layer, slots in one["wanted"].items()}))
    return found


def has_shrunk(sizes: Sequence[tuple[float, dict[str, int]]]) -> bool:
    """Tell whether there are fewer slices at the end than there once were."""
    return sum(sizes[-1][1].values()) < max(sum(one.values()) for _, one in sizes)


async def watch(admin: Admin, options: argparse.Namespace, begin: float, initial: dict[str, int]) -> None:
    """Return after options.after seconds; earlier, with --until-shrunk, when it has shrunk and changes no more."""
    until = time.monotonic() + options.after
    while (left := until - time.monotonic()) > 0:
        if options.until_shrunk:
            operations = await admin.transitions()
            over = all(one["state"] != "running" for one in operations)
            if over and has_shrunk(sizes_over_time(begin, initial, operations)):
                return
        await asyncio.sleep(min(left, LOOK_S))


def configuration(options: argparse.Namespace, directory: str, policy: Path) -> Config:
    """Return that of --config, or one slice a layer, with what a benchmark needs: any free ports of loopback, a data
    directory of its own, a Ray of its own unless --on-ray, the policy as it is run, and no limit of subscriptions.
    """
    base = Config(metrics=Metrics(enabled=False)) if options.config is None else load_config(options.config)
    limits, each = base.client_limits, -(-options.subscriptions // options.clients)
    return replace(
        base,
        name="bench",
        data_directory=directory,
        client_port=ClientPort(port=0),
        client_limits=replace(limits, subscriptions=max(limits.subscriptions, each)),
        ray=base.ray if options.on_ray else replace(base.ray, address=None),
        metrics=replace(base.metrics, port=0),
        autoscaler=str(policy),
    )


async def drive(options: argparse.Namespace, material: Material, policy_path: Path, due: Floats) -> Run:
    """Run a cluster under the policy; return what was seen."""
    from actors.launch import launch

    policy = quickened(load_policy(policy_path), options.quicken)
    with tempfile.TemporaryDirectory(prefix="kittiwake-bench-") as directory:
        used = Path(directory) / "policy.json"  # JSON is YAML
        used.write_bytes(msgspec.json.encode(policy))
        async with launch(configuration(options, directory, used), fresh=True) as broker:
            workers = Workers()
            try:
                filters, urls = material.filters, broker.endpoints
                shares = [filters[place :: options.clients] for place in range(options.clients)]
                workers.start("subscribers", load.subscribers, urls, shares, options.publishers)
                await workers.receive("subscribers")
                workers.start("publisher", publisher, urls, material.publications, options.publishers, due.tobytes())
                await workers.receive("publisher")
                initial = (await broker.admin.autoscaler())["observed"]
                begin = time.monotonic() + 0.2
                workers.send("publisher", begin)
                took = float(due[-1]) + LAST_S + 300
                handed = np.frombuffer(await workers.receive("publisher", took), np.float64)
                wrong: list[str] = await workers.receive("publisher")
                workers.send("subscribers", notifications_due(material.expected.counts, len(handed)))
                logs: list[Log] = await workers.receive("subscribers")
                wrong += await workers.receive("subscribers")
                workers.send("publisher", None)
                await watch(broker.admin, options, begin, initial)
                end = time.monotonic()
                operations = await broker.admin.transitions()
                explained = await broker.admin.autoscaler("explain", count=KEPT)
            finally:
                workers.close()
    return Run(
        policy,
        begin,
        end,
        begin + due,
        handed,
        [arrived(log, options.publishers) for log in logs],
        sizes_over_time(begin, initial, operations),
        operations,
        explained,
        wrong,
    )
