"""Spark's own filters, put to what the manifest says of a segment and to the rows in it.

A filter on `date` is answered by the segment alone. One on slot, offset, epoch or time_accepted first leaves out whole
segments, by their lowest and highest; then it goes, as one on any other plain column, to Parquet, which leaves out row
groups and rows. What cannot be said exactly is handed back to Spark, which then applies it itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from cluster.output.manifest import Segment
from cluster.output.schema import SCHEMA

DATE = "date"
_COMPARED = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_TEXTS = (StringStartsWith, StringEndsWith, StringContains)
_PLAIN: dict[str, type] = {
    **dict.fromkeys(("offset", "slot", "epoch", "sequence"), int),
    **dict.fromkeys(("time_published", "time_accepted", "time_released"), datetime),
    "publisher": str,
    DATE: date,
}
"""The columns on which filters are taken, and what Spark gives to compare with. A decimal is left to Spark."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_exact(filter: Filter) -> bool:
    """Tell whether the functions below apply the filter, so that Spark need not."""
    inner = filter.child if isinstance(filter, Not) else filter
    if isinstance(inner, Not):
        return False
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in _PLAIN:
        return False
    if isinstance(inner, IsNull | IsNotNull):
        return True
    if isinstance(inner, In):
        return all(_fits(path[0], value) for value in inner.value)
    if isinstance(inner, _TEXTS):
        return path[0] == "publisher"
    return isinstance(inner, _COMPARED) and _fits(path[0], inner.value)


def _fits(column: str, value: object) -> bool:
    # A datetime is a date to Python, and a bool an int.
    if type(value) is not _PLAIN[column]:
        return False
    if isinstance(value, int):
        return -(2**31) <= value < 2**31 if column == "slot" else True
    return not isinstance(value, datetime) or value.tzinfo is not None


def may_hold(filters: Sequence[Filter], segment: Segment) -> bool:
    """Tell whether a segment may have rows for which all these exact filters hold."""
    return all(_may_hold(one, segment) for one in filters)


def _may_hold(filter: Filter, segment: Segment) -> bool:
    negated = isinstance(filter, Not)
    inner: Any = filter.child if isinstance(filter, Not) else filter
    column = inner.attribute[0]
    bounds = _bounds(column, segment)
    if bounds is None:
        return True
    low, high = bounds
    if isinstance(inner, IsNull | IsNotNull):
        return isinstance(inner, IsNotNull) is not negated
    if isinstance(inner, In):
        values = [_comparable(value) for value in inner.value]
        if negated:
            return not (low == high and low in values)
        return any(low <= value <= high for value in values)
    value = _comparable(inner.value)
    sometimes, always = {
        EqualTo: (low <= value <= high, low == value == high),
        GreaterThan: (high > value, low > value),
        GreaterThanOrEqual: (high >= value, low >= value),
        LessThan: (low < value, high < value),
        LessThanOrEqual: (low <= value, high <= value),
    }[type(inner)]
    return not always if negated else sometimes


def _bounds(column: str, segment: Segment) -> tuple[Any, Any] | None:
    """Return the lowest and highest of a column in a segment, None where the manifest does not say."""
    if column == "offset":
        return segment.first, segment.last
    if column == "slot":
        return segment.slot, segment.slot
    if column == "epoch":
        return segment.epoch_first, segment.epoch_last
    if column == "time_accepted":
        return segment.time_first_us, segment.time_last_us
    if column == DATE:
        return segment.date, segment.date
    return None


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value.isoformat() if isinstance(value, date) else value


def expression(filters: Sequence[Filter]) -> pc.Expression | None:
    """Return what Parquet is to apply of exact filters, None for nothing. Those on `date` are the segment's."""
    found: pc.Expression | None = None
    for one in filters:
        inner: Any = one.child if isinstance(one, Not) else one
        if inner.attribute[0] == DATE:
            continue
        part = _expression(inner)
        if isinstance(one, Not):
            # What is null is neither in SQL; Arrow says of it that it is in no list.
            part = ~part & pc.field(inner.attribute[0]).is_valid() if isinstance(inner, In) else ~part
        found = part if found is None else found & part
    return found


def _expression(filter: Any) -> pc.Expression:
    column = pc.field(filter.attribute[0])
    kind = SCHEMA.field(filter.attribute[0]).type
    if isinstance(filter, IsNull):
        return column.is_null()
    if isinstance(filter, IsNotNull):
        return column.is_valid()
    if isinstance(filter, In):
        return column.isin(pa.array(filter.value, kind))
    if isinstance(filter, StringStartsWith):
        return pc.starts_with(column, filter.value)
    if isinstance(filter, StringEndsWith):
        return pc.ends_with(column, filter.value)
    if isinstance(filter, StringContains):
        return pc.match_substring(column, filter.value)
    value = pa.scalar(filter.value, kind)
    return {
        EqualTo: column == value,
        GreaterThan: column > value,
        GreaterThanOrEqual: column >= value,
        LessThan: column < value,
        LessThanOrEqual: column <= value,
    }[type(filter)]
