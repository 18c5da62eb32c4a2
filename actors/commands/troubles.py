"""Shows what of a source could not be used."""

from __future__ import annotations

import click

from actors.commands.options import plural
from cluster.readings import Report


def show_troubles(report: Report, *, err: bool = True) -> None:
    """List the rows and lines that could not be used, each with its place, and how many more there were."""
    for trouble in report.troubles:
        click.echo(str(trouble), err=err)
    more = report.trouble_count - len(report.troubles)
    if more:
        click.echo(f"and {more:,} more like these", err=err)


def describe_report(report: Report) -> str:
    """Return the report's counts as a sentence."""
    return (
        f"read {plural(report.values, 'value')} in {plural(report.rows, 'row')}, {report.valid:,} valid, "
        f"{report.published:,} taken; {plural(report.unused_rows, 'row')} could not be used"
    )
