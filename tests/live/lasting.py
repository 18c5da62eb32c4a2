"""A cluster in this process that lasts for several tests, as its start takes long. Each test runs on its loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from actors.launch import Broker, launch
from cluster.config import Config

TEST_S = 400.0
"""How long a test may take, so that one that hangs says where."""


class Lasting:
    """A running cluster. `end` stops it before its time, for a test that is about its end."""

    def __init__(self, runner: asyncio.Runner, config: Config) -> None:
        self.config = config
        self._runner = runner
        self._stack = contextlib.AsyncExitStack()
        self.broker: Broker = runner.run(self._stack.enter_async_context(launch(config)))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(TEST_S):
                return await work

        return self._runner.run(bounded())

    def end(self) -> None:
        self._runner.run(self._stack.aclose())


@contextlib.contextmanager
def lasting(config: Config) -> Iterator[Lasting]:
    """Start a cluster; stop it afterwards."""
    with asyncio.Runner() as runner:
        made = Lasting(runner, config)
        try:
            yield made
        finally:
            made.end()
