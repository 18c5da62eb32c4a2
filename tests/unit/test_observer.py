"""From reports to signals: differences by interval, whoever restarts, comes late or says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.observer import Observer
from autoscaler.signals import BUCKETS, NodeSignals, Signals, SliceSignals
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, EXIT_POINT, MATCHER, Peer, Report
from cluster.observed import Observed, Slice

DOOR, ACCESS, M0, M1, EXIT = (
    Peer(CONNECTION_POINT, 0),
    Peer(ACCESS_POINT, 0),
    Peer(MATCHER, 0),
    Peer(MATCHER, 1),
    Peer(EXIT_POINT, 0),
)
SIZES = {CONNECTION_POINT: 1, ACCESS_POINT: 1, MATCHER: 2, EXIT_POINT: 1}


def histogram(**counts: int) -> list[int]:
    """Return counts by bucket, `b3=5` for five in the fourth, and behind them a sum."""
    state = [0] * BUCKETS
    for name, count in counts.items():
        state[int(name[1:])] = count
    return [*state, 1000 * sum(counts.values())]


def report(at_ms: int, **counters: int) -> Report:
    return Report(at_ms, {"useful_us": 0, "resident_bytes": 1 << 20, **counters}, {}, [], None)


def observed(now_ms: int, incarnation: int = 1, **reports: Report) -> Observed:
    """Return what is known: reports by door, access, m0, m1, exit."""
    named = {"door": DOOR, "access": ACCESS, "m0": M0, "m1": M1, "exit": EXIT}
    slices = {peer: Slice(incarnation, reports.get(name)) for name, peer in named.items()}
    return Observed(now_ms, 4, SIZES, False, slices)


def of(signals: Signals, peer: Peer) -> SliceSignals:
    (found,) = (one for one in signals.slices if (one.layer, one.slot) == peer)
    return found


def test_before_there_are_two_reports_nothing_is_known_of_any_interval() -> None:
    observer = Observer(1000)
    silent = observer.signals(observed(1000))
    assert (silent.epoch, silent.sizes, silent.transition) == (4, SIZES, False)
    assert silent.delay is silent.subscribe_ack is silent.publications_per_s is None
    assert [(one.layer, one.slot) for one in silent.slices] == [DOOR, ACCESS, M0, M1, EXIT]
    assert of(silent, M0) == SliceSignals(layer=MATCHER, slot=0)
    first = of(observer.signals(observed(2000, m0=report(7, subscriptions=5, publications=1000))), M0)
    assert (first.subscriptions, first.rss_bytes) == (5, 1 << 20)
    assert first.useful_share is first.publications_per_s is first.match_ms is None


def test_rates_are_by_the_slice_s_own_clock() -> None:
    observer = Observer(1000)
    observer.signals(observed(1000, m0=report(50_000, publications=100, useful_us=1_000_000)))
    second = observer.signals(observed(2300, m0=report(51_250, publications=600, useful_us=1_500_000)))
    found = of(second, M0)
    assert found.publications_per_s == 400.0, "500 in 1.25 s"
    assert found.useful_share == 0.4
    assert second.interval_s == 1.3, "the coordinator's own"


def test_a_share_of_time_is_never_more_than_all_of_it() -> None:
    observer = Observer(1000)
    observer.signals(observed(1000, m0=report(0)))
    assert of(observer.signals(observed(2000, m0=report(1000, useful_us=1_200_000))), M0).useful_share == 1.0


def test_what_is_taken_by_each_layer() -> None:
    observer = Observer(1000)
    observer.signals(
        observed(
            1000,
            door=report(0, accepted=0, notifications=0, connections=3),
            access=report(0, publications=0),
            exit=report(0, released=0, duplicates=0, notifications=0),
        )
    )
    signals = observer.signals(
        observed(
            2000,
            door=report(1000, accepted=10, notifications=30, connections=4),
            access=report(1000, publications=11),
            exit=report(1000, released=12, duplicates=1, notifications=31),
        )
    )
    door, exit_point = of(signals, DOOR), of(signals, EXIT)
    assert (door.publications_per_s, door.notifications_per_s, door.connections) == (10, 30, 4)
    assert of(signals, ACCESS).publications_per_s == 11
    assert (exit_point.publications_per_s, exit_point.notifications_per_s) == (13, 31)
    assert (signals.publications_per_s, signals.notifications_per_s) == (10, 30)


def test_histograms_are_of_the_interval_alone_and_of_no_report_twice() -> None:
    observer = Observer(1000)
    reports = [
        replaced(report(at, accepted=0), {"notification_delay": delay, "subscribe_ack": histogram(b1=at // 1000)})
        for at, delay in ((0, histogram(b3=5)), (1000, histogram(b3=7, b9=1)), (2000, histogram(b3=7, b9=4)))
    ]
    observer.signals(observed(1000, door=reports[0]))
    second = observer.signals(observed(2000, door=reports[1]))
    assert second.delay is not None
    assert {place: count for place, count in enumerate(second.delay) if count} == {3: 2, 9: 1}
    assert second.subscribe_ack is not None
    assert sum(second.subscribe_ack) == 1
    again = observer.signals(observed(3000, door=reports[1]))
    assert again.delay is None, "nothing new has come"
    assert of(again, DOOR).publications_per_s == of(second, DOOR).publications_per_s, "what it said last stands"
    third = observer.signals(observed(4000, door=reports[2]))
    assert third.delay is not None
    assert {place: count for place, count in enumerate(third.delay) if count} == {9: 3}


def replaced(one: Report, histograms: dict[str, list[int]], match_ns: tuple[int, int] | None = None) -> Report:
    return Report(one.at_ms, one.counters, histograms, one.lanes, match_ns)


def test_who_is_not_heard_of_for_three_intervals_is_one_of_whom_nothing_is_known() -> None:
    observer = Observer(1000)
    for at in (0, 1000):
        observer.signals(observed(1000 + at, m0=report(at, subscriptions=1), m1=report(at, subscriptions=2)))
    for now_ms in (3000, 4000, 5000):
        signals = observer.signals(
            observed(now_ms, m0=report(now_ms, subscriptions=1), m1=report(1000, subscriptions=2))
        )
        assert (of(signals, M1).subscriptions, signals.subscriptions) == (2, 3)
    signals = observer.signals(observed(5100, m0=report(5100, subscriptions=1), m1=report(1000, subscriptions=2)))
    assert of(signals, M1) == SliceSignals(layer=MATCHER, slot=1)
    assert signals.subscriptions is None


def test_another_incarnation_begins_anew() -> None:
    observer = Observer(1000)
    observer.signals(observed(1000, m0=report(90_000, publications=5_000)))
    observer.signals(observed(2000, m0=report(91_000, publications=6_000)))
    signals = observer.signals(observed(3000, incarnation=2, m0=report(500, publications=10)))
    assert of(signals, M0).publications_per_s is None, "neither less than nothing, nor all it ever did"
    signals = observer.signals(observed(4000, incarnation=2, m0=report(1500, publications=40)))
    assert of(signals, M0).publications_per_s == 30


def test_a_slice_that_has_left_is_forgotten() -> None:
    observer = Observer(1000)
    observer.signals(observed(1000, m1=report(0, publications=1)))
    shrunk = observed(2000)
    observer.signals(replace(shrunk, slices={peer: one for peer, one in shrunk.slices.items() if peer != M1}))
    assert of(observer.signals(observed(3000, m1=report(1000, publications=5))), M1).publications_per_s is None


def test_what_a_match_took() -> None:
    observer = Observer(1000)
    empty = [0] * 21
    observer.signals(observed(1000, m0=replaced(report(0), {"match": [*empty, 0]})))
    counts = [*[0] * 5, 4, *[0] * 15, 40]
    signals = observer.signals(observed(2000, m0=replaced(report(1000), {"match": counts}, (8_000, 14_000))))
    spread = of(signals, M0).match_ms
    assert spread is not None
    assert (spread.count, spread.min, spread.max) == (4, 0.008, 0.014)
    assert spread.mean == pytest.approx(0.01)
    signals = observer.signals(observed(3000, m0=replaced(report(2000), {"match": counts})))
    idle = of(signals, M0).match_ms
    assert idle is not None
    assert idle.count == 0, "idle is not the same as not heard of"


def test_backlog_is_that_of_the_receiver_in_publications() -> None:
    observer = Observer(1000)
    matcher = report(0, publications=1000, messages_taken=10)
    sender = Report(0, {}, {}, [(MATCHER, 0, 3, 900), (MATCHER, 1, 0, 0), (CONNECTION_POINT, 0, 2, 20)], None)
    signals = observer.signals(observed(1000, access=sender, m0=matcher, m1=report(0), door=report(0)))
    assert (of(signals, M0).backlog_messages, of(signals, M0).backlog_bytes) == (300, 900)
    assert (of(signals, M1).backlog_messages, of(signals, M1).backlog_bytes) == (0, 0)
    assert of(signals, DOOR).backlog_messages == 2


def test_the_time_that_an_operation_took_is_told_once() -> None:
    observer = Observer(1000)
    found = []
    for number, done in enumerate((None, None, (1, 4_000), (1, 4_000), (2, 6_000))):
        found.append(observer.signals(replace(observed(1000 * number + 1000), last_done=done)).placement_s)
    assert found == [None, None, 4.0, None, 6.0]
    late = Observer(1000)
    assert late.signals(replace(observed(1000), last_done=(7, 1))).placement_s is None, "of before it began to look"


# Nodes ---------------------------------------------------------------------------------------------------------------


def on(second: int, busy_ms: int | None, cpu_ms: int = 0, cores: int = 2) -> Report:
    """Return the report of a second: for how long the node and the slice's own process have been busy until then."""
    node = None if busy_ms is None else (1000 * busy_ms, cores)
    return Report(1000 * second, {"useful_us": 0, "cpu_us": 1000 * cpu_ms}, {}, [], None, node=node)


