"""What is measured: histograms, ages, backlogs, and the list of metrics that all of it goes by."""

from __future__ import annotations

import random
import re
from bisect import bisect_left

import pytest

from autoscaler.signals import DELAY_BOUNDS_MS
from cluster.channel import Lane
from cluster.codec import FrameReader
from cluster.columns import UINT32, UINT64, pack
from cluster.config import Config, OutputSettings
from cluster.figures import autoscaler_series, series_of
from cluster.histogram import VECTOR, Histogram
from cluster.measures import Measures
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR,
    EXIT_POINT,
    MATCHER,
    Batch,
    Changed,
    Deliver,
    Drained,
    Peer,
    Publications,
    Received,
    Result,
    Run,
)
from cluster.metrics import AUTOSCALER, BY_NAME, DELAY_BUCKETS_MS, METRICS, SLICE_LABELS, Kind
from cluster.observed import Ledger
from cluster.role import make_machine

SOMEBODY = Peer(ACCESS_POINT, 0)
SECOND = 1_000_000


def run(time_us: int, count: int = 1) -> Run:
    return Run("p", 1, 5, 1, count, time_us)


def deliver(times: list[int], publications: list[int], notified: list[int]) -> Deliver:
    """Return a Deliver of runs that came at these times; by publication its run, by notification its publication."""
    empty = pack(UINT32, [0] * len(publications))
    return Deliver(
        [("p", 1, time_us, token) for token, time_us in enumerate(times)],
        pack(UINT32, publications),
        pack(UINT64, range(len(publications))),
        empty,
        b"",
        pack(UINT32, [1]),
        pack(UINT32, [len(notified)]),
        pack(UINT32, notified),
        pack(UINT32, [1] * len(notified)),
        pack(UINT32, [1] * len(notified)),
    )


def counted(state: list[int], bounds: tuple[int, ...]) -> dict[float, int]:
    """Return how many values are in a bucket, by its upper bound, without the empty ones."""
    return {bound: count for bound, count in zip([*bounds, float("inf")], state, strict=False) if count}


# The list ----------------------------------------------------------------------------------------------------------


def test_names_follow_the_rules_and_none_comes_twice() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"kittiwake_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.help.endswith((".", "0."))
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert metric.kind is not Kind.HISTOGRAM or metric.unit == "seconds"
        # The labels `layer` and `slot` are given by who exports; there is one more where there are several values.
        own = [label for label in metric.labels if label not in SLICE_LABELS] or (
            ["layer"] if metric.labels == ("layer",) else []
        )
        if metric not in AUTOSCALER:
            assert len(own) == (0 if set(metric.values) == {""} else 1)
        assert not {"client", "client_id", "subscription", "publisher"} & set(metric.labels)


def test_the_autoscaler_reads_the_same_buckets() -> None:
    assert DELAY_BOUNDS_MS == DELAY_BUCKETS_MS


@pytest.mark.parametrize("layer", [CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT])
def test_every_machine_counts_what_the_list_says_of_its_layer(layer: str) -> None:
    measures = Measures(layer, 1000)
    measures.saw([(to, 0, 1, 10) for to in (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT, COORDINATOR)], 1, 1)
    writes = Config(output=OutputSettings(path="output"))
    gauges = make_machine(Peer(layer, 3), 1, writes).gauges() | measures.totals() | {"view_epoch": 7}
    found = list(series_of(layer, 3, gauges, measures.histograms()))
    expected = {metric.name for metric in METRICS if layer in metric.layers}
    assert expected <= {series.metric.name for series in found}
    assert all(series.labels[:2] == (layer, "3") for series in found)
    assert len({(series.metric.name, series.labels) for series in found}) == len(found)
    for series in found:
        assert len(series.labels) == len(series.metric.labels)


def test_what_the_autoscaler_says_is_in_the_list_or_an_error() -> None:
    (one,) = autoscaler_series({"kittiwake_desired_replicas": {("matcher", "utilization"): 3}})
    assert (one.labels, one.value) == (("matcher", "utilization"), 3)
    with pytest.raises(AssertionError, match="kittiwake_nonsense"):
        list(autoscaler_series({"kittiwake_nonsense": {(): 1}}))
    with pytest.raises(AssertionError, match="has the labels"):
        list(autoscaler_series({"kittiwake_efficiency": {("matcher", "3"): 1}}))


# Histograms --------------------------------------------------------------------------------------------------------


