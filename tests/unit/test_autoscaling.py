"""The autoscaler beside a coordinator whose roles are played by hand: wishes, what became of them, operators, files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import actors.autoscaling
import actors.commands.scale
from actors.autoscaling import Autoscaling, forget_autoscaler, read_memory
from actors.cli import main
from actors.launch import follow
from actors.recording import Recording
from autoscaler.controller import Memory
from autoscaler.explain import text_of
from autoscaler.gates import cost_per_hour
from autoscaler.policy import Connections, ScalingPolicy
from autoscaler.policy_file import load_policy
from autoscaler.signals import LAYERS, Signals
from cluster.admin import Admin
from cluster.config import Config, Layers, load_config
from cluster.errors import ConfigError
from cluster.messages import MATCHER, Answer, Instruction, Request, Status, StatusRequest
from tests.unit.autoscaling import layer, policy, seen
from tests.unit.control import Control, layers

CONFIGS = Path(__file__).parents[2] / "configs"


class Desk:
    """A coordinator, its autoscaler, and a shell that does what the machine says by way of `Control`.

    busy: what the slices report to be from now on.
    """

    def __init__(
        self, directory: Path, made: ScalingPolicy | None = None, room: int | None = None, cores: float | None = None
    ) -> None:
        self.control = Control(layers(2)).serve()
        self.busy = 0.5
        self.failed: list[BaseException] = []
        self.companions: list[Any] = []
        self.autoscaling = Autoscaling(
            self.control.machine,
            made or policy(),
            directory,
            placeable=lambda: room,
            cores=lambda: None if cores is None else {"a": cores},
        )
        self.autoscaling._observer = self  # type: ignore[assignment]
        self.autoscaling._shell = self  # type: ignore[assignment]
        self.now = 1_800_000_000.0

    def signals(self, observed: Any, *, placeable: int | None = None, cores: Any = None) -> Signals:
        """As an observer would, of slices that report."""
        return seen(
            dict(observed.sizes),
            busy={MATCHER: self.busy},
            transition=observed.changing,
            epoch=observed.epoch,
            placeable=placeable,
            cores=None if cores is None else sum(cores.values()),
            publications_per_s=10.0,
        )

    def act(self, work: Callable[[], Iterable[Instruction]]) -> None:
        """As a shell does."""
        try:
            self.control._sort(list(work()))
        except Exception as error:
            self.failed.append(error)

    def tick(self, times: int = 1) -> None:
        """Let intervals pass."""

        async def ticks() -> None:
            for _ in range(times):
                self.now += 1
                self.autoscaling._tick(self.now)
                assert self.autoscaling._asking is not None
                await self.autoscaling._asking

        asyncio.run(ticks())

    def sizes(self) -> int:
        """How many matchers there are."""
        return len(self.control.machine.observed().slices) - 3

    def explain(self, **arguments: Any) -> dict[str, Any]:
        """What explain answers an operator."""
        found: dict[str, Any] = self.control.ask("autoscaler", action="explain", **arguments)
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.autoscaling.close()


def test_a_wish_goes_the_way_of_an_operators_and_its_end_is_heard(desk: Desk) -> None:
    desk.tick()
    desk.busy = 0.9
    desk.tick()
    assert desk.control.operation()["wanted"][MATCHER] == [0, 1, 2, 3]
    assert desk.explain()["requested"] == {MATCHER: 4}
    desk.tick()
    assert desk.explain()["decisions"][0]["decision"]["held"] == "transition"
    desk.control.settle()
    desk.busy = 0.5
    desk.tick(2)
    assert desk.sizes() == 4
    found = desk.explain(count=9)
    (entry,) = [one for one in found["decisions"] if one["decision"]["targets"]]
    assert (entry["outcome"], entry["operation"]) == ("done", desk.control.operation()["number"])
    assert found["observed"][MATCHER] == 4


def test_what_the_coordinator_refuses_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.busy = 0.9
    monkeypatch.setattr(desk.control.machine, "ask", lambda request: (Answer(b"", "lost: matcher 1"), []))
    desk.tick()
    entry = desk.explain()["decisions"][0]
    assert (entry["outcome"], entry["reason"]) == ("refused", "lost: matcher 1")


def test_an_aborted_operation_is_heard_with_its_reason(desk: Desk) -> None:
    desk.busy = 0.9
    desk.tick()
    desk.control.ask("abort")
    desk.control.settle()
    desk.tick()
    (entry,) = [one for one in desk.explain(count=9)["decisions"] if one["decision"]["targets"]][:1]
    assert (entry["outcome"], entry["reason"]) == ("aborted", "by the operator")


def test_a_machine_that_raises_is_the_shells_business(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: Request) -> Any:
        raise AssertionError("an invariant")

    desk.busy = 0.9
    monkeypatch.setattr(desk.control.machine, "ask", broken)
    desk.tick()
    assert [str(error) for error in desk.failed] == ["an invariant"]


def test_room_is_asked_for_and_counts(tmp_path: Path) -> None:
    desk = Desk(tmp_path, room=1)
    desk.tick()
    desk.busy = 0.9
    desk.tick()
    assert desk.control.operation()["wanted"][MATCHER] == [0, 1, 2]
    assert (
        "there is room for 1 more, 2 are wanted"
        in desk.explain()["decisions"][0]["decision"]["layers"][0]["why_not_more"]
    )
    desk.autoscaling.close()


def test_what_an_operator_says_outlives_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(tmp_path)
    assert desk.control.ask("autoscaler", action="pause")["paused"] is True
    assert desk.control.ask("autoscaler", action="mode", mode="advise")["mode"] == "advise"
    desk.autoscaling.close()
    assert read_memory(tmp_path / "autoscaler.json") == Memory("advise", True)
    again = Desk(tmp_path)
    again.busy = 0.9
    again.tick()
    assert again.explain()["decisions"][0]["decision"]["held"] == "paused"
    assert again.control.ask("autoscaler", action="resume")["paused"] is False
    again.tick()
    assert again.explain()["decisions"][0]["outcome"] == "advised"
    again.tick()
    assert again.sizes() == 2
    assert caplog.text.count("the autoscaler advises matcher 2 -> 4: utilization asks for it: busiest matcher 90%") == 1
    again.autoscaling.close()
    forget_autoscaler(tmp_path)
    assert read_memory(tmp_path / "autoscaler.json") == Memory()
    (tmp_path / "autoscaler.json").write_text("{")
    assert read_memory(tmp_path / "autoscaler.json") == Memory()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"action": "explain", "count": -1}, "count: -1 is not a whole number"),
        ({"action": "explain", "count": True}, "count: True is not"),
        ({"action": "mode", "mode": "fast"}, "mode 'fast'; allowed are auto, advise, manual"),
        ({"action": "sing"}, "allowed are explain, pause, resume and mode"),
        ({}, "allowed are explain, pause, resume and mode"),
    ],
)
def test_other_requests_are_refused(desk: Desk, arguments: dict[str, Any], text: str) -> None:
    assert text in desk.control.refused("autoscaler", **arguments)


def test_without_a_policy_there_is_no_autoscaler() -> None:
    text = Control(layers()).serve().refused("autoscaler", action="explain")
    assert text == "this cluster has no autoscaler: its configuration names no policy"


def test_signals_are_recorded(desk: Desk, tmp_path: Path) -> None:
    desk.tick(3)
    desk.autoscaling.close()
    rows = list(Recording(tmp_path / "signals"))
    assert [at for at, _ in rows] == [1_800_000_001.0, 1_800_000_002.0, 1_800_000_003.0]
    assert rows[0][1].sizes[MATCHER] == 2


def test_what_prometheus_is_told(desk: Desk) -> None:
    desk.busy = 0.9
    desk.tick()
    found = {(one.metric.name, one.labels): one.value for one in desk.autoscaling.series()}
    assert found["kittiwake_desired_replicas", (MATCHER, "utilization")] == pytest.approx(3.6)
    assert found["kittiwake_desired_replicas", (MATCHER, "decision")] == 4
    assert found["kittiwake_decisions_total", (MATCHER, "out")] == 1
    assert found["kittiwake_utilisation", (MATCHER,)] == 0.9
    assert found["kittiwake_cost_per_hour", ()] == 0


def test_explain_says_that_the_model_rests_on_the_prior_until_it_has_observed(tmp_path: Path) -> None:
    interest = {
        "publications_per_second": 800,
        "matches_per_publication": 930,
        "subscriptions": 10_000,
        "bytes_per_publication": 400,
    }
    desk = Desk(tmp_path, policy(capacity={"interest": interest}))
    rate, own = 0.0, desk.signals

    def signals(observed: Any, **known: Any) -> Signals:
        rows = own(observed, **known)
        slices = tuple(
            msgspec.structs.replace(one, subscriptions=5000, useful_share=desk.busy)
            for one in rows.slices
            if one.layer == MATCHER
        )
        return msgspec.structs.replace(rows, publications_per_s=rate, slices=slices)

    desk.signals = signals  # type: ignore[method-assign]
    desk.tick()
    assert "model      says nothing yet: nothing was measured yet: these are" in text_of(desk.explain())
    assert "a summary of interest leads to expect of matching (the prior)" in text_of(desk.explain())
    rate = 1000.0
    desk.tick(3)
    text = text_of(desk.explain())
    assert "3 observations at 1 size, this one among them" in text
    assert "prior" not in text
    desk.autoscaling.close()


def test_an_autoscaler_that_fails_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actors.autoscaling, "RETRY_S", 0.0)
    desk = Desk(tmp_path, policy(metrics_interval_s=0.1, evaluate_interval_s=0.1))
    real, calls = desk.signals, 0

    def signals(observed: Any, **known: Any) -> Signals:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ZeroDivisionError("no reason")
        return real(observed, **known)

    desk.signals = signals  # type: ignore[method-assign]

    async def story() -> None:
        desk.autoscaling.begin(desk)  # type: ignore[arg-type]
        async with asyncio.timeout(120):
            while calls < 4:
                await asyncio.sleep(0.01)
        desk.autoscaling.close()

    asyncio.run(story())
    assert desk.explain()["trouble"] == "ZeroDivisionError: no reason"
    assert "the autoscaler failed; another one begins" in caplog.text


def test_what_the_machines_have_is_asked_for_and_holds_growth(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cores=2.0)
    desk.tick()
    desk.busy = 0.95
    desk.tick()
    (entry,) = desk.explain()["decisions"]
    assert entry["decision"]["layers"][0]["why_not_more"] == (
        "cores: slices are busy for 1.9 of 2 cores, room for 0 more"
    )
    desk.autoscaling.close()


# The command line, the configuration ---------------------------------------------------------------------------------


@pytest.fixture
def asked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Commands ask the desk's coordinator."""

    async def ask(question: Request | StatusRequest) -> Answer | Status:
        assert isinstance(question, Request)
        return desk.control.raw(question.command, question.arguments)

    def answer(config_path: str | None, work: Callable[[Admin], Any]) -> Any:
        return asyncio.run(work(Admin(ask)))

    monkeypatch.setattr(actors.commands.autoscaler, "ask", answer)
    return desk


