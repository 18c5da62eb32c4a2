"""Layers that depend on each other's sizes: one decision, one transition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autoscaler.decision import Decision, LayerDecision, Prediction, Sizing
from autoscaler.guards import Floor, affordable
from autoscaler.policy import Disruption
from tests.unit.autoscaling import Unknowing, decider, layer, policy, seen

RATIO = {"type": "ratio", "of": "matcher", "one_per": 4}
BUSY = seen({"matcher": 2}, busy={"matcher": 0.9, "exit_point": 0.4}, publications_per_s=100.0, held={"matcher": 1})
SLOW_DOWN = {"scale_up": {"policies": []}, "scale_down": {"stabilization_window_s": 10, "policies": []}}


def only(decision: Decision, name: str) -> LayerDecision:
    return next(one for one in decision.layers if one.layer == name)


class Answers(Unknowing):
    """Exit points alone are known: a tenth of their time for each matcher, shared."""

    def predict(self, layer: str, size: int, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> Any:
        if layer != "exit_point":
            return None
        return Prediction(
            size=size, utilization=0.2 * sizes["matcher"] / size, capacity_per_s=100, speedup=size, efficiency=1.0
        )

    def best_size(
        self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], *rest: Any
    ) -> Sizing | None:
        if layer != "exit_point":
            return None
        size = next(one for one in range(1, 99) if 0.2 * sizes["matcher"] / one <= rest[0])
        return Sizing(size=size, best=size, reason=f"{size} would do")


def test_exit_points_by_ratio_grow_in_the_matchers_transition_whatever_their_own_delay() -> None:
    layers = {"matcher": layer(upscale_delay_s=2), "exit_point": layer(RATIO, upscale_delay_s=30)}
    made = decider(policy(layers=layers))
    busy = seen({"matcher": 4}, busy={"matcher": 0.9})
    assert [made.decide(at, busy).targets for at in range(2)] == [{}, {}]
    decision = made.decide(2, busy)
    assert decision.targets == {"matcher": 8, "exit_point": 2}
    stage = next(one for one in only(decision, "exit_point").stages if one.name == "together")
    assert (stage.before, stage.after) == (1, 2)
    assert only(decision, "exit_point").why_not_less.startswith(
        "together: with the others: ratio: one for every 4 of 8"
    )


def test_exit_points_by_load_are_sized_for_the_matchers_that_come() -> None:
    """At 40 % with two matchers they will be at 80 % with four, which is above 75 %."""
    own = {"type": "utilization", "target": 0.5, "min": 0.3, "max": 0.75}
    layers = {"matcher": layer(), "exit_point": layer(own, upscale_delay_s=30)}
    decision = decider(policy(layers=layers), Answers()).decide(0, BUSY)
    assert decision.targets == {"matcher": 4, "exit_point": 2}
    reason = only(decision, "exit_point").proposals[0].reason
    assert reason == "busiest exit_point 40%, 80% beside 4 matchers, target 50%; model: 2 would do"


def test_load_of_ones_own_waits_for_ones_own_delay() -> None:
    """Exit points are too busy with or without the matchers' growth: no reason to skip their delay."""
    layers = {"matcher": layer(), "exit_point": layer(upscale_delay_s=30)}
    row = seen({"matcher": 2}, busy={"matcher": 0.9, "exit_point": 0.9})
    assert decider(policy(layers=layers)).decide(0, row).targets == {"matcher": 4}


def test_a_floor_does_not_wait_for_a_delay_of_ones_own_load() -> None:
    """Two exit points would be right for their own load as well, which they have not had for long enough."""
    layers = {
        "matcher": layer(),
        "exit_point": layer({"type": "utilization", "target": 0.5}, RATIO, upscale_delay_s=30),
    }
    row = seen({"matcher": 4}, busy={"matcher": 0.9, "exit_point": 1.0})
    assert decider(policy(layers=layers)).decide(0, row).targets == {"matcher": 8, "exit_point": 2}


