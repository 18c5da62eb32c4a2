"""The five workloads: filters and publications, made again exactly by their seed.

    opensense  readings of four pollutants by 30 sensors in Zurich; a filter takes a random reading's type and
               value with a random operator of < <= == > >=, a fifth are time ranges (cupus-d451-2013 section 6)
    zgair      temperature, pressure, humidity, CO, NO2 and SO2 at 13,905 positions in Zagreb on six days; the same kind
               of filters (cupus-mcs-2015 section 6.1)
    silbops    10 numeric and 10 string attributes, 1 to 5 constraints a filter; publications of about 10
               attributes that each match at least one filter (e-silbops-2017 section 6)
    sgim       lo < x < hi over eight health attributes, 2 to 10 predicates a filter (1 to 5 ranges), uniform
               or Zipf 0.8 (sensor-cloud-2009 section 6)
    geofence   gas, a box of 2 % of the city's side in latitude and longitude, and a threshold; people and sensors crowd
               towards the centre

The papers give the kinds of filter and the sizes, not the data; where they leave a choice (how many values a
string attribute has, how wide a range is) it is made so that the matches per publication come near those that
other engines' figures were
measured with: opensense 930 of 10,000, zgair 1,350 of 20,000, silbops 14 and geofence 20 and sgim 9,650 of 100,000.

A filter is made as conditions; `text` and `form` turn them into its text and, without parsing, its normal form.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cluster.language.normal import AnyAtom, Interval, Member, NormalForm, Pattern

Publication = dict[str, bool | int | float | str | None]
Condition = tuple[str, str, int | float | str, int | float | str]
"""(attribute, operator, operand, second operand). Operators: those of the language on one operand, `between`,
and `inside` (greater than the operand and less than the second one)."""
Conditions = list[Condition]

NAMES = ("opensense", "zgair", "silbops", "sgim", "geofence")


@dataclass
class Workload:
    """filters: texts, one a subscription. publications: attributes."""

    filters: list[str]
    publications: list[Publication]


@dataclass
class Source:
    """A workload as it is made: first all conditions, then publications.

    conditions:   gives each filter's conditions, sorted by attribute; to be used up before publications are asked for.
    publications: makes the publications.
    """

    conditions: Iterator[Conditions]
    publications: Callable[[], list[Publication]]


def workload(name: str, subscriptions: int, publications: int, seed: int, distribution: str = "uniform") -> Workload:
    """Return a workload's filters as texts and its publications."""
    made = source(name, subscriptions, publications, seed, distribution)
    filters = [text(conditions) for conditions in made.conditions]
    return Workload(filters, made.publications())


def source(name: str, subscriptions: int, publications: int, seed: int, distribution: str = "uniform") -> Source:
    """Return a workload as conditions, for when a million texts would be too many to parse.

    distribution: uniform or zipf (exponent 0.8), for sgim only. Raises ValueError for unknown names.
    """
    if name not in NAMES:
        raise ValueError(f"unknown workload {name!r}: one of {', '.join(NAMES)}")
    if distribution not in ("uniform", "zipf") or (distribution == "zipf" and name != "sgim"):
        raise ValueError(f"no distribution {distribution!r} for {name}")
    filters = random.Random(f"{name} {seed} filters")
    rest = random.Random(f"{name} {seed} publications")
    if name == "silbops":
        return _silbops(filters, rest, subscriptions, publications)
    if name == "sgim":
        return _sgim(filters, rest, subscriptions, publications, distribution)
    if name == "geofence":
        return _geofence(filters, rest, subscriptions, publications)
    data = _OPENSENSE if name == "opensense" else _ZGAIR
    return _readings(data, random.Random(f"{name} data"), filters, rest, subscriptions, publications)


# ---- conditions as text and as normal form ----


def text(conditions: Conditions) -> str:
    """Return the filter's text."""
    parts = []
    for attribute, operator, operand, second in conditions:
        shown = f'"{operand}"' if isinstance(operand, str) else repr(operand)
        if operator == "between":
            parts.append(f"{attribute} between {shown} and {second!r}")
        elif operator == "inside":
            parts.append(f"{attribute} > {shown} and {attribute} < {second!r}")
        else:
            parts.append(f"{attribute} {operator} {shown}")
    return " and ".join(parts)


def form(conditions: Conditions) -> NormalForm:
    """Return the normal form that parsing the text gives."""
    atoms: list[AnyAtom] = []
    for attribute, operator, operand, second in conditions:
        if operator == "==":
            atoms.append(Member(attribute, (operand,)))
        elif operator == "!=":
            atoms.append(Member(attribute, (operand,), True))
        elif operator == "starts_with":
            assert isinstance(operand, str)
            atoms.append(Pattern(attribute, "starts_with", operand))
        else:
            assert not isinstance(operand, str)
            assert not isinstance(second, str)
            if operator in ("between", "inside"):
                is_open = operator == "inside"
                atoms.append(Interval(attribute, operand, second, is_open, is_open))
            elif operator in ("<", "<="):
                atoms.append(Interval(attribute, None, operand, False, operator == "<"))
            else:
                atoms.append(Interval(attribute, operand, None, operator == ">", False))
    return (tuple(atoms),)


