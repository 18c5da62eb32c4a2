"""How busy a node is, by what its kernel says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from actors import node, processes
from actors.node import available_cores, busy_cores
from actors.processes import cores_of_nodes
from tests.unit.control import Control, layers

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")

STAT = """cpu  100 10 50 900 30 1 2 3 0 0
cpu0 60 4 20 400 10 1 0 1 7 0
cpu1 40 6 30 500 20 0 2 2 0 0
cpu12 9 9 9 9 9 9 9 9 9 9
intr 1 2 3
ctxt 5
"""


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    path = tmp_path / "stat"
    path.write_text(STAT)
    return path


def runs_on(monkeypatch: pytest.MonkeyPatch, *cores: int) -> None:
    monkeypatch.setattr(node.os, "sched_getaffinity", lambda _: set(cores), raising=False)


def test_all_but_idle_and_waiting_for_a_disk_is_busy(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_on(monkeypatch, 0, 1)
    assert busy_cores(stat) == ((86 + 80) * TICK_US, 2)


def test_only_the_cores_that_one_may_run_on_count(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_on(monkeypatch, 1)
    assert busy_cores(stat) == (80 * TICK_US, 1)
    assert available_cores() == 1


@pytest.mark.parametrize(
    "text",
    ["", "cpu0 1 2 3\n", "cpu0 one two\n", "cpu0 0 0 0 0 0 0 0 0\n", STAT.replace("cpu0", "cpu7"), "intr 5\n"],
)
def test_what_does_not_say_it_is_not_known(text: str, stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_on(monkeypatch, 0)
    stat.write_text(text)
    assert busy_cores(stat) is None


def test_without_such_a_file_or_such_a_question_it_is_not_known(
    tmp_path: Path, stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert busy_cores(tmp_path / "none") is None
    monkeypatch.delattr(node.os, "sched_getaffinity", raising=False)
    assert busy_cores(stat) is None
    assert available_cores() == (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_this_machine_says_it() -> None:
    first = busy_cores()
    assert first is not None
    assert first[1] == available_cores()
    sum(range(3_000_000))
    second = busy_cores()
    assert second is not None
    assert second[0] >= first[0] > 0


def test_cores_by_address_are_those_of_the_nodes_that_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of Ray's nodes may be on one machine."""
    rows: list[tuple[str, bool, dict[str, float]]] = [
        ("10.0.0.1", True, {"CPU": 4.0, "memory": 1e9}),
        ("10.0.0.2", False, {"CPU": 8.0}),
        ("10.0.0.3", True, {"CPU": 2.0}),
        ("10.0.0.3", True, {"CPU": 3.0}),
        ("10.0.0.4", True, {}),
    ]
    nodes = [{"NodeManagerAddress": one, "Alive": alive, "Resources": given} for one, alive, given in rows]
    monkeypatch.setattr(processes.ray, "nodes", lambda: nodes)
    assert cores_of_nodes() == {"10.0.0.1": 4.0, "10.0.0.3": 5.0, "10.0.0.4": 0.0}


def test_the_coordinator_knows_the_host_of_each_slice() -> None:
    observed = Control(layers(2)).serve().machine.observed()
    assert len(observed.slices) == 5
    assert {one.host for one in observed.slices.values()} == {"host"}
