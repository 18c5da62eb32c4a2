"""Warm processes, with Ray replaced: as many as configured, made up for, taken over by the coordinator's next life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors import spares as module
from actors.spares import Spares
from tests.unit.conversation import conversation


class Actor:
    """A fake actor; `warm` returns, or raises if it cannot be warmed."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        self.warm = self

    async def remote(self) -> None:
        if self._reason:
            raise RuntimeError(self._reason)


class Ray:
    """What makes and kills them. made: names, in order."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.killed: list[Any] = []

    def make(self, name: str) -> Any:
        self.made.append(name)
        return Actor()

    def spares(self, count: int, life: int = 1) -> Spares:
        return Spares(count, life, self.make, self.killed.append)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFILL_S", 0.0)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
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
    assert taken[0] == "spare-1-1"
    await _until(lambda: len(spares) == 2)
    assert ray.made == ["spare-1-1", "spare-1-2", "spare-1-3"]
    await spares.close()
    assert len(ray.killed) == 2, "the one that was taken is a slice"


@conversation
async def test_the_next_life_takes_over_what_is_warm_and_ends_the_rest() -> None:
    ray = Ray()
    spares = ray.spares(2, life=5)
    warm, dead, another, superfluous = Actor(), Actor("it is dead"), Actor(), Actor()
    spares.begin([("spare-4-1", warm), ("spare-4-2", dead), ("spare-4-7", another), ("spare-4-8", superfluous)])
    await _until(lambda: len(ray.killed) == 2)
    assert ray.killed == [dead, superfluous]
    assert ray.made == []
    assert [spares.take(), spares.take()] == [("spare-4-1", warm), ("spare-4-7", another)]
    await _until(lambda: len(spares) == 2)
    assert ray.made == ["spare-5-1", "spare-5-2"]
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
