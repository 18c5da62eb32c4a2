"""Places on the earth: distance, boxes, and the box around a circle.

Coordinates are degrees, WGS 84; distance is along the great circle of a sphere with the earth's mean radius, which is
within 0.6 % of the ellipsoid's. A pair of numbers is a place when latitude is in -90..90 and longitude in -180..180;
any other pair lies in no box and near nothing (it isn't wrapped round: 190 is more often a mistake than a way to
write -170).
Longitudes 180 and -180 are one meridian, and at a pole every longitude is the same place.

A box whose west is greater than its east crosses the date line.
"""

from __future__ import annotations

import math

EARTH_RADIUS_METRES = 6_371_008.8  # mean radius of WGS 84, (2a + b) / 3, IUGG

# Radians added around a circle before its box is taken. The haversine formula in doubles errs by at most about 2e-8 rad
# (near the antipode, where asin is steep); 1e-7 rad is 0.64 m on the ground.
_MARGIN_RADIANS = 1e-7

Ranges = tuple[tuple[float, float], ...]


def is_place(latitude: float, longitude: float) -> bool:
    """Tell whether the two numbers are coordinates at all."""
    return -90 <= latitude <= 90 and -180 <= longitude <= 180


def metres_between(latitude: float, longitude: float, other_latitude: float, other_longitude: float) -> float:
    """Return the great-circle distance in metres of two places.

    Source: haversine formula, Sinnott, Virtues of the haversine, Sky and Telescope 68(2), 1984.
    """
    turn = abs(longitude - other_longitude)
    if turn > 180:
        turn = 360 - turn
    if abs(latitude) == 90 or abs(other_latitude) == 90:
        turn = 0
    rise = math.sin(math.radians(latitude - other_latitude) / 2)
    run = math.sin(math.radians(turn) / 2)
    chord = rise * rise + math.cos(math.radians(latitude)) * math.cos(math.radians(other_latitude)) * run * run
    return 2 * EARTH_RADIUS_METRES * math.asin(math.sqrt(min(1.0, chord)))


def is_near(latitude: float, longitude: float, centre_latitude: float, centre_longitude: float, metres: float) -> bool:
    """Tell whether a pair of numbers is a place at most `metres` from the centre."""
    return (
        is_place(latitude, longitude)
        and metres_between(latitude, longitude, centre_latitude, centre_longitude) <= metres
    )


def is_within(latitude: float, longitude: float, south: float, west: float, north: float, east: float) -> bool:
    """Tell whether a pair of numbers is a place in the box, its edges included."""
    if not (is_place(latitude, longitude) and south <= latitude <= north):
        return False
    if abs(latitude) == 90:
        return True
    if abs(longitude) == 180:
        return west > east or west == -180 or east == 180
    if west > east:
        return longitude >= west or longitude <= east
    return west <= longitude <= east


def longitude_ranges(west: float, east: float) -> Ranges:
    """Return the closed ranges of longitude, ascending and apart, that lie between west and east."""
    if west > east:
        return ((-180, east), (west, 180))
    ranges: list[tuple[float, float]] = [(west, east)]
    if west == -180 and east < 180:
        ranges.append((180, 180))
    if east == 180 and west > -180:
        ranges.insert(0, (-180, -180))
    return tuple(ranges)


def circle_bounds(latitude: float, longitude: float, metres: float) -> tuple[float, float, Ranges]:
    """Return (south, north, longitude ranges) of a box that holds every place `is_near` accepts.

    The box is a little larger than the circle, never smaller.
    Source: Bronstein and Semendjajew; the meridians that touch a circle are asin(sin r / cos latitude) from its centre.
    """
    radius = metres / EARTH_RADIUS_METRES + _MARGIN_RADIANS
    degrees = math.degrees(radius)
    south, north = latitude - degrees, latitude + degrees
    if south <= -90 or north >= 90:
        return max(south, -90.0), min(north, 90.0), ((-180.0, 180.0),)
    reach = math.degrees(math.asin(min(1.0, math.sin(radius) / math.cos(math.radians(latitude)))) + _MARGIN_RADIANS)
    west, east = longitude - reach, longitude + reach
    if west <= -180:
        return south, north, ((-180.0, east), (west + 360, 180.0))
    if east >= 180:
        return south, north, ((-180.0, east - 360), (west, 180.0))
    return south, north, ((west, east),)
