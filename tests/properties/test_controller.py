"""The autoscaler stays within its limits, never shrinks on missing signals, and takes one step at a time.

Random policies meet random signals: any size, any load, values missing at random, transitions that others begin, that
fail or take long, clocks that jump.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from autoscaler.controller import Controller, Memory
from autoscaler.decider import Decider
from autoscaler.fitted import FittedCapacity
from autoscaler.forecast import PolicyForecast
from autoscaler.policy import ScalingPolicy
from autoscaler.policy_check import contradictions
from autoscaler.signals import BUCKETS, LAYERS, NodeSignals, Signals, SliceSignals, Spread

SEEDS = range(40)
TICKS = 150


def a_trigger(random: Random, layer: str) -> dict[str, Any]:
    target = random.uniform(0.3, 0.9)
    choices: list[dict[str, Any]] = [
        {"type": "utilization", "target": target},
        {"type": "utilization", "target": target, "min": target / 2, "max": (1 + target) / 2},
        {"type": "queue", "target_per_replica": random.choice([1, 100, 10_000])},
        {"type": "memory", "metric": "rss_bytes", "target_per_replica": 1e8},
    ]
    if layer == "matcher":
        choices.append({"type": "memory", "target_per_replica": 100})
        choices.append(
            {"type": "split_merge", "split_above_ms": 4, "merge_below_ms": 1, "window_n": random.choice([1, 500])}
        )
    if layer == "exit_point":
        choices.append({"type": "ratio", "of": "matcher", "one_per": random.uniform(0.5, 5)})
    if layer == "connection_point":
        choices.append({"type": "connections", "target_per_replica": 10})
    return random.choice(choices)


def a_policy(random: Random) -> ScalingPolicy:
    layers = {}
    for layer in random.sample(LAYERS, random.randint(1, 4)):
        least = random.randint(1, 3)
        scaling = {
            "stabilization_window_s": random.choice([0, 10, 60]),
            "policies": random.choice([[], [{"type": "replicas", "value": 1, "period_s": 20}]]),
            "select_policy": random.choice(["max", "min", "disabled"]),
        }
        triggers = [a_trigger(random, layer)]
        if random.random() < 0.5:
            triggers.append({"type": "slo", "name": "delay"})
        layers[layer] = {
            "min_replicas": least,
            "max_replicas": least + random.randint(0, 6),
            "triggers": triggers,
            "upscale_delay_s": random.choice([0, 5]),
            "downscale_delay_s": random.choice([0, 20]),
            "upscaling_factor": random.choice([0.5, 1, 3]),
            "downscaling_factor": random.choice([0.1, 1]),
            "behavior": {"scale_up": {}, "scale_down": scaling},
        }
    document = {
        "apiVersion": "kittiwake/v1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "random"},
        "evaluate_interval_s": random.choice([1, 3]),
        "look_back_period_s": random.choice([1, 20]),
        "slo": [{"name": "delay", "target": 100}],
        "cost": random.choice([{}, {"min_efficiency": 0.5, "min_marginal_speedup": 0.1}]),
        "forecast": {"method": random.choice(["none", "linear", "holt_winters"]), "season_s": 100},
        "guards": {
            "warmup_s": random.choice([0, 5]),
            "min_gain": random.choice([0.1, 0.9]),
            "block_s": random.choice([10, 900]),
            "disruption_budget": {"max_replicas_moving": random.choice([1, 3, 100])},
        },
        "fallback": {"failure_threshold": 2, "behavior": random.choice(["static", "current_if_higher", "current"])},
        "layers": layers,
    }
    policy = msgspec.convert(document, ScalingPolicy)
    assert not list(contradictions(policy))
    return policy


def a_slice(random: Random, layer: str, slot: int, load: float, lost: float) -> SliceSignals:
    def maybe(value: Any) -> Any:
        return None if random.random() < lost else value

    least = random.uniform(0, 6)
    return SliceSignals(
        layer=layer,
        slot=slot,
        useful_share=maybe(min(1.0, load * random.uniform(0.8, 1.2))),
        backlog_messages=maybe(random.choice([0, 10, 100_000])),
        match_ms=maybe(Spread(random.choice([0, 1000]), least, least * 2, least * 1.5)),
        subscriptions=maybe(random.randint(0, 1000)),
        connections=maybe(random.randint(0, 100)),
        rss_bytes=maybe(random.randint(10**7, 10**9)),
    )


class World:
    """A cluster that does what it is asked for, sooner or later or not at all."""

    def __init__(self, random: Random, policy: ScalingPolicy) -> None:
        self.random = random
        self.sizes = {layer: random.randint(1, 8) for layer in LAYERS}
        for layer in LAYERS:
            if (one := policy.layers.of(layer)) is not None:
                self.sizes[layer] = random.randint(one.min_replicas, one.max_replicas)
        self.pending: dict[str, int] = {}
        self.left = 0
        self.load = 0.6
        self.calm = False
        """Nothing is lost and nothing late."""
        self.lost = random.choice([0.0, 0.0, 0.1, 1.0])
        self.cores = random.choice([None, None, 4.0, 64.0])

    def nodes(self) -> tuple[NodeSignals, ...]:
        """Some or none, full or not, and those of which nothing is known."""
        random = self.random
        if self.cores is None or random.random() < self.lost:
            return ()
        return tuple(
            NodeSignals(
                host=f"10.0.0.{number}",
                cores=self.cores,
                busy=random.choice([None, 0.0, self.cores * self.load, self.cores]),
                slices=random.choice([None, 0.1]),
            )
            for number in range(random.randint(0, 3))
        )

    def signals(self) -> Signals:
        random = self.random
        if not self.calm and random.random() < 0.02:
            self.lost = random.choice([0.0, 0.1, 1.0])
        if random.random() < 0.04:
            self.load = random.choice([0.05, 0.3, 0.6, 0.95])
        load = self.load
        counts = [0] * BUCKETS
        counts[0 if self.calm else random.randrange(BUCKETS)] = 100
        return Signals(
            interval_s=1.0,
            epoch=1,
            sizes=dict(self.sizes),
            transition=bool(self.pending),
            placeable=random.choice([None, 0, 1, 50]),
            cores=self.cores,
            nodes=self.nodes(),
            publications_per_s=None if random.random() < self.lost else random.choice([0.0, 10.0, 1000.0]),
            notifications_per_s=None if random.random() < self.lost else 100.0,
            delay=None if random.random() < self.lost else tuple(counts),
            slices=tuple(
                a_slice(random, layer, slot, load, self.lost) for layer in LAYERS for slot in range(self.sizes[layer])
            ),
        )


def grows_as_it_may(controller: Controller, policy: ScalingPolicy, layer: str, target: int) -> None:
    """A layer whose last growth was in vain grows for what is no load alone, and connection points for load by one."""
    assert controller.last is not None
    (decision,) = [each for each in controller.last.layers if each.layer == layer]
    one = policy.layers.of(layer)
    floors = [each.wish for each in decision.proposals if each.trigger in ("memory", "connections", "ratio")]
    needed = max([0.0, *(wish for wish in floors if wish is not None)])
    if one is None or target <= one.min_replicas or needed > decision.size:
        return
    block = controller.memory().blocks.get(layer)
    over = block is None or controller.last.at_s >= block.since_s + block.lasts_s(policy.guards.block_s)
    assert over, f"{layer} {decision.size} -> {target}, and {block}"
    raised = any(stage.name == "fallback" for stage in decision.stages)
    assert layer != "connection_point" or target == decision.size + 1 or one.upscaling_factor > 1 or raised


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_missing_signals_and_one_step_at_a_time(seed: int) -> None:
    random = Random(seed)
    policy = a_policy(random)

    def made(memory: Memory | None = None) -> Controller:
        forecast = PolicyForecast(policy.forecast, policy.timezone, policy.look_back_period_s)
        return Controller(Decider(policy, FittedCapacity(), forecast), memory)

    controller, world, now = made(), World(random, policy), 1_800_000_000.0
    requests = 0
    for _ in range(TICKS):
        now += random.choice([1.0, 1.0, 1.0, 1.0, 0.0, -30.0, 60.0]) if random.random() < 0.05 else 1.0
        signals = world.signals()
        before = controller.requested
        for request in controller.tick(now, signals):
            requests += 1
            assert not before, "a request while another was underway"
            assert not signals.transition, "a request during a transition"
            moved = 0
            for layer, target in request.sizes.items():
                one, size = policy.layers.of(layer), signals.sizes[layer]
                assert one is not None, f"{layer} is not the policy's"
                assert target != size, "a request for what is there"
                low, high = min(one.min_replicas, size), max(one.max_replicas, size)
                assert low <= target <= high, f"{layer} {size} -> {target}, {one.min_replicas} to {one.max_replicas}"
                if target < size:
                    (decision,) = [each for each in controller.last.layers if each.layer == layer]  # type: ignore[union-attr]
                    assert all(each.wish is not None and not each.partial for each in decision.proposals)
                if target > size:
                    grows_as_it_may(controller, policy, layer, target)
                moved += abs(target - size)
            assert moved <= policy.guards.disruption_budget.max_replicas_moving
            outcome = random.random()
            if outcome < 0.2:
                controller.refused("not now")
            else:
                controller.accepted(requests)
                world.pending, world.left = dict(request.sizes), random.randint(1, 10)
        if world.pending:
            world.left -= 1
            if world.left <= 0:
                if random.random() < 0.8:
                    world.sizes.update(world.pending)
                    controller.ended("done")
                else:
                    controller.ended("aborted", "a process did not start")
                world.pending = {}
        elif random.random() < 0.01:  # an operator
            layer = random.choice(LAYERS)
            world.sizes[layer] = random.randint(1, 9)
        elif random.random() < 0.005:  # the coordinator's process starts anew
            controller = made(msgspec.json.decode(msgspec.json.encode(controller.memory()), type=Memory))


def test_the_runs_above_do_scale_both_ways() -> None:
    """What never asks for anything would pass them all."""
    grown = shrunk = 0
    for seed in range(10):
        random = Random(seed)
        policy = a_policy(random)
        forecast = PolicyForecast(policy.forecast, policy.timezone, policy.look_back_period_s)
        controller = Controller(Decider(policy, FittedCapacity(), forecast))
        world = World(random, policy)
        world.lost, world.calm = 0.0, True
        for at in range(TICKS):
            for request in controller.tick(float(at), world.signals()):
                grown += sum(target > world.sizes[layer] for layer, target in request.sizes.items())
                shrunk += sum(target < world.sizes[layer] for layer, target in request.sizes.items())
                world.sizes.update(request.sizes)
                controller.accepted(at)
                controller.ended("done")
    assert grown > 10, (grown, shrunk)
    assert shrunk > 3, (grown, shrunk)


STEADY = {"type": "utilization", "target": 0.6, "min": 0.4, "max": 0.8}


def test_noise_about_a_steady_load_changes_nothing() -> None:
    """A day of noisy load within the band: not one change. Outside of it: one, and no way back."""
    random = Random(7)
    policy = msgspec.convert(
        {
            "apiVersion": "kittiwake/v1",
            "kind": "ScalingPolicy",
            "metadata": {"name": "steady"},
            "evaluate_interval_s": 30,
            "metrics_interval_s": 30,
            "look_back_period_s": 180,
            "layers": {"matcher": {"max_replicas": 8, "triggers": [STEADY]}},
        },
        ScalingPolicy,
    )
    for work, changes in ((1.7, [{"matcher": 3}]), (1.2, [])):
        controller = Controller(Decider(policy, FittedCapacity(), PolicyForecast(policy.forecast)))
        sizes = {layer: 2 if layer == "matcher" else 1 for layer in LAYERS}
        asked = []
        for step in range(2880):
            busy = min(1.0, work / sizes["matcher"] * random.uniform(0.8, 1.2))
            slices = tuple(
                SliceSignals(layer=layer, slot=slot, useful_share=busy)
                for layer in LAYERS
                for slot in range(sizes[layer])
            )
            signals = Signals(interval_s=30, epoch=1, sizes=dict(sizes), publications_per_s=100.0, slices=slices)
            for request in controller.tick(step * 30.0, signals):
                asked.append(request.sizes)
                sizes.update(request.sizes)
                controller.accepted(1)
                controller.ended("done")
        assert asked == changes
