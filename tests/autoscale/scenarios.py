"""The loads and troubles that an autoscaler is tried with. Rates are publications a second, times seconds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True)
class Scenario:
    """One kind of run; each part is what it says at a time, for a seed.

    rate, subscriptions: of the whole cluster, without noise.
    noise:    relative deviation of what is measured (rate and useful shares), of one interval of one second.
    skew:     how much more than the average the busiest slot of a layer has to do.
    slow:     how much slower every third slot's node is.
    silence:  probability that a slice's report is missing in an interval; silent: layers of which nothing comes at
              these times.
    steal:    share of each core that others take, at a time.
    fast:     processes as they are: work is next to nothing, and what they are busy with is waking up.
    abort:    probability that an operation is given up when its time is over.
    room:     slices that all nodes have room for, None for no limit.
    cores:    that all slices share, None for one each. What is busy at the same time takes longer by as much as there
              are too few of them.
    clients:  core seconds that clients take for a publication, of the same cores; each interval tells then how busy the
              machine is. None: it does not, and nobody else is there.
    stay:     clients stay at their connection point; None: they spread evenly at once. Else the share of them that
              connects anew each second, to any.
    steady:   no layer may change its direction after settled_s.
    cost_max: of the optimum in hindsight, None if that is not asked.
    step_s:   when the load steps up, None if it does not; it has to be answered within three transitions.
    """

    what: str
    hours: float
    rate: Callable[[random.Random, float], float]
    subscriptions: Callable[[random.Random, float], float] = lambda _, __: 200_000.0
    noise: float = 0.05
    skew: float = 1.1
    slow: float = 1.0
    silence: float = 0.0
    silent: Callable[[float], tuple[str, ...]] = lambda _: ()
    steal: Callable[[random.Random, float], float] = lambda _, __: 0.0
    fast: bool = False
    abort: float = 0.0
    room: int | None = None
    cores: float | None = None
    clients: float | None = None
    stay: float | None = None
    steady: bool = False
    settled_s: float = HOUR / 2
    cost_max: float | None = None
    step_s: float | None = None
    interval_s: float = 2.0


def _own(source: random.Random, low: float, high: float) -> float:
    """Return this seed's value in the range, the same at each call."""
    return random.Random(source.getstate()[1][0]).uniform(low, high)


def _daily(source: random.Random, at_s: float) -> float:
    """From a tenth at night to all in the afternoon, with a morning peak."""
    top = _own(source, 3000, 5000)
    hour = at_s % DAY / HOUR
    swell = 0.5 - 0.5 * math.cos((hour - 3) / 24 * 2 * math.pi)
    morning = 0.5 * math.exp(-((hour - 8) ** 2) / 2)
    return top * (0.1 + 0.6 * swell + 0.6 * morning)


def _step(source: random.Random, at_s: float) -> float:
    low = _own(source, 300, 600)
    return low if at_s < HOUR / 2 else 10 * low


def _spikes(source: random.Random, at_s: float) -> float:
    """Twenty seconds of eight times the load, each ten minutes."""
    low = _own(source, 400, 800)
    return 8 * low if at_s % 600 < 20 else low


def _steady(source: random.Random, _: float) -> float:
    return _own(source, 500, 5000)


SCENARIOS = {
    "steady": Scenario("24 hours of the same load, noisy", 24, _steady, steady=True, interval_s=5.0),
    "step": Scenario("ten times the load from one second to the next", 1.5, _step, step_s=HOUR / 2),
    "fall": Scenario(
        "a tenth of the load from one second to the next", 2, lambda s, t: 5_500 - _step(s, t) / 2, interval_s=5.0
    ),
    "ramp": Scenario(
        "ten times the load within an hour", 3, lambda s, t: _own(s, 300, 600) * (1 + 9 * min(1.0, t / HOUR))
    ),
    "daily": Scenario("two days of ten times more by day than by night", 48, _daily, cost_max=1.3, interval_s=5.0),
    "spikes": Scenario("short spikes of eight times the load", 2, _spikes),
    "growth": Scenario(
        "subscriptions from ten thousand to a million",
        3,
        lambda s, _: _own(s, 500, 1500),
        subscriptions=lambda _, t: 10_000 * 100 ** min(1.0, t / (2 * HOUR)),
    ),
    "wakes": Scenario(
        "from 100 to 8,000 publications/s on processes that are busy with waking up only",
        3,
        lambda _, t: 100 * 80 ** min(1.0, t / (2 * HOUR)),
        subscriptions=lambda _, __: 10_000.0,
        fast=True,
        interval_s=5.0,
    ),
    "skew": Scenario(
        "one slot has 1.8 times as much to do as the average", 6, _steady, skew=1.8, steady=True, interval_s=5.0
    ),
    "slow": Scenario("every third node is 1.7 times slower", 6, _steady, slow=1.7, steady=True, interval_s=5.0),
    "missing": Scenario(
        "reports are lost, for half an hour all of the matchers', while the load falls to a tenth",
        3,
        lambda s, t: _own(s, 2000, 5000) * (1 if t < HOUR else 0.1),
        silence=0.1,
        silent=lambda t: ("matcher",) if HOUR - 60 < t < 1.5 * HOUR else (),
        interval_s=2.0,
    ),
    "aborts": Scenario("operations are given up, two of five", 1.5, _step, step_s=HOUR / 2, abort=0.4),
    "cores": Scenario("ten times the load, on two cores that are full with it", 2, _step, cores=2.0),
    "clients": Scenario(
        "ten times the load, on eight cores that are full with the clients more than with the slices",
        2,
        _step,
        cores=8.0,
        clients=1.6e-3,
    ),
    "stay": Scenario(
        "ten times the load within an hour, of clients that stay at the connection point where they are",
        2,
        lambda s, t: _own(s, 1000, 2000) * (1 + 9 * min(1.0, t / HOUR)),
        stay=0.0,
        interval_s=4.0,
    ),
    "churn": Scenario(
        "the same of clients that connect anew every ten minutes",
        2,
        lambda s, t: _own(s, 1000, 2000) * (1 + 9 * min(1.0, t / HOUR)),
        stay=1 / 600,
        interval_s=4.0,
    ),
    "full": Scenario("no node has room for an eighth slice", 2, _step, room=7),
    "steal": Scenario(
        "other tenants take up to 40 % of the cores, by the hour",
        12,
        _steady,
        steal=lambda _, t: 0.4 * (int(t // HOUR) % 2),
        interval_s=5.0,
    ),
}
