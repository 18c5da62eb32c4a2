"""What the jobs can be asked, checked before Spark starts."""

from __future__ import annotations

import zoneinfo
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.errors import ConfigError
from cluster.spark.jobs.limits import Limits
from cluster.spark.jobs.readings import ReadingColumns

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of all jobs; each job uses a few.

    columns:       which attributes hold what, and the time zone of days.
    interval_s:    how far apart a station's readings of one quantity are when none is missing; for coverage.
    watermark_s:   streaming: how late a reading may be, by the latest reading's time, to count in a window.
    limits:        for exceedances.
    k, window_s, slide_s: for topk; the window is a whole number of slides.
    pairs_of:      interest: overlap is counted among so many subscriptions, those with the most matches.
    open_subscriptions: how many were open; the log cannot tell of those that never matched. None: not known.
    publications:  how many were published, where the log holds matched ones alone. None: as many as it has.
    margin_s:      delay: how long before and after a transition is compared with it.
    operations:    delay: what `kittiwake transitions --json` told of: a name, and the epochs that it led to. None: only
                   what the log shows.
    delta:         store: into Delta Lake.
    """

    columns: ReadingColumns = ReadingColumns()
    interval_s: Positive = 3_600.0
    watermark_s: Count = 7_200
    limits: Limits = Limits()
    k: Count = 10
    window_s: Count = 86_400
    slide_s: Count = 3_600
    pairs_of: Count = 200
    open_subscriptions: int | None = None
    publications: int | None = None
    margin_s: Positive = 10.0
    operations: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    delta: bool = False

    def check(self) -> JobOptions:
        """Return the options. Raises ConfigError for what no single option shows."""
        if self.columns.timezone not in zoneinfo.available_timezones():
            raise ConfigError(f"timezone: {self.columns.timezone!r} is not in the time zone database")
        if self.window_s % self.slide_s:
            raise ConfigError(f"window: {self.window_s} s is no whole number of slides of {self.slide_s} s")
        if self.watermark_s < 3_600 and self.columns.timezone != "UTC":
            # Where clocks go back by an hour, a local day sees an hour twice: less would drop the second one.
            raise ConfigError(f"watermark: {self.watermark_s} s, with a time zone the least is 3600 s")
        return self


def folder_of(to: str | Path) -> Path:
    """Return the folder for results, made if need be. Raises ConfigError."""
    path = Path(to)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    return path
