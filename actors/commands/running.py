"""Runs a command's coroutine; a signal ends it cleanly, another one a little later at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from actors.commands.failures import Interrupted

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_SIGNAL_S = 1.0
"""What comes within this time is the same signal: `timeout` and others signal a process and then its group."""


class Signals:
    """SIGINT and SIGTERM cancel the task; if it is still there at the next one, the process ends where it stands.

    got: the signal that came; None before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.got: int | None = None
        self._got_at = 0.0
        self._loop = loop
        self._task = task

    def arm(self) -> None:
        """Take the signals; do it again after starting Ray, which takes SIGTERM for itself."""
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._interrupt, number)

    def disarm(self) -> None:
        """Give them back."""
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def _interrupt(self, number: int) -> None:
        now = self._loop.time()
        if self.got is not None:
            if now - self._got_at < ONE_SIGNAL_S:
                return
            sys.stderr.write("kittiwake: ended at once\n")
            sys.stderr.flush()
            os._exit(128 + number)
        self.got, self._got_at = number, now
        self._task.cancel()


def run(command: Callable[[Signals], Coroutine[Any, Any, T]], *, fast: bool = False) -> T:
    """Return what the command returns. Raises Interrupted when a signal ended it.

    fast: on uvloop, where that is installed.
    """

    async def supervised() -> T:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[T]

        async def inner() -> T:
            return await command(signals)

        task = loop.create_task(inner())
        signals = Signals(loop, task)
        signals.arm()
        try:
            return await task
        except asyncio.CancelledError:
            if signals.got is None:
                raise
            raise Interrupted(signals.got) from None
        finally:
            signals.disarm()

    with asyncio.Runner(loop_factory=_uvloop_factory() if fast else None) as runner:
        return runner.run(supervised())


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
