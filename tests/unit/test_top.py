"""`kittiwake top`: what it shows at any size, what it makes of two status documents, how it leaves the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import struct
import termios
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TextIO, cast

import msgspec
import pytest
from click.testing import CliRunner

import actors.asking
from actors.cli import main
from actors.commands.top import GIVE_SCREEN, TAKE_SCREEN, Live
from actors.commands.top_view import View, number, screen
from autoscaler.decision import Decision, LayerDecision
from cluster.admin import Admin
from cluster.errors import KittiwakeError
from cluster.messages import CONNECTION_POINT, MATCHER
from tests.unit.conversation import conversation
from tests.unit.test_cli import ABORTED, OPERATION, RUNNING

AT = datetime(2026, 11, 28, 12, 34, 56)
LAYERS = {"connection_point": 1, "access_point": 1, "matcher": 3, "exit_point": 2}
WIDTHS = (1, 10, 20, 40, 60, 80, 100, 132, 250)
HEIGHTS = (1, 2, 5, 8, 12, 24, 60)


def measures(layer: str, slot: int, use: float) -> dict[str, Any]:
    """Return what a slice measures, as in its row of the status."""
    return {
        "useful_share": use,
        "publications_per_s": 2345.0,
        "notifications_per_s": 54_321.0 if layer in ("connection_point", "exit_point") else None,
        "backlog_messages": 10 * slot,
        "backlog_bytes": 9000 * slot,
        "resident_bytes": 151_000_000,
    }


WHOLE = {
    "books": {"accepted": 99_999, "in_flight": 321},
    "notification_delay_ms": {"count": 100, "p50": 1.5625, "p99": 14.5},
    "subscribe_ack_ms": {"count": 0, "p50": None, "p99": None},
    "match_ms": {"count": 5, "p50": 0.012, "p99": 0.0316},
    "layers": {"connection_point": {"publications_per_s": 2345.0, "notifications_per_s": 54_321.0}},
}


def use_of(layer: str, slot: int) -> float:
    return 0.1 + 0.4 * slot if layer == MATCHER else 0.25


def view(
    layers: dict[str, int] | None = None,
    use: Callable[[str, int], float] = use_of,
    status: dict[str, Any] | None = None,
    **changed: Any,
) -> View:
    """Return a cluster of so many slices that is well, but for what is changed."""
    members = [
        {
            "layer": layer,
            "slot": slot,
            "state": "serving",
            "pid": 4000 + slot,
            "counters": {"subscriptions": 1000 + slot} if layer == MATCHER else {"sessions": 7},
            "measures": measures(layer, slot, use(layer, slot)),
        }
        for layer, count in (layers or LAYERS).items()
        for slot in range(count)
    ]
    document = {"name": "local", "state": "serving", "epoch": 12, "lost": 0, "sessions": 7, "measures": WHOLE}
    return View(AT, document | {"members": members} | (status or {}), **changed)


DECISION = {
    "decision": msgspec.to_builtins(
        Decision(
            at_s=1.8e9, epoch=12, layers=(LayerDecision(layer="matcher", size=2, target=3),), targets={"matcher": 3}
        )
    ),
    "outcome": "done",
    "reason": "",
}
HELD = {"decision": msgspec.to_builtins(Decision(at_s=1.8e9, epoch=12, held="warm-up")), "outcome": "", "reason": ""}


def test_a_wide_screen_shows_all() -> None:
    lines = screen(view(operations=[OPERATION, ABORTED], decisions=[DECISION, HELD]), 140, 40)
    assert lines[0] == "kittiwake local: serving, view 12, 7 clients" + " " * 88 + "12:34:56"
    assert lines[1] == (
        "in 2,345/s  out 54.3k/s  delay p50 1.56 ms p99 14.5 ms  subscribe -  match p50 12 µs p99 32 µs  in flight 321"
    )
    heads = "SLICE STATE IN USE PUBL/S NOTIF/S BACKLOG SUBSCR CLIENTS MEMORY PID"
    assert " ".join(lines[3].split()) == heads
    rows = [" ".join(line.split()) for line in lines[4:13]]
    assert rows == [
        "connection point 0 serving 25% ██░░░░░░░░ 2,345 54.3k 0 7 151 MB 4000",
        "access point 0 serving 25% ██░░░░░░░░ 2,345 0 7 151 MB 4000",
        "matchers 3 serving 90% █████████░ 2,345 30 3,003 453 MB",
        "matcher 0 serving 10% █░░░░░░░░░ 2,345 0 1,000 151 MB 4000",
        "matcher 1 serving 50% █████░░░░░ 2,345 10 1,001 151 MB 4001",
        "matcher 2 serving 90% █████████░ 2,345 20 1,002 151 MB 4002",
        "exit points 2 serving 25% ██░░░░░░░░ 4,690 109k 10 14 302 MB",
        "exit point 0 serving 25% ██░░░░░░░░ 2,345 54.3k 0 7 151 MB 4000",
        "exit point 1 serving 25% ██░░░░░░░░ 2,345 54.3k 10 7 151 MB 4001",
    ]
    at = datetime.fromtimestamp(1.8e9).strftime("%H:%M:%S")
    assert lines[13:] == [
        "",
        "decisions",
        f" {at} held: warm-up",
        f" {at} matcher 2 -> 3, done",
        "",
        "changes",
        " 3 matcher +2 +3 -1, exit point +1: aborted in 4.3 s; matcher 2 lost",
        " 3 matcher +2 +3 -1, exit point +1: done in 4.3 s",
    ]


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_at_any_size(width: int, height: int) -> None:
    large = {"connection_point": 9, "access_point": 4, "matcher": 25, "exit_point": 8}
    troubles = {
        "recovery": {"phase": "start", "replaced": ["matcher 3"], "troubles": {"matcher 3": "no room"}, "for_ms": 9}
    }
    for layers in (LAYERS, large):
        shown = view(
            layers, status=troubles | {"operation": RUNNING}, operations=[OPERATION] * 9, decisions=[DECISION] * 5
        )
        lines = screen(shown, width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        painted = screen(shown, width, height, color=True)
        assert [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in painted] == lines
        assert all(line.count("\x1b[") == 2 * line.count("\x1b[0m") for line in painted), "a colour runs on"


def test_columns_go_by_how_little_they_tell() -> None:
    heads = [screen(view(), width, 30)[3].split() for width in (120, 90, 70, 50, 30)]
    assert "PID" in heads[0]
    assert "PID" not in heads[1]
    for wide, narrow in itertools.pairwise(heads):
        assert set(narrow) < set(wide)
    assert heads[-1] == ["SLICE", "IN", "USE"]


def test_where_lines_are_few_each_layer_stays_and_the_busiest_slices() -> None:
    large = {"connection_point": 1, "access_point": 1, "matcher": 30, "exit_point": 2}
    shown = view(large, lambda _, slot: 0.95 if slot in (7, 21) else 0.2, operations=[OPERATION] * 5)
    lines = [line.strip() for line in screen(shown, 80, 18)]
    assert len(lines) == 18
    assert any(line.startswith("matchers 30, 7 shown") for line in lines)
    assert {"matcher 7", "matcher 21"} <= {" ".join(line.split()[:2]) for line in lines}
    assert any(line.startswith("exit points 2") for line in lines)
    assert lines[-2:] == ["changes", "3 matcher +2 +3 -1, exit point +1: done in 4.3 s"]


def test_a_lost_slice_is_shown_before_busy_ones() -> None:
    large = {"connection_point": 1, "access_point": 1, "matcher": 30, "exit_point": 1}
    shown = view(large)
    members = [row | ({"state": "lost"} if row["pid"] == 4017 else {}) for row in shown.status["members"]]
    lost = View(AT, shown.status | {"members": members, "lost": 1})
    text = "\n".join(screen(lost, 100, 10))
    assert "1 LOST" in text
    assert re.search(r"matchers 30, \d shown +lost", text)
    assert re.search(r"matcher 17 +lost", text)


def test_what_is_not_known_is_not_shown_as_0() -> None:
    rows = [{"layer": MATCHER, "slot": 0, "state": "starting"}]
    unknown = dict.fromkeys(("publications_per_s", "notifications_per_s"))
    whole = WHOLE | {"layers": {"connection_point": unknown}}
    for status in ({"members": rows, "measures": whole}, {"members": rows, "measures": None}):
        lines = screen(view(status=status), 120, 30)
        assert [line.split() for line in lines if "matcher 0" in line] == [
            ["matcher", "0", "starting", "-", "░" * 10, "-"]
        ]
        assert ("in -/s  out -/s" in "\n".join(lines)) == (status["measures"] is not None)


def test_trouble_and_a_running_operation_are_said() -> None:
    shown = view(status={"operation": RUNNING}, trouble="as of 12:00:00: the coordinator does not answer")
    text = "\n".join(screen(shown, 120, 30))
    assert "as of 12:00:00" in text
    assert "operation 3: matcher +2 +3 -1, exit point +1, 64 of 2730 key groups moved" in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_900, "1M"),
        (1_230_000, "1.23M"),
        (5e9, "5G"),
        (7e15, "7.0e+15"),
    ],
)
def test_numbers_are_short(count: float, text: str) -> None:
    assert number(count) == text


# The command and the terminal -------------------------------------------------------------------------------------

SMALL = view({CONNECTION_POINT: 1, MATCHER: 1}).status


class Documents:
    """An admin that gives one status after the other; None for a coordinator that does not answer."""

    def __init__(self, *documents: dict[str, Any] | None) -> None:
        self._documents = list(documents)
        self.decisions: list[dict[str, Any]] = []

    async def status(self) -> dict[str, Any]:
        document = self._documents.pop(0) if len(self._documents) > 1 else self._documents[0]
        if document is None:
            raise KittiwakeError("the coordinator of 'local' does not answer")
        return document

    async def transitions(self) -> list[dict[str, Any]]:
        return [OPERATION] * 9

    async def autoscaler(self, action: str, *, count: int) -> dict[str, Any]:
        assert action == "explain"
        if not self.decisions:
            raise KittiwakeError("this cluster has no autoscaler")
        return {"decisions": self.decisions[-count:]}


def admin(*documents: dict[str, Any] | None) -> Admin:
    return cast(Admin, Documents(*documents))


def top(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> Any:
    monkeypatch.setattr(actors.asking, "open_admin", lambda config: Documents(SMALL))
    return CliRunner().invoke(main, ["top", *arguments], env=environment, catch_exceptions=False)


def test_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = top(monkeypatch, "--once", COLUMNS="80")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("kittiwake local: serving, view 12, 7 clients")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.output


def test_once_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(top(monkeypatch, "--once", "--json").output)
    assert document["status"] == SMALL
    assert document["operations"] == [json.loads(json.dumps(OPERATION))] * 4
    assert document["decisions"] == []
    assert datetime.fromisoformat(document["at"]).tzinfo is not None


def test_the_autoscalers_decisions_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(SMALL)
    documents.decisions = [HELD] * 5 + [DECISION]
    monkeypatch.setattr(actors.asking, "open_admin", lambda config: documents)
    lines = CliRunner().invoke(main, ["top", "--once"], catch_exceptions=False).output.splitlines()
    place = lines.index("decisions")
    assert [line[9:].strip() for line in lines[place + 1 : place + 4]] == [
        "matcher 2 -> 3, done",
        *["held: warm-up"] * 2,
    ]


def test_without_a_terminal_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    result = top(monkeypatch)
    assert result.exit_code == 2
    assert "use --once or --json" in result.output


class Terminal:
    """A terminal of its own. seen: all that was written to it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._master, slave = pty.openpty()
        self.file: TextIO = os.fdopen(slave, "r+b", buffering=0)  # type: ignore[assignment]
        self.keys = cast(TextIO, open(os.dup(slave), encoding="utf-8"))  # noqa: SIM115
        self.out = cast(TextIO, open(os.dup(slave), "w", encoding="utf-8"))  # noqa: SIM115
        self.resize(columns, lines)
        os.set_blocking(self._master, False)
        self.seen = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def until(self, condition: Callable[[str], bool]) -> str:
        """Read until what was seen fulfils the condition; return and forget it."""
        async with asyncio.timeout(120):
            while not condition(self.seen):
                with contextlib.suppress(BlockingIOError):
                    self.seen += os.read(self._master, 65536).decode()
                await asyncio.sleep(0)
        seen, self.seen = self.seen, ""
        return seen

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.file)

    def close(self) -> None:
        for one in (self.file, self.keys, self.out):
            one.close()
        os.close(self._master)


