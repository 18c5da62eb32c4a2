"""`series`: mean, maximum, 95th percentile and coverage per station and quantity, hour by hour and day by day.

Windows are over the readings' own time. Hours are those of UTC, days those of the time zone. The 95th percentile is
exact, by linear interpolation between the two nearest ranks. Coverage is the share of the expected readings that are
there, at most 1.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.readings import COLUMNS as COLUMNS
from cluster.spark.jobs.readings import readings
from cluster.spark.jobs.tables import Result, Stream, Table

HOUR_S, DAY_S = 3_600, 86_400
HOURS = Table("series_hours", ("station", "quantity", "start"), month_of="start")
DAYS = Table("series_days", ("station", "quantity", "day"), month_of="day")


def hourly(found: DataFrame, interval_s: float) -> DataFrame:
    """Return station, quantity, start (UTC), mean, max, p95, readings, coverage of each hour with a reading."""
    hours = found.groupBy("station", "quantity", F.window("moment", "1 hour").alias("hour")).agg(*_figures())
    return hours.select(
        "station", "quantity", F.col("hour.start").alias("start"), *_measures(), _coverage(HOUR_S, interval_s)
    )


def daily(found: DataFrame, interval_s: float) -> DataFrame:
    """Return station, quantity, day (local), mean, max, p95, readings, coverage of each day with a reading."""
    days = found.groupBy("station", "quantity", F.window("local", "1 day").alias("span")).agg(*_figures())
    day = F.to_date(F.col("span.start")).alias("day")
    return days.select("station", "quantity", day, *_measures(), _coverage(DAY_S, interval_s))


def batch(log: DataFrame, options: JobOptions) -> list[Result]:
    """Return both tables."""
    found = readings(log, options.columns).select("station", "quantity", "value", "moment", "local").cache()
    return [
        Result(HOURS, hourly(found, options.interval_s)),
        Result(DAYS, daily(found, options.interval_s)),
    ]


def follow(log: DataFrame, options: JobOptions) -> list[Stream]:
    """Return streams that keep both tables up to date; readings later than the watermark are dropped and counted."""
    found = readings(log, options.columns)
    late = f"{options.watermark_s} seconds"
    return [
        Stream(HOURS, hourly(found.withWatermark("moment", late), options.interval_s)),
        Stream(DAYS, daily(found.withWatermark("local", late), options.interval_s)),
    ]


def _figures() -> list[Column]:
    return [
        F.avg("value").alias("mean"),
        F.max("value").alias("max"),
        F.percentile("value", 0.95).alias("p95"),
        F.count("value").alias("readings"),
    ]


def _measures() -> list[Column]:
    return [F.col(name) for name in ("mean", "max", "p95", "readings")]


def _coverage(width_s: float, interval_s: float) -> Column:
    return F.least(F.lit(1.0), F.col("readings") * F.lit(interval_s / width_s)).alias("coverage")
