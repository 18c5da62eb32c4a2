"""What of the jobs needs no Spark: limits, transitions, sums of batches, tables on disk, options, parts of the page."""

from __future__ import annotations

import io
import json
import logging
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.core.context
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError

import cluster.spark
from actors.cli import main
from actors.commands import analyse
from actors.commands.analyse_options import Duration, operations_in, subscriptions_in
from actors.commands.failures import Failure, Interrupted
from cluster.errors import ConfigError, SparkError
from cluster.output.disk import LocalDisk
from cluster.output.slot_log import write_rows
from cluster.spark.jobs import exceedances, interest, running, svg, tables
from cluster.spark.jobs.delay import EpochSeen, Transition, phases, transitions
from cluster.spark.jobs.limits import Limits, load_limits
from cluster.spark.jobs.options import JobOptions, folder_of
from cluster.spark.jobs.readings import ReadingColumns
from tests.spark.rows import make_row

# -- limits


def test_the_list_that_comes_with_kittiwake() -> None:
    limits = {limit.name: limit for limit in load_limits().limits}
    for name, value, allowed in (
        ("EU 2008 NO2 hour", 200, 18),
        ("EU 2008 PM10 day", 50, 35),
        ("EU 2008 O3 8 hours", 120, 25),
        ("EU 2030 NO2 year", 20, 0),
        ("EU 2030 PM2.5 day", 25, 18),
        ("WHO 2021 PM2.5 year", 5, 0),
        ("WHO 2021 NO2 day", 25, 3),
    ):
        assert (limits[name].value, limits[name].allowed) == (value, allowed)
    assert {limit.unit for limit in limits.values() if limit.quantity == "co"} == {"mg/m³"}
    assert {limit.unit for limit in limits.values() if limit.quantity != "co"} == {"µg/m³"}


ONE = "name: x, set: y, quantity: no2, averaging: hour, value: 1, unit: µg/m³"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits: []", r"limits.yaml: limits: none"),
        ("limit: []", r"limits.yaml: .*unknown field `limit`"),
        ("limits: [{" + ONE + ", averging: hour}]", r"limits.yaml: limits\[0\]: .*unknown field `averging`"),
        ("limits: [{" + ONE.replace("hour", "month") + "}]", r"limits\[0\].averaging: Invalid enum value 'month'"),
        ("limits: [{" + ONE.replace("1", "-1") + "}]", r"limits\[0\].value: .*> 0"),
        ("limits: [{" + ONE + "}, {" + ONE + "}]", r"limits\[1\].name: 'x' is there twice"),
        ("limits: [{" + ONE.replace("hour", "day") + ", consecutive: 3}]", r"limits\[0\].consecutive: 3, only hours"),
        ("limits: [{" + ONE.replace("hour", "year") + ", allowed: 3}]", r"limits\[0\].allowed: 3"),
        ("coverage: {day: 1.5}", r"limits.yaml: coverage.day: .*<= 1"),
        ("limits: [", r"limits.yaml: not YAML"),
    ],
)
def test_a_wrong_list_of_limits(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_limits(path)


def test_a_missing_list_of_limits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: No such file"):
        load_limits(tmp_path / "no.yaml")


def test_a_job_without_limits_that_it_can_judge_says_so() -> None:
    log: Any = None  # it is not looked at before
    for job in (exceedances.batch, exceedances.follow):
        with pytest.raises(ConfigError, match=r"limits: none$"):
            job(log, JobOptions(limits=Limits(limits=())))
    daily = Limits(limits=tuple(one for one in load_limits().limits if one.averaging != "hour"))
    assert daily.limits
    with pytest.raises(ConfigError, match="limits: none is hourly, and a stream keeps those alone"):
        exceedances.follow(log, JobOptions(limits=daily))


# -- options


def test_results_do_not_go_where_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "to"
    path.write_text("mine")
    for place, said in ((path, "to: File exists"), (path / "below", "below: Not a directory")):
        with pytest.raises(ConfigError, match=said):
            folder_of(place)
    assert path.read_text() == "mine"
    assert folder_of(tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (JobOptions(window_s=90, slide_s=60), "window: 90 s is no whole number of slides of 60 s"),
        (JobOptions(columns=ReadingColumns(timezone="Europe/Atlantis")), "timezone: 'Europe/Atlantis'"),
        (JobOptions(columns=ReadingColumns(timezone="Europe/Madrid"), watermark_s=60), "watermark: 60 s"),
    ],
)
def test_options_that_do_not_go_together(options: JobOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options.check()


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15min", 900), ("1h", 3600), ("2d", 172_800)])
def test_durations(text: str, seconds: int) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topk", "--window", "5"], "'5' is no duration"),
        (["topk", "--window", "0s"], "'0s' is no duration"),
        (["series", "--follow", "--until-caught-up"], "exclude each other"),
        (["series", "--format", "parquet", "--filter", "no2 > 1"], "--filter needs"),
        (["series", "--filter", "no2 >"], "position"),
        (["exceedances", "--limits", "/nowhere.yaml"], "No such file"),
        (["topk", "--window", "90s", "--slide", "60s"], "no whole number of slides"),
    ],
)
def test_the_command_line_is_checked_before_spark_starts(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["analyse", *arguments, "--input", str(tmp_path), "--to", str(tmp_path / "to")])
    assert done.exit_code in (1, 2)
    assert said in done.output


