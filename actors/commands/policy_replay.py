"""`kittiwake autoscaler replay`: policies on recorded signals, side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from actors.commands.options import json_option, plural


@click.command(short_help="Try policies on recorded signals.")
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...", type=click.Path(dir_okay=False))
@click.option(
    "--on",
    "recording",
    required=True,
    type=click.Path(),
    metavar="RECORDING",
    help="A Parquet file of recorded signals, or a folder of them.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw load, sizes and delay over time."
)
@json_option
def replay(policies: tuple[str, ...], recording: str, plot: str | None, as_json: bool) -> None:
    """Tell what each POLICY would have done on the signals that a cluster has recorded, and what would have come of it.

    All are judged by the first one's objectives and prices. What the cluster did itself stands above them. Where a
    policy's sizes are the recorded ones its figures are measured, elsewhere a model fitted to the recording predicts
    them; how much of which is said, and how sure the model is. A policy's mode and pause are passed over: it acts.

    \b
    kittiwake autoscaler replay configs/autoscaler.yaml configs/cost-first.yaml --on signals/ --plot replay.png
    """
    from actors.recording import Recording
    from autoscaler.policy_file import load_policy
    from autoscaler.replay import fit, recorded
    from autoscaler.replay import replay as replayed
    from cluster.errors import KittiwakeError

    loaded = [load_policy(path) for path in policies]
    source = Recording(recording)
    plant = fit(source)
    if plant is None:
        raise KittiwakeError(f"{recording}: there is no interval in it")
    runs = [recorded(source, plant, loaded[0])]
    with click.progressbar(length=plant.intervals * len(loaded), label="replay", file=sys.stderr) as bar:
        for path, policy in zip(policies, loaded, strict=True):
            run = replayed(policy, source, plant, loaded[0], lambda: bar.update(1))
            if any(other.name == run.name for other in runs):
                run.name = run.trace.name = f"{run.name} ({Path(path).name})"
            runs.append(run)
    document = report(runs, plant, recording, loaded[0])
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines(document)))
    if plot is not None:
        from actors.scaling_plot import draw

        delays = [one.target for one in loaded[0].slo if one.metric == "notification_delay_ms"]
        try:
            draw([run.trace for run in runs], plot, target_ms=min(delays, default=None))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--plot") from error


def report(runs: list[Any], plant: Any, recording: str, yardstick: Any) -> dict[str, Any]:
    """Return everything that is known, as JSON has it; times in seconds where no unit is named."""
    from autoscaler.signals import LAYERS

    return {
        "recording": {
            "path": recording,
            "intervals": plant.intervals,
            "first_s": plant.first_s,
            "last_s": plant.last_s,
            "operations": plant.operations,
            "operation_s": plant.operation_s,
            "saturated_s": plant.saturated_s,
            "delays_s": plant.delays_s,
        },
        "model": {
            "error": None if plant.error == float("inf") else plant.error,
            "words": plant.words,
            "coefficients": plant.capacity.model.coefficients(),
            "sizes": [
                {
                    "sizes": one.sizes,
                    "observations": one.observations,
                    "capacity_per_s": one.capacity,
                    "speedup": one.speedup,
                    "efficiency": one.efficiency,
                    "karp_flatt": one.karp_flatt,
                    "base": one.base,
                }
                for one in plant.capacity.figures()
            ],
        },
        "judged_by": yardstick.metadata.name,
        "currency": yardstick.cost.currency,
        "runs": [
            {
                "name": run.name,
                "transitions": run.card.transitions,
                "steps": run.card.steps,
                "oscillations": run.card.oscillations,
                "slo_minutes_missed": run.card.missed_minutes,
                "late_values": {name: round(count) for name, count in run.card.late.items()},
                "replica_hours": {layer: run.card.replica_hours[layer] for layer in LAYERS},
                "cost": run.card.cost,
                "measured_s": run.measured_s,
                "predicted_s": run.predicted_s,
                "waited_s": run.waited_s,
            }
            for run in runs
        ],
    }


def lines(document: dict[str, Any]) -> list[str]:
    """Return the report for people."""
    recording, model = document["recording"], document["model"]
    minutes = (recording["last_s"] - recording["first_s"]) / 60
    head = f"{recording['path']}: {plural(recording['intervals'], 'interval')}, {minutes:,.0f} minutes"
    names = [run["name"] for run in document["runs"]]
    objectives = list(document["runs"][0]["slo_minutes_missed"])
    rows: list[tuple[str, list[str]]] = [
        ("transitions", [f"{run['transitions']:,}" for run in document["runs"]]),
        ("replicas started or stopped", [f"{run['steps']:,}" for run in document["runs"]]),
        ("oscillations", [f"{run['oscillations']:,}" for run in document["runs"]]),
    ]
    for name in objectives:
        missed = [f"{run['slo_minutes_missed'][name]:,.1f}" for run in document["runs"]]
        rows.append((f"minutes missed: {name}", missed))
    rows.append(("replica hours", [f"{sum(run['replica_hours'].values()):,.2f}" for run in document["runs"]]))
    for layer in document["runs"][0]["replica_hours"]:
        hours = [f"{run['replica_hours'][layer]:,.2f}" for run in document["runs"]]
        rows.append((f"  {layer.replace('_', ' ')}s", hours))
    rows.append((f"cost, {document['currency']}", [f"{run['cost']:,.2f}" for run in document["runs"]]))
    rows.append(("of the time predicted", [_share(run) for run in document["runs"]]))
    label = max(len(name) for name, _ in rows)
    widths = [max(len(name), *(len(values[place]) for _, values in rows)) for place, name in enumerate(names)]
    table = ["  ".join([" " * label, *(name.rjust(width) for name, width in zip(names, widths, strict=True))])]
    for name, values in rows:
        table.append("  ".join([name.ljust(label), *(v.rjust(w) for v, w in zip(values, widths, strict=True))]))
    return [
        head,
        f"judged by the objectives and prices of {document['judged_by']}",
        "",
        *table,
        "",
        *_caveats(document, model),
    ]


def _share(run: dict[str, Any]) -> str:
    total = run["measured_s"] + run["predicted_s"]
    return f"{run['predicted_s'] / total:.0%}" if total else "-"


def _caveats(document: dict[str, Any], model: dict[str, Any]) -> list[str]:
    recording = document["recording"]
    how = (
        f"the median of {plural(recording['operations'], 'operation')} in it"
        if recording["operations"]
        else "assumed, as none was recorded"
    )
    found = [
        "What was predicted comes from a capacity model fitted to the recording, not from a cluster.",
        f"Its figures: {model['words']}. An operation takes {recording['operation_s']:.1f} s, {how}.",
    ]
    if recording["saturated_s"]:
        found.append(
            f"For {recording['saturated_s']:,.0f} s a slice was saturated: publishers may have wanted more than was "
            "recorded then, and larger sizes would look better than they are."
        )
    waited = [f"{run['name']} {run['waited_s']:,.0f} s" for run in document["runs"] if run["waited_s"]]
    if waited:
        found.append(
            f"Publications would have waited for more than a second under {', '.join(waited)}: a cluster would have "
            "held its publishers back, where these figures let the delay grow."
        )
    if not recording["delays_s"]:
        found.append("No delays were recorded, so nothing is known of the objectives.")
    return found
