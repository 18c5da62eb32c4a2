"""The city of Madrid's hourly air-quality files.

Promise: every value flagged `V` becomes one publication, in time order over the whole folder; everything else is
counted, and each row that gave nothing is reported with its file, line and reason.

    {"station": "Pza. de Espana", "station_id": 4, "station_type": "UT", "lat": 40.423853, "lon": -3.712247,
     "altitude": 635, "time": 1483228800, "quantity": "no2", "no2": 45.0}

A folder holds `estaciones.csv` (the stations) and files of readings, one a month, under any name; each is known by
its header, and each may be gzipped. A row of readings is a station, a magnitude and a day, with 24 values
`H01`..`H24` and their flags `V01`..`V24`. Files are taken by the first day in them, since `abr` (April) sorts before
`ene` (January); within a file the rows, which stand station by station, are turned into time order. A file's lines
are held while it is read (a month: 1.7 MB), never more than one file's.

Stations. Degrees, minutes, seconds; `O` (oeste) is west. The seconds' mark comes as `''`, as `"` or as `'`, with
a decimal comma or none. `station_type` is the city's code: UT urban traffic, UF urban background, S suburban.
lat and lon are rounded to six digits (0.1 m); altitude is in metres.

Time. `time` is the end of the hour over which the value was measured, in whole seconds since 1970 UTC: a number, so
that `time between a and b` is a range for the index. `H01` ends at 01:00, `H24` at midnight. The files do not say which
clock; they follow Madrid's civil one: the morning peak of NO stays at H09 on the working days after 26 March 2017,
where a clock that stayed on winter time would have moved it to H08, and it is again at H09 after 29 October. So
CET, and CEST between the European Union's changes (last Sundays of March and October, 01:00 UTC). The files give 24
values on those two days as well: in March `H03`, an hour that the clock skipped, gets the same time as `H02`; in
October the hour that came twice is given once, and `H03` lies two hours after `H02`.

Units are those of the city: QUANTITIES.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from cluster.readings.source import DAMAGED, Publication, ReadingsError, Report, open_binary, size_bytes

QUANTITIES: dict[int, tuple[str, str]] = {
    1: ("so2", "µg/m³"),
    6: ("co", "mg/m³"),
    7: ("no", "µg/m³"),
    8: ("no2", "µg/m³"),
    9: ("pm25", "µg/m³"),
    10: ("pm10", "µg/m³"),
    12: ("nox", "µg/m³"),
    14: ("o3", "µg/m³"),
    20: ("toluene", "µg/m³"),
    30: ("benzene", "µg/m³"),
    35: ("ethylbenzene", "µg/m³"),
    42: ("total_hydrocarbons", "mg/m³"),
    43: ("methane", "mg/m³"),
    44: ("non_methane_hydrocarbons", "mg/m³"),
}
"""Magnitude code -> attribute name, unit."""

KEY_COLUMNS = ("ESTACION", "MAGNITUD", "ANO", "MES", "DIA")
HOUR_COLUMNS = tuple(f"H{hour:02}" for hour in range(1, 25))
FLAG_COLUMNS = tuple(f"V{hour:02}" for hour in range(1, 25))
STATION_COLUMNS = ("NUMERO", "ESTACION", "LONGITUD", "LATITUD", "ALTITUD", "TIPO ESTACION")

_COORDINATE = re.compile(
    r"\s* (\d{1,3}) \s*[º°]\s* (\d{1,2}) \s*['’′´]\s* (\d{1,2}(?:[.,]\d*)?) \s*['’′´\"”″]{1,2}\s* ([NSEOW]) \s*",
    re.VERBOSE,
)
_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d*)?")
_VALUES_CACHED = 100_000
_UNKNOWN = math.nan  # stands for "flagged V but not a number" in the cache


@dataclass(frozen=True, slots=True)
class Station:
    """A row of estaciones.csv."""

    number: int
    name: str
    kind: str
    latitude: float
    longitude: float
    altitude: int

    def attributes(self) -> Publication:
        """Return the attributes that all publications of this station share."""
        return {
            "station": self.name,
            "station_id": self.number,
            "station_type": self.kind,
            "lat": self.latitude,
            "lon": self.longitude,
            "altitude": self.altitude,
        }


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a file of readings has what; its header decides."""

    count: int
    keys: Callable[[list[str]], tuple[str, ...]]
    hours: Callable[[list[str]], tuple[str, ...]]
    flags: Callable[[list[str]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    columns: _Columns
    first_day: date
    size: int


_Row = tuple[int, int, int, date, str]  # line number, station, magnitude, day, the line
_Series = tuple[Publication, str, list[float | None]]  # shared attributes, quantity, a value for each hour


class MadridYear:
    """A folder of the city's files, or one file of readings (the stations are then looked up beside it).

    Raises: ReadingsError when there are no stations or no readings at all. Whatever else is wrong is in the report.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not path.exists():
            raise ReadingsError(f"{path}: no such file or folder")
        self._folder = path if path.is_dir() else path.parent
        self._only = None if path.is_dir() else path
        self.report = Report()
        self.fraction = 0.0
        self._prepare(Report())

    def __iter__(self) -> Iterator[Publication]:
        report = self.report = Report()
        self.fraction = 0.0
        stations, files = self._prepare(report)
        bytes_total = sum(file.size for file in files)
        bytes_before = 0
        seen: set[tuple[int, int, date]] = set()
        numbers: dict[str, float] = {}
        for file in files:
            days = self._rows_by_day(file, stations, seen, report)
            for index, day in enumerate(sorted(days)):
                series = [
                    one for row in days.pop(day) if (one := _series(row, file, stations, numbers, report)) is not None
                ]
                for hour, time in enumerate(hour_ends(day)):
                    for shared, quantity, values in series:
                        value = values[hour]
                        if value is not None:
                            publication = shared.copy()
                            publication["time"] = time
                            publication[quantity] = value
                            report.published += 1
                            yield publication
                self.fraction = (bytes_before + file.size * (index + 1) / (index + 1 + len(days))) / bytes_total
            bytes_before += file.size
        self.fraction = 1.0

    def _prepare(self, report: Report) -> tuple[dict[int, Station], list[_File]]:
        stations = self._stations(report)
        files = []
        for path in [self._only] if self._only else _candidates(self._folder, report):
            file = _look(path, report)
            if file is not None:
                files.append(file)
        if not files:
            raise ReadingsError(
                f"{self._only or self._folder}: no readings here; a file of readings is .csv or .csv.gz and its header "
                f"names {', '.join(KEY_COLUMNS)}, H01..H24 and V01..V24"
            )
        files.sort(key=lambda file: (file.first_day, file.path.name))
        return stations, files

    def _stations(self, report: Report) -> dict[int, Station]:
        for path in _csv_files(self._folder):
            if path.name.lower().startswith("estaciones"):
                return read_stations(path, report)
        raise ReadingsError(f"{self._folder}: no estaciones.csv or estaciones.csv.gz, which gives the stations")

    def _rows_by_day(
        self, file: _File, stations: dict[int, Station], seen: set[tuple[int, int, date]], report: Report
    ) -> dict[date, list[_Row]]:
        """Read a file's rows, refuse those whose key is of no use, and return the others by day, in file order."""
        days: dict[date, list[_Row]] = {}
        name = file.path.name
        for number, line in _lines(file.path, report):
            if number == 1:
                continue
            report.rows += 1
            fields = line.split(";")
            if len(fields) != file.columns.count:
                reason = f"{len(fields)} fields where the header has {file.columns.count}"
                report.trouble(name, number, reason, unused_row=True)
                continue
            report.values += 24
            try:
                station, magnitude, day = _key(file.columns.keys(fields), stations)
            except ValueError as error:
                report.trouble(name, number, str(error), unused_row=True)
                continue
            if (station, magnitude, day) in seen:
                reason = f"station {station}, magnitude {magnitude}, {day} was given before"
                report.trouble(name, number, reason, unused_row=True)
                continue
            seen.add((station, magnitude, day))
            days.setdefault(day, []).append((number, station, magnitude, day, line))
        return days


def _key(fields: tuple[str, ...], stations: dict[int, Station]) -> tuple[int, int, date]:
    """Return a row's (station, magnitude, day); ValueError says what is wrong with it."""
    try:
        station, magnitude, year, month, day = map(int, fields)
    except ValueError:
        raise ValueError(f"not whole numbers: {', '.join(fields)!r} ({', '.join(KEY_COLUMNS)})") from None
    if station not in stations:
        raise ValueError(f"station {station} is not in the list of stations")
    if magnitude not in QUANTITIES:
        raise ValueError(f"magnitude {magnitude} is not known")
    try:
        return station, magnitude, date(year, month, day)
    except ValueError:
        raise ValueError(f"no such day: {year}-{month:02}-{day:02}") from None


def _series(
    row: _Row, file: _File, stations: dict[int, Station], numbers: dict[str, float], report: Report
) -> _Series | None:
    """Return a row's values hour by hour, None where there is none to publish; None if it has none at all."""
    number, station, magnitude, day, line = row
    fields = line.split(";")
    values: list[float | None] = []
    valid = 0
    troubled = False
    for hour, (text, flag) in enumerate(zip(file.columns.hours(fields), file.columns.flags(fields), strict=True), 1):
        if flag == "V":
            value = numbers.get(text)
            if value is None:
                value = _number(text)
                if len(numbers) < _VALUES_CACHED:
                    numbers[text] = value
            if value == value:  # not _UNKNOWN
                values.append(value)
                valid += 1
                continue
            report.trouble(file.path.name, number, f"H{hour:02} is flagged V but is no number: {text!r}")
            troubled = True
        elif flag != "N":
            report.trouble(file.path.name, number, f"V{hour:02} is neither V nor N: {flag!r}")
            troubled = True
        values.append(None)
    if not valid:
        if troubled:
            report.unused_rows += 1
        else:
            about = f"station {station}, {QUANTITIES[magnitude][0]}, {day}"
            reason = f"none of its 24 values is valid ({about})"
            report.trouble(file.path.name, number, reason, unused_row=True, fault=False)
        return None
    report.valid += valid
    quantity = QUANTITIES[magnitude][0]
    return {**stations[station].attributes(), "time": 0, "quantity": quantity}, quantity, values


def _number(text: str) -> float:
    text = text.strip()
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else _UNKNOWN


def _csv_files(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ReadingsError(f"{folder}: {error.strerror or error}") from error
    return [path for path in entries if path.name.lower().endswith((".csv", ".csv.gz")) and path.is_file()]


def _candidates(folder: Path, report: Report) -> list[Path]:
    """Return the files that may hold readings; where a file stands both plain and gzipped, the plain one."""
    paths = [path for path in _csv_files(folder) if not path.name.lower().startswith("estaciones")]
    names = {path.name for path in paths}
    kept = []
    for path in paths:
        if path.name.endswith(".gz") and path.name[:-3] in names:
            report.trouble(path.name, 0, f"not read, as {path.name[:-3]} is there too")
        else:
            kept.append(path)
    return kept


def _lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """Yield a file's lines that are not empty, with their numbers; a damaged file ends where the damage begins.

    Latin 1 never fails, and the files' own characters are ASCII; whatever is not shows as a field of no use.
    """
    contents, disk = open_binary(path)
    number = 0
    try:
        with disk, contents:
            for number, line in enumerate(contents, 1):
                text = line.decode("latin-1").strip("\r\n \ufeff")
                if text:
                    yield number, text.removeprefix("ï»¿")
    except DAMAGED as error:
        report.trouble(path.name, 0, f"damaged, what follows line {number} is lost: {error}")


def _look(path: Path, report: Report) -> _File | None:
    """Read a file's header and first usable day; None, and a line in the report, if it holds no readings."""
    lines = _lines(path, report)
    columns = None
    with_day = itertools.islice(lines, 1_000)  # a header, and enough rows to find one whose day can be read
    for number, line in with_day:
        if columns is None:
            if number != 1 or (columns := _columns(line)) is None:
                break
            continue
        try:
            _, _, year, month, day = map(int, columns.keys(line.split(";")))
            return _File(path, columns, date(year, month, day), size_bytes(path))
        except (ValueError, IndexError):
            continue
    if columns is None:
        report.trouble(path.name, 0, "not read, as its header is not that of a file of readings")
        return None
    return _File(path, columns, date.max, size_bytes(path))


def _columns(header: str) -> _Columns | None:
    names = [name.strip().upper() for name in header.split(";")]
    try:
        keys, hours, flags = (
            operator.itemgetter(*(names.index(name) for name in wanted))
            for wanted in (KEY_COLUMNS, HOUR_COLUMNS, FLAG_COLUMNS)
        )
    except ValueError:
        return None
    return _Columns(len(names), keys, hours, flags)


def read_stations(path: Path, report: Report) -> dict[int, Station]:
    """Return the stations by number; a row that cannot be used is in the report. Raises ReadingsError.

    The file is UTF-8 or, as the city's older ones, Latin 1.
    """
    contents, disk = open_binary(path)
    try:
        with disk, contents:
            data = contents.read()
    except DAMAGED as error:
        raise ReadingsError(f"{path}: damaged: {error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=";")
    header = [name.strip().upper() for name in next(rows, [])]
    missing = [name for name in STATION_COLUMNS if name not in header]
    if missing:
        raise ReadingsError(f"{path}: its header lacks {', '.join(missing)}")
    wanted = operator.itemgetter(*(header.index(name) for name in STATION_COLUMNS))
    stations: dict[int, Station] = {}
    for row in rows:
        if not any(field.strip() for field in row):
            continue
        try:
            number, name, longitude, latitude, altitude, kind = (field.strip() for field in wanted(row))
            station = Station(
                number=int(number),
                name=name,
                kind=kind,
                latitude=parse_coordinate(latitude, "NS"),
                longitude=parse_coordinate(longitude, "EOW"),
                altitude=int(altitude),
            )
        except (ValueError, IndexError) as error:
            report.trouble(path.name, rows.line_num, f"not a station: {error}")
            continue
        if station.number in stations:
            report.trouble(path.name, rows.line_num, f"station {station.number} was given before")
            continue
        stations[station.number] = station
    if not stations:
        raise ReadingsError(f"{path}: not one station in it can be used")
    return stations


def parse_coordinate(text: str, hemispheres: str) -> float:
    """Return degrees, south and west negative, rounded to 1e-6. Raises ValueError.

    hemispheres: the letters allowed at the end, "NS" or "EOW"; O is west.
    """
    match = _COORDINATE.fullmatch(text)
    if match is None or match[4] not in hemispheres:
        raise ValueError(f"not degrees, minutes, seconds and one of {hemispheres}: {text!r}")
    degrees, minutes, seconds = int(match[1]), int(match[2]), float(match[3].replace(",", "."))
    value = degrees + minutes / 60 + seconds / 3600
    if minutes >= 60 or seconds >= 60 or value > (90 if match[4] in "NS" else 180):
        raise ValueError(f"out of range: {text!r}")
    return round(-value if match[4] in "SOW" else value, 6)


def hour_ends(day: date) -> list[int]:
    """Return when the hours H01 to H24 of a day on Madrid's clock end, in seconds since 1970 UTC."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    start = int(midnight.timestamp())
    spring, autumn = _last_sunday(day.year, 3), _last_sunday(day.year, 10)
    ends = []
    for hour in range(1, 25):
        local = start + 3600 * hour
        day_on_clock, hour_on_clock = (day, hour) if hour < 24 else (day + timedelta(1), 0)
        # The clock goes from 02:00 to 03:00, and back from 03:00 to 02:00. 02:00 in March is still winter's
        # (the same instant as 03:00 summer time); 02:00 in October is taken as summer's, the first of the two.
        summer = (spring, 3) <= (day_on_clock, hour_on_clock) < (autumn, 3)
        ends.append(local - (7200 if summer else 3600))
    return ends


def _last_sunday(year: int, month: int) -> date:
    last = date(year, month, 31)  # March and October both have 31 days
    return last - timedelta(days=(last.weekday() + 1) % 7)
