"""Who starts and ends processes, with Ray replaced: deaths and failed starts are told, with reasons; stops are not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors import supervisor as module
from actors.spares import Spares
from actors.store import Store
from actors.supervisor import RaySupervisor
from cluster.messages import MATCHER, Died, Event, Peer, SpawnFailed
from tests.unit.conversation import conversation

PEER = Peer(MATCHER, 3)
HERE = "10.0.0.1"


class Method:
    """A remote method of a fake actor: awaits what the test sets."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def remote(self) -> asyncio.Future[None]:
        self._calls.append(self._name)
        return self.result


class Actor:
    """A fake actor. calls: of its methods, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.last = Method("last", self.calls)
        self.stop = Method("stop", self.calls)


class Bench:
    """A supervisor, what it told the coordinator's shell, and the fake actors by name.

    starting: raised by `start` of a role, if not None. held: `start` waits for it.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[Event] = []
        self.actors: dict[str, Actor] = {}
        self.started: list[tuple[Peer, int, str]] = []
        self.killed: list[Actor] = []
        self.signals: list[tuple[int, int]] = []
        self.making: Exception | None = None
        self.starting: Exception | None = None
        self.held: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()
        self.store = Store(directory / "coordinator.db")
        monkeypatch.setattr(module, "_find", self._find)
        monkeypatch.setattr(module, "_kill", self.killed.append)
        monkeypatch.setattr(module, "_is_role", lambda pid: pid == 77)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.signals.append((pid, number)))
        self.supervisor = RaySupervisor(
            self, self.store, self._make, self._start, HERE, Spares(0, 1, self._make, self.killed.append, lambda: True)
        )  # type: ignore[arg-type]

    def dispatch(self, event: Event) -> None:
        """As the coordinator's shell."""
        self.told.append(event)

    def _make(self, name: str) -> Any:
        if self.making is not None:
            raise self.making
        return self._on_loop(lambda: self.actors.setdefault(name, Actor()))

    def _find(self, name: str) -> Any:
        if name not in self.actors:
            raise ValueError(f"no actor {name}")
        return self.actors[name]

    def _on_loop(self, work: Callable[[], Actor]) -> Actor:
        """Futures belong to the loop's thread; this runs in another one."""

        async def made() -> Actor:
            return work()

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result()

    async def _start(self, actor: Any, peer: Peer, incarnation: int, client_address: str) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.starting is not None:
            raise self.starting
        self.started.append((peer, incarnation, client_address))

    async def settle(self) -> None:
        """Wait until nothing goes on but what waits for an actor."""
        watches = lambda: sum("last" in actor.calls and not actor.last.result.done() for actor in self.actors.values())  # noqa: E731
        async with asyncio.timeout(120):
            while len(self.supervisor._tasks) > watches():
                await asyncio.sleep(0)

    def actor(self, incarnation: int = 9) -> Actor:
        return self.actors[f"matcher-3-{incarnation}"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Bench]:
    """Return what makes the bench, once there is a loop."""
    return lambda: Bench(tmp_path, monkeypatch)


def going(work: Callable[[Bench], Any]) -> Callable[..., None]:
    """Run a test within a loop, with a bench; nothing may go on behind it."""

    def test(bench: Callable[[], Bench]) -> None:
        @conversation
        async def within() -> None:
            made = bench()
            try:
                await work(made)
            finally:
                for task in list(made.supervisor._tasks):
                    task.cancel()
                await asyncio.sleep(0)
                made.store.close()

        within()

    test.__name__ = work.__name__
    return test


@going
async def test_a_process_that_ends_by_itself_has_died(bench: Bench) -> None:
    bench.supervisor.spawn(PEER, 9, "host:7400")
    await bench.settle()
    assert bench.started == [(PEER, 9, "host:7400")]
    assert bench.actor().calls == ["last"]
    assert bench.told == []
    bench.actor().last.result.set_exception(RuntimeError("The actor died unexpectedly\nand a long story"))
    await bench.settle()
    assert bench.told == [Died(PEER, 9, "The actor died unexpectedly")]


@going
async def test_a_process_that_was_stopped_has_not_died(bench: Bench) -> None:
    bench.supervisor.spawn(PEER, 9, "")
    await bench.settle()
    bench.supervisor.stop(PEER, 9)
    bench.actor().stop.result.set_result(None)
    bench.actor().last.result.set_result(None)
    await bench.settle()
    assert bench.told == []
    assert bench.actor().calls == ["last", "stop"]
    assert bench.killed == [bench.actor()]


