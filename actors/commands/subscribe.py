"""`kittiwake sub`: what matches, as JSON lines on stdout."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from actors.commands.failures import Failure, Interrupted, show_filter_error
from actors.commands.options import client_options
from actors.commands.running import run
from cluster.errors import FilterError, PolicyError
from cluster.language import parse
from cluster.policy import policy_of

if TYPE_CHECKING:
    from cluster.client import Notification

BATCH = 1024


@click.command(short_help="Print what matches, as JSON lines.")
@click.argument("filters", metavar="FILTER...", nargs=-1, required=True)
@client_options
@click.option(
    "--policy",
    metavar="POLICY",
    default="block",
    show_default=True,
    help="When this end does not keep up: block (slow the publishers down), drop_oldest, drop_newest, "
    "latest_per_key(ATTRIBUTE) (keep the newest reading for each value), or disconnect. "
    "How many were dropped is said on stderr.",
)
@click.option(
    "--initial",
    type=click.Choice(["none", "valid"]),
    default="none",
    show_default=True,
    help="valid: begin with the readings that were published with --valid-for and are valid now, for each FILTER.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N readings.")
@click.option(
    "--envelope", is_flag=True, help="Print publisher, sequence, time and matching filters around each reading."
)
def sub(
    filters: tuple[str, ...],
    url: str,
    client_id: str | None,
    policy: str,
    initial: Literal["none", "valid"],
    limit: int | None,
    envelope: bool,
) -> None:
    """Print every reading published from now on that one of the FILTERs matches, once, one JSON object a line.

    Ctrl-C ends it, with exit code 0. `subscribed` on stderr says from when on nothing is missed.

    \b
    kittiwake sub 'no2 > 40'
    kittiwake sub 'no2 > 40 and lat between 40.38 and 40.45' 'co > 2' --envelope
    kittiwake sub 'exists no2' --limit 100 > sample.jsonl

    With --envelope a line is {"publisher", "sequence", "time", "filters", "attributes"}: the publisher's number of
    the reading, seconds since 1970 when the cluster took it in, and the places of the filters that match, from 0.
    """
    for text in filters:
        try:
            parse(text)
        except FilterError as error:
            if error.limit is None:  # whether it is within the limits, the cluster knows
                raise Failure(show_filter_error(text, error)) from error
    try:
        policy_of(policy)
    except PolicyError as error:
        if error.limit is None:
            raise Failure(str(error)) from error
    dropped: dict[str, int] = {}
    try:
        run(lambda _: _subscribe(filters, url, client_id, policy, initial, limit, envelope, dropped))
    except Interrupted:
        pass
    finally:
        for reason, count in dropped.items():
            click.echo(f"{count:,} readings dropped by the cluster: {reason}", err=True)


async def _subscribe(
    filters: tuple[str, ...],
    url: str,
    client_id: str | None,
    policy: str,
    initial: Literal["none", "valid"],
    limit: int | None,
    envelope: bool,
    dropped: dict[str, int],
) -> None:
    from cluster.client import connect

    encode = msgspec.json.Encoder().encode
    left = limit if limit is not None else sys.maxsize
    async with connect(url, client_id=client_id) as client:
        try:
            stream = await client.subscribe_many(filters, policy=policy, initial=initial)
            places = {number: place for place, number in enumerate(stream.ids)}
            click.echo("subscribed", err=True)
            while left and (notifications := await stream.take(min(left, BATCH))):
                left -= len(notifications)
                if envelope:
                    lines = [encode(_enveloped(one, places)) for one in notifications]
                else:
                    lines = [encode(one.attributes) for one in notifications]
                # In a thread: a reader that does not read must not keep us from answering the cluster's pings.
                await asyncio.to_thread(_write, b"\n".join(lines) + b"\n")
        finally:
            dropped.update(client.dropped)


def _enveloped(notification: Notification, places: dict[int, int]) -> dict[str, object]:
    return {
        "publisher": notification.publisher,
        "sequence": notification.sequence,
        "time": notification.time,
        "filters": sorted(places[number] for number in notification.subscription_ids if number in places),
        "attributes": notification.attributes,
    }


def _write(data: bytes) -> None:
    stream = sys.stdout.buffer
    stream.write(data)
    stream.flush()