@pytest.mark.parametrize("job", ["series", "report"])
def test_that_there_is_no_output_is_said_before_spark_starts(tmp_path: Path, job: str) -> None:
    gone = tmp_path / "gone"
    done = CliRunner().invoke(main, ["analyse", job, "--input", str(gone), "--to", str(tmp_path / "to")])
    assert done.exit_code == 1
    assert done.output == f"Error: {gone}: no matched output: there is no folder _kittiwake in it\n"


def test_a_signal_is_one_whatever_py4j_makes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    def called(spark: Any, number: int | None) -> None:
        with analyse._signals() as stopped:
            stopped.cancels(spark)
            try:
                if number is not None:
                    signal.raise_signal(number)
            except Interrupted:
                logging.exception("Exception while sending command.")
            raise Py4JNetworkError("Error while sending or receiving")

    with pytest.raises(Interrupted, match="SIGTERM"):
        called(object(), signal.SIGTERM)
    assert not caplog.records
    logging.error("as ever")
    assert caplog.messages == ["as ever"]
    with pytest.raises(Py4JNetworkError):
        called(object(), None)


def test_a_signal_that_comes_while_spark_starts_is_minded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spark:
        stopped = False

        def stop(self) -> None:
            Spark.stopped = True

    def start(app: str, **conf: object) -> Spark:
        pyspark.core.context.signal.signal(signal.SIGINT, signal.default_int_handler)  # as pyspark does
        return Spark()

    monkeypatch.setattr(cluster.spark, "session", start)
    with analyse._signals() as stopped, analyse.spark_session("test", "1g"):
        signal.raise_signal(signal.SIGINT)
        assert stopped.number == signal.SIGINT
    Spark.stopped = False

    def run() -> None:
        with analyse._signals() as stopped, analyse.spark_session("test", "1g") as spark:
            signal.raise_signal(signal.SIGINT)
            stopped.cancels(spark)

    with pytest.raises(Interrupted, match="SIGINT"):
        run()
    assert Spark.stopped


def file(document: Any) -> io.BytesIO:
    found = io.BytesIO(json.dumps(document).encode())
    found.name = "given"
    return found


def test_documents_of_the_cluster() -> None:
    member = {"layer": "connection_point", "slot": 0, "counters": {"subscriptions": 7}}
    starting = {"layer": "connection_point", "slot": 1, "state": "starting"}
    other = {"layer": "matcher", "slot": 0, "counters": {"subscriptions": 99}}
    assert subscriptions_in(file({"members": [member, starting, other]})) == 7
    operation = {"former": {"matcher": [0]}, "wanted": {"matcher": [0, 1]}, "steps": [{"epoch": 2}, {"epoch": 3}]}
    assert operations_in(file([operation])) == (("matcher +1", (2, 3)),)
    with pytest.raises(Failure, match="--status"):
        subscriptions_in(file({}))
    with pytest.raises(Failure, match="--transitions"):
        operations_in(file([1]))
    broken = io.BytesIO(b"{")
    broken.name = "given"
    with pytest.raises(Failure, match="given: not JSON"):
        operations_in(broken)


# -- delay


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1) + timedelta(seconds=seconds)


SEEN = [
    EpochSeen(1, at(0), at(20)),
    EpochSeen(2, at(19), at(23)),  # another slot still releases what is of epoch 1
    EpochSeen(3, at(22), at(60)),
    EpochSeen(4, at(61), at(90)),
]


def test_view_changes_close_upon_each_other_are_one_transition() -> None:
    assert transitions(SEEN, margin_s=10) == [
        Transition(1, "view 1 to 3", 1, 3, at(19), at(23)),
        Transition(2, "view 3 to 4", 3, 4, at(61), at(61)),
    ]
    assert [one.first_epoch for one in transitions(SEEN, margin_s=0.5)] == [1, 2, 3]
    assert transitions(SEEN[:1], 10) == transitions([], 10) == []


