"""Starts a cluster on Ray and stops it.

The launcher holds no part of the cluster: it makes the coordinator's actor, which makes the others, all of them
detached, in the namespace `kittiwake-NAME`. Stopping is by protocol: connection points say Bye, every role closes its
ports, then the processes end. However they ended, what their exit points had not sealed of the matched output is sealed
here, when the last one is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from actors.asking import RunFile, admin_of, read_status, remove_run_file, write_run_file
from actors.standby import NAMES
from actors.supervisor import STOP_S
from autoscaler.policy import ScalingPolicy
from autoscaler.policy_file import load_policy
from autoscaler.signals import LAYERS
from cluster.admin import Admin
from cluster.config import Config
from cluster.errors import KittiwakeError
from cluster.messages import COORDINATOR

__all__ = ["Broker", "compile_matching", "launch", "prepare_environment", "read_status"]

LOOPBACK = "127.0.0.1"
FIRST_START = "on its first start a machine compiles the matching index, which takes minutes"
"""What to tell who waits for a cluster: nothing else is said meanwhile."""

log = logging.getLogger("kittiwake")
RAY_ANSWERS_S = 5.0
ENDED_S = 10.0
"""How long processes that were told to end may still hold the matched output."""


class Broker:
    """A running cluster. endpoints: one URL per connection point, as they were when it came up. admin: scales it."""

    def __init__(self, endpoints: list[str], admin: Admin) -> None:
        self.endpoints = endpoints
        self.admin = admin

    async def status(self) -> dict[str, Any]:
        """Return the coordinator's status document. Raises KittiwakeError while there is no coordinator to ask."""
        return await self.admin.status()

    async def ray_answers(self) -> bool:
        """Tell whether Ray's control service takes connections. While it does not, what runs goes on over its lanes,
        nothing that dies is replaced, and Ray ends its nodes after a minute by default.
        """
        import ray

        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), RAY_ANSWERS_S)
        except OSError:  # a time-out is one as well
            return False
        writer.close()
        return True


@contextlib.asynccontextmanager
async def launch(config: Config, *, fresh: bool = False) -> AsyncIterator[Broker]:
    """Start Ray (or join the one configured) and all roles; leaving the context stops them.

    An earlier cluster with the same data directory is gone on with: its view, with the sizes that it had last.
    fresh: what it has left is thrown away.

    Raises: ConfigError when there is something wrong with the scaling policy; KittiwakeError when a role cannot be
    started, with the reason; what had started is stopped again.
    """
    policy = None if config.autoscaler is None else load_policy(config.autoscaler)
    if policy is not None:
        config = follow(config, policy)
    running = await asyncio.to_thread(_join_output, config)
    prepare_environment()
    import ray

    own = config.ray.address is None
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        _init_ray(ray, config, own)
        if threading.current_thread() is threading.main_thread():
            # Ray puts its own handler there, which ends the process and leaves the cluster behind.
            signal.signal(signal.SIGTERM, terminate)
    except Exception as error:
        running.close()
        raise KittiwakeError(f"Ray did not start: {error}") from error
    actors: list[Any] = []
    up = False
    try:
        if own:
            await compile_matching()
        try:
            broker = await asyncio.wait_for(_start(ray, config, own, actors, fresh, policy), config.ray.start_timeout_s)
        except TimeoutError as error:
            raise KittiwakeError(f"the cluster was not up within {config.ray.start_timeout_s} s") from error
        up = True
        yield broker
    finally:
        await _stop(ray, actors)
        remove_run_file(config)
        await asyncio.to_thread(ray.shutdown)
        running.close()
        if up:
            await asyncio.to_thread(_seal_output, config)


def _join_output(config: Config) -> contextlib.ExitStack:
    if config.output.path is None:
        return contextlib.ExitStack()
    from actors.output_writer import join_output  # needs pyarrow

    return join_output(config)


def _seal_output(config: Config) -> None:
    if config.output.path is not None:
        from actors.output_writer import seal_output

        seal_output(config, ENDED_S)


def follow(config: Config, policy: ScalingPolicy) -> Config:
    """Return the configuration as the policy has it: how often roles report, and the sizes to start with, which are the
    policy's initial_replicas, or the configuration's own within min_replicas to max_replicas.
    """
    initial = {}
    for layer in LAYERS:
        one = policy.layers.of(layer)
        if one is not None:
            own = getattr(config.layers, f"{layer}s") if one.initial_replicas is None else one.initial_replicas
            initial[f"{layer}s"] = min(max(own, one.min_replicas), one.max_replicas)
    return msgspec.structs.replace(
        config,
        layers=msgspec.structs.replace(config.layers, **initial),
        metrics=msgspec.structs.replace(config.metrics, interval_ms=round(policy.metrics_interval_s * 1000)),
    )


