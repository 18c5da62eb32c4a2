"""Starts the coordinator, or a slice of any layer, on the running loop: ports, machine, the way to the coordinator.

Without Ray: who starts and ends processes is handed in.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator

from actors.database import StoreError
from actors.discovery import TargetsFile, targets_document
from actors.exporter import Exporter
from actors.session_store import DeadLetters, SessionStore, Writer, dead_letters_path, sessions_path
from actors.shell import Shell, Supervisor
from actors.transport import Identity
from cluster.config import Config
from cluster.connection_point import ConnectionPoint
from cluster.coordinating.records import State
from cluster.coordinator import Coordinator
from cluster.errors import ConfigError
from cluster.figures import Series, series_of
from cluster.journal import Recovered
from cluster.measures import Measures
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR,
    COORDINATOR_PEER,
    EXIT_POINT,
    Connect,
    Drained,
    Event,
    Instruction,
    Join,
    Member,
    Peer,
    Restored,
    Tick,
)
from cluster.output.errors import OutputError
from cluster.role import Role, make_machine


class Clocked:
    """The coordinator, told the time before everything else that it is told: its durations are exact to the ms."""

    def __init__(self, machine: Coordinator, measures: Measures | None = None) -> None:
        self._machine = machine
        self._measures = measures
        self._now_ms = 0

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        if isinstance(event, Tick) and self._measures is not None and self._measures.due(event.now_ms):
            self._measures.report({}, event.now_ms)  # there is nobody to report to: it is looked at
        if isinstance(event, Tick | Drained):
            return self._machine.handle(event)
        now_ms = time.monotonic_ns() // 1_000_000
        if now_ms == self._now_ms:
            return self._machine.handle(event)
        self._now_ms = now_ms
        return [*self._machine.handle(Tick(now_ms)), *self._machine.handle(event)]


async def start_coordinator(
    machine: Coordinator,
    secret: bytes,
    *,
    host: str,
    port: int = 0,
    incarnation: int = 1,
    supervisor: Callable[[Shell, tuple[str, int]], Supervisor],
    failed: Callable[[BaseException], None],
    config: Config | None = None,
    more: Callable[[], Iterator[Series]] = lambda: iter(()),
) -> tuple[Shell, tuple[str, int]]:
    """Open the lane port on `host` and let the machine begin; return the shell, and the address that roles dial.

    port, incarnation: of a later life, the port of the first, where roles look for it, and a higher number.
    supervisor:        makes who is to do what the machine asks for.
    config:            says where metrics are served, and the list of those who serve any kept; None for nowhere.
    more:              what else is served there.
    Raises: OSError when there is no such address; what the first writing to disk raises; ConfigError about a token.
    """
    interval_ms = 1000 if config is None else config.metrics.interval_ms
    measures = Measures(COORDINATOR, interval_ms)
    shell = Shell(Identity(COORDINATOR, 0, incarnation), secret, failed=failed, measures=measures, turn_ns=None)
    address = host, await shell.listen(host, port)
    try:
        shell.supervisor = supervisor(shell, address)
        if config is not None and config.metrics.enabled:
            _export_cluster(shell, machine, measures, config, host, more)
    except BaseException:
        await shell.stop()
        raise
    shell.handler = Clocked(machine, measures)
    shell.perform(machine.start())
    return shell, address


def _export_cluster(
    shell: Shell,
    machine: Coordinator,
    measures: Measures,
    config: Config,
    host: str,
    more: Callable[[], Iterator[Series]],
) -> None:
    """Serve the coordinator's metrics, and the list of all endpoints; keep that list in the data directory too."""

    def series() -> Iterator[Series]:
        yield from series_of(COORDINATOR, 0, machine.gauges() | measures.totals(), machine.histograms())
        yield from more()

    def targets() -> bytes | None:
        if machine.state is State.RESUMING:
            return None  # the roles that run on have not come again: what was said before still holds
        return targets_document(config.name, {COORDINATOR_PEER: exporter.address, **machine.endpoints()})

    exporter = Exporter(config.metrics, series, host=host, port=config.metrics.port, targets=targets)
    machine.metrics_address = exporter.address
    shell.companions += [TargetsFile(config.directory, targets), exporter]


