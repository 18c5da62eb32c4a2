"""Expected trouble, on the command line: one line on stderr and an exit code, never a stack trace."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import unicodedata
from collections.abc import Iterator

import click

from cluster.errors import ConnectionLostError, FilterError, KittiwakeError

_BROKER = "ray numpy numba llvmlite msgpack sortedcontainers yaml uvloop pyarrow prometheus_client"
EXTRA_OF = {
    **dict.fromkeys(_BROKER.split(), "broker"),
    **dict.fromkeys(("pyspark", "py4j", "pandas", "matplotlib", "deltalake"), "analytics"),
}
"""Modules that the base installation lacks, and the extra that brings them; pyarrow is in both."""
_SHOWN = 100  # characters of a filter around the place of trouble


class Interrupted(Exception):
    """A signal ended the command before it was done."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Failure(click.ClickException):
    """Ends the command with exit code 1 and `Error: ...`."""

    exit_code = 1


@contextlib.contextmanager
def friendly(ctx: click.Context) -> Iterator[None]:
    """Translate what a command raises."""
    try:
        yield
    except FilterError as error:
        raise Failure(str(error)) from error
    except ConnectionLostError as error:
        hint = (
            " (is a cluster running there? `kittiwake up` starts one)"
            if error.code in ("connection", "unreachable")
            else ""
        )
        raise Failure(f"{error}{hint}") from error
    except KittiwakeError as error:
        raise Failure(str(error)) from error
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise Failure(
            f"`{ctx.invoked_subcommand}` needs the {extra}, and {error.name} is not installed: "
            f"pip install 'kittiwake[{extra}]'"
        ) from error
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does: no failure. What is still buffered has nowhere to go.
        with contextlib.suppress(OSError):  # io.UnsupportedOperation is one: stdout is no file
            stdout = sys.stdout.fileno()
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
        ctx.exit(0)
    except OSError as error:
        if error.filename is None:
            raise
        raise Failure(f"{error.filename}: {error.strerror}") from error
    except Interrupted as error:
        ctx.exit(128 + error.number)


def show_filter_error(text: str, error: FilterError) -> str:
    """Return the error's text, the filter below it, and a caret under the place of trouble."""
    position = error.position
    if position is None:
        return str(error)
    shown = "".join(" " if character.isspace() else character for character in text)
    position = min(position, len(shown))
    start = max(0, position - _SHOWN // 2) if len(shown) > _SHOWN else 0
    window = shown[start : start + _SHOWN]
    before, after = "..." if start else "", "..." if start + _SHOWN < len(shown) else ""
    indent = sum(_columns(character) for character in before + shown[start:position])
    return f"{error.reason}\n  {before}{window}{after}\n  {' ' * indent}^"


def _columns(character: str) -> int:
    """Return how many columns a terminal gives a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
