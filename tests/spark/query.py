"""A streaming query as a process of its own, to be killed: python -m tests.spark.query LOG CHECKPOINT SINK"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from cluster.spark import session

ROWS_MAX = 150
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Short queries over few rows: to compile, by Spark or by the JVM's second compiler, takes longer than they do, and a
garbage collector with threads of its own only gets in the way. That Spark's expressions come to the same interpreted is
for Spark's own tests.
"""


def start(
    spark: SparkSession, log: Path, checkpoint: Path, sink: Path, rows_max: int = ROWS_MAX, **trigger: object
) -> StreamingQuery:
    """Start the query: micro-batches of so many rows at most into Parquet files."""
    frame = spark.readStream.format("kittiwake").option("maxOffsetsPerTrigger", rows_max).load(str(log))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start(str(sink))  # type: ignore[arg-type]


CAME_TOO_LATE = "failed to connect back"
"""What Spark says if a query's Python process was not there in the 10 s that it gives it."""


def finish(begin: Callable[[], StreamingQuery]) -> None:
    """Start a query and wait for its end; again if its Python process came too late, as on a machine under load.

    Nothing has been read then.
    """
    while True:
        try:
            begin().awaitTermination()
            return
        except PySparkException as error:
            if CAME_TOO_LATE not in str(error):
                raise


if __name__ == "__main__":
    spark = session("to be killed", **{"spark.master": "local[2]", "spark.driver.memory": "512m", **QUICK})
    log, checkpoint, sink = map(Path, sys.argv[1:4])
    finish(lambda: start(spark, log, checkpoint, sink, processingTime="0 seconds"))
