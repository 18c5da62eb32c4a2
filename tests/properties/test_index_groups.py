"""Publications searched in groups: the way that large clusters of ranges take, against the oracle and brute force."""

from __future__ import annotations

import random
from typing import Protocol

import msgpack
import numpy as np
import pytest

from bench.numpy_scan import NumpyScan
from cluster.language.normal import Conjunction, Interval, NormalForm, Pattern
from cluster.matching import Batch, Hits, Index, Scan, layout

NAMES = ("a", "b", "c", "d", "e", "f", "g")
Publication = dict[str, bool | int | float | str | None]


class Engine(Protocol):
    def match(self, batch: Batch) -> Hits: ...


def random_number(rng: random.Random) -> int | float:
    """Return a number that others are often equal to, or beside."""
    draw = rng.random()
    if draw < 0.6:
        return rng.randrange(-3, 20)
    if draw < 0.9:
        return rng.choice([rng.random() * 20, rng.randrange(40) / 2, float(rng.randrange(20))])
    return rng.choice([0.0, -0.0, 5e-324, 2**53, 2**53 + 1, -(2**63), 2**64 - 1, 1e308, -1e308, 1e-300])


def random_range(rng: random.Random, name: str) -> Interval:
    low, high = sorted((random_number(rng), random_number(rng)))
    sides = rng.choice(["both", "both", "low", "high"])
    return Interval(
        name,
        None if sides == "high" else low,
        None if sides == "low" else high,
        sides != "high" and rng.random() < 0.5 and low < high,
        sides != "low" and rng.random() < 0.5 and low < high,
    )


def random_conjunction(rng: random.Random) -> Conjunction:
    # Few sets of attributes, so that many conjunctions have the same.
    begin = rng.randrange(len(NAMES))
    names = sorted({NAMES[(begin + step) % len(NAMES)] for step in range(rng.randint(1, 4))})
    atoms = tuple(random_range(rng, name) for name in names)
    return (*atoms, Pattern("text", "contains", "x")) if rng.random() < 0.1 else atoms


def random_form(rng: random.Random) -> NormalForm:
    return tuple(random_conjunction(rng) for _ in range(rng.choice([1, 1, 1, 2, 5])))


def random_publication(rng: random.Random) -> Publication:
    publication: Publication = {"text": rng.choice(["xy", "y"])}
    for name in NAMES:
        if rng.random() < 0.9:
            publication[name] = random_number(rng) if rng.random() < 0.93 else rng.choice([True, None, "5"])
    return publication


def random_batch(rng: random.Random, count: int) -> Batch:
    pieces = [msgpack.packb(random_publication(rng)) for _ in range(count)]
    pieces[rng.randrange(count)] += b"\xc0"  # one of them is refused
    lengths = np.array([len(piece) for piece in pieces], dtype="<u4")
    return Batch(lengths.tobytes(), b"".join(pieces))


def assert_same(index: Index, other: Engine, batch: Batch) -> int:
    """Match in groups, from the first publication on; return the hits."""
    index._set(layout.H_GROUPING, 1)
    found = index.match(batch)
    expected = other.match(batch)
    assert np.array_equal(found.publication, expected.publication)
    assert np.array_equal(found.client, expected.client)
    assert np.array_equal(found.subscription, expected.subscription)
    assert np.array_equal(found.groups(), expected.groups())
    return len(found)


@pytest.mark.parametrize("seed", range(6))
def test_groups_equal_the_oracle_under_changes(seed: int) -> None:
    rng = random.Random(f"groups {seed}")
    index, scan = Index(), Scan()
    found = 0
    for step in range(5):
        for _ in range((500, 300, 50, 0, 200)[step]):
            subscription = rng.randrange(900)
            form, client = random_form(rng), rng.choice([0, 1, 2, 2**63 - 1])
            index.add(subscription, form, client)
            scan.add(subscription, form, client)
        for _ in range((0, 100, 0, 600, 0)[step]):
            subscription = rng.randrange(900)
            assert index.remove(subscription) == scan.remove(subscription)
        index.check()
        for count in (1, 2, 16, 25):
            found += assert_same(index, scan, random_batch(rng, count))
        index.check()
        if rng.random() < 0.5:
            index.fold(5000)
    assert found > 1000


def brute_force(index: Index, forms: list[NormalForm], clients: int) -> NumpyScan:
    scan = NumpyScan()
    for subscription, form in enumerate(forms):
        index.add(subscription, form, subscription % clients)
        scan.add(subscription, form, subscription % clients)
    return scan


@pytest.mark.parametrize(("width", "fewest", "most"), [(0.03, 1, 1000), (0.8, 20_000, 10**9)])
def test_few_and_many_hits_of_a_large_index(width: float, fewest: int, most: int) -> None:
    """Few hits are marked one by one, many at once."""
    rng = random.Random(f"groups {width}")
    forms: list[NormalForm] = []
    for _ in range(12_000):
        first = rng.randrange(len(NAMES) - 1)
        low, other = rng.random(), round(rng.random(), 2)
        forms.append(
            (
                (
                    Interval(NAMES[first], low, low + width, True, True),
                    Interval(NAMES[first + 1], other, other + width, False, True),
                ),
            )
        )
    index = Index()
    scan = brute_force(index, forms, 10)
    publications: list[Publication] = [{name: round(rng.random(), 2) for name in NAMES} for _ in range(32)]
    assert fewest <= assert_same(index, scan, Batch.of(publications)) <= most
    for subscription in rng.sample(range(len(forms)), 9000):
        assert index.remove(subscription)
        scan.remove(subscription)
    index.check()
    assert_same(index, scan, Batch.of(publications))
    index.check()


def test_whole_blocks_of_trees_of_several_levels() -> None:
    """Thresholds: a publication takes whole leaves and nodes, another cuts through them, a third has none."""
    rng = random.Random("groups whole")
    forms: list[NormalForm] = []
    for _ in range(12_000):
        low, high = rng.choice([(rng.random(), None), (None, rng.random()), (0.5, 0.5 + rng.random())])
        forms.append(((Interval(rng.choice("ab"), low, high, False, False),),))
    index = Index()
    scan = brute_force(index, forms, 3)
    values = [-1.0, 0.0, 0.5, 1, 2.0, *(rng.random() for _ in range(20))]
    publications: list[Publication] = [{"a": value, "b": rng.choice([value, "none", 0.5])} for value in values]
    assert assert_same(index, scan, Batch.of(publications)) > 50_000
    # The result did not fit at first; now it does.
    assert assert_same(index, scan, Batch.of(publications)) > 50_000
    index.check()
