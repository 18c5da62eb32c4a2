"""Processes that wait to become a slice: started and warm, so that one that dies is soon replaced.

A spare has loaded all that any layer needs, the compiled matching code as well; what is left is to open its ports and
to join. As many as configured are kept; one that is taken is made up for when what it was taken for is over, as that
needs the processor too. One that is not warm yet is taken where no other is left: it is nearer to being a slice than a
process that is only now begun.

They outlive the coordinator's process: its next life takes them over, as soon as they say that they are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

REFILL_S = 0.5
"""Between two looks whether it is over. A slice that finds a spare is there after 0.2 s."""
CALM_S = 30.0
"""Until one that was taken is made up for although it is not over."""
RETRY_S = 30.0
"""Until another one is tried when one could not be started."""
AT_ONCE = 2
"""So many are started at the same time: each takes a processor for two seconds."""
PREFIX = "spare-"

log = logging.getLogger("kittiwake")


class _Spare:
    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.warm = False


class Spares:
    """count: how many to keep. life: the coordinator's process.

    make: returns a new actor of this name. kill: ends one. Both block.
    calm: tells whether the cluster is what it is wanted to be, with nothing under way.
    """

    def __init__(
        self,
        count: int,
        life: int,
        make: Callable[[str], Any],
        kill: Callable[[Any], None],
        calm: Callable[[], bool],
    ) -> None:
        self._count = count
        self._life = life
        self._make = make
        self._kill = kill
        self._calm = calm
        self._next = 1
        self._spares: dict[str, _Spare] = {}  # the oldest first
        self._expected = 0  # that are being made, or asked whether they are free
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._spares)

    def begin(self, found: Iterable[tuple[str, Any]] = ()) -> None:
        """Have them started. found: names and actors of an earlier life's; what is not needed of them is ended."""
        for name, actor in found:
            if self._expected < self._count:
                self._expected += 1
                self._run(self._adopt(name, actor))
            else:
                self._run(self._end(actor))
        self._fill()

    def take(self) -> tuple[str, Any] | None:
        """Return a spare's name and actor, a warm one if there is one; None if there is none at all."""
        name = next((name for name, spare in self._spares.items() if spare.warm), next(iter(self._spares), None))
        if name is None:
            return None
        self._fill_when_calm(asyncio.get_running_loop().time() + CALM_S)
        return name, self._spares.pop(name).actor

    async def close(self) -> None:
        """End them all."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for spare in self._spares.values():
            await self._end(spare.actor)
        self._spares.clear()

    async def _end(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # it may be dead
            await asyncio.to_thread(self._kill, actor)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    def _fill_when_calm(self, latest: float) -> None:
        def due() -> None:
            if self._calm() or asyncio.get_running_loop().time() >= latest:
                self._fill()
            else:
                self._fill_when_calm(latest)

        self._later(REFILL_S, due)

    def _later(self, after_s: float, work: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            work()

        if not self._closed:
            timer = asyncio.get_running_loop().call_later(after_s, due)
            self._timers.add(timer)

    def _fill(self) -> None:
        """Begin to start those that are missing, as many as may start at the same time."""
        starting = self._expected + sum(not spare.warm for spare in self._spares.values())
        missing = self._count - self._expected - len(self._spares)
        for _ in range(0 if self._closed else min(missing, AT_ONCE - starting)):
            name = f"{PREFIX}{self._life}-{self._next}"
            self._next += 1
            self._expected += 1
            self._run(self._start(name))

    async def _start(self, name: str) -> None:
        try:
            actor = await asyncio.to_thread(self._make, name)
        except Exception as error:
            self._failed(error)
            return
        finally:
            self._expected -= 1
        await self._keep(name, actor)

    async def _adopt(self, name: str, actor: Any) -> None:
        try:
            free = await call(actor.free)
        except Exception as error:
            log.debug("spare %s of an earlier life: %s", name, error)
            free = False
        finally:
            self._expected -= 1
        if free:
            await self._keep(name, actor)
        else:
            await self._end(actor)  # it is dead, or has become a slice that is not needed any more
            self._fill()

    async def _keep(self, name: str, actor: Any) -> None:
        """Offer it until it is taken, or dies."""
        spare = self._spares[name] = _Spare(actor)
        try:
            await call(actor.warm)
            spare.warm = True
            self._fill()
            await call(actor.last)
        except Exception as error:
            if self._spares.pop(name, None) is not None:
                self._failed(error, RETRY_S if not spare.warm else REFILL_S)

    def _failed(self, error: Exception, again_s: float = RETRY_S) -> None:
        log.warning("a spare is no more: %s", str(error).partition("\n")[0])
        self._later(again_s, self._fill)


async def call(method: Any) -> Any:
    """Call an actor's method; return what it returns."""
    return await method.remote()
