"""The order of evaluation, stage by stage, and what holds a decision back altogether."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from autoscaler.decision import Decision, LayerDecision
from autoscaler.signals import NodeSignals, Signals
from tests.unit.autoscaling import Foreseeing, Knowing, decider, histogram, layer, policy, seen, targets

BUSY = seen({"matcher": 2}, busy={"matcher": 0.9})
IDLE = seen({"matcher": 4}, busy={"matcher": 0.1})


def only(decision: Decision, name: str = "matcher") -> LayerDecision:
    return next(one for one in decision.layers if one.layer == name)


def stages(decision: Decision, name: str = "matcher") -> dict[str, tuple[float, str | None]]:
    """By name of the stage: what it left, and the word if it held something back."""
    return {stage.name: (stage.after, stage.blocked) for stage in only(decision, name).stages}


def test_the_stages_come_in_the_order_that_is_told() -> None:
    decision = decider(policy()).decide(0, BUSY)
    assert [stage.name for stage in only(decision).stages] == [
        "triggers",
        "forecast",
        "gates",
        "tolerance",
        "factor",
        "stabilisation",
        "delay",
        "rate",
        "limits",
    ]
    assert decision.targets == {"matcher": 4}  # 2 * 0.9 / 0.5
    assert all(
        one.before == two.after for two, one in zip(only(decision).stages, only(decision).stages[1:], strict=False)
    )


def test_the_largest_wish_wins() -> None:
    section = layer({"type": "utilization", "target": 0.5}, {"type": "queue", "target_per_replica": 100})
    made = decider(policy(layers={"matcher": section}))
    row = seen({"matcher": 2}, busy={"matcher": 0.9}, backlog={"matcher": 350})
    decision = made.decide(0, row)
    assert decision.targets == {"matcher": 7}
    assert [proposal.wish for proposal in only(decision).proposals] == [pytest.approx(3.6), 7]


def test_factors_go_a_share_of_the_way_and_at_least_one() -> None:
    section = layer(upscaling_factor=0.5, downscaling_factor=0.3)
    assert targets(decider(policy(layers={"matcher": section})), (0, BUSY)) == {"matcher": 3}
    assert targets(decider(policy(layers={"matcher": section})), (0, IDLE)) == {"matcher": 4 - 0 - 1}
    fast = layer(upscaling_factor=2)
    assert targets(decider(policy(layers={"matcher": fast})), (0, BUSY)) == {"matcher": 6}


def test_a_wish_that_is_near_enough_is_left_alone() -> None:
    section = layer({"type": "queue", "target_per_replica": 100}, tolerance={"up": 0.1, "down": 0.2})
    for waiting, target in ((108, {}), (111, {"matcher": 12}), (81, {}), (79, {"matcher": 8})):
        made = decider(policy(layers={"matcher": section | {"max_replicas": 20}}))
        assert targets(made, (0, seen({"matcher": 10}, backlog={"matcher": waiting}))) == target


def test_a_step_is_no_matter_of_tolerance() -> None:
    section = layer({"type": "split_merge", "split_above_ms": 4, "merge_below_ms": 1, "window_n": 1, "min_window_s": 1})
    from tests.unit.autoscaling import spread

    made = decider(policy(layers={"matcher": section | {"max_replicas": 20}}))
    row = seen({"matcher": 15}, match={"matcher": spread(5, 9)})
    assert targets(made, (0, row)) == {"matcher": 16}


def test_floors_are_no_matter_of_tolerance_nor_of_efficiency() -> None:
    section = layer({"type": "ratio", "of": "matcher", "one_per": 1})
    made = decider(
        policy(layers={"exit_point": section | {"max_replicas": 40}}, cost={"min_efficiency": 0.9}),
        Knowing(10.0, 10.0),
    )
    row = seen({"exit_point": 20, "matcher": 21}, publications_per_s=1.0, held={"matcher": 1})
    assert targets(made, (0, row)) == {"exit_point": 21}


def test_delays_run_from_the_first_decision_in_a_direction() -> None:
    section = layer(upscale_delay_s=3)
    made = decider(policy(layers={"matcher": section}))
    assert [made.decide(at, BUSY).targets for at in range(4)] == [{}, {}, {}, {"matcher": 4}]
    decision = decider(policy(layers={"matcher": section})).decide(0, BUSY)
    assert stages(decision)["delay"] == (2, "delay")
    assert only(decision).why_not_more == "delay: 3 s more in this direction"


def test_limits_hold_whatever_is_wished() -> None:
    section = layer(min_replicas=2, max_replicas=3)
    made = policy(layers={"matcher": section})
    assert targets(decider(made), (0, BUSY)) == {"matcher": 3}
    assert targets(decider(made), (0, IDLE)) == {"matcher": 2}
    assert targets(decider(made), (0, seen(busy={"matcher": 0.5}))) == {"matcher": 2}
    assert targets(decider(made), (0, seen({"matcher": 5}, busy={"matcher": 0.5}))) == {"matcher": 3}


def test_a_forecast_only_raises() -> None:
    row = seen({"matcher": 2}, busy={"matcher": 0.5}, publications_per_s=100.0)
    assert targets(decider(policy(), forecast=Foreseeing(200.0)), (0, row)) == {"matcher": 4}
    assert targets(decider(policy(), forecast=Foreseeing(50.0)), (0, row)) == {}
    known = row = seen({"matcher": 2}, busy={"matcher": 0.5}, publications_per_s=100.0, held={"matcher": 1})
    assert targets(decider(policy(), Knowing(100, 200, 600), Foreseeing(200.0)), (0, known)) == {"matcher": 3}


def test_a_forecast_that_stays_within_the_band_raises_nothing() -> None:
    """What steady noise is now and then taken for, a trend of a few percent, is no reason to size to the target."""
    section = layer({"type": "utilization", "target": 0.5, "min": 0.3, "max": 0.7})
    row = seen({"matcher": 2}, busy={"matcher": 0.6}, publications_per_s=100.0)
    made = policy(layers={"matcher": section})
    decision = decider(made, forecast=Foreseeing(115.0)).decide(0, row)
    assert decision.targets == {}
    reason = next(stage.reason for stage in only(decision).stages if stage.name == "forecast")
    assert reason == "115 publications a second ahead, 100 now: not above 70% of the busiest matcher even then"
    assert targets(decider(made, forecast=Foreseeing(120.0)), (0, row)) == {"matcher": 3}


def on_cores(cores: float | None, busy: dict[str, float], size: int = 2) -> Signals:
    rest = {"connection_point": 0.1, "access_point": 0.1, "exit_point": 0.1}
    return seen({"matcher": size}, busy=rest | busy, cores=cores)


@pytest.mark.parametrize(
    ("cores", "targets_", "blocked"),
    [
        (None, {"matcher": 4}, None),
        (16.0, {"matcher": 4}, None),
        (3.0, {"matcher": 3}, "cores"),  # 2.7 of them can be used, and 2.1 are
        (2.0, {}, "cores"),
    ],
)
def test_load_grows_no_further_than_cores_are_free(
    cores: float | None, targets_: dict[str, int], blocked: str | None
) -> None:
    decision = decider(policy()).decide(0, on_cores(cores, {"matcher": 0.9}))
    assert decision.targets == targets_
    assert stages(decision).get("cores", (0, None))[1] == blocked
    if cores == 2.0:
        reason = "cores: slices are busy for 2.1 of 2 cores, room for 0 more"
        assert only(decision).why_not_more == reason


def test_layers_share_the_cores_that_are_free() -> None:
    layers = {"matcher": layer(), "exit_point": layer()}
    row = on_cores(4.0, {"matcher": 0.9, "exit_point": 0.9})  # 2.9 of 3.6
    assert decider(policy(layers=layers)).decide(0, row).targets == {"matcher": 3}
    assert decider(policy(layers=layers)).decide(0, on_cores(5.0, {"matcher": 0.9, "exit_point": 0.9})).targets == {
        "matcher": 4
    }


def node(host: str = "a", cores: float = 2.0, busy: float | None = 1.95, slices: float | None = 0.6) -> NodeSignals:
    return NodeSignals(host=host, cores=cores, busy=busy, slices=slices)


@pytest.mark.parametrize(
    ("nodes", "targets_", "why"),
    [
        ([node()], {}, "the machine is busy for 1.95 of 2 cores, of it slices for 0.6, room for 0 more"),
        ([node(cores=4)], {"matcher": 4}, ""),  # 3.6 of them can be used
        ([node(busy=1.0)], {"matcher": 3}, ""),
        (
            [node(), node("b", 4.0, 3.7, 0.1)],
            {},
            "of 2 machines the least busy one, b, is busy for 3.7 of 4 cores, of it slices for 0.1, room for 0 more",
        ),
        ([node(), node("b", 64.0, 63.0, 50.0), node("c", 2.0, 1.0)], {"matcher": 3}, ""),  # full on average
        ([node(), node("b", 4.0, None, None)], {"matcher": 4}, ""),  # one without slices
    ],
)
def test_load_grows_no_further_than_a_node_has_room(
    nodes: list[NodeSignals], targets_: dict[str, int], why: str
) -> None:
    """By their own time the slices are busy for 2.1 cores, of as many as there may be."""
    row = msgspec.structs.replace(on_cores(99.0, {"matcher": 0.9}), nodes=tuple(nodes))
    decision = decider(policy()).decide(0, row)
    assert decision.targets == targets_
    if why:
        assert only(decision).why_not_more == f"cores: {why}"


def test_what_is_full_now_has_no_room_however_idle_it_was() -> None:
    made = decider(policy(look_back_period_s=10))
    idle = msgspec.structs.replace(on_cores(2.0, {"matcher": 0.5}), nodes=(node(busy=0.3),))
    full = msgspec.structs.replace(on_cores(2.0, {"matcher": 1.0}), nodes=(node(busy=2.0),))
    decision = [made.decide(at, row) for at, row in enumerate([idle] * 6 + [full] * 4)][-1]
    assert decision.targets == {}
    assert only(decision).why_not_more.startswith("cores: the machine is busy for 2 of 2 cores")


def test_nodes_that_were_not_heard_of_lately_leave_the_slices_own_time() -> None:
    made = decider(policy(look_back_period_s=10))
    full = on_cores(99.0, {"matcher": 0.9})
    rows = [msgspec.structs.replace(full, nodes=(node(),)), full]
    assert [made.decide(at, row).targets for at, row in enumerate(rows)] == [{}, {}], "one may be missing"
    assert made.decide(2, full).targets == {"matcher": 4}


def test_full_cores_hold_no_floor_and_nothing_where_nodes_can_be_added() -> None:
    ratio = {"type": "ratio", "of": "matcher", "one_per": 1}
    layers = {"exit_point": layer(ratio)}
    full = on_cores(1.0, {"matcher": 0.9})
    assert decider(policy(layers=layers)).decide(0, full).targets == {"exit_point": 2}
    adding = policy(guards={"warmup_s": 0, "require_placeable": False})
    assert decider(adding).decide(0, full).targets == {"matcher": 4}


def test_a_forecast_raises_connection_points_only_for_those_who_will_connect() -> None:
    section = layer({"type": "utilization", "target": 0.5, "min": 0.3, "max": 0.7})
    made = policy(layers={"connection_point": section})

    def of(*shares: float) -> Signals:
        sizes = {"connection_point": len(shares)}
        return seen(sizes, busy={"connection_point": list(shares)}, publications_per_s=100.0)

    assert targets(decider(made, forecast=Foreseeing(300.0)), (0, of(0.6, 0.6))) == {"connection_point": 3}
    decision = decider(made, forecast=Foreseeing(300.0)).decide(0, of(0.6, 0.1))
    assert decision.targets == {}
    assert "who connects finds room" in only(decision, "connection_point").stages[1].reason


def test_one_more_connection_point_is_no_matter_of_tolerance() -> None:
    made = policy(layers={"connection_point": layer(max_replicas=20)})
    busy = seen({"connection_point": 12}, busy={"connection_point": 0.9})
    assert targets(decider(made), (0, busy)) == {"connection_point": 13}


def test_a_size_that_is_held_for_peaks_that_recur_is_said_to_be() -> None:
    made = decider(policy(guards={"warmup_s": 0, "hold_peaks_s": 100, "min_gain": 0}))
    size, sizes = 1, []
    for at in range(60):
        decision = made.decide(at, seen({"matcher": size}, busy={"matcher": (0.9 if at % 20 == 0 else 0.2) / size}))
        size = decision.targets.get("matcher", size)
        sizes.append(size)
    assert sizes[:21] == [2, *[1] * 19, 2]
    assert set(sizes[20:]) == {2}, "held from then on"
    text = "stabilisation: window 0 s up, 31.5 s down, as peaks recur: what was given up was needed again 21 s later"
    assert only(decision).why_not_less == text
    assert stages(decision)["stabilisation"] == (2, "stabilisation")


def test_a_schedule_is_a_floor() -> None:
    row = seen({"matcher": 2}, busy={"matcher": 0.5})
    decision = decider(policy(), forecast=Foreseeing(None, matcher=4)).decide(0, row)
    assert decision.targets == {"matcher": 4}
    assert stages(decision)["forecast"] == (4, None)


def test_the_horizon_is_what_nearly_all_transitions_took() -> None:
    forecast = Foreseeing()
    made = decider(policy(), forecast=forecast)
    made.decide(0, BUSY)
    for at in range(1, 21):
        made.decide(at, seen({"matcher": 2}, busy={"matcher": 0.5}, placement_s=float(at)))
    assert forecast.horizons[0] == 30
    assert forecast.horizons[-1] == 19
    fixed = Foreseeing()
    decider(policy(forecast={"method": "linear", "horizon": 90}), forecast=fixed).decide(0, BUSY)
    assert fixed.horizons == [90]


COST = {"replica_hour": {"matcher": 1.0, "exit_point": 0.5}, "budget_per_hour": 3.6}


def test_the_budget_lowers_growth_and_never_the_size() -> None:
    decision = decider(policy(cost=COST)).decide(0, BUSY)
    assert decision.targets == {"matcher": 3}  # 3 + 0.5 of the exit point
    assert stages(decision)["gates"] == (3, "budget")
    assert (decision.cost_per_hour, decision.target_cost_per_hour) == (2.5, 3.5)
    above = decider(policy(cost=COST)).decide(0, seen({"matcher": 6}, busy={"matcher": 0.9}))
    assert above.targets == {}


def test_the_price_of_a_million_counts_at_the_present_rate() -> None:
    cost = {"replica_hour": {"matcher": 3.6}, "max_per_million_notifications": 3.0}
    row = seen({"matcher": 2}, busy={"matcher": 0.9}, notifications_per_s=1000.0)  # 3.6 million an hour: each slice 1
    assert targets(decider(policy(cost=cost)), (0, row)) == {"matcher": 3}


def test_growth_must_be_efficient() -> None:
    row = seen({"matcher": 2}, busy={"matcher": 0.9}, publications_per_s=100.0, held={"matcher": 1})
    known = Knowing(60, 110, 140, 200)  # speed-up 2.33 of 3, 3.33 of 4
    assert targets(decider(policy(cost={"min_efficiency": 0.78}), known), (0, row)) == {}
    assert targets(decider(policy(cost={"min_efficiency": 0.77}), known), (0, row)) == {"matcher": 4}
    assert targets(decider(policy(cost={"min_marginal_speedup": 0.28}), known), (0, row)) == {}
    assert targets(decider(policy(cost={"min_marginal_speedup": 0.27}), known), (0, row)) == {"matcher": 4}


def burning(size: int, **parts: Any) -> Signals:
    return seen({"matcher": size}, busy={"matcher": 0.9}, delay=histogram(ms_200=1000), **parts)


SLO = [{"name": "delay", "target": 100}]


@pytest.mark.parametrize(("on_conflict", "expected"), [("slo", {"matcher": 4}), ("cost", {})])
def test_an_slo_goes_before_cost_unless_the_policy_says_otherwise(on_conflict: str, expected: dict[str, int]) -> None:
    section = layer({"type": "slo", "name": "delay"}, {"type": "utilization", "target": 0.5})
    made = policy(slo=SLO, layers={"matcher": section}, cost=COST | {"on_conflict": on_conflict})
    assert targets(decider(made), (0, burning(3))) == expected


def test_a_shrink_must_be_able_to_work_off_what_waits() -> None:
    known = Knowing(100, 200, 300, 400)
    rows = {"publications_per_s": 40.0, "held": {"matcher": 1}}
    made = policy(guards={"warmup_s": 0, "catch_up_s": 10})
    free = seen({"matcher": 4}, busy={"matcher": 0.1}, backlog={"matcher": 0}, **rows)
    assert targets(decider(made, known), (0, free)) == {"matcher": 1}
    waiting = seen({"matcher": 4}, busy={"matcher": 0.1}, backlog={"matcher": 500}, **rows)
    decision = decider(made, known).decide(0, waiting)
    assert decision.targets == {"matcher": 3}  # 2000 wait: two have 160 a second to spare, three 260
    assert stages(decision)["gates"] == (3, "catch_up")


def test_missing_signals_never_shrink_and_lead_to_the_fallback() -> None:
    fallback = {"failure_threshold": 3, "replicas": {"matcher": 4}, "behavior": "current_if_higher"}
    made = decider(policy(fallback=fallback))
    rows = [made.decide(at, seen({"matcher": 2})).targets for at in range(3)]
    assert rows == [{}, {}, {"matcher": 4}]
    decision = decider(policy()).decide(0, seen({"matcher": 20}))
    assert (decision.targets, only(decision).missing) == ({}, ("utilization",))  # above max_replicas, and yet
    assert "never fewer while signals are missing" in only(decision).why_not_less


@pytest.mark.parametrize(
    ("behavior", "replicas", "expected"),
    [
        ("static", 4, {"matcher": 4}),
        ("static", 1, {}),
        ("current", 4, {}),
        ("current_if_lower", 4, {}),
        ("current_if_lower", 1, {}),
    ],
)
def test_a_fallback_never_shrinks(behavior: str, replicas: int, expected: dict[str, int]) -> None:
    fallback = {"failure_threshold": 1, "replicas": {"matcher": replicas}, "behavior": behavior}
    assert targets(decider(policy(fallback=fallback)), (0, seen({"matcher": 2}))) == expected


def test_one_signal_that_comes_again_ends_the_misses() -> None:
    made = decider(policy(fallback={"failure_threshold": 2, "replicas": {"matcher": 4}}))
    calm = seen({"matcher": 2}, busy={"matcher": 0.5})
    assert targets(made, (0, seen({"matcher": 2})), (1, calm), (2, calm), (3, seen({"matcher": 2}))) == {}


def test_evaluations_are_an_interval_apart() -> None:
    made = decider(policy(evaluate_interval_s=3))
    held = [made.decide(at, BUSY).held for at in range(5)]
    assert held == ["", "between evaluations", "between evaluations", "", "between evaluations"]


def test_nothing_is_decided_during_a_transition_and_the_warm_up() -> None:
    made = decider(policy(guards={"warmup_s": 3}))
    moving = seen({"matcher": 2}, busy={"matcher": 0.9}, transition=True)
    rows = [(0, BUSY), (1, moving), (2, BUSY), (3, BUSY), (4, BUSY), (5, BUSY)]
    found = [made.decide(at, row) for at, row in rows]
    assert [one.held for one in found] == [
        "",
        "transition",
        "warm-up, 3 s left",
        "warm-up, 2 s left",
        "warm-up, 1 s left",
        "",
    ]
    assert [one.targets for one in found] == [{"matcher": 4}, {}, {}, {}, {}, {"matcher": 4}]


def test_sizes_that_change_begin_a_warm_up_whoever_changed_them() -> None:
    made = decider(policy(guards={"warmup_s": 3}))
    made.decide(0, BUSY)
    assert made.decide(1, seen({"matcher": 4}, busy={"matcher": 0.9})).held == "warm-up, 3 s left"


def test_what_was_seen_before_the_warm_up_is_forgotten() -> None:
    known = Knowing(100.0)
    made = decider(policy(look_back_period_s=30, guards={"warmup_s": 2}), known)
    calm = seen({"matcher": 3}, busy={"matcher": 0.5})
    made.decide(0, BUSY)
    assert [made.decide(at, calm).targets for at in (1, 2, 3)] == [{}, {}, {}]
    assert known.observed == [BUSY, calm]


@pytest.mark.parametrize(("parts", "held"), [({"paused": True}, "paused"), ({"mode": "manual"}, "manual")])
def test_paused_and_manual_decide_nothing(parts: dict[str, Any], held: str) -> None:
    decision = decider(policy(**parts)).decide(0, BUSY)
    assert (decision.targets, decision.held, decision.layers) == ({}, held, ())


def test_advise_decides_as_ever() -> None:
    decision = decider(policy(mode="advise")).decide(0, BUSY)
    assert (decision.targets, decision.mode) == ({"matcher": 4}, "advise")


def test_all_layers_go_in_one_transition() -> None:
    layers = {
        "matcher": layer(),
        "exit_point": layer({"type": "ratio", "of": "matcher", "one_per": 2}),
        "access_point": layer(),
    }
    made = decider(policy(layers=layers))
    row = seen({"matcher": 2, "access_point": 2}, busy={"matcher": 0.9, "access_point": 0.1})
    assert made.decide(0, row).targets == {"matcher": 4, "exit_point": 2, "access_point": 1}


def test_growth_waits_for_room_and_says_so() -> None:
    decision = decider(policy()).decide(0, seen({"matcher": 2}, busy={"matcher": 0.9}, placeable=1))
    assert decision.targets == {"matcher": 3}
    assert only(decision).why_not_more == "transition: there is room for 1 more, 2 are wanted"
    none = decider(policy()).decide(0, seen({"matcher": 2}, busy={"matcher": 0.9}, placeable=0))
    assert none.targets == {}
    assert stages(none)["transition"] == (2, "placeable")
    free = policy(guards={"warmup_s": 0, "require_placeable": False})
    assert targets(decider(free), (0, seen({"matcher": 2}, busy={"matcher": 0.9}, placeable=0))) == {"matcher": 4}


def test_one_transition_moves_no_more_than_the_budget_of_disruption() -> None:
    guards = {"warmup_s": 0, "disruption_budget": {"max_replicas_moving": 1}}
    layers = {"matcher": layer(), "access_point": layer()}
    row = seen({"matcher": 2, "access_point": 4}, busy={"matcher": 0.9, "access_point": 0.1})
    assert targets(decider(policy(guards=guards, layers=layers)), (0, row)) == {"matcher": 3}  # growth goes first
    share = {"warmup_s": 0, "disruption_budget": {"max_group_share": 0.25}}
    idle = seen({"matcher": 8}, busy={"matcher": 0.05})
    assert targets(decider(policy(guards=share)), (0, idle)) == {"matcher": 6}
    assert targets(decider(policy(guards=share)), (0, seen({"matcher": 3}, busy={"matcher": 0.05}))) == {"matcher": 2}


def test_in_an_excluded_period_only_an_slo_that_burns_acts() -> None:
    night = datetime(2026, 11, 28, 2, 30, tzinfo=UTC).timestamp()
    section = layer({"type": "slo", "name": "delay"}, {"type": "utilization", "target": 0.5})
    made = policy(slo=SLO, layers={"matcher": section}, guards={"warmup_s": 0, "excluded_periods": ["Sat 02:00-04:00"]})
    calm = seen({"matcher": 2}, busy={"matcher": 0.9}, delay=histogram(ms_50=1000))
    decision = decider(made).decide(night, calm)
    assert (decision.targets, decision.held) == ({}, "excluded period Sat 02:00-04:00")
    assert stages(decision)["transition"] == (2, "excluded")
    assert decider(made).decide(night + 7200, calm).targets == {"matcher": 4}
    assert decider(made).decide(night, burning(2)).targets == {"matcher": 4}


def test_a_clock_that_goes_backwards_stands_still() -> None:
    made = decider(policy(layers={"matcher": layer(upscale_delay_s=3)}))
    made.decide(100, BUSY)
    assert made.decide(50, BUSY).at_s == 100
    assert targets(made, (101, BUSY), (102, BUSY), (103, BUSY)) == {"matcher": 4}


def test_a_decision_tells_the_model_and_the_levels() -> None:
    made = decider(policy(slo=SLO), Knowing(100, 190))
    row = seen(
        {"matcher": 2}, busy={"matcher": 0.5}, publications_per_s=95.0, held={"matcher": 1}, delay=histogram(ms_50=100)
    )
    decision = made.decide(0, row)
    estimate = only(decision).estimate
    assert (estimate.utilization, estimate.speedup, estimate.efficiency) == (0.5, 1.9, 0.95)
    assert decision.slo_left == {"delay": 1.0}
    assert decision.slo_ms["delay"] == pytest.approx(49.8)
    assert decision.rate == 95
