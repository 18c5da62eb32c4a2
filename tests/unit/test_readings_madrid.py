"""Madrid's files: every valid value once, in time order; everything else in the report with its place."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import pytest

from cluster.readings import MadridYear, ReadingsError, Report
from cluster.readings.madrid import QUANTITIES, hour_ends, parse_coordinate, read_stations

STATIONS = """NUMERO;ESTACION;DIRECCION;LONGITUD;LATITUD;ALTITUD;TIPO ESTACION ;NO2;SO2
4;Pza. de Espana;Plaza de Espana;3º 42' 44,09''O;40º 25' 25,87''N;635;UT;1;1
35;Pza. del Carmen;Plaza del Carmen esq. Tres Cruces. ;"3º 42' 11,42""O";40º 25' 9,15''N;659;UF;1;1
47;Mendez Alvaro;C/ Juan de Mariana;3º 41' 12,57'O;40º 23' 53,21''N;599;UF;1;
"""
HEADER = "PROVINCIA;MUNICIPIO;ESTACION;MAGNITUD;PUNTO_MUESTREO;ANO;MES;DIA;" + ";".join(
    f"H{hour:02};V{hour:02}" for hour in range(1, 25)
)
REAL = Path(__file__).parents[3] / "shared" / "data" / "madrid-air-2017"


def row(station: int, magnitude: int, day: str, cells: list[tuple[str, str]] | None = None) -> str:
    """A row whose hours hold the hour's number, all valid, unless cells say otherwise."""
    cells = cells or [(f"{hour:05}", "V") for hour in range(1, 25)]
    year, month, date_ = day.split("-")
    return f"28;079;{station};{magnitude};x;{year};{month};{date_};" + ";".join(f"{v};{f}" for v, f in cells)


def write(folder: Path, name: str, *rows: str, header: str = HEADER, newline: str = "\n") -> None:
    data = (newline.join([header, *rows]) + newline).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "estaciones.csv").write_text(STATIONS, encoding="utf-8")
    return tmp_path


def test_a_valid_value_is_one_publication(folder: Path) -> None:
    write(folder, "ene_mo17.csv", row(4, 8, "2017-01-01"))
    readings = MadridYear(folder)
    publications = list(readings)
    assert publications[0] == {
        "station": "Pza. de Espana",
        "station_id": 4,
        "station_type": "UT",
        "lat": 40.423853,
        "lon": -3.712247,
        "altitude": 635,
        "time": 1483228800,  # 01:00 in Madrid is 00:00 UTC
        "quantity": "no2",
        "no2": 1.0,
    }
    assert [type(value) for value in publications[0].values()] == [str, int, str, float, float, int, int, str, float]
    assert [publication["no2"] for publication in publications] == [float(hour) for hour in range(1, 25)]
    report = readings.report
    assert (report.rows, report.values, report.valid, report.published) == (1, 24, 24, 24)
    assert report.troubles == []
    assert readings.fraction == 1.0


@pytest.mark.parametrize(
    ("text", "hemispheres", "value"),
    [
        ("3º 42' 44,09''O", "EOW", -3.712247),
        ("3º 42' 11,42\"O", "EOW", -3.703172),
        ("3º 41' 12,57'O", "EOW", -3.686825),
        ("40º 24' 52''N", "NS", 40.414444),
        ("40º 25' 9,15''N", "NS", 40.419208),
        ("3° 41′ 12.57″W", "EOW", -3.686825),
        ("33º 0' 0''S", "NS", -33.0),
    ],
)
def test_coordinates(text: str, hemispheres: str, value: float) -> None:
    assert parse_coordinate(text, hemispheres) == value


@pytest.mark.parametrize(
    "text", ["", "3.71", "3º 42' 44,09''", "3º 61' 0''O", "3º 1' 60''O", "181º 0' 0''O", "3º 1' 0''N"]
)
def test_coordinates_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|degrees"):
        parse_coordinate(text, "EOW")


