"""The Ray actor of a slice: one process, a shell around its machine. Control calls only; data takes the lanes.

The coordinator's process makes them. `start` opens the ports and joins the cluster; `stop` closes them. A machine that
raises ends its process at once, so that nothing half done answers; the coordinator notices the lane that is gone.

A process that waits to become a slice loads what any layer needs, on another thread and in portions: it can become a
slice before that is done, and then loads no more than its layer needs.
"""

from __future__ import annotations

import asyncio
import importlib

import msgspec
import numpy.ma  # noqa: F401  (np.unique loads it with its first call: 20 to 50 ms of a newcomer's first turn)

from actors.processes import leave, node_address, prepare_process
from actors.shell import Shell
from actors.start import start_role
from cluster.config import config_from
from cluster.messages import EXIT_POINT, MATCHER, Peer


def _load_matcher() -> None:
    importlib.import_module("cluster.matcher")
    importlib.import_module("cluster.matching").warm()


def _load_output() -> None:
    importlib.import_module("actors.output_writer")  # needs pyarrow


class RoleActor:
    """The process of a slice of any layer. writes: exit points write an output."""

    def __init__(self, writes: bool = False) -> None:
        self._layer: str | None = None  # until `start`
        self._shell: Shell | None = None
        self._stopped = asyncio.Event()
        self._loading = asyncio.Lock()
        self._portions = [(MATCHER, _load_matcher)]
        if writes:
            self._portions.append((EXIT_POINT, _load_output))

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
        assert self._layer is None, f"it is a slice already, of layer {self._layer}"
        self._layer = layer
        settings = config_from(msgspec.json.decode(config))
        await self._load()  # compiled code is loaded before anybody waits for it
        prepare_process()
        self._shell, _, _ = await start_role(
            Peer(layer, slot),
            incarnation,
            settings,
            secret,
            host=host or node_address(),
            coordinator=coordinator,
            failed=leave,
            client_address=client_address,
        )

    async def free(self) -> bool:
        """Tell whether it is no slice yet."""
        return self._layer is None

    async def warm(self) -> None:
        """Load all that any layer needs, and wait to become one; once more is no harm."""
        await self._load()

    async def _load(self) -> None:
        """Load what the slice's layer needs; while it is none, what any may need."""
        for layer, portion in self._portions:
            if self._layer in (None, layer):
                async with self._loading:
                    if self._layer in (None, layer):  # still
                        await asyncio.to_thread(portion)
        if self._layer is None:
            prepare_process()

    async def last(self) -> None:
        """Return when the role has been stopped; a process that dies before answers by that."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Close every port and lane."""
        if self._shell is not None:
            await self._shell.stop()
        self._stopped.set()
