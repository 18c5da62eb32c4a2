"""From rows of the matched output to readings: what, where, when, how much.

A publication whose attribute `quantity` names another attribute, as those of Madrid's files do, is one reading; one
without is a reading for each of its numbers, those in ReadingColumns aside. Integers count as numbers. An attribute
that is no number, absent or null gives no reading.

Time. A reading's own time is its attribute `time`, in seconds since 1970; without one (or with one outside the years
1 to 9999) the publisher's, else when it was accepted. Where the time stamps the end of what was measured, as with
Madrid's hours, midnight still belongs to the day before: so `moment`, by which readings are put into hours and days,
lies a microsecond before it. `local` is that moment on the clock of the time zone, for days and hours of the day.
"""

from __future__ import annotations

from functools import reduce
from typing import Literal

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

COLUMNS = ("slot", "offset", "time_published", "time_accepted", "numbers", "integers", "strings")
"""Of the log, those that readings are made of."""

YEAR_1_S, YEAR_9999_S = -62_135_596_800, 253_402_300_799


class ReadingColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Which attributes hold what.

    others:   numbers that are no measurement, passed over where `quantity` does not say which attribute is.
    timezone: in which days and hours of the day are meant; a name of the IANA database.
    stamps:   whether a reading's time is the end or the beginning of what was measured.
    """

    station: str = "station"
    quantity: str = "quantity"
    time: str = "time"
    latitude: str = "lat"
    longitude: str = "lon"
    others: tuple[str, ...] = ("altitude", "station_id")
    timezone: str = "UTC"
    stamps: Literal["end", "start"] = "end"


MADRID_COLUMNS = ReadingColumns(timezone="Europe/Madrid")


def number(name: str | Column) -> Column:
    """Return a numeric attribute as a double, null if the publication has none of that name."""
    return F.coalesce(F.col("numbers")[name], F.col("integers")[name].cast("double"))


def event_time(columns: ReadingColumns) -> Column:
    """Return a publication's own time, as the module says."""
    exact = F.coalesce(F.col("integers")[columns.time], F.col("numbers")[columns.time].cast("decimal(20,6)"))
    own = F.when(exact.between(YEAR_1_S, YEAR_9999_S), exact)
    return F.coalesce(F.timestamp_seconds(own), F.col("time_published"), F.col("time_accepted"))


def moment(time: Column, columns: ReadingColumns) -> Column:
    """Return an instant within what a reading of this time measured."""
    return time - F.expr("INTERVAL 1 MICROSECOND") if columns.stamps == "end" else time


def readings(log: DataFrame, columns: ReadingColumns) -> DataFrame:
    """Return the readings of a log, streaming or not.

    Columns: slot, offset, station, quantity, value, lat, lon, time, moment, local. station, lat and lon may be null.
    """
    named = F.col("strings")[columns.quantity]
    passed_over = (columns.time, columns.latitude, columns.longitude, *columns.others)
    numeric = F.array_union(F.map_keys("numbers"), F.map_keys("integers"))
    names = F.when(named.isNotNull(), F.array(named)).otherwise(
        F.array_except(numeric, F.array(*map(F.lit, passed_over)))
    )
    time = event_time(columns)
    within = moment(time, columns)
    flat = log.select(
        "slot",
        "offset",
        F.col("strings")[columns.station].alias("station"),
        number(columns.latitude).alias("lat"),
        number(columns.longitude).alias("lon"),
        time.alias("time"),
        within.alias("moment"),
        F.from_utc_timestamp(within, columns.timezone).alias("local"),
        "numbers",
        "integers",
        F.explode(names).alias("quantity"),
    )
    measured = flat.withColumn("value", number(F.col("quantity"))).where(F.col("value").isNotNull())
    return measured.select("slot", "offset", "station", "quantity", "value", "lat", "lon", "time", "moment", "local")


def any_of(conditions: list[Column]) -> Column:
    """Return whether one of the conditions holds; false without any."""
    return reduce(lambda left, right: left | right, conditions, F.lit(False))
