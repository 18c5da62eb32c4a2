"""A filter over Arrow batches of matched output: the rows for which it is true, as the matcher would say.

The attributes of a row lie in four maps by type, and the null ones in a list. What a predicate comes to depends on the
attribute's kind and value alone, so the oracle itself (`cluster.language.evaluate`) is asked once for each distinct
thing: absent, null, true, false, each distinct string of the batch, each distinct place. Numbers alone are compared
here, column by column and exactly: a float with an integer of the filter by way of the doubles on both sides of it, an
integer (128-bit decimals in the file, of which 64 bits and the sign are used) with a float by way of its floor and
ceiling.

A result is two columns, true and false; a row that is in neither is unknown (Kleene).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.language import geo
from cluster.language.evaluate import evaluate
from cluster.language.tree import (
    And,
    Comparison,
    IsNotTrue,
    Membership,
    NearPoint,
    Not,
    Or,
    Predicate,
    Range,
    Scalar,
    Tree,
    WithinBox,
)

COLUMNS = ("numbers", "integers", "strings", "flags", "nulls")
"""The columns that evaluation needs."""

Rows = npt.NDArray[np.int64]
Truth = npt.NDArray[np.bool_]

_LOWEST = -(2**63)
_HIGHEST = 2**64 - 1
_MASK = 2**64 - 1


class Kleene(NamedTuple):
    """Which rows are true, and which are false."""

    true: Truth
    false: Truth


@dataclass(slots=True)
class _Attribute:
    """One attribute in a batch: in which rows it is of each kind, ascending, and its values there."""

    floats: Rows
    float_values: npt.NDArray[np.float64]
    integers: Rows
    negative: Truth
    low: npt.NDArray[np.uint64]  # the integers modulo 2**64
    strings: Rows
    string_codes: npt.NDArray[np.int64]
    string_values: list[str]
    flags: Rows
    flag_values: Truth
    nulls: Rows
    absent: Rows


@dataclass(slots=True)
class _Entries:
    """A map or list column: the row and the code of the name of each entry, and where its values begin."""

    rows: Rows
    codes: npt.NDArray[np.int64]
    names: dict[str, int]
    begin: int
    values: Any = None

    def of(self, name: str) -> npt.NDArray[np.int64]:
        """Return the entries of this name, rows ascending."""
        code = self.names.get(name)
        return np.flatnonzero(self.codes == code) if code is not None else np.empty(0, np.int64)


def true_rows(tree: Tree, batch: pa.RecordBatch) -> Truth:
    """Return for each row whether the filter is true; equals `evaluate(tree, attributes_of(row)) is True`.

    batch: has the COLUMNS of cluster.output.schema.SCHEMA, and any others.
    """
    return _Batch(batch).result(tree).true


@dataclass(slots=True)
class _Batch:
    batch: pa.RecordBatch
    entries: dict[str, _Entries] = field(default_factory=dict)
    attributes: dict[str, _Attribute] = field(default_factory=dict)

    def result(self, tree: Tree) -> Kleene:
        if isinstance(tree, And):
            parts = [self.result(operand) for operand in tree.operands]
            return Kleene(
                np.logical_and.reduce([part.true for part in parts]),
                np.logical_or.reduce([part.false for part in parts]),
            )
        if isinstance(tree, Or):
            parts = [self.result(operand) for operand in tree.operands]
            return Kleene(
                np.logical_or.reduce([part.true for part in parts]),
                np.logical_and.reduce([part.false for part in parts]),
            )
        if isinstance(tree, Not):
            inner = self.result(tree.operand)
            return Kleene(inner.false, inner.true)
        if isinstance(tree, IsNotTrue):
            true = self.result(tree.operand).true
            return Kleene(~true, true)
        if isinstance(tree, WithinBox | NearPoint):
            return self._place(tree)
        return self._one(tree, self.attribute(tree.attribute))

    def _nothing(self) -> Kleene:
        count = self.batch.num_rows
        return Kleene(np.zeros(count, np.bool_), np.zeros(count, np.bool_))

    def _one(self, predicate: Predicate, attribute: _Attribute) -> Kleene:
        """Evaluate a predicate on one attribute."""
        assert not isinstance(predicate, WithinBox | NearPoint)
        name = predicate.attribute
        found = self._nothing()

        def put(rows: Rows, outcome: bool | None) -> None:
            if outcome is not None:
                (found.true if outcome else found.false)[rows] = True

        put(attribute.absent, evaluate(predicate, {}))
        put(attribute.nulls, evaluate(predicate, {name: None}))
        for flag in (True, False):
            put(attribute.flags[attribute.flag_values == flag], evaluate(predicate, {name: flag}))
        outcomes = [evaluate(predicate, {name: text}) for text in attribute.string_values]
        for outcome in (True, False):
            wanted = np.array([one is outcome for one in outcomes], np.bool_)
            if wanted.any():
                put(attribute.strings[wanted[attribute.string_codes]], outcome)
        if isinstance(predicate, Comparison | Range | Membership):
            for rows, holds in (
                (attribute.floats, _floats_hold(predicate, attribute.float_values)),
                (attribute.integers, _integers_hold(predicate, attribute.negative, attribute.low)),
            ):
                if holds is not None:
                    found.true[rows] = holds
                    found.false[rows] = ~holds
        else:
            # Tests of kind and of strings do not look at a number's value.
            any_number = evaluate(predicate, {name: 0})
            put(attribute.floats, any_number)
            put(attribute.integers, any_number)
        return found

    def _place(self, predicate: WithinBox | NearPoint) -> Kleene:
        """Evaluate a box or a circle once for each distinct place; unknown where a coordinate is no number."""
        found = self._nothing()
        latitudes, longitudes = self._doubles(predicate.latitude), self._doubles(predicate.longitude)
        rows = np.flatnonzero(~(np.isnan(latitudes) | np.isnan(longitudes)))
        places, which = np.unique(latitudes[rows] + 1j * longitudes[rows], return_inverse=True)
        inside = np.array([_is_inside(predicate, place.real, place.imag) for place in places.tolist()], np.bool_)
        found.true[rows] = inside[which]
        found.false[rows] = ~inside[which]
        return found

    def _doubles(self, name: str) -> npt.NDArray[np.float64]:
        """Return the attribute's numbers as doubles, NaN where it is none: exact wherever it can be a coordinate."""
        attribute = self.attribute(name)
        doubles = np.full(self.batch.num_rows, np.nan)
        doubles[attribute.floats] = attribute.float_values
        signed = attribute.low.view(np.int64).astype(np.float64)
        doubles[attribute.integers] = np.where(attribute.negative, signed, attribute.low.astype(np.float64))
        return doubles

    def attribute(self, name: str) -> _Attribute:
        """Return where an attribute is and what it is there."""
        if name not in self.attributes:
            self.attributes[name] = self._attribute(name)
        return self.attributes[name]

    def _attribute(self, name: str) -> _Attribute:
        all_of = {column: self._entries(column) for column in COLUMNS}
        at = {column: entries.of(name) for column, entries in all_of.items()}
        numbers, integers, strings, flags = (all_of[column] for column in COLUMNS[:4])
        taken = strings.values.take(pa.array(at["strings"] + strings.begin)).dictionary_encode()
        halves = _halves(integers.values)[at["integers"] + integers.begin]
        present = np.zeros(self.batch.num_rows, np.bool_)
        rows = {}
        for column, entries in all_of.items():
            rows[column] = entries.rows[at[column]]
            present[rows[column]] = True
        return _Attribute(
            floats=rows["numbers"],
            float_values=numbers.values.to_numpy(zero_copy_only=False)[at["numbers"] + numbers.begin],
            integers=rows["integers"],
            negative=halves[:, 1] != 0,
            low=np.ascontiguousarray(halves[:, 0]),
            strings=rows["strings"],
            string_codes=taken.indices.to_numpy(zero_copy_only=False).astype(np.int64),
            string_values=taken.dictionary.to_pylist(),
            flags=rows["flags"],
            flag_values=flags.values.to_numpy(zero_copy_only=False)[at["flags"] + flags.begin],
            nulls=rows["nulls"],
            absent=np.flatnonzero(~present),
        )

    def _entries(self, column: str) -> _Entries:
        if column not in self.entries:
            self.entries[column] = _entries_of(self.batch.column(column))
        return self.entries[column]


