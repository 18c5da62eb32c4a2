"""Keeps another process of the coordinator at hand: loaded, and waiting for the lock (`succession.py`).

Both are detached actors of the same class with the same arguments, which Ray starts anew when they die; the names are
all that tells them apart. Which of them is the coordinator is decided by the lock alone, and changes each time that one
dies: what Ray starts in its place waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from actors.spares import call
from cluster.messages import COORDINATOR

NAMES = (COORDINATOR, f"{COORDINATOR}-2")
"""Of the two actors. The first one is made by whoever starts the cluster."""
PAUSE_S = 1.0
"""Until a standby is looked for again: who has just taken over, and the slices, need the processor first."""

log = logging.getLogger("kittiwake")


def other_name(name: str) -> str:
    """Return the name of the other one."""
    return NAMES[1 - NAMES.index(name)]


class Standby:
    """Sees to the other process, as long as `run` runs.

    find: returns the actor of this name, or raises; make: returns a new one; kill: ends one for good. All block.
    told: called with the process number of the one that waits, and with None when none does.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[str], Any],
        make: Callable[[str], Any],
        kill: Callable[[Any], None],
        told: Callable[[int | None], None],
    ) -> None:
        self._name = name
        self._find = find
        self._make = make
        self._kill = kill
        self._told = told

    async def run(self) -> None:
        """Have the other process made if there is none, and one that is of no use replaced; never returns."""
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await self._one()
            except Exception as error:
                log.debug("no coordinator stands by: %s", error)  # Ray starts it anew; else it is made

    async def _one(self) -> None:
        """Return, or raise, when the one that waits does no more."""
        try:
            actor = await asyncio.to_thread(self._find, self._name)
        except ValueError:  # Ray knows none, or has given it up
            actor = await asyncio.to_thread(self._make, self._name)
        pid = await call(actor.stands_by)
        if not pid:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self._kill, actor)
            return
        self._told(pid)
        try:
            await call(actor.last)
        finally:
            self._told(None)
