"""A log with all that was published (`output.all`), as a matcher, an exit point and its writer make it."""

from __future__ import annotations

from pathlib import Path

import msgpack

from cluster.columns import UINT32, pack
from cluster.config import Config, OutputSettings
from cluster.exit_point import ExitPoint
from cluster.language import encode_normal, parse
from cluster.marks import Marks
from cluster.matcher import Matcher
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    MATCHER,
    AppendOutput,
    ApplyChanges,
    Batch,
    OutputMarks,
    Peer,
    Received,
    Result,
    Run,
    Send,
    SubscriptionChange,
)
from cluster.output.disk import LocalDisk
from cluster.output.manifest import Claim
from cluster.output.rows import Row
from cluster.output.slot_writer import SlotWriter
from tests.unit.views import view

CONFIG = Config(output=OutputSettings(path="output", all=True))
ACCESS = Peer(ACCESS_POINT, 0)


def publish_all(folder: Path, rows: list[Row], subscription: int, text: str, client: str) -> None:
    """Have rows' attributes published, as one publisher, to a matcher with one subscription; write what is released."""
    matcher, exit_point = Matcher(0, 1, CONFIG), ExitPoint(0, 1, CONFIG)
    disk = LocalDisk(folder)
    writer = SlotWriter(disk, disk, 0, Claim("run", 1))
    writer.name_clients([(subscription >> 20, client)], [])
    exit_point.handle(OutputMarks(Marks()))
    for machine in (matcher, exit_point):
        machine.handle(Received(COORDINATOR_PEER, view().install()))
    change = SubscriptionChange(1, subscription, encode_normal(parse(text).normal_form))
    matcher.handle(Received(ACCESS, ApplyChanges(1, 0, [change])))
    for first in range(0, len(rows), 50):
        some = rows[first : first + 50]
        packed = [msgpack.packb(row.attributes) for row in some]
        run = Run("city", 1, 1 << 20, first + 1, len(some), some[0].time_accepted_us)
        batch = Batch(1, [0], first + 1, [run], [0], [first + 1], pack(UINT32, map(len, packed)), b"".join(packed))
        (answer,) = matcher.handle(Received(ACCESS, batch))
        assert isinstance(answer, Send)
        assert isinstance(answer.message, Result)
        for asked in exit_point.handle(Received(Peer(MATCHER, 0), answer.message)):
            if isinstance(asked, AppendOutput):
                writer.append([asked.matched], some[0].time_released_us)
    writer.rotate()
    writer.seal_all()
    writer.close()
