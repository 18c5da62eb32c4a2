"""Processes that wait to become a slice: started and warm, so that one that dies is soon replaced.

A spare has loaded all that any layer needs, the compiled matching code as well; what is left is to open its ports and
to join. As many as configured are kept; one that is taken is made up for a little later, as whoever needs it needs the
processor too. They outlive the coordinator's process: its next life takes them over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

REFILL_S = 1.0
"""A slice that finds a spare is there after 0.2 s."""
RETRY_S = 30.0
ADOPT_S = 30.0
"""How long one of an earlier life may take to have warmed."""
PREFIX = "spare-"

log = logging.getLogger("kittiwake")


class Spares:
    """count: how many to keep. life: the coordinator's process.

    make: returns a new actor of this name. kill: ends one. Both block.
    """

    def __init__(self, count: int, life: int, make: Callable[[str], Any], kill: Callable[[Any], None]) -> None:
        self._count = count
        self._life = life
        self._make = make
        self._kill = kill
        self._next = 1
        self._ready: list[tuple[str, Any]] = []
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    def begin(self, found: Iterable[tuple[str, Any]] = ()) -> None:
        """Have them started. found: names and actors of an earlier life's; what is not needed of them is ended."""
        self._fill(0.0, list(found))

    def take(self) -> tuple[str, Any] | None:
        """Return a spare's name and actor, None if there is none."""
        if not self._ready:
            return None
        self._fill(REFILL_S, [])
        return self._ready.pop(0)

    async def close(self) -> None:
        """End them all."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        for _, actor in self._ready:
            await self._end(actor)
        self._ready.clear()

    async def _end(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # it may be dead
            await asyncio.to_thread(self._kill, actor)

    def _fill(self, after_s: float, found: list[tuple[str, Any]]) -> None:
        if not self._closed and (self._filling is None or self._filling.done()) and (self._count or found):
            self._filling = asyncio.get_running_loop().create_task(self._keep_full(after_s, found))

    async def _adopt(self, name: str, actor: Any) -> None:
        if len(self._ready) < self._count:
            with contextlib.suppress(Exception):  # it is dead, or has become a slice
                await asyncio.wait_for(call(actor.warm), ADOPT_S)
                self._ready.append((name, actor))
                return
        await self._end(actor)

    async def _keep_full(self, after_s: float, found: list[tuple[str, Any]]) -> None:
        for name, actor in found:
            await self._adopt(name, actor)
        await asyncio.sleep(after_s)
        while len(self._ready) < self._count:
            name = f"{PREFIX}{self._life}-{self._next}"
            self._next += 1
            try:
                actor = await asyncio.to_thread(self._make, name)
                await call(actor.warm)
            except Exception as error:
                log.warning("a spare did not start: %s", str(error).partition("\n")[0])
                await asyncio.sleep(RETRY_S)
                continue
            self._ready.append((name, actor))


async def call(method: Any) -> Any:
    """Call an actor's method; return what it returns."""
    return await method.remote()
