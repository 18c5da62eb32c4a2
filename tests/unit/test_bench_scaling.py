"""The benchmark of scaling: its figures, its oracle, its command line; without a cluster."""

from __future__ import annotations

import argparse
import json
import random
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import scaling, scaling_figures, scaling_matrix, scaling_oracle, scaling_plot, scaling_report, workloads
from bench.load import Log
from bench.scaling_figures import Span
from bench.scaling_load import Lives
from bench.scaling_oracle import Arrived, Churned, Expected, Verdict
from bench.scaling_run import Change, Observed, Traffic, afterwards, steps_over
from cluster import parse

PUBLISHERS = 3
INFINITE = float("inf")


# Gaps, quantiles, bins -------------------------------------------------------------------------------------------


def swept(due: list[float], arrival: list[float]) -> list[tuple[float, float]]:
    """The gaps, from their meaning: walk through time and note since when something has been due and nothing come."""
    events = sorted([(time, 0) for time in due] + [(time, 1) for time in arrival])
    found = []
    waiting = 0
    since = 0.0
    for time, arrives in events:
        if arrives:
            found.append((since, time))
            waiting -= 1
            since = time
        else:
            since = time if waiting == 0 else since
            waiting += 1
    return found


def test_gaps_are_what_a_walk_through_time_finds() -> None:
    rng = random.Random(1)
    for _ in range(200):
        due = [rng.randrange(1000) / 10 for _ in range(rng.randrange(1, 30))]
        arrival = [time + 0.05 + rng.randrange(200) / 10 for time in due]
        begins, ends = scaling_figures.gaps(np.array(due), np.array(arrival))
        assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == swept(due, arrival)


def test_a_gap_counts_only_while_something_is_due() -> None:
    due = np.array([0.0, 1.0, 5.0])
    arrival = np.array([0.25, 1.5, 5.125])
    assert scaling_figures.longest_gap_ms(due, arrival, (0.0, 10.0)) == 500.0  # not the 3.5 s without anything due
    assert scaling_figures.longest_gap_ms(due, arrival, (2.0, 10.0)) == 125.0


def test_a_gap_belongs_to_every_window_that_it_reaches_into() -> None:
    due, arrival = np.array([1.0, 1.0, 3.0]), np.array([1.25, 3.5, 3.75])
    assert scaling_figures.longest_gap_ms(due, arrival, (2.0, 2.5)) == 2250.0
    assert scaling_figures.longest_gap_ms(due, arrival, (3.5, 9.0)) == 2250.0
    assert scaling_figures.longest_gap_ms(due, arrival, (4.0, 9.0)) is None


def test_quantiles_are_in_milliseconds() -> None:
    found = scaling_figures.quantiles_ms(np.arange(1001) / 1000)
    assert found == {"p50": 500.0, "p99": 990.0, "p99.9": 999.0, "max": 1000.0}
    assert set(scaling_figures.quantiles_ms(np.zeros(0)).values()) == {None}


def test_bins_are_whole_and_end_before_their_end() -> None:
    times = np.array([0.0, 0.05, 0.1, 0.25, 3 * 0.1, 0.34])
    begins, rates = scaling_figures.bins(times, (0.0, 0.35))
    assert begins.tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert rates.tolist() == [20.0, 10.0, 10.0]
    assert scaling_figures.lowest_bin(times, (0.0, 0.35)) == 10.0
    assert scaling_figures.lowest_bin(times, (0.0, 0.05)) is None


def test_quantiles_by_bin_leave_out_bins_in_which_nothing_was_due() -> None:
    middles, values = scaling_figures.bin_quantiles(
        np.array([0.01, 0.02, 0.35, 9.0]), np.array([1.0, 3.0, 5.0, 7.0]), (0.0, 1.0), 1.0
    )
    assert middles.tolist() == pytest.approx([0.05, 0.35])
    assert values.tolist() == [3.0, 5.0]


# Phases ----------------------------------------------------------------------------------------------------------


def step(**phases: int) -> dict[str, Any]:
    return {"phases_ms": phases}


def test_phases_are_laid_out_backwards_from_when_they_were_seen_to_be_over() -> None:
    steps = [(12.0, step(prepare=500, copy=250, switch=125, retire=125)), (12.5, step(prepare=125, switch=125))]
    assert scaling_figures.spans(10.0, 12.5, steps) == [
        Span(-1, "start", 10.0, 11.0),
        Span(0, "prepare", 11.0, 11.5),
        Span(0, "copy", 11.5, 11.75),
        Span(0, "switch", 11.75, 11.875),
        Span(0, "retire", 11.875, 12.0),
        Span(1, "prepare", 12.25, 12.375),
        Span(1, "switch", 12.375, 12.5),
    ]


