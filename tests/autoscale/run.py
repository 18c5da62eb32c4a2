"""One run of the real decider against the reckoned cluster, and what must hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from autoscaler.controller import Controller
from autoscaler.decider import Decider
from autoscaler.fitted import FittedCapacity
from autoscaler.forecast import PolicyForecast
from autoscaler.policy import Ratio, ScalingPolicy, Utilization
from autoscaler.scorecard import Scorecard
from autoscaler.signals import LAYERS, Signals, share_above
from cluster.messages import EXIT_POINT, MATCHER
from tests.autoscale.cluster import Cluster
from tests.autoscale.scenarios import Scenario

START = {layer: 2 if layer == MATCHER else 1 for layer in LAYERS}
BEGIN_S = 1_767_571_200.0
"""A Monday, midnight: the clock that policies see."""

STEPS = 3
"""Transitions within which a load step is to be answered: DS2's bar."""


@dataclass
class Outcome:
    """What a run came to. trouble: properties that did not hold, as sentences."""

    seed: int
    card: Scorecard
    optimum: float
    late_turns: int = 0
    """Changes of a layer against the direction of its last one, once the run has settled."""
    reached_after: int | None = None
    """Transitions between a load step and the first minute in which all was in time again."""
    trouble: list[str] = field(default_factory=list)
    sizes: list[tuple[float, dict[str, int]]] = field(default_factory=list)


def play(
    seed: int,
    scenario: Scenario,
    policy: ScalingPolicy,
    interval_s: float | None = None,
    record: Callable[[float, Signals], None] = lambda _, __: None,
) -> Outcome:
    """Run a scenario with a seed. record: gets unix seconds and the signals of each interval."""
    interval = scenario.interval_s if interval_s is None else interval_s
    cluster = Cluster(seed, scenario, START)
    forecast = PolicyForecast(policy.forecast, policy.timezone, policy.look_back_period_s)
    controller = Controller(Decider(policy, FittedCapacity(), forecast))
    card = Scorecard(policy)
    outcome = Outcome(seed, card, 0.0)
    best = Best(cluster, policy)
    directions: dict[str, int] = {}
    since_step = 0
    calm, calm_since = 0.0, 0
    for _ in range(math.ceil(scenario.hours * 3600 / interval)):
        before = dict(cluster.sizes)
        signals = cluster.step(interval)
        now = cluster.now_s
        record(BEGIN_S + now, signals)
        card.add(now, interval, cluster.sizes, signals.delay, signals.subscribe_ack)
        outcome.optimum += best.cost(now) * interval / 3600
        if cluster.ended is not None:
            controller.ended(cluster.ended, "it was given up")
        requests = controller.tick(BEGIN_S + now, signals)
        if before != cluster.sizes:
            outcome.sizes.append((now, dict(cluster.sizes)))
            for layer in LAYERS:
                change = cluster.sizes[layer] - before[layer]
                if not change:
                    continue
                if now > scenario.settled_s and directions.get(layer, 0) * change < 0:
                    outcome.late_turns += 1
                directions[layer] = change
            since_step += scenario.step_s is not None and now > scenario.step_s
        for request in requests:
            outcome.trouble += [
                f"{now:.0f} s: {text}" for text in _wrong(request.sizes, cluster.sizes, policy, signals)
            ]
            if cluster.request(request.sizes):
                controller.accepted(cluster.resizing.epoch)
            else:
                controller.refused("an operation is under way")
        if scenario.step_s is not None and now > scenario.step_s and outcome.reached_after is None:
            late = share_above(signals.delay or (), policy.slo[0].target) if signals.delay else None
            met = late is not None and late <= policy.slo[0].allowed_share
            calm, calm_since = (calm + interval, calm_since if calm else since_step) if met else (0.0, since_step)
            # Met for a minute without a break, which is the objective's own window; what came during it was not needed.
            if calm >= policy.slo[0].window_s:
                outcome.reached_after = calm_since
    card.finish()
    _judge(outcome, scenario)
    return outcome


