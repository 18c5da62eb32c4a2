"""One Spark for all tests of this folder, and the mark of those who use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cluster.spark import session
from tests.spark.query import QUICK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    found = session("tests", **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2, **QUICK})
    yield found
    found.stop()