def test_months_come_in_time_order_and_hours_within_them(folder: Path) -> None:
    write(folder, "abr_mo17.csv.gz", row(4, 8, "2017-04-01"), row(35, 8, "2017-04-01"))
    write(folder, "ene_mo17.csv.gz", row(4, 8, "2017-01-01"), row(4, 8, "2017-01-02"), row(35, 8, "2017-01-01"))
    times = [(publication["time"], publication["station_id"]) for publication in MadridYear(folder)]
    assert times == sorted(times)
    assert len(times) == 5 * 24


def test_flags(folder: Path) -> None:
    cells = [("00007", "N")] * 22 + [("-0.05", "N"), ("42.59", "V")]
    write(folder, "ene_mo17.csv", row(4, 14, "2017-01-01", cells), row(4, 8, "2017-01-01", [("00001", "N")] * 24))
    readings = MadridYear(folder)
    assert [publication["o3"] for publication in readings] == [42.59]
    assert (readings.report.values, readings.report.valid, readings.report.published) == (48, 1, 1)
    assert [str(trouble) for trouble in readings.report.troubles] == [
        "ene_mo17.csv:3: none of its 24 values is valid (station 4, no2, 2017-01-01)"
    ]
    assert readings.report.unused_rows == 1


def test_every_row_that_cannot_be_used_is_reported(folder: Path) -> None:
    bad_value = [("", "V"), ("nan", "V"), ("1_0", "V"), ("00001", "T")] + [("1,5", "V")] * 20
    write(
        folder,
        "ene_mo17.csv",
        row(4, 8, "2017-01-01"),
        row(99, 8, "2017-01-01"),
        row(4, 77, "2017-01-01"),
        row(4, 8, "2017-02-30"),
        row(4, 8, "2017-01-01"),
        "28;079;4;8;x;2017",
        row(4, 8, "2017-01-02").replace("2017", "year"),
        "",
        row(47, 8, "2017-01-01", bad_value),
    )
    readings = MadridYear(folder)
    publications = list(readings)
    assert len(publications) == 24 + 20
    assert {publication["no2"] for publication in publications if publication["station_id"] == 47} == {1.5}
    assert [(trouble.line, trouble.reason) for trouble in readings.report.troubles] == [
        (3, "station 99 is not in the list of stations"),
        (4, "magnitude 77 is not known"),
        (5, "no such day: 2017-02-30"),
        (6, "station 4, magnitude 8, 2017-01-01 was given before"),
        (7, "6 fields where the header has 56"),
        (8, "not whole numbers: '4, 8, year, 01, 02' (ESTACION, MAGNITUD, ANO, MES, DIA)"),
        (10, "H01 is flagged V but is no number: ''"),
        (10, "H02 is flagged V but is no number: 'nan'"),
        (10, "H03 is flagged V but is no number: '1_0'"),
        (10, "V04 is neither V nor N: 'T'"),
    ]
    assert (readings.report.rows, readings.report.unused_rows, readings.report.trouble_count) == (8, 6, 10)
    list(readings)
    assert readings.report.trouble_count == 10, "a second pass starts a new report"


def test_other_shapes_of_the_same_files(folder: Path) -> None:
    """Carriage returns, a byte order mark, columns in another order, gzip under a plain name."""
    order = [8 + index for index in range(48)] + list(range(8))
    shuffled = [";".join([line.split(";")[index] for index in order]) for line in (HEADER, row(4, 8, "2017-01-01"))]
    write(folder, "a.csv", shuffled[1], header="\ufeff" + shuffled[0], newline="\r\n")
    write(folder, "b.csv.gz", row(4, 8, "2017-01-02"))
    (folder / "b.csv.gz").rename(folder / "b.csv")
    readings = MadridYear(folder)
    assert len(list(readings)) == 48
    assert readings.report.troubles == []


def test_plain_beside_gzipped_and_foreign_files(folder: Path) -> None:
    write(folder, "ene.csv", row(4, 8, "2017-01-01"))
    write(folder, "ene.csv.gz", row(4, 8, "2017-01-01"))
    (folder / "other.csv").write_text("a,b\n1,2\n")
    (folder / "notes.txt").write_text("nothing")
    readings = MadridYear(folder)
    assert len(list(readings)) == 24
    assert [str(trouble) for trouble in readings.report.troubles] == [
        "ene.csv.gz: not read, as ene.csv is there too",
        "other.csv: not read, as its header is not that of a file of readings",
    ]


