"""From what was seen of a change under load to its figures."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.environment import environment
from bench.scaling_figures import (
    Floats,
    Window,
    longest_gap_ms,
    lowest_bin,
    phases_s,
    quantiles_ms,
    spans,
    within,
)
from bench.scaling_oracle import Verdict, judge, judge_churned, matched_by, strangers
from bench.scaling_run import Material, Observed, Traffic


@dataclass
class Deliveries:
    """All notifications of the lasting subscriptions: when they were due, and when they came."""

    due: Floats
    arrival: Floats

    @property
    def delay(self) -> Floats:
        """Seconds."""
        return self.arrival - self.due


def deliveries(traffic: Traffic) -> Deliveries:
    """Return what arrived of known publications."""
    due, arrival = [np.zeros(0)], [np.zeros(0)]
    for rows in traffic.logs:
        known = (rows.number >= 0) & (rows.number < len(traffic.due))
        due.append(traffic.due[rows.number[known]])
        arrival.append(rows.time[known])
    return Deliveries(np.concatenate(due), np.concatenate(arrival))


def verdict_of(traffic: Traffic, material: Material, window: Window, publishers: int) -> tuple[Verdict, Verdict]:
    """Return what was wrong of what was due in the window: for the lasting, and for the churned subscriptions."""
    first, last = (int(place) for place in np.searchsorted(traffic.due, window))
    lasting = Verdict()
    for client, rows in enumerate(traffic.logs):
        lasting.add(judge(rows, client, material.expected, first, last))
    matched = matched_by([*traffic.logs, *traffic.churn_logs], len(traffic.due), publishers)
    coming = judge_churned(
        traffic.lives,
        traffic.churn_logs,
        material.matches,
        len(material.publications),
        traffic.handed,
        matched,
        window,
    )
    return lasting, coming


def strangers_of(traffic: Traffic, material: Material) -> int:
    """Return how many notifications name publications or subscriptions that never were."""
    total = len(traffic.due)
    ids = np.unique(material.expected.ids)
    count = sum(strangers(rows, total, ids) for rows in traffic.logs)
    for client, rows in enumerate(traffic.churn_logs):
        mine = traffic.lives.client == client
        if not np.isinf(traffic.lives.acked[mine]).any():  # the number is not known without an answer
            count += strangers(rows, total, traffic.lives.number[mine])
    return count


def figures_of(
    options: argparse.Namespace,
    material: Material,
    traffic: Traffic,
    observed: Observed,
    strategy: str,
    window: Window,
) -> dict[str, Any]:
    """Return the figures of one change. window: the time that its verdict is about."""
    before = (observed.begin, observed.requested)
    during = (observed.requested, observed.done)
    after = (observed.done, observed.end)
    all_of = deliveries(traffic)
    lives = traffic.lives
    ack = lives.acked - lives.due
    lasting, coming = verdict_of(traffic, material, window, options.publishers)
    operation = observed.operation
    steps = [step for _, step in observed.steps]
    laid = spans(observed.requested, observed.done, observed.steps)
    start_s = laid[0].end - laid[0].begin if laid and laid[0].step < 0 else 0.0
    start = (observed.requested, observed.requested + start_s)
    moving = (start[1], observed.done)

    def delays(window: Window) -> dict[str, float | None]:
        return quantiles_ms(all_of.delay[within(all_of.due, window)])

    def acks(window: Window) -> dict[str, float | None]:
        return quantiles_ms(ack[within(lives.due, window) & np.isfinite(ack)])

    return {
        "change": observed.change.name,
        "strategy": strategy,
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "publish_rate": options.publish_rate,
        "subscribe_rate": options.subscribe_rate,
        "spares": options.spares,
        "state": operation["state"],
        "reason": operation.get("reason"),
        "delay_before_ms": delays(before),
        "delay_during_ms": delays(during),
        "delay_after_ms": delays(after),
        "delay_start_ms": delays(start),
        "delay_moving_ms": delays(moving),
        "longest_gap_before_ms": longest_gap_ms(all_of.due, all_of.arrival, before),
        "longest_gap_ms": longest_gap_ms(all_of.due, all_of.arrival, during),
        "longest_gap_start_ms": longest_gap_ms(all_of.due, all_of.arrival, start),
        "longest_gap_moving_ms": longest_gap_ms(all_of.due, all_of.arrival, moving),
        "notifications_per_second": round(float(within(all_of.arrival, before).sum()) / (before[1] - before[0]), 1),
        "lowest_bin_before_per_s": lowest_bin(all_of.arrival, before),
        "lowest_bin_per_s": lowest_bin(all_of.arrival, during),
        "parked_publications_max": observed.parked.get("parked_publications_most", 0),
        "parked_subscriptions_max": observed.parked.get("parked_subscriptions_most", 0),
        "subscribe_ack_before_ms": acks(before),
        "subscribe_ack_ms": acks(during),
        "subscribe_ack_moving_ms": acks(moving),
        "subscribe_ack_after_ms": acks(after),
        "unanswered": int(np.isinf(ack).sum()),
        "groups_moved": operation["groups_moved"],
        "groups_minimum": operation["groups_minimum"],
        "entries": operation["entries"],
        "bytes": operation["bytes"],
        "duration_s": operation["duration_ms"] / 1e3,
        "start_s": round(start_s, 3),
        "moving_s": round(observed.done - observed.requested - start_s, 3),
        "phases_s": phases_s(steps),
        "view_changes": len(steps),
        "steps": steps,
        "cores_before": observed.cores_before,
        "published": len(traffic.due),
        "notifications": len(all_of.due),
        "churned": len(lives.due),
        "churned_required": coming.required,
        "lost": lasting.lost + coming.lost,
        "doubled": lasting.doubled + coming.doubled,
        "out_of_order": lasting.out_of_order + coming.out_of_order,
        "oracle_differences": lasting.differences + coming.differences,
        "of_them_churned": {name: getattr(coming, name) for name in ("lost", "doubled", "out_of_order", "differences")},
        "examples": lasting.examples + coming.examples,
        "trouble": traffic.trouble,
        "publisher_late_ms": quantiles_ms(traffic.handed - traffic.due),
        "subscribe_us": round(traffic.subscribe_s / options.subscriptions * 1e6, 1),
        "environment": environment(),
    }


def all_figures(
    options: argparse.Namespace, material: Material, traffic: Traffic, seen: Sequence[Observed], strategy: str
) -> list[dict[str, Any]]:
    """Return the figures of each change; every publication belongs to the verdict of exactly one."""
    cuts = [-np.inf, *(observed.end for observed in seen[:-1]), np.inf]
    rows = [
        figures_of(options, material, traffic, observed, strategy, window)
        for observed, window in zip(seen, itertools.pairwise(cuts), strict=True)
    ]
    if count := strangers_of(traffic, material):
        rows[-1]["oracle_differences"] += count
        rows[-1]["examples"].append(f"{count} notifications name publications or subscriptions that never were")
    return rows


def failed(figures: dict[str, Any]) -> bool:
    """Tell whether anything was lost, doubled, out of order or wrong, or the change was not done."""
    wrong = any(figures[name] for name in ("lost", "doubled", "out_of_order", "oracle_differences", "trouble"))
    return wrong or bool(figures["unanswered"]) or figures["state"] != "done"
