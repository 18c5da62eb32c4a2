"""The processes of roles run as everybody else's do, though Ray starts its workers behind all others."""

from __future__ import annotations

import subprocess
import sys

STORY = """
import os, threading
began = os.nice(max(0, 5 - os.nice(0)))  # behind all others, at whatever the tests themselves run
woken = threading.Event()
threading.Thread(target=woken.wait, daemon=True).start()
if {forbidden}:
    def refuse(*_): raise PermissionError
    os.setpriority = refuse
from actors.processes import prepare_process
prepare_process()
print(began, *sorted(os.getpriority(os.PRIO_PROCESS, int(one)) for one in os.listdir("/proc/self/task")))
"""


def told(forbidden: bool) -> tuple[str, set[str], str]:
    """Return the nice value at which a process began, 5 or more, those of its threads then, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", STORY.format(forbidden=forbidden)], capture_output=True, text=True, check=True
    )
    began, *nice = done.stdout.split()
    return began, set(nice), done.stderr


def test_a_process_that_began_behind_all_others_is_as_urgent_as_they_or_says_why_not() -> None:
    _, nice, logged = told(forbidden=False)
    assert (nice == {"0"}) != ("RAY_worker_niceness=0" in logged), (nice, logged)


def test_one_that_may_not_change_that_says_so() -> None:
    began, nice, logged = told(forbidden=True)
    assert nice == {began}
    assert "behind every other process" in logged
    assert "RAY_worker_niceness=0" in logged
