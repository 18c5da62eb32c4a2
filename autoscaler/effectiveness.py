"""Growth that brought nothing is not repeated: each growth is judged by its gain, and after each one in vain the next
is waited longer for.

gain       what a growth brought, as a share of its promise: the model's, or without a model that work goes down as the
           number of slices goes up. It is judged by the work that a publication costs the busiest slice, not by rate or
           delay: after growth more may come in, and the delay may stay high for the queues. A layer that is overloaded
           before and after is as busy as it can be either way; there it is judged by what the layer gets done. Slices
           that share cores which are full already get no more done, however many they are.
block      a growth that gained less than `min_gain` blocks the layer's growth for load for `block_s`; each further one
           in a row for twice as long, at most BLOCKS_MAX times `block_s`. One that gained something ends the row.
elsewhere  what was learned at another load or size says little: where the rate, the subscriptions or the size have
           changed by CHANGED times, or the layer has shrunk, or is overloaded and was not, the row is forgotten, and
           only `block_s` counts, from when it was learned.

Connection points are not judged: clients that are connected stay where they are, so that a growth relieves nobody who
is there. It is for those who connect from then on, and `triggers.py` asks for another one only when all are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from autoscaler.guards import Against
from autoscaler.policy import Guards
from autoscaler.triggers import Scene
from cluster.messages import CONNECTION_POINT

BLOCKS_MAX = 16
"""The longest block is so many times the first one."""
CHANGED = 2.0


class Trial(NamedTuple):
    """A growth whose gain is to be judged.

    before, promised: useful share of the busiest for a publication a second.
    done, times:      of an overloaded layer, publications a second that it got done, and how many times as many were
                      promised; None of another one.
    """

    begun_s: float
    layer: str
    size: int
    grown: int
    before: float
    promised: float
    done: float | None
    times: float


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Growth was in vain, `times` in a row, the last time (judged at since_s, unix seconds) at this size and load."""

    since_s: float
    times: int
    size: int
    rate: float
    subscriptions: int | None = None
    overloaded: bool = False

    def lasts_s(self, first_s: float) -> float:
        """Return how long it blocks if the first one in a row does for first_s."""
        return float(first_s * min(2 ** (self.times - 1), BLOCKS_MAX))


