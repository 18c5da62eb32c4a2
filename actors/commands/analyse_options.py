"""The options that the jobs of `kittiwake analyse` share, and what they become."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from actors.commands.failures import Failure
from actors.commands.operations import changes

if TYPE_CHECKING:
    from cluster.spark.jobs.readings import ReadingColumns
    from cluster.spark.jobs.running import Input

Command = TypeVar("Command", bound=Callable[..., Any])

UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A whole number with its unit: `30s`, `15min`, `1h`, `2d`."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return seconds."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        digits = text.rstrip("dhimns")
        unit = UNITS_S.get(text[len(digits) :])
        if unit is None or not (digits.isascii() and digits.isdigit()) or not int(digits):
            self.fail(f"{text!r} is no duration above 0 such as 30s, 15min, 1h or 2d", param, ctx)
        return int(digits) * unit


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return the decorators as one, in the order in which help shows them."""

    def add(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


input_options = options(
    click.option("--input", "source", required=True, metavar="OUT", help="The folder of matched output, or its URI."),
    click.option(
        "--to",
        "folder",
        required=True,
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Where the results go.",
    ),
    click.option(
        "--format",
        type=click.Choice(["kittiwake", "parquet"]),
        default="kittiwake",
        show_default=True,
        help="parquet: any Parquet files with the columns of the output.",
    ),
    click.option("--filter", metavar="FILTER", help="Take only the publications that match a filter."),
    click.option(
        "--memory", default="2g", show_default=True, metavar="SIZE", help="What Spark may use, as 512m or 4g."
    ),
)

follow_options = options(
    click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C."),
    click.option("--until-caught-up", is_flag=True, help="As --follow, but end with what is there now."),
    click.option(
        "--trigger", type=Duration(), default="2s", show_default=True, help="From one batch's beginning to the next."
    ),
    click.option(
        "--batch-rows", type=click.IntRange(min=1), default=500_000, show_default=True, help="Most rows of a batch."
    ),
    click.option(
        "--watermark", type=Duration(), default="2h", show_default=True, help="How late a reading may be, by its time."
    ),
)

reading_options = options(
    click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="Of days and hours of the day."),
    click.option(
        "--stamps",
        type=click.Choice(["end", "start"]),
        default="end",
        show_default=True,
        help="Which end of what was measured a reading's time is.",
    ),
    click.option(
        "--station", default="station", show_default=True, metavar="NAME", help="The attribute that names the place."
    ),
    click.option(
        "--quantity",
        default="quantity",
        show_default=True,
        metavar="NAME",
        help="The attribute that says which one was measured; where it is missing, each number is a reading.",
    ),
    click.option(
        "--time",
        default="time",
        show_default=True,
        metavar="NAME",
        help="The attribute with a reading's time, in seconds since 1970.",
    ),
)


def input_of(given: dict[str, Any], batch_rows: int | None) -> Input:
    """Return where the log is, taking the options from `given`. batch_rows: for a stream."""
    from cluster.language import parse
    from cluster.spark.jobs.running import Input

    chosen: dict[str, str] = {}
    kind, text = given.pop("format"), given.pop("filter")
    if text is not None:
        if kind != "kittiwake":
            raise click.UsageError("--filter needs --format kittiwake")
        parse(text)  # what is wrong with it is better said before Spark starts
        chosen["filter"] = text
    if batch_rows is not None and kind == "kittiwake":
        chosen["maxOffsetsPerTrigger"] = str(batch_rows)
    return Input(path=given.pop("source"), format=kind, options=chosen)


def columns_of(given: dict[str, Any]) -> ReadingColumns:
    """Return which attributes hold what, taking the options from `given`; those that are not there as by default."""
    from cluster.spark.jobs.readings import ReadingColumns

    names = ("timezone", "stamps", "station", "quantity", "time")
    return ReadingColumns(**{name: given.pop(name) for name in names if name in given})


def subscriptions_in(file: IO[bytes]) -> int:
    """Return how many subscriptions are open, by what `kittiwake status --json` printed."""
    document = _document(file, "--status")
    try:
        return sum(
            member["counters"]["subscriptions"]
            for member in document["members"]
            if member["layer"] == "connection_point" and "counters" in member
        )
    except (KeyError, TypeError) as error:
        raise Failure(f"--status: not what `kittiwake status --json` prints: {error!r} is amiss") from error


def operations_in(file: IO[bytes]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return what `kittiwake transitions --json` printed: each operation's name, and the epochs that it led to."""
    document = _document(file, "--transitions")
    try:
        return named_operations(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise Failure(f"--transitions: not what `kittiwake transitions --json` prints: {error!r} is amiss") from error


def named_operations(operations: list[dict[str, Any]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the name of each operation, and the epochs that it led to."""
    return tuple(
        (changes(each["former"], each["wanted"]), tuple(step["epoch"] for step in each["steps"])) for each in operations
    )


def _document(file: IO[bytes], option: str) -> Any:
    try:
        return json.load(file)
    except ValueError as error:
        raise Failure(f"{option}: {file.name}: not JSON: {error}") from error