def test_many_values_at_once_count_as_one_by_one() -> None:
    rng = random.Random(5)
    for size in (1, VECTOR - 1, VECTOR, 300):
        at_once, singly = Histogram((1, 5, 70, 900)), [0] * 5
        values = [rng.choice((0, 1, 2, 5, 6, 70, 71, 900, 901, rng.randrange(2000))) for _ in range(size)]
        counts = [rng.randrange(1, 4) for _ in values]
        at_once.add_all(values, counts)
        for value, count in zip(values, counts, strict=True):
            singly[bisect_left((1, 5, 70, 900), value)] += count
        assert at_once.counts == singly
        assert at_once.state == [*singly, sum(map(int.__mul__, values, counts))]


def test_a_value_at_a_bound_is_below_it_as_in_prometheus() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]


def test_a_histogram_is_exported_in_seconds_and_cumulative() -> None:
    measures = Measures(MATCHER, 1000)
    batch = Batch(1, [0], 1, [run(0, 2)], [0], [1], pack(UINT32, [1, 1]), b"ab")
    measures.took(Received(SOMEBODY, batch), SECOND, 10_000)
    (match,) = (
        one for one in series_of(MATCHER, 0, {}, measures.histograms()) if one.metric.name.endswith("match_seconds")
    )
    assert match.value == 10e-6
    assert dict(match.buckets)[3e-6] == 0
    assert dict(match.buckets)[5e-6] == 2, "5 microseconds for each of the two"
    assert match.buckets[-1] == (float("inf"), 2)


# Ages --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [3, 60])
def test_the_delay_of_each_notification_is_that_of_its_publication(several: int) -> None:
    measures = Measures(CONNECTION_POINT, 1000)
    now_us = 100 * SECOND
    # Run 0 came 1 ms ago, run 1 2 ms, and so on; publication k is of run k, and notifies k + 1 clients.
    times = [now_us - 1000 * (age + 1) for age in range(several)]
    notified = [publication for publication in range(several) for _ in range(publication + 1)]
    measures.took(Received(Peer(EXIT_POINT, 0), deliver(times, list(range(several)), notified)), now_us, 5_000)
    *counts, total_us = measures.histograms()["notification_delay"]
    expected = Histogram([round(1000 * bound) for bound in DELAY_BUCKETS_MS])
    for publication in notified:
        expected.add(1000 * (publication + 1))
    assert (counts, total_us) == (expected.counts, expected.sum)


def test_one_run_is_one_age_for_all_its_notifications_and_clocks_that_differ_make_none_negative() -> None:
    measures = Measures(CONNECTION_POINT, 1000)
    measures.took(Received(Peer(EXIT_POINT, 0), deliver([SECOND], [0, 0], [0, 1, 1])), SECOND + 2000, 0)
    measures.took(Received(Peer(EXIT_POINT, 0), deliver([SECOND], [0], [0])), SECOND - 700, 0)
    bounds = tuple(round(1000 * bound) for bound in DELAY_BUCKETS_MS)
    assert counted(measures.histograms()["notification_delay"], bounds) == {2000: 3, 500: 1}


def test_every_layer_says_how_old_publications_are_when_it_takes_them_up() -> None:
    batch = Batch(1, [0], 1, [run(0, 3)], [0], [1], pack(UINT32, [1, 1, 1]), b"abc")
    publications = Publications([run(0, 3)], batch.lengths, batch.payload)
    result = Result(1, [0], 0, 1, [run(0, 3)], [], *[b""] * 7)
    bounds = tuple(round(1000 * bound) for bound in DELAY_BUCKETS_MS)
    for layer, message in ((ACCESS_POINT, publications), (MATCHER, batch), (EXIT_POINT, result)):
        measures = Measures(layer, 1000)
        measures.took(Received(SOMEBODY, message), 9_000, 2_000_000)
        assert counted(measures.histograms()["publication_age"], bounds) == {7500: 3}, "9 ms less the 2 ms that it took"


def test_of_many_runs_another_one_stands_for_the_message_each_time() -> None:
    measures = Measures(ACCESS_POINT, 1000)
    runs = [run(-1000 * age) for age in (1, 9, 90)]
    for _ in range(3):
        measures.took(Received(SOMEBODY, Publications(runs, bytes(12), b"")), 0, 0)
    bounds = tuple(round(1000 * bound) for bound in DELAY_BUCKETS_MS)
    assert counted(measures.histograms()["publication_age"], bounds) == {1000: 3, 10_000: 3, 100_000: 3}


