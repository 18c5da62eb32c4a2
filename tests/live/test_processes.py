"""What the live tests start is ended with all that it has started, and its last words are told; without a cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.live.processes import end, lives, printed, wait_for

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_is_ended_with_its_descendants() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
    assert lives(child)
    end(process)
    assert process.returncode is not None
    wait_for(lambda: not lives(child), "its child goes on")
    end(process)  # one that has ended is left alone


def test_a_command_that_fails_is_told_with_its_last_words() -> None:
    loud = "import sys; print('x' * 9999 + 'out'); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(pytest.fail.Exception) as caught:
        printed([sys.executable, "-c", loud])
    assert "exit status 3\n" in str(caught.value)
    assert "xout\n" in str(caught.value)
    assert "err\n" in str(caught.value)
    assert "x" * 6000 not in str(caught.value)


def test_a_command_that_takes_too_long_is_ended_and_told() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"not ended within 0\.01 s"):
        printed([sys.executable, "-c", PARENT], timeout_s=0.01)


def test_what_a_command_prints_is_returned() -> None:
    assert printed([sys.executable, "-c", "print(7)"]) == "7\n"
