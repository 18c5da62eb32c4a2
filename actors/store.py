"""The coordinator's memory on disk: `coordinator.db` in the data directory, an SQLite file of mode 0600.

What `write` has returned from survives the end of the process and of the machine; it is there as a whole or not at all.
The memory is one row that each write replaces. Of the history the newest HISTORY operations are kept.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from actors.database import StoreError, open_database, transaction
from cluster.coordinating.operations import HISTORY
from cluster.memory import Memory, Operation, decode_memory, decode_operation

FORMAT = 1
"""Written as the file's user_version; files of another one are not read."""

# With a log FULL has it on disk with each commit: what was announced never comes undone.
_OPEN = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS memory (id INTEGER PRIMARY KEY CHECK (id = 0), data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS names (process TEXT PRIMARY KEY, actor TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lives (number INTEGER PRIMARY KEY, port INTEGER NOT NULL);
"""


def store_path(directory: Path) -> Path:
    """Return where the coordinator of a cluster with this data directory keeps its memory."""
    return directory / "coordinator.db"


def _remove(path: Path) -> None:
    """Throw the file away. Raises sqlite3.OperationalError if another process has it open."""
    if path.exists():
        database = sqlite3.connect(path, timeout=1.0, isolation_level=None)
        try:
            database.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            pass  # it is no memory, so nobody uses it
        finally:
            database.close()
    for old in (f"{path.name}-journal", f"{path.name}-wal", path.name):
        path.with_name(old).unlink(missing_ok=True)


class Store:
    """An open file. One process at a time: others are kept out until `close`."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open the file, made if it is not there; with `fresh` what it held is thrown away. Raises StoreError."""
        self._path = path
        try:
            if fresh:
                _remove(path)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: {error}") from error
        self._database = open_database(path, FORMAT, _OPEN, timeout_s=1.0)

    def read(self) -> tuple[Memory | None, list[Operation]]:
        """Return the memory, None if nothing was written, and the history, oldest first. Raises StoreError."""
        try:
            row = self._database.execute("SELECT data FROM memory").fetchone()
            entries = self._database.execute("SELECT document FROM history ORDER BY number").fetchall()
            memory = None if row is None else decode_memory(row[0])
            return memory, [decode_operation(document.encode()) for (document,) in entries]
        except (sqlite3.Error, msgspec.DecodeError, AttributeError, TypeError) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def write(self, memory: bytes, entry: tuple[int, bytes] | None) -> None:
        """Replace the memory, and set the document of one number in the history. Raises StoreError; nothing changed."""
        try:
            with transaction(self._database):
                self._database.execute("INSERT OR REPLACE INTO memory VALUES (0, ?)", (memory,))
                if entry is not None:
                    number, document = entry
                    self._database.execute("INSERT OR REPLACE INTO history VALUES (?, ?)", (number, document.decode()))
                    self._database.execute("DELETE FROM history WHERE number <= ?", (number - HISTORY,))
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _execute(self, sql: str, *values: object) -> Any:
        """Carry out one statement; return its first row, None without one."""
        try:
            return self._database.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error

    def last_life(self) -> tuple[int, int]:
        """Return the number of the coordinator's last process, and its port; 0 and 0 before the first."""
        row = self._execute("SELECT number, port FROM lives ORDER BY number DESC LIMIT 1")
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def begin_life(self, number: int, port: int) -> None:
        """Have it on disk that a process has begun. Raises StoreError."""
        self._execute("INSERT INTO lives VALUES (?, ?)", number, port)

    def call(self, process: str, actor: str) -> None:
        """Have it on disk that the actor of this name plays a process. Raises StoreError."""
        self._execute("INSERT OR REPLACE INTO names VALUES (?, ?)", process, actor)

    def called(self, process: str) -> str | None:
        """Return the name of the actor that plays a process, None for its own. Raises StoreError."""
        row = self._execute("SELECT actor FROM names WHERE process = ?", process)
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Let others have the file."""
        self._database.close()
