"""One layer's way from its triggers' proposals to a size; the order is told in `decider.py`."""

from __future__ import annotations

import math

import msgspec

from autoscaler.decision import LayerDecision, Proposal, Stage
from autoscaler.gates import gate
from autoscaler.guards import Against, caught_up
from autoscaler.policy import Connections, LayerPolicy, MemoryUse, Ratio, ScalingPolicy, Slo, Utilization
from autoscaler.rates import Delay, Peaks, Rates, Rise, Stabilization
from autoscaler.triggers import Scene, busy_in, for_newcomers, propose
from cluster.messages import CONNECTION_POINT

FLOORS = (Connections, MemoryUse, Ratio)
"""Triggers that are not about load."""
DEPENDENT = (Ratio, Utilization)
"""Triggers whose wish depends on others' sizes."""
STEPS = ("slo ", "split_merge")
"""Triggers that ask for one more or one fewer; near enough to the size is what they mean."""
HAIR = 1e-6
MISSING = "no trigger has its signals; never fewer while signals are missing"


class LayerMachine:
    """What a layer's decisions remember: its windows, delays, rates, and how often its signals were missing."""

    def __init__(self, layer: str, policy: LayerPolicy, whole: ScalingPolicy, peaks: Peaks, rise: Rise) -> None:
        self._layer = layer
        self._policy = policy
        self._whole = whole
        self._stabilization = Stabilization(policy, peaks, rise)
        self._delay = Delay(policy)
        self._rates = Rates(policy)
        self._misses = 0
        self.ratios = [trigger for trigger in policy.triggers if isinstance(trigger, Ratio)]
        self.wished = 0
        """What the last decision was on the way to: the wish before windows, delays and rates, within the limits."""

    def changed(self, now_s: float, size: int, by: int) -> None:
        """The layer's size has become `size`, by so many more, whoever asked for it."""
        if by:
            self._rates.changed(now_s, by)
            self._stabilization.changed(now_s, size, by)
            self._delay.reset()

    def decide(
        self, now_s: float, scene: Scene, ahead: float | None, scheduled: int | None, against: Against | None
    ) -> LayerDecision:
        """Return the layer's decision.

        ahead: the forecast rate. scheduled: replicas that the schedule asks for. against: what limits growth for load.
        """
        size = scene.sizes[self._layer]
        policy = self._policy
        proposals = tuple(propose(trigger, self._layer, policy, scene) for trigger in policy.triggers)
        missing = tuple(one.trigger for one in proposals if one.wish is None)
        held = bool(missing) or any(one.partial for one in proposals)
        floor = max(
            (
                one.wish
                for one, trigger in zip(proposals, policy.triggers, strict=True)
                if isinstance(trigger, FLOORS) and one.wish is not None
            ),
            default=0.0,
        )
        slo = max(
            (
                one.wish
                for one, trigger in zip(proposals, policy.triggers, strict=True)
                if isinstance(trigger, Slo) and one.wish is not None
            ),
            default=0.0,
        )
        way = _Way(size)
        self._largest(way, proposals, missing, held)
        if scheduled is not None:
            floor = max(floor, float(scheduled))
        self._foresee(way, scene, ahead, scheduled)
        self._gate(way, scene, floor, slo, against)
        self._tolerate(way, floor)
        self._factor(way)
        self.wished = min(max(way.whole, policy.min_replicas), policy.max_replicas)
        wish = self._stabilization.apply(now_s, size, way.whole)
        way.step("stabilisation", wish, self._windows(now_s))
        wish, left_s = self._delay.apply(now_s, size, way.whole)
        way.step("delay", wish, f"{left_s:.0f} s more in this direction" if left_s else "held long enough")
        wish = self._rates.apply(now_s, size, way.whole)
        way.step("rate", wish, "changes within the periods of behavior")
        self._together(way, scene, against)
        wish = min(max(way.whole, policy.min_replicas), policy.max_replicas)
        reason = f"min_replicas {policy.min_replicas}, max_replicas {policy.max_replicas}"
        if held and wish < size:
            wish, reason = size, f"{reason}; never fewer while signals are missing"
        way.step("limits", wish, reason)
        more, less = way.why_not(proposals, policy.min_replicas)
        return LayerDecision(
            layer=self._layer,
            size=size,
            target=way.whole,
            busy=scene.history.busiest(self._layer).value,
            proposals=proposals,
            stages=tuple(way.stages),
            missing=missing,
            why_not_more=more,
            why_not_less=less,
        )

    def _windows(self, now_s: float) -> str:
        one = self._stabilization
        text = f"window {one.up_s:g} s up, {one.down_s:.4g} s down"
        risen_s = one.risen_s(now_s)
        if risen_s is not None:
            text = f"{text}, which begins anew as the load rose {risen_s:.0f} s ago"
        if not one.peaks.interval_s:
            return text
        return f"{text}, as peaks recur: what was given up was needed again {one.peaks.interval_s:.0f} s later"

    # The stages --------------------------------------------------------------------------------------------------

    def _largest(self, way: _Way, proposals: tuple[Proposal, ...], missing: tuple[str, ...], held: bool) -> None:
        best = _best(proposals)
        wish = float(way.size) if best is None or best.wish is None else best.wish
        reason = MISSING if best is None else f"the largest wish is of {best.trigger}"
        if held and wish < way.size:
            wish, reason = float(way.size), f"{reason}; never fewer while signals are missing"
        way.step("triggers", wish, reason, "missing" if held and wish == way.size else None)
        way.exact = best is not None and best.trigger.startswith(STEPS)
        if self._layer == CONNECTION_POINT and wish == way.size + 1:
            way.exact = True  # as no trigger of load asks for more
        self._misses = self._misses + 1 if missing else 0
        fallback = self._whole.fallback
        replicas: int | None = getattr(fallback.replicas, self._layer)
        if self._misses < fallback.failure_threshold or replicas is None or fallback.behavior == "current":
            return
        if fallback.behavior == "current_if_lower":
            replicas = min(replicas, way.size)  # and never fewer
        if replicas > way.wish:
            text = (
                f"signals missing for {self._misses} evaluations ({', '.join(missing)}), behavior {fallback.behavior}"
            )
            way.step("fallback", float(replicas), text)

    def _foresee(self, way: _Way, scene: Scene, ahead: float | None, scheduled: int | None) -> None:
        wish, reason = way.wish, "nothing to raise for"
        utilization = next((one for one in self._policy.triggers if isinstance(one, Utilization)), None)
        rate = scene.rate
        if ahead is not None and utilization is not None and rate is not None and ahead > rate:
            reason = f"{ahead:,.0f} publications a second ahead, {rate:,.0f} now"
            sizing = scene.sizing(self._layer, ahead, utilization.target, self._policy.max_replicas)
            busy = scene.history.busiest(self._layer).value
            use = None
            if busy is not None and rate > 0:
                use = busy_in(utilization, self._layer, self._policy, scene, busy, ahead / rate)
            if use is not None and (use.inside or use.share < use.low):
                # As for the trigger: to size to the target on any rise would give up what the band is for.
                reason = f"{reason}: not above {use.high:.0%} of the busiest {self._layer} even then"
            elif sizing is not None:
                wish = max(wish, float(sizing.best if sizing.size is None else sizing.size))
            elif busy is not None and rate > 0:
                wish = max(wish, way.size * busy * ahead / rate / utilization.target)
            if self._layer == CONNECTION_POINT and wish > way.wish:
                most, why = for_newcomers(self._policy, scene, ahead / rate if rate > 0 else 1.0)
                if wish > most:
                    wish, reason = max(way.wish, float(most)), f"{reason}; {why}"
        if scheduled is not None and scheduled > wish:
            wish, reason = float(scheduled), f"the schedule asks for {scheduled}"
        way.step("forecast", wish, reason)

    def _gate(self, way: _Way, scene: Scene, floor: float, slo: float, against: Against | None) -> None:
        wish, size = _up(way.wish), way.size
        if wish > size and against is not None:
            kept = min(wish, max(size + against.room, _up(floor)))
            if kept < wish:
                way.step(against.stage, float(kept), against.reason, against.word)
                wish = kept
        if wish > size:
            most = min(wish, max(size, self._policy.max_replicas))  # what is beyond ends at the limits anyhow
            gated = gate(self._whole.cost, self._layer, most, scene, free=_up(floor))
            kept, reason = gated.size, gated.reason
            if self._whole.cost.on_conflict == "slo" and kept < min(wish, _up(slo)):
                kept = min(wish, _up(slo))
                reason = f"{reason}; the SLO goes before (on_conflict: slo)"
            if gated.word is not None:
                way.step("gates", float(kept), reason, gated.word if kept < wish else None)
                return
        elif wish < size:
            least = max(wish, min(self._policy.min_replicas, size))  # what is below ends at the limits anyhow
            kept, reason = caught_up(self._whole.guards, self._layer, least, scene)
            if kept > least:
                way.step("gates", float(kept), reason, "catch_up")
                return
        way.step("gates", way.wish, "passed")

    def _tolerate(self, way: _Way, floor: float) -> None:
        tolerance = self._policy.tolerance
        ratio = way.wish / way.size - 1
        reason = f"up {tolerance.up:.0%}, down {tolerance.down:.0%}"
        if ratio and not way.exact and -tolerance.down - HAIR <= ratio <= tolerance.up + HAIR:
            way.step("tolerance", max(float(way.size), float(_up(floor))), reason)
        else:
            way.step("tolerance", way.wish, reason)

    def _together(self, way: _Way, scene: Scene, against: Against | None) -> None:
        """Have what others' growth makes needed come with it, and nothing shrink before what it waits for does.

        What others' growth makes needed has no windows and delays of its own to wait for: theirs are over.
        """
        if scene.planned == scene.sizes:
            return
        then = scene.next
        for kinds in (DEPENDENT, (Ratio,)):  # a floor holds as well where its own load asks for more, but not yet
            need, reason = self._needed(kinds, then, against)
            whole = _up(need)
            if whole > max(way.whole, way.size) and need > self._needed(kinds, scene.alone, against)[0] + HAIR:
                gated = gate(self._whole.cost, self._layer, whole, then, free=whole)
                way.step("together", float(max(gated.size, way.whole)), gated.reason or f"with the others: {reason}")
                return
        need, reason = self._needed(DEPENDENT, then, against)
        least = min(_up(need), way.size)
        if way.whole < least:
            way.step("together", float(least), f"not before the others: {reason}")

    def _needed(self, kinds: tuple[type, ...], scene: Scene, against: Against | None) -> tuple[float, str]:
        """Return what the triggers of these kinds wish, and why."""
        found = []
        for trigger in self._policy.triggers:
            if isinstance(trigger, kinds):
                one = propose(trigger, self._layer, self._policy, scene)
                if isinstance(trigger, Utilization) and against is not None and one.wish is not None:
                    most = scene.sizes[self._layer] + against.room
                    one = msgspec.structs.replace(one, wish=min(one.wish, float(most)))
                found.append(one)
        best = _best(tuple(found))
        return (0.0, "") if best is None or best.wish is None else (best.wish, f"{best.trigger}: {best.reason}")

    def _factor(self, way: _Way) -> None:
        goal, size = _up(way.wish), way.size
        factor = self._policy.upscaling_factor if goal > size else self._policy.downscaling_factor
        wish = _up(size + factor * (goal - size))
        if goal < size and wish >= size:
            wish = size - 1  # or it would never get there
        way.step(
            "factor",
            float(wish),
            f"upscaling {self._policy.upscaling_factor:g}, downscaling {self._policy.downscaling_factor:g}",
        )


