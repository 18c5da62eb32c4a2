"""Forecasts of the publication rate, and the schedule's floors."""

from __future__ import annotations

import datetime
import math
import random

import pytest

from autoscaler.decision import Forecast
from autoscaler.forecast import HoltWinters, Linear, PolicyForecast
from autoscaler.policy import ForecastPolicy, Scheduled
from cluster.errors import ConfigError

DAY = 86_400.0


def daily(at_s: float) -> float:
    """A morning peak on a low night: 100 to 1,000."""
    return 100 + 900 * math.exp(-(((at_s % DAY) / 3600 - 8) ** 2) / 4)


def test_a_ramp_is_carried_on() -> None:
    linear = Linear(30)
    for second in range(60):
        linear.add(second, 100 + 5 * second)
    assert linear.ahead(59, 40) == pytest.approx(100 + 5 * 99)
    assert linear.ahead(59, 0) == pytest.approx(100 + 5 * 59)


def test_a_falling_rate_promises_no_more_than_now() -> None:
    linear = Linear(30)
    for second in range(60):
        linear.add(second, 1000 - 5 * second)
    assert linear.ahead(59, 40) == pytest.approx(1000 - 5 * 59)


def test_noise_is_no_trend() -> None:
    source, raised = random.Random(2), 0
    for _ in range(200):
        linear = Linear(30)
        for second in range(31):
            linear.add(second, source.gauss(1000, 50))
        ahead = linear.ahead(30, 60)
        assert ahead is not None
        raised += ahead > 1100
    assert raised <= 4, "of 200"


def test_too_few_points_say_nothing_and_old_ones_are_dropped() -> None:
    linear = Linear(30)
    for second in range(4):
        linear.add(second, 10)
    assert linear.ahead(3, 30) is None
    linear.add(4, 10)
    assert linear.ahead(4, 30) == pytest.approx(10)
    assert linear.ahead(100, 30) is None


def test_a_trend_is_bounded() -> None:
    linear = Linear(30)
    for second in range(30):
        linear.add(second, 10.0 * second)
    assert linear.ahead(29, 86_400) == pytest.approx(2 * 290)


@pytest.mark.parametrize("seed", range(3))
def test_holt_winters_knows_the_morning_before_it_comes(seed: int) -> None:
    source = random.Random(seed)
    season = HoltWinters(DAY)
    at = 0.0
    while at < 3 * DAY + 6 * 3600:
        season.add(at, daily(at) * source.gauss(1, 0.05))
        at += 60
    for horizon in (600, 1800, 3600):
        expected = max(daily(at + ahead) for ahead in range(0, horizon + 1, 60))
        assert season.ahead(at, horizon) == pytest.approx(expected, rel=0.15), horizon


def test_holt_winters_waits_for_a_season_and_bridges_holes() -> None:
    season = HoltWinters(2880, bins=48)
    for at in range(0, 2880, 10):
        season.add(at, 100 + at / 10)
        assert season.ahead(at, 60) is None
        assert not season.ready
    for at in range(2880, 2 * 2880, 10):
        if not 3300 < at < 3900:
            season.add(at, 100 + (at - 2880) / 10)
    assert season.ready
    assert season.ahead(2 * 2880 + 600, 60) == pytest.approx(100 + 66, rel=0.2)


def test_holt_winters_follows_a_level_that_moved() -> None:
    season = HoltWinters(2880, bins=48)
    for at in range(0, 3 * 2880, 10):
        season.add(at, 100)
    for at in range(3 * 2880, 4 * 2880, 10):
        season.add(at, 300)
    ahead = season.ahead(4 * 2880, 300)
    assert ahead == pytest.approx(300, rel=0.15)


def test_holt_winters_starts_anew_after_a_long_silence() -> None:
    season = HoltWinters(2880, bins=48)
    for at in range(0, 2 * 2880, 10):
        season.add(at, 100)
    assert season.ready
    season.add(10 * 2880, 50)
    assert not season.ready


