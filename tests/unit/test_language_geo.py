"""Distances, boxes and the boxes around circles, on the date line and at the poles above all."""

from __future__ import annotations

import math
import random

import pytest

from cluster import parse
from cluster.language import geo, normal_matches


def chord_metres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the great-circle distance by vectors, the way `geo` doesn't."""

    def vector(place: tuple[float, float]) -> tuple[float, float, float]:
        latitude, longitude = map(math.radians, place)
        return (
            math.cos(latitude) * math.cos(longitude),
            math.cos(latitude) * math.sin(longitude),
            math.sin(latitude),
        )

    a, b = vector(one), vector(other)
    cross = math.hypot(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return geo.EARTH_RADIUS_METRES * math.atan2(cross, sum(x * y for x, y in zip(a, b, strict=True)))


def random_place(rng: random.Random) -> tuple[float, float]:
    latitude = rng.choice((rng.uniform(-90, 90), rng.uniform(89, 90), rng.uniform(-90, -89.9), 90, -90, 0))
    longitude = rng.choice((rng.uniform(-180, 180), rng.uniform(179, 180), rng.uniform(-180, -179.9), 180, -180, 0))
    return latitude, longitude


def beside(rng: random.Random, place: tuple[float, float], metres: float) -> tuple[float, float]:
    """Return the place that lies `metres` from another in a random direction."""
    latitude, longitude = map(math.radians, place)
    angle, bearing = metres / geo.EARTH_RADIUS_METRES, rng.uniform(0, 2 * math.pi)
    sine = math.sin(latitude) * math.cos(angle) + math.cos(latitude) * math.sin(angle) * math.cos(bearing)
    target = math.asin(max(-1.0, min(1.0, sine)))
    turn = math.atan2(
        math.sin(bearing) * math.sin(angle) * math.cos(latitude), math.cos(angle) - math.sin(latitude) * sine
    )
    wrapped = (math.degrees(longitude + turn) + 180) % 360 - 180
    return math.degrees(target), wrapped


def test_known_distances() -> None:
    # Nashville to Los Angeles, the worked example of Rosetta Code, whose earth has a radius of 6,372.8 km.
    distance = geo.metres_between(36.12, -86.67, 33.94, -118.40)
    assert distance == pytest.approx(2_887_259.95 * geo.EARTH_RADIUS_METRES / 6_372_800, abs=0.1)
    quarter = math.pi / 2 * geo.EARTH_RADIUS_METRES
    assert geo.metres_between(0, 0, 90, 123) == pytest.approx(quarter)
    assert geo.metres_between(0, 0, 0, 180) == pytest.approx(2 * quarter)
    assert geo.metres_between(-90, 17, 90, -33) == pytest.approx(2 * quarter)
    assert geo.metres_between(0, 179.5, 0, -179.5) == pytest.approx(math.radians(1) * geo.EARTH_RADIUS_METRES)


def test_one_place_written_in_two_ways_has_no_distance() -> None:
    assert geo.metres_between(12, 180, 12, -180) == 0
    assert geo.metres_between(90, 5, 90, 100) == 0
    assert parse("near(lat, lon, -90, 0, 0)").matches({"lat": -90, "lon": 44})


def test_distance_agrees_with_vectors() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        one, other = random_place(rng), random_place(rng)
        assert geo.metres_between(*one, *other) == pytest.approx(chord_metres(one, other), rel=1e-9, abs=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_the_box_around_a_circle_leaves_out_no_place(seed: int) -> None:
    rng = random.Random(seed)
    edges = 0
    for _ in range(6000):
        centre = random_place(rng)
        metres = rng.choice((0.0, 0.001, 1.0, 500.0, 1e5, 5e6, 1e7, 1.9e7, 2.1e7, rng.uniform(0, 2e7)))
        south, north, ranges = geo.circle_bounds(*centre, metres)
        assert list(ranges) == sorted(ranges)
        for _ in range(4):
            place = beside(rng, centre, metres * rng.choice((0, 0.5, 0.999999, 1 - 1e-12, 1)))
            for same in (place, (place[0], -180.0 if place[1] == 180 else place[1])):
                if geo.is_near(*same, *centre, metres):
                    edges += 1
                    assert south <= same[0] <= north, (centre, metres, same)
                    assert any(low <= same[1] <= high for low, high in ranges), (centre, metres, same)
    assert edges > 20_000


def test_the_box_around_a_small_circle_is_small() -> None:
    south, north, ranges = geo.circle_bounds(60, 10, 1000)
    assert north - south == pytest.approx(2 * 0.0089932 + 2e-5, abs=1e-5)
    assert ranges[0][1] - ranges[0][0] == pytest.approx(2 * 2 * 0.0089932, abs=1e-4)
    assert len(geo.circle_bounds(0, 179.999, 1000)[2]) == 2


@pytest.mark.parametrize(
    ("box", "inside", "outside"),
    [
        ("10, 20, 30, 40", [(10, 20), (30, 40), (20, 30)], [(9.9, 30), (20, 41), (20, 19), (30.1, 30)]),
        ("-10, 170, 10, -170", [(0, 170), (0, 180), (0, -180), (0, -170)], [(0, 0), (0, 169), (0, -169), (11, 180)]),
        ("-10, 170, 10, 180", [(0, 175), (0, 180), (0, -180)], [(0, -179.9), (0, 0)]),
        ("-10, -180, 10, -170", [(0, -175), (0, 180), (0, -180)], [(0, 179.9), (0, 0)]),
        ("-10, 180, 10, -180", [(0, 180), (0, -180)], [(0, 0), (0, 179.9)]),
        ("80, 0, 90, 10", [(90, 5), (90, 100), (90, -180), (89, 5)], [(89, 100), (90, 181)]),
        ("-90, 0, -90, 0", [(-90, 0), (-90, 77)], [(-89.9, 0), (90, 0)]),
        ("-90, -180, 90, 180", [(0, 0), (90, 180), (-90, -180)], [(0, 180.1), (90.1, 0), (0, 2**63)]),
    ],
)
def test_boxes(box: str, inside: list[tuple[float, float]], outside: list[tuple[float, float]]) -> None:
    plain, negated = parse(f"within(lat, lon, {box})"), parse(f"not within(lat, lon, {box})")
    for places, expected in ((inside, True), (outside, False)):
        for latitude, longitude in places:
            attributes = {"lat": latitude, "lon": longitude}
            assert plain.evaluate(attributes) is expected
            assert negated.evaluate(attributes) is not expected
            assert normal_matches(plain.normal_form, attributes) is expected
            assert normal_matches(negated.normal_form, attributes) is not expected


def test_what_is_no_place_is_near_nothing() -> None:
    everywhere = parse("near(lat, lon, 0, 0, 3e7)")
    assert everywhere.matches({"lat": -90, "lon": 180})
    assert everywhere.evaluate({"lat": 90.5, "lon": 0}) is False
    assert everywhere.evaluate({"lat": 0, "lon": 180.5}) is False
    assert everywhere.evaluate({"lat": 2**64 - 1, "lon": 0}) is False
