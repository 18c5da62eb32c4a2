"""What slots that nobody plays have left behind: write-ahead files of an exit point that died while it was leaving, or
of a cluster that had more of them, or has ended however it did. Whoever comes by seals them.

A slot that somebody plays is left alone: its process holds the slot's `owner` lock for as long as it lives. Between a
process that died and the one that takes over from it nobody holds that lock, so who is not of the cluster needs more:
`running` is held, shared, by who has started a cluster on the log and by each of its exit points, and alone by who
seals from outside. An exit point that starts meanwhile waits until that is done.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import NamedTuple

from cluster.output.disk import Disk, LocalDisk, open_disk
from cluster.output.errors import FencedError, OutputError
from cluster.output.manifest import FOLDER, Claim, slot_folder, slot_named
from cluster.output.slot_writer import SlotWriter
from cluster.output.tidying import TidySettings
from cluster.output.write_ahead import file_named

RUNNING = f"{FOLDER}/running"
JOIN_S = 60.0
"""Until who joins gives up on somebody that seals from outside: a thousand rows take it 20 ms."""
POLL_S = 0.05


def left_behind(local: Disk, slot: int) -> bool:
    """Tell whether a slot has write-ahead files."""
    return any((parts := file_named(name)) and parts[0] == "wal" for name in local.names(slot_folder(slot)))


def join(local: LocalDisk, wait_s: float = JOIN_S) -> ExitStack:
    """Return a hold that says that a cluster runs on the log; while somebody seals from outside, wait.

    Raises: OutputError if that takes more than wait_s.
    """
    held = _await(local, True, wait_s)
    if held is None:
        raise OutputError(f"somebody seals the log from outside, and has not done so within {wait_s:g} s", file=RUNNING)
    return held


def _await(local: LocalDisk, shared: bool, wait_s: float) -> ExitStack | None:
    end = time.monotonic() + wait_s
    while (held := local.owned(RUNNING, shared=shared)) is None and time.monotonic() < end:
        time.sleep(POLL_S)
    return held


class Adopted(NamedTuple):
    """rows: that were sealed. failed: slots that could not be, and why. running: nothing was, as a cluster runs."""

    rows: int
    failed: dict[int, str]
    running: bool = False


def adopt(disk: Disk, local: LocalDisk, run: str, played: Collection[int]) -> Adopted:
    """Seal what slots other than `played` have left, as one of the cluster."""
    rows = 0
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
                    rows += writer.sealed_rows
                    writer.close()
            except FencedError:
                continue  # it is played again
            except OutputError as error:
                failed[slot] = str(error)
    return Adopted(rows, failed)


def seal_ended(disk: Disk, local: LocalDisk, wait_s: float = 0.0) -> Adopted:
    """Seal what a cluster that has ended has left, for who reads and is not of a cluster; nothing while one runs.

    wait_s: so long for the last processes of it to end. Raises: nothing that has to do with the log: what cannot be
    read, or not be written, as in a folder that is read-only, is in `failed`.
    """
    left = [slot for name in local.names(FOLDER) if (slot := slot_named(name)) is not None and left_behind(local, slot)]
    if not left:
        return Adopted(0, {})
    try:
        held = _await(local, False, wait_s)
        if held is None:
            return Adopted(0, {}, running=True)
        with held:
            return adopt(disk, local, "ended", ())
    except OSError as error:
        return Adopted(0, dict.fromkeys(left, str(error)))


def seal_ended_at(place: str) -> Adopted:
    """Do so for a log in a folder. Of one at a URI the write-ahead files are elsewhere: nothing is done."""
    if "://" in place and not place.startswith("file://"):
        return Adopted(0, {})
    disk = open_disk(place)
    assert isinstance(disk, LocalDisk), "a path that is no folder"
    return seal_ended(disk, disk)


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
