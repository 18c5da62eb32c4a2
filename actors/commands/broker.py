"""`kittiwake up` and `kittiwake status`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from actors.commands.failures import Interrupted
from actors.commands.operations import describe_operation, table
from actors.commands.options import config_option, json_option, plural
from actors.commands.running import Signals, run
from cluster.config import Config, load_config
from cluster.errors import KittiwakeError

WATCH_S = 1.0
"""Between two looks at the cluster while `up` keeps it."""


@click.command(short_help="Start a cluster and keep it up.")
@config_option
def up(config_path: str | None) -> None:
    """Start a cluster and keep it up until SIGINT (Ctrl-C) or SIGTERM, which end it cleanly; a second one, at once.

    Prints one line for each connection point, its URL, when clients can connect; on stderr, which processes are lost.

    \b
    kittiwake up
    kittiwake up --config configs/cluster.yaml
    """
    config = load_config(config_path)
    try:
        run(lambda signals: _up(config, signals))
    except Interrupted:
        click.echo("kittiwake: down", err=True)


async def _up(config: Config, signals: Signals) -> None:
    from actors.launch import launch

    click.echo(f"kittiwake: starting cluster {config.name!r}", err=True)
    async with launch(config) as broker:
        signals.arm()
        for endpoint in broker.endpoints:
            click.echo(endpoint)
        click.echo("kittiwake: up; Ctrl-C ends it", err=True)
        known: set[str] = set()
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                troubles = [f"lost {name}" for name in lost_members(await broker.status())]
            except KittiwakeError as error:
                troubles = [str(error)]  # Ray starts it anew; data flows meanwhile
            for trouble in troubles:
                if trouble not in known:
                    known.add(trouble)
                    click.echo(f"kittiwake: {trouble}", err=True)


@click.command(short_help="Show how a running cluster is.")
@config_option
@json_option
@click.pass_context
def status(ctx: click.Context, config_path: str | None, as_json: bool) -> None:
    """Show the state of the cluster that runs on this machine, and each of its processes.

    Exit code 0 if all of it serves, 1 if a process is lost, the cluster is not serving, or none runs.

    \b
    kittiwake status
    kittiwake status --config configs/cluster.yaml --json
    """
    config = load_config(config_path)
    document = run(lambda _: _read(config))
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(describe(document))
    ctx.exit(0 if document.get("state") == "serving" and not document.get("lost") else 1)


async def _read(config: Config) -> dict[str, Any]:
    from actors.launch import read_status

    return await read_status(config)


def lost_members(document: dict[str, Any]) -> list[str]:
    """Return the processes that a status document says are lost, such as `matcher 0`."""
    return [f"{row['layer']} {row['slot']}" for row in document.get("members", []) if row.get("state") == "lost"]


def describe(document: dict[str, Any]) -> str:
    """Return the status document as text: a summary and a line for each slot."""
    summary = [f"cluster {document.get('name')}: {document.get('state')}", f"view {document.get('epoch')}"]
    if "sessions" in document:
        summary.append(plural(document["sessions"], "client"))
    if document.get("lost"):
        summary.append(f"{plural(document['lost'], 'process')} LOST".replace("processs", "processes"))
    lines = [", ".join(summary)]
    operation = document.get("operation")
    if operation is not None and operation["state"] == "running":
        lines.append(describe_operation(operation))
    rows: list[tuple[str, ...]] = [("LAYER", "SLOT", "STATE", "PID", "CLIENTS CONNECT TO", "COUNTERS")]
    for member in document.get("members", []):
        counters = " ".join(f"{name}={count:,}" for name, count in member.get("counters", {}).items() if count)
        rows.append(
            (
                str(member.get("layer")),
                str(member.get("slot")),
                str(member.get("state")),
                str(member.get("pid", "-")),
                str(member.get("client_address") or "-"),
                counters or "-",
            )
        )
    return "\n".join([*lines, table(rows)])
