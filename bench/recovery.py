"""Crash recovery under load: what do publishers and subscribers notice when a process of the cluster is killed?

    uv run python -m bench.recovery --role matcher --kills 50 --rate 2000 --json
    uv run python -m bench.recovery --role all --kills 10 --rate 500 --signal STOP --stop-s 1,5,20

A real cluster runs on a Ray of its own, several slices a layer. The load is open loop, by processes of their own: a
publication's acknowledgement and its notifications count from when it was due, whatever the broker does
(bench/recovery_load.py, bench/load.py). Every 5 to 15 seconds (`--interval`, drawn from the seed) one slice of the
role is killed with SIGKILL; `all` takes the roles in turn. The next fault comes when the last one's takeover is over;
when one is not recovered from within `--timeout`, the run ends there and says so.

takeover: from the kill until the status shows the slot serving with a new incarnation, and every publisher has had an
          acknowledgement of a publication that was due after the kill (bench/recovery_faults.py).
lost:     required by the oracle (brute force over all filters), acknowledged to its publisher, and not delivered within
          a drain of 30 s. bench/recovery_figures.py says what each figure means.

Subscribers: with durable sessions, where the SDK has them, they are spread over all connection points, and their own is
killed as well. Without, what is on its way to a subscriber is lost with its connection point, as the README says; so
when connection points are hit, all subscribers are at connection point 0, which is not, and all publishers at the
others. `sessions` in the output says which it was.

`--signal STOP`: the process is stopped for each of `--stop-s` seconds in turn, then goes on. A zombie that was replaced
must change nothing; the verdict is the same as for kills.

The exit status is 1 if anything was lost, doubled without the mark `redelivered`, out of order, different from the
oracle or left unacknowledged, if a fault did not happen or was not recovered from, or if there were fewer than asked
for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench import load, recovery_load, workloads
from bench.environment import environment
from bench.process import free_ports
from bench.recovery_faults import ROLES, Injector
from bench.recovery_figures import WINDOW_S, Seen, failed, figures_of
from bench.scaling import slices
from bench.scaling_oracle import Expected, expect, notifications_due
from bench.workers import Workers
from cluster import connect
from cluster.messages import CONNECTION_POINT

DISTINCT = 2000
"""Publications made; they are sent over and over, so that the oracle has to look at each once."""
DRAIN_S = 30.0
EXPIRES_S = 600
"""How long a durable session outlives its connection: longer than any fault."""


def interval(text: str) -> tuple[float, float]:
    """Read `5:15`, seconds. Raises argparse.ArgumentTypeError."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0 <= low <= high <= 600:  # false for nan as well
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW:HIGH in seconds, 0 to 600, such as 5:15")
    return low, high


