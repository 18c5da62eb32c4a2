"""What a connection point has on disk: `sessions-SLOT.db` in the data directory, and its dead letters.

The file has its durable sessions and its valid publications; it is made when there is the first of either.

An SQLite file of mode 0600 with a write-ahead log, synced at each commit: what `write` has returned from survives the
end of the process and of the machine; a portion is there as a whole or not at all. Whichever incarnation plays the slot
opens the file, and one process at a time: a second one is kept out until the first is gone.

Dead letters are lines of JSON in `dead-letters-SLOT.jsonl`, synced before the portion that they belong to: a crash
between the two may leave a line twice, and never none. At its limit the file is renamed to `.1`, which replaces the
one before.

`Writer` writes in a thread of its own: whatever portions wait go into one transaction, so that a disk that is slow to
sync makes larger transactions and not longer queues.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from actors.database import StoreError, open_database, transaction
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

FORMAT = 1
"""Written as the file's user_version; files of another one are not read."""
TOOK_KEPT = 200_000
"""Publishers whose last sequence is kept; the ones not heard of for longest are forgotten at the next opening."""

_OPEN = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS sessions (session INTEGER PRIMARY KEY, state BLOB NOT NULL, deliveries BLOB);
CREATE TABLE IF NOT EXISTS marks (
    session INTEGER NOT NULL, publisher TEXT NOT NULL, instance BLOB NOT NULL, sequence INTEGER NOT NULL,
    PRIMARY KEY (session, publisher, instance)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS subscriptions (
    session INTEGER NOT NULL, number INTEGER NOT NULL, filter TEXT NOT NULL, policy TEXT NOT NULL,
    normal_form BLOB NOT NULL, PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments (
    session INTEGER NOT NULL, last INTEGER NOT NULL, first INTEGER NOT NULL, entries BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS segments_last ON segments (session, last);
CREATE TABLE IF NOT EXISTS took (
    publisher TEXT NOT NULL, instance BLOB NOT NULL, sequence INTEGER NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (publisher, instance)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS valid (
    publisher TEXT NOT NULL, instance BLOB NOT NULL, sequence INTEGER NOT NULL, time_us INTEGER NOT NULL,
    until_us INTEGER, settled INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS valid_key ON valid (publisher, instance, sequence);
CREATE TABLE IF NOT EXISTS withdrawals (
    publisher TEXT NOT NULL, instance BLOB NOT NULL, sequence INTEGER NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (publisher, instance, sequence)) WITHOUT ROWID;
"""


def sessions_path(directory: Path, slot: int) -> Path:
    """Return where the connection point of this slot keeps its durable sessions and valid publications."""
    return directory / f"sessions-{slot}.db"


def dead_letters_path(directory: Path, slot: int) -> Path:
    """Return where its dead letters go."""
    return directory / f"dead-letters-{slot}.jsonl"


def forget_sessions(directory: Path) -> None:
    """Throw away what every slot has kept; their processes must have ended. Dead letters stay."""
    for path in directory.glob("sessions-*.db*"):
        path.unlink(missing_ok=True)


class DeadLetters:
    """An append-only file of lines, opened when the first one comes."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes

    def add(self, lines: list[bytes]) -> None:
        """Have the lines on disk on return. Raises OSError."""
        data = b"".join([line + b"\n" for line in lines])
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + len(data) > self._limit:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)


class SessionStore:
    """An open file, and the dead letters beside it. Its methods may be called from one thread after another."""

    def __init__(self, path: Path, dead_letters: DeadLetters) -> None:
        """Open the file, made if it is not there. Raises StoreError."""
        self._path = path
        self._dead_letters = dead_letters
        self._database = open_database(path, FORMAT, _OPEN, timeout_s=5.0)
        try:
            (self._used,) = self._database.execute("SELECT ifnull(max(used), 0) FROM took").fetchone()
            (self._withdrawn,) = self._database.execute("SELECT ifnull(max(used), 0) FROM withdrawals").fetchone()
            self._database.execute("DELETE FROM took WHERE used <= ?", (self._used - TOOK_KEPT,))
        except sqlite3.Error as error:
            self._database.close()
            raise StoreError(f"{path}: {error}") from error

    def read(self) -> Recovered:
        """Return all that is there. Raises StoreError."""
        database = self._database
        try:
            sessions = {
                session: SavedSession(session, state, deliveries or b"", [], [], [])
                for session, state, deliveries in database.execute("SELECT * FROM sessions ORDER BY session")
            }
            for session, publisher, blob, sequence in database.execute("SELECT * FROM marks"):
                sessions[session].marks.append((publisher, _instance(blob), sequence))
            for one in sessions.values():
                one.marks.sort()
            for row in database.execute("SELECT * FROM subscriptions ORDER BY session, number"):
                sessions[row[0]].subscriptions.append(SaveSubscription(*row))
            rows = database.execute("SELECT session, first, last, entries FROM segments ORDER BY session, last")
            for session, first, last, entries in rows:
                sessions[session].segments.append((first, last, entries))
            took = [
                Took(publisher, _instance(blob), sequence)
                for publisher, blob, sequence in database.execute(
                    "SELECT publisher, instance, sequence FROM took ORDER BY used"
                )
            ]
            valid = [
                SaveValid(publisher, _instance(blob), sequence, time_us, until_us, bool(settled), payload)
                for publisher, blob, sequence, time_us, until_us, settled, payload in database.execute(
                    "SELECT publisher, instance, sequence, time_us, until_us, settled, payload FROM valid"
                )
            ]
            withdrawals = [
                SaveWithdrawal(publisher, _instance(blob), sequence)
                for publisher, blob, sequence in database.execute(
                    "SELECT publisher, instance, sequence FROM withdrawals ORDER BY used"
                )
            ]
        except (sqlite3.Error, KeyError, TypeError) as error:
            raise StoreError(f"{self._path}: {error!r}") from error
        return Recovered(list(sessions.values()), took, valid, withdrawals)

    def write(self, writes: Iterable[Write]) -> None:
        """Have all of it on disk on return, in one transaction. Raises StoreError; then nothing of it is there."""
        writes = list(writes)
        letters = [write.line for write in writes if isinstance(write, DeadLetter)]
        try:
            if letters:
                self._dead_letters.add(letters)
            with transaction(self._database):
                for write in writes:
                    self._write(write)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _write(self, write: Write) -> None:
        execute = self._database.execute
        match write:
            case Append():
                execute(
                    "INSERT OR REPLACE INTO segments (session, first, last, entries) VALUES (?, ?, ?, ?)", tuple(write)
                )
            case SaveSession(session, state):
                execute(
                    "INSERT INTO sessions VALUES (?, ?, NULL) ON CONFLICT DO UPDATE SET state = excluded.state",
                    (session, state),
                )
            case Discard(session, upto):
                execute("DELETE FROM segments WHERE session = ? AND last <= ?", (session, upto))
            case Took(publisher, instance, sequence):
                self._used += 1
                row = (publisher, _blob(instance), sequence, self._used)
                execute("INSERT OR REPLACE INTO took VALUES (?, ?, ?, ?)", row)
            case SaveValid(publisher, instance):
                execute(
                    "INSERT OR REPLACE INTO valid VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (publisher, _blob(instance), *write[2:]),
                )
            case RemoveValid(publisher, instance, sequence):
                key = (publisher, _blob(instance), sequence)
                execute("DELETE FROM valid WHERE publisher = ? AND instance = ? AND sequence = ?", key)
            case SaveWithdrawal(publisher, instance, sequence):
                self._withdrawn += 1
                row = (publisher, _blob(instance), sequence, self._withdrawn)
                execute("INSERT OR REPLACE INTO withdrawals VALUES (?, ?, ?, ?)", row)
            case RemoveWithdrawal(publisher, instance, sequence):
                key = (publisher, _blob(instance), sequence)
                execute("DELETE FROM withdrawals WHERE publisher = ? AND instance = ? AND sequence = ?", key)
            case SaveDeliveries(session, deliveries):
                execute("UPDATE sessions SET deliveries = ? WHERE session = ?", (deliveries, session))
            case SaveMark(session, publisher, instance, sequence):
                execute(
                    "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?)", (session, publisher, _blob(instance), sequence)
                )
            case ForgetMarks(session):
                execute("DELETE FROM marks WHERE session = ?", (session,))
            case SaveSubscription():
                execute("INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?, ?)", tuple(write))
            case RemoveSubscription(session, number):
                execute("DELETE FROM subscriptions WHERE session = ? AND number = ?", (session, number))
            case EndSession(session):
                for table in ("sessions", "marks", "subscriptions", "segments"):
                    execute(f"DELETE FROM {table} WHERE session = ?", (session,))
            case DeadLetter():
                pass  # written already

    def close(self) -> None:
        """Let others have the file."""
        self._database.close()


def _blob(instance: int) -> bytes:
    """Return the instance as it is in a row: it has 64 bits without a sign, which SQLite's integers do not."""
    return instance.to_bytes(8, "little")


def _instance(blob: bytes) -> int:
    return int.from_bytes(blob, "little")


class Writer:
    """A thread that writes what it is given. stored: called there with the number up to which all is on disk.

    opens:  makes the store when the first portion comes, if `store` is None; so there is no file before it is needed.
    failed: called there, once, with what opening or writing has raised; nothing is written after that.
    """

    def __init__(
        self,
        store: SessionStore | None,
        opens: Callable[[], SessionStore],
        *,
        stored: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._opens = opens
        self._stored = stored
        self._failed = failed
        self._waiting: queue.SimpleQueue[Store | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="session store", daemon=True)
        self._thread.start()

    def write(self, portion: Store) -> None:
        """Write it after all that was given before."""
        self._waiting.put(portion)

    def close(self) -> None:
        """Write what was given, end the thread, close the file."""
        self._waiting.put(None)
        self._thread.join()
        if self._store is not None:
            self._store.close()

    def _run(self) -> None:
        while True:
            portions, ended = self._take()
            if portions:
                try:
                    if self._store is None:
                        self._store = self._opens()
                    self._store.write(write for portion in portions for write in portion.writes)
                except BaseException as error:
                    self._failed(error)
                    return
                self._stored(portions[-1].number)
            if ended:
                return

    def _take(self) -> tuple[list[Store], bool]:
        """Wait for a portion; return all there are, and whether that was all."""
        portions: list[Store] = []
        one = self._waiting.get()
        while one is not None:
            portions.append(one)
            try:
                one = self._waiting.get_nowait()
            except queue.Empty:
                return portions, False
        return portions, True
