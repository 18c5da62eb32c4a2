"""`kittiwake up` as a user runs it: a process of its own, ended by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.test_cluster import lives

pytestmark = pytest.mark.live

KITTIWAKE = str(Path(sys.executable).with_name("kittiwake"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_up_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"name: up\ndata_directory: {tmp_path / 'data'}\nclient_port: {{port: 0}}\n")
    with (
        (tmp_path / "stderr").open("w+") as stderr,
        subprocess.Popen(
            [KITTIWAKE, "up", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as up,
    ):
        assert up.stdout is not None
        endpoint = up.stdout.readline()
        assert endpoint.startswith("kittiwake://127.0.0.1:")
        answer = subprocess.run(
            [KITTIWAKE, "status", "--config", str(config), "--json"], capture_output=True, text=True, check=True
        )
        members = json.loads(answer.stdout)["members"]
        assert [row["state"] for row in members] == ["serving"] * 4
        up.send_signal(number)
        assert up.wait(60) == 0
        stderr.seek(0)
        said = stderr.read()
    assert "Traceback" not in said, said
    for row in members:
        assert not lives(row["pid"]), f"{row['layer']} was left behind"
