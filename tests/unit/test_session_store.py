"""The durable sessions' file: what was written is read, the same as from the disk that there is without a disk."""

from __future__ import annotations

import queue
import random
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from actors.database import StoreError
from actors.session_store import (
    DeadLetters,
    SessionStore,
    Writer,
    dead_letters_path,
    forget_sessions,
    sessions_path,
)
from cluster.journal import (
    Append,
    DeadLetter,
    Discard,
    EndSession,
    ForgetMarks,
    Recovered,
    RemoveSubscription,
    RemoveValid,
    RemoveWithdrawal,
    SaveDeliveries,
    SavedSession,
    SaveMark,
    SaveSession,
    SaveSubscription,
    SaveValid,
    SaveWithdrawal,
    Took,
    Write,
)
from cluster.messages import Store
from cluster.session_disk import SessionDisk


def opened(directory: Path, limit_bytes: int = 1 << 20) -> SessionStore:
    return SessionStore(sessions_path(directory, 3), DeadLetters(dead_letters_path(directory, 3), limit_bytes))


def test_a_new_file_holds_nothing_and_is_private(tmp_path: Path) -> None:
    store = opened(tmp_path / "new")
    assert store.read() == Recovered([], [], [], [])
    store.close()
    for path in (tmp_path / "new").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_session_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    subscription = SaveSubscription(7, 0, "a > 1", "block", b"normal")
    store.write(
        [
            subscription,
            SaveSession(7, b"one"),
            SaveDeliveries(7, b"counts"),
            Append(7, 1, 3, b"abc"),
            Append(7, 4, 4, b"d"),
            Took("p", (1 << 64) - 1, 9),
            SaveMark(7, "q", (1 << 64) - 1, 3),
            SaveMark(7, "q", (1 << 64) - 1, 4),
        ]
    )
    store.write([SaveSession(7, b"two")])
    store.close()
    store = opened(tmp_path)
    assert store.read() == Recovered(
        [SavedSession(7, b"two", b"counts", [subscription], [(1, 3, b"abc"), (4, 4, b"d")], [("q", 2**64 - 1, 4)])],
        [Took("p", (1 << 64) - 1, 9)],
        [],
        [],
    )
    store.write([Discard(7, 3), RemoveSubscription(7, 0), Took("p", (1 << 64) - 1, 12)])
    assert store.read() == Recovered(
        [SavedSession(7, b"two", b"counts", [], [(4, 4, b"d")], [("q", 2**64 - 1, 4)])],
        [Took("p", 2**64 - 1, 12)],
        [],
        [],
    )
    store.write([EndSession(7)])
    assert store.read().sessions == []
    store.write([SaveSession(7, b"again")])
    assert store.read().sessions == [SavedSession(7, b"again", b"", [], [])]
    store.close()


def test_it_holds_what_the_disk_of_the_simulator_holds(tmp_path: Path) -> None:
    rng = random.Random(5)
    store, disk = opened(tmp_path), SessionDisk()
    lasts = dict.fromkeys(range(3), 0)
    for number in range(1, 120):
        writes: list[Write] = [SaveSession(session, rng.randbytes(4)) for session in lasts]
        for session in lasts:
            match rng.randrange(9):
                case 0:
                    writes.append(SaveSubscription(session, rng.randrange(3), "f", "block", rng.randbytes(3)))
                case 1:
                    writes.append(RemoveSubscription(session, rng.randrange(3)))
                case 2 | 3:
                    first, lasts[session] = lasts[session] + 1, lasts[session] + rng.randint(1, 5)
                    writes.append(Append(session, first, lasts[session], rng.randbytes(9)))
                case 4:
                    writes.append(Discard(session, rng.randint(0, lasts[session])))
                case 5:
                    writes.append(SaveDeliveries(session, rng.randbytes(2)))
                case 7:
                    writes.append(SaveMark(session, rng.choice("pq"), rng.randint(1, 2), number))
                case 8:
                    writes.append(ForgetMarks(session))
                case 6 if rng.random() < 0.2:
                    writes.append(EndSession(session))
        key = (rng.choice("pq"), rng.choice((0, 2**64 - 1)), rng.randint(1, 4))
        match rng.randrange(4):
            case 0:
                until_us = rng.choice((None, rng.randint(0, 1 << 60)))
                writes.append(SaveValid(*key, number, until_us, rng.random() < 0.5, rng.randbytes(5)))
            case 1:
                writes.append(RemoveValid(*key))
            case 2:
                writes.append(SaveWithdrawal(*key))
            case 3:
                writes.append(RemoveWithdrawal(*key))
        store.write(writes)
        disk.ask(Store(number, tuple(writes)))
        disk.sync()
        if rng.random() < 0.05:
            store.close()
            store = opened(tmp_path)
    wanted = disk.read()
    assert wanted.valid
    assert wanted.withdrawals
    found = store.read()
    assert found._replace(valid=sorted(found.valid)) == wanted._replace(valid=sorted(wanted.valid))
    store.close()


