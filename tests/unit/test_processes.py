"""The processes of roles run as everybody else's do, though Ray starts its workers behind all others."""

from __future__ import annotations

import subprocess
import sys

STORY = """
import os, threading
os.nice(5)
woken = threading.Event()
threading.Thread(target=woken.wait, daemon=True).start()
if {forbidden}:
    def refuse(*_): raise PermissionError
    os.setpriority = refuse
from actors.processes import prepare_process
prepare_process()
print(*sorted(os.getpriority(os.PRIO_PROCESS, int(one)) for one in os.listdir("/proc/self/task")))
"""


def told(forbidden: bool) -> tuple[set[str], str]:
    """Return at which nice values the threads of a process ran, that began at 5, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", STORY.format(forbidden=forbidden)], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split()), done.stderr


def test_a_process_that_began_behind_all_others_is_as_urgent_as_they_or_says_why_not() -> None:
    nice, logged = told(forbidden=False)
    assert (nice == {"0"}) != ("RAY_worker_niceness=0" in logged), (nice, logged)


def test_one_that_may_not_change_that_says_so() -> None:
    nice, logged = told(forbidden=True)
    assert nice == {"5"}
    assert "behind every other process" in logged
    assert "RAY_worker_niceness=0" in logged
