"""Index and scan agree on every input at any time; check() holds after each step.

Random normal forms of all kinds of atom over few attributes and nasty values, random adds, removes and replaces; random
publications, whole and damaged. The scan decodes by msgpack's own decoder and evaluates in plain Python.
"""

from __future__ import annotations

import random

import msgpack
import numpy as np
import pytest

from cluster.language.normal import (
    AnyAtom,
    Conjunction,
    Interval,
    Kinds,
    Member,
    Near,
    NormalForm,
    Pattern,
    StringInterval,
)
from cluster.matching import Batch, Index, Scan

NUMBERS: list[int | float] = [
    0,
    -0.0,
    1,
    1.0,
    0.5,
    -1,
    2,
    3,
    5e-324,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2.0**53,
    -(2**53) - 1,
    2**63 - 1,
    2**63,
    2.0**63,
    2**63 + 1,
    -(2**63),
    -(2.0**63),
    -(2.0**63) - 2048,
    2**64 - 1,
    2.0**64,
    1e300,
    -1.7976931348623157e308,
    0.1,
    1 / 3,
]
BOUNDS: list[int | float] = [*NUMBERS, -(2**53) + 1, 2.0**65, 1.7976931348623157e308, -5e-324]
STRINGS = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "ba",
    "é",
    "aé",
    "éa",
    "日本",
    "%",
    "_",
    "a%b",
    "x" * 9,
    "ab" * 8,
    "\U0001f600",
    "\uffff",
]
PATTERNS = ["%", "_", "a%", "%a", "%a%", "a_c", "_%_", r"\%", r"a\_b", "%b%a%", "_é", "é%é", "__", "%_b%", ""]
NAMES = ["a", "b", "c", "name with spaces", "ä" * 5, "lat", "lon"]


def random_value(rng: random.Random) -> bool | int | float | str | None:
    choice = rng.random()
    if choice < 0.5:
        return rng.choice(NUMBERS)
    if choice < 0.6:
        return rng.randrange(10)
    if choice < 0.85:
        return rng.choice(STRINGS)
    return rng.choice([True, False, None])


def random_interval(rng: random.Random, name: str) -> Interval:
    low: int | float | None = rng.choice(BOUNDS) if rng.random() < 0.7 else None
    high: int | float | None = rng.choice(BOUNDS) if rng.random() < 0.7 or low is None else None
    if low is not None and high is not None and low > high and rng.random() < 0.9:
        low, high = high, low
    return Interval(name, low, high, rng.random() < 0.5, rng.random() < 0.5)


def random_atom(rng: random.Random) -> AnyAtom:
    name = rng.choice(NAMES)
    kind = rng.randrange(12)
    if kind < 3:
        return random_interval(rng, name)
    if kind < 5:
        values = []
        for _ in range(rng.choice([1, 1, 2, 3, 9])):
            value = random_value(rng)
            if (value is not None and value not in values) or (
                value is True and not any(other is True for other in values)
            ):
                values.append(value)
        if not values:
            values = [1]
        return Member(name, tuple(values), rng.random() < 0.3)
    if kind == 5:
        return Kinds(name, rng.randrange(1, 31))
    if kind < 8:
        operator = rng.choice(["starts_with", "ends_with", "contains", "like"])
        text = rng.choice(PATTERNS) if operator == "like" else rng.choice(STRINGS)
        return Pattern(name, operator, text, rng.random() < 0.3)
    if kind == 8:
        low = rng.choice(STRINGS) if rng.random() < 0.7 else None
        high = rng.choice(STRINGS) if rng.random() < 0.7 or low is None else None
        return StringInterval(name, low, high, rng.random() < 0.5, rng.random() < 0.5)
    if kind == 9:
        metres = rng.choice([0.0, 1e5, 1e6, 5e6])
        return Near("lat", "lon", rng.uniform(-90, 90), rng.uniform(-180, 180), metres, rng.random() < 0.4)
    low = rng.random()
    return Interval(name, low, low + 0.3, False, False)


def random_conjunction(rng: random.Random) -> Conjunction:
    if rng.random() < 0.5:
        # A family: the same attributes again and again, so that clusters grow.
        family = rng.randrange(4)
        low, other = rng.random(), rng.random()
        if family == 0:
            return (Interval("a", low, low + 0.2, False, False),)
        if family == 1:
            return (Interval("a", low, low + 0.2, False, True), Interval("b", other, None, True, False))
        if family == 2:
            return (Member("c", (rng.choice("abc"),)), Interval("b", low, other + 0.5, False, False))
        atoms: list[AnyAtom] = [Interval("a", low, None, False, False), Interval("b", None, other, False, False)]
        if rng.random() < 0.3:
            atoms.append(Kinds("c", 16))
        return tuple(atoms)
    return tuple(random_atom(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5])))


def random_form(rng: random.Random) -> NormalForm:
    return tuple(random_conjunction(rng) for _ in range(rng.choice([1, 1, 1, 1, 2, 3, 12])))


