"""Speed-up, efficiency and the Karp-Flatt metric of more matchers, from measurements at each size that was had.

    S(m) = capacity with m matchers / capacity with one       E(m) = S/m       e(m) = (1/S - 1/m) / (1 - 1/m)

e is the part of the work that does not divide. An e that stays the same as m grows is a serial part; one that rises
with m is overhead, here of sending each publication to all matchers (Karp and Flatt, CACM 33, 1990; the E-SilboPS paper
reads its Figure 12 so). The other layers are as they were when a size was measured, and one matcher is judged among the
same ones. Where that was never measured, with about as many subscriptions, the model's figure stands in, and is
named as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from autoscaler.capacity import CapacityModel, Observation
from autoscaler.costs import Load, wakes
from autoscaler.signals import LAYERS
from cluster.messages import MATCHER

RECENT: Final = 0.01
"""Weight of one observation in a size's running means."""

MAX_SIZES: Final = 64
"""Sizes kept; that with the fewest observations makes room."""

ALIKE: Final = 0.25
"""Two sizes are compared as measured if their counts of subscriptions differ by no more than this share."""


@dataclass
class _Measured:
    """Running means at one size. shares: of the busiest slice of each layer, without wake-ups."""

    load: Load
    shares: dict[str, float]
    observations: int = 0

    @property
    def capacity(self) -> float:
        """Publications a second at which the busiest slice of all would be busy all the time."""
        busiest = max(self.shares.values())
        return self.load.publications_per_s / busiest if busiest > 0 else float("inf")


@dataclass(frozen=True)
class Figures:
    """What one size achieves; capacity in publications a second.

    karp_flatt: None for one matcher. base: "measured" or "predicted", the single matcher it is compared with.
    """

    sizes: dict[str, int]
    subscriptions: float
    observations: int
    capacity: float
    speedup: float
    efficiency: float
    karp_flatt: float | None
    base: str


def karp_flatt(speedup: float, processors: float) -> float | None:
    """Return the serial part that a speed-up on so many processors implies; None for a single one."""
    if processors <= 1 or speedup <= 0:
        return None
    return (1 / speedup - 1 / processors) / (1 - 1 / processors)


class Speedups:
    """Measured capacities by size: `observe` as the model does, `figures` for what they come to."""

    def __init__(self) -> None:
        self._measured: dict[tuple[int, ...], _Measured] = {}

    def observe(self, seen: Observation, model: CapacityModel) -> None:
        """Take in an interval of which all layers are known."""
        if len(seen.busiest) < len(LAYERS):
            return
        rate = seen.load.publications_per_s
        values = model.coefficients()
        shares = {layer: max(0.0, seen.busiest[layer] - values[layer]["w"] * wakes(rate)) for layer in LAYERS}
        key = tuple(seen.sizes[layer] for layer in LAYERS)
        held = self._measured.get(key)
        if held is None:
            if len(self._measured) >= MAX_SIZES:
                del self._measured[min(self._measured, key=lambda key: self._measured[key].observations)]
            held = self._measured[key] = _Measured(seen.load, shares)
        held.observations += 1
        weight = max(RECENT, 1 / held.observations)
        held.load = Load(*(old + weight * (new - old) for old, new in zip(held.load, seen.load, strict=True)))
        for layer, share in shares.items():
            held.shares[layer] += weight * (share - held.shares[layer])

    def figures(self, model: CapacityModel) -> list[Figures]:
        """Return what each size that was had achieved, ascending by sizes."""
        found = []
        for key, held in sorted(self._measured.items()):
            sizes = dict(zip(LAYERS, key, strict=True))
            single = {**sizes, MATCHER: 1}
            other = self._measured.get(tuple(single[layer] for layer in LAYERS))
            near = other is not None and _alike(other.load.subscriptions, held.load.subscriptions)
            base = other.capacity if near and other is not None else model.whole(single, held.load)[0]
            count, capacity = sizes[MATCHER], held.capacity
            speedup = capacity / base if base > 0 else float("inf")
            found.append(
                Figures(
                    sizes,
                    held.load.subscriptions,
                    held.observations,
                    capacity,
                    speedup,
                    speedup / count,
                    karp_flatt(speedup, count),
                    "measured" if near else "predicted",
                )
            )
        return found


def predicted(model: CapacityModel, sizes: dict[str, int], load: Load) -> Figures:
    """Return what the model expects of a size that may never have been had."""
    capacity, _ = model.whole(sizes, load)
    base, _ = model.whole({**sizes, MATCHER: 1}, load)
    count = sizes[MATCHER]
    speedup = capacity / base
    return Figures(
        dict(sizes), load.subscriptions, 0, capacity, speedup, speedup / count, karp_flatt(speedup, count), "predicted"
    )


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= ALIKE * max(one, other)
