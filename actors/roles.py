"""The Ray actors: one process a slice, each a shell around its machine. Control calls only; data takes the lanes.

An actor's `start` opens its ports and joins the cluster; `stop` closes them. A machine that raises ends its process
at once, so that nothing half done answers; the coordinator notices the lane that is gone.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any

import msgspec
import ray

from actors.shell import Shell
from actors.start import start_role
from actors.transport import Identity
from cluster.config import config_from
from cluster.coordinator import Coordinator
from cluster.messages import COORDINATOR, MATCHER, Peer

FAILED_EXIT = 70
"""The exit status of a process whose machine raised (EX_SOFTWARE)."""


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


class _Actor:
    """What the coordinator's and the roles' actors share."""

    _shell: Shell | None = None  # until `start`

    async def stop(self) -> None:
        """Close every port and lane."""
        if self._shell is not None:
            await self._shell.stop()


class CoordinatorActor(_Actor):
    """The coordinator's process."""

    async def start(self, config: bytes, secret: bytes, host: str | None) -> tuple[str, int]:
        """Open the lane port; return its address. `host`: None takes the node's own."""
        _prepare_process()
        settings = config_from(msgspec.json.decode(config))
        self._machine = Coordinator(settings)
        self._shell = Shell(Identity(COORDINATOR, 0, 1), secret, self._machine, failed=_leave)
        address = host or _node_address()
        return address, await self._shell.listen(address)

    async def drain(self) -> None:
        """Let the connection points say goodbye to their clients."""
        if self._shell is not None:
            self._shell.perform(self._machine.stop())

    async def status(self) -> dict[str, Any]:
        """Return the machine's status document."""
        return self._machine.status()


class RoleActor(_Actor):
    """The process of a slice of any layer."""

    async def start(
        self,
        layer: str,
        slot: int,
        incarnation: int,
        config: bytes,
        secret: bytes,
        coordinator: tuple[str, int],
        host: str | None,
    ) -> str:
        """Open the ports and join; return where clients connect, "" but for connection points."""
        settings = config_from(msgspec.json.decode(config))
        if layer == MATCHER:
            from cluster.matching import warm

            warm()  # compiled code is loaded before the first publication waits for it
        _prepare_process()
        self._shell, _, door = await start_role(
            Peer(layer, slot),
            incarnation,
            settings,
            secret,
            host=host or _node_address(),
            coordinator=coordinator,
            failed=_leave,
        )
        return door
