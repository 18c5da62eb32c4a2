"""`kittiwake why`: why a subscription matches a publication or does not, and what became of its delivery."""

from __future__ import annotations

import json
import re
from typing import IO, Any

import click
import msgspec

from actors.commands.failures import show_filter_error
from actors.commands.options import config_option, json_option
from actors.commands.scale import ask
from cluster.client.attributes import AttributePacker, Limits
from cluster.errors import FilterError, KittiwakeError, RejectedError
from cluster.language import Explanation, parse
from cluster.readings.tabular import LINE_BYTES_MAX

ENVELOPE = {"publisher", "sequence", "time", "filters", "attributes"}
"""The keys of what `kittiwake sub --envelope` prints; `attributes` makes it one."""

LINES = 200
"""Of an explanation that are printed: a normal form may have thousands of predicates."""

Document = dict[str, Any]


class NoAnswer(click.ClickException):
    """Ends the command with exit code 2: 1 says that it does not match."""

    exit_code = 2


class Publication(msgspec.Struct):
    """What PUBLICATION holds. publisher, sequence: who sent it and its number, "" and 0 if it does not say."""

    attributes: Document
    publisher: str = ""
    sequence: int = 0


@click.command(short_help="Tell why a subscription matches a reading or not.")
@click.argument("subscription")
@click.argument("publication", type=click.File("rb"), metavar="PUBLICATION.json")
@click.option("--publisher", metavar="ID", help="The client that published it, to tell what became of it.")
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="Its publisher's number of it.")
@config_option
@json_option
@click.pass_context
def why(
    ctx: click.Context,
    subscription: str,
    publication: IO[bytes],
    publisher: str | None,
    sequence: int | None,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Tell, predicate by predicate, why SUBSCRIPTION matches the reading in PUBLICATION.json (- is stdin) or not.

    SUBSCRIPTION is the text of a filter, which needs no cluster; or CLIENT_ID/NUMBER, a client that is logged in and
    its own number of the subscription, or the cluster's id of it: then the running cluster is asked for the filter in
    force, and, if the publisher and its sequence are given, for what became of the delivery. A line of `kittiwake sub
    --envelope` has both.

    Exit code 0 if it matches, 1 if not, 2 if there is no answer: no cluster, no such subscription, no usable file.

    \b
    echo '{"no2": 38.0}' | kittiwake why 'no2 > 40 and exists lat' -
    kittiwake why lab/0 reading.json
    kittiwake why lab/0 reading.json --publisher roof --sequence 17
    """
    try:
        read = read_publication(publication)
        read.publisher = read.publisher if publisher is None else publisher
        read.sequence = read.sequence if sequence is None else sequence
        if bool(read.publisher) != bool(read.sequence):
            raise NoAnswer("a publisher and its sequence name a publication together; one of them is missing")
        document = _answer(subscription, read, config_path)
    except FilterError as error:
        raise NoAnswer(show_filter_error(subscription, error)) from error
    except KittiwakeError as error:
        raise NoAnswer(str(error)) from error
    click.echo(json.dumps(document, indent=2) if as_json else describe(document))
    matches = document["matches"]
    ctx.exit(2 if matches is None else 0 if matches else 1)


def read_publication(file: IO[bytes]) -> Publication:
    """Return what the file holds: attributes, or an envelope around them. Raises NoAnswer."""
    name = getattr(file, "name", "the publication")
    data = file.read(LINE_BYTES_MAX + 1)
    if len(data) > LINE_BYTES_MAX:
        raise NoAnswer(f"{name}: longer than {LINE_BYTES_MAX} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{name}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise NoAnswer(f"{name}: not a JSON object")
    if isinstance(found.get("attributes"), dict) and found.keys() <= ENVELOPE:
        fields = {key: found[key] for key in ("attributes", "publisher", "sequence") if key in found}
        try:
            return msgspec.convert(fields, Publication)
        except msgspec.ValidationError as error:
            raise NoAnswer(f"{name}: {error}") from error
    return Publication(found)


def _answer(subscription: str, publication: Publication, config_path: str | None) -> Document:
    from cluster.config import load_config

    limits = load_config(config_path).client_limits
    place = re.fullmatch(r"(.+)/([0-9]{1,7})", subscription, re.DOTALL)
    number = re.fullmatch(r"[0-9]{1,19}", subscription)
    filter = None if place or number else parse(subscription)
    packer = AttributePacker(Limits(attributes=limits.attributes, string_bytes=limits.string_bytes))
    try:
        attributes = msgspec.msgpack.decode(packer.pack(publication.attributes))
    except RejectedError as error:
        # What the matchers would say as well, for the same reasons.
        rejected = {"code": "rejected", "detail": error.reason}
        return {"matches": False, "filter": subscription, "explanation": None, "delivery": rejected}
    if filter is not None:
        found = filter.explain(attributes)
        return {
            "matches": found.value is True,
            "filter": filter.text,
            "explanation": found.to_json(),
            "delivery": None,
        }
    who: Document = {"client_id": place[1], "number": int(place[2])} if place else {"subscription": int(subscription)}
    return dict(
        ask(
            config_path,
            lambda admin: admin.why(attributes, **who, publisher=publication.publisher, sequence=publication.sequence),
        )
    )


def describe(document: Document) -> str:
    """Return the answer as text."""
    lines = []
    if document["matches"] is not None:
        lines.append(f"matches:  {'yes' if document['matches'] else 'no'}")
    delivery = document["delivery"]
    if delivery is not None:
        lines.append(f"delivery: {delivery['code']}: {delivery['detail']}")
    subscriber = document.get("subscriber")
    if subscriber is not None and subscriber["subscription"] is not None:
        lines += _describe_subscriber(subscriber)
    if document["explanation"] is not None:
        lines.append(f"filter:   {document['filter']}")
        shown = str(Explanation.from_json(document["explanation"])).splitlines()
        lines += shown[:LINES]
        if len(shown) > LINES:
            lines.append(f"... {len(shown) - LINES:,} more lines; --json has all of it")
    return "\n".join(lines)


def _describe_subscriber(subscriber: Document) -> list[str]:
    subscription = subscriber["subscription"]
    stand = [
        f"{subscriber['queued']:,} queued",
        f"{subscriber['sent'] - subscriber['consumed']:,} of {subscriber['sent']:,} sent not consumed",
    ]
    if not subscriber["credit"]:
        stand.append("no credit left")
    if not subscriber["connected"]:
        stand.append("not connected")
    elif not subscriber["reads"]:
        stand.append("does not read its socket")
    if subscriber["held_runs"]:
        stand.append(f"holds up publishers in {subscriber['held_runs']:,} places")
    lines = [
        f"client:   {subscriber['client_id']}, {', '.join(stand)}",
        f"subscription: {subscription['number']} (id {subscription['id']}), "
        f"policy {subscription['policy'] or 'unknown'}, "
        f"{'in force' if subscription['confirmed'] else 'not in force yet'}",
    ]
    drops = [f"{count:,} by {reason}" for reason, count in subscription["dropped_lately"].items()]
    if drops:
        lines.append(f"dropped of late: {', '.join(drops)}")
    return lines
