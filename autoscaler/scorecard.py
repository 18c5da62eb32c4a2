"""What a policy came to, over a run that was simulated, replayed or live: the same counts, so that they compare.

transitions     changes of sizes; `steps` counts the replicas that they started or stopped
missed_minutes  per objective, whole minutes in which more than the allowed share of values was above its target
replica_hours   per layer; cost: at the policy's prices
oscillations    changes of a layer against the direction of its last one, less than WINDOW_S after it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from autoscaler.policy import ScalingPolicy
from autoscaler.signals import LAYERS, Histogram, added, share_above

WINDOW_S: Final = 1800.0
MINUTE_S: Final = 60.0


@dataclass
class Scorecard:
    """Add intervals in the order of time; read the fields at any time. `finish` counts the last, broken minute."""

    policy: ScalingPolicy
    transitions: int = 0
    steps: int = 0
    oscillations: int = 0
    seconds: float = 0.0
    values: int = 0
    replica_hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LAYERS, 0.0))
    missed_minutes: dict[str, float] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    """Per objective the values above its target."""

    def __post_init__(self) -> None:
        self._sizes: dict[str, int] | None = None
        self._turns: dict[str, tuple[float, int]] = {}
        self._minute: int | None = None
        self._delays: dict[str, Histogram | None] = {}
        self._of_minute = 0.0
        for objective in self.policy.slo:
            self.missed_minutes[objective.name] = 0.0
            self.late[objective.name] = 0.0

    def add(
        self,
        at_s: float,
        interval_s: float,
        sizes: Mapping[str, int],
        delay: Histogram | None,
        subscribe_ack: Histogram | None = None,
    ) -> None:
        """Take in an interval that ended at `at_s`, with the sizes that served in it."""
        self.seconds += interval_s
        for layer in LAYERS:
            self.replica_hours[layer] += sizes[layer] * interval_s / 3600
        self._changed(at_s, sizes)
        minute = int((at_s - interval_s / 2) // MINUTE_S)
        if minute != self._minute:
            self.finish()
            self._minute = minute
        self._of_minute += interval_s
        self.values += sum(delay or ())
        for objective in self.policy.slo:
            counts = delay if objective.metric == "notification_delay_ms" else subscribe_ack
            self._delays[objective.name] = added([self._delays.get(objective.name), counts])
            if counts is not None:
                self.late[objective.name] += (share_above(counts, objective.target) or 0.0) * sum(counts)

    def _changed(self, at_s: float, sizes: Mapping[str, int]) -> None:
        before, self._sizes = self._sizes, dict(sizes)
        if before is None or before == self._sizes:
            return
        self.transitions += 1
        for layer in LAYERS:
            change = sizes[layer] - before[layer]
            if not change:
                continue
            self.steps += abs(change)
            last = self._turns.get(layer)
            if last is not None and last[1] * change < 0 and at_s - last[0] < WINDOW_S:
                self.oscillations += 1
            self._turns[layer] = (at_s, change)

    def finish(self) -> None:
        """Judge the minute that has been gathered."""
        for objective in self.policy.slo:
            counts = self._delays.get(objective.name)
            above = None if counts is None else share_above(counts, objective.target)
            if above is not None and above > objective.allowed_share:
                self.missed_minutes[objective.name] += min(1.0, self._of_minute / MINUTE_S)
        self._delays, self._of_minute = {}, 0.0

    @property
    def cost(self) -> float:
        """What the replicas cost, in the policy's currency."""
        prices = self.policy.cost.replica_hour
        return sum(hours * float(getattr(prices, layer)) for layer, hours in self.replica_hours.items())

    @property
    def missed(self) -> float:
        """Minutes missed of the worst objective."""
        return max(self.missed_minutes.values(), default=0.0)
