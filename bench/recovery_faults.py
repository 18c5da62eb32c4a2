"""The faults of a run: whom they hit, when, that they happened, and when the cluster had taken over.

Only a process that the cluster's status lists at that moment, and that is an actor of Ray on this machine, is ever
sent a signal.

A takeover is over when (a) the status shows the slot serving with a higher incarnation, and (b) every publisher has had
an acknowledgement of a publication that was due after the fault. After a pause (a) is met by the same incarnation too,
once it goes on and is heard.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.process import is_actor, is_stopped, started_at
from cluster.errors import KittiwakeError
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, COORDINATOR, EXIT_POINT, MATCHER

ROLES = (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT, COORDINATOR)
WATCH_S = 0.05
"""Between two looks at the status; times of (a) are late by up to this."""
HEARD_MS = 1000
"""After a pause a role counts as back when it was heard within this time."""
GONE_S = 10.0
"""A killed process is gone within this time, and a zombie has noticed that it was replaced."""

Status = dict[str, Any]
Row = dict[str, Any]


@dataclass
class Fault:
    """One fault. Times are of the monotonic clock; None: it never was.

    incarnation: of the victim; after: of its slot when the takeover was over, or given up.
    happened:    the process is gone, or was seen stopped.
    serving:     when (a) held. acknowledged: when (b) was seen.
    zombie:      a paused process was replaced; it has ended after it went on. None: it was not replaced.
    """

    role: str
    slot: int
    pid: int
    incarnation: int
    at: float
    stop_s: float | None = None
    happened: bool = False
    serving: float | None = None
    acknowledged: float | None = None
    after: int | None = None
    zombie: bool | None = None

    @property
    def name(self) -> str:
        """Whom it hit, and how."""
        return f"{self.role} {self.slot}" + ("" if self.stop_s is None else f" stopped for {self.stop_s:g} s")

    @property
    def taken_over(self) -> bool:
        """The takeover came to its end."""
        return self.serving is not None and self.acknowledged is not None


class NoVictim(Exception):
    """There is nobody of the role who could be hit."""


def row_of(status: Status, role: str, slot: int) -> Row | None:
    """Return the slot's row; the coordinator's has what the others' have, as far as it applies."""
    if role == COORDINATOR:
        own = status.get("coordinator")
        if own is None:
            return None
        state = "serving" if status["state"] == "serving" else status["state"]
        return {"layer": COORDINATOR, "slot": 0, "state": state, "heard_ms_ago": 0, **own}
    rows = (row for row in status["members"] if (row["layer"], row["slot"]) == (role, slot))
    return next(rows, None)


def victims(status: Status, role: str, spared: Sequence[tuple[str, int]]) -> list[Row]:
    """Return the rows of who may be hit: serving, with a pid, and not spared."""
    slots = [0] if role == COORDINATOR else [row["slot"] for row in status["members"] if row["layer"] == role]
    rows = [row_of(status, role, slot) for slot in sorted(slots) if (role, slot) not in spared]
    return [row for row in rows if row is not None and row["state"] == "serving" and "pid" in row]


class Injector:
    """Makes the faults. look: asks for the status. latest: as in recovery_load. spared: slots never to be hit."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Status]],
        latest: Sequence[float],
        rng: random.Random,
        *,
        interval_s: tuple[float, float],
        timeout_s: float,
        spared: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._look = look
        self._latest = latest
        self._rng = rng
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._spared = spared
        self.faults: list[Fault] = []
        self.given_up: str | None = None
        """Why there were fewer faults than asked for."""

    async def run(self, roles: Iterator[str], count: int, stop_s: Iterator[float] | None) -> None:
        """Make so many faults, one after the other; end early when one is not recovered from."""
        due = time.monotonic() + self._rng.uniform(*self._interval_s)
        for _ in range(count):
            await asyncio.sleep(due - time.monotonic())
            try:
                fault = await self._hit(next(roles), None if stop_s is None else next(stop_s))
            except NoVictim as error:
                self.given_up = str(error)
                return
            due = fault.at + self._rng.uniform(*self._interval_s)
            if not fault.taken_over:
                self.given_up = f"{fault.name} was not taken over within {self._timeout_s:g} s"
                return

    async def _status(self) -> Status | None:
        try:
            return await self._look()
        except KittiwakeError:
            return None

    async def _hit(self, role: str, stop_s: float | None) -> Fault:
        status = await self._status()
        rows = victims(status, role, self._spared) if status is not None else []
        if not rows:
            raise NoVictim(f"the status lists no {role} that serves and may be hit")
        row = self._rng.choice(rows)
        pid = int(row["pid"])
        started = started_at(pid)
        if started is None or not is_actor(pid):
            raise NoVictim(f"process {pid} of {role} {row['slot']} is not an actor on this machine")
        fault = Fault(role, row["slot"], pid, row["incarnation"], time.monotonic(), stop_s)
        self.faults.append(fault)
        os.kill(pid, signal.SIGKILL if stop_s is None else signal.SIGSTOP)
        continued = asyncio.create_task(self._continue(fault, started)) if stop_s is not None else None
        try:
            await self._watch(fault, started, continued)
        finally:
            if continued is not None:
                # Whatever happens here, nobody is left stopped.
                await continued
        return fault

    async def _continue(self, fault: Fault, started: str) -> None:
        assert fault.stop_s is not None, "a pause has a length"
        try:
            while time.monotonic() < fault.at + fault.stop_s:
                fault.happened = fault.happened or is_stopped(fault.pid)
                await asyncio.sleep(0.01)
        finally:
            if started_at(fault.pid) == started:
                os.kill(fault.pid, signal.SIGCONT)

    async def _watch(self, fault: Fault, started: str, continued: asyncio.Task[None] | None) -> None:
        """Note when the cluster has taken over; give up after the time."""
        deadline = fault.at + self._timeout_s + (fault.stop_s or 0.0)
        looked = 0.0
        while time.monotonic() < deadline and not (
            fault.happened and fault.taken_over and (continued is None or continued.done())
        ):
            if fault.stop_s is None and started_at(fault.pid) != started:
                fault.happened = True
            if fault.acknowledged is None and min(self._latest) > fault.at:
                fault.acknowledged = time.monotonic()
            if fault.serving is None and time.monotonic() - looked >= WATCH_S:
                looked = time.monotonic()
                self._seen(fault, await self._status(), continued is not None and continued.done())
            await asyncio.sleep(0.01)
        if continued is not None:
            await continued
            if fault.after is not None and fault.after > fault.incarnation:
                fault.zombie = await self._ends(fault.pid, started)

    def _seen(self, fault: Fault, status: Status | None, continued: bool) -> None:
        row = None if status is None else row_of(status, fault.role, fault.slot)
        if row is None or row["state"] != "serving":
            return
        fault.after = row["incarnation"]
        again = row["incarnation"] > fault.incarnation
        if again or (continued and row["heard_ms_ago"] < HEARD_MS):
            fault.serving = time.monotonic()

    async def _ends(self, pid: int, started: str) -> bool:
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            if started_at(pid) != started:
                return True
            await asyncio.sleep(0.05)
        return False
