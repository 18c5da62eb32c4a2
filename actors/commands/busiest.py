"""`kittiwake busiest`: which subscriptions cost most."""

from __future__ import annotations

import json
from typing import Any

import click

from actors.commands.operations import table
from actors.commands.options import config_option, json_option
from actors.commands.running import run
from cluster.config import load_config


@click.command(short_help="Show which subscriptions most notifications are for.")
@click.option("--top", default=20, show_default=True, type=click.IntRange(1, 50), help="How many to show.")
@json_option
@config_option
def busiest(top: int, config_path: str | None, as_json: bool) -> None:
    """Show the subscriptions that match most often; what a subscription costs grows with that.

    From a sample at each matcher, which fades: subscriptions with less than about one in a thousand of its matches are
    not seen.

    \b
    kittiwake busiest
    kittiwake busiest --top 5 --json
    """
    config = load_config(config_path)

    async def ask(_: Any) -> dict[str, Any]:
        from actors.asking import open_admin

        return await open_admin(config).busiest(top)

    document = run(ask)
    click.echo(json.dumps(document, indent=2) if as_json else describe(document))


def describe(document: dict[str, Any]) -> str:
    """Return the answer as text: a table, and what it is a part of."""
    rows: list[tuple[str, ...]] = [("CLIENT", "SUBSCRIPTION", "MATCHER", "SHARE", "MATCHES/S")]
    for one in document["subscriptions"]:
        rows.append(
            (
                one["client_id"] or "(not connected)",
                str(one["subscription"]),
                str(one["matcher"]),
                f"{one['share']:.1%}",
                f"{one['hits_per_s']:,.0f}",
            )
        )
    lines = [f"{document['hits_per_s']:,.0f} matches/s in all"]
    if len(rows) > 1:
        lines.append(table(rows))
    if document["missing"]:
        lines.append(f"nothing reported yet: {', '.join(document['missing'])}")
    return "\n".join(lines)
