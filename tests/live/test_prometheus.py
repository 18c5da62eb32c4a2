"""A real Prometheus watches a cluster that is loaded, scaled twice and loses a matcher: panels and rules have data."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from actors.commands.top import look
from actors.commands.top_view import screen
from actors.launch import Broker, launch
from bench.process import free_ports
from cluster.config import ClientPort, Config, Metrics, OutputSettings, Transitions
from cluster.metrics import OUTPUT
from configs.grafana import render
from configs.grafana.asking import Prometheus, Series
from tests.live.processes import PATIENCE_S, PATIENT
from tests.live.prometheus_server import CONFIGS, PROGRAM, SCRAPE_S, prometheus
from tests.live.traffic import traffic
from tests.queries import selectors
from tests.unit.test_rules import ALERTS, RECORDED, rules

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(PROGRAM is None, reason="Prometheus (Debian package prometheus) is not installed"),
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAME = "watched"
NOT_HERE = {"kittiwake_efficiency", "kittiwake_karp_flatt"}
"""This cluster does not run for so long that the autoscaler's model is sure to say what it has learned: it may be that
nothing exports these. As soon as something does, there must be data."""

T = TypeVar("T")


def boards() -> Iterator[tuple[str, str]]:
    """Yield (where, expression) for each query of a panel and each annotation."""
    for path in sorted(render.FOLDER.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in render.panels(board):
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']} {target['refId']}", target["expr"]
        for one in board["annotations"]["list"]:
            yield f"{path.stem}: {one['name']}", one["expr"]


EXPRESSIONS = [*boards(), *((rule["record"], rule["expr"]) for rule in rules("recording.yml"))]


def has_data(series: list[Series]) -> bool:
    """Tell whether there is a number among the points."""
    return any(not math.isnan(value) for one in series for value in one.values)


def missing(server: Prometheus, window: render.Window) -> dict[str, str]:
    """Return the expressions without data, by where they are; not those about what this cluster does not have."""
    exported = {one.labels["__name__"] for one in server.now('count by (__name__) ({__name__=~"kittiwake_.*"})')}
    found = {}
    for where, expr in EXPRESSIONS:
        series = server.range(window.fill(expr), window.start_s, window.end_s, window.step_s)
        asked = {one.metric.name for one in selectors(expr) if one.metric is not None}
        if not has_data(series) and not (asked & NOT_HERE and not asked & NOT_HERE & exported):
            found[where] = expr
    return found


async def until(condition: Callable[[], T], what: str) -> T:
    """Return what a question to Prometheus returns once that is true; fail with `what` after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await asyncio.to_thread(condition)
        if answer:
            return answer
        assert time.monotonic() < deadline, what
        await asyncio.sleep(SCRAPE_S / 2)


