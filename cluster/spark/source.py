"""The data source `kittiwake`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class MatchedOutput(DataSource):
    """The matched output of a cluster, for Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the word for `format`."""
        return "kittiwake"
