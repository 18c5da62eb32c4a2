"""The capacity model as the decider asks for it: signals in, one layer's figures out; the `Capacity` of `decision.py`.

How many notifications a publication becomes is not for the decider to say; the running mean of what was seen is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autoscaler.capacity import CapacityModel, Confidence, observation
from autoscaler.costs import Interest, Load, prior, wakes
from autoscaler.decision import Prediction, Sizing
from autoscaler.signals import Signals
from autoscaler.speedup import Figures, Speedups, karp_flatt

LEAST_OBSERVATIONS: Final = 5
"""Intervals of a layer before anything is said of it."""

OFF_POINTS: Final = 0.1
OFF_SHARE: Final = 0.3
"""A predicted utilization may be off by so much, or by this share of itself (standard deviation)."""

RECENT: Final = 0.02
"""Weight of one interval in the running mean of notifications for each publication."""

GAIN: Final = 0.01
"""Share by which capacity has to grow to be called a help."""


class FittedCapacity:
    """Learns from signals. interest: what to expect before, see `costs.prior`. cores: that all slices share, if any."""

    def __init__(self, interest: Interest | None = None, *, cores: float | None = None) -> None:
        self.model = CapacityModel(prior(interest), cores=cores, told=interest is not None)
        self.speedups = Speedups()
        self._notifications: float | None = None

    def observe(self, now_s: float, signals: Signals) -> None:
        """Learn from one interval; one with a transition or without a rate teaches nothing."""
        seen = observation(signals)
        if seen is None:
            return
        each = seen.load.notifications_per_publication
        self._notifications = (
            each if self._notifications is None else self._notifications + RECENT * (each - self._notifications)
        )
        self.model.observe(seen)
        self.speedups.observe(seen, self.model)

    def load(self, rate: float, subscriptions: int) -> Load:
        """Return the load of so many publications a second, each of which has as many notifications as was seen."""
        return Load(rate, subscriptions, self._notifications or 0.0)

    def knows(self, layer: str, sizes: Mapping[str, int], load: Load) -> bool:
        """Tell whether enough was seen of a layer to say something of these sizes at this load.

        Where work and wake-ups cannot be told apart yet, or the size is far from what was had, a utilization may be off
        by more than is bearable; then nothing is said, and the decider goes by what it sees.
        """
        if self.model.seen(layer) < LEAST_OBSERVATIONS:
            return False
        rate, skew = load.publications_per_s, self.model.skew(layer, sizes[layer])
        off = rate * skew * self.model.deviation(layer, sizes, load)
        return off <= max(OFF_POINTS, OFF_SHARE * self.model.utilisation(layer, sizes, load))

    def predict(
        self, layer: str, size: int, rate: float, subscriptions: int, sizes: Mapping[str, int]
    ) -> Prediction | None:
        """Say what the layer would be like with `size` slices; utilization is what its busiest slice would report."""
        then, load = {**sizes, layer: size}, self.load(rate, subscriptions)
        if not self.knows(layer, then, load):
            return None
        capacity = self.model.capacity(layer, then, load)
        single = self.model.capacity(layer, {**sizes, layer: 1}, load)
        speedup = capacity / single if 0 < single < float("inf") else 1.0
        woken = self.model.busy(layer, then, load) - self.model.seconds(layer, then, load) * rate
        return Prediction(
            size=size,
            utilization=self.model.utilisation(layer, then, load) + woken,
            capacity_per_s=capacity,
            speedup=speedup,
            efficiency=speedup / size,
            karp_flatt=karp_flatt(speedup, size),
        )

    def best_size(
        self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], utilization: float, limit: int
    ) -> Sizing | None:
        """Say how many slices hold the utilization at that rate; wake-ups are not counted, as they make room."""
        load = self.load(rate, subscriptions)
        if not self.knows(layer, sizes, load):
            return None
        need = self.model.need(layer, sizes, load, utilization, limit)
        if need.count is not None:
            return Sizing(size=need.count, best=need.count, reason=need.reason)
        return Sizing(size=None, best=self._useful(layer, sizes, load, limit), reason=need.reason)

    def can_help(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], size: int) -> bool | None:
        """Tell whether `size` slices carry more than the layer's present number."""
        load = self.load(rate, subscriptions)
        if not self.knows(layer, sizes, load):
            return None
        now = self.model.capacity(layer, sizes, load)
        then = self.model.capacity(layer, {**sizes, layer: size}, load)
        return then > now * (1 + GAIN)

    def rests_on(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> str:
        """Return what the layer's figures at these sizes rest on, as a sentence."""
        load = self.load(rate, subscriptions)
        words = self.model.confidence(layer, sizes, load).words
        if self.model.seen(layer) and not self.knows(layer, sizes, load):
            return f"{words}; too unsure to size by"
        return words

    def confidence(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> Confidence:
        """Return what the layer's figures at these sizes rest on."""
        return self.model.confidence(layer, sizes, self.load(rate, subscriptions))

    def figures(self) -> list[Figures]:
        """Return speed-up, efficiency and Karp-Flatt e measured at each size that was had."""
        return self.speedups.figures(self.model)

    def wake_share(self, layer: str, rate: float) -> float:
        """Return the share of time that a slice of the layer is busy with waking up, at a rate."""
        return self.model.coefficients()[layer]["w"] * wakes(rate)

    def _useful(self, layer: str, sizes: Mapping[str, int], load: Load, limit: int) -> int:
        """Return the least size up to the limit after which one slice more gains next to nothing."""
        size = 1
        while size < limit:
            now = self.model.capacity(layer, {**sizes, layer: size}, load)
            if self.model.capacity(layer, {**sizes, layer: size + 1}, load) <= now * (1 + GAIN):
                break
            size += 1
        return size
