"""Plausible readings of a city that does not exist, so that demo, tests and benchmarks run anywhere.

Laro is a harbour city with 24 stations. Each hour every station measures what its kind measures; a publication has
the shape of Madrid's (madrid.py), with `temperature` (°C) and `humidity` (%) besides the gases and dusts (µg/m³; CO
in mg/m³).

What makes them plausible: daily cycles (two rush hours for NO, NO2 and CO; ozone high on warm afternoons and eaten by
NO), working days against weekends, seasons, a wind that all stations share and that thins everything out, rain
that washes dust down, and noise that remembers the hours before (first-order autoregression), each station its own.
Same seed, same readings, on every machine: random.Random and plain arithmetic only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.readings.source import Publication, Report

START = 1_735_689_600
"""2025-01-01 00:00 UTC, a Wednesday; Laro's clock is UTC."""

_TRAFFIC, _BACKGROUND, _SUBURB = "UT", "UF", "S"  # the codes of Madrid, so that the same filters fit both

_STATIONS = (
    ("Plaza del Faro", _TRAFFIC, 0.002, -0.004, 6),
    ("Plaza Mayor", _TRAFFIC, 0.011, 0.003, 21),
    ("Plaza de los Aljibes", _BACKGROUND, 0.019, -0.012, 34),
    ("Harbour Gate", _TRAFFIC, -0.006, 0.009, 4),
    ("Customs Quay", _BACKGROUND, -0.009, -0.002, 3),
    ("Old Shipyard", _BACKGROUND, -0.012, 0.021, 5),
    ("Central Station", _TRAFFIC, 0.008, 0.014, 18),
    ("Ring Road North", _TRAFFIC, 0.041, 0.006, 62),
    ("Ring Road East", _TRAFFIC, 0.014, 0.047, 41),
    ("Ring Road West", _TRAFFIC, 0.017, -0.045, 38),
    ("University", _BACKGROUND, 0.029, 0.019, 55),
    ("Botanical Garden", _BACKGROUND, 0.024, -0.003, 44),
    ("Hospital Hill", _BACKGROUND, 0.033, -0.017, 97),
    ("Market Street", _TRAFFIC, 0.006, -0.011, 15),
    ("Mill Lane", _BACKGROUND, 0.015, 0.026, 29),
    ("Tannery Bridge", _TRAFFIC, 0.001, 0.031, 9),
    ("Saltmarsh", _SUBURB, -0.019, 0.052, 2),
    ("Airport", _SUBURB, 0.037, 0.071, 48),
    ("Pine Ridge", _SUBURB, 0.068, -0.022, 214),
    ("Windmill Heights", _SUBURB, 0.059, 0.024, 176),
    ("Gull Rock", _SUBURB, -0.024, -0.038, 31),
    ("Vineyards", _SUBURB, 0.052, 0.049, 133),
    ("Reservoir", _SUBURB, 0.075, 0.008, 251),
    ("West Beach", _SUBURB, -0.003, -0.061, 2),
)
_LATITUDE, _LONGITUDE = 41.35, 2.25  # the old lighthouse, somewhere off a coast

_DUST = ("pm10", "pm25")
_MEASURES = {
    _TRAFFIC: ("no", "no2", "co", *_DUST),
    _BACKGROUND: ("no", "no2", "o3", *_DUST, "temperature"),
    _SUBURB: ("no2", "o3", "so2", "pm10", "temperature", "humidity"),
}
_EMISSION = {_TRAFFIC: 1.0, _BACKGROUND: 0.55, _SUBURB: 0.18}
_MEMORY = 0.85  # how much of an hour's deviation is left after another hour


@dataclass(slots=True)
class _Series:
    """One quantity at one station, with its noise of the last hour."""

    shared: Publication
    quantity: str
    emission: float
    altitude: int
    noise: float


@dataclass(slots=True)
class _Weather:
    """The city's weather now. wind: m/s; rain: mm/h; anomaly: °C above the season's mean."""

    wind: float
    rain: float
    anomaly: float


class CityGenerator:
    """Readings of Laro, hour by hour, `count` in all (144 or so an hour).

    count:   0 or more. seed: any integer. start: seconds since 1970 UTC, the end of the first hour.
    """

    def __init__(self, count: int = 100_000, *, seed: int = 1, start: int = START) -> None:
        if count < 0:
            raise ValueError(f"count is {count}, expected 0 or more")
        self._count = count
        self._seed = seed
        self._start = start
        self.report = Report()
        self.fraction = 0.0

    def __iter__(self) -> Iterator[Publication]:
        report = self.report = Report()
        self.fraction = 0.0
        if not self._count:
            self.fraction = 1.0
            return
        rng = random.Random(self._seed)
        series = _all_series(rng)
        weather = _Weather(wind=3.0, rain=0.0, anomaly=0.0)
        time = self._start
        while True:
            _move_weather(weather, rng)
            cycle = _cycle(time, weather)
            for one in series:
                value = _measure(one, cycle, weather, rng)
                publication = one.shared.copy()
                publication["time"] = time
                publication[one.quantity] = value
                report.rows += 1
                report.values += 1
                report.valid += 1
                report.published += 1
                self.fraction = report.published / self._count
                yield publication
                if report.published == self._count:
                    return
            time += 3600


