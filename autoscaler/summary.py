"""A policy in a few lines, as a person would tell it; what it does not say is what the defaults are."""

from __future__ import annotations

import msgspec

from autoscaler.policy import ScalingPolicy, Trigger
from autoscaler.signals import LAYERS


def summary(policy: ScalingPolicy) -> str:
    """Return the policy as text: a headline, and a line for each layer and objective."""
    state = "paused" if policy.paused else policy.mode
    lines = [f"policy {policy.metadata.name}, {state}, evaluated each {policy.evaluate_interval_s:g} s"]
    for objective in policy.slo:
        share = f"{100 * objective.quantile:g} %"
        lines.append(f"  slo {objective.name}: {share} of {objective.metric} within {objective.target:g} ms")
    for layer in LAYERS:
        one = policy.layers.of(layer)
        if one is None:
            lines.append(f"  {layer}: left alone")
            continue
        triggers = "; ".join(map(_trigger, one.triggers))
        lines.append(f"  {layer}: {one.min_replicas} to {one.max_replicas}, by {triggers}")
    interest = policy.capacity.known
    if interest is not None:
        lines.append(
            f"  capacity: a prior of {interest.publications_per_second:,.0f} publications/s, "
            f"{interest.subscriptions:,.0f} subscriptions, {interest.matches_per_publication:,.2f} matches each"
        )
    return "\n".join(lines)


def _trigger(trigger: Trigger) -> str:
    document = msgspec.to_builtins(trigger)
    kind = document.pop("type")
    return f"{kind} ({', '.join(f'{key} {_value(value)}' for key, value in document.items() if value is not None)})"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
