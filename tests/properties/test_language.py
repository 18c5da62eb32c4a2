"""Random trees, texts and attributes: the spellings agree, the normal form equals the oracle, damage is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from cluster.errors import CodecError, FilterError
from cluster.language import tree as nodes
from cluster.language.encoding import decode_normal, encode_normal
from cluster.language.filter import Filter, parse
from cluster.language.holds import normal_matches
from cluster.language.json_form import json_of, tree_of_json
from cluster.language.normal import Interval, Kinds, Member, NormalForm, StringInterval
from cluster.language.printer import text_of
from cluster.language.text import tree_of_text
from cluster.language.tree import Tree

NUMBERS: list[int | float] = [
    *(-(2**63), -(2**53) - 1, -1, 0, 1, 2, 5, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    *(-0.0, 0.0, 1.0, 1.5, 2.0, 5.0, 2.0**53, 2.0**63, 2.0**64, 1e300, -1e300, 5e-324, 0.1),
]
FEW_NUMBERS: list[int | float] = [0, 1, 1.0, 2, 2.0]
STRINGS = [
    *("", "a", "ab", "abc", "b", "ba", "A", "%", "_", "\\", "a%b", "a_b", "a\\b", "'", '"', "`", "\n", "\x00"),
    *("é", "e\u0301", "\uffff", "\U0001f600", "\U0001f600a", "Pza. de España", "true", "1"),
]
PATTERNS = ["", "%", "_", "a", "a%", "%b", "%a%", "a_", "_b%", "%a_b%", "%%", "\\%", "a\\_%", "%\\\\%", "%a%b%", "__%"]
NAMES = ["a", "b", "c", "air.no2", "in", "a b", "`", "é", "number", "a..b", "1st"]
PLACES: list[tuple[float, float]] = [
    *((90, 0), (90, 50), (-90, 180), (0, 180), (0, -180), (0, 179.999), (0, -179.999), (40.4, -3.7), (89.9, -90)),
    *((91, 0), (0, 181), (0, -181), (-90.5, 190), (0, 0), (2**63, 0), (40, 2**64 - 1)),
]
KINDS_OF_MATCH = ("starts_with", "ends_with", "contains")


def random_value(rng: random.Random) -> bool | int | float | str:
    draw = rng.random()
    if draw < 0.2:
        return rng.random() < 0.5
    # Often from few values, so that bounds meet.
    if draw < 0.6:
        return rng.choice(FEW_NUMBERS if rng.random() < 0.5 else NUMBERS)
    return rng.choice(STRINGS[:5] if rng.random() < 0.5 else STRINGS)


def random_predicate(rng: random.Random) -> Tree:
    name = rng.choice(NAMES[:4] if rng.random() < 0.9 else NAMES)

    def compared() -> Tree:
        value = random_value(rng)
        return nodes.comparison(name, rng.choice(("==", "!=") if isinstance(value, bool) else nodes.COMPARISONS), value)

    def ranged() -> Tree:
        pool: list[int | float] | list[str] = NUMBERS if rng.random() < 0.6 else STRINGS
        low, high = sorted((rng.choice(pool), rng.choice(pool)))  # type: ignore[type-var]
        return nodes.between(name, low, high)

    def listed() -> Tree:
        return nodes.member_of(name, [random_value(rng) for _ in range(rng.randint(1, 5))])

    def matched() -> Tree:
        if rng.random() < 0.5:
            return nodes.string_match(name, "like", rng.choice(PATTERNS))
        return nodes.string_match(name, rng.choice(KINDS_OF_MATCH), rng.choice(STRINGS))

    def tested() -> Tree:
        return nodes.kind_test(name, rng.choice(nodes.KIND_TESTS))

    def boxed() -> Tree:
        south, north = sorted(rng.choice((-90, -10.5, 0, 40, 41, 89, 90)) for _ in range(2))
        west, east = (rng.choice((-180, -179, -3.7, 0, 50, 179, 180)) for _ in range(2))
        return nodes.within(name, rng.choice(NAMES[:3]), south, west, north, east)

    def circled() -> Tree:
        latitude, longitude = rng.choice(PLACES[:9])
        return nodes.near(name, rng.choice(NAMES[:3]), latitude, longitude, rng.choice((0, 1, 5000, 2e6, 1.2e7, 3e7)))

    makers: list[Callable[[], Tree]] = [compared, compared, compared, ranged, listed, matched, tested, boxed, circled]
    return rng.choice(makers)()


def random_tree(rng: random.Random, levels: int) -> Tree:
    if levels == 0 or rng.random() < 0.2:
        return random_predicate(rng)
    kind = rng.randrange(6)
    if kind == 0:
        return nodes.Not(random_tree(rng, levels - 1))
    if kind == 1:
        return nodes.IsNotTrue(random_tree(rng, levels - 1))
    join = nodes.all_of if kind % 2 else nodes.any_of
    return join([random_tree(rng, levels - 1) for _ in range(rng.randint(2, 3))])


def random_attributes(rng: random.Random) -> dict[str, object]:
    attributes: dict[str, object] = {}
    for name in NAMES:
        draw = rng.random()
        if draw < 0.75:
            attributes[name] = random_value(rng)
        elif draw < 0.85:
            attributes[name] = None
    if rng.random() < 0.4:
        first, second = rng.sample(NAMES[:4], 2)
        attributes[first], attributes[second] = rng.choice(PLACES)
    return attributes


def near_values(form: NormalForm, rng: random.Random) -> dict[str, object]:
    """Return attributes that lie on the bounds of one conjunction, where mistakes are likely."""
    attributes = random_attributes(rng)
    for atom in rng.choice(form):
        if isinstance(atom, Member):
            attributes[atom.attribute] = rng.choice(atom.values)
        elif isinstance(atom, Interval | StringInterval):
            bound = rng.choice([each for each in (atom.low, atom.high) if each is not None])
            attributes[atom.attribute] = bound
            if isinstance(bound, float) and rng.random() < 0.5 and bound.is_integer() and abs(bound) < 2**63:
                attributes[atom.attribute] = int(bound) + rng.choice((-1, 0, 1))
        elif isinstance(atom, Kinds) and atom.mask & 1:
            attributes.pop(atom.attribute, None)
    return attributes


def filters(seed: int, count: int, levels: int) -> list[Filter]:
    rng = random.Random(seed)
    found: list[Filter] = []
    for _ in range(count):
        try:
            found.append(Filter.from_tree(random_tree(rng, levels)))
        except FilterError as error:
            assert "never be true" in error.reason or error.limit, error  # noqa: PT017
    assert len(found) > count // 2
    return found


@pytest.mark.parametrize("seed", range(4))
def test_text_and_json_give_the_tree_back(seed: int) -> None:
    for each in filters(seed, 500, 4):
        again = parse(each.text)
        assert repr(again.tree) == repr(each.tree), each.text
        assert again == each
        assert hash(again) == hash(each)
        assert again.text == each.text
        assert repr(again.normal_form) == repr(each.normal_form)
        json_text = json.dumps(each.to_json())
        assert repr(Filter.from_json(json.loads(json_text)).tree) == repr(each.tree), each.text


@pytest.mark.parametrize("seed", range(6))
def test_the_normal_form_equals_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    matched = 0
    for each in filters(100 + seed, 300, 1 + seed % 4):
        for index in range(24):
            attributes = random_attributes(rng) if index % 2 else near_values(each.normal_form, rng)
            expected = each.matches(attributes)
            matched += expected
            assert normal_matches(each.normal_form, attributes) is expected, (each.text, attributes)
    assert matched > 1000


@pytest.mark.parametrize("seed", range(2))
def test_what_is_refused_as_never_true_never_is(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(3000):
        names = rng.choice((["a"], ["a", "b"]))
        tree = nodes.all_of([random_predicate(rng) for _ in range(rng.randint(2, 4))])
        try:
            Filter.from_tree(tree)
        except FilterError:
            refused += 1
            for _ in range(20):
                attributes = random_attributes(rng)
                attributes[rng.choice(names)] = random_value(rng)
                assert Filter(tree, ()).evaluate(attributes) is not True, (text_of(tree), attributes)
    assert refused > 300


def test_the_normal_form_keeps_its_promises() -> None:
    for each in filters(7, 1500, 3):
        assert 1 <= len(each.normal_form) <= 1024
        assert len({repr(conjunction) for conjunction in each.normal_form}) == len(each.normal_form)
        for conjunction in each.normal_form:
            check_conjunction(each, conjunction)


def check_conjunction(each: Filter, conjunction: tuple[object, ...]) -> None:
    order = [getattr(atom, "attribute", None) or atom.latitude for atom in conjunction]  # type: ignore[attr-defined]
    assert order == sorted(order), each.text
    single = [
        (type(atom), atom.attribute)
        for atom in conjunction
        if isinstance(atom, Interval | StringInterval | Kinds) or (isinstance(atom, Member) and not atom.negated)
    ]
    assert len(single) == len(set(single)), each.text
    for atom in conjunction:
        if isinstance(atom, Interval | StringInterval):
            assert atom.low is not None or atom.high is not None
            if atom.low is not None and atom.high is not None:
                assert atom.low < atom.high, each.text  # type: ignore[operator]
        if isinstance(atom, Member):
            kinds = [(isinstance(value, bool), isinstance(value, str), value) for value in atom.values]
            assert kinds
            assert len(set(kinds)) == len(kinds), each.text


def test_the_normal_form_survives_encoding_and_damage_is_refused() -> None:
    rng = random.Random(5)
    for each in filters(11, 400, 3):
        data = encode_normal(each.normal_form)
        assert repr(decode_normal(data)) == repr(each.normal_form)
        for _ in range(10):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            try:
                again = decode_normal(bytes(damaged[: rng.randint(1, len(damaged))]))
            except CodecError:
                continue
            normal_matches(again, random_attributes(rng))


@pytest.mark.parametrize("seed", range(2))
def test_damaged_text_is_refused_by_filter_error_only(seed: int) -> None:
    rng = random.Random(seed)
    bits = [
        "(",
        ")",
        "not",
        "and",
        "is",
        "true",
        "null",
        "'",
        '"',
        "`",
        "\\",
        "\ud800",
        "é",
        "1e999",
        "9" * 30,
        " ",
        ",",
    ]
    for each in filters(20 + seed, 300, 3):
        for _ in range(15):
            text = list(each.text)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(text) + 1)
                text[at : at + rng.randint(0, 3)] = rng.choice((*bits, ""))
            damaged = "".join(text)
            try:
                again = parse(damaged)
            except FilterError as error:
                assert error.position is None or 0 <= error.position <= len(damaged)  # noqa: PT017
                continue
            assert repr(tree_of_text(again.text)) == repr(again.tree)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_json_is_refused_by_filter_error_only(seed: int) -> None:
    rng = random.Random(seed)
    values = [None, [], {}, "x", 1, 1.5, True, float("nan"), float("inf"), 2**64, "\ud800", [[]], {"op": "and"}]

    def damage(found: object) -> None:
        holder = found
        while isinstance(holder, dict | list) and holder:
            key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            inner = holder[key]  # type: ignore[call-overload]
            if not isinstance(inner, dict | list) or rng.random() < 0.3:
                holder[key] = rng.choice(values)  # type: ignore[call-overload]
                return
            holder = inner

    for each in filters(30 + seed, 300, 3):
        for _ in range(10):
            found = json_of(each.tree)
            damage(found)
            try:
                again = tree_of_json(found)
            except FilterError:
                continue
            assert repr(tree_of_json(json_of(again))) == repr(again)