def _all_series(rng: random.Random) -> list[_Series]:
    series = []
    for number, (name, kind, north, east, altitude) in enumerate(_STATIONS, 1):
        shared: Publication = {
            "station": name,
            "station_id": number,
            "station_type": kind,
            "lat": round(_LATITUDE + north, 6),
            "lon": round(_LONGITUDE + east, 6),
            "altitude": altitude,
            "time": 0,
        }
        busy = _EMISSION[kind] * rng.uniform(0.75, 1.3)
        for quantity in _MEASURES[kind]:
            series.append(_Series({**shared, "quantity": quantity}, quantity, busy, altitude, rng.gauss(0, 0.3)))
    return series


def _move_weather(weather: _Weather, rng: random.Random) -> None:
    weather.wind = min(14.0, max(0.4, weather.wind + 0.15 * (3.2 - weather.wind) + rng.gauss(0, 0.7)))
    weather.anomaly = 0.97 * weather.anomaly + rng.gauss(0, 0.6)
    if weather.rain:
        weather.rain = 0.0 if rng.random() < 0.22 else max(0.1, weather.rain + rng.gauss(0, 0.8))
    elif rng.random() < 0.02:
        weather.rain = rng.expovariate(0.6)


@dataclass(slots=True)
class _Cycle:
    """What the clock and the calendar make of this hour. traffic: 0 to 1; sun: 0 to 1; temperature: °C at sea level."""

    traffic: float
    sun: float
    temperature: float
    dilution: float


def _cycle(time: int, weather: _Weather) -> _Cycle:
    hour = (time % 86_400) / 3_600 - 0.5  # the middle of the hour that ends now
    weekday = (time // 86_400 + 3) % 7  # 1970-01-01 was a Thursday
    year = math.cos(2 * math.pi * (time / 86_400 - 20) / 365.25)  # 1 in late January, -1 in late July
    morning, evening = math.exp(-(((hour - 8.2) / 1.6) ** 2)), math.exp(-(((hour - 19.2) / 2.3) ** 2))
    day = 0.35 if 6.5 < hour < 22 else 0.06
    share = (1.0, 1.0, 1.0, 1.0, 1.05, 0.62, 0.5)[weekday]
    sun = max(0.0, math.sin(math.pi * (hour - 6 - year) / (12 - 2 * year))) * (0.75 - 0.25 * year)
    if weather.rain:
        sun *= 0.3
    temperature = 16 - 7.5 * year + 4.5 * math.sin(math.pi * (hour - 9) / 12) + weather.anomaly
    return _Cycle(
        traffic=share * min(1.0, day + 0.75 * morning + 0.65 * evening),
        sun=sun,
        temperature=temperature,
        dilution=(1.35 + 0.25 * year) * 3.0 / (1.2 + weather.wind),
    )


def _measure(one: _Series, cycle: _Cycle, weather: _Weather, rng: random.Random) -> float:
    """Return the hour's value and move the series' noise on."""
    noise = one.noise = _MEMORY * one.noise + rng.gauss(0, 0.16)
    spread = math.exp(noise)
    load = one.emission * cycle.traffic * cycle.dilution
    quantity = one.quantity
    if quantity == "no":
        value = 1 + 60 * load * load * spread
    elif quantity == "no2":
        value = 5 + 62 * load**0.7 * spread
    elif quantity == "co":
        return round(max(0.1, 0.2 + 0.75 * load * spread), 1)
    elif quantity == "o3":
        value = max(2.0, (38 + 95 * cycle.sun) * math.exp(0.5 * noise) - 42 * load)
    elif quantity == "so2":
        value = 2 + 4 * cycle.dilution * spread
    elif quantity == "temperature":
        return round(cycle.temperature - 0.0065 * one.altitude + 1.5 * noise, 1)
    elif quantity == "humidity":
        wet = 30.0 if weather.rain else 0.0
        return round(min(100.0, max(8.0, 66 - 1.6 * (cycle.temperature - 16) + wet + 12 * noise)), 1)
    else:
        washed = 1 / (1 + 0.8 * weather.rain)
        value = (8 + 26 * load + 9 * cycle.dilution) * spread * washed
        if quantity == "pm25":
            value *= 0.55
    return round(value, 1)
