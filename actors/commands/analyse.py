"""`kittiwake analyse`: what is in the matched output. Needs the extra `analytics`, no Ray and no cluster."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import click

from actors.commands.analyse_options import (
    Duration,
    columns_of,
    follow_options,
    input_of,
    input_options,
    operations_in,
    reading_options,
    subscriptions_in,
)
from actors.commands.failures import Failure, Interrupted
from actors.commands.options import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cluster.spark.jobs.options import JobOptions
    from cluster.spark.jobs.running import Input, Progress

TERMINAL_S, LOG_S = 0.5, 10.0
"""Between two lines of progress."""

limits_option = click.option(
    "--limits",
    "limits_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The limit values; without it those of configs/limits.yaml.",
)
transitions_option = click.option(
    "--transitions",
    type=click.File("rb"),
    metavar="FILE",
    help="What `kittiwake transitions --json` printed: which view changes belong together, and their name.",
)
margin_option = click.option(
    "--margin", type=Duration(), default="10s", show_default=True, help="How long before and after a transition."
)


@click.group(short_help="Tables and a report from the matched output.")
def analyse() -> None:
    """Analyse the matched output of a cluster, by a Spark in this process; nothing else is needed, Java included.

    A job reads the folder that --input names and writes Parquet tables into the one that --to names. With --follow it
    keeps them up to date while the output grows, until Ctrl-C, and takes up there the next time.

    \b
    kittiwake analyse series --input OUT --to results
    kittiwake analyse exceedances --input OUT --to results --timezone Europe/Madrid
    kittiwake analyse store --input OUT --to lake --follow
    kittiwake analyse report --input OUT --to results
    """


@analyse.command(short_help="Load everything into a table by day and station.")
@input_options
@follow_options
@reading_options
@click.option("--delta", is_flag=True, help="Into a Delta Lake table, store_delta, instead.")
def store(delta: bool, **given: Any) -> None:
    """Load the output into a table by day and station, each row exactly once; what comes late lies with its own day.
    Another run takes up where the last one ended.
    """
    given["until_caught_up"] = not given["follow"]
    _run("store", given, delta=delta)


@analyse.command(short_help="Mean, maximum, 95th percentile and coverage.")
@input_options
@follow_options
@reading_options
@click.option(
    "--interval", type=Duration(), default="1h", show_default=True, help="Between two readings, for the coverage."
)
def series(interval: int, **given: Any) -> None:
    """Sum up the readings of each station and quantity by hour (series_hours) and by day (series_days)."""
    _run("series", given, interval_s=float(interval))


@analyse.command(short_help="Which limit values were exceeded, where, for how long.")
@input_options
@follow_options
@reading_options
@limits_option
def exceedances(limits_path: str | None, **given: Any) -> None:
    """Hold the readings against limit values: exceedances, exceedance_episodes (those without a break as one), and
    exceedance_compliance (times and hours a year). With --follow the exceedances of hourly limits alone.
    """
    with _analytics():
        from cluster.spark.jobs.limits import load_limits

        limits = load_limits(limits_path)
    _run("exceedances", given, limits=limits)


@analyse.command(short_help="The k highest readings of each window.")
@input_options
@follow_options
@reading_options
@click.option("--k", type=click.IntRange(min=1), default=10, show_default=True, help="How many of each window.")
@click.option("--window", type=Duration(), default="1d", show_default=True, help="How long a window is.")
@click.option("--slide", type=Duration(), default="1h", show_default=True, help="From one window to the next.")
def topk(k: int, window: int, slide: int, **given: Any) -> None:
    """Find the k highest readings of each quantity in each sliding window."""
    _run("topk", given, k=k, window_s=window, slide_s=slide)


@analyse.command(short_help="Who wants what: selectivity, overlap, hot attributes.")
@input_options
@follow_options
@click.option(
    "--open-subscriptions",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many are open; of those that never matched the output knows nothing.",
)
@click.option(
    "--status", type=click.File("rb"), metavar="FILE", help="Take that from what `kittiwake status --json` printed."
)
@click.option(
    "--publications",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many were published, where the output holds matched ones alone.",
)
@click.option(
    "--pairs-of",
    type=click.IntRange(min=2, max=10_000),
    default=200,
    show_default=True,
    metavar="N",
    help="Overlap is counted among the N subscriptions with the most matches.",
)
def interest(
    open_subscriptions: int | None, status: IO[bytes] | None, publications: int | None, pairs_of: int, **given: Any
) -> None:
    """Count matches by subscription, client, attribute and range of values, and the overlap of subscriptions. The
    summary, interest.json, can be given to the autoscaler's capacity model as a prior.
    """
    if status is not None and open_subscriptions is None:
        open_subscriptions = subscriptions_in(status)
    _run("interest", given, open_subscriptions=open_subscriptions, publications=publications, pairs_of=pairs_of)


@analyse.command(short_help="How long from accepted to released.")
@input_options
@follow_options
@transitions_option
@margin_option
def delay(transitions: IO[bytes] | None, margin: int, **given: Any) -> None:
    """Take percentiles of the delay by minute, slot and epoch, and before, during and after each transition. With
    --follow by minute alone.
    """
    operations = None if transitions is None else operations_in(transitions)
    _run("delay", given, margin_s=float(margin), operations=operations)


@analyse.command(short_help="One HTML page with maps, plots and tables.")
@input_options
@reading_options
@limits_option
@transitions_option
@margin_option
@click.option("--title", metavar="TEXT", help="What the page is called.")
@click.option("--k", type=click.IntRange(min=1, max=100), default=5, show_default=True, help="Highest readings shown.")
def report(
    limits_path: str | None,
    transitions: IO[bytes] | None,
    margin: int,
    title: str | None,
    k: int,
    **given: Any,
) -> None:
    """Write DIR/report.html, which opens without a server or a network: a map of the stations by exceedances, series
    over time, hour by weekday, the highest readings, and the delay around each transition.
    """
    operations = None if transitions is None else operations_in(transitions)
    with _analytics():
        from cluster.spark.jobs.limits import load_limits
        from cluster.spark.jobs.options import JobOptions, folder_of

        options = JobOptions(
            columns=columns_of(given),
            limits=load_limits(limits_path),
            k=k,
            margin_s=float(margin),
            operations=operations,
        ).check()
        folder, memory = folder_of(given.pop("folder")), given.pop("memory")
        page = make_report(input_of(given, None), folder, options, title, memory)
    click.echo(str(page))


def make_report(source: Input, folder: Path, options: JobOptions, title: str | None, memory: str) -> Path:
    """Write the page into a folder and return its path."""
    from cluster.spark.jobs import report as job
    from cluster.spark.jobs import running

    show = _Line("report")
    seal_input(source)
    with _analytics(), _signals() as stopped, spark_session("kittiwake analyse report", memory) as spark, show:
        stopped.cancels(spark)
        with running.watched(spark, show):
            return job.write_report(partial(source.read, spark), options, folder, title)


def _run(name: str, given: dict[str, Any], **chosen: Any) -> None:
    """Run a job as the command line asks."""
    with _analytics():
        from cluster.spark.jobs import running
        from cluster.spark.jobs.options import JobOptions, folder_of

        endless, once, trigger = (given.pop(key) for key in ("follow", "until_caught_up", "trigger"))
        if endless and once:
            raise click.UsageError("--follow and --until-caught-up exclude each other")
        streaming = endless or once
        rows, watermark = given.pop("batch_rows"), given.pop("watermark")
        options = JobOptions(columns=columns_of(given), watermark_s=watermark, **chosen).check()
        folder, memory = folder_of(given.pop("folder")), given.pop("memory")
        source = input_of(given, rows if streaming else None)
        seal_input(source)
        assert not given, f"options that nobody took: {sorted(given)}"
        show = _Line(name)
        with _signals() as stopped, spark_session(f"kittiwake analyse {name}", memory) as spark, show:
            if streaming:
                log = source.follow(spark, running.columns_of(name))
                queries = running.start(name, log, options, folder, trigger_s=float(trigger) if endless else None)
                running.follow(queries, lambda all_: show(_describe(source, all_)), stopped)
            else:
                stopped.cancels(spark)
                with running.watched(spark, show):
                    written = running.run_batch(name, source.read(spark, running.columns_of(name)), options, folder)
        if streaming:
            click.echo(f"{name}: {show.last}" if show.last else f"{name}: nothing new", err=True)
            if stopped() and not endless:
                raise Interrupted(stopped.number)
        else:
            for path in written:
                click.echo(str(path))


def seal_input(source: Input) -> None:
    """Have all rows in segments that a cluster has written which runs no more, and say so.

    Raises OutputError if there is no log, or it is damaged: Spark would say so only once it has started.
    """
    from actors.commands.output import tell_sealed
    from cluster.output.adopting import seal_ended_at
    from cluster.output.reader import open_log

    tell_sealed(seal_ended_at(source.path))
    if source.format == "kittiwake":
        open_log(source.path)


def _describe(source: Input, streams: dict[str, Progress]) -> str:
    """Return how far the streams of a job are, in a line; the one that is furthest behind speaks for all."""
    from cluster.spark.jobs.running import behind

    slowest = min(streams.values(), key=lambda one: one.rows)
    if slowest.batch < 0:
        return ""
    waiting = behind(source, slowest)
    parts = [plural(slowest.rows, "row"), f"{slowest.rows_per_second:,.0f} rows/s"]
    if waiting is not None:
        parts.append(f"behind by {plural(waiting, 'row')}")
    late = sum(one.late for one in streams.values())
    if late:
        parts.append(f"{plural(late, 'reading')} later than the watermark, left out")
    return ", ".join(parts)


class _Line:
    """Shows how far it is: on a terminal one line that changes, else a line now and then when there is something new.

    last: what was said last.
    """

    def __init__(self, name: str) -> None:
        self.last = ""
        self._name = name
        self._terminal = sys.stderr.isatty()
        self._stopped = threading.Event()
        self._shown = ""

    def __call__(self, text: str) -> None:
        self.last = text or self.last

    def __enter__(self) -> _Line:
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self._terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _show(self) -> None:
        while not self._stopped.wait(TERMINAL_S if self._terminal else LOG_S):
            if self.last == self._shown:
                continue
            self._shown = self.last
            start, end = ("\r\x1b[K", False) if self._terminal else ("", True)
            click.echo(f"{start}{self._name}: {self.last}", nl=end, err=True)


class _Stopped:
    """Whether a signal has come. number: which, once it has."""

    def __init__(self) -> None:
        self.number = 0
        self._spark: SparkSession | None = None

    def __call__(self) -> bool:
        return bool(self.number)

    def cancels(self, spark: SparkSession) -> None:
        """Have a signal end the work at once, from here on. One that has come already does."""
        self._spark = spark
        if self.number:
            raise Interrupted(self.number)

    def take(self, number: int, frame: object) -> None:
        """Take a signal: what runs in batches ends with the one underway, all else is cut short."""
        first, self.number = not self.number, number
        if self._spark is not None or not first:
            logging.disable(logging.CRITICAL)  # py4j logs a stack trace of what interrupts it
            raise Interrupted(number)


@contextmanager
def _signals() -> Iterator[_Stopped]:
    """Take signals meanwhile. Raises Interrupted for one that has cut the body short.

    py4j makes an error of its own of whatever is raised while it waits for the JVM, which is nearly always; and a
    signal to the whole process group ends the JVM as well.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    stopped = _Stopped()
    before = {number: signal.signal(number, stopped.take) for number in (signal.SIGINT, signal.SIGTERM)}
    logs = logging.root.manager.disable
    try:
        yield stopped
    except (Py4JError, PySparkException, OSError) as error:
        if not stopped():
            raise
        raise Interrupted(stopped.number) from error
    finally:
        logging.disable(logs)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep pyspark from taking SIGINT while it starts a context: its handler calls the JVM, whatever call is underway,
    and raises KeyboardInterrupt. There is no setting for that; to put ours back afterwards leaves the seconds between.
    """
    from pyspark.core import context

    module = vars(context)
    before = module["signal"]
    module["signal"] = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda number, handler: None)
    try:
        yield
    finally:
        module["signal"] = before


@contextmanager
def spark_session(app: str, memory: str) -> Iterator[SparkSession]:
    """Give a Spark session, and stop it. memory: of the driver, as `2g`."""
    from py4j.protocol import Py4JError

    from cluster.spark import session

    with _handlers_kept():
        spark = session(app, **{"spark.driver.memory": memory})
    try:
        yield spark
    finally:
        # A signal to the whole process group has ended the JVM already.
        with suppress(Py4JError, OSError):
            spark.stop()


def check_analytics() -> None:
    """Raise Failure or KittiwakeError where Spark or a Java for it is missing."""
    try:
        from cluster.spark import find_java
    except ModuleNotFoundError as error:
        raise Failure(
            f"this needs the analytics, and {error.name} is not installed: pip install 'kittiwake[analytics]'"
        ) from error
    find_java()


@contextmanager
def _analytics() -> Iterator[None]:
    """Say in a line what is missing, or what Spark found wrong."""
    check_analytics()
    import pyspark.errors

    try:
        yield
    except pyspark.errors.PySparkException as error:
        from cluster.spark.jobs.running import first_line

        raise Failure(first_line(error)) from error
