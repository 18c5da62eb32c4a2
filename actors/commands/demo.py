"""`kittiwake demo`."""

from __future__ import annotations

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
@config_option
@click.pass_context
def demo(ctx: click.Context, data: str | None, limit: int | None, config_path: str | None) -> None:
    """Start a cluster on this machine, subscribe six clients with typical interests, publish readings at full speed,
    and compare what each got with what a plain evaluation of its filter says.

    Exit code 0 if every delivered set is equal, nothing came twice or out of order; else 1.

    \b
    kittiwake demo
    kittiwake demo --data ../shared/data/madrid-air-2017
    kittiwake demo --config configs/cluster.yaml --limit 500000
    """
    from actors.demo import demo as whole_demo
    from cluster.config import load_config

    config = None if config_path is None else load_config(config_path)
    ctx.exit(0 if run(lambda signals: whole_demo(config, data, limit, signals, click.echo), fast=True) else 1)
