"""`kittiwake replay`: readings from files to the cluster, at their own pace or at full speed."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import click

from actors.commands.failures import Interrupted
from actors.commands.options import acknowledge_option, client_options, plural
from actors.commands.publishing import publish_all
from actors.commands.running import run
from actors.commands.troubles import describe_report, show_troubles
from cluster.client import Acknowledge
from cluster.errors import RejectedError
from cluster.readings import FORMATS, Readings, open_readings
from cluster.readings.source import TROUBLES_KEPT, Publication

BAR_STEPS = 1_000


class SpeedType(click.ParamType):  # type: ignore[type-arg]
    """`max`, or how many times faster than the readings' own time."""

    name = "speed"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Return the factor; None is full speed."""
        if value is None or value == "max":
            return None
        try:
            factor = float(str(value))
        except ValueError:
            factor = 0.0
        if not 0 < factor < float("inf"):
            self.fail(f"{value!r} is neither max nor a number above 0", param, ctx)
        return factor


@click.command(short_help="Publish readings from a file or folder.")
@click.argument("path", type=click.Path())
@client_options
@acknowledge_option
@click.option("--format", type=click.Choice(FORMATS), help="Without it: a folder is madrid, a file what its name says.")
@click.option(
    "--speed",
    type=SpeedType(),
    default="max",
    show_default=True,
    metavar="X|max",
    help="How many times faster than the readings' own time.",
)
@click.option(
    "--time-attribute",
    default="time",
    show_default=True,
    metavar="NAME",
    help="The attribute that holds a reading's time in seconds, for --speed.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N readings.")
@click.pass_context
def replay(
    ctx: click.Context,
    path: str,
    url: str,
    client_id: str | None,
    ack: Acknowledge,
    format: str | None,
    speed: float | None,
    time_attribute: str,
    limit: int | None,
) -> None:
    """Publish the readings at PATH: a folder of Madrid's air-quality files, a CSV file or JSON lines, plain or gzipped.

    With --speed 3600 an hour of readings takes a second. Readings without a time go out with the one before them.
    What could not be used is listed on stderr at the end. Exit code 1 if a line was faulty or a reading refused.

    \b
    kittiwake replay ../shared/data/madrid-air-2017 --speed 3600
    kittiwake replay readings.csv.gz --limit 10000
    """
    readings = open_readings(path, format)
    refused: list[RejectedError] = []
    rejected = 0
    interrupted: Interrupted | None = None

    async def publish(_: object) -> None:
        nonlocal rejected
        from cluster.client import connect

        with click.progressbar(length=BAR_STEPS, label="replay", file=sys.stderr) as bar:
            shown = _shown(readings, limit, lambda steps: bar.update(steps))
            source = shown if speed is None else paced(shown, speed, time_attribute)
            async with connect(url, client_id=client_id) as client:
                try:
                    await publish_all(client, source, ack, refused.append)
                finally:
                    rejected = client.rejected

    start = time.monotonic()
    try:
        run(publish, fast=True)
    except Interrupted as error:
        interrupted = error
    seconds = time.monotonic() - start
    report = readings.report
    show_troubles(report)
    for refusal in refused[:TROUBLES_KEPT]:
        click.echo(f"refused: {refusal}", err=True)
    rejected += sum(refusal.sequence is None for refusal in refused)
    published = report.published - rejected
    click.echo(f"{describe_report(report)}; {plural(rejected, 'reading')} refused", err=True)
    click.echo(f"{published:,} in {seconds:.1f} s, {published / max(seconds, 1e-9):,.0f} readings/s", err=True)
    if interrupted is not None:
        raise interrupted
    ctx.exit(1 if report.faults or rejected else 0)


def _shown(readings: Readings, limit: int | None, advance: Callable[[int], None]) -> Iterator[Publication]:
    """Yield the readings, at most `limit`, and move the bar as they go."""
    steps = 0
    for count, publication in enumerate(itertools.islice(readings, limit)):
        yield publication
        if count % 256 == 0:
            done = int(BAR_STEPS * (readings.fraction if limit is None else max(readings.fraction, count / limit)))
            if done > steps:
                advance(done - steps)
                steps = done
    advance(BAR_STEPS - steps)


async def paced(
    publications: Iterator[Publication],
    factor: float,
    time_attribute: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Publication]:
    """Yield each publication when its time has come: the first at once, the others `factor` times faster than theirs.

    A time that is absent, no number, or before the last one is due at once. Late ones are not skipped.
    """
    began: float | None = None
    first = 0.0
    for publication in publications:
        at = publication.get(time_attribute)
        if isinstance(at, int | float) and not isinstance(at, bool):
            if began is None:
                began, first = clock(), float(at)
            wait = began + (float(at) - first) / factor - clock()
            if wait > 0:
                await sleep(wait)
        yield publication
