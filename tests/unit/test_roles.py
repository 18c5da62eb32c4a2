"""The process of a slice, without Ray: it loads what its layer needs, and can become a slice before it is warm."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from actors import roles as module
from actors.roles import RoleActor
from cluster.config import Config
from cluster.messages import ACCESS_POINT, EXIT_POINT, MATCHER
from tests.unit.conversation import conversation


class Loading:
    """What is loaded: each portion waits for leave. begun: portions, in order. started: layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.leave = {name: threading.Event() for name in ("matcher", "output")}
        self.started: list[str] = []
        monkeypatch.setattr(module, "_load_matcher", lambda: self._load("matcher"))
        monkeypatch.setattr(module, "_load_output", lambda: self._load("output"))
        monkeypatch.setattr(module, "start_role", self._start)
        monkeypatch.setattr(module, "prepare_process", lambda: None)

    def _load(self, name: str) -> None:
        self.begun.append(name)
        assert self.leave[name].wait(60)

    async def _start(self, peer: object, *_: object, **__: object) -> tuple[None, None, str]:
        self.started.append(peer.layer)  # type: ignore[attr-defined]
        return None, None, ""

    def start(self, actor: RoleActor, layer: str) -> asyncio.Task[None]:
        config = msgspec.json.encode(Config())
        place = ("127.0.0.1", 1)
        return asyncio.create_task(actor.start(layer, 0, 1, config, b"secret", place, "127.0.0.1", ""))

    async def reaches(self, *begun: str) -> None:
        async with asyncio.timeout(120):
            while self.begun != list(begun):
                await asyncio.sleep(0)


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    return Loading(monkeypatch)


def test_one_that_waits_loads_all_and_is_free(loading: Loading) -> None:
    @conversation
    async def story() -> None:
        actor = RoleActor(writes=True)
        warming = asyncio.create_task(actor.warm())
        await loading.reaches("matcher")
        assert await actor.free()
        for event in loading.leave.values():
            event.set()
        await warming
        assert loading.begun == ["matcher", "output"]
        await loading.start(actor, ACCESS_POINT)
        assert not await actor.free()
        assert loading.started == [ACCESS_POINT]

    story()


def test_one_that_is_taken_while_it_loads_waits_for_what_it_needs_alone(loading: Loading) -> None:
    @conversation
    async def story() -> None:
        actor = RoleActor(writes=True)
        warming = asyncio.create_task(actor.warm())
        await loading.reaches("matcher")
        await loading.start(actor, ACCESS_POINT)
        assert loading.started == [ACCESS_POINT], "at once"
        loading.leave["matcher"].set()
        await warming
        assert loading.begun == ["matcher"], "the rest is for others"

        matcher = RoleActor()
        loading.leave["matcher"].clear()
        warming = asyncio.create_task(matcher.warm())
        await loading.reaches("matcher", "matcher")
        starting = loading.start(matcher, MATCHER)
        await asyncio.sleep(0)
        assert loading.started == [ACCESS_POINT], "it needs what is being loaded"
        loading.leave["matcher"].set()
        await starting
        await warming
        assert loading.begun == ["matcher"] * 3, "asked once more, which is no harm"
        assert loading.started == [ACCESS_POINT, MATCHER]

    story()


@pytest.mark.parametrize(
    ("layer", "writes", "loaded"),
    [
        (MATCHER, True, ["matcher"]),
        (ACCESS_POINT, True, []),
        (EXIT_POINT, True, ["output"]),
        (EXIT_POINT, False, []),
    ],
)
def test_one_that_never_waited_loads_what_its_layer_needs(
    layer: str, writes: bool, loaded: list[str], loading: Loading
) -> None:
    @conversation
    async def story() -> None:
        for event in loading.leave.values():
            event.set()
        await loading.start(RoleActor(writes), layer)
        assert loading.begun == loaded

    story()


def test_a_slice_does_not_become_another_one(loading: Loading) -> None:
    @conversation
    async def story() -> None:
        actor = RoleActor()
        await loading.start(actor, ACCESS_POINT)
        with pytest.raises(AssertionError, match="a slice already, of layer access_point"):
            await loading.start(actor, EXIT_POINT)

    story()
