"""What each trigger wishes for a layer: replicas before rounding up, or None when its signals are missing.

A proposal that was made without hearing of every slice is a lower bound: it may ask for more, and holds the size
otherwise (`partial`). The largest proposal wins, whoever made it.

Clients that are connected stay at their connection point until they connect anew. One more of them relieves nobody who
is there; it is room for those who connect from then on. So what triggers of load wish for connection points is one more
at a time, and only where those who connect find none with room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from autoscaler.burn import Level
from autoscaler.decision import Capacity, Proposal, Sizing
from autoscaler.history import History, Seen
from autoscaler.policy import (
    Connections,
    LayerPolicy,
    MemoryUse,
    Queue,
    Ratio,
    Slo,
    SplitMerge,
    Trigger,
    Utilization,
)
from autoscaler.signals import LAYERS
from cluster.messages import CONNECTION_POINT

OF_LOAD = (Utilization, Slo, Queue)
"""Triggers of a connection point that are about the work it has."""
SATURATED = 0.9
"""From this useful share on, the rate that is seen is what the layer lets through, not what is asked of it."""
WAITING_S = 0.05
"""A layer that is too small lets more wait than comes in this time."""
BUSY = 0.5
"""A layer that is to blame for delays works at least so much, or lets something wait."""


@dataclass
class Scene:
    """What triggers look at.

    sizes: now. decided: of the layers that this evaluation has done with. wished: theirs before windows, delays and
    rates; what they are on the way to.
    """

    history: History
    levels: Mapping[str, Level]
    capacity: Capacity
    sizes: Mapping[str, int]
    decided: dict[str, int] = field(default_factory=dict)
    wished: dict[str, int] = field(default_factory=dict)

    @property
    def planned(self) -> dict[str, int]:
        """The sizes that a layer is sized for: of one that grows now what it grows to, and of one that is on the way to
        shrink what it shrinks to, so that the windows and delays of those that depend on it run beside its own.
        """
        planned = {}
        for layer, size in self.sizes.items():
            decided = self.decided.get(layer, size)
            planned[layer] = decided if decided != size else min(self.wished.get(layer, size), size)
        return planned

    @property
    def next(self) -> Scene:
        """The same, seen from after this transition: who only is on the way to shrink is as large as now."""
        return replace(self, wished=dict(self.decided))

    @property
    def alone(self) -> Scene:
        """The same as if no other layer changed."""
        return replace(self, wished={}, decided={})

    def then(self, layer: str, busy: float) -> float:
        """Return how busy a layer that is so busy now will be at the planned sizes of the others, as it is itself."""
        planned, rate, subscriptions = self.planned, self.rate, self.history.last.subscriptions
        if rate is None or subscriptions is None or all(planned[one] == self.sizes[one] for one in planned):
            return busy
        size = self.sizes[layer]
        now = self.capacity.predict(layer, size, rate, subscriptions, self.sizes)
        then = self.capacity.predict(layer, size, rate, subscriptions, {**planned, layer: size})
        if now is None or then is None or now.utilization <= 0:
            return busy
        return busy * then.utilization / now.utilization

    @property
    def rate(self) -> float | None:
        """Publications per second over the look-back period."""
        return self.history.rate()

    def sizing(self, layer: str, rate: float, utilization: float, limit: int) -> Sizing | None:
        """Return what the model says is needed; None while it does not know, or subscriptions are not known."""
        subscriptions = self.history.last.subscriptions
        if subscriptions is None:
            return None
        return self.capacity.best_size(layer, rate, subscriptions, self.planned, utilization, limit)

    def can_help(self, layer: str, size: int) -> bool | None:
        """Return whether so many slices carry more than those that are there."""
        rate, subscriptions = self.rate, self.history.last.subscriptions
        if rate is None or subscriptions is None:
            return None
        return self.capacity.can_help(layer, rate, subscriptions, self.planned, size)

    def overloaded(self, layer: str) -> bool | None:
        """Tell whether a layer is busy all the time and more waits than comes in WAITING_S.

        Then what it lets through is not what is asked of it. One that is as busy while nothing waits is so with waking
        up, which makes room when there is need. None: it is as busy, and what waits is not known.
        """
        busy, waiting = self.history.busiest(layer).value, self.history.backlog(layer).value
        if busy is None or busy < SATURATED:
            return False
        return None if waiting is None else waiting > WAITING_S * (self.rate or 0.0)


def propose(trigger: Trigger, layer: str, policy: LayerPolicy, scene: Scene) -> Proposal:
    """Return what the trigger wishes."""
    proposal = _propose(trigger, layer, policy, scene)
    if layer != CONNECTION_POINT or not isinstance(trigger, OF_LOAD) or proposal.wish is None:
        return proposal
    most, why = for_newcomers(policy, scene)
    if proposal.wish <= most:
        return proposal
    return msgspec.structs.replace(proposal, wish=float(most), reason=f"{proposal.reason}; {why}")


def for_newcomers(policy: LayerPolicy, scene: Scene, times: float = 1.0) -> tuple[int, str]:
    """Return how many connection points are of use to those who connect from now on, and why, at `times` the load.

    One has room if it is not busier than the policy lets it be: `max` of its utilization, BUSY where it has none.
    """
    size = scene.sizes[CONNECTION_POINT]
    trigger = next((one for one in policy.triggers if isinstance(one, Utilization)), None)
    high = BUSY if trigger is None else band(trigger, policy)[1]
    least = scene.history.idlest(CONNECTION_POINT)
    if size > 1 and least is not None and least * times <= high:
        return size, f"who is connected stays, and who connects finds room: the least busy one is at {_percent(least)}"
    return size + 1, "who is connected stays, so one more, for those who connect from now on"


def _propose(trigger: Trigger, layer: str, policy: LayerPolicy, scene: Scene) -> Proposal:
    size = scene.sizes[layer]
    match trigger:
        case Utilization():
            return _utilization(trigger, layer, policy, size, scene)
        case Slo():
            return _slo(trigger, layer, size, scene)
        case Queue():
            waiting = scene.history.backlog(layer, trigger.metric)
            return _shared("queue", waiting, trigger.target_per_replica, size, trigger.metric)
        case SplitMerge():
            return _split_merge(trigger, layer, size, scene)
        case MemoryUse(metric="subscriptions"):
            held = scene.history.sum_of(layer, lambda one: one.subscriptions)
            return _shared("memory", held, trigger.target_per_replica, size, "subscriptions")
        case MemoryUse():
            held = scene.history.sum_of(layer, lambda one: one.rss_bytes)
            return _shared("memory", held, trigger.target_per_replica, size, "resident bytes")
        case Connections():
            there = scene.history.sum_of(layer, lambda one: one.connections)
            return _shared("connections", there, trigger.target_per_replica, size, "connections")
        case Ratio():
            others = scene.planned[trigger.of]
            wish = others / trigger.one_per
            reason = f"one for every {trigger.one_per:g} of {others} {trigger.of}s"
            return Proposal(trigger="ratio", wish=wish, reason=reason)


def _partial(name: str, wish: float, size: int, reason: str, whole: bool) -> Proposal:
    if whole or wish >= size:
        return Proposal(trigger=name, wish=wish, reason=reason, partial=not whole)
    return Proposal(trigger=name, wish=float(size), reason=f"{reason}; not all slices were heard of", partial=True)


def _missing(name: str, what: str) -> Proposal:
    return Proposal(trigger=name, wish=None, reason=f"{what} is missing")


def _shared(name: str, seen: Seen, target: float, size: int, what: str) -> Proposal:
    """Return the wish of something that is shared among the replicas: sum / target."""
    if seen.value is None:
        return _missing(name, what)
    reason = f"{_number(seen.value)} {what}, {_number(target)} a replica"
    return _partial(name, seen.value / target, size, reason, seen.whole)


def _utilization(trigger: Utilization, layer: str, policy: LayerPolicy, size: int, scene: Scene) -> Proposal:
    """Size by the model where it knows the layer, else by the ratio to the target, as the HorizontalPodAutoscaler does.

    A layer that is overloaded hides what is asked of it, so there the ratio counts if it is the larger; and the model
    has a say in whether more can help at all. After a steep rise of the load (`History.surge`) what was seen of late
    counts, so that one growth does for it what the mean of the look-back would take several for.
    """
    busy, whole = scene.history.busiest(layer)
    if busy is None:
        return _missing("utilization", "useful_share")
    target, surge = trigger.target, scene.history.surge()
    asked = busy * surge
    if surge > 1:
        busy = max(busy, scene.history.busiest_of_late(layer) or 0.0)
        asked = asked if busy >= SATURATED else busy
    reason = f"busiest {layer} {_percent(busy)}, target {_percent(target)}"
    use = busy_in(trigger, layer, policy, scene, busy)
    if _percent(use.share) != _percent(busy):
        beside = f"{_percent(use.share)} beside {_others(scene)}"
        reason = f"busiest {layer} {_percent(busy)}, {beside}, target {_percent(target)}"
    if use.inside:
        reason = f"{reason}: within {_percent(use.low)} to {_percent(use.high)}"
        if not use.low <= use.share <= use.high:
            reason = f"{reason} in the long run, {_percent(use.long_run)}"
        return _partial("utilization", float(size), size, reason, whole)
    asked *= use.share / busy if busy else 1.0
    busy, high = use.share, use.high
    wish = size * max(asked, busy) / target
    rate = scene.rate
    if rate is not None and busy > high and surge > 1:
        rate *= surge
        reason = f"{reason}; {_number(rate)} publications/s of late, {surge:.3g} times the mean"
    sizing = None if rate is None else scene.sizing(layer, rate, target, max(policy.max_replicas, size))
    if sizing is not None:
        reason = f"{reason}; model: {sizing.reason}"
        if sizing.size is None:
            wish = float(max(size, sizing.best)) if busy > high else float(min(size, sizing.best))
        elif scene.overloaded(layer) is False:
            wish = float(sizing.size)
        else:
            wish = max(wish, float(sizing.size))
    if busy > high and wish > size and scene.can_help(layer, size + 1) is False:
        wish, reason = float(size), f"{reason}; more {layer}s carry no more"
    # The model and what is seen may disagree on the direction; then nothing is done until they agree.
    wish = max(wish, float(size)) if busy > high else min(wish, float(size))
    return _partial("utilization", wish, size, reason, whole)


class Use(NamedTuple):
    """How busy a layer's busiest slice is (0 to 1) and whether that is inside of the band low to high.

    share: over the look-back period. long_run: over many of them.
    """

    share: float
    long_run: float
    low: float
    high: float
    inside: bool


def busy_in(
    trigger: Utilization, layer: str, policy: LayerPolicy, scene: Scene, busy: float, times: float = 1.0
) -> Use:
    """Return how busy the layer, so busy now, is at the planned sizes of the others and `times` the rate.

    Near an edge of the band, within the tolerance, noise crosses it now and then; what counts there is the long run.
    """
    low, high = band(trigger, policy)
    share = scene.then(layer, busy) * times
    steady = scene.history.steady(layer)
    long_run = share if steady is None or not busy else steady * share / busy
    near = low * (1 - policy.tolerance.down) <= share <= high * (1 + policy.tolerance.up)
    return Use(share, long_run, low, high, low <= share <= high or (near and low <= long_run <= high))


def band(trigger: Utilization, policy: LayerPolicy) -> tuple[float, float]:
    """Return between which useful shares nothing is wished."""
    low = trigger.target * (1 - policy.tolerance.down) if trigger.min is None else trigger.min
    high = trigger.target * (1 + policy.tolerance.up) if trigger.max is None else trigger.max
    return low, high


def _others(scene: Scene) -> str:
    """Name the layers that will have other sizes."""
    planned = scene.planned
    return ", ".join(f"{planned[layer]} {layer}s" for layer in LAYERS if planned[layer] != scene.sizes[layer])


def _slo(trigger: Slo, layer: str, size: int, scene: Scene) -> Proposal:
    """One more where the delay comes from, for as long as the budget burns; never fewer."""
    level = scene.levels[trigger.name]
    name = f"slo {trigger.name}"
    if level.fast is None and level.missing:
        return _missing(name, "its histogram")
    stay = Proposal(trigger=name, wish=0.0, reason="no budget burns too fast")
    if level.burning is None:
        return (
            stay
            if not level.missing
            else Proposal(trigger=name, wish=float(size), reason="its histogram is missing", partial=True)
        )
    rate = level.fast if level.burning == "fast" else level.slow
    reason = f"budget burns {rate:.3g} times too fast ({level.burning} window)"
    if scene.history.rising:
        return Proposal(
            trigger=name, wish=float(size), reason=f"{reason}; the load rises, how far will show in a moment"
        )
    blame, why = bottleneck(scene)
    if blame != layer:
        return Proposal(trigger=name, wish=float(size), reason=f"{reason}; {why}")
    if scene.can_help(layer, size + 1) is False:
        return Proposal(trigger=name, wish=float(size), reason=f"{reason}; more {layer}s carry no more")
    return Proposal(trigger=name, wish=float(size + 1), reason=f"{reason}; {why}")


def bottleneck(scene: Scene) -> tuple[str | None, str]:
    """Return the layer that delays come from, None if none shows, and why.

    The busiest by useful share if it is above BUSY; else the one where most waits.
    """
    shares = {layer: scene.history.busiest(layer).value for layer in LAYERS}
    busiest = max(LAYERS, key=lambda layer: shares[layer] or 0.0)
    share = shares[busiest]
    if share is not None and share >= BUSY:
        return busiest, f"{busiest} is the busiest layer, {_percent(share)}"
    waiting = {layer: scene.history.backlog(layer).value for layer in LAYERS}
    fullest = max(LAYERS, key=lambda layer: waiting[layer] or 0.0)
    backlog = waiting[fullest]
    if backlog is not None and backlog >= 1:
        return fullest, f"most waits for {fullest}s, {_number(backlog)} messages"
    return None, "no layer is busy and nothing waits, so more of them would not help"


def _split_merge(trigger: SplitMerge, layer: str, size: int, scene: Scene) -> Proposal:
    windows, heard = scene.history.match_windows(layer, trigger.window_n, trigger.min_window_s, trigger.max_window_s)
    if not heard and not windows:
        return _missing("split_merge", "match_ms")
    split = [(one.min, slot) for slot, one in windows.items() if one.count and one.min > trigger.split_above_ms]
    if split:
        least, slot = max(split)
        above = f"split above {trigger.split_above_ms:g} ms"
        reason = f"the last publications took matcher {slot} at least {least:.3g} ms, {above}"
        return Proposal(trigger="split_merge", wish=float(size + 1), reason=reason)
    if len(windows) < size:
        reason = f"windows of {trigger.window_n} publications are not complete yet"
        return Proposal(trigger="split_merge", wish=float(size), reason=reason, partial=not heard)
    most = max(one.max for one in windows.values())
    if most < trigger.merge_below_ms:
        reason = f"the last publications took at most {most:.3g} ms, merge below {trigger.merge_below_ms:g} ms"
        return _partial("split_merge", float(size - 1), size, reason, heard)
    reason = (
        f"match time {min(one.min for one in windows.values()):.3g} to {most:.3g} ms, "
        f"split above {trigger.split_above_ms:g} ms (least), merge below {trigger.merge_below_ms:g} ms (most)"
    )
    return Proposal(trigger="split_merge", wish=float(size), reason=reason)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
