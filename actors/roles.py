"""The Ray actors: one process a slice, each a shell around its machine. Control calls only; data takes the lanes.

The launcher makes the coordinator's, the coordinator's makes the others. A role's `start` opens its ports and joins the
cluster; `stop` closes them. A machine that raises ends its process at once, so that nothing half done answers; the
coordinator notices the lane that is gone.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import ray

from actors.autoscaling import Autoscaling, forget_autoscaler
from actors.session_store import forget_sessions
from actors.shell import Shell
from actors.spares import Spares
from actors.start import start_coordinator, start_role
from actors.store import Store, store_path
from actors.supervisor import RaySupervisor
from autoscaler.policy import ScalingPolicy
from cluster.config import Config, config_from
from cluster.coordinator import Coordinator
from cluster.messages import MATCHER, Peer

FAILED_EXIT = 70
"""The exit status of a process whose machine raised (EX_SOFTWARE)."""
RESUME_S = 1.0
"""Until another process of the coordinator is started when one could not go on: its port may be free by then."""
GOODBYE_S = 1.0
"""How long connection points may take to hear that the cluster stops."""


log = logging.getLogger("kittiwake")


def actor_options(name: str, config: Config, own: bool, *, max_restarts: int = 0) -> dict[str, Any]:
    """Return how Ray is to run an actor of the cluster. own: Ray is there for this cluster alone."""
    return {
        "name": name,
        "lifetime": "detached",
        # On one machine there is nothing to place, and no number of CPUs to be an obstacle to growth.
        "num_cpus": 0 if own else config.ray.cpus_per_role,
        "max_restarts": max_restarts,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD" if config.ray.placement == "spread" else "DEFAULT",
        "enable_task_events": False,
    }


def _prepare_process() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    # Nothing on the data path makes reference cycles; a collection only costs delay.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _leave(error: BaseException) -> None:
    del error  # the shell has logged it
    sys.stderr.flush()
    os._exit(FAILED_EXIT)


def _node_address() -> str:
    util: Any = ray.util  # its functions are untyped
    address: str = util.get_node_ip_address()
    return address


def _have_resumed(actor: Any) -> None:
    """Have the actor go on, from a thread of its own process: a call that is made too early may come to nothing."""
    while True:
        try:
            actor.resume.remote().future().result(timeout=RESUME_S)
        except Exception as error:
            log.debug("not resumed yet: %s", error)
            time.sleep(0.1)
        else:
            return


class CoordinatorActor:
    """The coordinator's process. When it dies Ray starts another one with the same arguments, which goes on from disk.

    own: Ray is there for this cluster alone. host: where to listen; None takes the node's own address.
    policy: a scaling policy as JSON, None for no autoscaler.
    """

    def __init__(self, config: bytes, secret: bytes, host: str | None, own: bool, policy: bytes | None = None) -> None:
        self._config = config
        self._secret = secret
        self._host = host
        self._own = own
        self._policy = policy
        self._begun = False
        self._alive = config_from(msgspec.json.decode(config)).directory / "coordinator.alive"
        self._name = hashlib.sha256(secret).hexdigest()  # of this cluster's run
        if self._alive.exists() and self._alive.read_text() == self._name:
            # Ray has started it anew. It says so itself as well, but not dependably when starts follow each other fast.
            actor = ray.get_runtime_context().current_actor
            threading.Thread(target=_have_resumed, args=(actor,), daemon=True).start()

    async def start(self, fresh: bool) -> tuple[str, int]:
        """Open the lane port and have the roles started; return the port's address.

        fresh: what an earlier cluster has left in the data directory is thrown away; else its view and sizes come back.
        """
        return await self._begin(fresh=fresh, running_on=False)

    async def resume(self) -> None:
        """Go on from what an earlier life has left on disk, at the same port; once, however often it is called."""
        if self._begun:
            return
        self._begun = True
        try:
            await self._begin(fresh=False, running_on=True)
        except Exception as error:
            log.error("the coordinator cannot go on", exc_info=error)
            await asyncio.sleep(RESUME_S)  # then Ray lets it try again
            _leave(error)

    async def _begin(self, *, fresh: bool, running_on: bool) -> tuple[str, int]:
        _prepare_process()
        settings = config_from(msgspec.json.decode(self._config))
        store = Store(store_path(settings.directory), fresh=fresh)
        if fresh:
            forget_sessions(settings.directory)
            forget_autoscaler(settings.directory)
        life, port = store.last_life()
        self._machine = Coordinator(settings, *store.read(), cold=not running_on)
        self._machine.process = {"pid": os.getpid(), "incarnation": life + 1}

        def make(name: str) -> Any:
            return ray.remote(RoleActor).options(**actor_options(name, settings, self._own)).remote()

        self._spares = Spares(settings.ray.spares, life + 1, make, ray.kill)

        def supervisor(shell: Shell, address: tuple[str, int]) -> RaySupervisor:
            async def start(actor: Any, peer: Peer, incarnation: int, client_address: str) -> None:
                identity = (peer.layer, peer.slot, incarnation)
                arguments = (self._config, self._secret, address, self._host, client_address)
                await actor.start.remote(*identity, *arguments)

            store.begin_life(life + 1, address[1])
            self._alive.write_text(self._name)
            return RaySupervisor(shell, store, make, start, address[0], self._spares)

        autoscaling = None
        if self._policy is not None:
            policy = msgspec.json.decode(self._policy, type=ScalingPolicy)
            autoscaling = Autoscaling(self._machine, policy, settings.directory, placeable=self._room(settings))
        self._shell, address = await start_coordinator(
            self._machine,
            self._secret,
            host=self._host or _node_address(),
            port=port if running_on else 0,
            incarnation=life + 1,
            supervisor=supervisor,
            failed=_leave,
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
        return address

    def _room(self, settings: Config) -> Callable[[], int | None]:
        """Return what tells how many more roles there is room for on the Ray cluster; None with a Ray of our own.

        Spares have their room already. Free CPUs are those of all nodes together: where they are scattered there may be
        room for fewer.
        """

        def room() -> int | None:
            if self._own:
                return None
            resources: Any = ray.available_resources  # untyped
            free: float = resources().get("CPU", 0.0)
            return len(self._spares) + int(free / settings.ray.cpus_per_role + 1e-6)

        return room

    async def status(self) -> dict[str, Any]:
        """Return the machine's status document."""
        return self._machine.status()

    async def failures(self) -> list[str]:
        """Return what could not be started, and why."""
        return self._supervisor.failures

    async def end(self) -> None:
        """Let the connection points say goodbye to their clients; then end every process but this one."""
        self._shell.perform(self._machine.stop())
        deadline = asyncio.get_running_loop().time() + GOODBYE_S
        while self._shell.held_bytes() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self._alive.unlink(missing_ok=True)
        await self._supervisor.close(self._machine.processes())
        await self._shell.stop()


class RoleActor:
    """The process of a slice of any layer."""

    def __init__(self) -> None:
        self._shell: Shell | None = None  # until `start`
        self._stopped = asyncio.Event()

    async def start(
        self,
        layer: str,
        slot: int,
        incarnation: int,
        config: bytes,
        secret: bytes,
        coordinator: tuple[str, int],
        host: str | None,
        client_address: str,
    ) -> None:
        """Open the ports and join."""
        settings = config_from(msgspec.json.decode(config))
        if layer == MATCHER:
            from cluster.matching import warm

            warm()  # compiled code is loaded before anybody waits for it
        _prepare_process()
        self._shell, _, _ = await start_role(
            Peer(layer, slot),
            incarnation,
            settings,
            secret,
            host=host or _node_address(),
            coordinator=coordinator,
            failed=_leave,
            client_address=client_address,
        )

    async def warm(self) -> None:
        """Load all that any layer needs, and wait to become one; once more is no harm."""
        from cluster.matching import warm

        assert self._shell is None, "it is a slice already"

        warm()
        _prepare_process()

    async def last(self) -> None:
        """Return when the role has been stopped; a process that dies before answers by that."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Close every port and lane."""
        if self._shell is not None:
            await self._shell.stop()
        self._stopped.set()
