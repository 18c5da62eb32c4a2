"""Decisions as text that an operator reads, and as JSON: inputs, each stage, the result, why not more, why not less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from autoscaler.controller import Controller, Entry
from autoscaler.decision import Decision, LayerDecision, Stage
from autoscaler.layer import HAIR


def document(controller: Controller, count: int, timezone: str = "UTC") -> dict[str, Any]:
    """Return the controller's state and its last `count` decisions as plain data; `text_of` reads it."""
    entries = controller.entries(count)
    return {
        "policy": controller.policy_name,
        "mode": controller.mode,
        "paused": controller.paused,
        "timezone": timezone,
        "planned": controller.planned,
        "requested": controller.requested,
        "observed": controller.observed,
        "decisions": [msgspec.to_builtins(entry) for entry in entries],
    }


def text_of(explained: dict[str, Any]) -> str:
    """Return the document as text. Decisions that changed nothing are one line, the others and the last are whole."""
    entries = [msgspec.convert(one, Entry) for one in explained["decisions"]]
    zone = ZoneInfo(explained["timezone"])
    state = "paused" if explained["paused"] else explained["mode"]
    sizes = ", ".join(f"{layer} {size}" for layer, size in explained["observed"].items())
    lines = [f"policy {explained['policy']}, {state}; {sizes or 'no signals yet'}"]
    if explained["requested"]:
        wanted = ", ".join(f"{layer} {size}" for layer, size in explained["requested"].items())
        lines.append(f"requested: {wanted}")
    if not entries:
        lines.append("no decision yet")
    for place, entry in enumerate(entries):
        whole = bool(entry.decision.targets or entry.decision.notes) or place == len(entries) - 1
        lines += ["", *_entry(entry, zone, whole)]
    return "\n".join(lines)


def _entry(entry: Entry, zone: ZoneInfo, whole: bool) -> list[str]:
    decision = entry.decision
    at = datetime.fromtimestamp(decision.at_s, zone).strftime("%Y-%m-%d %H:%M:%S")
    since = "" if entry.repeats < 2 else f" (as for {decision.at_s - entry.since_s:.0f} s, {entry.repeats} times)"
    lines = [f"{at} {_result(entry)}{since}"]
    if not whole:
        return lines
    lines.append(f"  seen: {_seen(decision)}")
    lines += [f"  found: {note}" for note in decision.notes]
    for layer in decision.layers:
        lines += _layer(layer)
    return lines


def _result(entry: Entry) -> str:
    decision = entry.decision
    if not decision.targets:
        return f"held: {decision.held}" if decision.held else "stays"
    sizes = {one.layer: one.size for one in decision.layers}
    text = ", ".join(f"{layer} {sizes[layer]} -> {target}" for layer, target in decision.targets.items())
    operation = "" if entry.operation is None else f" (operation {entry.operation})"
    reason = f": {entry.reason}" if entry.reason else ""
    return f"{text}; {entry.outcome or 'decided'}{operation}{reason}"


def _seen(decision: Decision) -> str:
    parts = []
    if decision.rate is not None:
        parts.append(f"{decision.rate:,.0f} publications/s")
    else:
        parts.append("no publication rate")
    if decision.forecast_rate is not None:
        parts.append(f"{decision.forecast_rate:,.0f}/s ahead")
    for name, value in decision.slo_ms.items():
        left = decision.slo_left.get(name)
        budget = "" if left is None else f" (budget left {left:.0%})"
        parts.append(f"{name} {value:.3g} ms{budget}")
    cost, target = decision.cost_per_hour, decision.target_cost_per_hour
    if cost or target:
        change = "" if cost == target else f" -> {target:.4g}"
        parts.append(f"{cost:.4g}{change} {decision.currency}/h")
    return ", ".join(parts)


def _layer(decision: LayerDecision) -> list[str]:
    arrow = "stays" if decision.target == decision.size else f"-> {decision.target}"
    lines = [f"  {decision.layer} {decision.size} {arrow}"]
    estimate = decision.estimate
    if estimate.utilization is not None and estimate.capacity_per_s is not None and estimate.efficiency is not None:
        serial = "" if estimate.karp_flatt is None else f", Karp-Flatt {estimate.karp_flatt:.2f}"
        lines.append(
            f"    model      utilization {estimate.utilization:.0%} of {estimate.capacity_per_s:,.0f}/s, "
            f"efficiency {estimate.efficiency:.2f}{serial}"
        )
        lines.append(f"    rests on   {estimate.rests_on}")
    elif estimate.rests_on:
        lines.append(f"    model      says nothing yet: {estimate.rests_on}")
    for proposal in decision.proposals:
        wish = "missing" if proposal.wish is None else f"{proposal.wish:.3g}"
        lines.append(f"    wish       {proposal.trigger}: {wish}, {proposal.reason}")
    lines += [f"    {line}" for line in _stages(decision.stages)]
    if decision.target <= decision.size:
        lines.append(f"    why not more: {decision.why_not_more}")
    if decision.target >= decision.size:
        lines.append(f"    why not less: {decision.why_not_less}")
    return lines


def _stages(stages: Sequence[Stage]) -> list[str]:
    """Return the stages in order; those that passed the whole number on are named together."""
    lines: list[str] = []
    passed: list[str] = []

    def flush() -> None:
        if passed:
            lines.append(f"passed     {', '.join(passed)}")
            passed.clear()

    for stage in stages:
        if stage.name != "triggers" and math.ceil(stage.after - HAIR) == math.ceil(stage.before - HAIR):
            passed.append(stage.name)
            continue
        flush()
        blocked = f" [{stage.blocked}]" if stage.blocked else ""
        change = f"{stage.after:.3g}" if stage.name == "triggers" else f"{stage.before:.3g} -> {stage.after:.3g}"
        lines.append(f"{stage.name:<10} {change}{blocked}: {stage.reason}")
    flush()
    return lines
