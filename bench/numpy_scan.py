"""The honest brute force: every subscription is looked at for every publication, by vector operations over columns.

Each attribute has up to three columns over the conjunctions: a low and a high bound, and the number of the
one value that it must equal. Patterns are evaluated once per distinct value (and remembered), then spread
over the rows that have them. What is left (kinds, negations, places, integers beyond 2**53) is checked row by
row among the rows that hold so far.

Rows are sorted by (client, subscription), so that `flatnonzero` gives hits in their final order. Publications
are decoded beforehand and outside of what is timed; scratch arrays are used again. It keeps its subscriptions
sorted only while it
matches: adding after a match builds the columns anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cluster.language.holds import conjunction_holds
from cluster.language.normal import Conjunction, Interval, Member, NormalForm, Pattern
from cluster.language.patterns import string_test
from cluster.matching import Batch, Hits

Attributes = dict[str, bool | int | float | str | None]
_EXACT_UP_TO = 2**53
_REMEMBERED = 10_000


@dataclass
class _Column:
    """One attribute. low, high: bounds, infinite for none. value: number of the value to equal, 0 for any."""

    low: npt.NDArray[np.float64] | None = None
    high: npt.NDArray[np.float64] | None = None
    ranged: npt.NDArray[np.bool_] | None = None  # rows without a bound
    value: npt.NDArray[np.int32] | None = None
    unvalued: npt.NDArray[np.bool_] | None = None  # rows without a value
    numbers: dict[tuple[bool, bool | int | float | str], int] = field(default_factory=dict)
    pattern_rows: npt.NDArray[np.int64] | None = None
    pattern_numbers: npt.NDArray[np.int64] | None = None
    patterns: dict[tuple[str, str], int] = field(default_factory=dict)
    remembered: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)


class NumpyScan:
    """The same promises as `Index`, by vectorised brute force."""

    def __init__(self) -> None:
        self._subscriptions: dict[int, tuple[int, NormalForm]] = {}
        self._built = False

    def add(self, subscription: int, normal_form: NormalForm, client: int) -> None:
        """Add a subscription, or replace the one with this id."""
        self._subscriptions[subscription] = (client, normal_form)
        self._built = False

    def remove(self, subscription: int) -> bool:
        """Remove a subscription; tell whether it was there."""
        self._built = False
        return self._subscriptions.pop(subscription, None) is not None

    def match(self, batch: Batch) -> Hits:
        """Return which publication matches which subscription."""
        return self.match_decoded(batch.publications())

    def match_decoded(self, publications: list[Attributes | None]) -> Hits:
        """Return which publication matches which subscription; None stands for a refused publication."""
        if not self._built:
            self.build()
        found = [
            self._rows(attributes) if attributes is not None else np.empty(0, np.int64) for attributes in publications
        ]
        rows = np.concatenate(found) if found else np.empty(0, np.int64)
        ends = np.cumsum([len(rows_of_one) for rows_of_one in found], dtype=np.int64)
        subscription = self._subscription[rows]
        if self._repeated:
            new = np.ones(len(rows), np.bool_)
            new[1:] = subscription[1:] != subscription[:-1]
            new[ends[ends < len(rows)]] = True
            rows, subscription = rows[new], subscription[new]
            ends = np.append(0, np.cumsum(new))[ends]
        client = self._client[rows]
        new = np.ones(len(rows), np.bool_)
        new[1:] = client[1:] != client[:-1]
        new[ends[ends < len(rows)]] = True
        first = np.flatnonzero(new)
        publication = np.searchsorted(ends, first, side="right")
        return Hits(subscription, np.stack([publication, client[first], first], axis=1))

    def fold(self, units: int = 0) -> bool:
        """Do nothing: there is no index to tend."""
        return False

    def check(self) -> None:
        """Do nothing: there is no index to check."""

    def memory_bytes(self) -> int:
        """Return the bytes of the columns."""
        if not self._built:
            self.build()
        total = self._client.nbytes + self._subscription.nbytes
        for column in self._columns.values():
            for array in (column.low, column.high, column.ranged, column.value, column.unvalued):
                total += 0 if array is None else array.nbytes
        return total

    def __len__(self) -> int:
        return len(self._subscriptions)

    def build(self) -> None:
        """Make the columns."""
        order = sorted((client, subscription) for subscription, (client, _) in self._subscriptions.items())
        conjunctions: list[Conjunction] = []
        clients: list[int] = []
        subscriptions: list[int] = []
        for client, subscription in order:
            form = self._subscriptions[subscription][1]
            conjunctions.extend(form)
            clients.extend([client] * len(form))
            subscriptions.extend([subscription] * len(form))
        self._client = np.array(clients, dtype=np.int64)
        self._subscription = np.array(subscriptions, dtype=np.uint64)
        self._repeated = len(conjunctions) > len(order)
        self._conjunctions: dict[int, Conjunction] = {}
        self._columns: dict[str, _Column] = {}
        patterned: dict[str, list[tuple[int, int]]] = {}
        count = len(conjunctions)
        for row, conjunction in enumerate(conjunctions):
            for atom in conjunction:
                if isinstance(atom, Interval) and _is_small(atom):
                    self._put_interval(row, atom, count)
                elif isinstance(atom, Member) and len(atom.values) == 1 and not atom.negated:
                    column = self._columns.setdefault(atom.attribute, _Column())
                    value = atom.values[0]
                    if column.value is None:
                        column.value = np.zeros(count, np.int32)
                    key = (isinstance(value, bool), value)
                    column.value[row] = column.numbers.setdefault(key, len(column.numbers) + 1)
                elif isinstance(atom, Pattern) and not atom.negated:
                    column = self._columns.setdefault(atom.attribute, _Column())
                    number = column.patterns.setdefault((atom.operator, atom.text), len(column.patterns))
                    patterned.setdefault(atom.attribute, []).append((row, number))
                else:
                    self._conjunctions[row] = conjunction
        for name, pairs in patterned.items():
            self._columns[name].pattern_rows = np.array([row for row, _ in pairs], np.int64)
            self._columns[name].pattern_numbers = np.array([number for _, number in pairs], np.int64)
        for column in self._columns.values():
            if column.value is not None:
                column.unvalued = column.value == 0
            if column.low is not None and column.high is not None:
                column.ranged = np.isneginf(column.low) & np.isposinf(column.high)
                if np.isneginf(column.low).all():
                    column.low = None
                if np.isposinf(column.high).all():
                    column.high = None
        self._unchecked = np.ones(count, np.bool_)
        self._unchecked[list(self._conjunctions)] = False
        self._holds = np.empty(count, np.bool_)
        self._scratch = np.empty(count, np.bool_)
        self._built = True

    def _put_interval(self, row: int, atom: Interval, count: int) -> None:
        column = self._columns.setdefault(atom.attribute, _Column())
        if column.low is None or column.high is None:
            column.low = np.full(count, -np.inf)
            column.high = np.full(count, np.inf)
        if atom.low is not None:
            column.low[row] = math.nextafter(atom.low, math.inf) if atom.low_open else atom.low
        if atom.high is not None:
            column.high[row] = math.nextafter(atom.high, -math.inf) if atom.high_open else atom.high

    def _rows(self, attributes: Attributes) -> npt.NDArray[np.int64]:
        holds, scratch = self._holds, self._scratch
        holds[:] = True
        for name, column in self._columns.items():
            value = attributes.get(name)
            if column.ranged is not None:
                if type(value) is int or type(value) is float:
                    if column.low is not None:
                        np.less_equal(column.low, value, out=scratch)
                        holds &= scratch
                    if column.high is not None:
                        np.greater_equal(column.high, value, out=scratch)
                        holds &= scratch
                else:
                    holds &= column.ranged
            if column.value is not None:
                assert column.unvalued is not None
                number = 0 if value is None else column.numbers.get((isinstance(value, bool), value), 0)
                if number:
                    np.equal(column.value, number, out=scratch)
                    scratch |= column.unvalued
                    holds &= scratch
                else:
                    holds &= column.unvalued
            if column.pattern_rows is not None:
                if isinstance(value, str):
                    holds[column.pattern_rows] &= self._truth(column, value)[column.pattern_numbers]
                else:
                    holds[column.pattern_rows] = False
        rows = np.flatnonzero(holds)
        if self._conjunctions:
            kept = self._unchecked[rows]
            for place in np.flatnonzero(~kept).tolist():
                kept[place] = conjunction_holds(self._conjunctions[int(rows[place])], attributes)
            rows = rows[kept]
        return rows

    def _truth(self, column: _Column, value: str) -> npt.NDArray[np.bool_]:
        """Return which of a column's patterns a string satisfies."""
        truth = column.remembered.get(value)
        if truth is None:
            if len(column.remembered) >= _REMEMBERED:
                column.remembered.clear()
            truth = np.array([string_test(operator, text)(value) for operator, text in column.patterns])
            column.remembered[value] = truth
        return truth


def _is_small(atom: Interval) -> bool:
    """Tell whether comparing an interval's bounds as doubles is exact for every number."""
    bounds = (atom.low, atom.high)
    return all(bound is None or -_EXACT_UP_TO < bound < _EXACT_UP_TO for bound in bounds) and bounds != (None, None)
