"""What each trigger wishes, and what it does when signals are missing."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from autoscaler.burn import Level
from autoscaler.decision import Proposal
from autoscaler.history import History
from autoscaler.policy import LayerPolicy
from autoscaler.signals import Signals, Spread
from autoscaler.triggers import Scene, propose
from tests.unit.autoscaling import Knowing, Unknowing, layer, seen, spread

CALM = Level(None, 0.0, 0.0, 1.0, 10.0, False, False)
BURNING = Level("fast", 12.0, 3.0, -2.0, 150.0, True, False)


def proposal(
    trigger: dict[str, Any],
    *rows: Signals,
    of: str = "matcher",
    level: Level = CALM,
    capacity: Any = None,
    look_back_s: float = 30,
    decided: dict[str, int] | None = None,
    **parts: Any,
) -> Proposal:
    """What the trigger says after these intervals, one a second."""
    policy = msgspec.convert(layer(trigger, **parts), LayerPolicy)
    history = History(look_back_s, 600)
    for at, row in enumerate(rows):
        history.add(float(at), row)
    scene = Scene(history, {"delay": level}, capacity or Unknowing(), rows[-1].sizes, decided or {})
    return propose(policy.triggers[0], of, policy, scene)


UTILIZATION = {"type": "utilization", "target": 0.6, "min": 0.4, "max": 0.8}


@pytest.mark.parametrize(
    ("busy", "wish"),
    [(0.9, 3 * 0.9 / 0.6), (0.8, 3), (0.6, 3), (0.4, 3), (0.3, 1.5), (0.0, 0)],
)
def test_utilization_goes_by_the_ratio_to_its_target(busy: float, wish: float) -> None:
    assert proposal(UTILIZATION, seen({"matcher": 3}, busy={"matcher": busy})).wish == pytest.approx(wish)


def test_utilization_is_that_of_the_busiest_over_the_look_back() -> None:
    rows = [seen({"matcher": 2}, busy={"matcher": [one, 0.1]}) for one in (0.0, 0.9, 0.9)]
    assert proposal(UTILIZATION, *rows).wish == 2  # the mean is 0.6
    assert proposal(UTILIZATION, *rows, look_back_s=2).wish == pytest.approx(3)


def test_utilization_without_min_and_max_takes_the_tolerance() -> None:
    bare = {"type": "utilization", "target": 0.5}
    tolerance = {"up": 0.1, "down": 0.2}
    rows = [seen({"matcher": 2}, busy={"matcher": busy}) for busy in (0.55, 0.4, 0.56, 0.39)]
    wishes = [proposal(bare, row, tolerance=tolerance).wish for row in rows]
    assert wishes == [2, 2, pytest.approx(2.24), pytest.approx(1.56)]


def test_the_model_sizes_when_it_knows() -> None:
    known = Knowing(1000, 1900, 2700, 3400)
    row = seen({"matcher": 2}, busy={"matcher": 0.85}, publications_per_s=1600.0, held={"matcher": 10})
    assert proposal(UTILIZATION, row, capacity=known).wish == 3  # 1600 / 2700 = 0.59; by ratio it were 2.83
    low = seen({"matcher": 4}, busy={"matcher": 0.2}, publications_per_s=600.0, held={"matcher": 10})
    assert proposal(UTILIZATION, low, capacity=known).wish == 1
    unheard = seen({"matcher": 2}, busy={"matcher": 0.85}, publications_per_s=1600.0)
    assert proposal(UTILIZATION, unheard, capacity=known).wish == pytest.approx(2 * 0.85 / 0.6)


def test_a_saturated_layer_hides_what_is_asked_of_it() -> None:
    known = Knowing(1000, 1900, 2700, 3400)
    row = seen({"matcher": 2}, busy={"matcher": 1.0}, publications_per_s=1500.0, held={"matcher": 10})
    assert proposal(UTILIZATION, row, capacity=known).wish == pytest.approx(2 / 0.6)


def test_more_that_carry_no_more_are_not_asked_for() -> None:
    known = Knowing(1000, 1500, 1500, 1400)
    row = seen({"matcher": 2}, busy={"matcher": 0.99}, publications_per_s=1480.0, held={"matcher": 10})
    found = proposal(UTILIZATION, row, capacity=known)
    assert (found.wish, found.reason) == (2, "busiest matcher 99%, target 60%; model: as told")
    slack = seen({"matcher": 2}, busy={"matcher": 0.99}, publications_per_s=880.0, held={"matcher": 10})
    found = proposal(UTILIZATION, slack, capacity=known)
    assert (found.wish, "more matchers carry no more" in found.reason) == (2, True)


def test_a_model_that_contradicts_what_is_seen_changes_nothing() -> None:
    known = Knowing(1000, 2000, 3000)
    row = seen({"matcher": 2}, busy={"matcher": 0.85}, publications_per_s=100.0, held={"matcher": 10})
    assert proposal(UTILIZATION, row, capacity=known).wish == 2


def test_a_slice_that_is_not_heard_of_holds_the_layer_but_for_growth() -> None:
    row = seen({"matcher": 2}, busy={"matcher": [0.1, None]})
    found = proposal(UTILIZATION, row)
    assert (found.wish, found.partial) == (2, True)
    row = seen({"matcher": 2}, busy={"matcher": [0.9, None]})
    found = proposal(UTILIZATION, row)
    assert (found.wish, found.partial) == (pytest.approx(3), True)
    assert proposal(UTILIZATION, seen({"matcher": 2})).wish is None


def test_two_missing_intervals_are_missing() -> None:
    known, unknown = seen(busy={"matcher": 0.9}), seen()
    assert proposal(UTILIZATION, known, known, known, unknown).wish == pytest.approx(1.5)
    assert proposal(UTILIZATION, known, known, known, unknown, unknown).wish is None


SLO = {"type": "slo", "name": "delay"}


def test_slo_grows_the_busiest_layer_only() -> None:
    row = seen({"matcher": 3}, busy={"matcher": 0.7, "exit_point": 0.6, "access_point": 0.1, "connection_point": 0.1})
    assert proposal(SLO, row, level=BURNING).wish == 4
    other = proposal(SLO, row, level=BURNING, of="exit_point")
    assert (other.wish, "matcher is the busiest layer, 70%" in other.reason) == (1, True)
    assert proposal(SLO, row).wish == 0


def test_slo_takes_the_layer_that_most_waits_for_if_none_is_busy() -> None:
    row = seen({"matcher": 2}, busy={"matcher": 0.2}, backlog={"matcher": 40, "exit_point": 3000})
    assert proposal(SLO, row, level=BURNING).wish == 2
    assert proposal(SLO, row, level=BURNING, of="exit_point").wish == 2
    idle = seen({"matcher": 2}, busy={"matcher": 0.2}, backlog={"matcher": 0, "exit_point": 0})
    found = proposal(SLO, idle, level=BURNING, of="exit_point")
    assert (found.wish, "would not help" in found.reason) == (1, True)


def test_slo_does_not_ask_for_what_carries_no_more() -> None:
    row = seen({"matcher": 2}, busy={"matcher": 0.9}, publications_per_s=10.0, held={"matcher": 1})
    assert proposal(SLO, row, level=BURNING, capacity=Knowing(10, 20, 20)).wish == 2


def test_slo_without_a_histogram_is_missing() -> None:
    row = seen(busy={"matcher": 0.9})
    assert proposal(SLO, row, level=Level(None, None, None, None, None, False, True)).wish is None
    found = proposal(SLO, row, level=Level(None, 0.0, 0.0, 1.0, 9.0, False, True))
    assert (found.wish, found.partial) == (1, True)


def test_queue_shares_the_backlog() -> None:
    queue = {"type": "queue", "target_per_replica": 500}
    assert proposal(queue, seen({"matcher": 2}, backlog={"matcher": 800})).wish == pytest.approx(3.2)
    assert proposal(queue, seen({"matcher": 2}, backlog={"matcher": [800, None]})).wish == 2
    assert proposal(queue, seen({"matcher": 2})).wish is None


def test_memory_connections_and_ratio_are_sums_and_floors() -> None:
    memory = {"type": "memory", "target_per_replica": 400}
    assert proposal(memory, seen({"matcher": 2}, held={"matcher": [500, 300]})).wish == 2
    resident = {"type": "memory", "metric": "rss_bytes", "target_per_replica": 100}
    assert proposal(resident, seen(resident={"matcher": 150})).wish == 1.5
    connections = {"type": "connections", "target_per_replica": 2000}
    row = seen({"connection_point": 2}, connected={"connection_point": 2500})
    assert proposal(connections, row, of="connection_point").wish == 2.5
    ratio = {"type": "ratio", "of": "matcher", "one_per": 4}
    assert proposal(ratio, seen({"matcher": 5}), of="exit_point").wish == 1.25
    assert proposal(ratio, seen({"matcher": 5}), of="exit_point", decided={"matcher": 9}).wish == 2.25
    assert proposal(ratio, seen({"matcher": 9}), of="exit_point", decided={"matcher": 5}).wish == 1.25


SPLIT = {"type": "split_merge", "split_above_ms": 4, "merge_below_ms": 1, "window_n": 300, "min_window_s": 2}


def risen(*rates: float, busy: float = 1.0, waiting: int = 0, **parts: Any) -> list[Signals]:
    """Ten intervals of 100 publications a second, and then these."""
    calm = seen({"matcher": 2}, busy={"matcher": 0.1}, backlog={"matcher": 0}, publications_per_s=100.0, **parts)
    late = {"busy": {"matcher": busy}, "backlog": {"matcher": waiting}}
    return [calm] * 10 + [seen({"matcher": 2}, publications_per_s=rate, **late, **parts) for rate in rates]


def test_a_steep_rise_is_sized_by_what_is_seen_of_late() -> None:
    """Its mean would have it grow a little now, and again after each transition."""
    found = proposal(UTILIZATION, *risen(1000.0, 1000.0))
    assert found.wish == pytest.approx(2 * (0.25 * 4) / 0.6)
    assert found.reason == "busiest matcher 100%, target 60%; 1,000 publications/s of late, 4 times the mean"
    assert proposal(UTILIZATION, *risen(1000.0, 1000.0, busy=0.85)).wish == pytest.approx(2 * 0.85 / 0.6)
    known = proposal(UTILIZATION, *risen(1000.0, 1000.0, held={"matcher": 1}), capacity=Knowing(*range(200, 4000, 200)))
    assert known.wish == 9, "1,000 publications a second at 60 %, and not the mean of 250"


def test_one_interval_is_no_rise_and_neither_is_noise() -> None:
    for rates in ([1000.0], [1000.0, 100.0], [100.0, 1000.0], [140.0, 140.0]):
        history = History(30, 600)
        for at, row in enumerate(risen(*rates)):
            history.add(float(at), row)
        assert history.surge() == 1.0, rates


def test_an_objective_that_burns_waits_a_moment_while_it_shows_how_far_the_load_rises() -> None:
    """One more slice is a transition of its own, during which what is needed cannot be started."""
    slo = {"type": "slo", "name": "delay"}
    first = proposal(slo, *risen(1000.0, waiting=100), level=BURNING)
    assert (first.wish, first.reason.rpartition("; ")[2]) == (2, "the load rises, how far will show in a moment")
    assert proposal(slo, *risen(1000.0, 1000.0, waiting=100), level=BURNING).wish == 3
    assert proposal(slo, *risen(120.0, waiting=100), level=BURNING).wish == 3


def doors(*shares: float | None, waiting: int = 0) -> Signals:
    """Connection points that are so busy."""
    sizes = {"connection_point": len(shares)}
    return seen(sizes, busy={"connection_point": list(shares)}, backlog={"connection_point": waiting})


def test_connection_points_grow_by_one_and_only_when_who_connects_finds_none_with_room() -> None:
    """Who is connected stays: more of them take nothing off the busiest."""
    whole = proposal(UTILIZATION, doors(1.0, 1.0, 0.85), of="connection_point")
    assert whole.wish == 4, "not 5, as for a layer whose work is shared anew"
    assert whole.reason.endswith("; who is connected stays, so one more, for those who connect from now on")
    held = proposal(UTILIZATION, doors(1.0, 1.0, 0.05), of="connection_point")
    assert held.wish == 3
    assert held.reason.endswith("; who is connected stays, and who connects finds room: the least busy one is at 5%")
    assert proposal(UTILIZATION, doors(1.0, None, 0.05), of="connection_point").wish == 3
    assert proposal(UTILIZATION, doors(1.0), of="connection_point").wish == pytest.approx(1 / 0.6)
    assert proposal(UTILIZATION, doors(0.1, 0.05), of="connection_point").wish < 1, "shrinking is as for any layer"
    assert proposal(UTILIZATION, seen({"matcher": 3}, busy={"matcher": [1.0, 1.0, 0.05]})).wish == 5


def test_no_trigger_of_load_asks_for_connection_points_while_one_has_room() -> None:
    slo, queue = {"type": "slo", "name": "delay"}, {"type": "queue", "target_per_replica": 10}
    for trigger, level in ((slo, BURNING), (queue, CALM)):
        assert proposal(trigger, doors(0.95, 0.2, waiting=50), of="connection_point", level=level).wish == 2
        assert proposal(trigger, doors(0.95, 0.6, waiting=50), of="connection_point", level=level).wish == 3
    there = seen({"connection_point": 2}, connected={"connection_point": 5000}, busy={"connection_point": 0.1})
    connections = {"type": "connections", "target_per_replica": 2000}
    assert proposal(connections, there, of="connection_point").wish == 5, (
        "clients that are there and come count as ever"
    )


def matching(*spreads: Spread | None) -> Signals:
    return seen({"matcher": len(spreads)}, match={"matcher": list(spreads)})


def test_cupus_splits_when_even_the_least_time_is_above() -> None:
    slow, fast = spread(4.1, 90), spread(0.1, 3)
    assert proposal(SPLIT, *[matching(slow, fast)] * 3).wish == 3
    assert proposal(SPLIT, *[matching(slow, fast)] * 2).wish == 2  # 200 publications
    spike = matching(spread(3.9, 90), fast)
    assert proposal(SPLIT, matching(slow, fast), spike, matching(slow, fast)).wish == 2


def test_cupus_merges_when_even_the_greatest_time_of_all_is_below() -> None:
    idle = spread(0.1, 0.9)
    assert proposal(SPLIT, *[matching(idle, idle)] * 3).wish == 1
    assert proposal(SPLIT, *[matching(idle, spread(0.1, 1.1))] * 3).wish == 2
    assert proposal(SPLIT, *[matching(idle, idle)] * 2, matching(idle, spread(0.1, 5))).wish == 2


def test_cupus_needs_both_a_number_and_a_time() -> None:
    many = spread(5, 9, 100_000)
    assert proposal(SPLIT, matching(many)).wish == 1
    assert proposal(SPLIT, matching(many), matching(many)).wish == 2


def test_an_idle_window_is_complete_at_its_greatest_age() -> None:
    none = Spread(0, 0.0, 0.0, 0.0)
    short = SPLIT | {"max_window_s": 5}
    assert proposal(short, *[matching(none, none)] * 4).wish == 2
    assert proposal(short, *[matching(none, none)] * 5).wish == 1


def test_match_times_that_are_missing_never_merge() -> None:
    idle = spread(0.1, 0.2)
    assert proposal(SPLIT, *[matching(None, None)] * 3).wish is None
    found = proposal(SPLIT, *[matching(idle, None)] * 3)
    assert (found.wish, found.partial) == (2, True)


BAND = {"type": "utilization", "target": 0.6, "min": 0.4, "max": 0.75}


def near(*shares: float) -> Proposal:
    """History looks back over two seconds here, and over sixty to tell what is steady from noise."""
    return proposal(BAND, *(seen({"matcher": 2}, busy={"matcher": share}) for share in shares), look_back_s=2)


def test_what_crosses_an_edge_of_the_band_by_a_little_must_do_so_in_the_long_run() -> None:
    once = near(*[0.73] * 40, 0.77, 0.77)
    assert once.wish == 2
    assert once.reason == "busiest matcher 77%, target 60%: within 40% to 75% in the long run, 73.2%"
    assert near(*[0.73] * 5, *[0.77] * 20).wish == pytest.approx(2 * 0.77 / 0.6)
    assert near(*[0.42] * 40, 0.38, 0.38).wish == 2
    assert near(*[0.42] * 5, *[0.38] * 20).wish == pytest.approx(2 * 0.38 / 0.6)


def test_what_is_far_outside_of_the_band_counts_at_once() -> None:
    assert near(*[0.5] * 40, 0.9, 0.9).wish == 3
    assert near(*[0.5] * 40, 0.2, 0.2).wish == pytest.approx(2 * 0.2 / 0.6)


def test_noise_at_the_edge_of_the_band_changes_nothing() -> None:
    """Two percent below the edge, and as much noise in what is looked back over: one look in six is above."""
    source, history = Random(5), History(5.0, 6.0)
    policy = msgspec.convert(layer(BAND), LayerPolicy)
    crossed = 0
    for at in range(8000):
        row = seen({"matcher": 2}, busy={"matcher": 0.735 * source.gauss(1, 0.045)})
        history.add(float(at), row)
        if at < 60:
            continue
        busiest = history.busiest("matcher").value
        assert busiest is not None
        crossed += busiest > 0.75
        scene = Scene(history, {"delay": CALM}, Unknowing(), row.sizes)
        assert propose(policy.triggers[0], "matcher", policy, scene).wish == 2, at
    assert crossed > 800
