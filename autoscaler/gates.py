"""What a wish to grow must pay for: efficiency, the gain of each further step, budget, and the price of a million.

A gate can only lower a wish, never below the size. Where the model does not know the layer yet, the gates that need it
let everything through; prices are always known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autoscaler.policy import Cost
from autoscaler.signals import LAYERS
from autoscaler.triggers import Scene

MICRO = 1e-9


class Gated(NamedTuple):
    """What is left of a wish. word: of the gate that lowered it, None if none did."""

    size: int
    word: str | None
    reason: str


def cost_per_hour(cost: Cost, sizes: Mapping[str, int]) -> float:
    """Return what the sizes cost an hour, in the policy's currency."""
    return sum(float(getattr(cost.replica_hour, layer)) * sizes[layer] for layer in LAYERS)


def gate(cost: Cost, layer: str, wish: int, scene: Scene, free: int = 0) -> Gated:
    """Return the largest size up to `wish` that every step from the present size on passes the gates with.

    free: up to this size it is not for load, so that only prices count.
    """
    size = scene.sizes[layer]
    for step in range(size + 1, wish + 1):
        refusal = (None if step <= free else _waste(cost, layer, step, scene)) or _price(cost, layer, step, scene)
        if refusal is not None:
            return Gated(step - 1, *refusal)
    return Gated(wish, None, "")


def _waste(cost: Cost, layer: str, step: int, scene: Scene) -> tuple[str, str] | None:
    rate, subscriptions = scene.rate, scene.history.last.subscriptions
    if rate is not None and subscriptions is not None and (cost.min_efficiency or cost.min_marginal_speedup):
        before = scene.capacity.predict(layer, step - 1, rate, subscriptions, scene.planned)
        after = scene.capacity.predict(layer, step, rate, subscriptions, scene.planned)
        if after is not None and after.efficiency < cost.min_efficiency:
            text = f"efficiency of {step} predicted {after.efficiency:.2f}, min_efficiency {cost.min_efficiency:g}"
            return "efficiency", text
        if after is not None and before is not None and before.speedup > 0:
            gain = after.speedup / before.speedup - 1
            if gain < cost.min_marginal_speedup:
                text = f"{step - 1} -> {step} predicted to gain {gain:.0%}, min_marginal_speedup"
                return "marginal_speedup", f"{text} {cost.min_marginal_speedup:.0%}"
    return None


def _price(cost: Cost, layer: str, step: int, scene: Scene) -> tuple[str, str] | None:
    sizes = {**scene.sizes, **scene.decided, layer: step}
    total = cost_per_hour(cost, sizes)
    if cost.budget_per_hour is not None and total > cost.budget_per_hour + MICRO:
        return (
            "budget",
            f"{step} would cost {total:.4g} {cost.currency} an hour, budget_per_hour {cost.budget_per_hour:g}",
        )
    limit = cost.max_per_million_notifications
    notifications = scene.history.notification_rate()
    if limit is not None and notifications:
        each = total / (notifications * 3600 / 1e6)
        if each > limit + MICRO:
            text = (
                f"{step} would cost {each:.4g} {cost.currency} a million notifications at {notifications:.4g} a second"
            )
            return "price", f"{text}, max_per_million_notifications {limit:g}"
    return None
