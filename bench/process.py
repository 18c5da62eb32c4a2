"""What the load generators share: their loop, a precise wait, and how much a process uses."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that the roles run on."""
    import uvloop

    return uvloop.run(work)


async def wait_until(due: float) -> None:
    """Return at a time of the monotonic clock, in seconds; the loop has a turn every half millisecond meanwhile.

    A blocking sleep is precise to 0.1 ms where an event loop's timer has 1 ms.
    """
    while (wait := due - time.monotonic()) > 0:
        time.sleep(min(wait, 0.0005))
        await asyncio.sleep(0)


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def busy_s() -> float:
    """Return the seconds that all processors of the machine together have worked."""
    user, nice, system, _, _, interrupts, soft = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    return sum(map(int, (user, nice, system, interrupts, soft))) / _TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Return a process's resident megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def started_at(pid: int) -> str | None:
    """Return what tells this process from a later one with its number; None if it is gone or a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in ("Z", "X") else fields[19]


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped the process."""
    return _stat(pid)[:1] == ["T"]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_actor(pid: int) -> bool:
    """Tell whether the process plays an actor of Ray on this machine."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def free_ports(count: int) -> int:
    """Return the first of `count` neighbouring ports of loopback that are free at this moment. Raises OSError.

    Each process looks from another one on, as it binds them later; they are below those that systems give out for 0.
    """
    for first in range(21_000 + 89 * (os.getpid() % 100), 60_000, 89):
        sockets: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()
    raise OSError(f"there are no {count} neighbouring free ports")
