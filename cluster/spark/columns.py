"""The columns that a read gives: those of the log and `date`, all or some, typed as Spark asks.

Spark compares a source's batches with the schema it knows to the last nullability, so each batch is made to fit
exactly. A schema given by the user (`.schema("offset bigint, numbers map<string,double>")`) chooses columns as the
option `columns` does: Spark tells a source in Python of filters, not of the columns that a query uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from cluster.errors import SparkError
from cluster.output.schema import SCHEMA
from cluster.spark.pruning import DATE

COLUMNS = SCHEMA.append(pa.field(DATE, pa.date32(), nullable=False))
"""The log's columns, and the day that is the name of a segment's folder: as spark.read.parquet has them."""


def spark_schema(names: Sequence[str] | None = None) -> StructType:
    """Return the schema for Spark of all columns, or of those named, in this order."""
    whole = from_arrow_schema(COLUMNS)
    if names is None:
        return whole
    for name in names:
        _known(name)
    return StructType([whole[name] for name in names])


def arrow_schema(wanted: StructType) -> pa.Schema:
    """Return the Arrow schema of batches that Spark takes for its own. Raises SparkError for another column or type."""
    own = from_arrow_schema(COLUMNS)
    fields = []
    for column in wanted.fields:
        known = _known(column.name)
        expected, given = own[column.name].dataType.simpleString(), column.dataType.simpleString()
        if expected != given:
            raise SparkError(f"column {column.name} is {expected}, not {given}")
        fields.append(pa.field(column.name, _nullable(known.type, column.dataType), column.nullable))
    return pa.schema(fields)


def _known(name: str) -> Any:
    if name not in COLUMNS.names:
        raise SparkError(f"no column {name}; there are {', '.join(COLUMNS.names)}")
    return COLUMNS.field(name)


def _nullable(kind: Any, wanted: DataType) -> Any:
    if isinstance(wanted, MapType):
        return pa.map_(kind.key_type, pa.field("value", kind.item_type, wanted.valueContainsNull))
    if isinstance(wanted, ArrayType):
        return pa.list_(pa.field("element", kind.value_type, wanted.containsNull))
    return kind
