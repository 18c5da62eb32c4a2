"""A Spark in this process, set up for the matched output: one call on a fresh machine, nothing listening beyond it.

What differs from Spark's own defaults, and why: no web page (it would listen); driver, block manager and Python workers
on loopback; 1 GiB of memory; the session's clock is UTC, as the matched output's is; twice as many shuffle partitions
as cores (200 tasks for a few thousand rows are all overhead); errors alone are logged; Python workers are this very
interpreter and find `cluster` where this process has found it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import cluster
from cluster.spark.java import Java, find_java, java_home
from cluster.spark.source import MatchedOutput

LOOPBACK = "127.0.0.1"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def session(app: str, *, java: str | None = None, **conf: object) -> SparkSession:
    """Return a local Spark session in which `spark.read.format("kittiwake")` is known.

    java: which Java, see `find_java`; without effect if a session runs already in this process.
    conf: Spark settings that go before the ones here, by full name: session("x", **{"spark.driver.memory": "4g"}).
    A process has one session: where one runs, it is returned with the settings of `conf` that can still change.
    The caller stops it.
    Raises: SparkError if there is no Java; pyspark's errors for settings that it refuses.
    """
    given = {name: _text(value) for name, value in conf.items()}
    active = SparkSession.getActiveSession()
    if active is not None:
        for name, value in given.items():
            if active.conf.isModifiable(name):
                active.conf.set(name, value)
        return register(active)
    found = find_java(java)
    settings = {**_defaults(), **given}
    settings[JAVA_OPTIONS] = " ".join([*_java_options(found), given.get(JAVA_OPTIONS, "")]).strip()
    builder = SparkSession.builder.appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with java_home(found) as home, _variables(_launch_environment(home)), _unwarned():
        started = builder.getOrCreate()
    return register(started)


def register(spark: SparkSession) -> SparkSession:
    """Make `format("kittiwake")` known to a session that was made elsewhere, and return it.

    Its Python workers must be able to import `cluster`. Also lets Spark hand filters to sources in Python.
    """
    with _unwarned():
        spark.dataSource.register(MatchedOutput)
    spark.conf.set(PUSHDOWN, "true")
    return spark


def _defaults() -> dict[str, str]:
    cores = os.cpu_count() or 1
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.executorEnv.PYTHONPATH": _python_path(),
        PUSHDOWN: "true",
    }


def _java_options(java: Java) -> list[str]:
    options = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"]
    if java.major >= 24:
        # Netty and Arrow reach for memory in ways of which newer Javas warn on stderr.
        options += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    return options


def _launch_environment(home: Path) -> dict[str, str]:
    return {
        "JAVA_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(),
    }


def _python_path() -> str:
    here = str(Path(cluster.__file__).resolve().parents[1])
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != here]
    return os.pathsep.join([here, *others])


@contextmanager
def _unwarned() -> Iterator[None]:
    """Silence what pyspark says of a pandas newer than it was tested with: nothing here goes through pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        yield


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
