"""Two clusters that run as `kittiwake up`, seen from outside. The tests tell one story, in their order: the last ones
end what the first ones use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.asking import read_status
from bench.process import is_actor, started_at
from cluster import connect
from cluster.config import load_config
from cluster.errors import ConnectionLostError, KittiwakeError
from tests.live.processes import PATIENCE_S, Up, end, tree, wait_for
from tests.live.traffic import traffic

pytestmark = pytest.mark.live


def run(work: Any) -> Any:
    """Run a coroutine, bounded."""

    async def bounded() -> Any:
        async with asyncio.timeout(2 * PATIENCE_S):
            return await work

    return asyncio.run(bounded())


def asked(up: Up) -> dict[str, Any]:
    """Return the status without a command of its own, to look often; {} while nobody answers."""
    try:
        return asyncio.run(read_status(load_config(up.config_path)))
    except KittiwakeError:
        return {}


async def round_trip(endpoint: str, name: str, number: int) -> list[dict[str, Any]]:
    """Publish to a subscriber of one's own; return all that it got until then."""
    async with connect(endpoint, client_id=name) as client:
        subscription = await client.subscribe("exists trip")
        await client.publish({"trip": number, "by": name})
        return [dict(one.attributes) for one in await subscription.take()]


# A large cluster -----------------------------------------------------------------------------------------------------


def test_up_prints_an_endpoint_for_each_connection_point(large: Up) -> None:
    port = json.loads(large.config_path.read_text())["client_port"]["port"]
    assert large.endpoints == [f"kittiwake://127.0.0.1:{port}", f"kittiwake://127.0.0.1:{port + 1}"]
    assert "Traceback" not in large.stderr


def test_status_shows_that_all_serve(large: Up) -> None:
    code, document = large.status()
    assert code == 0
    assert (document["name"], document["state"], document["lost"], document["epoch"]) == ("large", "serving", 0, 1)
    rows = [(row["layer"], row["slot"], row["state"]) for row in document["members"]]
    layers = {"connection_point": 2, "access_point": 2, "matcher": 3, "exit_point": 2}
    assert rows == [(layer, slot, "serving") for layer, count in layers.items() for slot in range(count)]
    pids = {row["pid"] for row in document["members"]}
    assert len(pids) == 9, "each slice is a process of its own"
    assert pids <= large.family.keys()


def test_several_slices_of_each_layer_deliver_exactly_what_the_oracle_says(large: Up) -> None:
    async def story() -> None:
        async with traffic(large) as made:
            while sum(map(len, made.published.values())) < 1500:
                await asyncio.sleep(0.02)

    run(story())


def test_the_newest_of_two_logins_wins_across_connection_points(large: Up) -> None:
    async def story() -> None:
        older = await connect(large.endpoints[0], client_id="twin")
        subscription = await older.subscribe("exists twin")
        async with connect(large.endpoints[1], client_id="twin") as newer:
            with pytest.raises(ConnectionLostError) as caught:
                await anext(subscription)
            assert caught.value.code == "taken_over"
            assert older.closed
            own = await newer.subscribe("exists twin")
            await newer.publish({"twin": 1})
            assert (await anext(own)).attributes == {"twin": 1}

    run(story())


def test_two_clusters_side_by_side_hear_nothing_of_each_other(large: Up, small: Up) -> None:
    async def story() -> None:
        async with (
            connect(large.endpoints[0], client_id="one") as here,
            connect(small.endpoints[0], client_id="one") as there,
        ):
            heard = [await client.subscribe("exists side") for client in (here, there)]
            for number in range(20):
                await here.publish({"side": f"large {number}"})
                await there.publish({"side": f"small {number}"})
            for name, stream in zip(("large", "small"), heard, strict=True):
                got = [(await anext(stream)).attributes["side"] for _ in range(20)]
                assert got == [f"{name} {number}" for number in range(20)]

    run(story())
    names = {up.status()[1]["name"] for up in (large, small)}
    assert names == {"large", "small"}
    assert not large.family.keys() & small.family.keys()


# Clients that stop ---------------------------------------------------------------------------------------------------

SLEEPER = """
import asyncio, sys
from cluster import connect
async def main():
    async with connect(sys.argv[1], client_id="sleeper") as client:
        await client.subscribe("exists sleep")
        print("in", flush=True)
        while client.reconnections == 0:
            await asyncio.sleep(0.05)
        print("back", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@contextlib.contextmanager
def sleeper(up: Up, said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client that tells in a file when it is in, and when it is back."""
    with said.open("wb") as out:
        client = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SLEEPER), up.endpoints[0]], stdout=out)
    try:
        yield client
    finally:
        end(client)


def sessions(up: Up) -> int:
    """Return how many clients the cluster counts; -1 while nobody answers."""
    return int(asked(up).get("sessions", -1))


