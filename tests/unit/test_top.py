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
from actors.commands.top import GIVE_SCREEN, TAKE_SCREEN, Live, Watcher, observed
from actors.commands.top_view import View, number, screen
from autoscaler.decision import Decision, LayerDecision
from autoscaler.signals import BUCKETS, DELAY_BOUNDS_MS, Signals, SliceSignals, Spread
from cluster.admin import Admin
from cluster.config import Config
from cluster.errors import KittiwakeError
from cluster.messages import CONNECTION_POINT, MATCHER, Peer, Report
from cluster.metrics import DELAY_BUCKETS_MS
from tests.unit.conversation import conversation
from tests.unit.test_cli import ABORTED, OPERATION, RUNNING

AT = datetime(2026, 11, 28, 12, 34, 56)
LAYERS = {"connection_point": 1, "access_point": 1, "matcher": 3, "exit_point": 2}
WIDTHS = (1, 10, 20, 40, 60, 80, 100, 132, 250)
HEIGHTS = (1, 2, 5, 8, 12, 24, 60)


def histogram(**counts: int) -> tuple[int, ...]:
    """Return a histogram with counts below bounds, as in `ms5=10`."""
    places = {f"ms{bound:g}": place for place, bound in enumerate(DELAY_BOUNDS_MS)}
    made = [0] * BUCKETS
    for name, count in counts.items():
        made[places[name]] = count
    return tuple(made)


def slices(layers: dict[str, int]) -> tuple[SliceSignals, ...]:
    return tuple(
        SliceSignals(
            layer=layer,
            slot=slot,
            useful_share=0.1 + 0.4 * slot if layer == "matcher" else 0.25,
            backlog_messages=10 * slot,
            match_ms=Spread(5, 0.001, 0.02, 0.012) if layer == "matcher" else None,
            publications_per_s=2345.0,
            notifications_per_s=54_321.0 if layer in ("connection_point", "exit_point") else None,
            subscriptions=1000 + slot if layer == "matcher" else None,
            connections=7 if layer == "connection_point" else None,
            rss_bytes=151_000_000,
        )
        for layer, count in layers.items()
        for slot in range(count)
    )


