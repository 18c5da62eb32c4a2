"""kittiwake output: look at the log of what was matched, check it, read its end, merge its small segments."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actors.commands.operations import size, table
from actors.commands.options import config_option, plural
from cluster.errors import ConfigError

if TYPE_CHECKING:
    from cluster.output.adopting import Adopted
    from cluster.output.disk import Disk, LocalDisk

FOLLOW_S = 0.5


def places(place: str | None, config_path: str | None) -> tuple[Disk, LocalDisk]:
    """Return where segments are, and where write-ahead files are. Raises KittiwakeError."""
    from actors.output_writer import output_places
    from cluster.config import load_config
    from cluster.output.disk import LocalDisk

    config = load_config(config_path)
    if place is not None and "://" not in place:
        disk = LocalDisk(Path(place).expanduser())
        return disk, disk
    if place is not None:
        import msgspec

        config = msgspec.structs.replace(config, output=msgspec.structs.replace(config.output, path=place))
    if config.output.path is None:
        raise ConfigError("output.path: is not set, and no folder was given: there is no matched output to look at")
    return output_places(config)


def tell_sealed(done: Adopted) -> None:
    """Say on stderr what was sealed for a cluster that has ended, and what could not be."""
    if done.rows:
        click.echo(f"kittiwake: sealed {plural(done.rows, 'row')} that a cluster has left", err=True)
    for slot, reason in done.failed.items():
        click.echo(f"kittiwake: slot {slot}: rows that wait to be sealed are not read: {reason}", err=True)


def place_argument(command: Any) -> Any:
    """Add [PLACE]."""
    return click.argument("place", required=False, metavar="[FOLDER|URI]")(command)


@click.group()
def output() -> None:
    """Look at the matched output: which rows are there, and whether all is well with them.

    A folder or URI may be given; without one the configuration says where the cluster writes.

    \b
    kittiwake output ls
    kittiwake output tail --follow ~/.local/state/kittiwake/local/output
    kittiwake output verify --config configs/cluster.yaml
    """


@output.command("ls")
@place_argument
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a segment.")
def list_segments(place: str | None, config_path: str | None, as_json: bool) -> None:
    """List the committed segments, by slot and offset."""
    import msgspec

    from cluster.output.reader import log_on

    log = log_on(places(place, config_path)[0])
    segments = log.segments()
    if as_json:
        for one in segments:
            click.echo(msgspec.json.encode(one))
        return
    rows = [
        (str(one.slot), f"{one.first:,}", f"{one.last:,}", f"{one.rows:,}", size(one.bytes), one.path)
        for one in segments
    ]
    click.echo(table([("slot", "first", "last", "rows", "size", "segment"), *rows]))
    for slot, there in log.slots().items():
        click.echo(f"slot {slot}: offsets {there.first:,} up to before {there.next:,}")


@output.command()
@place_argument
@config_option
@click.pass_context
def verify(ctx: click.Context, place: str | None, config_path: str | None) -> None:
    """Read every segment and check it: checksums, offsets without holes, no publication twice.

    Problems make the exit code 1; notes are what a crash may leave, and the next writer sees to.
    """
    from cluster.output.reader import check_there
    from cluster.output.verify import verify as verified

    disk, local = places(place, config_path)
    check_there(disk)
    found = verified(disk, local)
    for finding in found.findings:
        click.echo(str(finding))
    click.echo(
        f"{plural(found.rows, 'row')} in {plural(found.segments, 'segment')}, {plural(len(found.problems), 'problem')}"
    )
    if found.problems:
        ctx.exit(1)


@output.command()
@place_argument
@config_option
@click.option("-n", "--rows", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many rows.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is committed later, until interrupted.")
def tail(place: str | None, config_path: str | None, count: int, follow: bool) -> None:
    """Print the last rows of each slot as JSON, one a line. What a cluster that has ended has left is sealed first."""
    from cluster.output.adopting import seal_ended
    from cluster.output.reader import log_on

    disk, local = places(place, config_path)
    tell_sealed(seal_ended(disk, local))
    log = log_on(disk)
    upto: dict[int, int] = {}
    while True:
        for slot, there in log.slots().items():
            first = upto.get(slot, max(there.first, there.next - count))
            for line in _lines(log, slot, max(first, there.first), there.next):
                click.echo(line)
            upto[slot] = there.next
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
        log.refresh()
        for slot in log.slots():
            upto.setdefault(slot, log.slots()[slot].first)


def _lines(log: Any, slot: int, first: int, stop: int) -> Iterator[str]:
    from cluster.output.rows import attributes_of

    for rows in log.rows(slot, first, stop):
        for row in rows.to_pylist():
            shown = {
                "slot": row["slot"],
                "offset": row["offset"],
                "epoch": row["epoch"],
                "publisher": row["publisher"],
                "instance": int(row["instance"]),
                "sequence": row["sequence"],
                **{
                    name: None if row[name] is None else row[name].isoformat(timespec="microseconds")
                    for name in ("time_published", "time_accepted", "time_released")
                },
                "attributes": attributes_of(row),
                "subscriptions": row["subscriptions"],
                "clients": row["clients"],
            }
            yield json.dumps(shown, ensure_ascii=False)


@output.command()
@place_argument
@config_option
@click.option("--grace", type=click.FloatRange(min=0), default=0.0, help="Seconds for which replaced files stay.")
@click.pass_context
def compact(ctx: click.Context, place: str | None, config_path: str | None, grace: float) -> None:
    """Seal what is left behind, and merge small segments of slots that no running cluster writes.

    Exit points that run merge their own. A plain Parquet reader that is underway may miss a replaced file; Kittiwake's
    own readers find its rows where they are then.
    """
    from cluster.config import load_config
    from cluster.output.adopting import compact as compacted
    from cluster.output.reader import check_there

    disk, local = places(place, config_path)
    check_there(disk)
    settings = load_config(config_path).output
    failed = False
    for slot, done in compacted(disk, local, settings.compact_below_bytes, settings.compact_to_bytes, grace).items():
        click.echo(f"slot {slot}: {done.text}")
        failed |= done.failed
    if failed:
        ctx.exit(1)
