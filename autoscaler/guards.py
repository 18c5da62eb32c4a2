"""What protects a cluster from its autoscaler: growth that brought nothing is not repeated, a shrink must be able to
work off what waits meanwhile, and one transition moves no more than the policy allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoscaler.policy import Disruption, Guards
from autoscaler.triggers import Scene
from cluster.messages import MATCHER


class Trial(NamedTuple):
    """A growth whose gain is to be judged. before, promised: useful share of the busiest for a publication a second."""

    begun_s: float
    layer: str
    size: int
    grown: int
    before: float
    promised: float


class Effectiveness:
    """Judges each growth by the work that a publication costs the busiest slice.

    The promise is the model's, or without one that work goes down as the number of slices goes up. Judged by work per
    publication and not by rate or delay: after growth more may come in, and the delay may stay high for the queues.
    """

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._trials: dict[str, Trial] = {}
        self.blocked_until_s: dict[str, float] = {}
        """Per layer, unix seconds; survives a restart by way of `Controller.memory`."""

    def begin(self, now_s: float, layer: str, targets: Mapping[str, int], scene: Scene) -> None:
        """A layer is to grow to its target, others with it; whether it does shows in the sizes."""
        self._trials.pop(layer, None)
        size, grown = scene.sizes[layer], targets[layer]
        busy, rate = scene.history.busiest(layer).value, scene.rate
        if not self._guards.min_gain or busy is None or not rate or grown <= size:
            return
        before = busy / rate
        promised = before * size / grown
        subscriptions = scene.history.last.subscriptions
        if subscriptions is not None:
            now = scene.capacity.predict(layer, size, rate, subscriptions, scene.sizes)
            then = scene.capacity.predict(layer, grown, rate, subscriptions, {**scene.sizes, **targets})
            if now is not None and then is not None and now.utilization > 0:
                promised = before * then.utilization / now.utilization
        self._trials[layer] = Trial(now_s, layer, size, grown, before, promised)

    def judge(self, now_s: float, settled_s: float | None, matured: bool, scene: Scene) -> list[str]:
        """Judge growths since which enough was seen; return a sentence for each that was ineffective.

        settled_s: when the last transition was over. matured: enough was seen since.
        """
        said = []
        for layer, trial in list(self._trials.items()):
            if settled_s is None or settled_s < trial.begun_s or not matured:
                continue
            del self._trials[layer]
            busy, rate = scene.history.busiest(layer), scene.rate
            if scene.sizes[layer] != trial.grown or busy.value is None or not busy.whole or not rate:
                continue  # it has come otherwise, or nothing can be said
            if scene.overloaded(layer):
                continue  # too small before and after: how busy it is says nothing of what it gained
            if trial.promised >= trial.before:
                continue  # nothing was promised: it grew for another reason than load
            gain = (trial.before - busy.value / rate) / (trial.before - trial.promised)
            if gain < self._guards.min_gain:
                self.blocked_until_s[layer] = now_s + self._guards.block_s
                said.append(
                    f"{layer} {trial.size} -> {trial.grown} gained {max(gain, 0):.0%} of what was predicted "
                    f"(min_gain {self._guards.min_gain:.0%}): no growth for load for {self._guards.block_s:g} s"
                )
        return said

    def against(self, now_s: float, settled_s: float | None, layer: str) -> tuple[str, str] | None:
        """Return a word and a sentence if the layer must not grow for load now, None if it may."""
        left = self.blocked_until_s.get(layer, 0.0) - now_s
        if left > 0:
            return "ineffective", f"growth for load was ineffective; blocked for {left:.0f} s more"
        trial = self._trials.get(layer)
        if trial is not None and settled_s is not None and settled_s >= trial.begun_s:
            return "unproven", f"what {trial.size} -> {trial.grown} has gained is not known yet"
        return None


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