async def start_role(
    peer: Peer,
    incarnation: int,
    config: Config,
    secret: bytes,
    *,
    host: str,
    coordinator: tuple[str, int],
    failed: Callable[[BaseException], None],
    client_address: str = "",
) -> tuple[Shell, Role, str]:
    """Open the ports, the lanes' on `host`, and join; return the shell, the role, and where clients connect, "" but
    for connection points.

    client_address: where clients know the slot from an earlier incarnation, "" for what the configuration says.
    A connection point takes up the durable sessions and valid publications that its slot has in the data directory, an
    exit point its slot's log of matched output.
    Raises: OSError when a port is taken; StoreError when these cannot be read, OutputError when the log cannot;
    ConfigError about the metrics' token.
    """
    machine = make_machine(peer, incarnation, config)
    port = config.client_port
    door_at = (port.host, port.port + peer.slot if port.port else 0)
    if client_address:
        known_host, _, known_port = client_address.rpartition(":")
        door_at = known_host, int(known_port)
    is_door = peer.layer == CONNECTION_POINT
    measures = Measures(peer.layer, config.metrics.interval_ms)
    shell = Shell(
        Identity(peer.layer, peer.slot, incarnation),
        secret,
        failed=failed,
        client_address=door_at if is_door else None,
        measures=measures,
    )
    door = ""
    try:
        lane_port = await shell.listen(host)
        if is_door:
            bound = await shell.bind_clients()
            door = f"{bound[0]}:{bound[1]}"
        exporter = Exporter(config.metrics, lambda: _series(role), host=host) if config.metrics.enabled else None
    except (OSError, ConfigError):
        await shell.stop()
        raise
    if exporter is not None:
        shell.companions.append(exporter)
    store = None
    if is_door:
        path = sessions_path(config.directory, peer.slot)
        letters = DeadLetters(dead_letters_path(config.directory, peer.slot), config.durable.dead_letter_bytes)

        def opens() -> SessionStore:
            return SessionStore(path, letters)

        try:
            store = opens() if path.exists() else None
            memory = Recovered([], [], [], []) if store is None else store.read()
            restored = Restored(memory, time.time_ns() // 1000)
        except StoreError:
            await shell.stop()
            raise
        shell.session_writer = Writer(store, opens, stored=shell.stored, failed=shell.store_failed)
    marks = None
    if peer.layer == EXIT_POINT and config.output.path is not None:
        from actors.output_writer import OutputWriter  # needs pyarrow
        from cluster.output.manifest import Claim

        claim = Claim(hashlib.sha256(secret).hexdigest()[:16], incarnation)
        try:
            output = OutputWriter(config, peer.slot, claim, tell=shell.tell, failed=shell.store_failed)
            shell.output = output
            marks = output.marks()
        except (OutputError, OSError):
            await shell.stop()
            raise
    join = Join(incarnation, host, lane_port, door, os.getpid(), "" if exporter is None else exporter.address)
    role = Role(peer, join, machine, config, measures)
    measures.busiest = getattr(machine, "busiest", None)
    if isinstance(machine, ConnectionPoint):
        measures.answered = machine.answered
    shell.handler = role
    if is_door:
        shell.perform(role.handle(restored))
    if marks is not None:
        shell.perform(role.handle(marks))
    shell.perform([Connect(Member(*COORDINATOR_PEER, 0, *coordinator))])  # in whichever life it is
    return shell, role, door


def _series(role: Role) -> Iterator[Series]:
    measures = role.measures
    assert measures is not None, f"{role.peer} measures nothing"
    return series_of(*role.peer, role.gauges() | measures.totals(), measures.histograms())
