"""The hostile benchmark, small: it runs, every attack ends, and the victim loses nothing."""

from __future__ import annotations

import json
import sys

import pytest

from bench.attacks import ATTACKS
from tests.live.processes import printed

pytestmark = pytest.mark.live


def test_the_victim_of_a_small_attack_loses_nothing() -> None:
    command = [sys.executable, "-m", "bench.hostile", "--seconds", "10", "--scale", "0.02", "--rate", "200", "--json"]
    figures = json.loads(printed(command))
    assert (figures["lost"], figures["doubled"], figures["out_of_order"], figures["dropped"]) == (0, 0, 0, 0)
    assert figures["lost_roles"] == 0
    assert figures["logins_failed"] == 0
    assert figures["victim_reconnections"] == 0
    assert figures["attacks"].keys() == ATTACKS.keys()
    assert all(row["connections"] > 0 for row in figures["attacks"].values())
    ends = {name: set(row["ends"]) for name, row in figures["attacks"].items()}
    assert "damaged" not in set().union(*ends.values()), "the broker's own frames are whole"
    assert {"malformed", "too_large"} <= ends["random bytes"]
    assert ends["bombs"] == {"malformed"}
    # A broker that answers faster than the attacker writes is never out of credit.
    assert ends["over credit"] <= {"over_credit", "reset", "held"}
    assert figures["attacks"]["bad publications"]["rejected_publications"] > 0
    assert max(figures["rss_growth_mb"].values()) < 40.0, "what is held is bounded; bench.hostile has the figures"
    print(f"\np99 {figures['p99_before_ms']} ms undisturbed, {figures['p99_during_ms']} ms under attack")
