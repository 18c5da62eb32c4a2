"""Ray's control service (GCS) is killed under `kittiwake up`: lanes do not need it, and the next `up` goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from bench.process import free_ports
from tests.live.processes import PATIENCE_S, Up, wait_for
from tests.live.traffic import traffic

pytestmark = pytest.mark.live

RAY_GIVES_UP_S = 10
"""Instead of 60: after that Ray ends its nodes and who is connected to it."""


def control_service(up: Up) -> int:
    """Return the pid of the control service that `up` has started."""
    (found,) = (pid for pid in up.family if b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def end_agents(up: Up) -> None:
    """Wait until nothing runs but Ray's agents, and kill them: they try for a minute, whatever is set, to tell the
    control service why their node has ended.
    """
    wait_for(lambda: all("Agent" in line for line in up.left_over()), lambda: f"still running: {up.left_over()}")
    for line in up.left_over():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_traffic_goes_on_without_rays_control_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(RAY_GIVES_UP_S))
    up = Up(tmp_path, name="control", client_port={"port": free_ports(1)}, layers={"matchers": 2})

    async def story() -> None:
        async with traffic(up) as made:
            os.kill(control_service(up), signal.SIGKILL)
            trips = made.round_trips
            async with asyncio.timeout(PATIENCE_S):
                while made.round_trips < trips + 20:  # subscriptions are opened and closed as well
                    await asyncio.sleep(0.02)

    try:
        up.start()
        endpoints, (_, before) = up.endpoints, up.status()
        asyncio.run(story())
        wait_for(lambda: "Ray's control service does not answer" in up.stderr, "nobody was told")
        wait_for(lambda: up.ended, "Ray has not given up")
        end_agents(up)
        up.assert_gone()

        up.start()
        code, after = up.status()
        assert (code, up.endpoints) == (0, endpoints)
        assert after["epoch"] > before["epoch"]
        assert up.stop(signal.SIGTERM) == 0
        up.assert_gone()
    finally:
        up.kill_everything()
