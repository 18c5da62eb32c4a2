"""`delay`: from accepted to released, per minute, slot and epoch, and before, during and after each transition.

Both times are the cluster's own, of a connection point and of an exit point: on one machine of one clock; over several
machines a delay contains the difference of theirs.

A transition is a run of view changes close upon each other. It is seen in the log as epochs that follow on each other:
from the first release in a new epoch to the last release in an older one, of whichever slot; `during` is that span and
AROUND_S on both sides, `before` and `after` the margin next to it. Told of the cluster's operations (`kittiwake
transitions --json`), the epochs of one operation are one transition and bear its name; else view changes with less
than the margin between them are one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.tables import Result, Stream, Table

COLUMNS = ("slot", "epoch", "time_accepted", "time_released")
AROUND_S = 1.0
MINUTES = Table("delay_minutes", ("minute", "slot", "epoch"), month_of="minute")
SLOTS = Table("delay_slots", ("slot",))
EPOCHS = Table("delay_epochs", ("epoch",))
TRANSITIONS = Table("delay_transitions", ("number", "phase"))
PHASES = ("before", "during", "after")

SPAN_COLUMNS = (
    "number int, label string, first_epoch bigint, last_epoch bigint, phase string, start timestamp, end timestamp"
)


class EpochSeen(msgspec.Struct, frozen=True):
    """An epoch in the log: when its first and its last publication were released."""

    epoch: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class Transition:
    """A run of view changes; start and end are those of the log, without what is around."""

    number: int
    label: str
    first_epoch: int
    last_epoch: int
    start: datetime
    end: datetime


def delay_ms() -> Column:
    """Return a row's delay in milliseconds, of microseconds."""
    return (F.unix_micros("time_released") - F.unix_micros("time_accepted")) / 1000


def by(log: DataFrame, *keys: Column | str) -> DataFrame:
    """Return publications, p50_ms, p95_ms, p99_ms, max_ms of the delay for each value of the keys."""
    shares = F.percentile("delay_ms", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99)))
    grouped = log.withColumn("delay_ms", delay_ms()).groupBy(*keys)
    frame = grouped.agg(
        F.count("delay_ms").alias("publications"), shares.alias("shares"), F.max("delay_ms").alias("max_ms")
    )
    figures = [F.col("shares")[place].alias(f"p{share}_ms") for place, share in enumerate((50, 95, 99))]
    kept = [name for name in frame.columns if name not in ("publications", "shares", "max_ms")]
    return frame.select(*kept, "publications", *figures, "max_ms")


def minutes(log: DataFrame) -> DataFrame:
    """Return the delay by minute of release, slot and epoch; streaming or not."""
    frame = by(log, F.window("time_released", "1 minute").alias("span"), "slot", "epoch")
    return frame.select(F.col("span.start").alias("minute"), *(name for name in frame.columns if name != "span"))


def epochs_seen(log: DataFrame) -> list[EpochSeen]:
    """Return the epochs in the log, ascending."""
    rows = (
        log.groupBy("epoch").agg(F.unix_micros(F.min("time_released")), F.unix_micros(F.max("time_released"))).collect()
    )
    return [EpochSeen(epoch, from_us(first), from_us(last)) for epoch, first, last in sorted(map(tuple, rows))]


def from_us(micros: int) -> datetime:
    """Return a time in microseconds since 1970 as UTC's, without a zone, as Spark in UTC takes and gives it."""
    return datetime(1970, 1, 1) + timedelta(microseconds=micros)


def transitions(
    seen: Sequence[EpochSeen], margin_s: float, operations: Sequence[tuple[str, Sequence[int]]] | None = None
) -> list[Transition]:
    """Return the transitions that the epochs in a log show, in order.

    operations: what the cluster told: a name, and the epochs that it led to; epochs without one are grouped by time.
    """
    names = {epoch: place for place, (_, epochs) in enumerate(operations or ()) for epoch in epochs}
    found: list[Transition] = []
    group: int | None = None
    last_release = seen[0].last if seen else None
    for before, now in itertools.pairwise(seen):
        assert last_release is not None
        end = max(now.first, last_release)
        own = names.get(now.epoch)
        close = bool(found) and (now.first - found[-1].end).total_seconds() < margin_s
        if found and own == group and (own is not None or close):
            past = found.pop()
            step = Transition(past.number, past.label, past.first_epoch, now.epoch, past.start, max(past.end, end))
        else:
            label = f"view {before.epoch} to {now.epoch}" if own is None else (operations or ())[own][0]
            step = Transition(len(found) + 1, label, before.epoch, now.epoch, now.first, end)
        if own is None:
            step = Transition(
                step.number,
                f"view {step.first_epoch} to {now.epoch}",
                step.first_epoch,
                now.epoch,
                step.start,
                step.end,
            )
        found.append(step)
        group = own
        last_release = max(last_release, now.last)
    return found


def phases(changes: Sequence[Transition], margin_s: float) -> list[tuple[int, str, int, int, str, datetime, datetime]]:
    """Return the three spans of each transition, as rows of SPAN_COLUMNS; each ends before its end."""
    margin, around = timedelta(seconds=margin_s), timedelta(seconds=AROUND_S)
    rows = []
    for one in changes:
        start, end = one.start - around, one.end + around
        for phase, span in zip(PHASES, ((start - margin, start), (start, end), (end, end + margin)), strict=True):
            rows.append((one.number, one.label, one.first_epoch, one.last_epoch, phase, *span))
    return rows


def around_transitions(log: DataFrame, options: JobOptions) -> DataFrame:
    """Return the delay in each phase of each transition: SPAN_COLUMNS, publications, p50_ms to max_ms.

    A phase in which nothing was released has 0 publications and no figures.
    """
    spans = phases(transitions(epochs_seen(log), options.margin_s, options.operations), options.margin_s)
    frame = log.sparkSession.createDataFrame(spans, SPAN_COLUMNS)
    keys = ["number", "phase"]
    released = log.select("time_accepted", "time_released")
    within = (F.col("time_released") >= F.col("start")) & (F.col("time_released") < F.col("end"))
    figures = by(released.join(F.broadcast(frame.select(*keys, "start", "end")), within), *keys)
    joined = frame.join(figures, keys, "left").fillna(0, ["publications"])
    columns = [part.split()[0] for part in SPAN_COLUMNS.split(", ")]
    return joined.select(*columns, "publications", "p50_ms", "p95_ms", "p99_ms", "max_ms")


def batch(log: DataFrame, options: JobOptions) -> list[Result]:
    """Return the four tables."""
    log = log.select(*COLUMNS).cache()
    return [
        Result(MINUTES, minutes(log)),
        Result(SLOTS, by(log, "slot")),
        Result(EPOCHS, by(log, "epoch")),
        Result(TRANSITIONS, around_transitions(log, options)),
    ]


def follow(log: DataFrame, options: JobOptions) -> list[Stream]:
    """Return a stream that keeps the minutes; epochs and transitions want a finished log."""
    return [Stream(MINUTES, minutes(log.withWatermark("time_released", f"{options.watermark_s} seconds")))]
