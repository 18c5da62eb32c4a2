"""Warm processes, with Ray replaced: as many as configured, made up for, taken over by the coordinator's next life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from actors import spares as module
from actors.spares import Spares
from tests.unit.conversation import conversation


class Method:
    """A remote method that waits for what the test sets."""

    def __init__(self, answer: object = None) -> None:
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
            self.answer.exception()  # it may be asked for or not
        elif answer is not None:
            self.answer.set_result(answer)

    def remote(self) -> asyncio.Future[object]:
        return asyncio.shield(self.answer)


class Actor:
    """A fake actor; it is warm at once unless it is cold, and dead if there is a reason."""

    def __init__(self, reason: str = "", *, cold: bool = False, free: bool = True) -> None:
        error = RuntimeError(reason) if reason else None
        self.free = Method(error or free)
        self.warm = Method(error or (None if cold else True))
        self.last = Method(error)


class Ray:
    """What makes and kills them. made: names; those that are made at the same time in any order."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.actors: dict[str, Actor] = {}
        self.cold = False
        self.reason = ""
        self.loop = asyncio.get_running_loop()
        self.killed: list[Any] = []
        self.calm = True

    def make(self, name: str) -> Any:
        async def make() -> Actor:  # futures belong to the loop's thread
            return self.actors.setdefault(name, Actor(self.reason, cold=self.cold))

        self.made.append(name)
        return asyncio.run_coroutine_threadsafe(make(), self.loop).result()

    def spares(self, count: int, life: int = 1) -> Spares:
        return Spares(count, life, self.make, self.killed.append, lambda: self.calm)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFILL_S", 0.0)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0)


@conversation
async def test_one_that_is_taken_is_made_up_for() -> None:
    ray = Ray()
    spares = ray.spares(2)
    assert spares.take() is None
    spares.begin()
    await _until(lambda: len(spares) == 2)
    taken = spares.take()
    assert taken is not None
    assert taken == (taken[0], ray.actors[taken[0]])
    assert len(spares) == 1
    await _until(lambda: len(spares) == 2)
    assert sorted(ray.made) == ["spare-1-1", "spare-1-2", "spare-1-3"]
    await spares.close()
    assert len(ray.killed) == 2, "the one that was taken is a slice"


@conversation
async def test_one_is_made_up_for_when_what_it_was_taken_for_is_over() -> None:
    ray = Ray()
    spares = ray.spares(1)
    spares.begin()
    await _until(lambda: len(spares) == 1)
    ray.calm = False
    spares.take()
    for _ in range(50):
        await asyncio.sleep(0)
    assert ray.made == ["spare-1-1"]
    ray.calm = True
    await _until(lambda: len(spares) == 1)
    ray.calm = False
    with patch.object(module, "CALM_S", 0.0):
        spares.take()
    await _until(lambda: len(spares) == 1)
    await spares.close()


@conversation
async def test_the_next_life_takes_over_what_is_warm_and_ends_the_rest() -> None:
    ray = Ray()
    warm, dead, another, superfluous = Actor(), Actor("it is dead"), Actor(), Actor()
    used = Actor(free=False)
    found = [("spare-4-1", warm), ("spare-4-2", dead), ("spare-4-3", used), ("spare-4-7", another), ("9", superfluous)]
    spares = ray.spares(4, life=5)
    spares.begin(found)
    await _until(lambda: len(ray.killed) == 3 and len(spares) == 4)
    assert {id(actor) for actor in ray.killed} == {id(superfluous), id(dead), id(used)}
    assert sorted(ray.made) == ["spare-5-1", "spare-5-2"]
    assert [spares.take(), spares.take()] == [("spare-4-1", warm), ("spare-4-7", another)]
    await _until(lambda: len(spares) == 4)
    assert sorted(ray.made) == ["spare-5-1", "spare-5-2", "spare-5-3", "spare-5-4"]
    await spares.close()


@conversation
async def test_without_any_configured_those_of_an_earlier_life_are_ended() -> None:
    ray = Ray()
    spares = ray.spares(0)
    former = Actor()
    spares.begin([("spare-4-1", former)])
    await _until(lambda: bool(ray.killed))
    assert (ray.killed, ray.made, len(spares)) == ([former], [], 0)
    await spares.close()


@conversation
async def test_one_of_an_earlier_life_is_there_while_others_load_and_those_are_not_waited_for() -> None:
    ray = Ray()
    loading, warm = Actor(cold=True), Actor()
    spares = ray.spares(2, life=5)
    spares.begin([("spare-4-1", loading), ("spare-4-2", warm)])
    await _until(lambda: len(spares) == 2)
    await asyncio.sleep(0)
    assert spares.take() == ("spare-4-2", warm), "the warm one first"
    assert spares.take() == ("spare-4-1", loading), "then one that is under way"
    assert spares.take() is None
    await spares.close()


@conversation
async def test_so_many_are_started_at_once_and_no_more() -> None:
    ray = Ray()
    ray.cold = True
    spares = ray.spares(5)
    spares.begin()
    await _until(lambda: len(spares) == module.AT_ONCE)
    for count in range(3, 6):
        ray.actors[f"spare-1-{count - 2}"].warm.answer.set_result(True)
        await _until(lambda: len(spares) == count)  # noqa: B023
        await asyncio.sleep(0)
        assert len(ray.made) == count
    await spares.close()


@conversation
async def test_one_that_dies_while_it_waits_is_made_up_for() -> None:
    ray = Ray()
    spares = ray.spares(1)
    spares.begin()
    await _until(lambda: len(spares) == 1)
    ray.actors["spare-1-1"].last.answer.set_exception(RuntimeError("killed"))
    await _until(lambda: ray.made == ["spare-1-1", "spare-1-2"] and len(spares) == 1)
    taken = spares.take()
    assert taken == ("spare-1-2", ray.actors["spare-1-2"])
    ray.actors["spare-1-2"].last.answer.set_exception(RuntimeError("it is a slice that dies: others see to that"))
    await _until(lambda: len(spares) == 1)
    await asyncio.sleep(0)
    assert ray.made == ["spare-1-1", "spare-1-2", "spare-1-3"]
    await spares.close()


@conversation
async def test_one_that_does_not_start_is_tried_again_later() -> None:
    ray = Ray()
    ray.reason = "it cannot be warmed"
    spares = ray.spares(1)
    spares.begin()
    await _until(lambda: bool(ray.actors) and not len(spares) and bool(spares._timers))
    assert ray.made == ["spare-1-1"], "not at once"
    await spares.close()
