"""Runs the autoscaler beside the coordinator: in its process, on its loop, by its clock. Decides nothing.

Each metrics interval it makes signals of what the coordinator knows, records them, hands them to the controller, and
asks the coordinator for what comes back as `kittiwake scale` would. What came of it, it reads from the coordinator's
own list of operations.

An autoscaler that raises is replaced by a new one after RETRY_S, which knows what `Memory` keeps; the cluster serves on
meanwhile. Files are written on one thread of their own, in order, so that no disk holds up the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from autoscaler.controller import MODES, Controller, Memory
from autoscaler.controller import Request as Wish
from autoscaler.decider import Decider
from autoscaler.explain import document
from autoscaler.fitted import FittedCapacity
from autoscaler.forecast import PolicyForecast
from autoscaler.observer import Observer
from autoscaler.policy import ScalingPolicy
from autoscaler.said import Said
from cluster.coordinating.records import State
from cluster.coordinator import Coordinator
from cluster.errors import KittiwakeError
from cluster.figures import Series, autoscaler_series
from cluster.messages import Answer, Instruction, Request

if TYPE_CHECKING:
    from actors.recording import Recorder
    from actors.shell import Shell

RETRY_S = 10.0
MEMORY = "autoscaler.json"
SIGNALS = "signals"
"""Under the data directory: what is remembered, and the recorded signals."""
SHOWN = 1

log = logging.getLogger("kittiwake")


class Autoscaling:
    """machine: the coordinator's. directory: the cluster's data directory.

    placeable: returns how many more slices could be placed, None for no limit; it may block, and is asked on a thread.
    cores:     returns by address how many cores the nodes have, None if not known; as placeable.
    record:    whether signals are recorded.
    """

    def __init__(
        self,
        machine: Coordinator,
        policy: ScalingPolicy,
        directory: Path,
        *,
        placeable: Callable[[], int | None] = lambda: None,
        cores: Callable[[], Mapping[str, float] | None] = lambda: None,
        record: bool = True,
    ) -> None:
        self._machine = machine
        self._policy = policy
        self._memory_path = directory / MEMORY
        self._signals_path = directory / SIGNALS
        self._placeable = placeable
        self._count_cores = cores
        self._record = record
        self._room: int | None = None
        self._cores: Mapping[str, float] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._observer = Observer(round(policy.metrics_interval_s * 1000))
        self._memory = read_memory(self._memory_path)
        self._said = Said()
        self._trouble = ""
        self._files = ThreadPoolExecutor(1, "kittiwake-autoscaler")
        self._recorder: Recorder | None = None
        self._shell: Shell | None = None
        self._task: asyncio.Task[None] | None = None
        self._operation: int | None = None
        self._closed = False
        self._controller = self._new()
        machine.autoscaler = self.answer

    def begin(self, shell: Shell) -> None:
        """Run until the shell ends."""
        self._shell = shell
        shell.companions.append(self)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """End it; what is recorded is on disk on return."""
        for task in (self._task, self._asking):
            if task is not None:
                task.cancel()
        if not self._closed:
            self._closed = True
            self._files.submit(self._close_recorder)
            self._files.shutdown(wait=True)

    def series(self) -> Iterator[Series]:
        """Yield what it says to Prometheus."""
        return autoscaler_series(self._said.values())

    # The loop ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        interval_s = self._policy.metrics_interval_s
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + interval_s, loop.time())  # after a standstill no intervals are made up for
            await asyncio.sleep(due_s - loop.time())
            try:
                self._tick(time.time())
            except Exception as error:
                log.error("the autoscaler failed; another one begins in %.0f s", RETRY_S, exc_info=error)
                self._trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(RETRY_S)
                self._controller = self._new()
                self._operation = None

    def _tick(self, now_s: float) -> None:
        if self._machine.state is not State.SERVING:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_for_room())
        signals = self._observer.signals(self._machine.observed(), placeable=self._room, cores=self._cores)
        if self._record:
            self._files.submit(self._recorded, now_s, signals)
        self._follow()
        before = self._controller.last
        for wish in self._controller.tick(now_s, signals):
            self._request(wish)
        decision = self._controller.last
        if decision is not None and decision is not before:
            self._said.add(decision)
            self._tell()
        if self._controller.memory() != self._memory:
            self._remember()

    def _tell(self) -> None:
        """Log what the newest decision found out, and what it advises when it is not to act."""
        (entry,) = self._controller.entries(1)
        for note in entry.decision.notes:
            log.warning("the autoscaler: %s", note)
        if entry.outcome == "advised" and entry.repeats == 1:
            for one in entry.decision.layers:
                if one.layer in entry.decision.targets:
                    log.warning(
                        "the autoscaler advises %s %d -> %d: %s", one.layer, one.size, one.target, one.why_not_less
                    )

    def _request(self, wish: Wish) -> None:
        assert self._shell is not None, "begun"
        answer = Answer(b"", "the coordinator failed")

        def ask() -> list[Instruction]:
            nonlocal answer
            answer, instructions = self._machine.ask(Request("scale", msgspec.json.encode(wish.wish)))
            return instructions

        self._shell.act(ask)
        if answer.error:
            log.warning("the autoscaler's wish %s was refused: %s", wish.wish, answer.error)
            self._controller.refused(answer.error)
            return
        self._operation = msgspec.json.decode(answer.document)["operation"]
        self._controller.accepted(self._operation)
        text = " ".join(f"{layer}={size}" for layer, size in wish.wish.items())
        log.warning("the autoscaler scales: %s (operation %d)", text, self._operation)

    def _follow(self) -> None:
        """Tell the controller when the operation that it asked for has ended."""
        if self._operation is None:
            return
        operation = self._machine.operation(self._operation)
        if operation is None:
            self._controller.ended("aborted", "the coordinator knows it no more")
        elif operation.state == "running":
            return
        else:
            self._controller.ended(operation.state, operation.reason)
        self._operation = None

    async def _ask_for_room(self) -> None:
        with contextlib.suppress(Exception):  # Ray may be away for a moment; then what was last known holds
            self._room = await asyncio.to_thread(self._placeable)
            self._cores = await asyncio.to_thread(self._count_cores)

    def _new(self) -> Controller:
        policy = self._policy
        forecast = PolicyForecast(policy.forecast, policy.timezone, policy.look_back_period_s)
        return Controller(Decider(policy, FittedCapacity(policy.capacity.known), forecast), self._memory)

    # Files -------------------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        self._memory = self._controller.memory()
        self._files.submit(write_memory, self._memory_path, self._memory)

    def _recorded(self, now_s: float, signals: Any) -> None:
        try:
            if self._recorder is None:
                from actors.recording import Recorder

                self._recorder = Recorder(self._signals_path)
            self._recorder.add(now_s, signals)
        except OSError as error:
            log.warning("signals cannot be recorded: %s", error)

    def _close_recorder(self) -> None:
        if self._recorder is not None:
            with contextlib.suppress(OSError):
                self._recorder.close()

    # Operators ---------------------------------------------------------------------------------------------------

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do what an operator asks; see `cluster.admin.Admin.autoscaler`. Raises KittiwakeError."""
        match arguments:
            case {"action": "explain"}:
                pass
            case {"action": "pause"}:
                self._controller.pause()
            case {"action": "resume"}:
                self._controller.resume()
            case {"action": "mode", "mode": mode} if mode in MODES:
                self._controller.set_mode(mode)
            case {"action": "mode", "mode": mode}:
                raise KittiwakeError(f"mode {mode!r}; allowed are {', '.join(MODES)}")
            case _:
                raise KittiwakeError(f"autoscaler: {arguments!r}; allowed are explain, pause, resume and mode")
        if self._controller.memory() != self._memory:
            self._remember()
        count = arguments.get("count", SHOWN)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise KittiwakeError(f"count: {count!r} is not a whole number from 0 on")
        return {**document(self._controller, count, self._policy.timezone), "trouble": self._trouble}


def forget_autoscaler(directory: Path) -> None:
    """Throw away what an operator has told the autoscaler of an earlier cluster; recorded signals stay."""
    (directory / MEMORY).unlink(missing_ok=True)


def read_memory(path: Path) -> Memory:
    """Return what the file holds; an empty memory if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        log.warning("%s is unreadable, the autoscaler begins without: %s", path, error)
        return Memory()


def write_memory(path: Path, memory: Memory) -> None:
    """Put the file there, whole or not at all."""
    temporary = path.with_suffix(".new")
    try:
        temporary.write_bytes(msgspec.json.encode(memory))
        temporary.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