def _wrong(targets: dict[str, int], sizes: dict[str, int], policy: ScalingPolicy, signals: Signals) -> Iterator[str]:
    """Yield what must never be asked for."""
    if signals.transition:
        yield "a second operation while one is under way"
    for layer, target in targets.items():
        one = policy.layers.of(layer)
        assert one is not None, "a layer without a policy is left alone"
        if not one.min_replicas <= target <= one.max_replicas:
            yield f"{layer} {target}, allowed is {one.min_replicas} to {one.max_replicas}"
        if target < sizes[layer] and all(part.useful_share is None for part in signals.of(layer)):
            yield f"{layer} {sizes[layer]} to {target}, and nothing was heard of it"
    then = {**sizes, **targets}
    for layer in LAYERS:
        one = policy.layers.of(layer)
        for ratio in () if one is None else (trigger for trigger in one.triggers if isinstance(trigger, Ratio)):
            floor = min(math.ceil(then[ratio.of] / ratio.one_per), one.max_replicas)
            if then[layer] < floor and then[ratio.of] > sizes[ratio.of]:
                yield f"{then[layer]} {layer}s beside {then[ratio.of]} {ratio.of}s, the floor is {floor}"
    grown = sum(max(0, target - sizes[layer]) for layer, target in targets.items())
    if signals.placeable is not None and grown > signals.placeable:
        yield f"{grown} more, and there is room for {signals.placeable}"


def _judge(outcome: Outcome, scenario: Scenario) -> None:
    if scenario.steady and outcome.late_turns:
        outcome.trouble.append(f"{outcome.late_turns} changes of direction under a steady load")
    if scenario.cost_max is not None and outcome.card.cost > scenario.cost_max * outcome.optimum:
        limit = f"{scenario.cost_max:g} times the optimum of {outcome.optimum:.2f} is allowed"
        text = f"it cost {outcome.card.cost:.2f}, {limit}"
        outcome.trouble.append(text)
    if scenario.step_s is not None:
        if outcome.reached_after is None:
            outcome.trouble.append("the service level was never reached after the step")
        elif outcome.reached_after > STEPS:
            text = f"it took {outcome.reached_after} transitions to answer the step, {STEPS} are allowed"
            outcome.trouble.append(text)


class Best:
    """The optimum in hindsight: at each moment the cheapest sizes that keep the truth to the policy's utilization.

    It knows the true coefficients and the load without noise, changes at once and for free, and keeps as much headroom
    as the policy was told to.
    """

    def __init__(self, cluster: Cluster, policy: ScalingPolicy) -> None:
        self._cluster = cluster
        self._policy = policy
        self._known: dict[int, float] = {}

    def cost(self, at_s: float) -> float:
        """Return what the best sizes cost an hour; minutes are taken as a whole."""
        minute = int(at_s // 60)
        if minute not in self._known:
            self._known[minute] = self._cost(at_s)
        return self._known[minute]

    def _cost(self, at_s: float) -> float:
        load = self._cluster.load(at_s)
        sizes = dict.fromkeys(LAYERS, 1)
        prices = self._policy.cost.replica_hour
        for layer in (MATCHER, *(one for one in LAYERS if one != MATCHER)):
            policy = self._policy.layers.of(layer)
            if policy is None:
                sizes[layer] = START[layer]
                continue
            target = next((one.target for one in policy.triggers if isinstance(one, Utilization)), 0.6)
            floor = -(-sizes[MATCHER] // 4) if layer == EXIT_POINT else 1
            for count in range(max(policy.min_replicas, floor), policy.max_replicas + 1):
                sizes[layer] = count
                worst = self._cluster.worst(layer, count, at_s)
                if self._cluster.truth.utilisation(layer, sizes, load) * worst <= target:
                    break
        return sum(sizes[layer] * float(getattr(prices, layer)) for layer in LAYERS)
