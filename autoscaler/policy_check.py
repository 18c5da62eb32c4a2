"""What no single key of a policy shows: values that contradict each other, and names that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from autoscaler.cron import parse_cron
from autoscaler.periods import period_of
from autoscaler.policy import (
    Connections,
    LayerPolicy,
    MemoryUse,
    Ratio,
    ScalingPolicy,
    Slo,
    SplitMerge,
    Trigger,
    Utilization,
)
from autoscaler.signals import LAYERS
from autoscaler.yaml_lines import Path
from cluster.errors import ConfigError
from cluster.messages import CONNECTION_POINT, MATCHER

Found = Iterator[tuple[Path, str]]


def contradictions(policy: ScalingPolicy) -> Found:
    """Yield (path, text) for each."""
    layers = {layer: one for layer in LAYERS if (one := policy.layers.of(layer)) is not None}
    if not layers:
        yield ("layers",), f"no layer is named; allowed are {', '.join(LAYERS)}"
    yield from _intervals(policy)
    yield from _objectives(policy)
    for layer, one in layers.items():
        yield from _layer(policy, layer, one)
    yield from _ratios(layers)
    yield from _cost(policy, layers)
    yield from _forecast(policy, layers)
    yield from _rest(policy, layers)


def _intervals(policy: ScalingPolicy) -> Found:
    if policy.evaluate_interval_s < policy.metrics_interval_s:
        yield ("evaluate_interval_s",), f"below metrics_interval_s ({policy.metrics_interval_s:g} s)"
    if policy.look_back_period_s < policy.metrics_interval_s:
        yield ("look_back_period_s",), f"below metrics_interval_s ({policy.metrics_interval_s:g} s)"
    try:
        ZoneInfo(policy.timezone)
    except (OSError, ValueError, KeyError):
        yield ("timezone",), f"{policy.timezone!r} is no time zone of the IANA database, such as Europe/Madrid"


def _objectives(policy: ScalingPolicy) -> Found:
    names = [one.name for one in policy.slo]
    for place, one in enumerate(policy.slo):
        path: Path = ("slo", place)
        if one.name in names[:place]:
            yield (*path, "name"), f"{one.name} is there twice"
        fast, slow = one.burn_rate.fast, one.burn_rate.slow
        if fast.window_s >= slow.window_s:
            yield (*path, "burn_rate", "fast", "window_s"), f"not below that of slow ({slow.window_s:g} s)"
        if fast.factor < slow.factor:
            yield (*path, "burn_rate", "fast", "factor"), f"below that of slow ({slow.factor:g})"
        for word, burn in (("fast", fast), ("slow", slow)):
            most = 1 / one.allowed_share
            if burn.factor > most + 1e-9:
                text = f"can never be reached: with a budget of {one.allowed_share:g} the most is {most:g}"
                yield (*path, "burn_rate", word, "factor"), text
        if min(one.window_s, fast.window_s) < policy.metrics_interval_s:
            yield (*path, "window_s"), f"a window below metrics_interval_s ({policy.metrics_interval_s:g} s)"


def _layer(policy: ScalingPolicy, layer: str, one: LayerPolicy) -> Found:
    path: Path = ("layers", layer)
    if one.min_replicas > one.max_replicas:
        yield (*path, "min_replicas"), f"{one.min_replicas} is above max_replicas ({one.max_replicas})"
    initial = one.initial_replicas
    if initial is not None and not one.min_replicas <= initial <= one.max_replicas:
        allowed = f"min_replicas to max_replicas ({one.min_replicas} to {one.max_replicas})"
        yield (*path, "initial_replicas"), f"{initial}; allowed is {allowed}"
    for place, trigger in enumerate(one.triggers):
        for key, text in _trigger(policy, layer, trigger):
            yield (*path, "triggers", place, key), text
    kinds = [type(trigger) for trigger in one.triggers]
    for place, kind in enumerate(kinds):
        if kind in (Utilization, SplitMerge) and kind in kinds[:place]:
            yield (*path, "triggers", place), f"a second {kind.__struct_config__.tag}; one is allowed"
    if all(isinstance(trigger, Slo) for trigger in one.triggers) and one.max_replicas > one.min_replicas:
        yield (*path, "triggers"), "an slo trigger alone never scales in; add another, such as utilization"


def _trigger(policy: ScalingPolicy, layer: str, trigger: Trigger) -> Iterator[tuple[str, str]]:
    match trigger:
        case Utilization(target=target, min=low, max=high):
            if low is not None and low > target:
                yield "min", f"{low:g} is above target ({target:g})"
            if high is not None and high < target:
                yield "max", f"{high:g} is below target ({target:g})"
        case SplitMerge():
            if layer != MATCHER:
                yield "type", f"split_merge is of {MATCHER} alone: others have no match time"
            if trigger.merge_below_ms >= trigger.split_above_ms / 2:
                yield (
                    "merge_below_ms",
                    f"{trigger.merge_below_ms:g}; it must be below split_above_ms / 2 "
                    f"({trigger.split_above_ms / 2:g}), or two halves of a split would merge at once",
                )
            if trigger.min_window_s > trigger.max_window_s:
                yield "min_window_s", f"above max_window_s ({trigger.max_window_s:g} s)"
            if trigger.min_window_s < policy.metrics_interval_s:
                yield "min_window_s", f"below metrics_interval_s ({policy.metrics_interval_s:g} s)"
        case Slo(name=name):
            names = [one.name for one in policy.slo]
            if name not in names:
                yield (
                    "name",
                    f"{name} is no objective of slo; allowed are {', '.join(names) or 'none, as slo is empty'}",
                )
        case MemoryUse(metric="subscriptions") if layer != MATCHER:
            yield "metric", f"subscriptions are of {MATCHER} alone; allowed is rss_bytes"
        case Connections() if layer != CONNECTION_POINT:
            yield "type", f"connections are of {CONNECTION_POINT} alone"
        case Ratio(of=of) if of == layer:
            yield "of", f"{of} is the layer itself"
        case _:
            pass


def _ratios(layers: dict[str, LayerPolicy]) -> Found:
    """A layer must not be its own floor by way of others: the two would drive each other up."""
    edges = {
        layer: [(place, one.of) for place, one in enumerate(policy.triggers) if isinstance(one, Ratio)]
        for layer, policy in layers.items()
    }
    for layer in layers:
        todo, seen = [of for _, of in edges[layer] if of != layer], set[str]()
        while todo:
            of = todo.pop()
            if of == layer:
                place = edges[layer][0][0]
                yield ("layers", layer, "triggers", place, "of"), f"{layer} would be its own floor by way of others"
                break
            if of not in seen:
                seen.add(of)
                todo += [further for _, further in edges.get(of, ())]


def _cost(policy: ScalingPolicy, layers: dict[str, LayerPolicy]) -> Found:
    cost = policy.cost
    prices = {layer: float(getattr(cost.replica_hour, layer)) for layer in LAYERS}
    for key in ("budget_per_hour", "max_per_million_notifications"):
        if getattr(cost, key) is not None and not any(prices.values()):
            yield ("cost", key), "needs prices in cost.replica_hour"
    least = sum(prices[layer] * one.min_replicas for layer, one in layers.items())
    if cost.budget_per_hour is not None and least > cost.budget_per_hour:
        yield ("cost", "budget_per_hour"), f"{cost.budget_per_hour:g}; the layers' min_replicas alone cost {least:g}"


def _forecast(policy: ScalingPolicy, layers: dict[str, LayerPolicy]) -> Found:
    forecast = policy.forecast
    if forecast.method == "none" and forecast.schedule:
        yield ("forecast", "schedule"), "has no effect with method none; allowed are linear, holt_winters and schedule"
    if forecast.method == "schedule" and not forecast.schedule:
        yield ("forecast", "method"), "schedule, but there is no entry in forecast.schedule"
    if forecast.method == "holt_winters" and forecast.season_s < 4 * policy.metrics_interval_s:
        yield ("forecast", "season_s"), f"below four of metrics_interval_s ({policy.metrics_interval_s:g} s)"
    for place, one in enumerate(forecast.schedule):
        path: Path = ("forecast", "schedule", place)
        try:
            parse_cron(one.cron)
        except ConfigError as error:
            yield (*path, "cron"), str(error)
        layer = layers.get(one.layer)
        if layer is None:
            yield (*path, "layer"), f"{one.layer} is not in layers; allowed are {', '.join(layers)}"
        elif one.min_replicas > layer.max_replicas:
            yield (
                (*path, "min_replicas"),
                f"{one.min_replicas} is above the layer's max_replicas ({layer.max_replicas})",
            )


def _rest(policy: ScalingPolicy, layers: dict[str, LayerPolicy]) -> Found:
    for place, text in enumerate(policy.guards.excluded_periods):
        try:
            period_of(text)
        except ValueError as error:
            yield ("guards", "excluded_periods", place), str(error)
    for name in LAYERS:
        replicas = getattr(policy.fallback.replicas, name)
        if replicas is None:
            continue
        layer = layers.get(name)
        path: Path = ("fallback", "replicas", name)
        if layer is None:
            yield path, f"{name} is not in layers; allowed are {', '.join(layers)}"
        elif not layer.min_replicas <= replicas <= layer.max_replicas:
            allowed = f"min_replicas to max_replicas ({layer.min_replicas} to {layer.max_replicas})"
            yield path, f"{replicas}; allowed is {allowed}"
