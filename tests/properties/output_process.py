"""A process that writes a slot's log as an exit point's does, until it is killed.

    python -m tests.properties.output_process DIRECTORY INCARNATION

It goes on behind what is written, as a publisher does whose exit point comes again. It prints `a N` once publication N
is appended, and `s N` once it is on disk.
"""

from __future__ import annotations

import os
import sys
import threading

import msgspec

from actors.output_writer import OutputWriter
from cluster.columns import UINT32, UINT64, pack
from cluster.config import Config, OutputSettings
from cluster.matched import Hits, Matched, MatchedRun
from cluster.messages import AppendOutput, Event, NameOutputClients, Stored
from cluster.output.manifest import Claim

OUTPUT = OutputSettings(path="output", segment_age_s=0.05, compact_below_bytes=1 << 20, grace_s=0.2)


def matched(first: int) -> Matched:
    """Return the rows of three publications."""
    payloads = [msgspec.msgpack.encode({"n": first + place}) for place in range(3)]
    hits = Hits(
        pack(UINT32, range(3)),
        pack(UINT32, [1] * 3),
        pack(UINT64, [7] * 3),
        pack(UINT32, [1] * 3),
        pack(UINT32, [5] * 3),
        pack(UINT32, map(len, payloads)),
        b"".join(payloads),
    )
    return Matched(1, 3, [MatchedRun("p", 1, first, 3, 0, 1_500_000_000_000_000 + first, 0)], [hits])


def main(directory: str, incarnation: int) -> None:
    """Write until somebody ends this."""
    firsts: dict[int, int] = {}
    known = threading.Condition()

    def tell(event: Event) -> None:
        if isinstance(event, Stored):
            os.write(1, b"s %d\n" % firsts[event.upto])
            with known:
                known.notify()

    def failed(error: BaseException) -> None:
        sys.stderr.write(repr(error))
        os._exit(70)

    config = Config(data_directory=directory, output=OUTPUT)
    writer = OutputWriter(config, 3, Claim("run", incarnation), tell=tell, failed=failed)
    writer.perform(NameOutputClients([(7, "lab")], []))
    first = writer.marks().marks.upto.get(("p", 1), 0) + 1
    number = 0
    while True:
        number += 1
        firsts[number] = first + 2
        writer.perform(AppendOutput(number, matched(first), True))
        writer.flush()
        os.write(1, b"a %d\n" % (first + 2))
        first += 3
        if number % 50 == 0:
            with known:
                known.wait(0.01)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