async def kill_matcher(broker: Broker) -> None:
    """Kill a matcher and wait until another process has taken its place."""
    members = (await broker.status())["members"]
    victim = next(row for row in members if row["layer"] == "matcher")
    os.kill(victim["pid"], signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while (await broker.status())["recovered"] < 1:
            await asyncio.sleep(0.05)


async def shown(broker: Broker) -> None:
    """Wait until `kittiwake top` shows the traffic and all slices; while a matcher was dead nothing was delivered."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = screen(await look(broker.admin), 120, 40)
        serving = [line for line in seen if " serving " in line]
        if re.match(r"in [1-9][\d,.]*k?/s  out [1-9][\d,.]*k?/s  delay p50 \d", seen[1]) and len(serving) >= 7:
            return
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(SCRAPE_S / 2)


def policy(directory: Path) -> str:
    """Return the path of a policy that only advises, and at this load always has more matchers in mind than it may."""
    document = yaml.safe_load((CONFIGS / "autoscaler.yaml").read_text(encoding="utf-8"))
    document |= {"mode": "advise", "evaluate_interval_s": 1, "look_back_period_s": 3}
    # Other tests may keep all cores busy meanwhile.
    document["guards"]["require_placeable"] = False
    matcher = document["layers"]["matcher"]
    matcher["triggers"][0] |= {"target": 0.005, "min": 0.002, "max": 0.01}
    matcher |= {"max_replicas": 5, "upscale_delay_s": 0}
    path = directory / "policy.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, render.Window]]:
    """A Prometheus that has seen what the module's head says, and the time of it; the cluster is gone."""
    directory = tmp_path_factory.mktemp("watched")
    port = free_ports(2)
    config = Config(
        name=NAME,
        data_directory=str(directory / "data"),
        client_port=ClientPort(port=0),
        metrics=Metrics(port=port),
        transitions=Transitions(wave_groups=256),
        timing=PATIENT,
        autoscaler=policy(directory),
        output=OutputSettings(path="output", segment_age_s=0.5),
    )
    with prometheus(directory / "prometheus", port + 1, port) as server:
        start_s = time.time()

        def window() -> render.Window:
            return render.Window(start_s, time.time(), SCRAPE_S, NAME)

        async def story() -> None:
            async with launch(config) as broker:
                await until(lambda: len(server.now("up == 1")) == 5, "not every slice is found")
                async with traffic(broker):
                    for sizes in ({"matchers": 3, "exit_points": 2}, {"matchers": 2, "access_points": 2}):
                        operation = await broker.admin.scale(**sizes, timeout_s=PATIENCE_S)
                        assert operation["state"] == "done", operation["reason"]
                    await kill_matcher(broker)
                    await until(lambda: len(server.now("up == 1")) == 8, "newcomers are not found, or leavers kept")
                    await shown(broker)
                    left: dict[str, str] = {}

                    def complete() -> bool:
                        left.clear()
                        left.update(missing(server, window()))
                        return not left

                    try:
                        await until(complete, "expressions without data")
                    except AssertionError:
                        pytest.fail(f"without data: {json.dumps(left, indent=1)}")

        with asyncio.Runner() as runner:
            runner.run(bounded(story()))
        yield server, window()


async def bounded(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(400):
        await work


def test_every_panel_and_recorded_rule_has_data(watched: tuple[Prometheus, render.Window]) -> None:
    server, window = watched
    assert not missing(server, window)
    # What the fixture did is seen: the sizes between which it went, the transitions, the recovery.
    sizes = server.range(f'kittiwake_slices{{cluster="{NAME}"}}', window.start_s, window.end_s, SCRAPE_S)
    seen = {one.labels["layer"]: set(one.values) for one in sizes}
    assert seen["matcher"] >= {1.0, 3.0, 2.0}
    assert seen["exit_point"] >= {1.0, 2.0}
    written = server.range(f'kittiwake_output_rows_total{{cluster="{NAME}"}}', window.start_s, window.end_s, SCRAPE_S)
    assert {one.labels["slot"] for one in written if max(one.values) > 0} == {"0", "1"}, "both have written"


def test_every_metric_of_the_output_is_there(watched: tuple[Prometheus, render.Window]) -> None:
    server, window = watched
    for metric in OUTPUT:
        series = server.range(f'{metric.name}{{cluster="{NAME}"}}', window.start_s, window.end_s, SCRAPE_S)
        assert has_data(series), f"nothing exports {metric.name}"


def test_every_rule_is_evaluated_without_an_error(watched: tuple[Prometheus, render.Window]) -> None:
    server, _ = watched
    groups = server.get("rules")["groups"]
    states = {rule["name"]: (rule["health"], rule.get("lastError")) for group in groups for rule in group["rules"]}
    assert states == dict.fromkeys([*(rule["alert"] for rule in ALERTS), *RECORDED], ("ok", None))


def test_what_alerts_watch_exists(watched: tuple[Prometheus, render.Window]) -> None:
    """A healthy cluster raises none of them, so that the expression says nothing; the metrics must be there."""
    server, window = watched
    names = {one.name for rule in ALERTS for one in selectors(rule["expr"])} - NOT_HERE
    assert len(names) > 10
    for name in sorted(names):
        series = server.range(f'{name}{{cluster="{NAME}"}}', window.start_s, window.end_s, SCRAPE_S)
        assert has_data(series), f"nothing exports {name}"


def test_series_are_few_and_none_is_of_a_client(watched: tuple[Prometheus, render.Window]) -> None:
    server, window = watched
    found = server.range('count by (__name__) ({__name__=~"kittiwake_.*"})', window.start_s, window.end_s, SCRAPE_S)
    assert max(max(one.values) for one in found) <= 1000
    values = {
        value
        for one in server.range('{__name__=~"kittiwake_.*"}', window.start_s, window.end_s, 10)
        for value in one.labels.values()
    }
    assert not [value for value in values if "subscriber" in value or "publisher-" in value or "rounder" in value]


def test_panels_are_drawn(watched: tuple[Prometheus, render.Window], tmp_path: Path) -> None:
    server, window = watched
    written = render.render(sorted(render.FOLDER.glob("*.json")), server, window, tmp_path)
    assert [path.stem for path in written] == sorted(path.stem for path in render.FOLDER.glob("*.json"))
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 50_000, f"{path.name} is nearly empty"


def test_the_committed_configuration_is_what_ran() -> None:
    document = yaml.safe_load((CONFIGS / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = [job for job in document["scrape_configs"] if job["job_name"] == "kittiwake"]
    assert job["http_sd_configs"][0]["url"] == f"http://127.0.0.1:{Metrics().port}/targets"