def seconds(text: str) -> list[float]:
    """Read `1,5,20`. Raises argparse.ArgumentTypeError."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 60 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of seconds, above 0 to 60 each, such as 1,5,20")
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.recovery", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--role", choices=(*ROLES, "all"), default="all")
    parser.add_argument("--kills", type=int, default=50, help="faults")
    parser.add_argument("--rate", type=float, default=2000.0, help="publications per second")
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--stop-s", type=seconds, default="1,5,20", metavar="S,S", help="of STOP: how long, in turn")
    parser.add_argument("--interval", type=interval, default="5:15", metavar="LOW:HIGH", help="s between faults")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds that one takeover may take")
    parser.add_argument("--slices", type=slices, default="2-2-2-2", metavar="[CP-]AP-M-EP")
    parser.add_argument("--spares", type=int, default=0, help="ray.spares: processes kept warm for a takeover")
    parser.add_argument("--workload", choices=workloads.NAMES, default="geofence")
    parser.add_argument("--subscriptions", type=int, default=10_000, help="over all clients")
    parser.add_argument("--clients", type=int, default=10, help="connections that hold them")
    parser.add_argument("--publishers", type=int, default=4, help="connections that publish")
    parser.add_argument("--durable", choices=("auto", "yes", "no"), default="auto", help="the subscribers' sessions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def has_durable_sessions() -> bool:
    """Tell whether the SDK offers them."""
    return "durable" in inspect.signature(connect).parameters


def is_durable(options: argparse.Namespace) -> bool:
    """Tell whether the subscribers are to have durable sessions."""
    return options.durable == "yes" or (options.durable == "auto" and has_durable_sessions())


def session_options() -> dict[str, Any]:
    """Return what asks for a durable session."""
    known = inspect.signature(connect).parameters
    options: dict[str, Any] = {"durable": True}
    for name in ("expires", "expires_s"):
        if name in known:
            options[name] = EXPIRES_S
    return options


def ways(endpoints: Sequence[str], first: int) -> str:
    """Return the URL of all connection points, tried from that one on."""
    hosts = [endpoint.removeprefix("kittiwake://") for endpoint in endpoints]
    return "kittiwake://" + ",".join(hosts[first:] + hosts[:first])


def material(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str], Expected]:
    """Make publications, filters, and what matches what."""
    source = workloads.source(options.workload, options.subscriptions, DISTINCT, options.seed)
    conditions = list(source.conditions)
    publications: list[dict[str, Any]] = list(source.publications())
    expected = expect(publications, [workloads.form(one) for one in conditions], options.clients)
    return publications, [workloads.text(one) for one in conditions], expected


async def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Run a cluster, its load and the faults; return the figures."""
    from actors.launch import launch, read_status
    from cluster.config import ClientLimits, ClientPort, Config, Layers, RaySettings

    durable = is_durable(options)
    # Without durable sessions, who listens must not lose its connection point.
    apart = not durable and options.role in (CONNECTION_POINT, "all")
    publications, filters, expected = material(options)
    each = -(-options.subscriptions // options.clients)
    places = options.slices["connection_points"]
    config = Config(
        name="recovery",
        data_directory=directory,
        # A connection point that comes back is to be found where it was.
        client_port=ClientPort(port=free_ports(places)),
        client_limits=ClientLimits(subscriptions=max(10_000, each)),
        layers=Layers(**options.slices),
        ray=RaySettings(spares=options.spares),
    )
    workers = Workers()
    end = workers.context.Value("d", float("inf"), lock=False)
    latest = workers.context.Array("d", options.publishers, lock=False)
    async with launch(config) as broker:
        urls = [ways(broker.endpoints, place) for place in range(places)]
        shares = [filters[place :: options.clients] for place in range(options.clients)]
        injector = Injector(
            lambda: read_status(config),
            latest,
            random.Random(f"recovery {options.seed}"),
            interval_s=options.interval,
            timeout_s=options.timeout,
            spared=((CONNECTION_POINT, 0),) if apart else (),
        )
        try:
            workers.start(
                "subscribers",
                load.subscribers,
                broker.endpoints[:1] if apart else urls,
                shares,
                options.publishers,
                quiet_s=DRAIN_S,
                options=session_options() if durable else {},
            )
            subscribe_s: float = await workers.receive("subscribers")
            workers.start(
                "publishers",
                recovery_load.publish,
                urls[1:] if apart else urls,
                publications,
                options.publishers,
                options.rate,
                end,
                latest,
                DRAIN_S,
            )
            await workers.receive("publishers")
            begin = time.monotonic() + 0.2
            workers.send("publishers", begin)
            roles = itertools.cycle(ROLES if options.role == "all" else (options.role,))
            pauses = itertools.cycle(options.stop_s) if options.signal == "STOP" else None
            await injector.run(roles, options.kills, pauses)
            await asyncio.sleep(WINDOW_S)
            end.value = time.monotonic()
            acknowledged = np.frombuffer(await workers.receive("publishers"), np.float64)
            trouble, reconnections = await workers.receive("publishers")
            workers.send("subscribers", notifications_due(expected.counts, len(acknowledged)))
            logs: list[load.Log] = await workers.receive("subscribers")
            trouble += await workers.receive("subscribers")
            workers.send("publishers", None)
        finally:
            workers.close()
    due = begin + np.arange(len(acknowledged)) / options.rate
    seen = Seen(due, acknowledged, options.publishers, logs, expected, injector.faults, trouble)
    figures = figures_of(seen)
    return {
        "role": options.role,
        "signal": options.signal,
        **figures,
        "given_up": injector.given_up,
        "wanted": options.kills,
        "slices": "-".join(str(count) for count in options.slices.values()),
        "spares": options.spares,
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "rate": options.rate,
        "seed": options.seed,
        "sessions": ("durable" if durable else "not durable")
        + ("; all subscribers at connection point 0, which is never hit" if apart else ""),
        "publisher_reconnections": reconnections,
        "subscribe_s": round(subscribe_s, 3),
        "environment": environment(),
    }


def check(options: argparse.Namespace) -> None:
    """Raise SystemExit where the command line makes no sense."""
    if min(options.kills, options.subscriptions, options.clients, options.publishers) < 1 or options.rate <= 0:
        raise SystemExit("bench.recovery: kills, subscriptions, clients, publishers and the rate must be positive")
    if not 0 <= options.spares <= 64:
        raise SystemExit(f"bench.recovery: {options.spares} spares; 0 to 64 are possible")
    if options.durable == "yes" and not has_durable_sessions():
        raise SystemExit("bench.recovery: --durable yes, and this SDK has no durable sessions")
    if (
        not is_durable(options)
        and options.role in (CONNECTION_POINT, "all")
        and options.slices["connection_points"] < 2
    ):
        raise SystemExit("bench.recovery: without durable sessions one connection point is spared; --slices needs two")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; 1 if anything was wrong."""
    options = _parser().parse_args(arguments)
    check(options)
    with (
        tempfile.TemporaryDirectory(prefix="kittiwake-recovery-") as directory,
        contextlib.redirect_stdout(sys.stderr),  # Ray tells there what it thinks of killed processes
    ):
        figures = asyncio.run(measure(options, directory))
    if options.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            if key == "faults":
                for row in value:
                    print("  fault", " ".join(f"{name}={one}" for name, one in row.items()))
            else:
                print(f"{key:24} {value}")
    return 1 if failed(figures, options.kills) else 0


if __name__ == "__main__":
    sys.exit(main())