# ---- opensense and zgair: a fixed set of readings ----


@dataclass(frozen=True)
class _Data:
    """types: name -> (share, mean, deviation, digits). spread_s: from the first to the last reading, seconds."""

    types: dict[str, tuple[float, float, float, int]]
    readings: int
    sensors: int
    positions: int
    centre: tuple[float, float]
    begin_s: int
    spread_s: int
    range_share: float
    weights: list[float] = field(default_factory=list)


_OPENSENSE = _Data(
    types={
        "co": (0.25, 0.45, 0.2, 3),
        "no2": (0.25, 38.0, 16.0, 1),
        "o3": (0.25, 55.0, 22.0, 1),
        "ufp": (0.25, 17000.0, 8000.0, 0),
    },
    readings=4000,
    sensors=30,
    positions=400,
    centre=(47.3769, 8.5417),
    begin_s=1_364_774_400,
    spread_s=30 * 86_400,
    range_share=0.13,
)
_ZGAIR = _Data(
    types={
        "temperature": (0.2, 27.0, 4.0, 2),
        "pressure": (0.2, 1002.0, 5.0, 2),
        "humidity": (0.2, 52.0, 12.0, 2),
        "co": (0.2, 0.9, 0.4, 3),
        "no2": (0.09, 0.06, 0.03, 4),
        "so2": (0.11, 0.04, 0.02, 4),
    },
    readings=84_000,
    sensors=20,
    positions=13_905,
    centre=(45.815, 15.9819),
    begin_s=1_404_463_127,
    spread_s=533_491,
    range_share=0.1,
)


