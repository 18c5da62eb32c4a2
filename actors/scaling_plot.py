"""Runs of an autoscaler side by side: the load, the sizes of the layers, and the delay over time.

For `kittiwake autoscaler replay` and for `bench.autoscale`. What was predicted and not measured is shaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoscaler.replay import Point, Trace
from autoscaler.signals import LAYERS

COLOURS = dict(zip(LAYERS, ("#7a7a7a", "#2a7f9e", "#b02a2a", "#3f8f3f"), strict=True))
UNITS = (
    (3 * 86_400.0, 86_400.0, "days"),
    (3 * 3600.0, 3600.0, "hours"),
    (300.0, 60.0, "minutes"),
    (0.0, 1.0, "seconds"),
)
LEAST_MS = 0.5


def draw(traces: Sequence[Trace], path: Path | str, *, target_ms: float | None = None, title: str = "") -> None:
    """Write the figure; its format is that of the path's ending. Raises: OSError, ValueError for an unknown ending.

    target_ms: of the objective on the delay, for a line.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    traces = [trace for trace in traces if trace.points]
    if not traces:
        raise ValueError("there is nothing to draw")
    first = min(trace.points[0].at_s for trace in traces)
    span = max(trace.points[-1].at_s for trace in traces) - first
    unit, word = next((unit, word) for least, unit, word in UNITS if span >= least)
    figure, axes = pyplot.subplots(
        3, len(traces), figsize=(1.5 + 4.5 * len(traces), 7.5), sharex="all", sharey="row", squeeze=False
    )
    try:
        for column, trace in enumerate(traces):
            load, sizes, delay = (axes[row][column] for row in range(3))
            at = [(point.at_s - first) / unit for point in trace.points]
            for axis in (load, sizes, delay):
                for begin, end in predicted_spans(trace.points):
                    axis.axvspan((begin - first) / unit, (end - first) / unit, color="0.94", linewidth=0)
            load.plot(at, [_or_gap(point.rate) for point in trace.points], color="#1f4e9c", linewidth=1)
            for place, layer in enumerate(LAYERS):
                # Lines of equal sizes beside, not over each other.
                counts = [point.sizes[layer] + 0.06 * (place - 1.5) for point in trace.points]
                sizes.step(at, counts, where="post", color=COLOURS[layer], linewidth=1.3, label=layer.replace("_", " "))
            p99 = [
                max(LEAST_MS, value) if (value := _or_gap(point.p99_ms)) == value else value for point in trace.points
            ]
            delay.plot(at, p99, color="#1f4e9c", linewidth=1, label="p99")
            if target_ms is not None:
                delay.axhline(target_ms, color="#b02a2a", linewidth=0.8, linestyle=":", label="target")
            delay.set_yscale("log")
            delay.set_xlabel(word)
            load.set_title(trace.name)
        axes[0][0].set_ylabel("publications per second")
        axes[0][0].set_ylim(bottom=0)
        axes[1][0].set_ylabel("slices")
        axes[1][0].set_ylim(bottom=0)
        axes[2][0].set_ylabel("delay, ms")
        axes[1][0].legend(loc="upper left", fontsize=8)
        axes[2][0].legend(loc="upper left", fontsize=8)
        shaded = "shaded: predicted" if any(point.predicted for trace in traces for point in trace.points) else ""
        figure.suptitle("; ".join(filter(None, (title, shaded))), fontsize=10)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def predicted_spans(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return the stretches (begin, end) of what was predicted, in unix seconds."""
    spans: list[tuple[float, float]] = []
    begin: float | None = None
    for point in points:
        if point.predicted and begin is None:
            begin = point.at_s
        elif not point.predicted and begin is not None:
            spans.append((begin, point.at_s))
            begin = None
    if begin is not None:
        spans.append((begin, points[-1].at_s))
    return spans


def _or_gap(value: float | None) -> float:
    return float("nan") if value is None else value
