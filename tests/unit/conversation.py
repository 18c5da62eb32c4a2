"""Tests that are coroutines: bounded in time, each on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def conversation(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a loop of its own."""

    def test() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(240):
                await work()

        asyncio.run(bounded())

    test.__name__ = work.__name__
    test.__doc__ = work.__doc__
    return test
