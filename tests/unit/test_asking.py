"""An operator's question: who gives up before it is answered leaves nothing that warns of it later."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from actors.asking import RunFile, admin_of
from actors.transport import LaneProtocol
from tests.unit.conversation import conversation


@conversation
async def test_a_question_that_is_given_up_while_it_connects_is_not_warned_of() -> None:
    warned: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: warned.append(context))
    tasks: list[asyncio.Task[Any]] = []
    lost = asyncio.Event()
    made, gone = LaneProtocol.connection_made, LaneProtocol.connection_lost

    def connection_made(self: LaneProtocol, transport: Any) -> None:
        made(self, transport)
        tasks[0].cancel()

    def connection_lost(self: LaneProtocol, exc: Exception | None) -> None:
        gone(self, exc)
        lost.set()

    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    run = RunFile("lab", 1, "127.0.0.1", server.sockets[0].getsockname()[1], "00" * 32, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaneProtocol, "connection_made", connection_made)
        patch.setattr(LaneProtocol, "connection_lost", connection_lost)
        async with server:
            tasks.append(asyncio.create_task(admin_of(run).status()))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            await lost.wait()
    tasks.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert warned == []
