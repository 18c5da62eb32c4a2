"""Signals and policies for the autoscaler's tests, made from the few values that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from autoscaler.decider import Decider
from autoscaler.decision import Decision, Prediction, Sizing
from autoscaler.policy import ScalingPolicy
from autoscaler.signals import BUCKETS, DELAY_BOUNDS_MS, LAYERS, Histogram, Signals, SliceSignals, Spread

SIZES = dict.fromkeys(LAYERS, 1)


def policy(**parts: Any) -> ScalingPolicy:
    """A policy of a matcher layer with one trigger unless `layers` says otherwise; delays and windows 0, steps free."""
    document: dict[str, Any] = {
        "apiVersion": "kittiwake/v1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "test"},
        "evaluate_interval_s": 1,
        "look_back_period_s": 1,
        "guards": {"warmup_s": 0},
        "layers": {"matcher": layer()},
    }
    return msgspec.convert(document | parts, ScalingPolicy)


def layer(*triggers: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A layer's section: by default it follows utilization 0.5 at once, from 1 to 10."""
    return {
        "min_replicas": 1,
        "max_replicas": 10,
        "triggers": list(triggers) or [{"type": "utilization", "target": 0.5}],
        "upscale_delay_s": 0,
        "downscale_delay_s": 0,
        "behavior": {
            "scale_up": {"policies": []},
            "scale_down": {"stabilization_window_s": 0, "policies": []},
        },
    } | parts


def histogram(**counts: int) -> Histogram:
    """`histogram(ms_50=3)`: three values of 50 ms."""
    row = [0] * BUCKETS
    for name, count in counts.items():
        value = float(name.removeprefix("ms_"))
        place = next((at for at, bound in enumerate(DELAY_BOUNDS_MS) if value <= bound), BUCKETS - 1)
        row[place] += count
    return tuple(row)


def seen(sizes: Mapping[str, int] | None = None, *, busy: Mapping[str, Any] | None = None, **parts: Any) -> Signals:
    """Signals with one value for all slices of a layer, or a list with one for each.

    busy: useful share by layer; other values of slices, by layer too: `backlog=`, `match=`, `held=`, `connected=`.
    """
    sizes = {**SIZES, **(sizes or {})}
    columns = {
        "useful_share": busy or {},
        "backlog_messages": parts.pop("backlog", {}),
        "match_ms": parts.pop("match", {}),
        "subscriptions": parts.pop("held", {}),
        "connections": parts.pop("connected", {}),
        "rss_bytes": parts.pop("resident", {}),
    }

    def of(values: Mapping[str, Any], layer: str, slot: int) -> Any:
        value = values.get(layer)
        return value[slot] if isinstance(value, list) else value

    slices = tuple(
        SliceSignals(layer=name, slot=slot, **{column: of(values, name, slot) for column, values in columns.items()})
        for name in LAYERS
        for slot in range(sizes[name])
    )
    return Signals(**{"interval_s": 1.0, "epoch": 1, "sizes": sizes, "slices": slices} | parts)


def spread(least: float, most: float, count: int = 100) -> Spread:
    """Times of publications between the two."""
    return Spread(count, least, most, (least + most) / 2)


class Unknowing:
    """A capacity model that has seen too little."""

    def observe(self, now_s: float, signals: Signals) -> None:
        """Nothing."""

    def predict(self, layer: str, size: int, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> Any:
        """Not known."""

    def best_size(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], *rest: Any) -> Any:
        """Not known."""

    def can_help(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], size: int) -> Any:
        """Not known."""

    def rests_on(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> str:
        return "3 observations at 1 size, this one among them; off by about 80%; too unsure to size by"


class Knowing(Unknowing):
    """A layer whose slices carry `capacities[size - 1]` publications a second together, at utilization 1.

    only: the layer that it knows, None for each. reason: what its sizing says.
    """

    def __init__(self, *capacities: float, only: str | None = None, reason: str = "as told") -> None:
        self.capacities = capacities
        self.only = only
        self.reason = reason
        self.observed: list[Signals] = []

    def observe(self, now_s: float, signals: Signals) -> None:
        self.observed.append(signals)

    def predict(
        self, layer: str, size: int, rate: float, subscriptions: int, sizes: Mapping[str, int]
    ) -> Prediction | None:
        if self.only not in (None, layer):
            return None
        capacity = self.capacities[min(size, len(self.capacities)) - 1]
        speedup = capacity / self.capacities[0]
        return Prediction(
            size=size,
            utilization=rate / capacity,
            capacity_per_s=capacity,
            speedup=speedup,
            efficiency=speedup / size,
        )

    def rests_on(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> str:
        if self.only in (None, layer):
            return "430 observations at 2 sizes, this one among them; off by about 4%"
        return super().rests_on(layer, rate, subscriptions, sizes)

    def best_size(
        self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], *rest: Any
    ) -> Sizing | None:
        utilization, limit = rest
        within = [
            size for size in range(1, limit + 1) if self.predict(layer, size, rate, 0, sizes).utilization <= utilization
        ]  # type: ignore[union-attr]
        best = max(range(1, len(self.capacities) + 1), key=lambda size: self.capacities[size - 1])
        return Sizing(size=within[0] if within else None, best=within[0] if within else best, reason=self.reason)

    def can_help(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], size: int) -> bool | None:
        count = len(self.capacities)
        return self.capacities[min(size, count) - 1] > self.capacities[min(sizes[layer], count) - 1]


class Foreseeing:
    """A forecast that says what it is told to."""

    def __init__(self, rate: float | None = None, **floors: int) -> None:
        self.rate = rate
        self.floor = floors
        self.horizons: list[float] = []

    def observe(self, now_s: float, rate: float | None) -> None:
        """Nothing."""

    def rate_ahead(self, now_s: float, horizon_s: float) -> float | None:
        self.horizons.append(horizon_s)
        return self.rate

    def floors(self, now_s: float, horizon_s: float) -> dict[str, int]:
        return self.floor


def decider(made: ScalingPolicy, capacity: Any = None, forecast: Any = None) -> Decider:
    """A decider that knows nothing but the policy, unless given more."""
    return Decider(made, capacity or Unknowing(), forecast or Foreseeing())


def targets(made: Decider, *rows: tuple[float, Signals]) -> dict[str, int]:
    """What the last of these moments leads to."""
    found: Decision | None = None
    for now_s, signals in rows:
        found = made.decide(now_s, signals)
    assert found is not None
    return found.targets
