"""Starts a cluster on Ray and stops it; asks a running one for its status.

The launcher holds no part of the cluster: actors are detached and named `layer-slot` in the namespace
`kittiwake-NAME`. Stopping is by protocol: connection points say Bye, every role closes its ports, then the processes
end.

The run file `run.json` in the data directory (mode 0600, it holds the cluster's secret) tells other commands on
this machine where the coordinator listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from actors.transport import Identity, LaneProtocol
from cluster.channel import Lane
from cluster.codec import decode_message, encode_message
from cluster.config import Config
from cluster.coordinator import expected_slots
from cluster.errors import KittiwakeError
from cluster.messages import COORDINATOR, OPERATOR, Status, StatusRequest

STOP_S = 5.0
STATUS_S = 5.0
LOOPBACK = "127.0.0.1"


class RunFile(msgspec.Struct):
    """What other commands need to reach the cluster."""

    name: str
    pid: int
    host: str
    port: int
    secret: str
    endpoints: list[str]


class Broker:
    """A running cluster. endpoints: one URL per connection point."""

    def __init__(self, endpoints: list[str], coordinator: Any) -> None:
        self.endpoints = endpoints
        self._coordinator = coordinator

    async def status(self) -> dict[str, Any]:
        """Return the coordinator's status document."""
        document: dict[str, Any] = await self._coordinator.status.remote()
        return document


@contextlib.asynccontextmanager
async def launch(config: Config) -> AsyncIterator[Broker]:
    """Start Ray (or join the one configured) and all roles; leaving the context stops them.

    Raises: KittiwakeError when a role cannot be started, with the reason; what had started is stopped again.
    """
    _environment()
    import ray

    own = config.ray.address is None
    needed = math.ceil((len(expected_slots(config)) + 1) * config.ray.cpus_per_role)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        _init_ray(ray, config, own, needed)
        if threading.current_thread() is threading.main_thread():
            # Ray puts its own handler there, which ends the process and leaves the cluster behind.
            signal.signal(signal.SIGTERM, terminate)
    except Exception as error:
        raise KittiwakeError(f"Ray did not start: {error}") from error
    actors: list[Any] = []
    try:
        if own:
            await compile_matching()
        broker = await asyncio.wait_for(_start(ray, config, own, actors), config.ray.start_timeout_s)
        yield broker
    except TimeoutError as error:
        raise KittiwakeError(f"the cluster was not up within {config.ray.start_timeout_s} s") from error
    finally:
        await _stop(ray, actors)
        _run_path(config).unlink(missing_ok=True)
        await asyncio.to_thread(ray.shutdown)


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


def _environment() -> None:
    """Settings that Ray reads from the environment, before it is imported."""
    # Workers run in this environment; Ray's hook would build one anew for each from `uv run`.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _init_ray(ray: Any, config: Config, own: bool, needed: int) -> None:
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
            "num_cpus": max(os.cpu_count() or 1, needed),
            "_node_ip_address": LOOPBACK,
            # Data takes the lanes; the object store carries nothing but control calls.
            "object_store_memory": 80 << 20,
            # Workers are started at nice 15, behind every other process; a broker's roles are not batch jobs.
            "_system_config": {"worker_niceness": 0},
        }
    else:
        options["address"] = config.ray.address
    ray.init(**options)
    token = Path("~/.ray/auth_token").expanduser()
    if token.exists() and token.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        token.chmod(0o600)  # some versions of Ray leave it readable by others


