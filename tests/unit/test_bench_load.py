"""The benchmarks of overload and of slow subscribers: their figures, without a cluster."""

from __future__ import annotations

import argparse
import math
from array import array

import numpy as np
import pytest

from bench import herd, overload, slow, workloads
from bench.load import Log
from bench.overload_load import Batches, Phase
from bench.scaling_oracle import expect
from bench.slow import Part


def batches(rows: list[tuple[int, int, int, float, float]]) -> Batches:
    """From rows of (publisher, first round, count, due, acknowledged)."""
    columns = zip(*rows, strict=True)
    return Batches(*(array(code, values).tobytes() for code, values in zip("HQIdd", columns, strict=True)))


def test_batches_of_each_publisher_become_publications_by_number() -> None:
    # Two publishers; rounds 0 and 1 together, then round 2; publisher 1's last one was never acknowledged.
    rows = [(0, 0, 2, 1.0, 1.5), (1, 0, 2, 1.0, 1.75), (0, 2, 1, 2.0, 2.5), (1, 2, 1, 2.0, math.inf)]
    due, acknowledged = overload.acknowledgements(batches(rows), 2, 6)
    assert due.tolist() == [1, 1, 1, 1, 2, 2]
    assert acknowledged.tolist() == [1.5, 1.75, 1.5, 1.75, 2.5, math.inf]


@pytest.mark.parametrize(
    ("delays", "normal"),
    [
        ([0.01, 0.01, 0.01, 0.01], 0.0),
        ([0.5, 0.5, 0.01, 0.01], 2.0),
        ([0.5, 0.01, 0.5, 0.01], 3.0),
        ([0.01, 0.01, 0.01, 0.5], None),
        ([0.01, math.inf, 0.01, 0.01], 2.0),
        ([0.029, 0.031, 0.01, 0.01], 2.0),  # 20 ms more than the calm 10
    ],
)
def test_it_is_normal_when_every_further_second_is(delays: list[float], normal: float | None) -> None:
    due = np.arange(400) / 100 + 10.0
    acknowledged = due + np.repeat(delays, 100)
    phase = Phase("after", 100.0, 4.0, begin=10.0, end=14.001)
    assert overload.normal_after_s(due, acknowledged, phase, 10.0) == normal


def test_sizes_are_compared_from_half_to_half_of_the_overload() -> None:
    calm = Phase("calm", 1.0, 10.0, begin=0.0, end=10.0)
    over = Phase("overload", 1.0, 10.0, begin=10.0, end=20.0)
    samples: overload.Samples = [
        (when, {"matcher 0": 100.0 + when, "exit_point 0": 50.0 + 10 * max(when - 15, 0)}) for when in range(25)
    ]
    found, growth, bounded = overload.sizes(samples, calm, over)
    assert found["matcher 0"] == {"calm": 110.0, "first_half": 114.0, "second_half": 119.0, "end": 124.0}
    assert found["exit_point 0"] == {"calm": 50.0, "first_half": 50.0, "second_half": 90.0, "end": 140.0}
    assert (growth, bounded) == (40.0, False)
    assert overload.sizes([(when, {"matcher 0": size["matcher 0"]}) for when, size in samples], calm, over)[2]


def part(
    slow_ones: list[tuple[dict[str, bytes], dict[str, int], int]],
    logs: list[Log] | None = None,
    cpu_s: dict[str, float] | None = None,
) -> Part:
    due = np.arange(4.0)
    return Part(due, due, logs or [], slow_ones, [], {}, cpu_s or {})


def got(*sequences: int) -> bytes:
    return array("Q", sequences).tobytes()


def test_what_a_slow_one_neither_got_nor_was_told_about_is_counted() -> None:
    everything = {"publisher-0": got(1, 2), "publisher-1": got(1, 2)}
    some = {"publisher-0": got(1), "publisher-1": got(2)}
    assert slow.books(part([(everything, {}, 0)]), 2) == (0, 0, 0)
    assert slow.books(part([(some, {"drop_oldest": 2}, 0)]), 2) == (0, 0, 2)
    assert slow.books(part([(some, {"drop_oldest": 1}, 0), (everything, {}, 0)]), 2) == (1, 0, 1)
    assert slow.books(part([({**everything, "publisher-0": got(1, 2, 2)}, {}, 0)]), 2) == (0, 1, 0)
    assert slow.books(part([(everything, {"drop_oldest": 1}, 0)]), 2) == (1, 0, 1), "told of one that came"


def log(*arrivals: float) -> Log:
    """One subscriber's, of publications 0, 1 ... of two publishers."""
    places = range(len(arrivals))
    return Log(
        array("H", [place % 2 for place in places]).tobytes(),
        array("Q", [place // 2 + 1 for place in places]).tobytes(),
        array("d", arrivals).tobytes(),
        array("I", [1] * len(arrivals)).tobytes(),
        array("I", [0] * len(arrivals)).tobytes(),
    )


def options(**changed: float) -> argparse.Namespace:
    values = {"clients": 3, "policy": "drop_oldest", "rate": 1.0, "seconds": 24.0, "rounds": 3, "publishers": 2}
    return argparse.Namespace(**values | {"subscriptions": 1, "seed": 1, "window": 1, "queue": 1} | changed)


def test_rounds_are_compared_by_their_medians_and_counted_together() -> None:
    everything = {"publisher-0": got(1, 2), "publisher-1": got(1, 2)}
    some = {"publisher-0": got(1), "publisher-1": got(1)}
    # One in each load comes late; of what is due before the queues are full, after 2 s, none counts.
    without = [
        part([(everything, {}, 0)], [log(9.0, 9.0, 2.0 + late, 3.0 + late)], {"connection_point 0": 0.0001})
        for late in (0.5, 0.01, 0.02)
    ]
    slowed = [
        part(
            [(some, {"drop_oldest": told}, 0)], [log(0.0, 1.0, 2.0 + late, 3.0 + late)], {"connection_point 0": 0.0002}
        )
        for late, told in ((0.03, 2), (0.9, 2), (0.01, 1))
    ]
    expected = expect([{"a": 1}], [workloads.form([("a", "==", 1, None)])], 1)
    found = slow.figures(options(), 1, {"without": without, "with": slowed}, expected)
    assert found["p99_without_ms"] == pytest.approx([500, 10, 20])
    assert found["p99_with_ms"] == pytest.approx([30, 900, 10])
    assert found["p99_ratio"] == 1.5
    assert (found["untold"], found["lost"], found["doubled"], found["oracle_differences"]) == (1, 0, 0, 0)
    assert found["dropped"] == {"drop_oldest": 5}
    assert found["cpu_s"] == {"without": {"connection_point 0": 0.0}, "with": {"connection_point 0": 0.0}}
    assert (
        slow.seconds_of("connection_point", {"connection_point 0": 1.5, "connection_point 1": 1, "matcher 0": 9}) == 2.5
    )


def test_a_load_must_last_longer_than_it_takes_to_fill_the_queues() -> None:
    assert slow.load_s(options()) == 4.0
    assert slow.full_s(options(window=256, queue=512, rate=500.0)) == 1.536
    with pytest.raises(SystemExit, match=r"a load lasts 2 s, and the slow ones' queues are full after 1.536 s: more"):
        slow.main(["--seconds", "12"])
    with pytest.raises(SystemExit, match="--rounds, --window and --queue are at least 1"):
        slow.main(["--rounds", "0"])


@pytest.mark.parametrize("module", [herd, overload, slow])
def test_a_command_line_without_sense_is_refused(module: object) -> None:
    with pytest.raises(SystemExit):
        module.main(["--clients", "0"])  # type: ignore[attr-defined]
