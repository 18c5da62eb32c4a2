"""From what was seen under a policy to its figures."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np

from autoscaler.gates import cost_per_hour
from bench.autoscale_run import Material, Run
from bench.scaling_figures import Floats, quantiles_ms
from bench.scaling_oracle import Verdict, judge, strangers

BIN_S = 1.0


def deliveries(run: Run) -> tuple[Floats, Floats]:
    """Return when each notification was due and when it came; seconds from the beginning."""
    due, arrival = [np.zeros(0)], [np.zeros(0)]
    for rows in run.logs:
        known = (rows.number >= 0) & (rows.number < len(run.due))
        due.append(run.due[rows.number[known]] - run.begin)
        arrival.append(rows.time[known] - run.begin)
    return np.concatenate(due), np.concatenate(arrival)


def per_second(due: Floats, delay: Floats, quantile: float, seconds: float) -> Floats:
    """Return the quantile (in ms) of what was due in each second; not a number where nothing was."""
    bins = max(1, int(np.ceil(seconds / BIN_S)))
    found = np.full(bins, np.nan)
    place = np.minimum((due / BIN_S).astype(np.int64), bins - 1)
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(bins + 1))
    for number in range(bins):
        values = delay[order[edges[number] : edges[number + 1]]]
        if len(values):
            found[number] = np.quantile(values, quantile) * 1e3
    return found


def replica_hours(run: Run) -> dict[str, float]:
    """Return for how many hours there were slices, by layer."""
    total: dict[str, float] = {}
    ends = [at for at, _ in run.sizes[1:]] + [run.end]
    for (at, sizes), until in zip(run.sizes, ends, strict=True):
        for layer, size in sizes.items():
            total[layer] = total.get(layer, 0.0) + size * max(0.0, until - max(at, run.begin)) / 3600
    return {layer: round(hours, 4) for layer, hours in total.items()}


def oscillations(run: Run) -> int:
    """Return how often a layer's size turned back within two minutes of the change before."""
    count = 0
    for layer in run.sizes[0][1]:
        changes: list[tuple[float, int]] = []
        for (_, before), (at, after) in itertools.pairwise(run.sizes):
            if (by := after[layer] - before[layer]) != 0:
                changes.append((at, by))
        count += sum(1 for (at, by), (then, other) in itertools.pairwise(changes) if by * other < 0 and then - at < 120)
    return count


def first_reaction_s(run: Run) -> float:
    """Return when the first growth was done, in seconds from the beginning; 0 if there was none."""
    for (_, before), (at, after) in itertools.pairwise(run.sizes):
        if any(after[layer] > before[layer] for layer in after):
            return at - run.begin
    return 0.0


def changes(run: Run) -> list[dict[str, Any]]:
    """Return the autoscaler's decisions that were done: from the beginning on, by layer from and to what, and which
    triggers wished most; explain's last `autoscaler.controller.KEPT` decisions are looked at.
    """
    found = []
    for entry in run.explained.get("decisions", ()):
        decision = entry["decision"]
        if entry["outcome"] != "done":
            continue
        layers = {}
        for one in decision["layers"]:
            if one["layer"] in decision["targets"]:
                wishes = [each for each in one["proposals"] if each["wish"] is not None]
                best = max((each["wish"] for each in wishes), default=None)
                layers[one["layer"]] = {
                    "from": one["size"],
                    "to": decision["targets"][one["layer"]],
                    "triggers": [each["trigger"] for each in wishes if each["wish"] == best],
                }
        found.append({"operation": entry["operation"], "rate": decision["rate"], "layers": layers})
    return found


def figures_of(options: argparse.Namespace, material: Material, run: Run) -> dict[str, Any]:
    """Return the figures of one run."""
    due, arrival = deliveries(run)
    delay = arrival - due
    verdict = Verdict()
    for client, rows in enumerate(run.logs):
        verdict.add(judge(rows, client, material.expected, 0, len(run.due)))
    ids = np.unique(material.expected.ids)
    foreign = sum(strangers(rows, len(run.due), ids) for rows in run.logs)
    seconds = run.end - run.begin
    p99 = per_second(due, delay, 0.99, seconds)
    reaction = first_reaction_s(run)
    hours = replica_hours(run)
    cost = run.policy.cost
    done = [one for one in run.operations if one["state"] == "done"]
    return {
        "policy": run.policy.metadata.name,
        "pattern": options.pattern,
        "config": None if options.config is None else options.config.name,
        "seconds": round(seconds, 1),
        "quicken": options.quicken,
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "published": len(run.due),
        "notifications": len(delay),
        "delay_ms": quantiles_ms(delay),
        "first_reaction_s": round(reaction, 2),
        "delay_after_first_reaction_ms": quantiles_ms(delay[due >= reaction]),
        "late_share_after_first_reaction": _share(delay[due >= reaction] * 1e3 > options.target_ms),
        "target_ms": options.target_ms,
        "seconds_missed": int(np.nansum(p99 > options.target_ms)),
        "late_share": _share(delay * 1e3 > options.target_ms),
        "transitions": len(done),
        "not_done": len(run.operations) - len(done),
        "oscillations": oscillations(run),
        "sizes_most": {layer: max(sizes[layer] for _, sizes in run.sizes) for layer in run.sizes[0][1]},
        "sizes_last": run.sizes[-1][1],
        "replica_hours": hours,
        "cost": round(cost_per_hour(cost, hours), 5),  # type: ignore[arg-type]
        "currency": cost.currency,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "out_of_order": verdict.out_of_order,
        "oracle_differences": verdict.differences + foreign,
        "examples": verdict.examples,
        "trouble": run.trouble,
        "publisher_late_ms": quantiles_ms(run.handed - run.due),
        "changes": changes(run),
        "sizes": [[round(at - run.begin, 2), sizes] for at, sizes in run.sizes],
    }


def _share(late: Any) -> float | None:
    return round(float(late.mean()), 6) if len(late) else None


def failed(figures: dict[str, Any]) -> bool:
    """Tell whether anything was lost, doubled, out of order or wrong."""
    return any(figures[name] for name in ("lost", "doubled", "out_of_order", "oracle_differences", "trouble"))


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table, a policy a line."""
    head = ("POLICY", "P50 MS", "P99 MS", "AFTER 1ST", "MISSED S", "TRANSITIONS", "TURNS", "REPLICA H", "COST", "LOST")
    cells = [head]
    for row in rows:
        delay, after = row["delay_ms"], row["delay_after_first_reaction_ms"]
        cells.append(
            (
                row["policy"],
                _number(delay["p50"]),
                _number(delay["p99"]),
                _number(after["p99"]),
                str(row["seconds_missed"]),
                str(row["transitions"]),
                str(row["oscillations"]),
                f"{sum(row['replica_hours'].values()):.3f}",
                f"{row['cost']:.4g}",
                str(row["lost"]),
            )
        )
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
