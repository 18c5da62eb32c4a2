"""The paper's Figure 13 for our runs: throughput and delay over time, with the phases of the change shaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.scaling_figures import Floats, Span, bin_quantiles, bins

SHADES = {"start": "0.93", "prepare": "#cfe8cf", "copy": "#ffe2b8", "switch": "#ffb3b3", "retire": "#cfd8f5"}
EDGE = 30
"""With more view changes than this, lines between them would hide what is drawn."""


@dataclass
class Run:
    """One strategy's run. begin, requested, done, end: of the change, on the clock of due and arrival."""

    name: str
    due: Floats
    arrival: Floats
    begin: float
    requested: float
    done: float
    end: float
    spans: list[Span]


def shades(spans: Sequence[Span], zero: float) -> list[tuple[float, float, str]]:
    """Return (begin, end, colour) of what is to be shaded, relative to `zero`; phases of no length are left out."""
    return [
        (span.begin - zero, span.end - zero, SHADES.get(span.phase, "#e0c0e0"))
        for span in spans
        if span.end > span.begin
    ]


def draw(runs: Sequence[Run], title: str, path: Path) -> None:
    """Draw the runs side by side: above what arrived a second, in bins of 100 ms, below the delays of each bin."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(
        2, len(runs), figsize=(1.5 + 5.5 * len(runs), 6.5), sharex="col", sharey="row", squeeze=False
    )
    for column, run in enumerate(runs):
        throughput, delay = axes[0][column], axes[1][column]
        window = (run.begin, run.end)
        for axis in (throughput, delay):
            for begin, end, colour in shades(run.spans, run.requested):
                axis.axvspan(begin, end, color=colour, linewidth=0)
            axis.axvline(0, color="0.3", linewidth=0.8, linestyle=":")
            axis.axvline(run.done - run.requested, color="0.3", linewidth=0.8, linestyle=":")
        begins, due = bins(run.due, window)
        _, arrived = bins(run.arrival, window)
        throughput.step(begins - run.requested, due, where="post", color="0.55", linewidth=1, label="due")
        throughput.step(begins - run.requested, arrived, where="post", color="#1f4e9c", label="delivered")
        throughput.set_title(run.name)
        for quantile, label, style in ((0.5, "p50", "-"), (0.99, "p99", "-"), (1.0, "max", ":")):
            middles, values = bin_quantiles(run.due, run.arrival - run.due, window, quantile)
            colour = {"p50": "#1f4e9c", "p99": "#b02a2a", "max": "#b02a2a"}[label]
            delay.plot(middles - run.requested, values * 1e3, style, color=colour, linewidth=1.2, label=label)
        delay.set_yscale("log")
        delay.set_xlabel("seconds from the request to scale")
    axes[0][0].set_ylabel("notifications per second")
    axes[0][0].set_ylim(bottom=0)
    axes[1][0].set_ylabel("delay from due, ms")
    axes[0][0].legend(loc="lower left", fontsize=8)
    axes[1][0].legend(loc="upper left", fontsize=8)
    seen = dict.fromkeys(span.phase for run in runs for span in run.spans if span.end > span.begin)
    figure.legend(
        handles=[Patch(color=SHADES.get(phase, "#e0c0e0"), label=phase) for phase in seen],
        loc="lower center",
        ncols=max(len(seen), 1),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    assert np.isfinite(figure.get_size_inches()).all()
