"""One Spark for all tests of this folder, and the mark of those who use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cluster.spark import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Short queries over few rows: what the JVM's second compiler gains comes after they are done.
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    found = session("tests", **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2, **quick})
    yield found
    found.stop()
