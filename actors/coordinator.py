"""The Ray actor of the coordinator: one process that is it, and, where spares are kept, another one that stands by.

The launcher makes the first one and has it begin. With `ray.spares` above 0 that one has another made
(`standby.py`), which loads all it needs and waits for the lock (`succession.py`). When the coordinator dies, the other
process has the lock within POLL_S and goes on from what is on disk, at the same port; Ray starts the dead one anew, and
that one waits from then on. Without spares there is nobody but Ray to start it anew, which takes some seconds.

This module loads little: a process that has only to wait gives way to the one that has just taken over.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from actors.processes import actor_options, leave, node_id, nodes_alive, prepare_process
from actors.standby import NAMES, Standby, other_name
from actors.succession import Succession, Where, where
from cluster.config import config_from
from cluster.errors import KittiwakeError

if TYPE_CHECKING:
    from actors.lives import Life

RESUME_S = 1.0
"""Until another process of the coordinator is started when one could not go on: its port may be free by then."""
LOAD_AFTER_S = 1.0
"""A process that waits loads what it needs after this time: whoever has just taken over needs the processor."""
TAKE_S = 2.0
"""How long a cluster that starts waits for the end of the one that was there before."""

log = logging.getLogger("kittiwake")


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


def _name() -> str:
    """Return the name of this actor."""
    return ray.get_runtime_context().get_actor_name() or NAMES[0]


class CoordinatorActor:
    """A process of the coordinator. One that Ray starts anew has the same arguments, and goes on from disk.

    own: Ray is there for this cluster alone. host: where to listen; None takes the node's own address.
    policy: a scaling policy as JSON, None for no autoscaler.
    """

    def __init__(self, config: bytes, secret: bytes, host: str | None, own: bool, policy: bytes | None = None) -> None:
        self._arguments = config, secret, host, own, policy
        self._settings = config_from(msgspec.json.decode(config))
        self._succession = Succession(self._settings.directory, hashlib.sha256(secret).hexdigest())
        self._life: Life | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._waits = asyncio.Event()
        self._useless = False
        self._ended = asyncio.Event()
        if self._succession.node() is not None:
            # It is a standby, or Ray has started it anew, which it does not say dependably when starts follow each
            # other fast.
            actor = ray.get_runtime_context().current_actor
            threading.Thread(target=_have_resumed, args=(actor,), daemon=True).start()

    async def start(self, fresh: bool) -> tuple[str, int]:
        """Open the lane port and have the roles started; return the port's address.

        fresh: what an earlier cluster has left in the data directory is thrown away; else its view and sizes come back.
        """
        if not await self._succession.take(TAKE_S):
            raise KittiwakeError(f"{self._settings.directory}: the coordinator of another cluster runs there")
        return await self._begin(fresh=fresh, running_on=False)

    async def resume(self) -> None:
        """Begin to wait for the time to go on from what an earlier life has left; once, however often it is called."""
        if self._resuming is None and self._life is None:
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def _resume(self) -> None:
        try:
            if not await self._may_follow():
                self._useless = True
                self._waits.set()
                return
            if not self._succession.try_take():
                await asyncio.sleep(LOAD_AFTER_S)
                await asyncio.to_thread(importlib.import_module, "actors.lives")
                prepare_process()
                self._waits.set()
                await self._succession.take()
            if self._succession.node() is None:
                self._succession.release()  # the cluster was stopped
                return
            await self._begin(fresh=False, running_on=True)
        except Exception as error:
            log.error("the coordinator cannot go on", exc_info=error)
            await asyncio.sleep(RESUME_S)  # then Ray lets it try again
            leave(error)

    async def _may_follow(self) -> bool:
        """Tell whether the lock that this process sees is the one that counts."""
        if self._settings.ray.spares == 0:
            return True  # there is no other process
        last = self._succession.node()
        place = where(last or node_id(), node_id(), await asyncio.to_thread(nodes_alive))
        return place is Where.HERE or (place is Where.LOST and _name() == NAMES[0])

    async def _begin(self, *, fresh: bool, running_on: bool) -> tuple[str, int]:
        from actors.lives import Life

        prepare_process()
        config, secret, host, own, policy = self._arguments
        self._life = Life(
            self._settings,
            config,
            secret,
            host=host,
            own=own,
            policy=policy,
            succession=self._succession,
            standby=self._standby if self._settings.ray.spares else None,
        )
        try:
            return await self._life.begin(fresh=fresh, running_on=running_on)
        except BaseException:
            self._life = None
            raise

    def _standby(self, told: Callable[[int | None], None]) -> Standby:
        own = self._arguments[3]

        def make(name: str) -> Any:
            options = actor_options(name, self._settings, own, max_restarts=-1, near=node_id())
            return ray.remote(CoordinatorActor).options(**options).remote(*self._arguments)

        return Standby(other_name(_name()), ray.get_actor, make, ray.kill, told)

    async def stands_by(self) -> int:
        """Return the number of this process as soon as it waits to take over; 0 if it cannot, where it is."""
        await self._waits.wait()
        return 0 if self._useless else os.getpid()

    async def last(self) -> None:
        """Return when the cluster has ended; a process that dies before answers by that."""
        await self._ended.wait()

    async def status(self) -> dict[str, Any]:
        """Return the machine's status document. Only of the coordinator that was started."""
        assert self._life is not None, "it is not the coordinator"
        return self._life.status()

    async def failures(self) -> list[str]:
        """Return what could not be started, and why."""
        assert self._life is not None, "it is not the coordinator"
        return self._life.failures

    async def end(self) -> bool:
        """End the cluster: every process but this one. Tell whether this one was the coordinator; if not, it will never
        be.
        """
        if self._resuming is not None and self._life is None:
            self._resuming.cancel()
        elif self._resuming is not None:
            await self._resuming  # it is just taking over
        if self._life is not None:
            await self._life.end()
        self._ended.set()
        return self._life is not None
