"""Frames over the matched output, with what is to be read named in Python.

    read(spark, "out/", columns=["slot", "numbers"], filter="no2 > 40").groupBy("slot").count()

The same as `spark.read.format("kittiwake")` with its options. Naming columns is worth it: Spark tells a source in
Python which filters a query has, and not which columns it uses, so that where none are named a query over one column
has all of them read, sent to the JVM and thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession


def options(columns: Sequence[str] | None, filter: str | None) -> dict[str, str]:
    """Return the data source's options for these columns (None: all) and rows (None: all)."""
    chosen = {} if columns is None else {"columns": ",".join(columns)}
    return chosen if filter is None else {**chosen, "filter": filter}


def read(
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    more: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return what is committed. more: further options of the source."""
    return spark.read.format("kittiwake").options(**(more or {}), **options(columns, filter)).load(path)


def follow(
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    more: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return what is committed and what will be, for a streaming query. more: further options of the source."""
    return spark.readStream.format("kittiwake").options(**(more or {}), **options(columns, filter)).load(path)