def test_changes_seen_together_follow_each_other() -> None:
    steps = [(12.0, step(prepare=250)), (12.0, step(copy=500))]
    assert scaling_figures.spans(11.25, 12.0, steps) == [
        Span(0, "prepare", 11.25, 11.5),
        Span(1, "copy", 11.5, 12.0),
    ]


def test_a_change_counts_when_it_is_over_and_not_from_its_decision_on() -> None:
    over = [step(prepare=5, copy=70, switch=8, retire=0), step(prepare=5, copy=9, abort=3)]
    assert steps_over({"steps": [*over, step(prepare=4), step(prepare=4, copy=60, switch=7)]}) == over


def test_a_change_that_never_began_is_all_start() -> None:
    assert scaling_figures.spans(1.0, 2.0, []) == [Span(-1, "start", 1.0, 2.0)]


def test_seconds_by_phase_are_sums() -> None:
    total = scaling_figures.phases_s([step(prepare=10, copy=200), step(prepare=5, abort=1)])
    assert total == {"prepare": 0.015, "copy": 0.2, "abort": 0.001}


def test_shades_are_relative_and_leave_out_what_has_no_length() -> None:
    laid = [Span(-1, "start", 10.0, 11.0), Span(0, "copy", 11.0, 11.0), Span(0, "switch", 11.0, 11.5)]
    assert scaling_plot.shades(laid, 10.0) == [
        (0.0, 1.0, scaling_plot.SHADES["start"]),
        (1.0, 1.5, scaling_plot.SHADES["switch"]),
    ]


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    due = np.arange(100) / 50
    runs = [
        scaling_plot.Run(name, due, due + 0.01, 0.0, 0.5, 1.5, 2.0, [Span(0, "copy", 0.75, 1.25)])
        for name in ("waves", "stop_swap")
    ]
    scaling_plot.draw(runs, "a title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


# The oracle: subscriptions that last -----------------------------------------------------------------------------


def test_what_is_expected_is_what_the_filters_say() -> None:
    made = workloads.source("geofence", 300, 60, 1)
    conditions = list(made.conditions)
    publications = made.publications()
    # A box of 2 % matches too seldom for so few.
    conditions = [[one for one in each if one[0] in ("gas", "value")] for each in conditions]
    expected = scaling_oracle.expect(publications, [workloads.form(one) for one in conditions], 4)
    filters = [parse(workloads.text(one)) for one in conditions]
    assert expected.counts.shape == (60, 4)
    for place, publication in enumerate(publications):
        for client in range(4):
            wanted = [number for number, one in enumerate(filters[client::4]) if one.matches(publication)]
            cell = place * 4 + client
            assert expected.ids[expected.starts[cell] : expected.starts[cell + 1]].tolist() == wanted
    assert expected.counts.sum() > 1000


def log_of(rows: list[tuple[int, float, tuple[int, ...]]]) -> Log:
    """A log of (publication, time, ids)."""
    return Log(
        array("H", [number % PUBLISHERS for number, _, _ in rows]).tobytes(),
        array("Q", [number // PUBLISHERS + 1 for number, _, _ in rows]).tobytes(),
        array("d", [time for _, time, _ in rows]).tobytes(),
        array("I", [len(ids) for _, _, ids in rows]).tobytes(),
        array("I", [one for _, _, ids in rows for one in ids]).tobytes(),
    )


def rows_of(rows: list[tuple[int, float, tuple[int, ...]]]) -> Arrived:
    return scaling_oracle.arrived(log_of(rows), PUBLISHERS)


CLIENTS, DISTINCT, TOTAL = 2, 5, 23
MATCHES = [[(0, 3), (1,)], [(), (2, 4, 5)], [(1,), ()], [(0, 1, 2), (0,)], [(), ()]]
"""By distinct publication and client."""


def world() -> Expected:
    cells = [ids for row in MATCHES for ids in row]
    starts = np.cumsum([0, *(len(ids) for ids in cells)])
    return Expected(CLIENTS, starts, np.array([one for ids in cells for one in ids], np.int64))


def right(client: int) -> list[tuple[int, float, tuple[int, ...]]]:
    return [(n, float(n), MATCHES[n % DISTINCT][client]) for n in range(TOTAL) if MATCHES[n % DISTINCT][client]]


def verdict(rows: list[tuple[int, float, tuple[int, ...]]], client: int = 0) -> Verdict:
    return scaling_oracle.judge(rows_of(rows), client, world(), 0, TOTAL)


@pytest.mark.parametrize("client", range(CLIENTS))
def test_what_is_right_is_found_right(client: int) -> None:
    assert verdict(right(client), client) == Verdict()


def test_publishers_may_overtake_each_other() -> None:
    rows = right(0)
    rows.sort(key=lambda row: (row[0] % PUBLISHERS, row[0]))
    assert verdict(rows) == Verdict()


def test_each_kind_of_mistake_is_counted() -> None:
    rows = right(0)
    assert verdict(rows[:3] + rows[5:]) == Verdict(lost=2)
    assert verdict([*rows[:4], rows[3], *rows[4:]]) == Verdict(doubled=1)
    # Publications 0 and 3 are of one publisher.
    assert [row[0] for row in rows[:3]] == [0, 2, 3]
    assert verdict([rows[2], rows[1], rows[0], *rows[3:]]) == Verdict(out_of_order=1)
    number, time, ids = rows[2]
    assert ids == (0, 1, 2)
    for wrong in ((0, 1), (0, 1, 3), (0, 1, 2, 3)):
        assert verdict([*rows[:2], (number, time, wrong), *rows[3:]]) == Verdict(differences=1)
    assert verdict([*rows, (21, 99.0, (7,))]) == Verdict(differences=1)  # matches nothing of this client


def test_random_mistakes_are_counted_exactly() -> None:
    rng = random.Random(2)
    for _ in range(50):
        client = rng.randrange(CLIENTS)
        rows: list[tuple[int, float, tuple[int, ...]]] = []
        wanted = Verdict()
        for number, time, ids in right(client):
            fate = rng.randrange(5)
            if fate == 0:
                wanted.lost += 1
            elif fate == 1:
                rows += [(number, time, ids), (number, time, ids)]
                wanted.doubled += 1
            elif fate == 2:
                rows.append((number, time, (*ids[:-1], ids[-1] + 1)))
                wanted.differences += 1
            else:
                rows.append((number, time, ids))
        assert verdict(rows, client) == wanted


def test_windows_of_publications_share_out_the_verdict() -> None:
    rows = right(0)
    del rows[-1]
    parts = [scaling_oracle.judge(rows_of(rows), 0, world(), *window) for window in ((0, 9), (9, 15), (15, TOTAL))]
    assert [part.lost for part in parts] == [0, 0, 1]
    assert all(part.differences == 0 for part in parts)


def test_strangers_are_publications_or_subscriptions_that_never_were() -> None:
    rows = rows_of([(0, 0.0, (1, 2)), (5, 0.0, (1, 9)), (TOTAL, 0.0, (1,))])
    assert scaling_oracle.strangers(rows, TOTAL, np.array([1, 2])) == 2
    unknown = Log(array("H", [0xFFFF]).tobytes(), array("Q", [1]).tobytes(), bytes(8), array("I", [0]).tobytes(), b"")
    assert scaling_oracle.strangers(scaling_oracle.arrived(unknown, PUBLISHERS), TOTAL, np.array([1])) == 1


# The oracle: subscriptions that come and go ----------------------------------------------------------------------


def test_a_publication_is_matched_by_when_it_or_a_later_one_arrives() -> None:
    logs = [rows_of([(0, 5.0, (1,)), (6, 7.0, (1,))]), rows_of([(6, 6.5, (1,)), (4, 9.0, (1,))])]
    found = scaling_oracle.matched_by(logs, 9, PUBLISHERS)
    assert found.tolist() == [5.0, 9.0, INFINITE, 6.5, 9.0, INFINITE, 6.5, INFINITE, INFINITE]


def life(number: int, asked: float, acked: float, closing: float, closed: float) -> tuple[Any, ...]:
    return 0, 0, number, asked, asked, acked, closing, closed


def lives_of(*rows: tuple[Any, ...]) -> Churned:
    kinds = "HIqddddd"
    columns = [array(kind, [row[place] for row in rows]).tobytes() for place, kind in enumerate(kinds)]
    return scaling_oracle.churned(Lives(*columns))


def judged(
    lives: Churned, rows: list[tuple[int, float, tuple[int, ...]]], window: tuple[float, float] = (-1.0, 100.0)
) -> Verdict:
    """Publication n is handed over at n and matched at n + 0.5; filter 0 matches all but each fifth one."""
    handed = np.arange(TOTAL, dtype=np.float64)
    matches = [np.array([0, 1, 2, 3])]
    return scaling_oracle.judge_churned(lives, [rows_of(rows)], matches, DISTINCT, handed, handed + 0.5, window)


def got(numbers: list[int], id: int = 7) -> list[tuple[int, float, tuple[int, ...]]]:
    return [(number, number + 0.5, (id,)) for number in numbers]


LIFE = life(7, asked=2.0, acked=5.2, closing=12.2, closed=15.2)
"""Publications 2 to 5 may come, 6 to 11 must, 12 to 15 may, and no other; of 4, 9, 14 nothing matches."""


def test_a_churned_subscription_gets_what_it_must() -> None:
    lives = lives_of(LIFE)
    assert judged(lives, got([6, 7, 8, 10, 11])) == Verdict(required=5)
    assert judged(lives, got([6, 8, 11])) == Verdict(required=5, lost=2)


def test_what_is_under_way_at_either_end_is_left_open() -> None:
    lives = lives_of(LIFE)
    assert judged(lives, got([2, 3, 5, 6, 7, 8, 10, 11, 12, 15])) == Verdict(required=5)


def test_a_churned_subscription_gets_nothing_before_and_after_it() -> None:
    lives = lives_of(LIFE)
    must = [6, 7, 8, 10, 11]
    assert judged(lives, got([1, *must])) == Verdict(required=5, differences=1)
    assert judged(lives, got([*must, 16, 17])) == Verdict(required=5, differences=2)
    assert judged(lives, got([6, 7, 8, 9, 10, 11])) == Verdict(required=5, differences=1)  # 9 does not match
    assert judged(lives, got([*must, TOTAL + 1])) == Verdict(required=5, differences=1)  # was never made


def test_what_is_not_known_to_have_been_matched_in_time_is_left_open() -> None:
    lives = lives_of(LIFE)
    handed = np.arange(TOTAL, dtype=np.float64)
    matched = handed + 0.5
    matched[11] = INFINITE
    found = scaling_oracle.judge_churned(
        lives, [rows_of(got([6, 7, 8, 10]))], [np.arange(4)], DISTINCT, handed, matched
    )
    assert found == Verdict(required=4)


def test_without_an_answer_nothing_is_required() -> None:
    lives = lives_of(life(-1, 2.0, INFINITE, INFINITE, INFINITE))
    assert judged(lives, []) == Verdict()


def test_doubles_and_order_are_counted_for_churned_subscriptions_too() -> None:
    lives = lives_of(LIFE)
    assert judged(lives, got([6, 7, 8, 8, 10, 11])) == Verdict(required=5, doubled=1)
    assert judged(lives, got([6, 7, 11, 8, 10])) == Verdict(required=5, out_of_order=1)


def test_lives_are_shared_out_by_when_they_were_asked_for() -> None:
    lives = lives_of(LIFE, life(8, 10.0, 10.2, 14.2, 15.0))
    rows = got([6, 7, 8, 10]) + got([11, 12, 13], id=8)  # the first one lacks 11
    assert judged(lives, rows, (0.0, 10.0)) == Verdict(required=5, lost=1)
    assert judged(lives, rows, (10.0, 20.0)) == Verdict(required=3)


# Figures of a change, tables, command line -----------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    return scaling._parser().parse_args(["--subscriptions", "12", "--clients", "2", "--publishers", "3"])


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    from bench.scaling_run import Material

    due = np.arange(TOTAL, dtype=np.float64)
    traffic = Traffic(
        due=due,
        handed=due,
        logs=[rows_of([(n, time + 0.25, ids) for n, time, ids in right(client)]) for client in range(CLIENTS)],
        churn_logs=[rows_of(got([6, 7, 8, 10, 11], id=7))],
        lives=lives_of(LIFE),
        trouble=[],
        subscribe_s=0.5,
    )
    material = Material([{}] * DISTINCT, [], [], world(), [np.array([0, 1, 2, 3])])
    operation = {"state": "done", "reason": None, "duration_ms": 9000}
    operation |= {"groups_moved": 3, "groups_minimum": 3, "entries": 4, "bytes": 5000}
    seen = Observed(Change("matchers 1->3"), 1.0, 8.0, 17.0, 22.0, operation, [(17.0, step(prepare=4000, copy=1000))])
    (found,) = scaling_report.all_figures(parsed(), material, traffic, [seen], "waves")
    return found


def test_figures_have_the_keys_of_the_specification(figures: dict[str, Any]) -> None:
    wanted = (
        "delay_before_ms delay_during_ms longest_gap_ms parked_publications_max parked_subscriptions_max "
        "subscribe_ack_ms groups_moved groups_minimum duration_s phases_s lost doubled out_of_order oracle_differences"
    )
    assert set(wanted.split()) <= set(figures)
    assert figures["delay_before_ms"] == {"p50": 250.0, "p99": 250.0, "p99.9": 250.0, "max": 250.0}
    assert figures["longest_gap_ms"] == 250.0
    assert figures["subscribe_ack_before_ms"]["max"] == 3200.0
    assert figures["subscribe_ack_ms"]["max"] is None  # none was due in the change
    assert (figures["duration_s"], figures["start_s"], figures["moving_s"]) == (9.0, 4.0, 5.0)
    assert figures["delay_start_ms"]["max"] == figures["delay_moving_ms"]["max"] == 250.0
    assert figures["phases_s"] == {"prepare": 4.0, "copy": 1.0}
    assert figures["churned_required"] == 5
    assert not scaling_report.failed(figures)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 1) for name in ("lost", "doubled", "out_of_order", "oracle_differences", "unanswered")),
        ("trouble", ["x"]),
        ("state", "aborted"),
    ],
)
def test_what_counts_as_failed(figures: dict[str, Any], name: str, value: Any) -> None:
    assert scaling_report.failed(figures | {name: value})