def test_a_portion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    broken = SaveSubscription(1, 0, None, "block", b"")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"sessions-3\.db: NOT NULL"):
        store.write([SaveSession(1, b"x"), broken])
    assert store.read().sessions == []
    store.write([SaveSession(1, b"y")])
    assert store.read().sessions[0].state == b"y"
    store.close()


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout, **options: connect(path, timeout=0.0, **options))
    with pytest.raises(StoreError, match="locked"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3\0" + b"\xff" * 200, b"no database" * 50])
def test_a_file_that_is_none_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = sessions_path(tmp_path, 3)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"sessions-3\.db"):
        opened(tmp_path)
    assert path.read_bytes() == content


def test_another_format_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    database = sqlite3.connect(sessions_path(tmp_path, 3))
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="format 99, this is for 1"):
        opened(tmp_path)


def test_sessions_are_forgotten_and_dead_letters_stay(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([SaveSession(1, b"x"), DeadLetter(b"{}")])
    store.close()
    forget_sessions(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["dead-letters-3.jsonl"]


def test_dead_letters_are_lines_and_bounded(tmp_path: Path) -> None:
    store = opened(tmp_path, limit_bytes=25)
    path = dead_letters_path(tmp_path, 3)
    store.write([SaveSession(1, b"")])
    assert not path.exists()
    store.write([DeadLetter(b'{"n":1}'), DeadLetter(b'{"n":2}')])
    assert path.read_bytes() == b'{"n":1}\n{"n":2}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.write([DeadLetter(b'{"n":3}')])
    store.write([DeadLetter(b'{"n":4}')])
    assert path.read_bytes() == b'{"n":4}\n'
    assert path.with_name(path.name + ".1").read_bytes() == b'{"n":1}\n{"n":2}\n{"n":3}\n'
    store.close()


def test_the_writer_writes_in_order_and_says_how_far(tmp_path: Path) -> None:
    said: queue.SimpleQueue[int] = queue.SimpleQueue()
    writer = Writer(None, lambda: opened(tmp_path), stored=said.put, failed=lambda error: said.put(-1))
    for number in range(1, 51):
        writer.write(Store(number, (SaveSession(1, b"%d" % number),)))
    last = 0
    while last != 50:
        upto = said.get(timeout=120)
        assert upto > last
        last = upto
    writer.write(Store(51, (SaveSession(1, b"end"),)))
    writer.close()
    store = opened(tmp_path)
    assert store.read().sessions[0].state == b"end"
    store.close()


def test_a_writer_that_fails_says_so_and_nothing_is_stored_after(tmp_path: Path) -> None:
    failed = threading.Event()
    said: list[int] = []
    store = opened(tmp_path)
    writer = Writer(store, lambda: opened(tmp_path), stored=said.append, failed=lambda error: failed.set())
    store.close()
    writer.write(Store(1, (SaveSession(1, b"x"),)))
    assert failed.wait(10)
    writer.write(Store(2, (SaveSession(1, b"x"),)))
    writer.close()
    assert said == []
