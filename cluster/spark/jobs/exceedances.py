"""`exceedances`: readings against limit values: which limit, at which station, when, for how long, how often a year.

    exceedances   a row for each mean above a limit
    episodes      those that follow on each other without a break, as one: first to last, how long, how high
    compliance    a row for each limit, station and year: exceedances, how many are allowed, whether it is kept

A mean of too few hours (limits.Coverage) is left out. For a year's there is a row of compliance all the same, marked
as not complete, with what the mean is so far as its peak; it is no exceedance.
For a limit that asks for several hours in a row, an exceedance is an episode of at least so many, and the hours of
shorter ones do not count.

A stream keeps the exceedances of hourly limits up to date; episodes, days and years want a finished log.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from cluster.errors import ConfigError
from cluster.spark.jobs.averages import hour_periods, hourly_means, periods
from cluster.spark.jobs.limits import Averaging, Limits
from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.readings import COLUMNS as COLUMNS
from cluster.spark.jobs.readings import readings
from cluster.spark.jobs.tables import Result, Stream, Table, upsert

EXCEEDANCES = Table("exceedances", ("limit", "station", "start"), month_of="start")
EPISODES = Table("exceedance_episodes", ("limit", "station", "start"))
COMPLIANCE = Table("exceedance_compliance", ("limit", "station", "year"))

LIMIT_COLUMNS = (
    "limit string, set string, quantity string, averaging string, value double, unit string, "
    "allowed int, consecutive int"
)


def limits_frame(spark: SparkSession, limits: Limits) -> DataFrame:
    """Return the limits as rows: limit (the name), set, quantity, averaging, value, unit, allowed, consecutive."""
    rows = [
        (
            each.name,
            each.set,
            each.quantity,
            each.averaging,
            float(each.value),
            each.unit,
            each.allowed,
            each.consecutive,
        )
        for each in limits.limits
    ]
    return spark.createDataFrame(rows, LIMIT_COLUMNS)


def judged(found: DataFrame, limits: Limits, timezone: str) -> DataFrame:
    """Return every period that a limit speaks of, next to that limit: `above` it or not."""
    wanted: set[Averaging] = {limit.averaging for limit in limits.limits}
    spoken_of = sorted({limit.quantity for limit in limits.limits})
    hours = hourly_means(found.where(F.col("quantity").isin(spoken_of))).cache()
    whole = periods(hours, wanted, timezone, limits.coverage).where(F.col("complete") | (F.col("averaging") == "year"))
    beside = F.broadcast(limits_frame(found.sparkSession, limits))
    return whole.join(beside, ["quantity", "averaging"]).withColumns(
        {"above": F.col("complete") & (F.col("mean") > F.col("value"))}
    )


def episodes(periods_judged: DataFrame) -> DataFrame:
    """Return the runs of periods above a limit without a break between them, long enough for that limit.

    Columns: limit, set, quantity, averaging, station, year, start, last (start of the last period), periods, hours
    (from start to end; for eight_hours those of the days), peak, mean, value, unit.
    """
    above = periods_judged.where("above")
    order = Window.partitionBy("limit", "station").orderBy("ordinal")
    islands = above.withColumn("island", F.col("ordinal") - F.row_number().over(order))
    runs = islands.groupBy("limit", "station", "island").agg(
        *(F.first(name).alias(name) for name in ("set", "quantity", "averaging", "value", "unit", "consecutive")),
        F.min_by("year", "ordinal").alias("year"),
        F.min("start").alias("start"),
        F.max("start").alias("last"),
        F.count("mean").alias("periods"),
        F.sum(F.when(F.col("averaging") == "eight_hours", 24).otherwise(F.col("hours"))).alias("hours"),
        F.max("mean").alias("peak"),
        F.avg("mean").alias("mean"),
    )
    return runs.where(F.col("periods") >= F.col("consecutive")).select(
        *("limit", "set", "quantity", "averaging", "station", "year", "start", "last"),
        *("periods", "hours", "peak", "mean", "value", "unit"),
    )


def exceedances(periods_judged: DataFrame) -> DataFrame:
    """Return the periods above a limit, as the module says of limits that ask for several in a row."""
    order = Window.partitionBy("limit", "station").orderBy("ordinal")
    island = Window.partitionBy("limit", "station", "island")
    above = periods_judged.where("above").withColumn("island", F.col("ordinal") - F.row_number().over(order))
    long_enough = above.withColumn("run", F.count("mean").over(island)).where(F.col("run") >= F.col("consecutive"))
    return long_enough.select(*_columns())


def compliance(periods_judged: DataFrame, runs: DataFrame) -> DataFrame:
    """Return for each limit, station and year with a period: how often and how long above, and whether that is kept.

    Columns: limit, set, quantity, averaging, station, year, periods, coverage (of the year by periods; for a year's
    mean by hours), exceedances, allowed, hours_above, peak, value, unit, kept, complete.
    """
    counted = periods_judged.groupBy("limit", "station", "year").agg(
        *(F.first(name).alias(name) for name in ("set", "quantity", "averaging", "value", "unit")),
        F.first("allowed").alias("allowed"),
        F.first("consecutive").alias("consecutive"),
        F.count("mean").alias("periods"),
        F.count_if(F.col("above")).alias("above"),
        F.max("mean").alias("peak"),
        F.first("coverage").alias("share"),
        F.first("complete").alias("whole"),
    )
    per_year = runs.groupBy("limit", "station", "year").agg(
        F.count("peak").alias("runs"), F.sum("hours").alias("hours_above")
    )
    days = F.date_diff(
        F.make_date(F.col("year") + 1, F.lit(1), F.lit(1)), F.make_date(F.col("year"), F.lit(1), F.lit(1))
    )
    expected = F.when(F.col("averaging") == "hour", days * 24).otherwise(days)
    times = F.when(F.col("consecutive") > 1, F.coalesce("runs", F.lit(0))).otherwise(F.col("above"))
    yearly = F.col("averaging") == "year"
    coverage = F.when(yearly, F.col("share")).otherwise(F.least(F.lit(1.0), F.col("periods") / expected))
    frame = (
        counted.join(per_year, ["limit", "station", "year"], "left")
        .withColumn("exceedances", times.cast("long"))
        .withColumn("coverage", coverage)
    )
    return frame.select(
        *("limit", "set", "quantity", "averaging", "station", "year", "periods", "coverage", "exceedances", "allowed"),
        F.coalesce("hours_above", F.lit(0)).cast("long").alias("hours_above"),
        *("peak", "value", "unit"),
        (F.col("exceedances") <= F.col("allowed")).alias("kept"),
        F.when(yearly, F.col("whole")).otherwise(F.col("coverage") >= 0.9).alias("complete"),
    )


def batch(log: DataFrame, options: JobOptions) -> list[Result]:
    """Return the three tables."""
    limits = _given(options)
    judged_periods = judged(readings(log, options.columns), limits, options.columns.timezone).cache()
    runs = episodes(judged_periods)
    return [
        Result(EXCEEDANCES, exceedances(judged_periods)),
        Result(EPISODES, runs),
        Result(COMPLIANCE, compliance(judged_periods, runs)),
    ]


def follow(log: DataFrame, options: JobOptions) -> list[Stream]:
    """Return a stream that keeps the exceedances of hourly limits that ask for one hour at a time.

    An hour whose mean falls to the limit or below it, as a late reading comes, is taken out again.
    """
    limits = _given(options)
    hourly = Limits(limits=tuple(each for each in limits.limits if each.averaging == "hour" and each.consecutive == 1))
    if not hourly.limits:
        raise ConfigError("limits: none is hourly, and a stream keeps those alone")
    wanted = sorted({limit.quantity for limit in hourly.limits})
    found = readings(log, options.columns).where(F.col("quantity").isin(wanted))
    late = found.withWatermark("moment", f"{options.watermark_s} seconds")
    beside = F.broadcast(limits_frame(log.sparkSession, hourly))
    joined = hour_periods(hourly_means(late), options.columns.timezone).join(beside, ["quantity", "averaging"])
    marked = joined.withColumn("above", F.col("mean") > F.col("value"))
    return [Stream(EXCEEDANCES, marked.select(*_columns(), "above"), apply=_apply)]


def _columns() -> tuple[str, ...]:
    return (
        *("limit", "set", "quantity", "averaging", "station", "start", "hours", "day"),
        *("year", "mean", "value", "unit", "coverage"),
    )


def _apply(rows: pa.Table, number: int, folder: Path) -> None:
    bare = rows.drop_columns("above")
    upsert(folder, EXCEEDANCES, bare.filter(rows["above"]), bare.filter(pc.invert(rows["above"])))


def _given(options: JobOptions) -> Limits:
    if not options.limits.limits:
        raise ConfigError("limits: none")
    return options.limits