def random_publication(rng: random.Random) -> dict[str, bool | int | float | str | None]:
    names = [name for name in [*NAMES, "other"] if rng.random() < 0.6]
    publication: dict[str, bool | int | float | str | None] = {}
    for name in names:
        publication[name] = random_value(rng)
        if name in ("a", "b") and rng.random() < 0.6:
            publication[name] = rng.random()
        elif name == "lat" and rng.random() < 0.8:
            publication[name] = rng.choice([rng.uniform(-90, 90), 90, -90.0, 91])
        elif name == "lon" and rng.random() < 0.8:
            publication[name] = rng.choice([rng.uniform(-180, 180), 180, -180.0])
        elif name == "c" and rng.random() < 0.5:
            publication[name] = rng.choice("abc")
    return publication


def random_batch(rng: random.Random, count: int, damage: float = 0.1) -> Batch:
    pieces = []
    for _ in range(count):
        piece = bytearray(msgpack.packb(random_publication(rng), use_single_float=False))
        if rng.random() < damage:
            choice = rng.randrange(3)
            if choice == 0:
                piece = piece[: rng.randrange(len(piece))]
            elif choice == 1:
                piece[rng.randrange(len(piece))] = rng.randrange(256)
            else:
                piece += b"\xc0"
        pieces.append(bytes(piece))
    lengths = np.array([len(piece) for piece in pieces], dtype="<u4").tobytes()
    return Batch(lengths, b"".join(pieces))


def assert_same(index: Index, scan: Scan, batch: Batch, note: object) -> int:
    hits = index.match(batch)
    assert hits.tuples() == scan.match(batch).tuples(), f"differs: {note}"
    return len(hits)


@pytest.mark.parametrize("seed", range(8))
def test_index_equals_scan_under_changes(seed: int) -> None:
    rng = random.Random(seed)
    index, scan = Index(), Scan()
    ids = [rng.choice([rng.randrange(200), 2**64 - 1 - rng.randrange(200), rng.getrandbits(64)]) for _ in range(250)]
    found = 0
    for step in range(12):
        for _ in range(rng.choice([1, 10, 40])):
            subscription = rng.choice(ids)
            if rng.random() < (0.65 if step % 4 else 0.2):
                form, client = random_form(rng), rng.choice([0, 1, 2, 2**63 - 1])
                index.add(subscription, form, client)
                scan.add(subscription, form, client)
            else:
                assert index.remove(subscription) == scan.remove(subscription)
        assert len(index) == len(scan)
        index.check()
        found += assert_same(index, scan, random_batch(rng, 12), (seed, step))
        if rng.random() < 0.3:
            index.fold(rng.choice([1, 50, 5000]))
            index.check()
    for subscription in ids:
        assert index.remove(subscription) == scan.remove(subscription)
    index.check()
    assert len(index) == 0
    assert found > 0


def test_large_clusters_grow_split_and_shrink() -> None:
    rng = random.Random(5)
    index, scan = Index(), Scan()
    forms: list[NormalForm] = []
    for subscription in range(6000):
        low, other = rng.random(), rng.random()
        shape = subscription % 3
        if shape == 0:
            form: NormalForm = ((Interval("a", low, low + 0.02, False, False),),)
        elif shape == 1:
            form = (
                (
                    Member("gas", ("no2",)),
                    Interval("a", low, low + 0.05, False, False),
                    Interval("b", other, other + 0.05, False, False),
                ),
            )
        else:
            form = ((Member("gas", (rng.choice(["no2", "co"]),)), Interval("a", None, low, False, True)),)
        forms.append(form)
        index.add(subscription, form, subscription % 7)
    index.check()
    publications = [{"a": rng.random(), "b": rng.random(), "gas": rng.choice(["no2", "co", "x"])} for _ in range(15)]
    batch = Batch.of([dict(publication) for publication in publications])
    for subscription, form in enumerate(forms):
        scan.add(subscription, form, subscription % 7)
    assert assert_same(index, scan, batch, "full") > 1000
    order = list(range(6000))
    rng.shuffle(order)
    for subscription in order[:5500]:
        assert index.remove(subscription)
        scan.remove(subscription)
    index.check()
    assert_same(index, scan, batch, "thinned")
    for subscription in order[5500:]:
        assert index.remove(subscription)
    index.check()
    assert len(index.match(batch)) == 0


def test_many_tiny_clusters() -> None:
    rng = random.Random(6)
    index, scan = Index(), Scan()
    for subscription in range(1500):
        atoms: list[AnyAtom] = []
        for name in sorted(rng.sample([f"n{i}" for i in range(40)], rng.randrange(1, 5))):
            if rng.random() < 0.5:
                atoms.append(Member(name, (rng.choice([f"v{i}" for i in range(30)]),)))
            else:
                low = rng.random()
                atoms.append(Interval(name, low, low + rng.choice([0.01, 0.5]), False, False))
        form: NormalForm = (tuple(atoms),)
        index.add(subscription, form, subscription)
        scan.add(subscription, form, subscription)
    index.check()
    publications = []
    for _ in range(40):
        publications.append(
            {
                f"n{i}": rng.random() if rng.random() < 0.5 else f"v{rng.randrange(30)}"
                for i in rng.sample(range(40), 20)
            }
        )
    batch = Batch.of(publications)  # type: ignore[arg-type]
    assert assert_same(index, scan, batch, "tiny") > 0
    for _ in range(10):
        index.match(batch)  # the index learns what is selective
    while index.fold(100):
        pass
    index.check()
    assert_same(index, scan, batch, "refiled")
