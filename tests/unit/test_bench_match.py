"""The matching benchmark runs at a small size, its engines agree, and its workloads are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import match, workloads
from cluster import parse

KEYS = (
    "us_per_publication",
    "matches_per_publication",
    "checksum",
    "add_us",
    "remove_us",
    "bytes_per_subscription",
)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", workloads.NAMES)
def test_the_three_engines_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = match.main(
        [
            *("--workload", name, "--subscriptions", "400", "--publications", "40", "--batch", "16"),
            *("--engine", "all", "--repeats", "2", "--json"),
        ]
    )
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    engines = result["engines"]
    assert set(engines) == {"index", "numpy", "scan"}
    assert len({engine["checksum"] for engine in engines.values()}) == 1
    assert engines["index"]["checksum"] > 0 or name == "geofence"
    assert result["ratio"] > 0


def test_one_engine_prints_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", "sgim", "--subscriptions", "200", "--publications", "10", "--distribution", "zipf"]
    assert match.main([*arguments, "--engine", "index", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert all(result[key] > 0 for key in KEYS)
    assert match.main([*arguments, "--repeats", "1"]) == 0
    assert "ratio numpy / index" in capsys.readouterr().out


def test_dump_writes_the_input(tmp_path: Path) -> None:
    arguments = ["--workload", "silbops", "--subscriptions", "50", "--publications", "20", "--engine", "scan"]
    assert match.main([*arguments, "--dump", str(tmp_path)]) == 0
    subscriptions = read_lines(tmp_path / "subscriptions.jsonl")
    publications = read_lines(tmp_path / "publications.jsonl")
    filters = [parse(row["filter"]) for row in subscriptions]
    assert [row["id"] for row in subscriptions] == list(range(50))
    assert len(publications) == 20
    # Each publication of silbops matches at least one filter.
    assert all(any(filter_.matches(publication) for filter_ in filters) for publication in publications)


@pytest.mark.parametrize("name", workloads.NAMES)
def test_forms_are_what_parsing_the_text_gives(name: str) -> None:
    for distribution in ("uniform", "zipf") if name == "sgim" else ("uniform",):
        made = workloads.source(name, 300, 5, 3, distribution)
        for conditions in made.conditions:
            assert parse(workloads.text(conditions)).normal_form == workloads.form(conditions)


def test_workloads_are_made_again_by_their_seed() -> None:
    first = workloads.workload("silbops", 100, 10, 5)
    again = workloads.workload("silbops", 100, 10, 5)
    other = workloads.workload("silbops", 100, 10, 6)
    assert (first.filters, first.publications) == (again.filters, again.publications)
    assert first.filters != other.filters
    assert len(first.filters) == 100
    assert len(first.publications) == 10
    with pytest.raises(ValueError, match="unknown workload"):
        workloads.workload("nothing", 1, 1, 1)
    with pytest.raises(ValueError, match="no distribution"):
        workloads.workload("geofence", 1, 1, 1, "zipf")
