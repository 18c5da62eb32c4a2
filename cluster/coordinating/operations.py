"""Operations: a wish and what became of it, one after another, in the history and on disk."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.coordinating.shared import Shared
from cluster.memory import Operation, Step
from cluster.transition import Transition
from cluster.wish import Slots, slots_of

HISTORY = 100


class Operations:
    """Keeps the operation that is under way, and those before it.

    present: the last one, whether or not it is still running. history: the last HISTORY, the newest last.
    _of_step: for which the view change that is under way, or was last, was begun.

    The next life of the coordinator goes on with the one that was running; if none was, what is wanted is what is.
    """

    def __init__(self, shared: Shared, history: Sequence[Operation]) -> None:
        self._shared = shared
        self.history = list(history)[-HISTORY:]
        self.present: Operation | None = None
        self._of_step: Operation | None = None
        if shared.view is not None:
            self.present = next((one for one in self.history if one.state == "running"), None)
            if self.present is None:
                shared.memory.wanted = slots_of(shared.view)

    @property
    def running(self) -> bool:
        """Whether anybody wants anything."""
        return self.present is not None and self.present.state == "running"

    def begin(self, wanted: Slots, strategy: str, minimum: int) -> Operation:
        """Begin one; the former is merged into it, if it is not over. minimum: key groups that must move for it."""
        shared = self._shared
        memory = shared.memory
        memory.operation += 1
        self.end("merged", f"into operation {memory.operation}")
        memory.wanted = wanted
        memory.strategy = strategy
        operation = self.present = Operation(memory.operation, wanted, strategy, minimum, shared.now_ms)
        operation.former = slots_of(shared.in_force)
        self.history = [*self.history, operation][-HISTORY:]
        shared.remember(operation)
        return operation

    def end(self, state: str, reason: str | None = None) -> None:
        """The one that is running has come to its end; there may be none."""
        operation = self.present
        if operation is None or operation.state != "running":
            return
        operation.state = state
        operation.reason = reason
        operation.duration_ms = self._shared.now_ms - operation.started_ms
        self._shared.ledger.operation(state)
        self._shared.remember(operation)

    def steps_for(self) -> None:
        """The step that is under way, or begins, is the present operation's."""
        self._of_step = self.present

    def account(self, transition: Transition, *, committed: bool) -> bool:
        """Have a step in the history, with the decision, and once more at its end; tell whether it is anybody's."""
        operation = self._of_step
        if operation is None:
            return False
        step = Step(
            transition.epoch,
            transition.groups,
            transition.entries,
            transition.bytes,
            dict(transition.phases),
            "committed" if committed else "aborted",
        )
        if operation.steps and operation.steps[-1].epoch == step.epoch:
            operation.steps[-1] = step
        else:
            operation.steps.append(step)
            if committed:
                operation.groups_moved += transition.groups
                operation.entries += transition.entries
                operation.bytes += transition.bytes
        self._shared.remember(operation)
        return True

    def find(self, number: int) -> Operation | None:
        """Return an operation of those that are remembered."""
        return next((one for one in reversed(self.history) if one.number == number), None)

    def shown(self, operation: Operation) -> Operation:
        """Return the operation with its duration up to now."""
        if operation is self.present and operation.state == "running":
            operation.duration_ms = self._shared.now_ms - operation.started_ms
        return operation
