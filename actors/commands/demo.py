"""`kittiwake demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from actors.commands.options import config_option
from actors.commands.running import run


@click.command(short_help="See it work: a cluster, six subscribers, real or made-up readings.")
@click.option(
    "--data",
    type=click.Path(),
    metavar="DIR",
    help="Replay a folder in the format of Madrid's air-quality files; without it, made-up readings of a city.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Publish N readings; without it, 100,000 made-up ones or the whole folder.",
)
@click.option(
    "--report",
    "report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the matched output to DIR/output and, at the end, DIR/report.html on it.",
)
@config_option
@click.pass_context
def demo(ctx: click.Context, data: str | None, limit: int | None, report: Path | None, config_path: str | None) -> None:
    """Start a cluster on this machine, subscribe six clients with typical interests, publish readings at full speed,
    and compare what each got with what a plain evaluation of its filter says.

    Exit code 0 if every delivered set is equal, nothing came twice or out of order; else 1.

    With --report a seventh client wants everything, a matcher joins and leaves meanwhile, and Spark makes a page of
    what the cluster has written: a map, plots and tables of the readings, and the delay around each change.

    \b
    kittiwake demo
    kittiwake demo --data ../shared/data/madrid-air-2017 --report out/
    kittiwake demo --config configs/cluster.yaml --limit 500000
    """
    from actors.demo import demo as whole_demo
    from cluster.config import load_config

    config = None if config_path is None else load_config(config_path)
    if report is not None:
        from actors.commands.analyse import check_analytics
        from cluster.spark.jobs.options import folder_of

        check_analytics()  # before anything starts: what is missing is better said now
        folder_of(report)
    outcome = run(lambda signals: whole_demo(config, data, limit, signals, click.echo, report), fast=True)
    if report is not None:
        click.echo("\nanalysing what the cluster has written")
        click.echo(f"report: {write_report(report, data, outcome.operations).resolve()}")
    ctx.exit(0 if outcome.right else 1)


def write_report(folder: Path, data: str | None, operations: list[dict[str, Any]]) -> Path:
    """Make the page of the log that the demo has left below a folder; return its path."""
    from actors.commands.analyse import make_report
    from actors.commands.analyse_options import named_operations
    from actors.demo import OUTPUT
    from cluster.spark.jobs.limits import load_limits
    from cluster.spark.jobs.options import JobOptions
    from cluster.spark.jobs.readings import MADRID_COLUMNS, ReadingColumns
    from cluster.spark.jobs.running import Input

    columns = ReadingColumns() if data is None else MADRID_COLUMNS
    options = JobOptions(columns=columns, limits=load_limits(), k=5, operations=named_operations(operations)).check()
    title = "The air of Laro, a city that does not exist" if data is None else "The air of Madrid"
    return make_report(Input(path=str(folder / OUTPUT)), folder, options, title, "2g")
