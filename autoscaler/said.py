"""What the autoscaler says to Prometheus, by the names of `cluster/metrics.py`; never per client or subscription."""

from __future__ import annotations

from collections import Counter

from autoscaler.decision import Decision
from cluster.figures import Values

TOTAL = "decision"
"""The value of the label `trigger` for what came of all triggers."""


class Said:
    """Kept from decision to decision: counters since the beginning, gauges as of the newest evaluation."""

    def __init__(self) -> None:
        self._decisions: Counter[tuple[str, ...]] = Counter()
        self._blocked: Counter[tuple[str, ...]] = Counter()
        self._last: Decision | None = None
        self._evaluated: Decision | None = None

    def add(self, decision: Decision) -> None:
        """Take in a decision; one that was made between two evaluations is not to be given."""
        self._last = decision
        if not decision.layers:
            return
        self._evaluated = decision
        for one in decision.layers:
            direction = "out" if one.target > one.size else "in" if one.target < one.size else "stay"
            self._decisions[one.layer, direction] += 1
            for stage in one.stages:
                if stage.blocked is not None:
                    self._blocked[one.layer, stage.blocked] += 1

    def values(self) -> dict[str, Values]:
        """Return everything, by metric and the values of its labels."""
        said: dict[str, Values] = {
            "kittiwake_decisions_total": dict(self._decisions),
            "kittiwake_decision_blocked_total": dict(self._blocked),
        }
        if self._last is not None:
            said["kittiwake_cost_per_hour"] = {(): self._last.cost_per_hour}
            said["kittiwake_slo_budget_left"] = {(name,): left for name, left in self._last.slo_left.items()}
            said["kittiwake_slo_burn_rate"] = {
                (name, window): rate for name, rates in self._last.slo_burn.items() for window, rate in rates.items()
            }
        if self._evaluated is None:
            return said
        layers = self._evaluated.layers
        wishes: dict[tuple[str, ...], float] = {}
        for one in layers:
            wishes |= {(one.layer, each.trigger): each.wish for each in one.proposals if each.wish is not None}
            wishes[one.layer, TOTAL] = one.target
        estimates = {one.layer: one.estimate for one in layers}
        return said | {
            "kittiwake_desired_replicas": wishes,
            "kittiwake_utilisation": {(one.layer,): one.busy for one in layers if one.busy is not None},
            "kittiwake_efficiency": {
                (layer,): one.efficiency for layer, one in estimates.items() if one.efficiency is not None
            },
            "kittiwake_karp_flatt": {
                (layer,): one.karp_flatt for layer, one in estimates.items() if one.karp_flatt is not None
            },
        }