def view(layers: dict[str, int] | None = None, **changed: Any) -> View:
    """Return a cluster of so many slices that is well, but for what is changed."""
    layers = layers or LAYERS
    members = [
        {"layer": layer, "slot": slot, "state": "serving", "pid": 4000 + slot}
        for layer, count in layers.items()
        for slot in range(count)
    ]
    status = {"name": "local", "state": "serving", "epoch": 12, "lost": 0, "sessions": 7, "members": members}
    status |= changed.pop("status", {})
    signals = Signals(
        interval_s=1.0,
        epoch=12,
        sizes=layers,
        publications_per_s=2345.0,
        notifications_per_s=54_321.0,
        delay=histogram(ms2=90, ms15=10),
        subscribe_ack=histogram(ms5=1),
        slices=slices(layers),
    )
    return View(AT, status, **{"signals": signals, **changed})


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
        "in 2,345/s  out 54.3k/s  delay p50 1.56 ms p99 14.5 ms  subscribe p50 4 ms p99 4.98 ms  subscriptions 3,003"
    )
    heads = "SLICE STATE IN USE PUBL/S NOTIF/S BACKLOG SUBSCR CLIENTS MATCH MEMORY PID"
    assert " ".join(lines[3].split()) == heads
    rows = [" ".join(line.split()) for line in lines[4:13]]
    assert rows == [
        "connection point 0 serving 25% ██░░░░░░░░ 2,345 54.3k 0 7 151 MB 4000",
        "access point 0 serving 25% ██░░░░░░░░ 2,345 0 151 MB 4000",
        "matchers 3 serving 90% █████████░ 2,345 30 3,003 453 MB",
        "matcher 0 serving 10% █░░░░░░░░░ 2,345 0 1,000 12 µs 151 MB 4000",
        "matcher 1 serving 50% █████░░░░░ 2,345 10 1,001 12 µs 151 MB 4001",
        "matcher 2 serving 90% █████████░ 2,345 20 1,002 12 µs 151 MB 4002",
        "exit points 2 serving 25% ██░░░░░░░░ 4,690 109k 10 302 MB",
        "exit point 0 serving 25% ██░░░░░░░░ 2,345 54.3k 0 151 MB 4000",
        "exit point 1 serving 25% ██░░░░░░░░ 2,345 54.3k 10 151 MB 4001",
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
    shown = view(large, operations=[OPERATION] * 5)
    signals = cast(Signals, shown.signals)
    busy = tuple(
        msgspec.structs.replace(one, useful_share=0.95 if one.slot in (7, 21) else 0.2)
        if one.layer == "matcher"
        else one
        for one in signals.slices
    )
    shown = View(AT, shown.status, msgspec.structs.replace(signals, slices=busy), shown.operations)
    lines = [line.strip() for line in screen(shown, 80, 18)]
    assert len(lines) == 18
    assert any(line.startswith("matchers 30, 5 shown") for line in lines)
    assert {"matcher 7", "matcher 21"} <= {" ".join(line.split()[:2]) for line in lines}
    assert any(line.startswith("exit points 2") for line in lines)
    assert lines[-2:] == ["changes", "3 matcher +2 +3 -1, exit point +1: done in 4.3 s"]


def test_a_lost_slice_is_shown_before_busy_ones() -> None:
    large = {"connection_point": 1, "access_point": 1, "matcher": 30, "exit_point": 1}
    shown = view(large)
    members = [row | ({"state": "lost"} if row["pid"] == 4017 else {}) for row in shown.status["members"]]
    lost = View(AT, shown.status | {"members": members, "lost": 1}, shown.signals)
    text = "\n".join(screen(lost, 100, 10))
    assert "1 LOST" in text
    assert re.search(r"matchers 30, \d shown +lost", text)
    assert re.search(r"matcher 17 +lost", text)


def test_what_is_not_known_is_not_shown_as_0() -> None:
    lines = screen(view(signals=None), 120, 30)
    assert not any("/s " in line for line in lines[:2])
    (row,) = [line for line in lines if " matcher 1" in line]
    assert row.split()[:4] == ["matcher", "1", "serving", "-"]


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


# From the coordinator's documents ---------------------------------------------------------------------------------


def report(layer: str, at_ms: int, times: int) -> dict[str, Any]:
    """Return a slice's report after so many seconds of the same work, as it is in a status document."""
    delay = [0] * (len(DELAY_BUCKETS_MS) + 1)
    delay[3] = 100 * times
    counters = {
        "useful_us": 400_000 * times,
        "accepted": 2000 * times,
        "publications": 2000 * times,
        "notifications": 500 * times,
        "subscriptions": 42,
        "connections": 5,
        "resident_bytes": 99_000_000,
    }
    histograms = (
        {"notification_delay": [*delay, 0]} if layer == CONNECTION_POINT else {"match": [100 * times, 0, 500 * times]}
    )
    said = Report(at_ms, counters, histograms, [(MATCHER, 0, 3, 900)], (4000, 6000))
    return cast(dict[str, Any], json.loads(msgspec.json.encode(msgspec.structs.asdict(said))))


def status(times: int) -> dict[str, Any]:
    members = [
        {
            "layer": layer,
            "slot": 0,
            "state": "serving",
            "pid": 7,
            "incarnation": 1,
            "report": report(layer, 1000 * times, times),
        }
        for layer in (CONNECTION_POINT, MATCHER)
    ]
    return {
        "name": "local",
        "state": "serving",
        "epoch": 3,
        "lost": 0,
        "sessions": 5,
        "operation": None,
        "members": members,
    }


class Documents:
    """An admin that gives one status after the other; None for a coordinator that does not answer."""

    def __init__(self, *documents: dict[str, Any] | None) -> None:
        self._documents = list(documents)

    async def status(self) -> dict[str, Any]:
        document = self._documents.pop(0) if len(self._documents) > 1 else self._documents[0]
        if document is None:
            raise KittiwakeError("the coordinator of 'local' does not answer")
        return document

    async def transitions(self) -> list[dict[str, Any]]:
        return [OPERATION]


def watcher(*documents: dict[str, Any] | None) -> Watcher:
    return Watcher(cast(Admin, Documents(*documents)), Config())


@conversation
async def test_two_looks_make_rates() -> None:
    watching = watcher(status(1), status(2))
    assert (await watching.look()).signals is None
    signals = (await watching.look()).signals
    assert signals is not None
    assert signals.publications_per_s == 2000
    assert signals.notifications_per_s == 500
    assert signals.delay is not None
    assert sum(signals.delay) == 100
    (matcher,) = signals.of(MATCHER)
    assert (matcher.useful_share, matcher.subscriptions, matcher.rss_bytes) == (0.4, 42, 99_000_000)
    assert matcher.match_ms is not None
    assert matcher.backlog_bytes == 1800, "as both slices say"


def test_a_slice_that_has_not_reported_is_known_to_be_there() -> None:
    rows = [{"layer": MATCHER, "slot": 1, "state": "starting"}, *status(1)["members"]]
    seen = observed({"epoch": None, "members": rows, "recovery": {}}, 5)
    assert seen.epoch == 0
    assert seen.changing
    assert seen.sizes == {MATCHER: 2, CONNECTION_POINT: 1}
    assert seen.slices[Peer(MATCHER, 1)].report is None
    assert seen.slices[Peer(MATCHER, 0)].report is not None


# The command and the terminal -------------------------------------------------------------------------------------


def top(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> Any:
    monkeypatch.setattr(actors.asking, "open_admin", lambda config: Documents(status(1), status(2)))
    monkeypatch.setattr("actors.commands.top._pause", lambda seconds: asyncio.sleep(0))
    return CliRunner().invoke(main, ["top", *arguments], env=environment, catch_exceptions=False)


def test_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = top(monkeypatch, "--once", COLUMNS="80")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("kittiwake local: serving, view 3, 5 clients")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.output


def test_once_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(top(monkeypatch, "--once", "--json").output)
    assert document["signals"]["publications_per_s"] == 2000
    assert document["status"]["name"] == "local"
    assert document["operations"] == [json.loads(json.dumps(OPERATION))]
    assert datetime.fromisoformat(document["at"]).tzinfo is not None


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
        async with asyncio.timeout(20):
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
        live = Live(watcher(status(1), status(2), None), terminal.keys, terminal.out)
        running = asyncio.create_task(live.run(0.01))
        seen = await terminal.until(lambda seen: "does not answer\x1b" in seen and seen.endswith("\x1b[J"))
        assert seen.startswith(TAKE_SCREEN)
        assert terminal.settings() != before
        lines = drawn(seen)
        assert lines[0].startswith("kittiwake local: serving, view 3, 5 clients")
        assert lines[1].startswith("in 2,000/s")
        assert lines[2].startswith("as of ")
        terminal.resize(40, 6)
        os.kill(os.getpid(), 28)  # SIGWINCH, which the terminal sends to its own foreground alone
        seen = await terminal.until(lambda seen: any(len(drawn(part)) == 6 for part in seen.split("\x1b[J")[:-1]))
        terminal.type(b"xq")
        await asyncio.wait_for(running, 20)
        seen = await terminal.until(lambda seen: seen.endswith(GIVE_SCREEN))
        assert terminal.settings() == before


@conversation
async def test_without_a_coordinator_the_screen_is_not_taken() -> None:
    with a_terminal() as terminal:
        before = terminal.settings()
        with pytest.raises(KittiwakeError, match="does not answer"):
            await Live(watcher(None), terminal.keys, terminal.out).run(1)
        assert terminal.settings() == before


@conversation
async def test_a_signal_gives_the_terminal_back() -> None:
    with a_terminal() as terminal:
        before = terminal.settings()
        running = asyncio.create_task(Live(watcher(status(1)), terminal.keys, terminal.out).run(1))
        await terminal.until(lambda seen: seen.endswith("\x1b[J"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await terminal.until(lambda seen: seen.endswith(GIVE_SCREEN))
        assert terminal.settings() == before