def test_how_long_subscriptions_take_is_told_by_what_the_machine_has_answered() -> None:
    measures = Measures(CONNECTION_POINT, 1000)
    measures.answered = answered = [SECOND, SECOND - 50_000]
    measures.took(Drained(), SECOND + 500, 0)
    assert answered, "it is looked at where answers come"
    measures.took(Received(SOMEBODY, Changed([1, 2], 1)), SECOND + 500, 0)
    bounds = tuple(round(1000 * bound) for bound in DELAY_BUCKETS_MS)
    assert counted(measures.histograms()["subscribe_ack"], bounds) == {500: 1, 75_000: 1}
    assert answered == []


# Work and reports --------------------------------------------------------------------------------------------------


def test_a_report_holds_totals_and_the_extremes_of_its_interval() -> None:
    measures = Measures(MATCHER, 1000)
    batch = Batch(1, [0], 1, [run(0, 2)], [0], [1], pack(UINT32, [1, 1]), b"ab")
    assert measures.due(5_000)
    first = measures.report({"hits": 1}, 5_000)
    assert first.match_ns is first.node is None
    for spent_ns in (8_000, 2_000, 4_000):
        measures.took(Received(SOMEBODY, batch), SECOND, spent_ns)
    measures.worked(1_000_000)
    assert not measures.due(5_999)
    assert measures.due(6_000)
    measures.saw([(EXIT_POINT, 0, 3, 300), (EXIT_POINT, 1, 4, 400), (COORDINATOR, 0, 0, 0)], 77, 88, (99, 2))
    second = measures.report({"hits": 5}, 6_000)
    assert second.match_ns == (1_000, 4_000)
    assert second.node == (99, 2)
    assert second.lanes[0] == (EXIT_POINT, 0, 3, 300)
    assert {key: second.counters[key] for key in ("hits", "useful_us", "cpu_us", "resident_bytes")} == {
        "hits": 5,
        "useful_us": 1_014,
        "cpu_us": 88,
        "resident_bytes": 77,
    }
    assert second.counters["backlog_exit_point_messages"] == 7
    assert second.counters["backlog_exit_point_bytes"] == 700
    assert measures.report({}, 7_000).match_ns is None


def test_a_backlog_is_what_is_left_when_a_confirmation_comes() -> None:
    sender, receiver = Lane(), Lane()
    sender.connect(0)
    receiver.connect(0)
    assert sender.take_backlog() == (0, 0)
    for _ in range(3):
        sender.send(b"12345")
    assert sender.take_backlog() == (3, 15), "nothing is confirmed: all of it waits, for all that is known"
    for body in FrameReader(100).feed(b"".join(sender.poll()))[:2]:
        receiver.receive(body)
    receiver.tick(1)
    (confirmation,) = FrameReader(100).feed(b"".join(receiver.poll()))
    sender.receive(confirmation)
    sender.send(b"later")
    assert sender.take_backlog() == (1, 5), "two are handled; what was sent since is not held against the peer"
    assert sender.take_backlog() == (2, 10)


def test_the_ledger_knows_what_has_moved_and_how_long_it_took() -> None:
    ledger = Ledger()
    phases = {"prepare": 10, "copy": 20, "switch": 3, "retire": 1}
    ledger.transition(phases, 64, 1000, 90_000, committed=True, over=True)
    ledger.transition({"prepare": 10, "abort": 4}, 64, 500, 45_000, committed=False, over=True)
    ledger.transition({"prepare": 10}, 64, 0, 0, committed=False, over=False)
    ledger.recovery({"start": 900, "connect": 40, "rebuild": 60})
    ledger.operation("done")
    state = {key: histogram.state for key, histogram in ledger.histograms.items()}
    found = {series.metric.name: series for series in series_of(COORDINATOR, 0, ledger.counters, state)}
    assert found["kittiwake_moved_groups_total"].value == 64
    assert found["kittiwake_moved_subscriptions_total"].value == 1000
    assert ledger.counters["transitions_aborted"] == 2
    durations = {
        (series.metric.name, *series.labels): (series.buckets[-1][1], series.value)
        for series in series_of(COORDINATOR, 0, ledger.counters, state)
        if series.metric.kind is Kind.HISTOGRAM
    }
    assert durations["kittiwake_transition_seconds", "all"] == (1, 0.034)
    assert durations["kittiwake_transition_seconds", "prepare"] == (2, 0.02), "the one cut off has none"
    assert durations["kittiwake_recovery_seconds", "all"] == (1, 1.0)
    results = [series for series in series_of(COORDINATOR, 0, ledger.counters, state) if series.labels == ("merged",)]
    assert [series.value for series in results] == [0], "a counter begins at 0, not with its first event"
