"""The benchmarks of overload and of slow subscribers: their figures, without a cluster."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest

from bench import herd, overload, slow
from bench.overload_load import Batches, Phase
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


def part(slow_ones: list[tuple[dict[str, bytes], dict[str, int], int]]) -> Part:
    due = np.arange(4.0)
    return Part(due, due, [], slow_ones, [], {})


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


@pytest.mark.parametrize("module", [herd, overload, slow])
def test_a_command_line_without_sense_is_refused(module: object) -> None:
    with pytest.raises(SystemExit):
        module.main(["--clients", "0"])  # type: ignore[attr-defined]