def test_a_client_that_stands_still_is_dropped_and_comes_back(small: Up, tmp_path: Path) -> None:
    """SIGSTOP leaves its socket open; three silent heartbeats end it at the broker."""
    said = tmp_path / "out"
    with sleeper(small, said) as client:
        wait_for(lambda: said.read_text() == "in\n", "the client does not log in")
        wait_for(lambda: sessions(small) == 1, "the client is not counted")
        time.sleep(3.5)
        assert (sessions(small), said.read_text()) == (1, "in\n"), "a client that answers stays"
        client.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        wait_for(lambda: sessions(small) == 0, "it is still logged in")
        print(f"\na client that stood still was dropped within {time.monotonic() - stopped:.1f} s, heartbeat 1 s")
        client.send_signal(signal.SIGCONT)
        wait_for(lambda: said.read_text() == "in\nback\n", "it does not come back")
        wait_for(lambda: sessions(small) == 1, "the client is not counted again")
    wait_for(lambda: sessions(small) == 0, "a client whose process is gone is still logged in")


# Ends ----------------------------------------------------------------------------------------------------------------


def test_a_role_that_is_killed_is_brought_back_and_told_of(small: Up) -> None:
    _, before = small.status()
    (victim,) = (row["pid"] for row in before["members"] if row["layer"] == "matcher")
    assert victim in small.family
    assert started_at(victim) == small.family[victim], "it is our own process"
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: asked(small).get("recovered", 0) > before["recovered"], "it is not brought back")
    code, document = small.status()
    assert code == 0
    assert document["recoveries"][-1]["replaced"] == ["matcher 0"]
    assert [row["state"] for row in document["members"]] == ["serving"] * 4
    assert victim not in [row["pid"] for row in document["members"]]
    wait_for(lambda: "kittiwake: recovered matcher 0 in" in small.stderr, "`up` says nothing of it")


def coordinator(up: Up) -> dict[str, Any]:
    """Return what the status says of it; nothing while none answers."""
    return dict(asked(up).get("coordinator", {}))


def test_who_stands_by_takes_over_from_a_coordinator_that_is_killed(small: Up) -> None:
    wait_for(lambda: "standby_pid" in coordinator(small), "nobody stands by")
    first = coordinator(small)
    assert is_actor(first["pid"])
    os.kill(first["pid"], signal.SIGKILL)
    wait_for(lambda: coordinator(small).get("pid") == first["standby_pid"], "nobody has taken over")
    wait_for(lambda: "standby_pid" in coordinator(small), "nobody stands by any more")
    wait_for(lambda: "the coordinator died" in small.stderr, "`up` says nothing of it")


def test_sigterm_ends_it_cleanly_after_both_deaths(small: Up) -> None:
    assert small.stop(signal.SIGTERM) == 0
    small.assert_gone()
    assert "Traceback" not in small.stderr
    assert small.stderr.rstrip().endswith("kittiwake: down")
    code, document = small.status()
    assert (code, document) == (1, {}), "there is nobody to ask any more"


def test_it_starts_again_on_the_same_ports(small: Up) -> None:
    before = small.endpoints
    small.start()
    assert small.endpoints == before
    code, document = small.status()
    assert (code, document["state"], document["sessions"]) == (0, "serving", 0)
    got = run(round_trip(small.endpoints[0], "again", 7))
    assert got == [{"trip": 7, "by": "again"}], "nothing of its former life is left"


def test_a_port_that_is_taken_is_a_clear_error(small: Up, tmp_path: Path) -> None:
    other = Up(tmp_path, name="other", client_port=json.loads(small.config_path.read_text())["client_port"])
    try:
        other.begin()
        wait_for(lambda: other.ended, "it goes on all the same")
        assert other.process is not None
        assert other.process.returncode not in (0, None)
        assert "address already in use" in other.stderr.lower()
        assert "Traceback" not in other.stderr
    finally:
        other.kill_everything()
    assert small.status()[0] == 0, "the one that has it is not disturbed"


def test_sigint_ends_it_cleanly_under_load_and_tells_the_clients(large: Up) -> None:
    async def story() -> tuple[int, str]:
        publisher = await connect(large.endpoints[0], client_id="busy")
        subscriber = await connect(large.endpoints[1], client_id="idle", reconnect=False)
        subscription = await subscriber.subscribe("exists n")

        async def publish() -> None:
            for number in range(1 << 30):
                await publisher.publish({"n": number})

        publishing = asyncio.create_task(publish())
        for _ in range(100):
            await anext(subscription)
        code = await asyncio.to_thread(large.stop, signal.SIGINT)
        reason = ""
        while not reason:
            try:
                await anext(subscription)
            except ConnectionLostError as error:
                reason = str(error)
        publishing.cancel()
        await asyncio.wait([publishing])
        await publisher.close(timeout_s=0.1)
        return code, reason

    code, reason = run(story())
    assert code == 0
    assert reason == "shutdown: the cluster stops"
    large.assert_gone()
    assert "Traceback" not in large.stderr
    assert large.stderr.rstrip().endswith("kittiwake: down")


def test_sigint_while_it_starts_ends_it_cleanly(tmp_path: Path) -> None:
    up = Up(tmp_path, name="early", client_port={"port": 0})
    try:
        up.begin()
        assert up.process is not None
        process = up.process
        wait_for(lambda: len(tree(process.pid)) > 3, "Ray does not start")
        assert up.stop(signal.SIGINT) == 0
        up.assert_gone()
        assert "Traceback" not in up.stderr
    finally:
        up.kill_everything()
