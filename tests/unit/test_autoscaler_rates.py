"""Stabilisation, delay and rates, as Ray Serve and the HorizontalPodAutoscaler have them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from autoscaler.policy import LayerPolicy
from autoscaler.rates import Delay, Peaks, Rates, Rise, Stabilization

NO_LIMIT: dict[str, Any] = {"policies": []}


def made(up: dict[str, Any] | None = None, down: dict[str, Any] | None = None, **parts: Any) -> LayerPolicy:
    document = {
        "triggers": [{"type": "utilization", "target": 0.5}],
        "behavior": {"scale_up": up or {}, "scale_down": down or {}},
    }
    return msgspec.convert(document | parts, LayerPolicy)


def test_shrinking_takes_the_highest_wish_of_its_window() -> None:
    one = Stabilization(made(down={"stabilization_window_s": 30}))
    assert [one.apply(at, 5, wish) for at, wish in ((0, 2), (10, 4), (20, 3), (29.9, 2))] == [5, 5, 5, 5]
    assert one.apply(30, 5, 2) == 4  # the size at the beginning counts as a wish, until now
    assert one.apply(40, 4, 2) == 3
    assert one.apply(50, 4, 2) == 2


def test_growing_takes_the_lowest_wish_of_its_window() -> None:
    one = Stabilization(made(up={"stabilization_window_s": 20}))
    assert one.apply(0, 2, 6) == 2
    assert one.apply(10, 2, 4) == 2
    assert one.apply(20, 2, 8) == 4
    assert one.apply(31, 2, 8) == 8
    assert one.apply(31, 2, 9) == 8


def test_without_windows_every_wish_passes_at_once() -> None:
    one = Stabilization(made(down={"stabilization_window_s": 0}))
    assert [one.apply(0, 3, wish) for wish in (9, 1, 3)] == [9, 1, 3]


def test_a_decision_must_hold_in_one_direction() -> None:
    one = Delay(made(upscale_delay_s=10, downscale_delay_s=20))
    assert one.apply(0, 2, 3) == (2, 10)
    assert one.apply(9, 2, 5) == (2, 1)
    assert one.apply(10, 2, 4) == (4, 0)
    assert one.apply(11, 2, 2) == (2, 0)  # a break begins anew
    assert one.apply(12, 2, 4) == (2, 10)
    assert one.apply(13, 2, 1) == (2, 20)  # so does the other direction
    assert one.apply(33, 2, 1) == (1, 0)
    one.reset()
    assert one.apply(34, 2, 1) == (2, 20)


def test_no_delay_means_at_once() -> None:
    assert Delay(made(upscale_delay_s=0)).apply(5, 2, 3) == (3, 0)


def test_the_defaults_are_those_of_the_horizontal_pod_autoscaler() -> None:
    one = Rates(made())
    assert one.apply(0, 3, 100) == 7  # the greater of 100 % and 4 more
    assert one.apply(0, 8, 100) == 16
    assert one.apply(0, 8, 1) == 1  # 100 % down
    assert made().behavior.scale_down.stabilization_window_s == 300
    assert made().behavior.scale_up.stabilization_window_s == 0


def test_what_changed_within_the_period_counts() -> None:
    one = Rates(made(up={"policies": [{"type": "replicas", "value": 2, "period_s": 15}]}))
    one.changed(100, 2)
    assert one.apply(110, 4, 9) == 4
    assert one.apply(115, 4, 9) == 6
    one.changed(115, 1)
    assert one.apply(116, 5, 9) == 6


def test_select_policy_min_takes_the_least_change() -> None:
    policies = [{"type": "percent", "value": 50, "period_s": 60}, {"type": "replicas", "value": 1, "period_s": 60}]
    one = Rates(made({"policies": policies, "select_policy": "min"}, {"policies": policies, "select_policy": "min"}))
    assert (one.apply(0, 10, 20), one.apply(0, 10, 1)) == (11, 9)
    one = Rates(made({"policies": policies}, {"policies": policies}))
    assert (one.apply(0, 10, 20), one.apply(0, 10, 1)) == (15, 5)


def test_disabled_allows_no_change_in_that_direction() -> None:
    one = Rates(made(down={"select_policy": "disabled"}))
    assert (one.apply(0, 3, 1), one.apply(0, 3, 4)) == (3, 4)


def test_no_policies_are_no_limit() -> None:
    one = Rates(made(NO_LIMIT, NO_LIMIT))
    assert (one.apply(0, 3, 2000), one.apply(0, 2000, 1)) == (2000, 1)


@pytest.mark.parametrize(("size", "down"), [(5, 4), (10, 9), (3, 2)])
def test_a_percentage_rounds_as_the_horizontal_pod_autoscaler_does(size: int, down: int) -> None:
    percent = {"policies": [{"type": "percent", "value": 10, "period_s": 60}]}
    one = Rates(made(percent, percent))
    assert (one.apply(0, size, 99), one.apply(0, size, 1)) == (size + 1, down)


# Peaks that recur ----------------------------------------------------------------------------------------------------


def followed(peaks: Peaks, wishes: list[tuple[float, int]], size: int) -> list[tuple[float, int]]:
    """Do at once what comes out; return the changes."""
    one = Stabilization(made(down={"stabilization_window_s": 100}), peaks)
    changes = []
    for at, wish in wishes:
        found = one.apply(at, size, wish)
        if found != size:
            one.changed(at, found, found - size)
            changes.append((at, found))
            size = found
    return changes


def spikes(until: int, every: int = 600) -> list[tuple[float, int]]:
    """A wish for 5 in the first 20 s of each ten minutes, else for 2; each ten seconds."""
    return [(float(at), 5 if at % every < 20 else 2) for at in range(0, until, 10)]


def test_a_size_that_had_to_be_taken_back_is_held_from_peak_to_peak() -> None:
    peaks = Peaks(3600)
    assert followed(peaks, spikes(7200), 2) == [(0, 5), (110, 2), (600, 5)]
    assert peaks.interval_s == 590
    assert peaks.window_s == 885


def test_when_no_more_peaks_come_it_shrinks_and_in_the_end_forgets() -> None:
    calm = [(float(at), 2) for at in range(3600, 12_000, 10)]
    peaks = Peaks(3600)
    assert followed(peaks, spikes(3600) + calm, 2)[-1] == (3010 + 890, 2)
    assert peaks.interval_s == 0


def test_peaks_farther_apart_than_is_held_are_followed() -> None:
    peaks = Peaks(300)
    assert len(followed(peaks, spikes(7200), 2)) == 24
    assert peaks.interval_s == 0
    assert len(followed(Peaks(0), spikes(7200), 2)) == 24


def test_what_one_layer_learned_of_the_load_holds_for_all() -> None:
    peaks = Peaks(3600)
    followed(peaks, spikes(1200), 2)
    assert followed(peaks, [(at + 1200, wish) for at, wish in spikes(3600)], 2) == [(1200, 5)]


def test_growth_beyond_what_there_was_takes_nothing_back() -> None:
    peaks = Peaks(3600)
    one = Stabilization(made(), peaks)
    one.apply(0, 2, 2)
    one.changed(10, 4, 2)
    one.changed(20, 9, 5)
    assert peaks.interval_s == 0


def test_a_size_that_was_only_there_was_not_needed() -> None:
    """A cluster that begins large and idle shrinks; growing again later is no peak that recurs."""
    peaks = Peaks(3600)
    idle = [(float(at), 2) for at in range(0, 600, 10)]
    assert followed(peaks, [*idle, (600, 5)], 5) == [(100, 2), (600, 5)]
    assert peaks.interval_s == 0


# Rises ---------------------------------------------------------------------------------------------------------------


def fed(rise: Rise, rates: Sequence[float | None]) -> list[int]:
    """Feed a rate a second; return when a rise was seen."""
    seen = []
    for at, rate in enumerate(rates):
        rise.add(at, rate)
        if rise.at_s == at:
            seen.append(at)
    return seen


def test_a_rise_is_above_all_that_was_seen_before() -> None:
    """It lasts until there is a rate as high that is older than the look-back."""
    ramp = [100.0] * 30 + [100.0 + 20 * step for step in range(5)] + [200.0] * 30
    assert fed(Rise(60, 10), ramp) == list(range(34, 43))
    assert fed(Rise(60, 10), [100.0] * 30 + [1000.0] * 60) == list(range(31, 41))


def test_one_interval_is_no_rise_and_neither_is_a_missing_one() -> None:
    assert fed(Rise(60, 10), [100.0] * 30 + [0.0, 900.0, 100.0, None, None, 140.0, 140.0]) == []


def test_bursts_that_come_again_are_a_rise_the_first_time_only() -> None:
    burst = [10.0] * 37 + [900.0] * 3
    assert fed(Rise(60, 10), burst * 5) == [38, 39]
    assert fed(Rise(20, 10), burst * 2) == [38, 39, 78, 79], "within so short a window they do not come again"


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_rise(seed: int) -> None:
    source = random.Random(seed)
    assert fed(Rise(240, 20), [100 * max(0.0, source.gauss(1, 0.2)) for _ in range(3600)]) == []


def test_shrinking_begins_its_window_anew_when_the_load_rises() -> None:
    rise = Rise(60, 10)
    one = Stabilization(made(down={"stabilization_window_s": 30}), None, rise)
    assert [one.apply(at, 5, 2) for at in (0, 30)] == [5, 2]
    rise.at_s = 31.0
    assert [one.apply(at, 5, 2) for at in (31, 60, 61)] == [5, 5, 2]
    rise.at_s = 62.0
    assert one.apply(62, 5, 7) == 7, "it does not hold growth"
    assert [one.risen_s(at) for at in (62, 91, 92)] == [0, 29, None]


def test_without_a_window_a_shrink_waits_while_the_load_rises() -> None:
    rise = Rise(60, 10)
    one = Stabilization(made(down={"stabilization_window_s": 0}), None, rise)
    rise.at_s = 5.0
    assert [one.apply(at, 3, 1) for at in (5, 6)] == [3, 1]