class _Way:
    """The number of replicas on its way through the stages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.wish = float(size)
        self.exact = False
        """The wish is a step, which no tolerance holds back."""
        self.stages: list[Stage] = []

    @property
    def whole(self) -> int:
        """The wish in whole replicas."""
        return _up(self.wish)

    def step(self, name: str, after: float, reason: str, blocked: str | None = None) -> None:
        """Note what a stage made of it."""
        before = self.wish
        if blocked is None and self.stages and _held_back(before, after, self.size):
            blocked = name
        self.stages.append(Stage(name=name, before=before, after=after, reason=reason, blocked=blocked))
        self.wish = after

    def why_not(self, proposals: tuple[Proposal, ...], least: int) -> tuple[str, str]:
        """Return why it does not become more, and why not less, for people."""
        final = self.wish
        more = less = ""
        for one in self.stages:  # the last stage that lowered it, or raised it, is the one that counts
            before, after = _up(one.before), _up(one.after)
            if after < before and before > final:
                more = f"{one.name}: {one.reason}"
            if after > before and before < final and one.name != "triggers":
                less = f"{one.name}: {one.reason}"
        best = _best(proposals)
        asks = MISSING if best is None else f"{best.trigger} asks for no more: {best.reason}"
        if not less and final <= least and best is not None and (best.wish or 0.0) < final:
            less = f"limits: min_replicas {least}"
        holds = MISSING if best is None else f"{best.trigger} asks for it: {best.reason}"
        return more or asks, less or holds


def _best(proposals: tuple[Proposal, ...]) -> Proposal | None:
    return max((one for one in proposals if one.wish is not None), key=lambda one: one.wish or 0.0, default=None)


def _held_back(before: float, after: float, size: int) -> bool:
    """Tell whether a stage kept a change from being made, or made it smaller."""
    return abs(_up(after) - size) < abs(_up(before) - size)


def _up(wish: float) -> int:
    """Return whole replicas; what is a hair above a whole number by arithmetic alone is that number."""
    return math.ceil(wish - HAIR)
