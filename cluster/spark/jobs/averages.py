"""The means that limit values speak of, from hourly means.

Hours are those of UTC that hold a reading. A running mean of eight hours is taken at each hour, also one without a
reading, and needs values for `coverage.eight_hours` of its eight. The day's highest belongs to the day on which its
eight hours end, and needs running means for `coverage.eight_hours` of the day's 24, as Directive 2008/50/EC, annex XI,
has it (75 % of each, 18 of 24). Days and years are those of the time zone.

Periods have the columns averaging, station, quantity, start (UTC), hours (how long it is), ordinal (counts the periods
of this kind, so that what follows on another has the next number), day, year (local), mean, coverage, complete.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cluster.spark.jobs.limits import Averaging, Coverage

HOURS_A_DAY = 24
HOUR_S = 3_600
PLACE = ("station", "quantity")


def hourly_means(found: DataFrame) -> DataFrame:
    """Return station, quantity, start, mean for each hour with a reading; streaming or not."""
    hours = found.groupBy(*PLACE, F.window("moment", "1 hour").alias("hour")).agg(F.avg("value").alias("mean"))
    return hours.select(*PLACE, F.col("hour.start").alias("start"), "mean")


def hour_periods(hours: DataFrame, timezone: str) -> DataFrame:
    """Return each hour as a period; streaming or not."""
    local = F.from_utc_timestamp("start", timezone)
    return hours.select(
        F.lit("hour").alias("averaging"),
        *PLACE,
        "start",
        F.lit(1).alias("hours"),
        (F.unix_seconds("start") / HOUR_S).cast("long").alias("ordinal"),
        F.to_date(local).alias("day"),
        F.year(local).alias("year"),
        "mean",
        F.lit(1.0).alias("coverage"),
        F.lit(True).alias("complete"),
    )


def eight_hour_periods(hours: DataFrame, timezone: str, coverage: Coverage) -> DataFrame:
    """Return for each day with enough of them its highest running mean of eight hours."""
    spans = hours.groupBy(*PLACE).agg(F.min("start").alias("first"), F.max("start").alias("last"))
    every = spans.select(*PLACE, F.explode(F.sequence("first", "last", F.expr("INTERVAL 1 HOUR"))).alias("start"))
    dense = every.join(hours, [*PLACE, "start"], "left")
    eight = Window.partitionBy(*PLACE).orderBy("start").rowsBetween(-7, 0)
    running = dense.select(
        *PLACE,
        "start",
        F.avg("mean").over(eight).alias("mean"),
        F.count("mean").over(eight).alias("values"),
        F.to_date(F.from_utc_timestamp("start", timezone)).alias("day"),
    ).where(F.col("values") >= 8 * coverage.eight_hours)
    days = running.groupBy(*PLACE, "day").agg(
        F.max("mean").alias("mean"), F.max_by("start", "mean").alias("last"), F.count("mean").alias("means")
    )
    share = F.least(F.lit(1.0), F.col("means") / HOURS_A_DAY)
    return _periods(
        days, "eight_hours", F.col("last") - F.expr("INTERVAL 7 HOURS"), F.lit(8), share, coverage.eight_hours
    )


def day_periods(hours: DataFrame, timezone: str, coverage: Coverage) -> DataFrame:
    """Return the mean of each day, of the hours that have one."""
    day = F.to_date(F.from_utc_timestamp("start", timezone)).alias("day")
    days = hours.groupBy(*PLACE, day).agg(F.avg("mean").alias("mean"), F.count("mean").alias("values"))
    start = F.to_utc_timestamp(F.col("day").cast("timestamp"), timezone)
    share = F.least(F.lit(1.0), F.col("values") / HOURS_A_DAY)
    return _periods(days, "day", start, F.lit(HOURS_A_DAY), share, coverage.day)


def year_periods(hours: DataFrame, timezone: str, coverage: Coverage) -> DataFrame:
    """Return the mean of each year, of the hours that have one; incomplete ones as well, and marked as such."""
    year = F.year(F.from_utc_timestamp("start", timezone)).alias("year")
    years = hours.groupBy(*PLACE, year).agg(F.avg("mean").alias("mean"), F.count("mean").alias("values"))
    day = F.make_date("year", F.lit(1), F.lit(1))
    days = F.date_diff(F.make_date(F.col("year") + 1, F.lit(1), F.lit(1)), day)
    share = F.least(F.lit(1.0), F.col("values") / (days * HOURS_A_DAY))
    frame = years.withColumn("day", day)
    start = F.to_utc_timestamp(F.col("day").cast("timestamp"), timezone)
    return _periods(frame, "year", start, days * HOURS_A_DAY, share, coverage.year, ordinal=F.col("year"))


def periods(hours: DataFrame, averagings: set[Averaging], timezone: str, coverage: Coverage) -> DataFrame:
    """Return the periods of these averagings; there is at least one."""
    frames = []
    if "hour" in averagings:
        frames.append(hour_periods(hours, timezone))
    if "eight_hours" in averagings:
        frames.append(eight_hour_periods(hours, timezone, coverage))
    if "day" in averagings:
        frames.append(day_periods(hours, timezone, coverage))
    if "year" in averagings:
        frames.append(year_periods(hours, timezone, coverage))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _periods(
    frame: DataFrame,
    averaging: Averaging,
    start: Column,
    hours: Column,
    share: Column,
    needed: float,
    ordinal: Column | None = None,
) -> DataFrame:
    number = F.unix_date("day") if ordinal is None else ordinal
    return frame.select(
        F.lit(averaging).alias("averaging"),
        *PLACE,
        start.alias("start"),
        hours.cast("int").alias("hours"),
        number.cast("long").alias("ordinal"),
        "day",
        F.year("day").alias("year"),
        "mean",
        share.alias("coverage"),
        (share >= needed).alias("complete"),
    )