def test_the_policys_forecast_uses_what_its_method_says() -> None:
    def made(method: str) -> PolicyForecast:
        return PolicyForecast(ForecastPolicy(method=method, season_s=2880), look_back_s=60)  # type: ignore[arg-type]

    checked: Forecast = made("linear")
    for method, expected in (("none", None), ("schedule", None), ("linear", 100.0), ("holt_winters", 1000.0)):
        forecast = made(method)
        for at in range(0, 3 * 2880 + 1, 10):
            forecast.observe(at, 1000 if 1440 <= at % 2880 < 2000 else 100)
            forecast.observe(at, None)
        ahead = forecast.rate_ahead(3 * 2880, 1600)
        assert ahead == (None if expected is None else pytest.approx(expected, rel=0.1)), method
    assert checked.rate_ahead(0, 10) is None


def test_a_clock_that_goes_back_is_passed_over() -> None:
    forecast = PolicyForecast(ForecastPolicy(method="linear"), look_back_s=60)
    for at in range(30):
        forecast.observe(1000 + at, 100)
    forecast.observe(10, 1e9)
    assert forecast.rate_ahead(1030, 30) == pytest.approx(100)


def test_the_schedule_raises_floors_a_horizon_early_and_until_its_end() -> None:
    entries = (
        Scheduled(cron="0 7 * * 1-5", layer="matcher", min_replicas=4, for_s=7200),
        Scheduled(cron="30 7 * * *", layer="matcher", min_replicas=6, for_s=600),
        Scheduled(cron="0 0 1 1 *", layer="exit_point", min_replicas=2, for_s=3600),
    )
    forecast = PolicyForecast(ForecastPolicy(method="schedule", schedule=entries), timezone="Europe/Madrid")

    def floors(text: str, horizon: float = 0) -> dict[str, int]:
        return forecast.floors(datetime.datetime.fromisoformat(text + "+01:00").timestamp(), horizon)

    assert floors("2026-03-06T06:59:00") == {}
    assert floors("2026-03-06T06:59:00", 60) == {"matcher": 4}
    assert floors("2026-03-06T07:00:00") == {"matcher": 4}
    assert floors("2026-03-06T07:35:00") == {"matcher": 6}
    assert floors("2026-03-06T08:59:00") == {"matcher": 4}
    assert floors("2026-03-06T09:00:00") == {}
    assert floors("2026-03-07T07:10:00") == {}, "a Saturday"
    assert floors("2026-01-01T00:10:00") == {"exit_point": 2}
    silent = PolicyForecast(ForecastPolicy(method="none", schedule=entries))
    assert silent.floors(datetime.datetime.fromisoformat("2026-03-06T07:00:00+00:00").timestamp(), 0) == {}


def test_what_cannot_be_scheduled_is_refused() -> None:
    entry = Scheduled(cron="0 25 * * *", layer="matcher", min_replicas=4, for_s=7200)
    with pytest.raises(ConfigError, match="hour: '25'"):
        PolicyForecast(ForecastPolicy(method="schedule", schedule=(entry,)))
    for name in ("Europe/Nowhere", "../etc/passwd", ""):
        with pytest.raises(ConfigError, match="timezone"):
            PolicyForecast(ForecastPolicy(), timezone=name)


@pytest.mark.parametrize("step_s", [1.0, 5.0])
def test_noise_is_no_trend_however_few_points_there_are(step_s: float) -> None:
    """Twenty or five points, and 20,000 looks at them: with five an error that looks small is one by chance."""
    source, linear, seen = random.Random(3), Linear(20.0), 0
    for step in range(20_000):
        linear.add(step * step_s, 100 * source.gauss(1, 0.05))
        ahead = linear.ahead(step * step_s, 30.0)
        seen += ahead is not None and ahead > 115
    assert seen == 0


def test_a_steep_rise_is_a_trend_within_a_look_back_period() -> None:
    source, linear = random.Random(3), Linear(20.0)
    for step in range(20):
        linear.add(float(step), (100 + 5 * step) * source.gauss(1, 0.02))
    ahead = linear.ahead(19.0, 30.0)
    assert ahead is not None
    assert ahead == pytest.approx(100 + 5 * 49, rel=0.15)
