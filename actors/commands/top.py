"""`kittiwake top`: the running cluster in a terminal. What it shows is in `top_view.py`; this asks, draws, reads keys.

Plain escape codes and not a library: of one of those only the padding of columns would be used, and a screen is a list
of lines that tests compare.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from actors.commands.failures import Interrupted
from actors.commands.options import config_option, json_option
from actors.commands.running import run
from actors.commands.top_view import View, screen
from cluster.config import load_config
from cluster.errors import KittiwakeError

if TYPE_CHECKING:
    from cluster.admin import Admin

KEYS_TO_QUIT = (b"q", b"Q")
TAKE_SCREEN, GIVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
OPERATIONS, DECISIONS = 4, 3


@click.command(short_help="Watch a running cluster.")
@config_option
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.2),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@json_option
def top(config_path: str | None, once: bool, interval_s: float, as_json: bool) -> None:
    """Watch the cluster that runs on this machine: layers and slices, rates, delay, backlog, the last changes and
    decisions. It comes from the coordinator; rates and delays are of the time between a slice's last two reports.

    q or Ctrl-C ends it. With --json a document is printed for each look, on a line of its own; with --once, once. Where
    there is no terminal, one of the two is needed.

    \b
    kittiwake top
    kittiwake top --once
    kittiwake top --json | jq .status.measures.notification_delay_ms.p99
    """
    config = load_config(config_path)
    if not (once or as_json or sys.stdout.isatty()):
        raise click.UsageError("stdout is no terminal: use --once or --json")

    async def work() -> None:
        from actors.asking import open_admin

        admin = open_admin(config)
        if once or as_json:
            await _print(admin, once, as_json, interval_s)
        else:
            await Live(admin, sys.stdin, sys.stdout).run(interval_s)

    try:
        run(lambda _: work())
    except Interrupted as interrupted:
        if once or interrupted.number != signal.SIGINT:
            raise


async def look(admin: Admin) -> View:
    """Return what the coordinator knows now. Raises KittiwakeError if it does not answer."""
    status = await admin.status()
    operations = (await admin.transitions())[-OPERATIONS:]
    try:
        decisions = (await admin.autoscaler("explain", count=DECISIONS))["decisions"]
    except KittiwakeError:
        decisions = []  # it has no autoscaler
    return View(datetime.now(), status, operations, decisions)


def document(view: View) -> dict[str, Any]:
    """Return a view as plain data."""
    return {
        "at": view.at.astimezone().isoformat(timespec="milliseconds"),
        "status": view.status,
        "operations": list(view.operations),
        "decisions": list(view.decisions),
    }


async def _print(admin: Admin, once: bool, as_json: bool, interval_s: float) -> None:
    while True:
        view = await look(admin)
        if as_json:
            click.echo(json.dumps(document(view)))
        else:
            size = shutil.get_terminal_size()
            color = sys.stdout.isatty()
            height = sys.maxsize if not color else size.lines
            click.echo("\n".join(screen(view, size.columns, height, color=color)))
        if once:
            return
        await asyncio.sleep(interval_s)


class Live:
    """The screen and the keys. keys, out: the terminal's two sides."""

    def __init__(self, admin: Admin, keys: TextIO, out: TextIO) -> None:
        self._admin = admin
        self._keys = keys
        self._out = out
        self._view: View | None = None
        self._ended = asyncio.Event()

    async def run(self, interval_s: float) -> None:
        """Show the cluster until somebody wants no more; the terminal is afterwards as it was."""
        view = await look(self._admin)  # a cluster that is not there is said before the screen is taken
        loop = asyncio.get_running_loop()
        with _raw(self._keys), _taken(self._out):
            loop.add_signal_handler(signal.SIGWINCH, self._draw)
            loop.add_reader(self._keys.fileno(), self._read)
            try:
                self._show(view)
                while not self._ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), interval_s)
                    if not self._ended.is_set():
                        await self._look_again()
            finally:
                loop.remove_reader(self._keys.fileno())
                loop.remove_signal_handler(signal.SIGWINCH)

    async def _look_again(self) -> None:
        assert self._view is not None, "there was a first look"
        try:
            self._show(await look(self._admin))
        except KittiwakeError as error:
            last = self._view
            said = f"as of {last.at:%H:%M:%S}: {error}"
            self._show(View(last.at, last.status, last.operations, last.decisions, said))

    def _show(self, view: View) -> None:
        self._view = view
        self._draw()

    def _draw(self) -> None:
        if self._view is None:
            return
        columns, lines = os.get_terminal_size(self._out.fileno())
        rows = screen(self._view, columns, lines, color=True)
        text = "\r\n".join(TO_LINE_END + row for row in rows)  # cleared first: after a full line it would lose its end
        self._out.write(HOME + text + TO_SCREEN_END)
        self._out.flush()

    def _read(self) -> None:
        typed = os.read(self._keys.fileno(), 64)
        if not typed or any(key in typed for key in KEYS_TO_QUIT):
            self._ended.set()


@contextlib.contextmanager
def _raw(keys: TextIO) -> Iterator[None]:
    """Have keys at once and unseen; Ctrl-C stays a signal. What is no terminal stays as it is."""
    import termios
    import tty

    if not keys.isatty():
        yield
        return
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _taken(out: TextIO) -> Iterator[None]:
    """Have a screen of its own; what was there is back afterwards."""
    out.write(TAKE_SCREEN)
    try:
        yield
    finally:
        out.write(GIVE_SCREEN)
        out.flush()
