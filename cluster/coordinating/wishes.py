"""What operators want the cluster to be: whether it can be, what it would cost, and the beginning of it."""

from __future__ import annotations

from typing import Any

from cluster.assignment import fewest_moves, reassign
from cluster.columns import u16
from cluster.config import Config
from cluster.coordinating.operations import Operations
from cluster.coordinating.records import State
from cluster.coordinating.shared import Shared
from cluster.coordinating.steps import Steps
from cluster.coordinating.waves import Waves
from cluster.messages import ACCESS_POINT, DATA_LAYERS, MATCHER, Peer
from cluster.view import KEY_GROUPS
from cluster.wish import PLURALS, Slots, WishError, slots_of, wanted_slots

STRATEGIES = ("waves", "all_at_once", "stop_swap")


def sizes_of(config: Config) -> dict[str, int]:
    """Return how many slices of each layer the configuration asks for, named as in a wish."""
    return {plural: getattr(config.layers, plural) for plural in PLURALS}


class Wishes:
    """Takes wishes. Their arguments are documents from outside; every method raises WishError for what cannot be."""

    def __init__(self, shared: Shared, operations: Operations, waves: Waves, steps: Steps) -> None:
        self._shared = shared
        self._operations = operations
        self._waves = waves
        self._steps = steps

    def scale(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Begin an operation; return its number and the slots that it is to lead to."""
        wanted, strategy = self._wish(arguments)
        shared = self._shared
        lost = [str(peer) for peer in sorted(shared.reports) if shared.lost(shared.reports[peer])]
        if lost:
            raise WishError(f"lost: {', '.join(lost)}; the view cannot change until they are back")
        minimum = fewest_moves(shared.in_force.owners, wanted[MATCHER])
        operation = self._operations.begin(wanted, strategy, minimum)
        self._waves.begin()
        self._steps.go_on()
        return {"operation": operation.number, "wanted": wanted}

    def scale_as_configured(self, sizes: dict[str, int]) -> None:
        """Begin an operation to the sizes that the configuration asks for; once, until it asks for others.

        There is nobody to be told if that cannot be: then it is in the history as an operation that was aborted, and
        the cluster stays as it is.
        """
        memory = self._shared.memory
        memory.configured = sizes
        try:
            self.scale(dict(sizes))
        except WishError as error:
            asked = ", ".join(f"{name}={count}" for name, count in sizes.items())
            self._operations.begin(memory.wanted, memory.strategy, 0)
            self._operations.end("aborted", f"the configuration asks for {asked}: {error}")

    def plan(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what a wish would do, without doing it."""
        wanted, strategy = self._wish(arguments)
        view = self._shared.in_force
        owners = reassign(view.owners, wanted[MATCHER])
        present = slots_of(view)
        moves: dict[str, int] = {}
        for before, after in zip(view.owners_list, u16(owners).tolist(), strict=True):
            if before != after:
                name = f"{before} -> {after}"
                moves[name] = moves.get(name, 0) + 1
        moved = sum(moves.values())
        return {
            "wanted": wanted,
            "start": {layer: sorted(set(wanted[layer]) - set(present[layer])) for layer in DATA_LAYERS},
            "stop": {layer: sorted(set(present[layer]) - set(wanted[layer])) for layer in DATA_LAYERS},
            "groups_moved": moved,
            "groups_minimum": fewest_moves(view.owners, wanted[MATCHER]),
            "moves": moves,
            "bytes_moved_about": self._waves.subscription_bytes() * moved // KEY_GROUPS,
            "strategy": strategy,
            "view_changes_about": max(-(-moved // self._waves.groups(strategy)), 1),
        }

    def abort(self) -> dict[str, Any]:
        """Give up the operation that is under way."""
        operation = self._operations.present
        if operation is None or not self._operations.running:
            raise WishError("nothing is under way")
        transition = self._shared.transition
        if transition is not None and transition.decided:
            # This step is decided and goes on to its end; it is the last one.
            self._steps.want_what_is("by the operator")
        else:
            self._steps.give_up("by the operator")
        return {"operation": operation.number, "state": "aborted"}

    def _wish(self, arguments: dict[str, Any]) -> tuple[Slots, str]:
        shared = self._shared
        if shared.state is not State.SERVING or shared.view is None:
            raise WishError(f"the cluster is {shared.state.value}, not serving")
        if shared.recovery is not None:
            dead = ", ".join(map(str, sorted(shared.recovery.replaced)))
            raise WishError(f"lost: {dead}; the view cannot change until they are back")
        counts = {name: value for name, value in arguments.items() if name not in ("strategy", "replace")}
        strategy = arguments.get("strategy") or shared.settings.strategy
        if strategy not in STRATEGIES:
            raise WishError(f"strategy {strategy!r}; known are {', '.join(STRATEGIES)}")
        replaced = arguments.get("replace") or []
        if not counts and not replaced:
            raise WishError("nothing is asked for; say for example matchers=3")
        wanted = wanted_slots(shared.memory.wanted, counts, replaced, self._taken_slots())
        if strategy == "stop_swap" and wanted[ACCESS_POINT] != list(shared.view.access_points):
            # Parked changes of one client could be let go by two access points, in any order.
            raise WishError("stop_swap cannot change access points; it is there to be compared with")
        return wanted, strategy

    def _taken_slots(self) -> set[Peer]:
        """Return the slots whose processes are about to go: a wish had better take others."""
        shared = self._shared
        view = shared.in_force if shared.transition is None else shared.transition.after
        return shared.reports.keys() - {member.peer for member in view.members}
