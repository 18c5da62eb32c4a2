"""configs/rules: what Prometheus records and alerts on. promtool's simulation makes each alert fire, and not fire."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.queries import names_in, problems

ROOT = Path(__file__).parents[2]
RULES = ROOT / "configs" / "rules"
TESTS = sorted((ROOT / "tests" / "rules").glob("*.yml"))
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian package prometheus) is not installed")


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a file."""
    document = yaml.safe_load((RULES / name).read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


ALERTS = rules("alerts.yml")
RECORDED = {rule["record"] for rule in rules("recording.yml")}


def promtool(*arguments: str) -> str:
    """Run promtool and return what it says; fail if it finds fault."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, sorted(RULES.glob("*.yml"))))
    assert f"{len(ALERTS)} rules found" in said


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    said = promtool("test", "rules", *map(str, TESTS))
    assert said.count("SUCCESS") == len(TESTS)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert 20 < len(rule["annotations"]["summary"]) < 120
    assert len(rule["annotations"]["description"]) > 100
    assert any(rule["alert"] in path.read_text(encoding="utf-8") for path in TESTS), "no test fires it"
    text = (RULES / "alerts.yml").read_text(encoding="utf-8")
    assert re.search(rf"^ +# .+\n +- alert: {rule['alert']}$", text, re.MULTILINE), "its threshold is not explained"


@pytest.mark.parametrize("expr", sorted({rule["expr"] for rule in [*ALERTS, *rules("recording.yml")]}))
def test_rules_ask_for_what_is_exported(expr: str) -> None:
    assert not problems(expr, RECORDED)


def test_what_is_recorded_is_asked_for() -> None:
    boards = (ROOT / "configs" / "grafana" / "dashboards").glob("*.json")
    asked = " ".join([*(rule["expr"] for rule in ALERTS), *(path.read_text(encoding="utf-8") for path in boards)])
    assert names_in(asked) >= RECORDED
