"""`kittiwake up` and `kittiwake status`."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import click

from actors.commands.failures import Interrupted
from actors.commands.operations import describe_operation, duration, table
from actors.commands.options import config_option, json_option, plural
from actors.commands.running import Signals, run
from cluster.config import Config, load_config
from cluster.errors import KittiwakeError

WATCH_S = 1.0
"""Between two looks at the cluster while `up` keeps it."""
SILENCE_S = 30.0
"""How long the coordinator may not answer, for example while Ray starts it anew; then Ray itself is held for lost."""

RAY_IS_GONE = (
    "Ray's control service does not answer: what runs goes on, what dies is not replaced, and Ray ends its nodes after "
    "a minute if it does not come back; `kittiwake up` goes on from {directory}"
)


@click.command(short_help="Start a cluster and keep it up.")
@config_option
@click.option(
    "--fresh",
    is_flag=True,
    help="Throw away what an earlier cluster has left in the data directory, durable sessions and valid publications "
    "included. Matched output, dead letters and recorded signals stay.",
)
def up(config_path: str | None, fresh: bool) -> None:
    """Start a cluster and keep it up until SIGINT (Ctrl-C) or SIGTERM, which end it cleanly; a second one, at once.

    Goes on from what the data directory holds, if a cluster was there before: with the sizes that it had last, unless
    the configuration asks for others than it did then.

    Prints one line for each connection point, its URL, when clients can connect; on stderr, which processes are lost
    and when they are back.

    \b
    kittiwake up
    kittiwake up --config configs/cluster.yaml
    """
    config = load_config(config_path)
    try:
        run(lambda signals: _up(config, signals, fresh))
    except Interrupted:
        click.echo("kittiwake: down", err=True)


async def _up(config: Config, signals: Signals, fresh: bool) -> None:
    from actors.launch import FIRST_START, launch

    click.echo(f"kittiwake: starting cluster {config.name!r} ({FIRST_START})", err=True)
    async with launch(config, fresh=fresh) as broker:
        signals.arm()
        for endpoint in broker.endpoints:
            click.echo(endpoint)
        click.echo("kittiwake: up; Ctrl-C ends it", err=True)
        incidents = Incidents()
        heard_s = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                lines = incidents.news(await broker.status())
                heard_s = time.monotonic()
            except KittiwakeError as error:
                lines = incidents.once([str(error)])  # Ray starts it anew; data flows meanwhile
                if time.monotonic() - heard_s > SILENCE_S:
                    raise KittiwakeError(
                        f"the coordinator has not answered for {SILENCE_S:g} s: {error}; "
                        f"`kittiwake up` goes on from {config.directory}"
                    ) from error
            if not await broker.ray_answers():
                lines += incidents.once([RAY_IS_GONE.format(directory=config.directory)])
            for line in lines:
                click.echo(f"kittiwake: {line}", err=True)


class Incidents:
    """What has happened to a cluster, each told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._recovered = 0
        self._life: int | None = None

    def once(self, lines: list[str]) -> list[str]:
        """Return those lines that were not told since the last recovery."""
        new = [line for line in dict.fromkeys(lines) if line not in self._told]
        self._told.update(new)
        return new

    def news(self, document: dict[str, Any]) -> list[str]:
        """Return what a status document says that earlier ones did not."""
        lines = [f"lost {name}" for name in lost_members(document)]
        life = document.get("coordinator", {}).get("incarnation")
        if self._life not in (None, life):
            lines.append("the coordinator died, and another process is it")
            self._told.discard(lines[-1])
        self._life = life
        recovery = document.get("recovery")
        if recovery is not None:
            lines += [f"lost {name}" for name in recovery["replaced"]]
            lines += [f"{name} cannot be brought back: {why}" for name, why in recovery["troubles"].items()]
        lines = self.once(lines)
        recovered = document.get("recovered", 0)
        if recovered > self._recovered:
            for one in document["recoveries"][self._recovered - recovered :]:
                took = duration(sum(one["phases_ms"].values()))
                lines.append(f"recovered {', '.join(one['replaced'])} in {took}")
            self._recovered = recovered
            self._told.clear()
        return lines


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
    process = document.get("coordinator")
    if process is not None:
        waits = process.get("standby_pid")
        lines.append(f"coordinator: pid {process['pid']}" + ("" if waits is None else f", pid {waits} stands by"))
    operation = document.get("operation")
    if operation is not None and operation["state"] == "running":
        lines.append(describe_operation(operation))
    recovery = document.get("recovery")
    if recovery is not None:
        where = f"{recovery['phase']}, since {duration(recovery['for_ms'])}"
        lines.append(f"recovering {', '.join(recovery['replaced'])}: {where}")
        lines += [f"  {name}: {why}" for name, why in recovery["troubles"].items()]
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