def _entries_of(column: Any) -> _Entries:
    # The children of a slice are whole; only its offsets say which part is its own.
    begins = column.offsets.to_numpy()
    begin, end = int(begins[0]), int(begins[-1])
    is_map = pa.types.is_map(column.type)
    names = (column.keys if is_map else column.values).slice(begin, end - begin).dictionary_encode()
    return _Entries(
        rows=np.repeat(np.arange(len(column), dtype=np.int64), np.diff(begins)),
        codes=names.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        names={name: code for code, name in enumerate(names.dictionary.to_pylist())},
        begin=begin,
        values=column.items if is_map else None,
    )


def _halves(decimals: Any) -> npt.NDArray[np.uint64]:
    """Return 128-bit decimals of scale 0 as (low, high) pairs."""
    count = len(decimals)
    if not count:
        return np.empty((0, 2), np.uint64)
    pairs = np.frombuffer(decimals.buffers()[1], dtype="<u8", count=2 * (decimals.offset + count))
    return pairs.reshape(-1, 2)[decimals.offset :]


def _is_inside(predicate: WithinBox | NearPoint, latitude: float, longitude: float) -> bool:
    if isinstance(predicate, WithinBox):
        return geo.is_within(latitude, longitude, predicate.south, predicate.west, predicate.north, predicate.east)
    return geo.is_near(latitude, longitude, predicate.centre_latitude, predicate.centre_longitude, predicate.metres)


