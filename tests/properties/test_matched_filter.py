"""A filter over Arrow batches of matched output and the oracle, on random filters and rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from cluster.language.filter import Filter, parse
from cluster.output.rows import attributes_of, table_of
from cluster.spark.evaluate import true_rows
from tests.properties.test_language import filters, near_values, random_attributes
from tests.spark.rows import make_row

Attributes = dict[str, bool | int | float | str | None]


def batch_of(all_attributes: list[Attributes]) -> pa.RecordBatch:
    rows = [make_row(number, attributes)._replace(offset=number) for number, attributes in enumerate(all_attributes)]
    return table_of(0, rows).combine_chunks().to_batches()[0]


def agree(filter: Filter, batch: pa.RecordBatch, all_attributes: list[Attributes]) -> None:
    found = true_rows(filter.tree, batch)
    for attributes, matched in zip(all_attributes, found.tolist(), strict=True):
        assert matched is filter.matches(attributes), f"{filter} on {attributes}"


@pytest.mark.parametrize("seed", range(6))
def test_equal_to_the_oracle(seed: int) -> None:
    rng = random.Random(f"rows-{seed}")
    for filter in filters(seed, 150, levels=1 + seed % 3):
        form = filter.normal_form
        drawn = [near_values(form, rng) if rng.random() < 0.7 else random_attributes(rng) for _ in range(40)]
        found: list[Attributes] = drawn  # type: ignore[assignment]
        whole = batch_of(found)
        agree(filter, whole, found)
        begin, end = sorted(rng.sample(range(41), 2))
        agree(filter, whole.slice(begin, end - begin), found[begin:end])


def test_attributes_come_back_as_they_were() -> None:
    rng = random.Random(7)
    drawn = [random_attributes(rng) for _ in range(500)]
    for attributes, row in zip(drawn, batch_of(drawn).to_pylist(), strict=True):  # type: ignore[arg-type]
        assert {name: (type(value), value) for name, value in attributes_of(row).items()} == {
            name: (type(value), value) for name, value in attributes.items()
        }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a == 9007199254740993", [False, True, False, False]),
        ("a > 9007199254740992.0", [False, True, False, False]),
        ("a <= 9007199254740992", [True, False, True, True]),
        ("a == 0", [False, False, False, True]),
        ("a != 9007199254740993", [True, False, True, True]),
        ("a in (9007199254740993, 0.0)", [False, True, False, True]),
    ],
)
def test_integers_beyond_doubles(text: str, expected: list[bool]) -> None:
    values: list[Attributes] = [{"a": 2**53}, {"a": 2**53 + 1}, {"a": 2.0**53}, {"a": -0.0}]
    assert true_rows(parse(text).tree, batch_of(values)).tolist() == expected


def test_no_rows_at_all() -> None:
    empty = batch_of([{"a": 1}]).slice(0, 0)
    assert true_rows(parse("a > 1 or b == 'x' or near(a, b, 0, 0, 5)").tree, empty).tolist() == []