def test_the_budget_counts_for_what_comes_along() -> None:
    layers = {"matcher": layer(), "exit_point": layer(RATIO, upscale_delay_s=9)}
    cost = {"replica_hour": {"matcher": 1.0, "exit_point": 1.0}, "budget_per_hour": 9.0}
    decision = decider(policy(layers=layers, cost=cost)).decide(0, seen({"matcher": 4}, busy={"matcher": 0.9}))
    assert decision.targets == {"matcher": 8}


def test_both_shrink_in_one_transition_and_not_one_before_the_other() -> None:
    layers = {
        "matcher": layer(behavior=SLOW_DOWN),
        "exit_point": layer(RATIO, behavior=SLOW_DOWN),
    }
    made = decider(policy(layers=layers))
    idle = seen({"matcher": 8, "exit_point": 2}, busy={"matcher": 0.2, "exit_point": 0.1})
    found = [made.decide(at, idle).targets for at in range(11)]
    assert found == [{}] * 10 + [{"matcher": 4, "exit_point": 1}]
    hasty = {"matcher": layer(behavior=SLOW_DOWN), "exit_point": layer(RATIO)}
    made = decider(policy(layers=hasty))
    decisions = [made.decide(at, idle) for at in range(11)]
    assert [one.targets for one in decisions] == [{}] * 10 + [{"matcher": 4, "exit_point": 1}]
    assert "not before the others" in only(decisions[0], "exit_point").why_not_less


def test_matchers_that_may_shrink_only_in_part_keep_their_exit_points() -> None:
    guards = {"warmup_s": 0, "disruption_budget": {"max_group_share": 0.25}}
    layers = {"matcher": layer(), "exit_point": layer(RATIO)}
    row = seen({"matcher": 12, "exit_point": 3}, busy={"matcher": 0.05, "exit_point": 0.1})
    decision = decider(policy(guards=guards, layers=layers)).decide(0, row)
    assert decision.targets == {"matcher": 9}
    assert only(decision, "exit_point").why_not_less == "transition: one for every 4 of 9 matchers"


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (1, {"matcher": 4}),  # a fifth would need a second exit point
        (2, {"matcher": 4}),
        (3, {"matcher": 5, "exit_point": 2}),
        (None, {"matcher": 6, "exit_point": 2}),
    ],
)
def test_room_is_shared_so_that_floors_hold(room: int | None, expected: dict[str, int]) -> None:
    sizes = {"connection_point": 1, "access_point": 1, "matcher": 3, "exit_point": 1}
    floor = Floor("exit_point", "matcher", 4)
    targets, cut = affordable(Disruption(), room, sizes, {"matcher": 6, "exit_point": 2}, [floor])
    if room == 2:  # what is left over is not wasted: the exit point comes first then
        expected = expected | {"exit_point": 2}
    assert targets == expected
    assert (cut == {}) == (room is None)


def test_floors_take_part_in_the_budget_of_disruption() -> None:
    sizes = {"connection_point": 1, "access_point": 1, "matcher": 4, "exit_point": 1}
    floor = Floor("exit_point", "matcher", 4)
    disruption = Disruption(max_replicas_moving=2)
    targets, cut = affordable(disruption, None, sizes, {"matcher": 6, "exit_point": 2}, [floor])
    assert targets == {"matcher": 5, "exit_point": 2}
    assert cut == {"matcher": ("disruption", "max_replicas_moving 2")}


def test_growth_beside_others_is_judged_by_what_was_promised_beside_them() -> None:
    """More exit points beside twice the matchers are nearly as busy as before, and have not been in vain."""
    own = {"type": "utilization", "target": 0.3, "min": 0.1, "max": 0.35}
    layers = {"matcher": layer(), "exit_point": layer(own)}
    made = decider(policy(layers=layers, guards={"warmup_s": 0, "min_gain": 0.5, "block_s": 100}), Answers())
    assert made.decide(0, BUSY).targets == {"matcher": 4, "exit_point": 3}
    after = seen(
        {"matcher": 4, "exit_point": 3},
        busy={"matcher": 0.45, "exit_point": 0.27},
        publications_per_s=100.0,
        held={"matcher": 1},
    )
    assert made.decide(1, after).notes == ()
    assert made.decide(2, after).notes == ()