class Effectiveness:
    """Judges growths; says when a layer must not grow for load."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._trials: dict[str, Trial] = {}
        self.blocks: dict[str, Block] = {}
        """Per layer, also when its time is over; survives a restart by way of `Controller.memory`."""

    def begin(self, now_s: float, layer: str, targets: Mapping[str, int], scene: Scene) -> None:
        """A layer is to grow to its target, others with it; whether it does shows in the sizes."""
        self._trials.pop(layer, None)
        size, grown = scene.sizes[layer], targets[layer]
        busy, rate = scene.history.busiest(layer).value, scene.rate
        if not self._guards.min_gain or busy is None or not rate or grown <= size or layer == CONNECTION_POINT:
            return
        done = scene.history.processed(layer) if scene.overloaded(layer) else None
        before = busy / (done or rate)  # what comes to an overloaded layer is more than it is busy with
        promised, times = before * size / grown, grown / size
        subscriptions = scene.history.last.subscriptions
        if subscriptions is not None:
            now = scene.capacity.predict(layer, size, rate, subscriptions, scene.sizes)
            then = scene.capacity.predict(layer, grown, rate, subscriptions, {**scene.sizes, **targets})
            if now is not None and then is not None and now.utilization > 0:
                promised = before * then.utilization / now.utilization
                times = then.capacity_per_s / now.capacity_per_s
        self._trials[layer] = Trial(now_s, layer, size, grown, before, promised, done, times)

    def judge(self, now_s: float, settled_s: float | None, matured: bool, scene: Scene) -> list[str]:
        """Judge growths since which enough was seen; return a sentence for each thing that was found out.

        settled_s: when the last transition was over. matured: enough was seen since.
        """
        said = self._forget(now_s, scene)
        for layer, trial in list(self._trials.items()):
            if settled_s is None or settled_s < trial.begun_s:
                continue
            if not matured and (trial.done is not None or not scene.overloaded(layer)):
                continue  # but what is overloaded now and was not, nothing can be said of; it need not wait
            del self._trials[layer]
            rate = scene.rate
            gain = _gain(trial, scene)
            if gain is None or rate is None:
                continue
            former = self.blocks.pop(layer, None)
            if gain < self._guards.min_gain:
                self.blocks[layer] = block = Block(
                    since_s=now_s,
                    times=1 if former is None else former.times + 1,
                    size=trial.grown,
                    rate=rate,
                    subscriptions=scene.history.last.subscriptions,
                    overloaded=scene.overloaded(layer) is True,
                )
                said.append(
                    f"{layer} {trial.size} -> {trial.grown} gained {max(gain, 0):.0%} of what was predicted "
                    f"(min_gain {self._guards.min_gain:.0%}){_in_a_row(block)}: "
                    f"no growth for load for {block.lasts_s(self._guards.block_s):g} s"
                )
        return said

    def _forget(self, now_s: float, scene: Scene) -> list[str]:
        """Let rows end where load or size are others now; return a sentence for each block that ends by that."""
        said = []
        for layer, block in list(self.blocks.items()):
            why = self._elsewhere(layer, block, scene)
            if not why:
                continue
            first = msgspec.structs.replace(block, times=1)
            left_s = self._left_s(now_s, first)
            if left_s > 0:
                self.blocks[layer] = first
            else:
                del self.blocks[layer]
            if self._left_s(now_s, block) > max(left_s, 0.0):
                said.append(f"{layer}: {block.times} growths in vain are forgotten, as {why}")
        return said

    def _elsewhere(self, layer: str, block: Block, scene: Scene) -> str:
        """Return what is so different now that what was learned does not count any more, "" if nothing is."""
        size, rate, subscriptions = scene.sizes[layer], scene.rate, scene.history.last.subscriptions
        if size < block.size:
            return f"it has shrunk from {block.size} to {size}"
        if layer not in self._trials and size >= CHANGED * block.size:
            return f"there are {size}, and {block.size} were then"
        if rate is not None and _differ(rate, block.rate):
            return f"{rate:,.0f} publications/s come, and {block.rate:,.0f} came then"
        if subscriptions is not None and block.subscriptions and _differ(subscriptions, block.subscriptions):
            return f"{subscriptions:,} subscriptions are held, and {block.subscriptions:,} were then"
        if not block.overloaded and scene.overloaded(layer):
            return "it is overloaded and was not"
        return ""

    def _left_s(self, now_s: float, block: Block) -> float:
        """Return how long it still blocks."""
        return block.since_s + block.lasts_s(self._guards.block_s) - now_s if self._guards.min_gain else 0.0

    def against(self, now_s: float, settled_s: float | None, layer: str) -> Against | None:
        """Return why the layer must not grow for load now, None if it may."""
        block = self.blocks.get(layer)
        left_s = 0.0 if block is None else self._left_s(now_s, block)
        if block is not None and left_s > 0:
            reason = f"growth for load was ineffective{_in_a_row(block)}; blocked for {left_s:.0f} s more"
            return Against("effectiveness", "ineffective", reason)
        trial = self._trials.get(layer)
        if trial is not None and settled_s is not None and settled_s >= trial.begun_s:
            reason = f"what {trial.size} -> {trial.grown} has gained is not known yet"
            return Against("effectiveness", "unproven", reason)
        return None


def _gain(trial: Trial, scene: Scene) -> float | None:
    """Return the share of its promise that a growth has brought; None if nothing was promised, or nobody can say."""
    layer = trial.layer
    busy, rate = scene.history.busiest(layer), scene.rate
    if scene.sizes[layer] != trial.grown or busy.value is None or not busy.whole or not rate:
        return None  # it has come otherwise, or nothing can be said
    if scene.overloaded(layer):
        done = scene.history.processed(layer)
        if not trial.done or done is None or trial.times <= 1:
            return None  # it was not before, or nobody knows what it does
        return (done / trial.done - 1) / (trial.times - 1)
    if trial.promised >= trial.before:
        return None  # it grew for another reason than load
    return (trial.before - busy.value / rate) / (trial.before - trial.promised)


def _differ(now: float, then: float) -> bool:
    return now >= CHANGED * then or now * CHANGED <= then


def _in_a_row(block: Block) -> str:
    return "" if block.times == 1 else f", {block.times} times in a row"
