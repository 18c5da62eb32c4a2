"""Load, sizes and delay over time, a policy a column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.autoscale_pattern import Points
from bench.autoscale_report import deliveries, per_second
from bench.autoscale_run import Run
from cluster.messages import DATA_LAYERS

COLOURS = {
    "connection_point": "#8c6d31",
    "access_point": "#2a7f62",
    "matcher": "#1f4e9c",
    "exit_point": "#b02a2a",
}


def draw(runs: Sequence[Run], points: Points, target_ms: float, title: str, path: Path) -> None:
    """Draw to a file. Above the load, then the sizes of each layer, below the delay of what was due in each second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplots(
        3, len(runs), figsize=(1.5 + 4.5 * len(runs), 7.5), sharex="col", sharey="row", squeeze=False
    )
    times, rates = zip(*points, strict=True)
    for column, run in enumerate(runs):
        above, sizes, delay = axes[0][column], axes[1][column], axes[2][column]
        seconds = run.end - run.begin
        above.plot(times, rates, color="0.35")
        above.set_title(run.policy.metadata.name)
        ends = [at - run.begin for at, _ in run.sizes[1:]] + [seconds]
        for place, layer in enumerate(DATA_LAYERS):
            values = [row[layer] for _, row in run.sizes]
            lift = 0.04 * (place - 1.5)  # or equal sizes would hide each other
            begins = [at - run.begin for at, _ in run.sizes]
            sizes.step([*begins, ends[-1]], [value + lift for value in (*values, values[-1])], where="post",
                       color=COLOURS[layer], label=layer.replace("_", " ") + "s")  # fmt: skip
        sizes.yaxis.set_major_locator(MaxNLocator(integer=True))
        due, arrival = deliveries(run)
        middles = np.arange(int(np.ceil(seconds))) + 0.5
        for quantile, label, colour in ((0.5, "p50", "#1f4e9c"), (0.99, "p99", "#b02a2a")):
            values_ms = per_second(due, arrival - due, quantile, seconds)
            delay.plot(middles[: len(values_ms)], values_ms, color=colour, linewidth=1.2, label=label)
        delay.axhline(target_ms, color="0.3", linewidth=0.8, linestyle=":")
        delay.set_yscale("log")
        delay.set_xlabel("seconds")
    axes[0][0].set_ylabel("publications per second")
    axes[0][0].set_ylim(bottom=0)
    axes[1][0].set_ylabel("slices")
    axes[1][0].set_ylim(bottom=0)
    axes[2][0].set_ylabel("delay from due, ms")
    axes[1][0].legend(loc="upper left", fontsize=7)
    axes[2][0].legend(loc="upper left", fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
