"""configs/grafana: the committed dashboards are what the definitions say, are valid for Grafana, and ask for what is
exported. That every expression has data from a running cluster is for live/test_prometheus.py.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models

from configs.grafana import build
from configs.grafana.boards import WIDTH
from configs.grafana.build import BOARDS, FOLDER, stale
from configs.grafana.promql import metric, rate
from tests.queries import problems
from tests.unit.test_rules import ALERTS, RECORDED

register_default_plugins()

FILES = sorted(FOLDER.glob("*.json"))
Document = dict[str, Any]


def load(path: Path) -> Document:
    """Return a dashboard's document."""
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    return document


every_board = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


def panels(path: Path) -> list[Document]:
    """Return a dashboard's panels without the headings."""
    return [panel for panel in load(path)["panels"] if panel["type"] != "row"]


def expressions(path: Path) -> list[str]:
    """Return all that a dashboard asks."""
    board = load(path)
    return [
        *(target["expr"] for panel in panels(path) for target in panel["targets"]),
        *(one["expr"] for one in board["annotations"]["list"]),
    ]


def test_the_committed_files_are_current() -> None:
    assert not stale(), "run python -m configs.grafana.build"
    assert len(FILES) == len(BOARDS) == 5


def test_what_is_not_current_is_named_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    (tmp_path / "former.json").write_text("{}")
    assert build.main([]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in FILES]
    assert build.main(["--check"]) == 0
    (tmp_path / "layers.json").write_text("{}")
    (tmp_path / "clients.json").unlink()
    capsys.readouterr()
    assert build.main(["--check"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [Path(line.split()[0]).name for line in said] == ["clients.json", "layers.json"]


@every_board
def test_grafanas_own_model_takes_it_and_loses_nothing(path: Path) -> None:
    model = models.Dashboard.from_json(load(path))
    assert json.loads(json.dumps(model, cls=JSONEncoder)) == load(path)
    assert not list(mistyped(model, path.stem))


def mistyped(value: Any, where: str) -> typing.Iterator[str]:
    """Yield what in a model is not of the type that the model's class says."""
    for name, hint in typing.get_type_hints(type(value)).items():
        held = getattr(value, name)
        if not fits(held, hint):
            yield f"{where}.{name}: {held!r} is no {hint}"
        for place, one in enumerate(held if isinstance(held, list) else [held]):
            if type(one).__module__.startswith("grafana_foundation_sdk.models") and not isinstance(one, enum.Enum):
                yield from mistyped(one, f"{where}.{name}[{place}]")


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in list(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def test_the_model_check_sees_mistakes() -> None:
    document = load(FILES[0])
    panel = next(panel for panel in document["panels"] if panel["type"] == "timeseries")
    panel["titel"] = "a key that Grafana does not have"
    panel["fieldConfig"]["defaults"]["min"] = "0"
    panel["options"]["legend"]["displayMode"] = "tabular"
    model = models.Dashboard.from_json(document)
    assert json.loads(json.dumps(model, cls=JSONEncoder)) != document
    found = "\n".join(mistyped(model, "board"))
    assert ".min_val: '0' is no" in found
    assert ".display_mode: 'tabular' is no" in found


@every_board
def test_panels_are_told_apart_and_do_not_overlap(path: Path) -> None:
    board = load(path)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in panels(path)}) == len(panels(path))
    cells = [panel["gridPos"] for panel in board["panels"]]
    for place in cells:
        assert place["w"] > 0
        assert place["h"] > 0
        assert 0 <= place["x"] <= place["x"] + place["w"] <= WIDTH
    for one, other in combinations(cells, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), f"{one} and {other} overlap"


@every_board
def test_each_panel_says_what_it_shows_and_where_its_data_is(path: Path) -> None:
    source = {"type": "prometheus", "uid": "${source}"}
    board = load(path)
    assert {"source"} <= {variable["name"] for variable in board["templating"]["list"]}
    for panel in panels(path):
        title = panel["title"]
        assert len(panel["description"]) > 20, title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["datasource"] == source, title
        assert panel["targets"], title
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), title
        assert all(target["datasource"] == source for target in panel["targets"]), title
    assert all(one["datasource"] == source for one in board["annotations"]["list"])


@every_board
def test_expressions_ask_for_what_is_exported(path: Path) -> None:
    found = {expr: problems(expr, RECORDED, bare_counters=False) for expr in expressions(path)}
    assert not {expr: wrong for expr, wrong in found.items() if wrong}


@every_board
def test_the_layer_variable_is_there_where_it_is_used(path: Path) -> None:
    has = "layer" in {variable["name"] for variable in load(path)["templating"]["list"]}
    assert has == any("$layer" in expr for expr in expressions(path))


@every_board
def test_alerts_that_a_description_names_exist(path: Path) -> None:
    names = {rule["alert"] for rule in ALERTS}
    for panel in panels(path):
        words = panel["description"].replace(":", " ").replace(".", " ").split()
        assert {word for word in words if word.startswith("Kittiwake") and word != "Kittiwake"} <= names


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("sum(rate(kittiwake_delivered_total[1m]))", None),
        ("kittiwake_view_epoch", None),
        ('histogram_quantile(0.99, sum by (le, slot) (rate(kittiwake_match_seconds_bucket{slot="0"}[1m])))', None),
        ('kittiwake_notification_delay_seconds_bucket{le="0.1"}', "is a counter"),
        ("sum(rate(kittiwake_delivered[1m]))", "is not exported"),
        ("rate(kittiwake_match_seconds[1m])", "is a histogram"),
        ("rate(kittiwake_sessions[1m])", "rate of kittiwake_sessions"),
        ("deriv(kittiwake_delivered_total[1m])", "deriv of kittiwake_delivered_total"),
        ("kittiwake_delivered_total", "is a counter"),
        ('kittiwake_sessions{client="a"}', "no label client"),
        ("sum by (reason) (rate(kittiwake_delivered_total[1m]))", "no label reason"),
        ('kittiwake_sessions{layer="matcher"}', "is never 'matcher'"),
        ('rate(kittiwake_dropped_total{reason="tired"}[1m])', "is never 'tired'"),
        ('rate(kittiwake_notification_delay_seconds_bucket{le="0.123"}[1m])', "is never '0.123'"),
        ("histogram_quantile(0.5, sum by (le) (rate(kittiwake_match_seconds_sum[1m])))", "no _bucket"),
        ("histogram_quantile(0.5, sum by (slot) (rate(kittiwake_match_seconds_bucket[1m])))", "without le"),
        ("cluster:kittiwake_unheard_of:rate1m", "is not exported"),
    ],
)
def test_the_check_of_expressions_sees_mistakes(expr: str, wrong: str | None) -> None:
    found = problems(expr, bare_counters=False)
    assert (wrong is None and not found) or (wrong is not None and any(wrong in one for one in found)), found


def test_definitions_cannot_name_what_does_not_exist() -> None:
    with pytest.raises(KeyError, match="kittiwake_nothing"):
        metric("nothing")
    with pytest.raises(AssertionError, match="is a gauge, not a counter"):
        rate("sessions")


def test_provisioning_points_at_the_dashboards() -> None:
    folder = FOLDER.parent / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((folder / "dashboards" / "kittiwake.yaml").read_text(encoding="utf-8"))["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "${KITTIWAKE_DASHBOARDS}"
