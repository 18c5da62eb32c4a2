"""What comes out of an evaluation, and the two parts that it is made with as interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from autoscaler.signals import Signals


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What one trigger wishes. wish: replicas before rounding up, None if its signals are missing.

    partial: some of its signals are missing; it can ask for more, and holds the size otherwise.
    """

    trigger: str
    wish: float | None
    reason: str
    partial: bool = False


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the order of evaluation, as it changed (or kept) the number of replicas.

    blocked: a stable word if this stage held a change back (`efficiency`, `budget`, `delay`, `placeable`, ...).
    """

    name: str
    before: float
    after: float
    reason: str
    blocked: str | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What the capacity model says of a layer at its size: None where it does not know yet.

    rests_on: a sentence on what its answers rest on, observations or a prior; empty if there is no rate to speak of.
    """

    rests_on: str = ""
    utilization: float | None = None
    capacity_per_s: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    karp_flatt: float | None = None


class LayerDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: size now, target, and how it came to it.

    busy: useful share of its busiest slice over the look-back period. why_not_more, why_not_less: for people.
    """

    layer: str
    size: int
    target: int
    busy: float | None = None
    proposals: tuple[Proposal, ...] = ()
    stages: tuple[Stage, ...] = ()
    estimate: Estimate = Estimate()
    missing: tuple[str, ...] = ()
    why_not_more: str = ""
    why_not_less: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation.

    at_s:     the time given, unix seconds.
    targets:  layers to be changed, with their new sizes: one transition. Empty: stay.
    held:     why nothing is evaluated or done at all (`paused`, `transition`, `warm-up`, `excluded period`, ...); empty
              if nothing holds it.
    notes:   what was found out about former decisions, such as that a growth was ineffective.
    slo_left: per objective the share of its budget that is left over its slow window (below 0: overspent).
    slo_burn: per objective and window (`fast`, `slow`) how fast the budget burns.
    slo_ms:  per objective its quantile over its window.
    cost_per_hour: at the present sizes; target_cost_per_hour: at the decided ones.
    """

    at_s: float
    epoch: int
    layers: tuple[LayerDecision, ...] = ()
    targets: dict[str, int] = {}
    strategy: str | None = None
    mode: str = "auto"
    held: str = ""
    notes: tuple[str, ...] = ()
    rate: float | None = None
    forecast_rate: float | None = None
    slo_left: dict[str, float] = {}
    slo_burn: dict[str, dict[str, float]] = {}
    slo_ms: dict[str, float] = {}
    cost_per_hour: float = 0.0
    target_cost_per_hour: float = 0.0
    currency: str = "EUR"


class Decides(Protocol):
    """What `Decider` promises, for what runs it: the live shell, the simulation and the replay."""

    def decide(self, now_s: float, signals: Signals) -> Decision:
        """Take in the signals of one metrics interval and say what to do; called once each interval.

        Between two evaluations (`evaluate_interval_s`) the answer only stores the signals and has no targets.
        Targets are a wish that the caller may drop, try or do: what came of it shows in the next signals' sizes.
        now_s: unix seconds. A clock that goes backwards is taken as standing still.
        """
        ...


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A layer at a size. utilization: of the busiest slice, may exceed 1. speedup: capacity against one slice's."""

    size: int
    utilization: float
    capacity_per_s: float
    speedup: float
    efficiency: float
    karp_flatt: float | None = None


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """The least size that holds a utilization; None if none can, then `best` is the size with the most capacity.

    reason: what limits, for people.
    """

    size: int | None
    best: int
    reason: str


class Capacity(Protocol):
    """The model of `capacity.py`, fitted online. All answers are None while too little has been seen.

    rate: publications a second. sizes: of all layers (an exit point's cost depends on the matchers' number); the
    layer's own entry is replaced by `size` where that is given. subscriptions: over all matchers.
    """

    def observe(self, now_s: float, signals: Signals) -> None:
        """Learn from one interval; the caller keeps those of a transition and a warm-up away."""
        ...

    def predict(
        self, layer: str, size: int, rate: float, subscriptions: int, sizes: Mapping[str, int]
    ) -> Prediction | None:
        """Say what the layer would be like with `size` slices."""
        ...

    def best_size(
        self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], utilization: float, limit: int
    ) -> Sizing | None:
        """Say how many slices hold the utilization (0 to 1) at that rate, of 1 to `limit`."""
        ...

    def can_help(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int], size: int) -> bool | None:
        """Tell whether `size` slices carry more than the layer's present number."""
        ...

    def rests_on(self, layer: str, rate: float, subscriptions: int, sizes: Mapping[str, int]) -> str:
        """Return a sentence on what the answers about a layer rest on; never None, and of no use but to be read."""
        ...


class Forecast(Protocol):
    """The forecast of `forecast.py`, by the policy's `forecast` section."""

    def observe(self, now_s: float, rate: float | None) -> None:
        """Take in the publication rate of one interval, None if it is missing."""
        ...

    def rate_ahead(self, now_s: float, horizon_s: float) -> float | None:
        """Return the greatest rate expected from now until the horizon; None if it cannot say."""
        ...

    def floors(self, now_s: float, horizon_s: float) -> dict[str, int]:
        """Return per layer the replicas that the schedule asks for at any time from now until the horizon."""
        ...
