"""`kittiwake autoscaler`: what it decided and why, and how to hold it."""

from __future__ import annotations

import json
from typing import Any

import click

from actors.commands import capacity_plan, policy_replay
from actors.commands.options import config_option, json_option
from actors.commands.scale import ask


@click.group(short_help="Ask the autoscaler for its reasons; pause it.")
def autoscaler() -> None:
    """The autoscaler of a running cluster: what it decided and why, and how to hold it.

    \b
    kittiwake autoscaler explain
    kittiwake autoscaler pause
    """


@autoscaler.command(short_help="Show the last decisions and their reasons.")
@click.option("-n", "count", type=click.IntRange(1, 500), default=5, show_default=True, help="How many decisions.")
@config_option
@json_option
def explain(config_path: str | None, count: int, as_json: bool) -> None:
    """Show the last decisions, oldest first: what was seen, what each trigger wished, what each stage made of it, what
    came of it, and why not more and not fewer. Decisions in a row that say the same are shown once, and those that
    changed nothing, but for the newest, as one line.

    \b
    kittiwake autoscaler explain
    kittiwake autoscaler explain -n 1 --json
    """
    _show(ask(config_path, lambda admin: admin.autoscaler("explain", count=count)), as_json)


@autoscaler.command(short_help="Freeze the sizes.")
@config_option
@json_option
def pause(config_path: str | None, as_json: bool) -> None:
    """Have the autoscaler change nothing until `kittiwake autoscaler resume`, restarts included. An operation that runs
    goes on; `kittiwake scale` works as ever.
    """
    _show(ask(config_path, lambda admin: admin.autoscaler("pause")), as_json, short=True)


@autoscaler.command(short_help="End a pause.")
@config_option
@json_option
def resume(config_path: str | None, as_json: bool) -> None:
    """End a pause, the policy's own as well."""
    _show(ask(config_path, lambda admin: admin.autoscaler("resume")), as_json, short=True)


@autoscaler.command(short_help="Have it act, advise, or do nothing.")
@click.argument("mode", type=click.Choice(["auto", "advise", "manual"]))
@config_option
@json_option
def mode(config_path: str | None, mode: str, as_json: bool) -> None:
    """auto acts; advise decides and says so in metrics and `explain`, and does nothing; manual does not even decide.

    Holds in place of the policy's mode until it is changed again, restarts included.
    """
    _show(ask(config_path, lambda admin: admin.autoscaler("mode", mode=mode)), as_json, short=True)


autoscaler.add_command(policy_replay.replay)
autoscaler.add_command(capacity_plan.plan)


def _show(document: dict[str, Any], as_json: bool, *, short: bool = False) -> None:
    from autoscaler.explain import text_of

    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    text = text_of({**document, "decisions": []} if short else document)
    click.echo(text.splitlines()[0] if short else text)
    if document["trouble"]:
        click.echo(f"kittiwake: the autoscaler failed and was begun anew: {document['trouble']}", err=True)