@contextlib.contextmanager
def a_terminal() -> Iterator[Terminal]:
    made = Terminal(100, 20)
    try:
        yield made
    finally:
        made.close()


def drawn(seen: str) -> list[str]:
    """Return the lines of the last screen that was drawn."""
    last = seen.rpartition("\x1b[H")[2].partition("\x1b[J")[0]
    return [re.sub(r"\x1b\[\d*[mK]", "", line).rstrip() for line in last.split("\r\n")]


@conversation
async def test_it_draws_resizes_says_trouble_and_gives_the_terminal_back() -> None:
    with a_terminal() as terminal:
        before = terminal.settings()
        live = Live(admin(SMALL, SMALL, None), terminal.keys, terminal.out)
        running = asyncio.create_task(live.run(0.01))
        seen = await terminal.until(lambda seen: "does not answer\x1b" in seen and seen.endswith("\x1b[J"))
        assert seen.startswith(TAKE_SCREEN)
        assert terminal.settings() != before
        lines = drawn(seen)
        assert lines[0].startswith("kittiwake local: serving, view 12, 7 clients")
        assert lines[1].startswith("in 2,345/s")
        assert lines[2].startswith("as of ")
        terminal.resize(40, 6)
        os.kill(os.getpid(), 28)  # SIGWINCH, which the terminal sends to its own foreground alone
        seen = await terminal.until(lambda seen: any(len(drawn(part)) == 6 for part in seen.split("\x1b[J")[:-1]))
        terminal.type(b"xq")
        await asyncio.wait_for(running, 120)
        seen = await terminal.until(lambda seen: seen.endswith(GIVE_SCREEN))
        assert terminal.settings() == before


@conversation
async def test_without_a_coordinator_the_screen_is_not_taken() -> None:
    with a_terminal() as terminal:
        before = terminal.settings()
        with pytest.raises(KittiwakeError, match="does not answer"):
            await Live(admin(None), terminal.keys, terminal.out).run(1)
        assert terminal.settings() == before


@conversation
async def test_a_signal_gives_the_terminal_back() -> None:
    with a_terminal() as terminal:
        before = terminal.settings()
        running = asyncio.create_task(Live(admin(SMALL), terminal.keys, terminal.out).run(1))
        await terminal.until(lambda seen: seen.endswith("\x1b[J"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await terminal.until(lambda seen: seen.endswith(GIVE_SCREEN))
        assert terminal.settings() == before
