"""Processes that wait to become a slice: started and warm, so that one that dies is soon replaced.

A spare has loaded all that any layer needs, the compiled matching code as well; what is left is to open its ports and
to join. As many as configured are kept; one that is taken is made up for a little later, as whoever needs it needs the
processor too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

REFILL_S = 3.0
PREFIX = "spare-"

log = logging.getLogger("kittiwake")


class Spares:
    """count: how many to keep. make: returns a new actor of this name; it blocks. life: the coordinator's process."""

    def __init__(self, count: int, life: int, make: Callable[[str], Any]) -> None:
        self._count = count
        self._life = life
        self._make = make
        self._next = 1
        self._ready: list[tuple[str, Any]] = []
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    def begin(self) -> None:
        """Start them, once the cluster serves."""
        self._fill(0.0)

    def take(self) -> tuple[str, Any] | None:
        """Return a spare's name and actor, None if there is none."""
        if not self._ready:
            return None
        self._fill(REFILL_S)
        return self._ready.pop(0)

    async def close(self, kill: Callable[[Any], None]) -> None:
        """End them all."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        for _, actor in self._ready:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(kill, actor)
        self._ready.clear()

    def _fill(self, after_s: float) -> None:
        if not self._closed and (self._filling is None or self._filling.done()) and self._count:
            self._filling = asyncio.get_running_loop().create_task(self._keep_full(after_s))

    async def _keep_full(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while len(self._ready) < self._count:
            name = f"{PREFIX}{self._life}-{self._next}"
            self._next += 1
            try:
                actor = await asyncio.to_thread(self._make, name)
                await call(actor.warm)
            except Exception as error:
                log.warning("a spare did not start: %s", str(error).partition("\n")[0])
                await asyncio.sleep(10 * REFILL_S)
                continue
            self._ready.append((name, actor))


async def call(method: Any) -> Any:
    """Call an actor's method; return what it returns."""
    return await method.remote()
