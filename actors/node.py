"""How busy the node is that this process runs on, whoever keeps it busy: slices, clients, Ray, or somebody else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")

BUSY: Final = (0, 1, 2, 5, 6, 7)
"""Fields of a core's line that count, of proc_stat(5): user, nice, system, irq, softirq, steal (what a hypervisor has
taken is not there for slices); not idle and iowait. The guests' are within user and nice."""
COUNTED: Final = 8
"""Fields that together are all of the core's time."""


def available_cores() -> int:
    """Return how many cores this process may run on."""
    mine = _mine()
    return (os.cpu_count() or 1) if mine is None else len(mine)


def busy_cores(path: Path = STAT) -> tuple[int, int] | None:
    """Return for how long the cores that this process may run on have been busy, and how many they are.

    Shape:  microseconds of all of them together since the node was started, to take differences of; and a number.
            None if it is not known: not on Linux, and where the kernel does not say it of just these cores.
    Cost:   some 100 us, once a metrics interval.
    """
    mine = _mine()
    if mine is None:
        return None
    found = busy = total = 0
    try:
        with path.open("rb") as file:
            for line in file:
                name, *fields = line.split()
                if not name.startswith(b"cpu"):
                    break  # the cores' lines come first, and those of interrupts are long
                if name == b"cpu" or int(name[3:]) not in mine:
                    continue
                ticks = [int(field) for field in fields[:COUNTED]]
                found += 1
                busy += sum(ticks[place] for place in BUSY)
                total += sum(ticks)
    except (OSError, ValueError, IndexError):
        return None
    if found != len(mine) or not total:  # a container's own view may number them otherwise, or hold nothing
        return None
    return busy * 1_000_000 // os.sysconf("SC_CLK_TCK"), found


def _mine() -> set[int] | None:
    """Return the cores that this process may run on, None where that cannot be asked."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
