"""Drawing the dashboards: what Prometheus is asked, how its answers look, what is said when it does not answer.

A small HTTP server answers as Prometheus would; a real one is asked in live/test_prometheus.py.
"""

from __future__ import annotations

import io
import json
import math
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from configs.grafana import render
from configs.grafana.asking import Prometheus, PrometheusError, Series, filled
from configs.grafana.drawing import Answer, draw
from configs.grafana.units import shown


class Handler(BaseHTTPRequestHandler):
    """Answers every range with two series of a slope, those of buckets with three buckets."""

    asked: ClassVar[list[str]] = []
    clusters: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        arguments = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        expr = arguments.get("query", "")
        self.asked.append(expr)
        if "refused" in expr:
            return self._say(400, {"status": "error", "error": "parse error: unexpected character"})
        if "garbled" in expr:
            return self._say(502, None)
        match url.path.rpartition("/")[2]:
            case "targets":
                target = {"scrapePool": "kittiwake", "scrapeInterval": "1m2s"}
                data: Any = {"activeTargets": [target, {"scrapePool": "other", "scrapeInterval": "5m"}]}
            case "query" if expr == "1":
                data = {"resultType": "scalar", "result": [0, "1"]}
            case "query":
                data = {
                    "resultType": "vector",
                    "result": [{"metric": {"cluster": name}, "value": [0, "1"]} for name in self.clusters],
                }
            case _:
                start, step = float(arguments["start"]), float(arguments["step"])
                labels = (
                    [{"le": bound} for bound in ("0.1", "1.0", "+Inf")] if "_bucket" in expr else [{"slot": "0"}, {}]
                )
                result = [
                    {"metric": one, "values": [[start + step * n, str(n * (place + 1))] for n in range(20)]}
                    for place, one in enumerate(labels)
                ]
                data = {"resultType": "matrix", "result": result}
        return self._say(200, {"status": "success", "data": data})

    def _say(self, code: int, document: Any) -> None:
        body = b"no json" if document is None else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked, Handler.clusters = [], ["local"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}"
        finally:
            serving.shutdown()
            thread.join()