def test_what_is_wrong_when_all_clients_have_gone_is_said() -> None:
    members = [{"counters": {"subscriptions": 0}}, {"counters": None}, {}]
    status: dict[str, Any] = {"members": members, "recoveries": [], "recovery": None}
    assert afterwards(status) == []
    status["recoveries"] = [{"replaced": ["matcher 0", "matcher 1"]}]
    status["recovery"] = {"replaced": ["matcher 0"]}
    members[0] = {"counters": {"subscriptions": 7}}
    wrong = ["taken for dead: matcher 0, matcher 1", "taken for dead: matcher 0", "7 subscriptions are left"]
    assert afterwards(status) == wrong


def test_what_others_print_is_not_among_the_json(
    figures: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray does, where a process is ended: who reads the result would find none."""

    async def drive(*arguments: Any) -> tuple[None, list[Observed]]:
        print("a worker died")
        return None, [Observed(Change("matchers 1->3"), 0.0)]

    monkeypatch.setattr(scaling, "drive", drive)
    monkeypatch.setattr(scaling, "make_material", lambda options: None)
    monkeypatch.setattr(scaling, "all_figures", lambda *arguments: [figures])
    monkeypatch.setattr(scaling, "deliveries", lambda traffic: None)
    assert scaling.main(["--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(json.dumps(figures))
    assert "a worker died" in err


def test_tables_show_the_figures(figures: dict[str, Any]) -> None:
    heading, rule, line = scaling_matrix.table([figures]).splitlines()
    assert heading.count("|") == rule.count("|") == line.count("|") == len(scaling_matrix.COLUMNS) + 1
    assert "| matchers 1->3 | 12 | done | 250 / 250 | 250 / 250 | 250 / 250 |" in line
    assert line.endswith("| 0 |")
    text = scaling_matrix.comparison([figures, figures | {"strategy": "stop_swap", "lost": 3}])
    assert text.splitlines()[0].split() == ["waves", "stop_swap"]
    assert ["lost", "0", "3"] in [one.split() for one in text.splitlines()]
    assert ["phases_s", "prepare", "4", "4"] in [one.split() for one in text.splitlines()]


def test_the_matrix_ends_each_change_where_the_next_begins() -> None:
    present = dict(scaling_matrix.START)
    for change in scaling_matrix.CHANGES:
        words = change.name.split()
        if "->" in words[-1]:
            before, after = (int(one) for one in words[-1].split("->"))
            for layer, count in change.wish.items():
                assert present[layer] == before, change.name
                assert count == after, change.name
        present |= change.wish


def test_slices_are_three_or_four_numbers() -> None:
    names = ("connection_points", "access_points", "matchers", "exit_points")
    assert tuple(scaling.slices("1-3-2").items()) == tuple(zip(names, (1, 1, 3, 2), strict=True))
    assert tuple(scaling.slices("2-1-3-2").values()) == (2, 1, 3, 2)
    for wrong in ("1-3", "0-1-1", "1-2-3-4-5", "a-b-c", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            scaling.slices(wrong)


def test_a_change_is_the_difference() -> None:
    options = parsed()
    change = scaling.change_of(options)
    assert (change.name, change.wish, change.replace) == ("matchers 1->3", {"matchers": 3}, None)
    options.goal = options.start
    with pytest.raises(SystemExit):
        scaling.change_of(options)
    options.replace = "matcher"
    assert scaling.change_of(options).replace == "matcher"
