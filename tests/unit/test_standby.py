"""The process that stands by, with Ray replaced: made, told of, replaced when it is of no use, and never given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors import standby as module
from actors.standby import NAMES, Standby, other_name
from tests.unit.conversation import conversation


class Method:
    """A remote method that answers what the test sets."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked = False

    def remote(self) -> asyncio.Future[int]:
        self.asked = True
        return self.answer


class Actor:
    """A fake actor: `stands_by` answers, `last` never does until it dies."""

    def __init__(self, pid: int | None = None) -> None:
        self.stands_by = Method()
        self.last = Method()
        if pid is not None:
            self.stands_by.answer.set_result(pid)

    def die(self) -> None:
        for method in (self.stands_by, self.last):
            if not method.answer.done():
                method.answer.set_exception(RuntimeError("the actor died"))


class Ray:
    """What knows actors by name. made: those made, in order."""

    def __init__(self, *to_make: Actor) -> None:
        self.known: dict[str, Actor] = {}
        self.made: list[str] = []
        self.killed: list[Actor] = []
        self.told: list[int | None] = []
        self._to_make = list(to_make)

    def find(self, name: str) -> Actor:
        if name not in self.known:
            raise ValueError(f"no actor {name}")
        return self.known[name]

    def make(self, name: str) -> Actor:
        self.made.append(name)
        self.known[name] = self._to_make.pop(0)
        return self.known[name]

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)
        self.known.clear()

    def standby(self) -> Standby:
        return Standby(NAMES[1], self.find, self.make, self.kill, self.told.append)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0)


def test_two_names_stand_for_each_other() -> None:
    assert [other_name(name) for name in NAMES] == [NAMES[1], NAMES[0]]
    assert other_name(other_name("coordinator")) == "coordinator"


@conversation
async def test_it_is_made_once_and_known_as_long_as_it_waits() -> None:
    ray = Ray(Actor(71))
    running = asyncio.create_task(ray.standby().run())
    await _until(lambda: ray.told == [71])
    assert ray.made == [NAMES[1]]
    # It dies, and Ray starts it anew under the same name: it is looked for, not made.
    dead, ray.known[NAMES[1]] = ray.known[NAMES[1]], Actor(72)
    dead.die()
    await _until(lambda: ray.told == [71, None, 72])
    assert (ray.made, ray.killed) == ([NAMES[1]], [])
    running.cancel()


@conversation
async def test_it_is_not_known_before_it_waits() -> None:
    slow = Actor()
    ray = Ray(slow)
    running = asyncio.create_task(ray.standby().run())
    await _until(lambda: slow.stands_by.asked)
    assert ray.told == []
    slow.die()  # while it loads
    ray.known[NAMES[1]] = Actor(5)
    await _until(lambda: ray.told == [5])
    running.cancel()


@conversation
async def test_one_on_another_node_is_replaced() -> None:
    elsewhere, here = Actor(0), Actor(9)
    ray = Ray(elsewhere, here)
    running = asyncio.create_task(ray.standby().run())
    await _until(lambda: ray.told == [9])
    assert ray.killed == [elsewhere]
    assert ray.made == [NAMES[1], NAMES[1]]
    running.cancel()


@conversation
async def test_one_that_cannot_be_made_is_tried_again() -> None:
    ray = Ray()
    running = asyncio.create_task(ray.standby().run())
    await _until(lambda: len(ray.made) > 3)
    assert not running.done()
    assert ray.told == []
    running.cancel()