def test_a_truncated_file_gives_what_comes_before_the_damage(folder: Path) -> None:
    write(folder, "ene.csv.gz", *(row(4, 8, f"2017-01-{day:02}") for day in range(1, 32)))
    data = (folder / "ene.csv.gz").read_bytes()
    (folder / "ene.csv.gz").write_bytes(data[: len(data) - 12])
    readings = MadridYear(folder)
    count = len(list(readings))
    assert count == readings.report.published
    assert readings.report.troubles[-1].reason.startswith("damaged, what follows line")


def test_no_stations_no_readings_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ReadingsError, match="no such file"):
        MadridYear(tmp_path / "absent")
    with pytest.raises(ReadingsError, match=r"no estaciones\.csv"):
        MadridYear(tmp_path)
    (tmp_path / "estaciones.csv").write_text(STATIONS, encoding="utf-8")
    with pytest.raises(ReadingsError, match="no readings here"):
        MadridYear(tmp_path)
    (tmp_path / "estaciones.csv").write_text("NUMERO;ESTACION\n1;a\n", encoding="utf-8")
    with pytest.raises(ReadingsError, match="its header lacks LONGITUD"):
        MadridYear(tmp_path)


def test_stations_in_latin_1_and_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "estaciones.csv"
    path.write_bytes(
        (STATIONS + "5;Sin lugar;x;;;1;UT;;\n4;Otra vez;x;3º 1' 1''O;40º 1' 1''N;1;UT;;\n").encode("latin-1")
    )
    report = Report()
    assert sorted(read_stations(path, report)) == [4, 35, 47]
    assert [trouble.line for trouble in report.troubles] == [5, 6]


def test_hours_follow_the_clock_of_madrid() -> None:
    utc = 1490400000  # 2017-03-25 00:00
    assert hour_ends(date(2017, 3, 25))[0] == utc  # 01:00 CET
    assert hour_ends(date(2017, 3, 25))[23] == utc + 23 * 3600
    spring = hour_ends(date(2017, 3, 26))
    assert spring[:4] == [utc + 3600 * hours for hours in (24, 25, 25, 26)]
    assert spring[23] == utc + 46 * 3600
    autumn = hour_ends(date(2017, 10, 29))
    midnight = 1509235200  # 2017-10-29 00:00 UTC
    assert autumn[:4] == [midnight + 3600 * hours for hours in (-1, 0, 2, 3)]
    assert autumn[23] == midnight + 23 * 3600
    year = [end for day in range(1, 366) for end in hour_ends(date.fromordinal(date(2017, 1, 1).toordinal() + day - 1))]
    assert year == sorted(year)
    assert len(set(year)) == len(year) - 1


def test_a_file_alone_finds_its_stations(folder: Path) -> None:
    write(folder, "ene.csv", row(4, 8, "2017-01-01"))
    write(folder, "feb.csv", row(4, 8, "2017-02-01"))
    assert len(list(MadridYear(folder / "feb.csv"))) == 24


@pytest.mark.skipif(not REAL.is_dir(), reason="the city's files are not beside the repository")
def test_the_year_2017() -> None:
    readings = MadridYear(REAL)
    time = 0
    quantities = set()
    stations = set()
    for publication in readings:
        assert isinstance(publication["time"], int)
        assert publication["time"] >= time
        time = publication["time"]
        quantities.add(publication["quantity"])
        stations.add((publication["station_id"], publication["lat"], publication["lon"]))
    report = readings.report
    assert (report.rows, report.values, report.valid, report.published) == (54_845, 1_316_280, 1_305_120, 1_305_120)
    assert report.unused_rows == report.trouble_count == 43
    assert {trouble.reason[:30] for trouble in report.troubles} == {"none of its 24 values is valid"}
    assert report.faults == 0
    assert quantities == {name for name, _ in QUANTITIES.values()}
    assert len(stations) == 24
    assert all(40.33 < lat < 40.53 and -3.78 < lon < -3.57 for _, lat, lon in stations)
