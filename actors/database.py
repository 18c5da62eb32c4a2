"""What the files that processes keep have in common: an SQLite database of mode 0600, one process at a time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import KittiwakeError

HEADER_BYTES = 100
"""Of an SQLite file."""


class StoreError(KittiwakeError):
    """A file cannot be read or written, or is not what it should be; the text names it."""

    code = "store"


def open_database(path: Path, file_format: int, script: str, *, timeout_s: float) -> sqlite3.Connection:
    """Open the file, made if it is not there; others are kept out until it is closed. Raises StoreError.

    file_format: written as the file's user_version; files of another one are not read.
    script:      sets up how it is written, and the tables that are not there.
    timeout_s:   to wait for another process to let go of it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite would make it readable by others; its journal or log takes the mode of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
        if 0 < path.stat().st_size < HEADER_BYTES:
            raise StoreError(f"{path}: file is torn")  # SQLite would take it for an empty one
        # Autocommit: transactions are what `transaction` says they are. It may be used from one thread after another.
        database = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path}: {error}") from error
    try:
        # Before a log is opened: then SQLite needs no shared memory for it, and keeps others out from here.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, file_format):
            raise StoreError(f"{path}: format {version}, this is for {file_format}")
        database.executescript(script)
        database.execute(f"PRAGMA user_version = {file_format}")
        trouble = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if trouble != "ok":
            raise StoreError(f"{path}: {trouble}")
    except BaseException as error:
        database.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"{path}: {error}") from error
        raise
    return database


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Have all that is done within on disk at the end, or nothing of it. Raises sqlite3.Error."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
            database.execute("ROLLBACK")
        raise