def test_an_operation_is_one_transition_by_its_name() -> None:
    told = [("matcher +1", (2,)), ("matcher -1", (3, 4))]
    assert transitions(SEEN, 10, told) == [
        Transition(1, "matcher +1", 1, 2, at(19), at(20)),
        Transition(2, "matcher -1", 2, 4, at(22), at(61)),
    ]


def test_phases_lie_next_to_each_other() -> None:
    rows = phases([Transition(1, "x", 1, 2, at(30), at(31))], margin_s=10)
    assert [(phase, start, end) for *_, phase, start, end in rows] == [
        ("before", at(19), at(29)),
        ("during", at(29), at(32)),
        ("after", at(32), at(42)),
    ]


# -- interest


def counted(*rows: tuple[str, str, int, int]) -> pa.Table:
    return pa.table({name: [row[place] for row in rows] for place, name in enumerate(interest.SUM_COLUMNS)})


def total(everything: int, matched: int, first: int, last: int) -> list[tuple[str, str, int, int]]:
    figures = {"all": everything, "matched": matched, "notifications": matched, "bytes": 10 * everything}
    figures |= {"first_us": first, "last_us": last}
    return [("total", name, 0, value) for name, value in figures.items()]


def test_a_batch_that_comes_again_counts_once() -> None:
    first = counted(*total(10, 4, 5, 50), ("client", "lab", 4, 4), ("spread", "0", 6, 0), ("spread", "1", 4, 4))
    second = counted(*total(5, 5, 60, 90), ("client", "lab", 5, 5), ("client", "roof", 1, 1), ("spread", "1", 5, 5))
    folded = interest.fold(interest.fold(None, first, 0), second, 1)
    again = interest.fold(folded, second, 1)

    def summed(parts: pa.Table) -> dict[tuple[str, str], tuple[int, int]]:
        rows = interest.add_up(parts).to_pylist()
        return {(row["kind"], row["name"]): (row["publications"], row["matches"]) for row in rows}

    assert summed(again) == summed(folded)
    assert summed(folded)["client", "lab"] == (9, 9)
    assert summed(folded)["total", "all"] == (0, 15)
    assert (summed(folded)["total", "first_us"], summed(folded)["total", "last_us"]) == ((0, 5), (0, 90))
    assert interest.fold(again, first, 2).num_rows == len(summed(folded)) + first.num_rows  # the past is one sum


def test_what_is_not_known_is_null_and_what_was_said_is_used() -> None:
    rows = [*total(4, 4, 0, 2_000_000), ("spread", "1", 3, 3), ("spread", "3", 1, 3), ("minute", "0", 4, 6)]
    rows += [("subscription", "5", 4, 4), ("subscription", "6", 2, 2)]
    found = interest.summary(rows, JobOptions())
    assert found is not None
    assert (found.log_holds, found.subscriptions_open, found.share_never_matched) == ("matched", None, None)
    assert (found.publications, found.publications_per_second, found.matches_per_publication.mean) == (4, 2.0, 1.5)
    told = interest.summary(rows, JobOptions(open_subscriptions=8, publications=40))
    assert told is not None
    assert (told.share_never_matched, told.publications, told.publications_per_second) == (0.75, 40, 20.0)
    assert (told.matched_share, told.matches_per_publication.mean) == (0.1, 0.15)
    assert (told.matches_per_publication.p50, told.matches_per_publication.p95) == (0, 1)
    assert interest.summary(total(0, 0, 0, 0), JobOptions()) is None


# -- tables

KEPT = tables.Table("kept", ("station", "start"), month_of="start")


def rows_of(*rows: tuple[str, datetime, float]) -> pa.Table:
    stamps = pa.array([start for _, start, _ in rows], pa.timestamp("us", tz="UTC"))
    return pa.table({"station": [name for name, *_ in rows], "start": stamps, "mean": [mean for *_, mean in rows]})


def test_upsert_replaces_adds_and_takes_out(tmp_path: Path) -> None:
    may, june = datetime(2017, 5, 31, 23, tzinfo=UTC), datetime(2017, 6, 1, tzinfo=UTC)
    first = rows_of(("a", may, 1.0), ("b", june, 2.0))
    tables.upsert(tmp_path, KEPT, first)
    second = rows_of(("b", june, 3.0), ("c", june, 4.0))
    for _ in range(2):
        tables.upsert(tmp_path, KEPT, second, rows_of(("a", may, 0.0)))
    found = tables.read(tmp_path, KEPT)
    assert found is not None
    assert found.to_pylist() == second.to_pylist()
    assert {each.name for each in (tmp_path / "kept").iterdir()} == {"month=2017-05", "month=2017-06"}
    assert not list(tmp_path.rglob("*.new"))
    assert tables.read(tmp_path, tables.Table("none", ("a",))) is None


