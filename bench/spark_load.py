"""An exit point's writer under load, in a process of its own: python -m bench.spark_load --folder OUT --rate 5000

Feeds the real writer of matched output what an exit point's machine would give it, every 10 ms a batch of readings of
the generator, each matched by two clients' subscriptions, all with `ack="stored"`. Prints one JSON object:

    rows        written, and first_us, last_us: time_released of the first and of the last
    segments    sealed
    cpu_share   processor seconds that the writer took of a second: the appends in the machine's turn, syncing, sealing,
                merging. What the feeding itself takes is not in it (it is measured in its thread and taken off).
    stored_p99_ms   from an append until it is known to be on disk
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from pathlib import Path

import msgpack

from actors.output_writer import OutputWriter
from cluster.columns import UINT32, UINT64, pack
from cluster.config import Config, OutputSettings
from cluster.matched import Hits, Matched, MatchedRun
from cluster.messages import AppendOutput, Event, NameOutputClients, OutputState, SealOutput, Stored
from cluster.output.manifest import Claim
from cluster.readings.generator import CityGenerator

TICK_S = 0.01
CLIENTS = {1: "dashboard", 2: "lab"}
POOL = 64
"""Different batches, used in turn."""


def batches(size: int) -> list[Hits]:
    """Return hits of `size` readings each."""
    readings = iter(CityGenerator(POOL * size, seed=1))
    found = []
    for _ in range(POOL):
        payloads = [msgpack.packb(next(readings)) for _ in range(size)]
        found.append(
            Hits(
                matched=pack(UINT32, range(size)),
                notifications=pack(UINT32, [len(CLIENTS)] * size),
                clients=pack(UINT64, list(CLIENTS) * size),
                matches=pack(UINT32, [1] * (size * len(CLIENTS))),
                numbers=pack(UINT32, [number % 50 for number in range(size * len(CLIENTS))]),
                lengths=pack(UINT32, map(len, payloads)),
                payload=b"".join(payloads),
            )
        )
    return found


class Load:
    """Feeds one writer. figures(): what it came to."""

    def __init__(self, folder: Path, slot: int, segment_age_s: float) -> None:
        self._folder = folder
        self._appended_s: dict[int, float] = {}
        self._delays_s: list[float] = []
        self._told = threading.Lock()
        self._stored = 0
        self._segments = 0
        self._failure: BaseException | None = None
        config = Config(
            data_directory=str(folder), output=OutputSettings(path=str(folder), segment_age_s=segment_age_s)
        )
        self._writer = OutputWriter(config, slot, Claim("bench", 1), tell=self._tell, failed=self._failed)
        self._rows = 0
        self._number = 0

    def _tell(self, event: Event) -> None:
        if isinstance(event, Stored):
            now = time.monotonic()
            with self._told:
                for number in range(self._stored + 1, event.upto + 1):
                    self._delays_s.append(now - self._appended_s.pop(number))
                self._stored = event.upto
        elif isinstance(event, OutputState):
            self._segments = event.segments

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def run(self, rate: float, seconds: float) -> dict[str, float]:
        """Feed for so long; returns the figures."""
        size = max(1, round(rate * TICK_S))
        hits = batches(size)
        self._writer.perform(NameOutputClients(list(CLIENTS.items()), []))
        begin, cpu, own = time.monotonic(), time.process_time(), time.thread_time()
        inside = 0.0
        first_us = time.time_ns() // 1000
        while (due := begin + self._number * TICK_S) < begin + seconds:
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            if self._failure is not None:
                raise self._failure
            now_us = time.time_ns() // 1000
            run = MatchedRun("laro", 7, self._rows + 1, size, 0, now_us, now_us - 1000)
            self._number += 1
            with self._told:
                self._appended_s[self._number] = time.monotonic()
            asked = AppendOutput(self._number, Matched(1, size, [run], [hits[self._number % POOL]]), True)
            before = time.thread_time()
            self._writer.perform(asked)
            self._writer.flush()
            inside += time.thread_time() - before
            self._rows += size
        last_us = time.time_ns() // 1000
        wall = time.monotonic() - begin
        used = time.process_time() - cpu - (time.thread_time() - own - inside)
        self._writer.perform(SealOutput())
        self._writer.close()
        late = sorted(self._delays_s)
        return {
            "rows": self._rows,
            "segments": self._segments,
            "first_us": first_us,
            "last_us": last_us,
            "cpu_share": round(used / wall, 4),
            "stored_p99_ms": round(1000 * late[math.ceil(0.99 * len(late)) - 1], 1) if late else math.nan,
        }


def main(arguments: list[str] | None = None) -> int:
    """Run the load; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_load", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--segment-age-s", type=float, default=5.0)
    options = parser.parse_args(arguments)
    load = Load(options.folder, options.slot, options.segment_age_s)
    print(json.dumps(load.run(options.rate, options.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
