"""What slots that nobody plays have left behind: write-ahead files of an exit point that died while it was leaving, or
of a cluster that had more of them. Whoever comes by seals them.

A slot that somebody plays is left alone: its process holds the slot's `owner` lock for as long as it lives.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from cluster.output.disk import Disk, LocalDisk
from cluster.output.errors import FencedError, OutputError
from cluster.output.manifest import FOLDER, Claim, slot_folder, slot_named
from cluster.output.slot_writer import SlotWriter
from cluster.output.tidying import TidySettings
from cluster.output.write_ahead import file_named


def left_behind(local: Disk, slot: int) -> bool:
    """Tell whether a slot has write-ahead files."""
    return any((parts := file_named(name)) and parts[0] == "wal" for name in local.names(slot_folder(slot)))


def adopt(disk: Disk, local: LocalDisk, run: str, played: Collection[int]) -> dict[int, str]:
    """Seal what slots other than `played` have left; return what could not be, and why."""
    failed: dict[int, str] = {}
    for name in local.names(FOLDER):
        slot = slot_named(name)
        if slot is None or slot in played or not left_behind(local, slot):
            continue
        owner = local.owned(f"{slot_folder(slot)}/owner")
        if owner is None:
            continue
        with owner:
            try:
                writer = SlotWriter(disk, local, slot, Claim(f"{run}+", 0))
                try:
                    writer.seal_all()
                finally:
                    writer.close()
            except FencedError:
                continue  # it is played again
            except OutputError as error:
                failed[slot] = str(error)
    return failed


class Compacted(NamedTuple):
    """What was done to a slot, in words; failed: it could not be."""

    text: str
    failed: bool = False


def compact(disk: Disk, local: LocalDisk, below_bytes: int, to_bytes: int, grace_s: float) -> dict[int, Compacted]:
    """Seal what is left behind and merge small segments, of all slots that nobody writes.

    grace_s: replaced files stay so long; this waits for it.
    """
    done: dict[int, Compacted] = {}
    for name in disk.names(FOLDER):
        slot = slot_named(name)
        if slot is None:
            continue
        owner = local.owned(f"{slot_folder(slot)}/owner")
        if owner is None:
            done[slot] = Compacted("is written by a running exit point, which merges its segments itself")
            continue
        with owner:
            try:
                done[slot] = _compact_slot(disk, local, slot, TidySettings(below_bytes, to_bytes, grace_s=grace_s))
            except (OutputError, OSError) as error:
                done[slot] = Compacted(str(error), failed=True)
    return done


def _compact_slot(disk: Disk, local: LocalDisk, slot: int, settings: TidySettings) -> Compacted:
    writer = SlotWriter(disk, local, slot, Claim("compact", 0), settings)
    try:
        before = len(writer.log.manifest.segments)
        offset = writer.log.manifest.next
        writer.seal_all()
        while writer.tidying.step(time.time(), everything=True):
            pass
        while writer.tidying.going:
            time.sleep(min(settings.grace_s, 1.0))
            writer.tidying.step(time.time())
        manifest = writer.log.manifest
        return Compacted(f"{manifest.next - offset} rows sealed, {before} segments are {len(manifest.segments)}")
    finally:
        writer.close()
