"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

DEFAULT_URL = "kittiwake://127.0.0.1:7400"

Command = TypeVar("Command", bound=Callable[..., Any])


def client_options(command: Command) -> Command:
    """Add --url and --client-id."""
    command = click.option(
        "--client-id", metavar="ID", help="The name that this client goes by; drawn at random without it."
    )(command)
    return click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="KITTIWAKE_URL",
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="Where the cluster is: kittiwake://host:port[,host:port...].",
    )(command)


def acknowledge_option(command: Command) -> Command:
    """Add --ack."""
    return click.option(
        "--ack",
        type=click.Choice(["none", "matched", "stored"]),
        default="matched",
        show_default=True,
        help="What to wait for: nothing, that each reading is matched and handed over, or that it is stored as well.",
    )(command)


def config_option(command: Command) -> Command:
    """Add --config."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="The cluster's YAML file; without it, one process a layer on this machine.",
    )(command)


def json_option(command: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print the whole document as JSON.")(command)


def plural(count: int, noun: str) -> str:
    """Return `1 line`, `1,234 lines`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