def kittiwake(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    return result.exit_code, result.output


def test_the_commands(asked: Desk) -> None:
    asked.busy = 0.9
    asked.tick()
    code, text = kittiwake("autoscaler", "explain")
    assert (code, text.splitlines()[0]) == (
        0,
        "policy test, auto; connection_point 1, access_point 1, matcher 2, exit_point 1",
    )
    assert "matcher 2 -> 4; running (operation 1)" in text
    assert json.loads(kittiwake("autoscaler", "explain", "--json", "-n", "1")[1])["requested"] == {MATCHER: 4}
    assert kittiwake("autoscaler", "pause")[1].startswith("policy test, paused;")
    assert kittiwake("autoscaler", "mode", "advise")[1].startswith("policy test, paused;")
    assert kittiwake("autoscaler", "resume")[1].startswith("policy test, advise;")
    assert kittiwake("autoscaler", "mode", "fast")[0] == 2


POLICY = """\
apiVersion: kittiwake/v1
kind: ScalingPolicy
metadata: {name: few}
slo: [{name: delay, target: 100}]
layers: {matcher: {max_replicas: 3, triggers: [{type: utilization, target: 0.6}, {type: slo, name: delay}]}}
"""


def test_policies_are_checked_by_a_command(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(POLICY)
    bad.write_text(POLICY.replace("max_replicas: 3", "min_replicas: 9"))
    code, text = kittiwake("policy", "check", str(good))
    assert code == 0
    assert text.splitlines() == [
        f"{good}: policy few, auto, evaluated each 2 s",
        "  slo delay: 99 % of notification_delay_ms within 100 ms",
        "  connection_point: left alone",
        "  access_point: left alone",
        "  matcher: 1 to 3, by utilization (target 0.6); slo (name delay)",
        "  exit_point: left alone",
    ]
    code, text = kittiwake("policy", "check", str(good), str(bad), str(tmp_path / "none.yaml"))
    assert code == 1
    assert f"{bad}:5: layers.matcher.min_replicas: 9 is above max_replicas (1)" in text
    assert "none.yaml: No such file or directory" in text


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    code, text = kittiwake("policy", "schema")
    assert (code, json.loads(text)["title"]) == (0, "Kittiwake scaling policy")
    path = tmp_path / "schema.json"
    assert kittiwake("policy", "schema", "-o", str(path))[0] == 0
    assert json.loads(path.read_text()) == json.loads(text)


def test_the_policy_is_beside_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("autoscaler: policies/few.yaml\n")
    assert load_config(path).autoscaler == str(tmp_path / "policies" / "few.yaml")
    path.write_text("autoscaler: /etc/few.yaml\n")
    assert load_config(path).autoscaler == "/etc/few.yaml"


def test_a_cluster_follows_its_policy_from_the_start() -> None:
    made = policy(
        metrics_interval_s=0.5, layers={"matcher": layer(initial_replicas=3), "exit_point": layer(min_replicas=1)}
    )
    config = follow(Config(), made)
    assert (config.layers.matchers, config.layers.exit_points, config.metrics.interval_ms) == (3, 1, 500)


def test_sizes_to_start_with_are_within_the_policys_limits() -> None:
    made = policy(
        layers={"matcher": layer(min_replicas=2, max_replicas=4), "exit_point": layer(max_replicas=3)},
    )
    few = follow(Config(layers=Layers(matchers=1, exit_points=2)), made).layers
    assert (few.matchers, few.exit_points) == (2, 2)
    many = follow(Config(layers=Layers(matchers=9, exit_points=9, access_points=9)), made).layers
    assert (many.matchers, many.exit_points, many.access_points) == (4, 3, 9)


def test_the_ready_cluster_and_its_policy_go_together() -> None:
    config = load_config(CONFIGS / "cluster.yaml")
    assert config.autoscaler == str(CONFIGS / "autoscaler.yaml")
    made = load_policy(config.autoscaler)
    sections = {name: one for name in LAYERS if (one := made.layers.of(name)) is not None}
    assert list(sections) == list(LAYERS), "it scales each layer"
    assert follow(config, made).layers == config.layers, "the sizes to start with are within its limits"
    most = {name: one.max_replicas for name, one in sections.items()}
    assert cost_per_hour(made.cost, most) <= (made.cost.budget_per_hour or 0), (
        "the budget is for no less than the limits"
    )
    assert config.layers.exit_points >= -(-config.layers.matchers // 4)
    assert most["exit_point"] >= -(-most["matcher"] // 4), "the floor can be kept at any size"
    ports = range(config.client_port.port, config.client_port.port + most["connection_point"])
    assert config.metrics.port not in ports
    (connected,) = [one for one in sections["connection_point"].triggers if isinstance(one, Connections)]
    assert connected.target_per_replica <= config.client_limits.connections
    assert made.guards.require_placeable, "as the configuration's Ray cluster adds no nodes by itself"
    assert config.metrics.interval_ms == round(made.metrics_interval_s * 1000)


def test_a_wrong_policy_is_told_before_anything_starts(tmp_path: Path) -> None:
    from actors.launch import launch

    async def start() -> None:
        async with launch(Config(autoscaler=str(tmp_path / "none.yaml"))):
            raise AssertionError("it started")

    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        asyncio.run(start())
