"""The coordinator's memory on disk: `coordinator.db` in the data directory, an SQLite file of mode 0600.

What `write` has returned from survives the end of the process and of the machine; it is there as a whole or not at all.
The memory is one row that each write replaces. Of the history the newest HISTORY operations are kept.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import msgspec

from cluster.coordinator import HISTORY
from cluster.errors import KittiwakeError
from cluster.memory import Memory, Operation, decode_memory, decode_operation

FORMAT = 1
"""Written as the file's user_version; files of another one are not read."""

HEADER_BYTES = 100
"""Of an SQLite file."""

# EXTRA is FULL, and the journal's end is on disk too: a commit that was announced never comes undone.
_OPEN = """
PRAGMA journal_mode = DELETE;
PRAGMA synchronous = EXTRA;
CREATE TABLE IF NOT EXISTS memory (id INTEGER PRIMARY KEY CHECK (id = 0), data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS names (process TEXT PRIMARY KEY, actor TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lives (number INTEGER PRIMARY KEY, port INTEGER NOT NULL);
"""


class StoreError(KittiwakeError):
    """The file cannot be read or written, or is no memory; the text names it."""

    code = "store"


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
    for old in (path, path.with_name(f"{path.name}-journal")):
        old.unlink(missing_ok=True)


class Store:
    """An open file. One process at a time: others are kept out until `close`."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open the file, made if it is not there; with `fresh` what it held is thrown away. Raises StoreError."""
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fresh:
                _remove(path)
            # SQLite would make it readable by others; its journal takes the mode of the file.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            path.chmod(0o600)
            if 0 < path.stat().st_size < HEADER_BYTES:
                raise StoreError(f"{path}: file is torn")  # SQLite would take it for an empty one
            # Autocommit: transactions are what `write` says they are. Ray runs an actor on threads of its own choice.
            self._database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: {error}") from error
        try:
            self._begin()
        except BaseException:
            self._database.close()
            raise

    def _begin(self) -> None:
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise StoreError(f"{self._path}: format {version}, this is for {FORMAT}")
            self._database.executescript(_OPEN)
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
            trouble = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error
        if trouble != "ok":
            raise StoreError(f"{self._path}: {trouble}")

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
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                database.execute("INSERT OR REPLACE INTO memory VALUES (0, ?)", (memory,))
                if entry is not None:
                    number, document = entry
                    database.execute("INSERT OR REPLACE INTO history VALUES (?, ?)", (number, document.decode()))
                    database.execute("DELETE FROM history WHERE number <= ?", (number - HISTORY,))
                database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error

    def last_life(self) -> tuple[int, int]:
        """Return the number of the coordinator's last process, and its port; 0 and 0 before the first."""
        try:
            row = self._database.execute("SELECT number, port FROM lives ORDER BY number DESC LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def begin_life(self, number: int, port: int) -> None:
        """Have it on disk that a process has begun. Raises StoreError."""
        try:
            self._database.execute("INSERT INTO lives VALUES (?, ?)", (number, port))
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error

    def call(self, process: str, actor: str) -> None:
        """Have it on disk that the actor of this name plays a process. Raises StoreError."""
        try:
            self._database.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (process, actor))
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error

    def called(self, process: str) -> str | None:
        """Return the name of the actor that plays a process, None for its own. Raises StoreError."""
        try:
            row = self._database.execute("SELECT actor FROM names WHERE process = ?", (process,)).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Let others have the file."""
        self._database.close()
