"""The processes that make a load, and the pipes to them."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
from collections.abc import Callable
from typing import Any

ANSWER_S = 300.0
"""What a load generator may take for an answer."""


class Workers:
    """Processes by name, each with a pipe to this one. `close` ends them, whatever they do."""

    def __init__(self) -> None:
        self.context = mp.get_context("spawn")
        self.pids: dict[str, int] = {}
        self._processes: list[Any] = []
        self._pipes: dict[str, Any] = {}

    def start(self, name: str, target: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Start a process that runs `target` with these arguments and, as `pipe`, its end of the pipe."""
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=target, args=arguments, kwargs={"pipe": theirs, **options}, daemon=True)
        process.start()
        theirs.close()
        self._processes.append(process)
        self.pids[name] = process.pid or 0
        self._pipes[name] = ours

    def send(self, name: str, what: Any) -> None:
        """Send it something."""
        self._pipes[name].send(what)

    async def receive(self, name: str, timeout_s: float = ANSWER_S) -> Any:
        """Return what it sends next. Raises TimeoutError, and RuntimeError when it has ended."""

        def wait() -> Any:
            pipe = self._pipes[name]
            if not pipe.poll(timeout_s):
                raise TimeoutError(f"the {name} did not answer within {timeout_s:g} s")
            return pipe.recv()

        try:
            return await asyncio.to_thread(wait)
        except (EOFError, ConnectionResetError):
            raise RuntimeError(f"the {name} ended") from None

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join(5)
