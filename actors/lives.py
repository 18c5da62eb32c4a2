"""One life of the coordinator: what its process does from the moment that it holds the lock (`succession.py`).

Loaded by those that wait as well, so that nothing is left to load when their turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import msgspec
import ray

from actors.autoscaling import Autoscaling, forget_autoscaler
from actors.node import available_cores
from actors.processes import actor_options, cores_of_nodes, leave, node_address, node_id
from actors.roles import RoleActor
from actors.session_store import forget_sessions
from actors.shell import Shell
from actors.spares import Spares
from actors.standby import Standby
from actors.start import start_coordinator
from actors.store import Store, store_path
from actors.succession import Succession, wait_for_port
from actors.supervisor import RaySupervisor
from autoscaler.policy import ScalingPolicy
from cluster.config import Config
from cluster.coordinating.records import State
from cluster.coordinator import Coordinator
from cluster.messages import Peer

GOODBYE_S = 1.0
"""How long connection points may take to hear that the cluster stops."""
PORT_S = 1.0
"""How long the lane port of an earlier life may still be taken."""
SERVING_S = 0.2
"""Between two looks whether the cluster serves."""
METRICS_PORT_S = 0.2
"""The same of the metrics port; another one will do."""


class Life:
    """settings: the cluster's; config: the same as JSON, for slices. secret: the cluster's.

    host:    where to listen; None takes the node's own address. own: Ray is there for this cluster alone.
    policy:  a scaling policy as JSON, None for no autoscaler.
    standby: has another process wait; its `told` is set here. None for no such process.
    """

    def __init__(
        self,
        settings: Config,
        config: bytes,
        secret: bytes,
        *,
        host: str | None,
        own: bool,
        policy: bytes | None,
        succession: Succession,
        standby: Callable[[Callable[[int | None], None]], Standby] | None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._secret = secret
        self._host = host
        self._own = own
        self._policy = policy
        self._succession = succession
        self._standby = standby
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self, *, fresh: bool, running_on: bool) -> tuple[str, int]:
        """Open the lane port, have the roles started or find those that run on; return the port's address.

        fresh:      what an earlier cluster has left in the data directory is thrown away.
        running_on: it is the same cluster: the port is that of the earlier life.
        """
        settings = self._settings
        store = Store(store_path(settings.directory), fresh=fresh)
        if fresh:
            forget_sessions(settings.directory)
            forget_autoscaler(settings.directory)
        life, port = store.last_life()
        self._machine = Coordinator(settings, *store.read(), cold=not running_on)
        self._machine.process = {"pid": os.getpid(), "incarnation": life + 1}
        host = self._host or node_address()
        if running_on:
            await wait_for_port(host, port, PORT_S)
            if settings.metrics.enabled:
                await wait_for_port(settings.metrics.host, settings.metrics.port, METRICS_PORT_S)
        writes = settings.output.path is not None

        def make(name: str) -> Any:
            return ray.remote(RoleActor).options(**actor_options(name, settings, self._own)).remote(writes)

        self._spares = Spares(settings.ray.spares, life + 1, make, ray.kill, lambda: self._machine.calm)

        def supervisor(shell: Shell, address: tuple[str, int]) -> RaySupervisor:
            async def start(actor: Any, peer: Peer, incarnation: int, client_address: str) -> None:
                identity = (peer.layer, peer.slot, incarnation)
                arguments = (self._config, self._secret, address, self._host, client_address)
                await actor.start.remote(*identity, *arguments)

            store.begin_life(life + 1, address[1])
            self._succession.begin(node_id())
            return RaySupervisor(shell, store, make, start, address[0], self._spares)

        autoscaling = None
        if self._policy is not None:
            policy = msgspec.json.decode(self._policy, type=ScalingPolicy)
            autoscaling = Autoscaling(
                self._machine, policy, settings.directory, placeable=self._room, cores=self._cores
            )
        self._shell, address = await start_coordinator(
            self._machine,
            self._secret,
            host=host,
            port=port if running_on else 0,
            incarnation=life + 1,
            supervisor=supervisor,
            failed=leave,
            config=settings,
            more=lambda: iter(()) if autoscaling is None else autoscaling.series(),
        )
        if autoscaling is not None:
            autoscaling.begin(self._shell)
        assert isinstance(self._shell.supervisor, RaySupervisor), "just made"
        self._supervisor = self._shell.supervisor
        if running_on:
            for peer, incarnation in self._machine.processes():
                self._supervisor.watch(peer, incarnation)
            self._spares.begin(await self._supervisor.spares(self._machine.processes()))
        else:
            self._spares.begin()
        if self._standby is not None and self._succession.lockable:
            self._keeping = asyncio.get_running_loop().create_task(self._keep(self._standby(self._stands_by)))
        return address

    async def _keep(self, standby: Standby) -> None:
        """Keep a standby, once the cluster serves: until then others need the processor."""
        while self._machine.state is not State.SERVING:
            await asyncio.sleep(SERVING_S)
        await standby.run()

    def _stands_by(self, pid: int | None) -> None:
        """Say in the status which process waits to take over, if one does."""
        known = dict(self._machine.process or {})
        known.pop("standby_pid", None)
        self._machine.process = known if pid is None else {**known, "standby_pid": pid}

    def _room(self) -> int | None:
        """Return how many more roles there is room for on the Ray cluster; None with a Ray of our own. It blocks.

        Spares have their room already. Free CPUs are those of all nodes together: where they are scattered there may be
        room for fewer.
        """
        if self._own:
            return None
        resources: Any = ray.available_resources  # untyped
        free: float = resources().get("CPU", 0.0)
        return len(self._spares) + int(free / self._settings.ray.cpus_per_role + 1e-6)

    def _cores(self) -> dict[str, float]:
        """Return by address how many cores the nodes have, as Ray counts them; with a Ray of our own, this machine's.

        It blocks.
        """
        if self._own:
            return {self._host or node_address(): float(available_cores())}
        return cores_of_nodes()

    def status(self) -> dict[str, Any]:
        """Return the machine's status document."""
        return self._machine.status()

    @property
    def failures(self) -> list[str]:
        """What could not be started, and why."""
        return self._supervisor.failures

    async def end(self) -> None:
        """Let the connection points say goodbye to their clients; then end every process but the coordinator's own."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        self._shell.perform(self._machine.stop())
        deadline = asyncio.get_running_loop().time() + GOODBYE_S
        while self._shell.held_bytes() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self._succession.end()
        await self._supervisor.close(self._machine.processes())
        await self._shell.stop()
        self._succession.release()