def test_a_stream_does_not_begin_on_a_finished_table(tmp_path: Path) -> None:
    tables.check_stream(tmp_path, KEPT)
    tables.upsert(tmp_path, KEPT, rows_of(("a", datetime(2017, 6, 1, tzinfo=UTC), 1.0)))
    with pytest.raises(SparkError, match="no stream keeps it"):
        tables.check_stream(tmp_path, KEPT)
    tables.checkpoint(tmp_path, KEPT).mkdir(parents=True)
    tables.check_stream(tmp_path, KEPT)


def test_a_finished_table_is_not_written_where_a_stream_keeps_it(tmp_path: Path) -> None:
    tables.checkpoint(tmp_path, KEPT).mkdir(parents=True)
    frame: Any = None  # it is not computed
    with pytest.raises(SparkError, match="kept: a stream keeps this table; give another folder"):
        tables.write(tables.Result(KEPT, frame), tmp_path)
    assert tables.checkpoint(tmp_path, KEPT).is_dir()


# -- running


class Query:
    """A stream that has ended, well or not."""

    isActive = False
    recentProgress = ()

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.name = name
        self._failure = failure
        self.stopped = False

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self.stopped = True


def test_a_stream_that_failed_is_named_and_all_are_stopped() -> None:
    failure = ValueError("no such column\n  at a stack of Java")
    queries: Any = [Query("good"), Query("bad", failure)]
    shown: list[list[str]] = []
    with pytest.raises(SparkError, match=r"^bad: no such column$") as caught:
        running.follow(queries, lambda progress: shown.append(list(progress)), lambda: False)
    assert caught.value.__cause__ is failure
    assert shown == [["good", "bad"]]
    assert [query.stopped for query in queries] == [True, True]


def test_an_error_of_ours_that_came_through_spark_is_told_without_its_class() -> None:
    stack = "Traceback\n  File x\ncluster.output.errors.OutputError: out/output: no matched output\n\n\tat org.apache"
    assert running.first_line(ValueError(stack)) == "out/output: no matched output"


def test_how_far_behind_a_stream_is_that_says_nothing_of_use_is_not_known(tmp_path: Path) -> None:
    write_rows(LocalDisk(tmp_path), 1, [make_row(number, {}) for number in range(5)])
    source = running.Input(path=str(tmp_path))
    for end in ("null", "[1]", "0x", '{"one": 2}', '{"1": null}'):
        assert running.behind(source, running.Progress(end=end)) is None
    for end, rows in (("", 5), ('{"1": 3}', 2), ('{"1": 9}', 0)):
        assert running.behind(source, running.Progress(end=end)) == rows


def test_a_jvm_that_is_gone_is_looked_at_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    class Gone:
        @property
        def sparkContext(self) -> Gone:
            return self

        def statusTracker(self) -> Gone:
            return self

        def getActiveStageIds(self) -> list[int]:
            assert not asked.is_set(), "asked again"
            asked.set()
            raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(running, "POLL_S", 0.0)
    spark: Any = Gone()
    shown: list[str] = []
    with running.watched(spark, shown.append):
        assert asked.wait(10)
    assert shown == []


# -- pieces of pictures


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0.0, 0.07, [0.0, 0.02, 0.04, 0.06]), (-3, 4, [-2, 0, 2, 4]), (5, 5, [5])],
)
def test_ticks_are_round_numbers(low: float, high: float, found: list[float]) -> None:
    assert svg.ticks(low, high) == pytest.approx(found)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234.5, "1,234"), (56.72, "56.7"), (0.0894, "0.0894"), (40.0, "40"), (3.4, "3.4")]
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert svg.number(value) == text


def test_what_comes_from_the_data_is_escaped() -> None:
    assert svg.tag("a", svg.title("<b> & 'c'"), href='"x"') == (
        '<a href="&quot;x&quot;"><title>&lt;b&gt; &amp; &#x27;c&#x27;</title></a>'
    )


def test_scales() -> None:
    assert [svg.Scale(0, 10, 100, 0)(value) for value in (0, 2.5, 10)] == [100, 75, 0]
    assert [svg.Scale(1, 100, 0, 10, logarithmic=True)(value) for value in (0.1, 1, 10, 100)] == [0, 0, 5, 10]
    assert (svg.ramp(0), svg.ramp(1), svg.ramp(2)) == ("#0d0887", "#f0f921", "#f0f921")