def _is_number(value: Scalar) -> bool:
    return type(value) is int or type(value) is float


def _parts(predicate: Comparison | Range | Membership) -> list[tuple[str, int | float]] | None:
    """Return the comparisons with numbers that a predicate comes to, None if it speaks of other kinds.

    A range is both of two, a membership any of its equalities.
    """
    if isinstance(predicate, Comparison):
        pairs: list[tuple[str, Scalar]] = [(predicate.operator, predicate.value)]
    elif isinstance(predicate, Range):
        pairs = [(">=", predicate.low), ("<=", predicate.high)]
    else:
        pairs = [("==", value) for value in predicate.values]
    numeric = [(operator, value) for operator, value in pairs if isinstance(value, int | float) and _is_number(value)]
    return numeric or None


def _join(predicate: Comparison | Range | Membership, results: list[Truth]) -> Truth:
    join = np.logical_or if isinstance(predicate, Membership) else np.logical_and
    joined: Truth = join.reduce(results)
    return joined


def _floats_hold(predicate: Comparison | Range | Membership, values: npt.NDArray[np.float64]) -> Truth | None:
    """Return where the predicate holds for floats; None: it is unknown for any number."""
    parts = _parts(predicate)
    return None if parts is None else _join(predicate, [_float(values, *part) for part in parts])


def _float(values: npt.NDArray[np.float64], operator: str, bound: int | float) -> Truth:
    below, above = _doubles_around(bound)
    if operator == "<":
        return values < above
    if operator == "<=":
        return values <= below
    if operator == ">":
        return values > below
    if operator == ">=":
        return values >= above
    equal = values == below if below == above else np.zeros(len(values), np.bool_)
    return equal if operator == "==" else ~equal


def _doubles_around(bound: int | float) -> tuple[float, float]:
    """Return the greatest double at most the bound, and the least that is at least it."""
    nearest = float(bound)
    if nearest == bound:
        return nearest, nearest
    if nearest < bound:
        return nearest, math.nextafter(nearest, math.inf)
    return math.nextafter(nearest, -math.inf), nearest


def _integers_hold(
    predicate: Comparison | Range | Membership, negative: Truth, low: npt.NDArray[np.uint64]
) -> Truth | None:
    """Return where the predicate holds for integers; None: it is unknown for any number."""
    parts = _parts(predicate)
    return None if parts is None else _join(predicate, [_integer(negative, low, *part) for part in parts])


def _integer(negative: Truth, low: npt.NDArray[np.uint64], operator: str, bound: int | float) -> Truth:
    floor, ceiling = math.floor(bound), math.ceil(bound)
    if operator == "<":
        return _at_most(negative, low, ceiling - 1)
    if operator == "<=":
        return _at_most(negative, low, floor)
    if operator == ">":
        return ~_at_most(negative, low, floor)
    if operator == ">=":
        return ~_at_most(negative, low, ceiling - 1)
    if floor == ceiling:
        equal = _at_most(negative, low, floor) & ~_at_most(negative, low, floor - 1)
    else:
        equal = np.zeros(len(low), np.bool_)
    return equal if operator == "==" else ~equal


def _at_most(negative: Truth, low: npt.NDArray[np.uint64], bound: int) -> Truth:
    """Return which integers are at most the bound. Among those of one sign, the low halves are in their order."""
    if bound >= _HIGHEST:
        return np.ones(len(low), np.bool_)
    if bound < _LOWEST:
        return np.zeros(len(low), np.bool_)
    holds: Truth = low <= np.uint64(bound & _MASK)
    return negative & holds if bound < 0 else negative | holds