def placed(now_ms: int, hosts: dict[Peer, str], reports: dict[Peer, Report]) -> Observed:
    slices = {peer: Slice(1, reports.get(peer), host) for peer, host in hosts.items()}
    return Observed(now_ms, 4, SIZES, False, slices)


TWO = {DOOR: "a", ACCESS: "a", M0: "b"}


def nodes_of(first: dict[Peer, Report], second: dict[Peer, Report], **cores: float) -> tuple[NodeSignals, ...]:
    """Return the nodes of the second of two intervals."""
    observer = Observer(1000)
    assert observer.signals(placed(1000, TWO, first)).nodes == (), "an interval has two ends"
    return observer.signals(placed(2000, TWO, second), cores=cores or None).nodes


FIRST = {DOOR: on(0, 5000), ACCESS: on(0, 5100), M0: on(0, 90_000, cores=4)}
SECOND = {DOOR: on(1, 6500, 300), ACCESS: on(1, 6800, 150), M0: on(1, 91_000, 250, cores=4)}


def test_a_node_is_as_busy_as_the_slices_on_it_see_it_and_they_have_their_part_in_it() -> None:
    assert nodes_of(FIRST, SECOND) == (
        NodeSignals(host="a", cores=2, busy=pytest.approx(1.6), slices=pytest.approx(0.45)),
        NodeSignals(host="b", cores=4, busy=pytest.approx(1.0), slices=pytest.approx(0.25)),
    )


def test_nodes_without_slices_have_cores_and_are_not_known_otherwise() -> None:
    assert nodes_of(FIRST, SECOND, a=2.0, b=4.0, c=8.0)[2:] == (NodeSignals(host="c", cores=8.0),)
    assert [one.host for one in nodes_of(FIRST, SECOND, a=2.0, other=8.0)] == ["a", "b"], "Ray's names are others"


def test_where_one_node_says_nothing_none_is_told_of() -> None:
    assert nodes_of(FIRST, SECOND | {M0: on(1, None)}) == ()
    assert nodes_of(FIRST, {DOOR: SECOND[DOOR], ACCESS: SECOND[ACCESS], M0: FIRST[M0]}) == (), "not Linux, or no report"


def test_a_node_is_never_busier_than_it_has_cores() -> None:
    (one, _) = nodes_of(FIRST, SECOND | {DOOR: on(1, 9000, 3000), ACCESS: on(1, 9100, 3000)})
    assert (one.busy, one.slices) == (2, 2)
