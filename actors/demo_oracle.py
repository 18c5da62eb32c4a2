"""What the demo's subscribers should get: the plain evaluator over the same readings, in processes of its own.

    python -m actors.demo_oracle '{"source": {"path": null, "count": 1000}, "filters": ["no2 > 40"]}'

writes one byte a publication to stdout, with bit k set if filter k holds. It runs at the lowest priority, so that
on a small machine it takes what the cluster leaves; the readings are dealt out to as many processes as there are
cores, so that little is left to wait for at the end (25 µs a reading and core for the six filters).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys

import msgspec

from cluster.language import parse
from cluster.readings import CityGenerator, Readings, open_readings


class Source(msgspec.Struct, frozen=True):
    """Readings that two processes can read alike. path: None is the generator, with `count` readings."""

    path: str | None
    count: int = 100_000
    limit: int | None = None

    def open(self) -> Readings:
        """Return the readings. Raises ReadingsError."""
        if self.path is None:
            return CityGenerator(self.count if self.limit is None else self.limit)
        return open_readings(self.path)


class Task(msgspec.Struct, frozen=True):
    """What a process is asked: the filters, on every `shares`-th of the readings from number `share`, 0 the first."""

    source: Source
    filters: list[str]
    share: int = 0
    shares: int = 1


def expected_bits(task: Task) -> bytes:
    """Return one byte for each publication of the task's share, with bit k set if filter k holds."""
    tests = [(1 << place, parse(text).matches) for place, text in enumerate(task.filters)]
    return bytes(
        sum([bit for bit, holds in tests if holds(publication)])
        for publication in itertools.islice(task.source.open(), task.share, task.source.limit, task.shares)
    )


class Oracle:
    """The processes, one a share. Use as a context; leaving it ends them, done or not."""

    def __init__(self, source: Source, filters: list[str], shares: int = 1) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "actors.demo_oracle", msgspec.json.encode(task).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the demo, which ends these
            )
            for task in (Task(source, filters, share, shares) for share in range(shares))
        ]

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None, "both are pipes"
                pipe.close()

    def result(self) -> bytes:
        """Wait for the processes and return one byte a publication; blocks, so call it in a thread.

        Raises: RuntimeError with a process's last words.
        """
        shares = []
        for process in self._processes:
            bits, words = process.communicate()
            if process.returncode != 0:
                last = words.decode(errors="replace").strip()
                raise RuntimeError(f"the oracle ended with exit code {process.returncode}: {last}")
            shares.append(bits)
        together = bytearray(sum(map(len, shares)))
        for share, bits in enumerate(shares):
            together[share :: len(shares)] = bits
        return bytes(together)


def main() -> None:
    """Answer the task in the first argument."""
    with contextlib.suppress(OSError):
        os.nice(19)
    task = msgspec.json.decode(sys.argv[1], type=Task)
    sys.stdout.buffer.write(expected_bits(task))


if __name__ == "__main__":
    main()
