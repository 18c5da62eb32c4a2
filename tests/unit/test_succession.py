"""Who may be the coordinator: one lock, one run, one node; a process that dies lets go of all it held."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from actors import succession as module
from actors.succession import Succession, Where, wait_for_port, where
from tests.unit.conversation import conversation

HOLDER = """
import pathlib, sys, time
from actors.succession import Succession
held = Succession(pathlib.Path(sys.argv[1]), "run").try_take()
print(held, flush=True)
time.sleep(600)
"""


def holder(directory: Path) -> subprocess.Popen[str]:
    """Return a process that holds the lock of the directory."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_one_process_has_the_lock_while_it_lives_stopped_or_not(tmp_path: Path) -> None:
    """A new file of the same lock, as another process would open."""

    async def story() -> None:
        with holder(tmp_path) as other:
            try:
                mine = Succession(tmp_path, "run")
                assert not mine.try_take()
                other.send_signal(signal.SIGSTOP)
                assert not await mine.take(0.0), "a process that is stopped is alive"
                waiting = asyncio.create_task(mine.take())
                await asyncio.sleep(0)
                assert not waiting.done()
                other.kill()
                async with asyncio.timeout(120):
                    assert await waiting
                assert mine.try_take(), "it is ours already"
                assert not Succession(tmp_path, "run").try_take()
                mine.release()
                assert Succession(tmp_path, "another").try_take()
            finally:
                other.kill()

    asyncio.run(story())


def test_the_directory_is_made_and_nobody_else_reads_the_lock(tmp_path: Path) -> None:
    mine = Succession(tmp_path / "new" / "data", "run")
    assert mine.node() is None
    assert mine.try_take()
    path = tmp_path / "new" / "data" / "coordinator.lock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    mine.release()
    mine.release()


def test_a_run_is_under_way_from_its_beginning_to_its_end_and_no_other_is(tmp_path: Path) -> None:
    mine, other = Succession(tmp_path, "mine"), Succession(tmp_path, "other")
    assert mine.node() is None
    mine.begin("node-1")
    assert (mine.node(), other.node()) == ("node-1", None)
    mine.begin("node-2")
    assert mine.node() == "node-2"
    mine.end()
    mine.end()
    assert mine.node() is None
    assert Succession(tmp_path / "nowhere", "mine").node() is None


def test_without_locks_the_one_there_is_goes_on_and_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    mine = Succession(tmp_path, "run")
    assert mine.lockable
    assert mine.try_take()
    assert not mine.lockable


def test_any_other_trouble_with_the_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="the disk is broken"):
        Succession(tmp_path, "run").try_take()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("last", "alive", "place"),
    [
        ("own", {"own", "b"}, Where.HERE),
        ("own", {"b"}, Where.HERE),  # Ray has not heard of us for a while
        ("b", {"own", "b"}, Where.ELSEWHERE),
        ("b", {"own"}, Where.LOST),
    ],
)
def test_a_lock_counts_on_the_node_of_the_last_coordinator(last: str, alive: set[str], place: Where) -> None:
    assert where(last, "own", alive) is place


@conversation
async def test_a_port_is_waited_for_until_it_is_free_or_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        await wait_for_port(host, port, 0.0)
        waiting = asyncio.create_task(wait_for_port(host, port, 60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    await wait_for_port(host, 0, 60.0)  # any port
    await wait_for_port("203.0.113.1", port, 60.0)  # not ours: whoever opens it says so


def test_a_look_at_the_lock_comes_more_often_than_anybody_dials() -> None:
    from actors.shell import REDIAL_S

    assert module.POLL_S < REDIAL_S
