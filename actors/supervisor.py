"""Starts and ends the processes of slices, as Ray actors, when the coordinator asks for it; and keeps its memory.

An actor is detached and named `layer-slot-incarnation`, so that it runs on whoever made it ends. Calls to Ray block and
take milliseconds or, on a cluster without room, long: they are made on other threads than the coordinator's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from actors.shell import Shell
from actors.spares import PREFIX, Spares, call
from actors.store import Store
from cluster.messages import Died, Peer, SpawnFailed

STOP_S = 20.0
"""How long an actor may take to close its ports, and an exit point to seal what it has written, before it is killed."""

log = logging.getLogger("kittiwake")


def actor_name(peer: Peer, incarnation: int) -> str:
    """Return the name that Ray knows a process by."""
    return f"{peer.layer}-{peer.slot}-{incarnation}"


class RaySupervisor:
    """See `actors.shell.Supervisor`. make: returns a new actor of this name; it blocks. start: calls its `start`.

    host:     where this process runs; others can be killed by their number on the same one only.
    spares:   processes that wait to become a slice.
    failures: what could not be started since the beginning, and why; the newest last.
    """

    def __init__(
        self,
        shell: Shell,
        store: Store,
        make: Callable[[str], Any],
        start: Callable[[Any, Peer, int, str], Coroutine[Any, Any, None]],
        host: str,
        spares: Spares,
    ) -> None:
        self._shell = shell
        self._host = host
        self._spares = spares
        self._store = store
        self._make = make
        self._start = start
        self._made: dict[tuple[Peer, int], asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[tuple[Peer, int]] = set()  # by us, and not yet known to be no more
        self._closed = False
        self.failures: list[str] = []

    def spawn(self, peer: Peer, incarnation: int, client_address: str) -> None:
        """Begin to start a process."""
        if not self._closed:
            name = actor_name(peer, incarnation)
            spare = self._spares.take()
            if spare is None:
                making = self._run(asyncio.to_thread(self._make, name))
            else:
                self._store.call(name, spare[0])
                making = self._run(_returned(spare[1]))
            self._made[peer, incarnation] = making
            self._run(self._begin(peer, incarnation, client_address, making))

    def stop(self, peer: Peer, incarnation: int) -> None:
        """Begin to end a process."""
        self._run(self._end(peer, incarnation))

    def kill(self, peer: Peer, incarnation: int, host: str, pid: int) -> None:
        """End a process at once: one that is stopped would answer nobody."""
        here = host == self._host
        if not here or _is_role(pid):  # else it has died, which is told where that is seen
            log.warning("%s is taken for dead: process %d on %s is ended", peer, pid, host)
            self._ended.add((peer, incarnation))
            if here:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._run(self._end(peer, incarnation, patient=False))

    def watch(self, peer: Peer, incarnation: int) -> None:
        """Say Died when the process of this slice is no more; it was started by an earlier life of ours."""
        self._run(self._watch(peer, incarnation, self._found(peer, incarnation)))

    async def spares(self, processes: Iterable[tuple[Peer, int]]) -> list[tuple[str, Any]]:
        """Return the spares of an earlier life of ours that have not become one of these processes."""
        used = {self._store.called(actor_name(peer, incarnation)) for peer, incarnation in processes}
        return await asyncio.to_thread(_unused, used)

    def persist(self, memory: bytes, entry: tuple[int, bytes] | None) -> None:
        """Have it on disk on return."""
        self._store.write(memory, entry)

    async def close(self, processes: Iterable[tuple[Peer, int]]) -> None:
        """End these processes and start no more."""
        self._closed = True
        await self._spares.close()
        await asyncio.gather(*(self._end(peer, incarnation) for peer, incarnation in processes))
        self._store.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _begin(self, peer: Peer, incarnation: int, client_address: str, making: asyncio.Task[Any]) -> None:
        try:
            await self._start(await making, peer, incarnation, client_address)
            self._run(self._watch(peer, incarnation, making))
        except Exception as error:
            if (peer, incarnation) in self._made:  # else it was stopped meanwhile
                reason = str(getattr(error, "cause", None) or error).partition("\n")[0]  # Ray tells long stories
                log.warning("%s did not start: %s", peer, reason)
                self.failures.append(f"{peer}: {reason}")
                self._shell.dispatch(SpawnFailed(peer, incarnation, reason))

    async def _watch(self, peer: Peer, incarnation: int, actor: Awaitable[Any]) -> None:
        try:
            await call((await actor).last)
        except Exception as error:
            if not self._closed:
                reason = str(error).partition("\n")[0]
                if (peer, incarnation) not in self._ended:
                    log.warning("%s has died: %s", peer, reason)
                self._ended.discard((peer, incarnation))
                self._shell.dispatch(Died(peer, incarnation, reason))

    def _found(self, peer: Peer, incarnation: int) -> Awaitable[Any]:
        name = actor_name(peer, incarnation)
        return asyncio.to_thread(_find, self._store.called(name) or name)

    async def _end(self, peer: Peer, incarnation: int, *, patient: bool = True) -> None:
        making = self._made.pop((peer, incarnation), None)
        try:
            actor = await (making or self._found(peer, incarnation))
        except Exception as error:
            log.debug("%s was not there to be stopped: %s", peer, error)
            return
        if patient:
            with contextlib.suppress(Exception):  # it may be dead, or busy
                await asyncio.wait_for(call(actor.stop), STOP_S)
        with contextlib.suppress(Exception):
            await asyncio.to_thread(_kill, actor)


def _is_role(pid: int) -> bool:
    """Tell whether the process with this number is a role's; numbers are given again."""
    try:
        return b"RoleActor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def _returned(actor: Any) -> Any:
    return actor


def _unused(used: set[str | None]) -> list[tuple[str, Any]]:
    import ray

    found = []
    for name in ray.util.list_named_actors():
        if name.startswith(PREFIX) and name not in used:
            with contextlib.suppress(Exception):  # it has died meanwhile
                found.append((name, ray.get_actor(name)))
    return found


def _find(name: str) -> Any:
    import ray

    return ray.get_actor(name)


def _kill(actor: Any) -> None:
    import ray

    ray.kill(actor)
