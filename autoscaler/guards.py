"""What protects a cluster from its autoscaler: a shrink must be able to work off what waits meanwhile, and one
transition moves no more than the policy allows. That growth which brought nothing is not repeated: `effectiveness.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoscaler.policy import Disruption, Guards
from autoscaler.signals import NodeSignals
from autoscaler.triggers import Scene
from cluster.messages import MATCHER

CORES_FULL = 0.9
"""Cores that are busy for so large a share leave no room: what is left is for bursts, and for starting a process."""
HAIR = 1e-9


def caught_up(guards: Guards, layer: str, wish: int, scene: Scene) -> tuple[int, str]:
    """Return the least size from `wish` to the present one that could work off what waits now in time.

    A transition itself lets nothing wait here, so that unlike in Flink its own backlog need not be reckoned with.
    Without a model nothing is held back.
    """
    size = scene.sizes[layer]
    rate, subscriptions = scene.rate, scene.history.last.subscriptions
    if not guards.catch_up_s or rate is None or subscriptions is None:
        return wish, ""
    waiting = scene.history.backlog(layer).value or 0.0
    for fewer in range(wish, size):
        after = scene.capacity.predict(layer, fewer, rate, subscriptions, scene.planned)
        if after is None:
            return wish, ""
        spare = after.capacity_per_s - rate
        if spare > 0 and waiting / spare <= guards.catch_up_s:
            reason = "" if fewer == wish else f"{fewer - 1} could not work off a backlog within {guards.catch_up_s:g} s"
            return fewer, reason
    return size, f"{size - 1} could not work off a backlog within {guards.catch_up_s:g} s"


class Against(NamedTuple):
    """What stands against growth for load: at most `room` more of a layer. stage, word, reason: as `Stage` has them."""

    stage: str
    word: str
    reason: str
    room: int = 0


def free_cores(guards: Guards, cores: float | None, scene: Scene) -> Against | None:
    """Return what the nodes' cores leave room for; None if that is not asked, or not known.

    Where all cores are busy, more slices would share the same cores, whichever layer they are of. What counts is how
    busy each node is, whoever keeps it so: clients on the same machine take as much as slices. One with room is enough,
    as a slice can be started on any. Where nodes do not say it, it is the slices' own time against all cores.
    """
    if not guards.require_placeable:
        return None
    nodes, used = scene.history.nodes(), scene.history.used()
    if nodes:
        free = sum(_room(one.cores, one.busy or 0.0) for one in nodes)
    elif cores is not None and used is not None:
        free = _room(cores, used)
    else:
        return None
    started = sum(max(0, decided - scene.sizes[layer]) for layer, decided in scene.decided.items())
    room = max(0, free - started)
    busy = _words(nodes) if nodes else f"slices are busy for {used:.3g} of {cores:g} cores"
    return Against("cores", "cores", f"{busy}, room for {room} more", room)


def _room(cores: float, busy: float) -> int:
    """Return how many slices more a node has room for."""
    return max(0, math.ceil(CORES_FULL * cores - busy - HAIR))


def _words(nodes: Sequence[NodeSignals]) -> str:
    """Say how busy the cluster's only node is, or of several the one with the most room."""
    freest = max(nodes, key=lambda one: CORES_FULL * one.cores - (one.busy or 0.0))
    which = "the machine" if len(nodes) == 1 else f"of {len(nodes)} machines the least busy one, {freest.host},"
    if freest.busy is None:
        return f"{which} has {freest.cores:g} cores and no slices yet"
    return (
        f"{which} is busy for {freest.busy:.3g} of {freest.cores:g} cores, of it slices for {freest.slices or 0.0:.3g}"
    )


class Floor(NamedTuple):
    """A layer has at least one slice for every `one_per` of another."""

    layer: str
    of: str
    one_per: float

    def least(self, sizes: Mapping[str, int]) -> int:
        """Return how many that are."""
        return math.ceil(sizes[self.of] / self.one_per - 1e-9)


def affordable(
    disruption: Disruption,
    placeable: int | None,
    sizes: Mapping[str, int],
    targets: Mapping[str, int],
    floors: Sequence[Floor] = (),
) -> tuple[dict[str, int], dict[str, tuple[str, str]]]:
    """Return as much of the targets as one transition may do, and per layer cut why: a word and a sentence.

    Layers are served in the order of the targets; with each slice come those that it makes needed as others' floor, or
    it does not come. placeable: how many slices there is room for, None for no limit.
    """
    moving, room = disruption.max_replicas_moving, placeable
    reached = dict(sizes)
    cut: dict[str, tuple[str, str]] = {}
    for layer, target in targets.items():
        size, before, least = reached[layer], room, target
        while reached[layer] < target:
            steps = {layer: 1} | _with(layer, reached, targets, floors)
            count = sum(steps.values())
            if room is not None and count > room:
                cut[layer] = ("placeable", f"there is room for {before} more, {target - size} are wanted")
                break
            if count > moving:
                cut[layer] = ("disruption", f"max_replicas_moving {disruption.max_replicas_moving}")
                break
            moving -= count
            room = None if room is None else room - count
            for one, by in steps.items():
                reached[one] += by
        if target < size and layer == MATCHER:
            groups = max(1, int(size * disruption.max_group_share))
            if size - target > groups:
                least = size - groups
                share = f"max_group_share {disruption.max_group_share:g}"
                cut[layer] = ("disruption", f"{groups} of {size} matchers at once, {share}")
        if target < size:
            if size - least > moving:
                least = size - moving
                cut[layer] = ("disruption", f"max_replicas_moving {disruption.max_replicas_moving}")
            moving -= size - least
            reached[layer] = least
    for floor in floors:
        least = min(floor.least(reached), sizes[floor.layer])
        if reached[floor.layer] < least:
            reached[floor.layer] = least
            cut[floor.layer] = ("together", f"one for every {floor.one_per:g} of {reached[floor.of]} {floor.of}s")
    return {layer: reached[layer] for layer in targets if reached[layer] != sizes[layer]}, cut


def _with(
    layer: str, reached: Mapping[str, int], targets: Mapping[str, int], floors: Sequence[Floor]
) -> dict[str, int]:
    """Return the slices that one more of a layer makes needed as others' floor, as far as they are wanted."""
    then = {**reached, layer: reached[layer] + 1}
    found = {}
    for floor in floors:
        if floor.of == layer:
            wanted = min(floor.least(then), targets.get(floor.layer, 0))
            if wanted > reached[floor.layer]:
                found[floor.layer] = wanted - reached[floor.layer]
    return found
