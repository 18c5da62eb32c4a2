"""The order in which a policy is evaluated: fixed, and the one in which `kittiwake autoscaler explain` shows it.

    collect        the signals of each metrics interval; nothing is decided during a transition and the warm-up after it
    aggregate      over the look-back period (`history.py`), the delays over their burn windows (`burn.py`)
    triggers       each proposes; the largest proposal wins. A layer whose signals are missing never shrinks, and after
                   failure_threshold evaluations is brought to its fallback
    forecast       may only raise
    gates          ineffective growth, full cores, efficiency, marginal speed-up, budget and price may only lower
                   growth, the gates of cost not below what an SLO trigger asks (unless on_conflict is cost); catch_up
                   only a shrink
    tolerance      near enough is left alone
    factor         a share of the way
    stabilisation  lowest wish of the up window, highest of the down window, which becomes longer for peaks that recur,
                   and begins anew when the load rises
    delay          continuously in one direction
    rate           so much change within a period
    together       what another layer's growth makes needed comes with it, with no delay of its own; what a layer needs
                   until another one shrinks stays until then
    limits         min_replicas to max_replicas
    transition     one at a time, all layers in it, as much as there is room for; not in an excluded period

Matchers are decided first; the wishes of layers that depend on others' sizes, by a ratio or by the model, are for the
sizes that the others are going to have, so that one transition does all of it.

Floors (ratio, memory, connections, schedule) are not load: what was ineffective against load is no reason to refuse
them, nor are tolerance and the gates of efficiency.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from autoscaler.burn import Level, Watch
from autoscaler.decision import Capacity, Decision, Estimate, Forecast, LayerDecision, Stage
from autoscaler.effectiveness import Effectiveness
from autoscaler.gates import cost_per_hour
from autoscaler.guards import Floor, affordable, free_cores
from autoscaler.history import History
from autoscaler.layer import LayerMachine
from autoscaler.periods import excluded, period_of
from autoscaler.policy import ScalingPolicy, SplitMerge
from autoscaler.rates import Peaks, Rise
from autoscaler.signals import LAYERS, Signals
from autoscaler.triggers import Scene
from cluster.messages import MATCHER

HORIZON_S = 30.0
"""How far ahead a forecast looks before the first transition was measured."""
BETWEEN = "between evaluations"
"""Why a decision holds nothing: its signals were only taken in."""
PLACEMENTS = 50
"""Measured transitions that the horizon is taken from."""


class Decider:
    """See `decision.Decides`. mode, paused: from the policy; an operator may change them (`controller.py`)."""

    def __init__(self, policy: ScalingPolicy, capacity: Capacity, forecast: Forecast) -> None:
        self.policy = policy
        self.mode: str = policy.mode
        self.paused = policy.paused
        self.effectiveness = Effectiveness(policy.guards)
        self._capacity = capacity
        self._forecast = forecast
        windows = [
            trigger.max_window_s
            for layer in LAYERS
            if (one := policy.layers.of(layer)) is not None
            for trigger in one.triggers
            if isinstance(trigger, SplitMerge)
        ]
        self._history = History(policy.look_back_period_s, max(windows, default=0.0) + 1)
        self._watches = {one.name: Watch(one) for one in policy.slo}
        peaks = Peaks(policy.guards.hold_peaks_s)
        layers = {layer: one for layer in LAYERS if (one := policy.layers.of(layer)) is not None}
        judged_s = max(
            (one.behavior.scale_down.stabilization_window_s + one.downscale_delay_s for one in layers.values()),
            default=0.0,
        )
        self._rise = Rise(judged_s, policy.look_back_period_s)
        self._layers = {layer: LayerMachine(layer, one, policy, peaks, self._rise) for layer, one in layers.items()}
        self._periods = tuple((text, period_of(text)) for text in policy.guards.excluded_periods)
        self._zone = ZoneInfo(policy.timezone)
        self._placements: deque[float] = deque(maxlen=PLACEMENTS)
        self._now_s = 0.0
        self._sizes: dict[str, int] = {}
        self._moving = False
        self._settled_s: float | None = None  # when the last transition was over
        self._evaluated_s: float | None = None
        self._said: list[str] = []

    def decide(self, now_s: float, signals: Signals) -> Decision:
        """See `decision.Decides`."""
        self._now_s = now_s = max(now_s, self._now_s)
        held = self._collect(now_s, signals)
        since = None if self._evaluated_s is None else now_s - self._evaluated_s
        if since is not None and since < self.policy.evaluate_interval_s - 1e-6:
            return self._nothing(now_s, signals, BETWEEN)
        self._evaluated_s = now_s
        if held:
            return self._nothing(now_s, signals, held)
        return self._evaluate(now_s, signals)

    # Collect -----------------------------------------------------------------------------------------------------

    def _collect(self, now_s: float, signals: Signals) -> str:
        """Take in an interval; return why nothing is to be decided on it, empty if nothing stands against it."""
        if signals.placement_s is not None:
            self._placements.append(signals.placement_s)
        for watch in self._watches.values():
            watch.add(now_s, signals)
        self._forecast.observe(now_s, signals.publications_per_s)
        self._rise.add(now_s, signals.publications_per_s)
        changed = bool(self._sizes) and self._sizes != signals.sizes
        if changed:
            for layer, machine in self._layers.items():
                size = signals.sizes[layer]
                machine.changed(now_s, size, size - self._sizes[layer])
        if changed or (self._moving and not signals.transition):
            self._settled_s = now_s
        self._sizes, self._moving = dict(signals.sizes), signals.transition
        if signals.transition:
            self._unsettled()
            return "transition"
        left = 0.0 if self._settled_s is None else self._settled_s + self.policy.guards.warmup_s - now_s
        if left > 1e-6:
            self._unsettled()
            return f"warm-up, {left:.0f} s left"
        self._history.add(now_s, signals)
        self._capacity.observe(now_s, signals)
        if self.mode == "manual":
            return "manual"
        return "paused" if self.paused else ""

    def _unsettled(self) -> None:
        self._history.clear()
        for watch in self._watches.values():
            watch.unsettled()

    def horizon_s(self) -> float:
        """Return how far ahead the forecast looks."""
        horizon = self.policy.forecast.horizon
        if horizon != "auto":
            return float(horizon)
        if not self._placements:
            return HORIZON_S
        ranked = sorted(self._placements)
        return ranked[min(len(ranked) - 1, math.ceil(0.95 * len(ranked)) - 1)]

    # Evaluate ----------------------------------------------------------------------------------------------------

    def _evaluate(self, now_s: float, signals: Signals) -> Decision:
        levels = {name: watch.level() for name, watch in self._watches.items()}
        scene = Scene(self._history, levels, self._capacity, signals.sizes)
        self._said += self.effectiveness.judge(now_s, self._settled_s, self._matured(now_s), scene)
        horizon_s = self.horizon_s()
        ahead = self._forecast.rate_ahead(now_s, horizon_s)
        floors = self._forecast.floors(now_s, horizon_s)
        decisions: dict[str, LayerDecision] = {}
        for layer in self._ordered():
            against = self.effectiveness.against(now_s, self._settled_s, layer)
            against = against or free_cores(self.policy.guards, signals.cores, scene)
            machine = self._layers[layer]
            decisions[layer] = one = machine.decide(now_s, scene, ahead, floors.get(layer), against)
            scene.decided[layer], scene.wished[layer] = one.target, machine.wished
        targets, held = self._transition(now_s, signals, decisions)
        for layer, target in targets.items():
            if target > signals.sizes[layer] and self.mode == "auto":
                self.effectiveness.begin(now_s, layer, targets, scene)
        said, self._said = tuple(self._said), []
        return Decision(
            at_s=now_s,
            epoch=signals.epoch,
            layers=tuple(self._estimated(decisions[layer], scene) for layer in LAYERS if layer in decisions),
            targets=targets,
            strategy=self.policy.transition.strategy,
            mode=self.mode,
            held=held,
            notes=said,
            rate=scene.rate,
            forecast_rate=ahead,
            **_of_levels(levels),
            cost_per_hour=cost_per_hour(self.policy.cost, signals.sizes),
            target_cost_per_hour=cost_per_hour(self.policy.cost, {**signals.sizes, **targets}),
            currency=self.policy.cost.currency,
        )

    def _ordered(self) -> list[str]:
        """Return the layers so that one that a ratio refers to comes before those that do, and else matchers first, as
        access points and exit points work for each of them.
        """
        ordered: list[str] = []

        def add(layer: str) -> None:
            if layer not in ordered and layer in self._layers:
                for ratio in self._layers[layer].ratios:
                    add(ratio.of)
                ordered.append(layer)

        for layer in (MATCHER, *LAYERS):
            add(layer)
        return ordered

    def _matured(self, now_s: float) -> bool:
        """Tell whether enough was seen since the last transition and its warm-up to judge it: a third of a look-back.

        A whole one would be surer, but growth for load waits for it.
        """
        if self._settled_s is None:
            return False
        return now_s >= self._settled_s + self.policy.guards.warmup_s + self.policy.look_back_period_s / 3

    def _transition(
        self, now_s: float, signals: Signals, decisions: dict[str, LayerDecision]
    ) -> tuple[dict[str, int], str]:
        """Make one transition of what the layers decided: SLO's growth first, other growth, shrinking last."""

        def rank(layer: str) -> int:
            grows = decisions[layer].target > signals.sizes[layer]
            return 0 if grows and _slo_asks(decisions[layer]) else 1 if grows else 2

        wanted = {
            layer: decisions[layer].target
            for layer in sorted(decisions, key=rank)
            if decisions[layer].target != signals.sizes[layer]
        }
        floors = [
            Floor(layer, one.of, one.one_per) for layer, machine in self._layers.items() for one in machine.ratios
        ]
        period = excluded(self._periods, self._zone, now_s)
        held = ""
        if period is not None and wanted:
            urgent = {layer: target for layer, target in wanted.items() if rank(layer) == 0}
            for floor in floors:
                if floor.of in urgent and wanted.get(floor.layer, 0) > signals.sizes[floor.layer]:
                    urgent[floor.layer] = wanted[floor.layer]
            for layer in set(wanted) - set(urgent):
                decisions[layer] = _cut(decisions[layer], signals.sizes[layer], "excluded", f"excluded period {period}")
            held = "" if urgent else f"excluded period {period}"
            wanted = urgent
        room = signals.placeable if self.policy.guards.require_placeable else None
        targets, cut = affordable(self.policy.guards.disruption_budget, room, signals.sizes, wanted, floors)
        for layer, (word, reason) in cut.items():
            decisions[layer] = _cut(decisions[layer], targets.get(layer, signals.sizes[layer]), word, reason)
        return targets, held

    def _estimated(self, decision: LayerDecision, scene: Scene) -> LayerDecision:
        rate, subscriptions = scene.rate, scene.history.last.subscriptions
        if rate is None or subscriptions is None:
            return decision
        rests_on = self._capacity.rests_on(decision.layer, rate, subscriptions, scene.sizes)
        seen = self._capacity.predict(decision.layer, decision.size, rate, subscriptions, scene.sizes)
        if seen is None:
            return msgspec.structs.replace(decision, estimate=Estimate(rests_on=rests_on))
        estimate = Estimate(
            rests_on=rests_on,
            utilization=seen.utilization,
            capacity_per_s=seen.capacity_per_s,
            speedup=seen.speedup,
            efficiency=seen.efficiency,
            karp_flatt=seen.karp_flatt,
        )
        return msgspec.structs.replace(decision, estimate=estimate)

    def _nothing(self, now_s: float, signals: Signals, held: str) -> Decision:
        cost = cost_per_hour(self.policy.cost, signals.sizes)
        levels = {name: watch.level() for name, watch in self._watches.items()} if held != BETWEEN else {}
        return Decision(
            at_s=now_s,
            epoch=signals.epoch,
            mode=self.mode,
            held=held,
            rate=signals.publications_per_s,
            **_of_levels(levels),
            cost_per_hour=cost,
            target_cost_per_hour=cost,
            currency=self.policy.cost.currency,
        )


def _of_levels(levels: Mapping[str, Level]) -> dict[str, Any]:
    burns = {name: {"fast": level.fast, "slow": level.slow} for name, level in levels.items()}
    return {
        "slo_left": {name: level.left for name, level in levels.items() if level.left is not None},
        "slo_ms": {name: level.value_ms for name, level in levels.items() if level.value_ms is not None},
        "slo_burn": {
            name: {window: rate for window, rate in rates.items() if rate is not None} for name, rates in burns.items()
        },
    }


def _slo_asks(decision: LayerDecision) -> bool:
    return any(
        proposal.trigger.startswith("slo ") and proposal.wish is not None and proposal.wish > decision.size
        for proposal in decision.proposals
    )


def _cut(decision: LayerDecision, target: int, word: str, reason: str) -> LayerDecision:
    stage = Stage(name="transition", before=decision.target, after=target, reason=reason, blocked=word)
    more = decision.why_not_more if decision.target <= target else f"transition: {reason}"
    less = decision.why_not_less if decision.target >= target else f"transition: {reason}"
    return msgspec.structs.replace(
        decision, target=target, stages=(*decision.stages, stage), why_not_more=more, why_not_less=less
    )
