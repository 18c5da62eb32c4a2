"""Rows, segments and the reader of matched output; client names; the commands that look at a log."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from actors.cli import main
from cluster.messages import CONNECTION_POINT, EXIT_POINT, NameClients, Peer, Send
from cluster.output.disk import LocalDisk, RemoteDisk, open_disk
from cluster.output.errors import OutputError
from cluster.output.manifest import Claim
from cluster.output.reader import open_log
from cluster.output.rows import Row, Value, attributes_of, table_of
from cluster.output.schema import SCHEMA, date_of
from cluster.output.segments import encode_segment
from cluster.output.slot_log import write_rows
from cluster.output.slot_writer import SlotWriter
from cluster.serving.naming import PORTION, Naming

START_US = 1_499_990_390_000_000
VALUES: tuple[Value, ...] = (
    *(0, -1, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 10**19),
    *(0.0, -0.0, 0.1, 1e308, 5e-324, float(2**53)),
    *("", "Plaza de España", "\u0000", "𝄞", "a" * 300),
    *(True, False, None),
)


def row(number: int, attributes: dict[str, Value] | None = None) -> Row:
    accepted = START_US + number * 1_000_000
    chosen = {"n": number} if attributes is None else attributes
    published = accepted - 5 if number % 2 else None
    return Row(
        0, 7, f"p{number % 3}", 2**64 - 1, number + 1, published, accepted, accepted + 9, chosen, [4, 5], ["lab"]
    )


def test_attributes_come_back_exactly(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [row(number, {f"a{at}": rng.choice(VALUES) for at in range(rng.randint(0, 9))}) for number in range(200)]
    write_rows(LocalDisk(tmp_path), 3, rows)
    log = open_log(tmp_path)
    tables = list(log.rows(3, 0, 200))
    assert all(table.schema == SCHEMA for table in tables)
    found = sorted((one for table in tables for one in table.to_pylist()), key=lambda one: one["offset"])
    for given, read in zip(rows, found, strict=True):
        back = attributes_of(read)
        assert back == given.attributes
        assert {name: type(value) for name, value in back.items()} == {
            name: type(value) for name, value in given.attributes.items()
        }
        assert repr([back[name] for name in sorted(back)]) == repr(
            [given.attributes[name] for name in sorted(given.attributes)]
        )
        assert (int(read["instance"]), read["sequence"], read["slot"]) == (2**64 - 1, given.sequence, 3)
        assert (read["time_published"] is None) == (given.time_published_us is None)
        assert (read["subscriptions"], read["clients"]) == ([4, 5], ["lab"])


def test_midnight_parts_segments_and_plain_parquet_readers_see_the_day(tmp_path: Path) -> None:
    added = write_rows(LocalDisk(tmp_path), 0, [row(number) for number in range(20)])
    days = [one.date for one in added]
    assert days == ["2017-07-13", "2017-07-14"] == [date_of(one.time_first_us) for one in added]
    assert [(one.first, one.last) for one in added] == [(0, 9), (10, 19)]
    whole = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(whole.column("date").to_pylist()) == [day for day in days for _ in range(10)]


def test_offsets_go_on_and_slots_are_apart(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    for slot, count in ((2, 5), (7, 3), (2, 4)):
        write_rows(disk, slot, [row(number) for number in range(count)])
    log = open_log(tmp_path)
    assert log.slots() == {2: (0, 9), 7: (0, 3)}
    assert [(one.slot, one.first) for one in log.segments()] == [(2, 0), (2, 5), (7, 0)]
    assert [one.first for one in log.segments(2, 5)] == [5]
    assert [one.first for one in log.segments(2, 0, 5)] == [0]
    (segment,) = log.segments(7)
    found = log.read(segment, ["sequence"], pc.field("offset") > 0)
    assert found.to_pydict() == {"sequence": [2, 3]}


def test_any_pyarrow_or_fsspec_file_system_will_do(tmp_path: Path) -> None:
    """Segments and manifests go there; write-ahead files stay here."""
    place = f"memory://test-{tmp_path.name}/output"
    disk = open_disk(place)
    assert isinstance(disk, RemoteDisk)
    for _ in range(2):
        writer = SlotWriter(disk, LocalDisk(tmp_path), 1, Claim("run", 1))
        writer.seal_all()
        writer.close()
        write_rows(disk, 1, [row(number) for number in range(3)])
    assert open_log(place).slots() == {1: (0, 6)}
    assert not any(name.startswith("wal-") for name in disk.names("_kittiwake/slot-00001"))
    assert open_disk(f"file://{tmp_path}").names("") == LocalDisk(tmp_path).names("")


def test_a_folder_without_a_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no matched output"):
        open_log(tmp_path)


def test_writing_does_not_load_pandas() -> None:
    """It takes a second and more, in which an exit point would answer nobody."""
    import subprocess

    code = (
        "import sys\n"
        "from cluster.output.rows import Row, table_of\n"
        "from cluster.output.segments import by_day, encode_segment\n"
        "table = table_of(0, [Row(0, 0, 'p', 0, 0, None, 0, 0, {'a': 1, 'b': 'x', 'c': 1.5}, [0], [''])])\n"
        "[encode_segment([one]) for _, one in by_day(table)]\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_empty_column_is_one() -> None:
    table = table_of(0, [row(0, {})])
    assert table.column("numbers").to_pylist() == [[]]
    data, rows = encode_segment([table])
    assert rows == 1
    assert pa.parquet.read_table(pa.BufferReader(data)).num_rows == 1


# Names ------------------------------------------------------------------------------------------------------------


def test_exit_points_are_told_names_once_and_all_of_them_when_they_are_new() -> None:
    naming = Naming(True)
    out: list[Any] = []
    first, second = Peer(EXIT_POINT, 0), Peer(EXIT_POINT, 1)
    naming.lane_up(first, out)
    naming.lane_up(Peer(CONNECTION_POINT, 3), out)
    naming.name(7, "lab")
    naming.name(7, "lab")
    naming.tell(out)
    naming.tell(out)
    assert out == [Send(first, NameClients([(7, "lab")], []))]
    out.clear()
    naming.lane_up(second, out)
    assert out == [Send(second, NameClients([(7, "lab")], []))]
    out.clear()
    naming.lane_down(first)
    naming.end(7)
    naming.end(8)
    naming.tell(out)
    assert out == [Send(second, NameClients([], [7]))]
    for number in range(PORTION + 1):
        naming.name(number, str(number))
    out.clear()
    naming.tell(out)
    assert [len(one.message.names) for one in out] == [PORTION, 1]


# The command ------------------------------------------------------------------------------------------------------


def kittiwake(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["output", *map(str, arguments)])


def test_ls_tail_verify_and_compact(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    for first in (0, 4, 8):
        rows = [row(first + number, {"n": number, "s": "", "big": 2**64 - 1}) for number in range(4)]
        write_rows(disk, 2, [one._replace(time_accepted_us=START_US) for one in rows])
    listed = kittiwake("ls", tmp_path)
    assert listed.exit_code == 0
    assert listed.output.count(".parquet") == 3
    assert "slot 2: offsets 0 up to before 12" in listed.output
    as_json = [json.loads(line) for line in kittiwake("ls", tmp_path, "--json").output.splitlines()]
    assert [one["first"] for one in as_json] == [0, 4, 8]
    shown = [json.loads(line) for line in kittiwake("tail", tmp_path, "-n", 2).output.splitlines()]
    assert [one["offset"] for one in shown] == [10, 11]
    assert shown[1]["attributes"] == {"n": 3, "s": "", "big": 2**64 - 1}
    assert shown[1]["time_accepted"].endswith("+00:00")
    assert "12 rows in 3 segments, 0 problems" in kittiwake("verify", tmp_path).output
    done = kittiwake("compact", tmp_path)
    assert "slot 2: 0 rows sealed, 3 segments are 1" in done.output
    assert kittiwake("verify", tmp_path).output == "12 rows in 1 segment, 0 problems\n"
    (path,) = tmp_path.glob("date=*/*.parquet")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    found = kittiwake("verify", tmp_path)
    assert found.exit_code == 1
    assert "its checksum is" in found.output
    assert path.name in found.output


def test_a_slot_that_is_written_is_left_alone(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    write_rows(disk, 2, [row(0)])
    with disk.owned("_kittiwake/slot-00002/owner") or pytest.fail("nobody has it"):
        assert "written by a running exit point" in kittiwake("compact", tmp_path).output


def test_what_is_not_there_is_an_error_of_one_line(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"data_directory": str(tmp_path)}))
    for arguments, words in (
        *(([command, str(tmp_path / "gone")], "no matched output") for command in ("ls", "tail", "verify", "compact")),
        (["verify", "--config", str(config)], "output.path: is not set"),
    ):
        result = kittiwake(*arguments)
        assert result.exit_code == 1
        assert words in result.output + str(result.stderr if result.stderr_bytes else "")
