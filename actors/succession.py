"""Which process is the coordinator: never two of them, and another one at once when it dies.

    coordinator.lock    held (flock) by the process that is the coordinator, for as long as it lives. The kernel lets go
                        of it when that process ends, however it ends, and not before: one that is stopped by a signal
                        keeps it, so nobody takes over, and traffic does not notice. Whoever waits looks every POLL_S.
    coordinator.alive   names the run of the cluster that goes on here, and the node of its coordinator; it is taken
                        away when the cluster is stopped. Who gets the lock and does not find its own run named there
                        has come too late, or too early, and does nothing.

A lock holds on one machine, and across machines where the file system says so. So those that wait are on the node of
the coordinator, see `Where`. Where a file system has no locks at all nobody can wait for one: there is no standby, Ray
starts the one coordinator anew, and SQLite alone is left to see that there are not two.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import math
import os
import socket
import time
from collections.abc import Collection
from enum import Enum
from pathlib import Path

POLL_S = 0.025
"""A look costs 10 microseconds; a takeover takes ten times as long as this."""
UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What flock says on a file system without locks."""

log = logging.getLogger("kittiwake")


class Where(Enum):
    """Whether a process may wait for the lock, by where it and the run's last coordinator are.

    HERE:      on one node, where the lock decides.
    ELSEWHERE: that one's node is up and another one: whatever is locked here says nothing of it.
    LOST:      that one's node is no more, with all its processes: Ray has started this one in its place.
    """

    HERE = "here"
    ELSEWHERE = "elsewhere"
    LOST = "lost"


def where(last: str, own: str, alive: Collection[str]) -> Where:
    """Tell it by the nodes: the last coordinator's, one's own, and those that Ray knows to be alive."""
    if last == own:
        return Where.HERE
    return Where.ELSEWHERE if last in alive else Where.LOST


class Succession:
    """directory: the cluster's data directory. run: names this run of the cluster.

    lockable: whether the file system has locks; known once somebody has tried.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._lock_path = directory / "coordinator.lock"
        self._alive_path = directory / "coordinator.alive"
        self._run = run
        self._file: int | None = None
        self.lockable = True

    # Which run goes on ---------------------------------------------------------------------------------------------

    def node(self) -> str | None:
        """Return the node of this run's last coordinator; None if the run has not begun, or was ended."""
        try:
            run, _, node = self._alive_path.read_text().partition(" ")
        except OSError:
            return None
        return node if run == self._run else None

    def begin(self, node: str) -> None:
        """The run goes on, with its coordinator on this node."""
        aside = self._alive_path.with_suffix(".new")
        aside.write_text(f"{self._run} {node}")
        aside.replace(self._alive_path)

    def end(self) -> None:
        """The run is over: nobody is to follow."""
        self._alive_path.unlink(missing_ok=True)

    # The lock ------------------------------------------------------------------------------------------------------

    def try_take(self) -> bool:
        """Take the lock if nobody has it; tell whether it is ours. Raises OSError if the file cannot be opened.

        The directory is made if it is not there.
        """
        if self._file is not None:
            return True
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                os.close(file)
                raise
            self.lockable = False
            log.warning("%s cannot be locked: no coordinator stands by", self._lock_path)
        self._file = file
        return True

    async def take(self, patience_s: float = math.inf) -> bool:
        """Wait until the lock is ours, at most so long; tell whether it is. Raises OSError as `try_take`."""
        deadline = time.monotonic() + patience_s
        while not self.try_take():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


async def wait_for_port(host: str, port: int, patience_s: float) -> None:
    """Return when nobody listens at the port, or after the time.

    A process that dies lets go of its lock and of its sockets one after the other, within a millisecond or two.
    """
    deadline = time.monotonic() + patience_s
    while port and time.monotonic() < deadline:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # As servers bind: connections of the former one that have ended may linger there.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return  # whoever opens it will say what is wrong
            else:
                return
        await asyncio.sleep(0.002)