def _readings(
    data: _Data, fixed: random.Random, filters: random.Random, rest: random.Random, subscriptions: int, count: int
) -> Source:
    latitude, longitude = data.centre
    positions = [
        (round(fixed.gauss(latitude, 0.02), 6), round(fixed.gauss(longitude, 0.03), 6)) for _ in range(data.positions)
    ]
    kinds = list(data.types)
    shares = [data.types[kind][0] for kind in kinds]
    readings: list[Publication] = []
    for kind in fixed.choices(kinds, shares, k=data.readings):
        _, mean, deviation, digits = data.types[kind]
        place = fixed.choice(positions)
        value = round(abs(fixed.gauss(mean, deviation)), digits)
        readings.append(
            {
                "sensor": fixed.randrange(data.sensors),
                "time": data.begin_s + fixed.randrange(data.spread_s),
                "lat": place[0],
                "lon": place[1],
                "type": kind,
                "value": value,
            }
        )

    def conditions() -> Iterator[Conditions]:
        for _ in range(subscriptions):
            reading = filters.choice(readings)
            if filters.random() < 0.2:
                time = reading["time"]
                assert isinstance(time, int)
                half = int(filters.random() * data.range_share * data.spread_s / 2 * 2)
                yield [("time", "between", time - half // 2, time + half // 2 + 1)]
            else:
                kind, value = reading["type"], reading["value"]
                assert isinstance(kind, str)
                assert isinstance(value, float)
                operator = filters.choice(("<", "<=", "==", ">", ">="))
                yield [("type", "==", kind, ""), ("value", operator, value, 0)]

    return Source(conditions(), lambda: [dict(rest.choice(readings)) for _ in range(count)])


# ---- silbops ----

_STRING_VALUES = 1000
_NUMBERS_TO = 1000


def _word(attribute: int, value: int) -> str:
    """Return a value of a string attribute: three letters that a tenth of the values share, then digits."""
    return f"{'bcdfghklmn'[value % 10]}{'aeiou'[attribute % 5]}r{value:03d}"


def _silbops(filters: random.Random, rest: random.Random, subscriptions: int, count: int) -> Source:
    chosen = sorted(rest.randrange(max(1, subscriptions)) for _ in range(count))
    satisfied: list[Conditions] = []

    def condition(attribute: int, selective: bool) -> Condition:
        """Make a condition; a selective one holds for about one value in a thousand to one in a hundred."""
        draw = filters.random()
        if attribute < 10:
            name = f"n{attribute}"
            value = filters.randrange(_NUMBERS_TO)
            if draw < 0.4:
                return name, "==", value, 0
            if draw < 0.7 or selective:
                low = round(filters.random() * _NUMBERS_TO, 2)
                return name, "between", low, round(low + 0.01 + 4 * filters.random(), 2)
            return name, filters.choice(("<", "<=", ">", ">=")), value, 0
        name = f"s{attribute - 10}"
        value = filters.randrange(_STRING_VALUES)
        word = _word(attribute, value)
        if draw < 0.7:
            return name, "==", word, ""
        if draw < 0.9 or selective:
            # The prefix leaves out the last digit: ten values at most, one in a hundred of those with these letters.
            return name, "starts_with", word[:-1], ""
        return name, "!=", word, ""

    def conditions() -> Iterator[Conditions]:
        place = 0
        for subscription in range(subscriptions):
            attributes = sorted(filters.sample(range(20), filters.randint(1, 5)))
            selective = filters.choice(attributes)
            made = [condition(attribute, attribute == selective) for attribute in attributes]
            while place < count and chosen[place] == subscription:
                satisfied.append(made)
                place += 1
            yield made

    def publications() -> list[Publication]:
        made = []
        for target in satisfied:
            publication: Publication = {}
            for name, operator, operand, second in target:
                publication[name] = _satisfying(rest, name, operator, operand, second)
            for attribute in rest.sample(range(20), rest.randint(8, 12)):
                name = f"n{attribute}" if attribute < 10 else f"s{attribute - 10}"
                if name not in publication and len(publication) < 12:
                    publication[name] = (
                        rest.randrange(_NUMBERS_TO)
                        if attribute < 10
                        else _word(attribute, rest.randrange(_STRING_VALUES))
                    )
            made.append(publication)
        rest.shuffle(made)
        return made

    return Source(conditions(), publications)


def _satisfying(
    rest: random.Random, name: str, operator: str, operand: int | float | str, second: int | float | str
) -> int | float | str:
    """Return a value that satisfies a condition of silbops."""
    if isinstance(operand, str):
        if operator == "!=":
            return "none"
        return operand + "0" if operator == "starts_with" else operand
    assert not isinstance(second, str)
    if operator == "between":
        return operand + (second - operand) * rest.random()
    if operator in ("<", ">"):
        return operand - 1 if operator == "<" else operand + 1
    return operand


# ---- sgim ----

_HEALTH = (
    "blood_glucose",
    "body_temperature",
    "diastolic_pressure",
    "heart_rate",
    "oxygen_saturation",
    "respiration_rate",
    "skin_conductance",
    "systolic_pressure",
)
_LEVELS = 10_000


def _sgim(filters: random.Random, rest: random.Random, subscriptions: int, count: int, distribution: str) -> Source:
    cumulated: list[float] = []
    if distribution == "zipf":
        cumulated = list(itertools.accumulate((level + 1) ** -0.8 for level in range(_LEVELS)))

    def draw(rng: random.Random) -> float:
        if cumulated:
            return bisect.bisect_left(cumulated, rng.random() * cumulated[-1]) / 100
        return round(rng.random() * 100, 4)

    def conditions() -> Iterator[Conditions]:
        for _ in range(subscriptions):
            made: Conditions = []
            for attribute in sorted(filters.sample(_HEALTH, filters.randint(1, 5))):
                low, high = sorted((draw(filters), draw(filters)))
                if low == high:
                    high = low + 0.01
                made.append((attribute, "inside", low, high))
            yield made

    return Source(conditions(), lambda: [{attribute: draw(rest) for attribute in _HEALTH} for _ in range(count)])


# ---- geofence ----

_GASES = ("co", "no2", "o3", "pm10", "so2")
_SOUTH, _WEST, _SIDE_LATITUDE, _SIDE_LONGITUDE = 40.31, -3.83, 0.25, 0.33
_BOX = 0.02
_CROWDING = 0.126  # standard deviation of places, in sides: five times the density of an even spread where people are


def _geofence(filters: random.Random, rest: random.Random, subscriptions: int, count: int) -> Source:
    def place(rng: random.Random) -> tuple[float, float]:
        south = min(max(rng.gauss(0.5, _CROWDING), 0.0), 1.0)
        west = min(max(rng.gauss(0.5, _CROWDING), 0.0), 1.0)
        return _SOUTH + _SIDE_LATITUDE * south, _WEST + _SIDE_LONGITUDE * west

    def value(rng: random.Random) -> float:
        return round(min(rng.lognormvariate(3.5, 0.6), 500.0), 1)

    def conditions() -> Iterator[Conditions]:
        for _ in range(subscriptions):
            latitude, longitude = place(filters)
            half_latitude, half_longitude = _SIDE_LATITUDE * _BOX / 2, _SIDE_LONGITUDE * _BOX / 2
            yield [
                ("gas", "==", filters.choice(_GASES), ""),
                ("lat", "between", round(latitude - half_latitude, 6), round(latitude + half_latitude, 6)),
                ("lon", "between", round(longitude - half_longitude, 6), round(longitude + half_longitude, 6)),
                ("value", ">", value(filters), 0),
            ]

    def publications() -> list[Publication]:
        made: list[Publication] = []
        for index in range(count):
            latitude, longitude = place(rest)
            made.append(
                {
                    "sensor": rest.randrange(1000),
                    "time": 1_511_827_200 + index,
                    "gas": rest.choice(_GASES),
                    "lat": round(latitude, 6),
                    "lon": round(longitude, 6),
                    "value": value(rest),
                }
            )
        return made

    return Source(conditions(), publications)