async def _start(ray: Any, config: Config, own: bool, actors: list[Any]) -> Broker:
    from actors.roles import CoordinatorActor, RoleActor

    secret = secrets.token_bytes(32)
    document = msgspec.json.encode(config)
    host = config.ray.lane_host or (LOOPBACK if own else None)
    strategy = "SPREAD" if config.ray.placement == "spread" else "DEFAULT"

    def make(kind: type, name: str) -> Any:
        actor = (
            ray.remote(kind)
            .options(
                name=name,
                lifetime="detached",
                num_cpus=config.ray.cpus_per_role,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy,
                enable_task_events=False,
            )
            .remote()
        )
        actors.append(actor)
        return actor

    coordinator = make(CoordinatorActor, COORDINATOR)
    slots = expected_slots(config)
    roles = [make(RoleActor, f"{peer.layer}-{peer.slot}") for peer in slots]
    try:
        address = await coordinator.start.remote(document, secret, host)
        doors = await asyncio.gather(
            *(
                role.start.remote(peer.layer, peer.slot, 1, document, secret, address, host)
                for peer, role in zip(slots, roles, strict=True)
            )
        )
    except ray.exceptions.RayTaskError as error:
        raise KittiwakeError(f"a role did not start: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise KittiwakeError(f"a role did not start: {error}") from error
    broker = Broker([f"kittiwake://{door}" for door in doors if door], coordinator)
    while True:
        status = await broker.status()
        if status["state"] == "serving":
            break
        if status["lost"]:
            raise KittiwakeError("a role was lost while the cluster started")
        await asyncio.sleep(0.05)
    _write_run_file(config, RunFile(config.name, os.getpid(), address[0], address[1], secret.hex(), broker.endpoints))
    return broker


async def _stop(ray: Any, actors: list[Any]) -> None:
    """Stop by protocol, coordinator first, data layers in the direction of the data; then end the processes."""
    if not actors:
        return
    with contextlib.suppress(Exception):
        await asyncio.wait_for(asyncio.shield(_as_future(actors[0].drain.remote())), STOP_S)
    calls = [_as_future(actor.stop.remote()) for actor in actors]
    with contextlib.suppress(Exception):
        await asyncio.wait(calls, timeout=STOP_S)
    for call in calls:
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)


def _as_future(reference: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(_wait(reference))


async def _wait(reference: Any) -> Any:
    return await reference


def _run_path(config: Config) -> Path:
    return config.directory / "run.json"


def _write_run_file(config: Config, run: RunFile) -> None:
    config.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _run_path(config)
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(run))
    temporary.replace(path)


async def read_status(config: Config) -> dict[str, Any]:
    """Ask the running cluster of this configuration for its status. Raises KittiwakeError if none answers."""
    path = _run_path(config)
    try:
        run = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except FileNotFoundError:
        raise KittiwakeError(f"no cluster {config.name!r} runs here: {path} is missing") from None
    except (OSError, msgspec.DecodeError) as error:
        raise KittiwakeError(f"{path} is unreadable: {error}") from error
    try:
        return await asyncio.wait_for(_ask(run), STATUS_S)
    except (TimeoutError, OSError) as error:
        why = str(error) or f"no answer within {STATUS_S:g} s"
        raise KittiwakeError(f"the coordinator of {config.name!r} does not answer: {why}") from error


async def _ask(run: RunFile) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dict[str, Any]] = loop.create_future()
    lane = Lane()

    def up(protocol: LaneProtocol, other: Identity, received: int) -> None:
        del other
        lane.connect(received)
        lane.send(encode_message(StatusRequest()))
        protocol.write(lane.poll())

    def frames(protocol: LaneProtocol, bodies: list[bytes]) -> None:
        del protocol
        for body in bodies:
            message = lane.receive(body)
            if message is not None and not answer.done():
                status = decode_message(message)
                assert isinstance(status, Status), f"{type(status).__name__} instead of a Status"
                answer.set_result(msgspec.json.decode(status.document))

    def down(protocol: LaneProtocol, reason: str) -> None:
        del protocol
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    own = Identity(OPERATOR, secrets.randbelow(1 << 31), 1)
    transport, _ = await loop.create_connection(
        lambda: LaneProtocol(
            own,
            bytes.fromhex(run.secret),
            target=Identity(COORDINATOR, 0, 0),
            received=lambda _: 0,
            up=up,
            frames=frames,
            down=down,
        ),
        run.host,
        run.port,
    )
    try:
        return await answer
    finally:
        transport.abort()
