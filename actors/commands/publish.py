"""`kittiwake pub`: JSON lines from stdin to the cluster."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import IO

import click

from actors.commands.failures import Interrupted
from actors.commands.options import acknowledge_option, client_options, plural
from actors.commands.publishing import publish_all
from actors.commands.running import run
from cluster.client import Acknowledge
from cluster.errors import RejectedError
from cluster.readings.source import Publication
from cluster.readings.tabular import LINE_BYTES_MAX, parse_json_line
from cluster.readings.values import ValueRefused

CHUNK_BYTES = 256 * 1024
CHUNKS_AHEAD = 4


@dataclass(slots=True)
class Counts:
    """What became of the lines. line: the number of the last one handed to the client."""

    line: int = 0
    handed: int = 0
    bad: int = 0
    refused_here: int = 0


def _validity(ctx: click.Context, param: click.Parameter, seconds: float) -> float:
    if not seconds >= 0:
        raise click.BadParameter(f"{seconds:g} is not a number of seconds, nor inf", ctx, param)
    return seconds


@click.command(short_help="Publish JSON lines from stdin.")
@client_options
@acknowledge_option
@click.option(
    "--valid-for",
    type=float,
    callback=_validity,
    metavar="SECONDS",
    default=0.0,
    help="Also give the readings to later subscribers that ask for what is valid: for so many seconds, or `inf` for "
    "until they are unpublished.",
)
@click.pass_context
def pub(ctx: click.Context, url: str, client_id: str | None, ack: Acknowledge, valid_for: float) -> None:
    """Publish readings from stdin, one JSON object a line, as they come.

    Values are booleans, numbers, strings and null; nested objects are flattened with dots. A line that cannot be
    published is reported with its number, the others go on; the counts are printed at the end. Both go to stderr.
    Exit code 1 if a line was bad or a reading refused.

    \b
    echo '{"station": "Pza. de Espana", "no2": 45.0}' | kittiwake pub
    tail -f readings.jsonl | kittiwake pub --client-id roof --url kittiwake://broker:7400
    """
    stream = sys.stdin.buffer
    counts = Counts()
    rejected = 0
    interrupted: Interrupted | None = None

    async def publish(_: object) -> None:
        nonlocal rejected
        from cluster.client import connect

        async with connect(url, client_id=client_id) as client:
            try:
                async for lines in read_lines(stream):
                    # Per chunk, not one publish_many over all: it says which line is refused, at the cost of one
                    # round trip for 256 kB.
                    readings = _parse(lines, counts)
                    await publish_all(client, readings, ack, lambda error: _refused(counts, error), valid_for)
            finally:
                rejected = client.rejected

    try:
        run(publish)
    except Interrupted as error:
        interrupted = error
    published = counts.handed - counts.refused_here - rejected
    click.echo(
        f"{plural(published, 'reading')} published, {counts.refused_here + rejected:,} refused, "
        f"{plural(counts.bad, 'bad line')}",
        err=True,
    )
    if interrupted is not None:
        raise interrupted
    ctx.exit(1 if counts.bad or counts.refused_here or rejected else 0)


def _parse(lines: list[tuple[int, bytes]], counts: Counts) -> Iterator[Publication]:
    for number, line in lines:
        if line.isspace() or not line:
            continue
        try:
            if len(line) > LINE_BYTES_MAX:
                raise ValueRefused(f"longer than {LINE_BYTES_MAX} bytes")
            publication = parse_json_line(line)
        except ValueRefused as error:
            counts.bad += 1
            click.echo(f"line {number}: {error}", err=True)
            continue
        counts.line = number
        counts.handed += 1
        yield publication


def _refused(counts: Counts, error: RejectedError) -> None:
    if error.sequence is None:
        counts.refused_here += 1
        click.echo(f"line {counts.line}: {error}", err=True)
    else:
        click.echo(f"before line {counts.line + 1}: {error}", err=True)


async def read_lines(stream: IO[bytes]) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Yield the stream's lines with their numbers, from 1, in lists of what is there at the moment.

    A thread reads, since files, pipes and terminals cannot all be waited for otherwise; at most CHUNKS_AHEAD chunks
    ahead. It is a daemon: blocked in a read, it does not keep the process.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)
    read = getattr(stream, "read1", stream.read)

    def pump() -> None:
        chunk = b"-"
        while chunk:
            room.acquire()
            try:
                chunk = read(CHUNK_BYTES)
            except (OSError, ValueError):
                chunk = b""
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the loop has ended

    threading.Thread(target=pump, name="stdin", daemon=True).start()
    number = 0
    rest = b""
    while chunk := await chunks.get():
        room.release()
        *complete, rest = (rest + chunk).split(b"\n")
        rest = rest[: LINE_BYTES_MAX + 1]  # enough to see that the line is too long, whatever still comes of it
        if complete:
            yield list(enumerate(complete, number + 1))
            number += len(complete)
    if rest:
        yield [(number + 1, rest)]
