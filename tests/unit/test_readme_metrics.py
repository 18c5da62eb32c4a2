"""The README's table of metrics is the list's; `python -m tests.unit.test_readme_metrics` prints it."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.messages import COORDINATOR
from cluster.metrics import METRICS, PREFIX, SLICE_LABELS, Metric

README = Path(__file__).parents[2] / "README.md"
SHORT = {"connection_point": "CP", "access_point": "AP", "matcher": "M", "exit_point": "EP", COORDINATOR: "C"}


def row(metric: Metric) -> str:
    labels = [label for label in metric.labels if label not in SLICE_LABELS or metric.labels[:2] != SLICE_LABELS]
    named = f" `{{{', '.join(labels)}}}`" if labels else ""
    layers = " ".join(SHORT[layer] for layer in metric.layers)
    return f"| `{metric.name.removeprefix(PREFIX)}`{named} | {metric.kind.value} | {layers} | {metric.help} |"


def table() -> str:
    """Return the table as it has to be."""
    return "\n".join(["| metric | kind | of | what |", "|---|---|---|---|", *map(row, METRICS)])


def test_the_table_is_that_of_the_list() -> None:
    found = re.search(
        r"<!-- metrics:begin -->\n(.*)\n<!-- metrics:end -->", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found, "the README has no table of metrics"
    assert found[1] == table()


if __name__ == "__main__":
    print(table())
