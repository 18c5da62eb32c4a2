"""Merging small segments and removing old ones, without a reader noticing.

A change of the manifest says what holds from now on; files that it lists no more stay for a grace period, for readers
that have looked before. After it a reader that comes too late looks again, and finds the same rows in the merged
segment. Rows are never changed; their offsets stay.

    merged   neighbours of one day that are all below `below_bytes`, when they are sixteen, or together no longer small
    expired  the oldest segments, while their last row is older than `age_s`, or all together have more than `bytes`
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cluster.output.manifest import Change, Segment
from cluster.output.segments import read_segment
from cluster.output.slot_log import SlotLog

MERGE_COUNT = 16
"""Small segments that are merged even if they stay small: each row is then rewritten log16 times at most."""


@dataclass(frozen=True, slots=True)
class TidySettings:
    """As config.OutputSettings has them, without their prefixes."""

    below_bytes: int = 8 << 20
    to_bytes: int = 64 << 20
    age_s: int | None = None
    bytes: int | None = None
    grace_s: float = 60.0


class Tidying:
    """The tidying of one slot's log, by its writer. merged, expired: segments so far that were."""

    def __init__(self, log: SlotLog, settings: TidySettings) -> None:
        self._log = log
        self._settings = settings
        self._going: deque[tuple[float, str]] = deque()
        self._swept = False
        self.merged = 0
        self.expired = 0

    def step(self, now_s: float, *, everything: bool = False) -> bool:
        """Do one merge or removal that is due; tell whether anything was done. now_s: seconds since 1970.

        everything: merge whatever small neighbours there are.
        """
        self._unlink(now_s)
        if not self._swept:
            self._sweep(now_s)
            self._swept = True
        return self._expire(now_s) or self._merge(now_s, 2 if everything else MERGE_COUNT)

    @property
    def going(self) -> int:
        """Files that will go when their grace is over."""
        return len(self._going)

    def _unlink(self, now_s: float) -> None:
        while self._going and self._going[0][0] <= now_s:
            self._log.disk.remove(self._going.popleft()[1])

    def _let_go(self, paths: list[str], now_s: float) -> None:
        self._going.extend((now_s + self._settings.grace_s, path) for path in paths)

    def _sweep(self, now_s: float) -> None:
        """Files that an earlier writer has left and no manifest lists: of a crash, or in their grace."""
        known = self._log.manifest.segments
        mine = f"{self._log.slot:05d}-"
        for folder in self._log.disk.names(""):
            if folder.startswith("date="):
                names = self._log.disk.names(folder)
                left = [f"{folder}/{name}" for name in names if name.removeprefix("_").startswith(mine)]
                self._let_go([path for path in left if path not in known], now_s)

    def _expire(self, now_s: float) -> bool:
        settings, manifest = self._settings, self._log.manifest
        segments = sorted(manifest.segments.values(), key=lambda one: (one.first, one.path))
        total = sum(one.bytes for one in segments)
        gone: list[Segment] = []
        for one in segments:
            old = settings.age_s is not None and one.time_last_us < (now_s - settings.age_s) * 1e6
            many = settings.bytes is not None and total > settings.bytes
            if not (old or many):
                break
            gone.append(one)
            total -= one.bytes
        if not gone:
            return False
        first = max(manifest.first, *(one.last + 1 for one in gone))
        paths = [one.path for one in gone]
        self._log.commit(Change(why="expire", first=first, next=manifest.next, removed=paths))
        self._let_go(paths, now_s)
        self.expired += len(gone)
        return True

    def _merge(self, now_s: float, count: int) -> bool:
        group = self._group(count)
        if not group:
            return False
        log = self._log
        added = log.write([read_segment(log.disk, one) for one in group], group[0].date)
        paths = [one.path for one in group]
        manifest = log.manifest
        log.commit(Change(why="compact", first=manifest.first, next=manifest.next, added=[added], removed=paths))
        self._let_go(paths, now_s)
        self.merged += len(group)
        return True

    def _group(self, count: int) -> list[Segment]:
        """Return the oldest neighbours of a day that are to be merged now, none if there are none."""
        settings = self._settings
        by_day: dict[str, list[Segment]] = {}
        for each in sorted(self._log.manifest.segments.values(), key=lambda one: (one.first, one.path)):
            by_day.setdefault(each.date, []).append(each)
        for segments in by_day.values():
            group: list[Segment] = []
            size = 0
            ahead: list[Segment | None] = [*segments, None]
            for one in ahead:
                small = one is not None and one.bytes < settings.below_bytes
                full = one is not None and size + one.bytes > settings.to_bytes
                if (not small or full) and len(group) >= 2 and (len(group) >= count or size >= settings.below_bytes):
                    return group
                if one is None or not small or full:
                    group, size = [], 0
                if one is not None and small:
                    group.append(one)
                    size += one.bytes
                    if len(group) >= 2 and size >= settings.below_bytes:
                        return group
        return []
