"""CSV, JSON lines, the generator, and the choice between formats."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest

from cluster.readings import CityGenerator, CsvFile, JsonLinesFile, ReadingsError, open_readings
from cluster.readings.source import TROUBLES_KEPT
from cluster.readings.tabular import LINE_BYTES_MAX, parse_json_line, parse_text
from cluster.readings.values import ValueRefused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("007", "007"),
        ("18446744073709551615", 2**64 - 1),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1e-3", -0.001),
        ("2.", 2.0),
        ("1_000", "1_000"),
        ("true", True),
        ("FALSE", False),
        ("truer", "truer"),
        ("nan", "nan"),
        ("12 km", "12 km"),
        ("٣", "٣"),
        ("2017-01-01", "2017-01-01"),
        ("9" * 500, "9" * 500),
    ],
)
def test_types_of_csv_fields(text: str, value: object) -> None:
    found = parse_text(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["18446744073709551616", "-9223372036854775809", "1e999", "9" * 400])
def test_numbers_that_no_attribute_holds(text: str) -> None:
    with pytest.raises(ValueRefused):
        parse_text(text)


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"\xef\xbb\xbfstation,no2, indoor ,note\r\n"
        b'"Pza, de Espana",45.0,false,\r\n'
        b"\r\n"
        b"1,2\r\n"
        b",,,\r\n"
        b"x,1e999,true,y\r\n"
        b'y,3,true,"two\nlines"\r\n'
        b"z,3,true,\xff\r\n"
        b"Le\xc3\xb3n,4,true,last"
    )
    readings = CsvFile(path)
    assert list(readings) == [
        {"station": "Pza, de Espana", "no2": 45.0, "indoor": False},
        {"station": "y", "no2": 3, "indoor": True, "note": "two\nlines"},
        {"station": "León", "no2": 4, "indoor": True, "note": "last"},
    ]
    assert [str(trouble) for trouble in readings.report.troubles] == [
        "a.csv:4: 2 fields where the first row has 4",
        "a.csv:5: no attributes",
        "a.csv:6: attribute 'no2' is not a finite number",
        "a.csv:9: attribute 'note' is not UTF-8",
    ]
    assert (readings.report.rows, readings.report.published, readings.report.unused_rows) == (7, 3, 4)
    assert readings.fraction == 1.0
    assert len(list(readings)) == 3


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_separators_and_gzip(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(f"a{separator}b\n1{separator}x\n".encode()))
    assert list(CsvFile(path)) == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "empty"), (b"a,,b\n", "column 2 has no name"), (b"a,a\n", "two columns"), (b"a,\xff\n", "not UTF-8")],
)
def test_csv_without_a_header(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    with pytest.raises(ReadingsError, match=reason):
        CsvFile(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "not a JSON object"),
        ('{"a": [1]}', "attribute 'a' is a list"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": 1e999}', "attribute 'a' is not a finite number"),
        ('{"a": 36893488147419103232}', "attribute 'a' does not fit in 64 bits"),
        ('{"a": ' + "1" * 5000 + "}", "not usable"),
        ('{"": 1}', "name is empty"),
        ('{"a": {"": 1}}', "name is empty in 'a'"),
        ('{"a.b": 1, "a": {"b": 2}}', "attribute 'a.b' occurs twice"),
        ('{"a": "\\ud800"}', "attribute 'a' is not valid Unicode"),
        ('{"\\ud800": 1}', "an attribute's name is not valid Unicode"),
        ("{}", "no attributes"),
        ('{"a": 1', "not JSON: .* at character 8"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested deeper than 32"),
        ('{"a":' * 100_000, "not usable"),
    ],
)
def test_json_lines_that_are_refused(line: str, reason: str) -> None:
    with pytest.raises(ValueRefused, match=reason):
        parse_json_line(line)


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    long = b'{"a": "' + b"x" * LINE_BYTES_MAX + b'"}\n'
    path.write_bytes(
        b'{"a": 1, "b": {"c": null, "d": {"e": 18446744073709551615}}}\n\n' + long + b'bad\n{"a": "\xff"}\n{"z": true}'
    )
    readings = JsonLinesFile(path)
    assert list(readings) == [{"a": 1, "b.c": None, "b.d.e": 2**64 - 1}, {"z": True}]
    assert [trouble.line for trouble in readings.report.troubles] == [3, 4, 5]
    assert (readings.report.rows, readings.report.published) == (5, 2)


def test_troubles_are_counted_beyond_those_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("bad\n" * (TROUBLES_KEPT + 5))
    readings = JsonLinesFile(path)
    assert list(readings) == []
    assert len(readings.report.troubles) == TROUBLES_KEPT
    assert readings.report.trouble_count == readings.report.unused_rows == TROUBLES_KEPT + 5


def test_a_damaged_gzip_ends_early(tmp_path: Path) -> None:
    data = gzip.compress(b'{"a": 1}\n' * 1000)
    for name, kind in (("a.jsonl.gz", JsonLinesFile), ("a.csv.gz", CsvFile)):
        (tmp_path / name).write_bytes(data[:-6])
        readings = kind(tmp_path / name)
        assert len(list(readings)) == readings.report.published
        assert "damaged" in readings.report.troubles[-1].reason


def test_generator_repeats_itself() -> None:
    first, second = list(CityGenerator(5_000, seed=7)), list(CityGenerator(5_000, seed=7))
    assert first == second
    assert first != list(CityGenerator(5_000, seed=8))
    assert list(CityGenerator(0)) == []


def test_generator_is_plausible() -> None:
    readings = CityGenerator(40_000)
    by_quantity: dict[object, list[float]] = {}
    stations = set()
    time = 0
    rush: dict[bool, list[float]] = {True: [], False: []}
    for publication in readings:
        quantity = publication["quantity"]
        assert set(publication) == {
            *("station", "station_id", "station_type", "lat", "lon", "altitude", "time", "quantity"),
            quantity,
        }
        value = publication[str(quantity)]
        assert isinstance(value, float)
        assert isinstance(publication["time"], int)
        assert publication["time"] >= time
        time = publication["time"]
        by_quantity.setdefault(quantity, []).append(value)
        stations.add(publication["station"])
        if quantity == "no2":
            rush[time // 3600 % 24 == 9].append(value)
    assert len(stations) == 24
    assert set(by_quantity) == {"no", "no2", "co", "o3", "so2", "pm10", "pm25", "temperature", "humidity"}
    assert all(min(by_quantity[quantity]) >= 0 for quantity in by_quantity if quantity != "temperature")
    mean = {hour: sum(values) / len(values) for hour, values in rush.items()}
    assert mean[True] > 1.3 * mean[False], "the morning rush shows"
    assert readings.report.published == readings.report.valid == 40_000
    assert readings.fraction == 1.0


def test_leaving_early_counts_what_was_handed_out() -> None:
    readings = CityGenerator(1_000)
    assert len(list(itertools.islice(readings, 10))) == 10
    assert readings.report.published == 10
    assert readings.fraction == 0.01


def test_open_readings(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "a.ndjson").write_text('{"a": 1}\n')
    (tmp_path / "a.data").write_text('{"a": 1}\n')
    assert isinstance(open_readings(tmp_path / "a.csv"), CsvFile)
    assert isinstance(open_readings(tmp_path / "a.ndjson"), JsonLinesFile)
    assert isinstance(open_readings(tmp_path / "a.data", "jsonl"), JsonLinesFile)
    for path, format, reason in (
        (tmp_path / "a.data", None, "say which: --format madrid"),
        (tmp_path / "absent", None, "no such file"),
        (tmp_path, "csv", "is a folder"),
        (tmp_path, None, "no estaciones"),
        (tmp_path, "xml", "is not known"),
    ):
        with pytest.raises(ReadingsError, match=reason):
            open_readings(path, format)