def test_a_board_is_drawn(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render.main(["--prometheus", server + "/", "--to", str(tmp_path / "new"), "--board", "overview"]) == 0
    path = tmp_path / "new" / "overview.png"
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 50_000
    board = json.loads((render.FOLDER / "overview.json").read_text(encoding="utf-8"))
    wanted = [target["expr"] for panel in render.panels(board) for target in panel["targets"]]
    wanted += [one["expr"] for one in board["annotations"]["list"]]
    asked = [expr for expr in Handler.asked if "kittiwake" in expr]
    assert {expr.replace("$__rate_interval", "248s").replace("$cluster", "local") for expr in wanted} <= set(asked)
    assert not [expr for expr in asked if re.search(r"\$[a-z_{]", expr)]


def test_what_has_no_data_says_so_and_what_is_unknown_is_an_error() -> None:
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    panel = {
        "type": "timeseries",
        "title": "Nothing",
        "gridPos": place,
        "fieldConfig": {"defaults": {"noValue": "quiet"}},
    }
    board = {"title": "Board", "panels": [panel]}
    empty = Series({}, (1.0, 2.0), (math.nan, math.nan))
    figure = draw(board, [(panel, [Answer("", (empty,))])], [], (0, 10))
    assert [text.get_text() for text in figure.axes[0].texts] == ["quiet"]
    strange = panel | {"type": "gauge"}
    with pytest.raises(ValueError, match="'Nothing' is of type 'gauge'"):
        draw(board, [(strange, [Answer("", (Series({}, (1.0,), (1.0,)),))])], [], (0, 10))


@pytest.mark.parametrize("minutes", [0.1, 1, 2.5, 3.3, 5, 14, 40, 150, 800, 3000, 40_000])
def test_any_time_can_be_shown(minutes: float) -> None:
    panel = {"type": "timeseries", "title": "Long", "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8}}
    one = Series({}, (1.8e9, 1.8e9 + 60 * minutes), (1.0, 2.0))
    shown_from = (one.times[0], one.times[-1])
    figure = draw({"title": "Board", "panels": [panel]}, [(panel, [Answer("a", (one,))])], [], shown_from)
    figure.savefig(io.BytesIO())  # warnings are errors
    assert 2 <= len(figure.axes[0].get_xticks()) <= 9


def test_lines_do_not_bridge_what_is_missing() -> None:
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    panel = {"type": "timeseries", "title": "Holes", "gridPos": place}
    one = Series({}, (1.0, 2.0, 3.0, 7.0, 8.0), (1.0, 2.0, 3.0, 4.0, 5.0))
    mark = ("Changes", "blue", Series({}, (2.0, 3.0, 7.0), (1.0, 1.0, 1.0)))
    figure = draw({"title": "Board", "panels": [panel]}, [(panel, [Answer("a", (one,))])], [mark], (0, 10))
    line, *marks = figure.axes[0].lines
    assert [str(value) for value in line.get_ydata()] == ["1.0", "2.0", "3.0", "nan", "4.0", "5.0"]
    assert len(marks) == 2, "one for each beginning"


@pytest.mark.parametrize(
    ("clusters", "arguments", "said"),
    [
        ([], [], "not one cluster alone, but these: none"),
        (["a", "b"], [], "not one cluster alone, but these: a, b"),
        (["a", "b"], ["--cluster", "c"], "no cluster 'c', but these: a, b"),
    ],
)
def test_which_cluster_must_be_clear(
    clusters: list[str],
    arguments: list[str],
    said: str,
    server: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Handler.clusters = clusters
    assert render.main(["--prometheus", server, "--to", str(tmp_path), *arguments]) == 1
    assert said in capsys.readouterr().err


def test_trouble_names_the_question(server: str) -> None:
    prometheus = Prometheus(server)
    with pytest.raises(PrometheusError, match=r"refuses query 'refused': parse error: unexpected character"):
        prometheus.now("refused")
    with pytest.raises(PrometheusError, match=r"refuses query 'garbled': no json"):
        prometheus.now("garbled")
    assert [one.values for one in prometheus.now("1")] == [(1.0,)]
    assert prometheus.scrape_interval_s() == 62
    with pytest.raises(PrometheusError, match="no http or https address"):
        Prometheus("file:///etc/passwd")


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render.main(["--prometheus", "http://127.0.0.1:9", "--to", str(tmp_path)]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(("scrape_s", "step_s", "window"), [(5, 2, "20s"), (1, 60, "61s"), (0.2, 0.2, "1s")])
def test_grafanas_variables_are_filled_in(scrape_s: float, step_s: float, window: str) -> None:
    expr = 'rate(x{cluster="$cluster",layer=~"${layer}"}[$__rate_interval])'
    assert (
        filled(expr, scrape_s=scrape_s, step_s=step_s, cluster="a") == f'rate(x{{cluster="a",layer=~".+"}}[{window}])'
    )


def test_series_are_named_as_in_grafana() -> None:
    one = Series({"__name__": "x", "layer": "matcher", "slot": "0"}, (), ())
    assert one.name("{{layer}} {{slot}}") == "matcher 0"
    assert one.name("") == "layer=matcher, slot=0"
    assert Series({"__name__": "x"}, (), ()).name("") == "x"
    assert Series({}, (), ()).name("") == "value"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (0.0000123, "s", "12.3 µs"),
        (0, "s", "0 s"),
        (90, "s", "1.5 min"),
        (7200, "s", "2 h"),
        (1500, "ms", "1.5 s"),
        (0.256, "percentunit", "25.6 %"),
        (5, "percent", "5 %"),
        (1_500_000, "bytes", "1.5 MB"),
        (12, "bytes", "12 B"),
        (2000, "Bps", "2 kB/s"),
        (12_345, "cps", "12.3 k/s"),
        (3, "none", "3"),
        (1.25, "currencyEUR", "1.25 EUR"),
        (1, "bool_yes_no", "yes"),
        (0, "bool_yes_no", "no"),
        (7, "suffix: views", "7 views"),
        (math.nan, "s", "-"),
        (math.inf, "s", "∞"),
        (-math.inf, "s", "-∞"),
    ],
)
def test_numbers_have_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