async def compile_matching() -> None:
    """Compile the matching index into its cache on disk, once for all matchers of this machine.

    A matter of a second when it is compiled already. On the machines of a Ray cluster each matcher does it for itself.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "from cluster.matching import warm; warm()")
    try:
        status = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if status:
        raise KittiwakeError(f"the matching index could not be compiled (exit status {status})")


def prepare_environment() -> None:
    """Set what Ray reads from the environment; before it is imported.

    Where it is imported already it has read whether calls need a token, and its other processes must not differ.
    """
    # Workers run in this environment; Ray's hook would build one anew for each from `uv run`.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    elif "RAY_AUTH_MODE" not in os.environ:
        log.warning("Ray was imported without RAY_AUTH_MODE=token: any user of this machine can call its processes")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A node that is started here starts its workers at nice 15 otherwise, behind every other process.
    os.environ.setdefault("RAY_worker_niceness", "0")


def _init_ray(ray: Any, config: Config, own: bool) -> None:
    options: dict[str, Any] = {
        "namespace": f"kittiwake-{config.name}",
        "logging_level": "warning",
        "configure_logging": True,
        "log_to_driver": True,
    }
    if own:
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
            # Data takes the lanes; the object store carries nothing but control calls.
            "object_store_memory": 80 << 20,
        }
    else:
        options["address"] = config.ray.address
    ray.init(**options)
    token = Path("~/.ray/auth_token").expanduser()
    if token.exists() and token.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        token.chmod(0o600)  # some versions of Ray leave it readable by others


async def _start(
    ray: Any, config: Config, own: bool, actors: list[Any], fresh: bool, policy: ScalingPolicy | None
) -> Broker:
    from actors.coordinator import CoordinatorActor
    from actors.processes import actor_options

    secret = secrets.token_bytes(32)
    host = config.ray.lane_host or (LOOPBACK if own else None)
    try:
        options = actor_options(COORDINATOR, config, own, max_restarts=-1)
        encoded = None if policy is None else msgspec.json.encode(policy)
        arguments = (msgspec.json.encode(config), secret, host, own, encoded)
        coordinator = ray.remote(CoordinatorActor).options(**options).remote(*arguments)
        actors.append(coordinator)
        address = await coordinator.start.remote(fresh)
        while (status := await coordinator.status.remote())["state"] != "serving":
            if failures := await coordinator.failures.remote():
                raise KittiwakeError(f"a role did not start: {failures[0]}")
            if status["lost"]:
                raise KittiwakeError("a role was lost while the cluster started")
            await asyncio.sleep(0.05)
    except ray.exceptions.RayTaskError as error:
        raise KittiwakeError(f"the coordinator did not start: {error.cause}") from error
    except (ray.exceptions.RayError, ValueError) as error:
        raise KittiwakeError(f"the coordinator did not start: {error}") from error
    endpoints = [f"kittiwake://{row['client_address']}" for row in status["members"] if row["client_address"]]
    run = RunFile(config.name, os.getpid(), address[0], address[1], secret.hex(), endpoints)
    write_run_file(config, run)
    return Broker(endpoints, admin_of(run))


async def _stop(ray: Any, actors: list[Any]) -> None:
    """Stop by protocol; then end the processes, those that nobody knows any more as well."""
    if not actors:
        return
    ending = [_as_future(one.end.remote()) for one in await asyncio.to_thread(_coordinators, ray, actors)]
    deadline = time.monotonic() + 3 * STOP_S
    waiting = set(ending)
    # Whichever is the coordinator answers True; one that is just being started anew may take longer to say no.
    while waiting and not any(map(_ended, ending)) and time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            _, waiting = await asyncio.wait(
                waiting, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
            )
    for one in ending:
        one.add_done_callback(lambda done: done.cancelled() or done.exception())
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)
    with contextlib.suppress(Exception):
        for name in await asyncio.to_thread(ray.util.list_named_actors):
            with contextlib.suppress(Exception):
                ray.kill(ray.get_actor(name))


def _coordinators(ray: Any, actors: list[Any]) -> list[Any]:
    """Return the coordinator's processes, the one that stands by as well, if there is one."""
    found = list(actors)
    with contextlib.suppress(Exception):
        found.append(ray.get_actor(NAMES[1]))
    return found


def _ended(ending: asyncio.Future[Any]) -> bool:
    """Tell whether this was the coordinator, and has ended the cluster."""
    return ending.done() and not ending.cancelled() and ending.exception() is None and ending.result() is True


def _as_future(reference: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(_wait(reference))


async def _wait(reference: Any) -> Any:
    return await reference
