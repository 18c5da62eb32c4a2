"""Burn rates over two windows, and histograms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from autoscaler.burn import Level, Watch
from autoscaler.policy import Objective
from autoscaler.signals import BUCKETS, added, quantile, share_above
from tests.unit.autoscaling import histogram, seen


def watch(**parts: Any) -> Watch:
    document = {
        "name": "delay",
        "target": 100,
        "burn_rate": {"fast": {"window_s": 60, "factor": 10}, "slow": {"window_s": 600, "factor": 2}},
    }
    return Watch(msgspec.convert(document | parts, Objective))


def after(one: Watch, *rows: tuple[range, int, int]) -> Level:
    """Each row: seconds, good values and bad values in each of them."""
    for seconds, good, bad in rows:
        for at in seconds:
            one.add(at, seen(delay=histogram(ms_50=good, ms_200=bad)))
    return one.level()


def test_no_values_burn_nothing() -> None:
    level = after(watch(), (range(5), 0, 0))
    assert level == Level(None, None, None, None, None, False, False)


def test_a_step_raises_the_fast_alarm() -> None:
    level = after(watch(), (range(600), 100, 0), (range(600, 613), 50, 50))
    assert level.burning == "fast"
    assert level.fast == pytest.approx(13 * 50 / (60 * 100) / 0.01)
    assert level.missed
    assert level.left is not None
    assert level.left == pytest.approx(1 - 13 * 50 / (600 * 100) / 0.01)


def test_the_alarm_ends_soon_after_the_trouble() -> None:
    level = after(watch(), (range(30), 50, 50), (range(30, 35), 100, 0))
    assert level.fast is not None
    assert level.fast > 10  # of the last minute much was late, of the last five seconds nothing
    assert level.burning != "fast"


def test_what_creeps_raises_the_slow_alarm() -> None:
    level = after(watch(), (range(600), 97, 3))
    assert level.burning == "slow"
    assert level.slow == pytest.approx(3)
    assert level.left == pytest.approx(-2)


def test_within_the_budget_nothing_is_missed() -> None:
    level = after(watch(), (range(600), 995, 5))
    assert (level.burning, level.missed) == (None, False)
    assert level.left == pytest.approx(0.5)


def test_few_values_raise_no_alarm() -> None:
    assert after(watch(), (range(5), 0, 3)).burning is None
    assert after(watch(), (range(7), 0, 3)).burning == "fast"


def test_windows_forget() -> None:
    one = watch()
    after(one, (range(5), 0, 100))
    level = after(one, (range(700, 701), 100, 0))
    assert (level.fast, level.slow, level.value_ms) == (0, 0, pytest.approx(50, abs=1))


def test_a_missing_histogram_shows() -> None:
    one = watch()
    one.add(0, seen(delay=histogram(ms_50=100)))
    one.add(1, seen())
    assert one.level().missing
    assert one.level().fast == 0


def test_the_objective_says_what_is_measured() -> None:
    one = watch(metric="subscribe_ack_ms", target=500, quantile=0.9)
    one.add(0, seen(delay=histogram(ms_10000=100), subscribe_ack=histogram(ms_1000=10, ms_100=90)))
    assert one.level().fast == pytest.approx(1)


def test_shares_are_exact_at_bounds_and_even_between() -> None:
    counts = histogram(ms_50=80, ms_100=10, ms_200=10)
    assert share_above(counts, 100) == pytest.approx(0.1)
    assert share_above(counts, 75) == pytest.approx(0.2)
    assert share_above(counts, 40) == pytest.approx(1 - 0.4)  # half of the bucket from 30 to 50
    assert share_above([0] * BUCKETS, 100) is None
    assert share_above([0] * (BUCKETS - 1) + [4], 1e6) == 1


def test_quantiles_are_within_their_bucket() -> None:
    counts = histogram(ms_50=90, ms_200=10)
    assert quantile(counts, 0.5) == pytest.approx(30 + 20 * 50 / 90)
    assert quantile(counts, 0.99) == pytest.approx(150 + 50 * 0.9)
    assert quantile([0] * BUCKETS, 0.5) is None
    assert quantile([0] * (BUCKETS - 1) + [4], 0.5) == 60_000


def test_histograms_add_by_element() -> None:
    assert added([histogram(ms_50=1), None, histogram(ms_50=2, ms_100=1)]) == histogram(ms_50=3, ms_100=1)
    assert added([None]) is None
