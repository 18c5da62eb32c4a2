"""The benchmark of recovery, small: a kill of each role happens, and nothing is lost."""

from __future__ import annotations

import json
import sys

import pytest

from bench.recovery_faults import ROLES
from tests.live.processes import printed

pytestmark = pytest.mark.live

SMALL = ["--rate", "100", "--subscriptions", "200", "--clients", "4", "--publishers", "2", "--interval", "0.5:1"]
SMALL += ["--spares", "1", "--slices", "2-1-1-1"]


def test_a_small_run_loses_nothing_and_its_faults_happen() -> None:
    command = [sys.executable, "-m", "bench.recovery", "--role", "all", "--kills", "5", *SMALL, "--json"]
    figures = json.loads(printed(command))
    assert (figures["kills"], figures["not_happened"], figures["replaced"]) == (5, 0, 5)
    assert [fault["role"] for fault in figures["faults"]] == list(ROLES)
    assert (figures["lost"], figures["doubled"], figures["out_of_order"], figures["oracle_differences"]) == (0, 0, 0, 0)
    assert figures["acknowledged"] == figures["published"] > 0
    assert figures["takeover_s"].keys() == {"p50", "p95", "max"}
    print(f"\ntakeover {figures['takeover_s']['max']} s, {figures['acks_during_fault_min']} acknowledgements meanwhile")
