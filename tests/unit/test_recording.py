"""Recorded signals: what is written is read again, what is broken is named, and a folder stays within its bounds."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from actors.recording import Recorder, Recording, write
from autoscaler.recording import LATER, SCHEMA, RecordingError, rows_of, table_of
from autoscaler.signals import BUCKETS, LAYERS, NodeSignals, Signals, SliceSignals, Spread


def some(source: random.Random) -> Signals:
    """Return any signals, with holes."""

    def maybe(value: float) -> float | None:
        return None if source.random() < 0.3 else value

    def count() -> int | None:
        return None if source.random() < 0.3 else source.randrange(1 << 40)

    sizes = {layer: source.randint(1, 4) for layer in LAYERS}
    slices = tuple(
        SliceSignals(
            layer=layer,
            slot=slot * 3,
            useful_share=maybe(source.random()),
            backlog_messages=count(),
            backlog_bytes=count(),
            match_ms=Spread(5, 0.1, 0.5, 0.2) if source.random() < 0.5 else None,
            publications_per_s=maybe(source.random() * 1e5),
            notifications_per_s=maybe(source.random() * 1e5),
            subscriptions=count(),
            connections=count(),
            rss_bytes=count(),
        )
        for layer in LAYERS
        for slot in range(sizes[layer])
    )

    def histogram() -> tuple[int, ...] | None:
        return None if source.random() < 0.3 else tuple(source.randrange(1000) for _ in range(BUCKETS))

    return Signals(
        interval_s=source.choice([1.0, 2.5]),
        epoch=source.randrange(1 << 40),
        sizes=sizes,
        transition=source.random() < 0.5,
        placeable=None if source.random() < 0.5 else source.randrange(10),
        cores=None if source.random() < 0.5 else source.randrange(1, 99) / 2,
        nodes=tuple(
            NodeSignals(host=f"10.0.0.{number}", cores=2.0, busy=maybe(source.random()), slices=maybe(source.random()))
            for number in range(source.randrange(3))
        ),
        publications_per_s=maybe(source.random() * 1e5),
        notifications_per_s=maybe(source.random() * 1e5),
        delay=histogram(),
        subscribe_ack=histogram(),
        placement_s=maybe(source.random() * 10),
        slices=slices,
    )


@pytest.mark.parametrize("seed", range(10))
def test_what_is_written_is_read_again(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    given = [(1.7e9 + 2.5 * step, some(source)) for step in range(50)]
    recorder = Recorder(tmp_path, rotate_s=30)
    for at_s, signals in given:
        recorder.add(at_s, signals)
    recorder.add(given[0][0], given[0][1])  # a clock that went back
    recorder.close()
    recorder.close()
    recording = Recording(tmp_path)
    assert len(recording.files) == 4
    assert list(recording) == given
    assert list(recording) == given, "again and again"
    assert list(Recording(recording.files[0])) == given[:13]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_keeps_the_newest_within_its_bound(tmp_path: Path) -> None:
    source = random.Random(1)
    recorder = Recorder(tmp_path, rotate_s=5, bytes_max=60_000)
    for step in range(300):
        recorder.add(float(step + 1), some(source))
    recorder.close()
    kept = list(Recording(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 60_000
    assert kept[-1][0] == 300.0
    assert 10 < len(kept) < 300
    assert [at for at, _ in kept] == [float(at) for at in range(301 - len(kept), 301)]


def test_an_interval_that_spans_two_batches_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.recording.BATCH", 3)
    source = random.Random(2)
    given = [(float(step), some(source)) for step in range(1, 6)]
    write(tmp_path / "one.parquet", [row for at, signals in given for row in rows_of(at, signals)])
    assert list(Recording(tmp_path / "one.parquet")) == given


def test_a_recording_without_cores_is_an_earlier_one(tmp_path: Path) -> None:
    source = random.Random(5)
    given = [(float(step), some(source)) for step in range(1, 4)]
    path = tmp_path / "earlier.parquet"
    table = table_of(row for at, one in given for row in rows_of(at, one))
    parquet.write_table(table.drop_columns(list(LATER)), path)
    assert list(Recording(path)) == [(at, msgspec.structs.replace(one, cores=None, nodes=())) for at, one in given]


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no Parquet file in it"):
        Recording(tmp_path)
    with pytest.raises(RecordingError, match=r"gone\.parquet cannot be read"):
        Recording(tmp_path / "gone.parquet")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and no more")
    with pytest.raises(RecordingError, match=r"broken\.parquet cannot be read"):
        Recording(broken)

    def refused(table: pa.Table) -> str:
        path = tmp_path / "other.parquet"
        parquet.write_table(table, path)
        with pytest.raises(RecordingError) as caught:
            list(Recording(path))
        return str(caught.value)

    table = table_of(rows_of(1.0, some(random.Random(3))))
    assert "no recording of signals" in refused(table.replace_schema_metadata({}))
    metadata = dict(SCHEMA.metadata)
    assert "of version 9" in refused(table.replace_schema_metadata({**metadata, b"kittiwake.recording": b"9"}))
    other = {**metadata, b"kittiwake.delay_bounds_ms": b"[1, 2]"}
    assert "histograms of other bounds" in refused(table.replace_schema_metadata(other))
    assert "no column useful_share" in refused(table.drop_columns(["useful_share"]))
    place = table.schema.get_field_index("slot")
    assert "slot is string, expected is int32" in refused(
        table.set_column(place, "slot", table["slot"].cast(pa.string())).replace_schema_metadata(metadata)
    )
    assert "the rows are not in the order of time" in refused(
        pa.concat_tables([table, table_of(rows_of(0.5, some(random.Random(4))))])
    )
    assert "the cluster's row does not come first" in refused(table.slice(1))
    rows = list(rows_of(1.0, some(random.Random(3))))
    rows[0]["delay_counts"] = [1, 2]
    assert "a histogram of 2 buckets" in refused(table_of(rows))
    rows[0]["size_matcher"] = None
    assert "a layer has no size" in refused(table_of(rows))


def test_a_column_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    signals = some(random.Random(5))
    table = table_of(rows_of(1.0, signals))
    table = table.append_column("later", pa.array(range(table.num_rows)))
    parquet.write_table(table, tmp_path / "new.parquet")
    assert list(Recording(tmp_path / "new.parquet")) == [(1.0, signals)]
