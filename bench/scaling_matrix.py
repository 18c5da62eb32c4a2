"""Every layer out and in, under one load a size; and the tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import sys
from collections.abc import Sequence
from typing import Any

from bench.scaling_report import all_figures, failed
from bench.scaling_run import Change, drive, make_material

START = {"connection_points": 1, "access_points": 1, "matchers": 1, "exit_points": 1}

CHANGES = [
    Change("matchers 1->2", {"matchers": 2}),
    Change("matchers 2->1", {"matchers": 1}),
    Change("matchers 1->3", {"matchers": 3}),
    Change("replace a matcher of 3", replace="matcher"),
    Change("matchers 3->1", {"matchers": 1}),
    Change("exit points 1->2", {"exit_points": 2}),
    Change("exit points 2->1", {"exit_points": 1}),
    Change("access points 1->2", {"access_points": 2}),
    Change("access points 2->1", {"access_points": 1}),
    Change("connection points 1->2", {"connection_points": 2}),
    Change("connection points 2->1", {"connection_points": 1}),
    Change("matchers and exit points 1->2", {"matchers": 2, "exit_points": 2}),
]
"""Each begins where the one before it ended."""

COLUMNS = (
    ("change", "change"),
    ("subscriptions", "subscriptions"),
    ("state", "state"),
    ("delay p50 / p99 before, ms", "delay_before_ms p50 p99"),
    ("during", "delay_during_ms p50 p99"),
    ("moving", "delay_moving_ms p50 p99"),
    ("longest gap before, ms", "longest_gap_before_ms"),
    ("during", "longest_gap_ms"),
    ("moving", "longest_gap_moving_ms"),
    ("subscribe ack p99 before, ms", "subscribe_ack_before_ms p99"),
    ("during", "subscribe_ack_ms p99"),
    ("parked", "parked_publications_max"),
    ("groups moved (minimum)", "groups_moved (groups_minimum)"),
    ("entries", "entries"),
    ("kB", "bytes"),
    ("view changes", "view_changes"),
    ("start, s", "start_s"),
    ("moving, s", "moving_s"),
    ("wrong", "wrong"),
)
"""Heading, and what is below it; `wrong` is lost + doubled + out of order + oracle differences."""


def run(options: argparse.Namespace, strategy: str) -> int:
    """Carry out the matrix and print it; 1 if anything went wrong."""
    rows: list[dict[str, Any]] = []
    for subscriptions in options.matrix_subscriptions:
        own = copy.copy(options)
        own.subscriptions = subscriptions
        material = make_material(own)
        with contextlib.redirect_stdout(sys.stderr):  # Ray tells there of a process that was ended
            traffic, seen = asyncio.run(drive(own, material, START, CHANGES, strategy))
        rows += all_figures(own, material, traffic, seen, strategy)
        if options.json:
            for row in rows[-len(seen) :]:
                print(json.dumps(row), flush=True)
    if not options.json:
        print(f"{options.publish_rate:g} publications/s, {options.subscribe_rate:g} subscribe requests/s, {strategy}\n")
        print(table(rows))
        for trouble in sorted({text for row in rows for text in row["trouble"] + row["examples"]}):
            print(f"\ntrouble: {trouble}")
    complete = len(rows) == len(CHANGES) * len(options.matrix_subscriptions)
    return 0 if complete and not any(failed(row) for row in rows) else 1


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table, a line a change."""
    lines = [
        f"| {' | '.join(heading for heading, _ in COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
    ]
    lines += [f"| {' | '.join(_cell(row, key) for _, key in COLUMNS)} |" for row in rows]
    return "\n".join(lines)


def _cell(row: dict[str, Any], key: str) -> str:
    if key == "wrong":
        return str(sum(row[name] for name in ("lost", "doubled", "out_of_order", "oracle_differences")))
    if key == "bytes":
        return f"{row['bytes'] / 1000:,.0f}"
    if key == "groups_moved (groups_minimum)":
        return f"{row['groups_moved']} ({row['groups_minimum']})"
    name, *quantiles = key.split()
    values = [row[name][one] for one in quantiles] if quantiles else [row[name]]
    return " / ".join(shown(value) for value in values)


def shown(value: Any) -> str:
    """Return a figure as people read it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table with a line a figure and a column a run."""
    lines = [["", *(row["strategy"] for row in rows)]]
    for name, first in rows[0].items():
        if name in ("strategy", "environment", "trouble", "steps", "examples") or (
            name == "reason" and not any(row[name] for row in rows)
        ):
            continue
        if isinstance(first, dict):
            for part in dict.fromkeys(part for row in rows for part in row[name]):
                lines.append([f"{name} {part}", *(shown(row[name].get(part)) for row in rows)])
        else:
            lines.append([name, *(shown(row[name]) for row in rows)])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    text = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    text.append(", ".join(f"{key} {value}" for key, value in rows[0]["environment"].items()))
    text += [f"{row['strategy']}: {trouble}" for row in rows for trouble in row["trouble"] + row["examples"]]
    return "\n".join(text)
