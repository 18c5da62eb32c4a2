"""The coordinator's memory on disk: what was written is there again, and what is no memory is said to be none."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from actors.database import StoreError
from actors.store import Store, store_path
from cluster.coordinating.operations import HISTORY
from cluster.errors import KittiwakeError
from cluster.memory import Memory, Operation, encode_memory, encode_operation
from cluster.messages import Install, Member

MEMORY = Memory(
    epoch=7,
    view=Install(6, [Member("matcher", 0, 3, "127.0.0.1", 4000)], b"\x00\x00" * 4096),
    wanted={"matcher": [0, 2]},
    strategy="all_at_once",
    operation=2,
    incarnation=9,
    leaving=[Member("matcher", 1, 4, "127.0.0.1", 4001)],
)


def operation(number: int, **values: object) -> tuple[int, bytes]:
    made = Operation(number, {"matcher": [0]}, "waves", 5, 1000, **values)  # type: ignore[arg-type]
    return number, encode_operation(made)


@contextmanager
def opened(path: Path, *, fresh: bool = False) -> Iterator[Store]:
    store = Store(path, fresh=fresh)
    try:
        yield store
    finally:
        store.close()


def test_a_new_one_is_empty_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = store_path(tmp_path / "data")
    with opened(path) as store:
        assert store.read() == (None, [])
        store.write(b"\x97", None)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert path.name == "coordinator.db"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        store.write(encode_memory(Memory()), operation(1))
        store.write(encode_memory(MEMORY), operation(2))
        store.write(encode_memory(MEMORY), operation(1, state="done"))
    with opened(path) as store:
        memory, history = store.read()
        assert memory is not None
        assert encode_memory(memory) == encode_memory(MEMORY)
        assert [(one.number, one.state) for one in history] == [(1, "done"), (2, "running")]
        store.write(encode_memory(Memory(epoch=8)), None)
        memory, history = store.read()
        assert memory == Memory(epoch=8)
        assert len(history) == 2


def test_a_process_that_is_killed_leaves_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    code = (
        "import os, sys; from pathlib import Path; from actors.store import Store; from cluster.memory import *\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for epoch in range(1, 6): store.write(encode_memory(Memory(epoch=epoch)), None)\n"
        "store._database.execute('BEGIN IMMEDIATE'); store._database.execute('DELETE FROM memory')\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    with opened(path) as store:
        assert store.read() == (Memory(epoch=5), [])


def test_a_fresh_one_knows_nothing_of_what_was(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        store.write(encode_memory(MEMORY), operation(1))
    for log in ("coordinator.db-journal", "coordinator.db-wal"):
        path.with_name(log).write_bytes(b"what a crash has left")
    with opened(path, fresh=True) as store:
        assert store.read() == (None, [])
    path.write_bytes(b"garbage" * 1000)
    with opened(path, fresh=True) as store:
        assert store.read() == (None, [])


def test_a_fresh_one_does_not_take_it_from_a_coordinator_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        store.write(encode_memory(MEMORY), None)
        with pytest.raises(StoreError, match="locked"):
            Store(path, fresh=True)
        store.write(encode_memory(Memory(epoch=8)), None)
    with opened(path) as store:
        assert store.read() == (Memory(epoch=8), [])


def test_the_history_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path / "coordinator.db") as store:
        for number in range(1, HISTORY + 11):
            store.write(b"", operation(number))
        rows = store._database.execute("SELECT number FROM history ORDER BY number").fetchall()
        assert [number for (number,) in rows] == list(range(11, HISTORY + 11))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        store.write(encode_memory(MEMORY), None)
        with pytest.raises(StoreError, match="locked") as caught:
            Store(path)
        assert str(path) in str(caught.value)


GARBAGE = [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000, b"x", b"SQLite format 3\0"]


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    path.write_bytes(content)
    with pytest.raises(KittiwakeError) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content, "nobody's file is overwritten"


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_torn_file_is_a_clear_error(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        for number in range(1, 50):
            store.write(encode_memory(MEMORY), operation(number, reason="x" * 500))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(KittiwakeError) as caught, opened(path) as store:
        store.read()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x97\x01", msgspec.msgpack.encode(["epoch"]), "text"])
def test_a_memory_that_is_none_is_a_clear_error(data: bytes | str, tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        store.write(b"", None)
        store._database.execute("UPDATE memory SET data = ?", (data,))
        with pytest.raises(StoreError) as caught:
            store.read()
    assert str(path) in str(caught.value)


def test_a_file_of_another_format_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="format 99, this is for 1"):
        Store(path)


def test_a_directory_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file"):
        Store(tmp_path / "file" / "coordinator.db")


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        store.write(encode_memory(MEMORY), operation(1))
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")  # as a full disk is
        with pytest.raises(StoreError, match="full"):
            store.write(b"y" * 100_000, operation(1, state="done"))
        memory, history = store.read()
        assert memory is not None
        assert memory.epoch == MEMORY.epoch
        assert [one.state for one in history] == ["running"]
        store.write(encode_memory(Memory(epoch=1)), operation(1, state="done"))


def test_lives_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with opened(path) as store:
        assert store.last_life() == (0, 0)
        store.begin_life(1, 4000)
        store.begin_life(2, 4001)
    with opened(path) as store:
        assert store.last_life() == (2, 4001)
        with pytest.raises(StoreError, match="UNIQUE"):
            store.begin_life(2, 4002)
