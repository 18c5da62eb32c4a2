"""The autoscaler on a real Ray cluster: it follows a day's load out and in, and nothing is lost for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

POLICY = """\
apiVersion: kittiwake/v1
kind: ScalingPolicy
metadata: {name: lively}
evaluate_interval_s: 1
metrics_interval_s: 0.5
look_back_period_s: 2
slo: [{name: delay, target: 100}]
layers:
  matcher:          # so low that a machine of two cores can follow it, with room to spare
    min_replicas: 1
    max_replicas: 2
    triggers: [{type: utilization, target: 0.06, min: 0.03, max: 0.08}]
    upscale_delay_s: 0
    downscale_delay_s: 1
    behavior: {scale_up: {policies: []}, scale_down: {stabilization_window_s: 1, policies: []}}
guards: {warmup_s: 1, min_gain: 0}
"""


def test_it_follows_a_day_and_nothing_is_lost(tmp_path: Path) -> None:
    policy, plot = tmp_path / "policy.yaml", tmp_path / "day.png"
    policy.write_text(POLICY)
    command = [
        *(sys.executable, "-m", "bench.autoscale", "--pattern", "day", "--policy", str(policy), "--quicken", "1"),
        *(
            "--seconds",
            "30",
            "--peak",
            "600",
            "--subscriptions",
            "400",
            "--clients",
            "2",
            "--plot",
            str(plot),
            "--json",
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["lost"], run["doubled"], run["out_of_order"], run["oracle_differences"]) == (0, 0, 0, 0)
    assert run["notifications"] > 1000
    assert run["sizes_most"]["matcher"] == 2
    assert run["sizes_last"]["matcher"] == 1
    assert (run["transitions"] >= 2, run["not_done"]) == (True, 0)
    assert plot.stat().st_size > 10_000
