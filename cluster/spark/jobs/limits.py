"""The limit values that readings are held against: YAML -> checked, typed settings. `configs/limits.yaml` is the list.

A mean counts as an exceedance when it lies above the value, not at it. What a mean is taken over:

    hour          a clock hour of UTC
    eight_hours   the day's highest running mean of eight hours; each belongs to the day on which it ends
    day           a day of the time zone, midnight to midnight
    year          a calendar year of the time zone

Source of these: Directive 2008/50/EC, annexes VII and XI.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from cluster.config import Settings, read_yaml, settings_from
from cluster.errors import ConfigError

Averaging = Literal["hour", "eight_hours", "day", "year"]
Share = Annotated[float, Meta(gt=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=100)]

HERE = Path(__file__).parent
DEFAULT_PATHS = (HERE / "limits.yaml", HERE.parents[2] / "configs" / "limits.yaml")
"""Where the list lies: beside this file once installed, else in the repository."""


class Coverage(Settings, frozen=True):
    """The share of hours with a value that a mean needs to count; below it, it is left out or marked incomplete."""

    eight_hours: Share = 0.75
    day: Share = 0.75
    year: Share = 0.9


class Limit(Settings, frozen=True):
    """One value.

    name:        unique; what tables and the report call it.
    set:         the list that it belongs to, "EU 2008" say.
    unit:        of `value` and of the readings; nothing is converted.
    allowed:     exceedances a calendar year that are still within the limit (days for eight_hours).
    consecutive: so many hours in a row make one exceedance; 1 but for alert thresholds.
    """

    name: Name
    set: Name
    quantity: Name
    averaging: Averaging
    value: Annotated[float, Meta(gt=0)]
    unit: Name
    allowed: Annotated[int, Meta(ge=0)] = 0
    consecutive: Annotated[int, Meta(ge=1, le=24)] = 1
    note: str = ""


class Limits(Settings, frozen=True):
    """A whole list."""

    coverage: Coverage = Coverage()
    limits: tuple[Limit, ...] = ()


def limits_from(document: object, source: str) -> Limits:
    """Return the limits that a parsed document holds. Raises ConfigError, which names the source and the key."""
    found = settings_from(document, Limits, source)
    names: set[str] = set()
    for place, limit in enumerate(found.limits):
        where = f"{source}: limits[{place}]"
        if limit.name in names:
            raise ConfigError(f"{where}.name: {limit.name!r} is there twice")
        names.add(limit.name)
        if limit.consecutive > 1 and limit.averaging != "hour":
            raise ConfigError(f"{where}.consecutive: {limit.consecutive}, only hours can be asked for in a row")
        if limit.averaging == "year" and limit.allowed:
            raise ConfigError(f"{where}.allowed: {limit.allowed}, a year's mean is there once a year")
    if not found.limits:
        raise ConfigError(f"{source}: limits: none")
    return found


def load_limits(path: str | Path | None = None) -> Limits:
    """Read a list of limits; None: the one that comes with Kittiwake. Raises ConfigError."""
    if path is None:
        path = next((each for each in DEFAULT_PATHS if each.is_file()), DEFAULT_PATHS[-1])
    return limits_from(read_yaml(path), str(path))
