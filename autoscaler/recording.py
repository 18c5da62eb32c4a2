"""Recorded signals as a flat Parquet table, so that a policy can be tried on a cluster's own past.

One row for each slice of each interval, and before them one for the whole cluster, whose `layer` is `cluster`. Rows are
in the order of time; those of one interval have the same `at_s` and are together. A null is "not heard of", never 0.

    at_s            unix seconds at the interval's end          interval_s    its length
    layer, slot     `cluster` (slot null) or a slice            transition    an operation was running

of the cluster's row:
    epoch, placeable, cores, placement_s, publications_per_s, notifications_per_s       as `Signals` has them
    node_host, node_cores, node_busy, node_slices       lists with an entry for each node, as `NodeSignals` has them
    size_connection_point, size_access_point, size_matcher, size_exit_point      slices in the view
    delay_counts, subscribe_ack_counts     lists: histograms, bounds in the schema's metadata

of a slice's row:
    publications_per_s, notifications_per_s, useful_share, backlog_messages, backlog_bytes, match_count, match_min_ms,
    match_max_ms, match_mean_ms, subscriptions, connections, rss_bytes           as `SliceSignals` has them

The schema's metadata has `kittiwake.recording` (VERSION) and `kittiwake.delay_bounds_ms` (JSON). A reader refuses
another version and other bounds, and passes over columns that it does not know. `actors/recording.py` has the files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from autoscaler.signals import BUCKETS, DELAY_BOUNDS_MS, LAYERS, Histogram, NodeSignals, Signals, SliceSignals, Spread
from cluster.errors import KittiwakeError

VERSION: Final = "1"
CLUSTER: Final = "cluster"

SCHEMA: Final = pa.schema(
    [
        pa.field("at_s", pa.float64(), nullable=False),
        pa.field("interval_s", pa.float64(), nullable=False),
        pa.field("layer", pa.string(), nullable=False),
        ("slot", pa.int32()),
        ("transition", pa.bool_()),
        ("epoch", pa.int64()),
        ("placeable", pa.int32()),
        ("cores", pa.float64()),
        ("node_host", pa.list_(pa.string())),
        ("node_cores", pa.list_(pa.float64())),
        ("node_busy", pa.list_(pa.float64())),
        ("node_slices", pa.list_(pa.float64())),
        ("placement_s", pa.float64()),
        ("publications_per_s", pa.float64()),
        ("notifications_per_s", pa.float64()),
        *((f"size_{layer}", pa.int32()) for layer in LAYERS),
        ("delay_counts", pa.list_(pa.int64())),
        ("subscribe_ack_counts", pa.list_(pa.int64())),
        ("useful_share", pa.float64()),
        ("backlog_messages", pa.int64()),
        ("backlog_bytes", pa.int64()),
        ("match_count", pa.int64()),
        ("match_min_ms", pa.float64()),
        ("match_max_ms", pa.float64()),
        ("match_mean_ms", pa.float64()),
        ("subscriptions", pa.int64()),
        ("connections", pa.int64()),
        ("rss_bytes", pa.int64()),
    ],
    metadata={"kittiwake.recording": VERSION, "kittiwake.delay_bounds_ms": json.dumps(DELAY_BOUNDS_MS)},
)

_OF_NODE: Final = ("host", "cores", "busy", "slices")

LATER: Final = ("cores", *(f"node_{name}" for name in _OF_NODE))
"""Columns that earlier recordings of this version have not."""

_OF_SLICE: Final = (
    "useful_share",
    "backlog_messages",
    "backlog_bytes",
    "publications_per_s",
    "notifications_per_s",
    "subscriptions",
    "connections",
    "rss_bytes",
)

Row = dict[str, Any]


class RecordingError(KittiwakeError):
    """A recording that cannot be read; the text names it and what is wrong."""

    code = "recording"


def rows_of(at_s: float, signals: Signals) -> Iterator[Row]:
    """Yield the rows of one interval."""
    yield {
        "at_s": at_s,
        "interval_s": signals.interval_s,
        "layer": CLUSTER,
        "transition": signals.transition,
        "epoch": signals.epoch,
        "placeable": signals.placeable,
        "cores": signals.cores,
        **{f"node_{name}": [getattr(node, name) for node in signals.nodes] for name in _OF_NODE},
        "placement_s": signals.placement_s,
        "publications_per_s": signals.publications_per_s,
        "notifications_per_s": signals.notifications_per_s,
        **{f"size_{layer}": signals.sizes[layer] for layer in LAYERS},
        "delay_counts": signals.delay,
        "subscribe_ack_counts": signals.subscribe_ack,
    }
    for one in signals.slices:
        row: Row = {"at_s": at_s, "interval_s": signals.interval_s, "layer": one.layer, "slot": one.slot}
        row["transition"] = signals.transition
        row.update((name, getattr(one, name)) for name in _OF_SLICE)
        if one.match_ms is not None:
            row["match_count"] = one.match_ms.count
            row["match_min_ms"], row["match_max_ms"] = one.match_ms.min, one.match_ms.max
            row["match_mean_ms"] = one.match_ms.mean
        yield row


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Return rows as a table of SCHEMA."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def check_schema(schema: pa.Schema, name: str) -> None:
    """Say whether a file can be read. Raises: RecordingError, which names it."""
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    version = metadata.get("kittiwake.recording")
    if version is None:
        raise RecordingError(f"{name} is no recording of signals: its schema has no `kittiwake.recording`")
    if version != VERSION:
        raise RecordingError(f"{name} is a recording of version {version}, this Kittiwake reads version {VERSION}")
    if metadata.get("kittiwake.delay_bounds_ms") != json.dumps(DELAY_BOUNDS_MS):
        raise RecordingError(f"{name} has histograms of other bounds than this Kittiwake's")
    for field in SCHEMA:
        place = schema.get_field_index(field.name)
        if place < 0 and field.name in LATER:
            continue
        if place < 0:
            raise RecordingError(f"{name} has no column {field.name}")
        if schema.field(place).type != field.type:
            raise RecordingError(f"{name}: {field.name} is {schema.field(place).type}, expected is {field.type}")


def intervals_of(rows: Iterable[Row], name: str) -> Iterator[tuple[float, Signals]]:
    """Yield the intervals (unix seconds, signals) that rows make up. Raises: RecordingError, naming the recording."""
    last = float("-inf")
    for at_s, group in itertools.groupby(rows, key=lambda row: row["at_s"]):
        if at_s is None or at_s <= last:
            raise RecordingError(f"{name}: {at_s} after {last}, the rows are not in the order of time")
        last = at_s
        whole, *parts = group
        if whole["layer"] != CLUSTER or any(part["layer"] not in LAYERS for part in parts):
            raise RecordingError(f"{name}: at {at_s} the cluster's row does not come first, followed by slices")
        sizes = {layer: whole[f"size_{layer}"] for layer in LAYERS}
        if any(count is None or count < 1 for count in sizes.values()):
            raise RecordingError(f"{name}: at {at_s} a layer has no size")
        if not whole["interval_s"] > 0:
            raise RecordingError(f"{name}: at {at_s} the interval is {whole['interval_s']} s long")
        yield (
            at_s,
            Signals(
                interval_s=whole["interval_s"],
                epoch=whole["epoch"] or 0,
                sizes=sizes,
                transition=bool(whole["transition"]),
                placeable=whole["placeable"],
                cores=whole.get("cores"),
                nodes=tuple(_nodes(whole)),
                publications_per_s=whole["publications_per_s"],
                notifications_per_s=whole["notifications_per_s"],
                delay=_histogram(whole["delay_counts"], name, at_s),
                subscribe_ack=_histogram(whole["subscribe_ack_counts"], name, at_s),
                placement_s=whole["placement_s"],
                slices=tuple(_slice(part, name, at_s) for part in parts),
            ),
        )


def _nodes(row: Row) -> Iterator[NodeSignals]:
    columns = [row.get(f"node_{name}") or [] for name in _OF_NODE]
    for values in zip(*columns, strict=True):
        yield NodeSignals(**dict(zip(_OF_NODE, values, strict=True)))


def _slice(row: Row, name: str, at_s: float) -> SliceSignals:
    if row["slot"] is None:
        raise RecordingError(f"{name}: at {at_s} a {row['layer']} has no slot")
    match = None
    if row["match_count"] is not None:
        match = Spread(row["match_count"], row["match_min_ms"], row["match_max_ms"], row["match_mean_ms"])
    values = {field: row[field] for field in _OF_SLICE}
    return SliceSignals(layer=row["layer"], slot=row["slot"], match_ms=match, **values)


def _histogram(counts: list[int] | None, name: str, at_s: float) -> Histogram | None:
    if counts is None:
        return None
    if len(counts) != BUCKETS:
        raise RecordingError(f"{name}: at {at_s} a histogram of {len(counts)} buckets, expected are {BUCKETS}")
    return tuple(counts)