@going
async def test_a_start_that_fails_is_told_with_the_first_line_of_its_reason(bench: Bench) -> None:
    bench.starting = OSError("port 7400 is taken\nTraceback")
    bench.supervisor.spawn(PEER, 9, "")
    await bench.settle()
    assert bench.told == [SpawnFailed(PEER, 9, "port 7400 is taken")]
    assert bench.supervisor.failures == ["matcher 3: port 7400 is taken"]
    assert "last" not in bench.actor().calls, "nobody watches what never was"


@going
async def test_a_process_that_cannot_be_made_is_a_start_that_fails(bench: Bench) -> None:
    bench.making = RuntimeError("no node has room")
    bench.supervisor.spawn(PEER, 9, "")
    await bench.settle()
    assert bench.told == [SpawnFailed(PEER, 9, "no node has room")]


@going
async def test_a_start_that_was_stopped_meanwhile_is_no_failure(bench: Bench) -> None:
    bench.held, bench.starting = asyncio.Event(), RuntimeError("it was killed")
    bench.supervisor.spawn(PEER, 9, "")
    async with asyncio.timeout(120):
        while not bench.actors:
            await asyncio.sleep(0)
    bench.supervisor.stop(PEER, 9)
    await asyncio.sleep(0)
    bench.actor().stop.result.set_result(None)
    bench.held.set()
    await bench.settle()
    assert bench.told == []


@going
async def test_a_kill_asks_nobody(bench: Bench) -> None:
    """One that is stopped by a signal would not answer."""
    bench.supervisor.spawn(PEER, 9, "")
    await bench.settle()
    bench.supervisor.kill(PEER, 9, HERE, 77)
    assert bench.signals == [(77, signal.SIGKILL)], "at once"
    await bench.settle()
    assert bench.actor().calls == ["last"]
    assert bench.killed == [bench.actor()]
    bench.actor().last.result.set_exception(RuntimeError("killed"))
    await bench.settle()
    assert bench.told == [Died(PEER, 9, "killed")], "which the coordinator knows"


@pytest.mark.parametrize(("host", "pid"), [("10.0.0.2", 77), (HERE, 78)])
def test_another_machines_process_and_one_that_is_no_role_get_no_signal(
    host: str, pid: int, bench: Callable[[], Bench]
) -> None:
    async def work(made: Bench) -> None:
        made.supervisor.spawn(PEER, 9, "")
        await made.settle()
        made.supervisor.kill(PEER, 9, host, pid)
        await made.settle()
        assert made.signals == []
        assert made.killed == [made.actor()]

    going(work)(bench)


def test_the_log_tells_once_who_died_and_who_was_taken_for_dead(
    bench: Callable[[], Bench], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(made: Bench) -> None:
        for incarnation, pid in ((8, 77), (9, 78)):
            made.supervisor.spawn(PEER, incarnation, "")
            await made.settle()
            if pid == 78:  # it is no more, and the coordinator has it ended when it is told
                made.actor(incarnation).last.result.set_exception(RuntimeError("it crashed\nat length"))
                await made.settle()
            made.supervisor.kill(PEER, incarnation, HERE, pid)
            await made.settle()
            if pid == 77:
                made.actor(incarnation).last.result.set_exception(RuntimeError("killed"))
                await made.settle()

    going(work)(bench)
    assert caplog.messages == [
        f"matcher 3 is taken for dead: process 77 on {HERE} is ended",
        "matcher 3 has died: it crashed",
    ]


@going
async def test_what_an_earlier_life_had_started_is_watched_by_its_name(bench: Bench) -> None:
    bench.actors["matcher-3-5"] = Actor()
    bench.supervisor.watch(PEER, 5)
    bench.supervisor.watch(PEER, 6)
    await bench.settle()
    assert bench.told == [Died(PEER, 6, "no actor matcher-3-6")], "there is no such process any more"
    bench.actor(5).last.result.set_exception(RuntimeError("gone"))
    await bench.settle()
    assert bench.told[1:] == [Died(PEER, 5, "gone")]


@going
async def test_what_is_not_there_need_not_be_ended(bench: Bench) -> None:
    bench.supervisor.stop(PEER, 9)
    bench.supervisor.kill(PEER, 8, HERE, 78)
    await bench.settle()
    assert (bench.killed, bench.told) == ([], [])


def test_a_number_is_a_roles_only_if_its_process_says_so() -> None:
    assert not module._is_role(os.getpid())
    assert not module._is_role(1 << 30)
