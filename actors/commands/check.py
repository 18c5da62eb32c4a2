"""`kittiwake check`: what a filter means, and what of a file it would match. Needs no cluster."""

from __future__ import annotations

import click

from actors.commands.failures import Failure, show_filter_error
from actors.commands.options import plural
from actors.commands.troubles import show_troubles
from cluster.errors import FilterError
from cluster.language import parse
from cluster.readings import FORMATS, open_readings


@click.command(short_help="Check a filter, and try it on a file.")
@click.argument("filter", metavar="FILTER")
@click.option("--against", type=click.Path(), metavar="PATH", help="Count what it matches in a file or folder.")
@click.option("--format", type=click.Choice(FORMATS), help="The format of PATH; without it, what its name says.")
@click.pass_context
def check(ctx: click.Context, filter: str, against: str | None, format: str | None) -> None:
    """Check FILTER as a cluster with default limits would: print it in its canonical spelling, its normal form (it
    matches when one of the lines holds), and its cost.

    A filter that is refused gives exit code 1, the reason, and a caret under the place. So do lines of PATH that
    cannot be read.

    \b
    kittiwake check 'no2 > 40 and station starts_with "Pza"'
    kittiwake check 'not (no2 <= 40)' --against readings.jsonl
    """
    try:
        parsed = parse(filter)
    except FilterError as error:
        raise Failure(show_filter_error(filter, error)) from error
    click.echo(f"filter:  {parsed.text}")
    click.echo("normal:  " + parsed.describe().replace("\n", "\n      or "))
    click.echo(f"cost:    {parsed.cost}")
    if against is None:
        return
    readings = open_readings(against, format)
    matching = sum(map(parsed.matches, readings))
    report = readings.report
    share = f" ({100 * matching / report.published:.3g} %)" if report.published else ""
    click.echo(f"matches: {matching:,} of {plural(report.published, 'reading')}{share}")
    show_troubles(report)
    ctx.exit(1 if report.faults else 0)
