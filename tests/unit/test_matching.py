"""The matching engine's edges: what a batch refuses, ids, grouping, memory, and the work of one call."""

from __future__ import annotations

import random
import struct

import msgpack
import numpy as np
import pytest

from cluster import parse
from cluster.language.normal import Interval, Kinds, Member, NormalForm, Pattern
from cluster.matching import Batch, BatchLimits, Hits, Index, Scan
from cluster.matching.hits import empty_hits
from cluster.matching.table import bucket_of
from cluster.view import KEY_GROUPS, key_group, key_groups

ALWAYS: NormalForm = ((),)


def batch_of(*pieces: bytes, limits: BatchLimits | None = None) -> Batch:
    lengths = struct.pack(f"<{len(pieces)}I", *(len(piece) for piece in pieces))
    return Batch(lengths, b"".join(pieces), limits or BatchLimits())


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        (b"", "the publication is cut off"),
        (b"\x81", "the publication is cut off"),
        (b"\x81\xa1a", "attribute 'a': the publication is cut off"),
        (b"\x81\xa1a\xcb\x00", "attribute 'a': the publication is cut off"),
        (b"\x81\xa1a\xd9\x05abc", "attribute 'a': the publication is cut off"),
        (b"\x81\xa9a", "the publication is cut off"),
        (b"\x80\xc0", "bytes follow the publication's map"),
        (b"\x90", "a publication must be a msgpack map"),
        (b"\xc0", "a publication must be a msgpack map"),
        (b"\x81\x01\x01", "an attribute's name must be a string"),
        (b"\x81\xc4\x01a\x01", "an attribute's name must be a string"),
        (b"\x81\xa0\x01", "an attribute's name is empty"),
        (b"\x81\xa1\xff\x01", "an attribute's name is not UTF-8"),
        (b"\x81\xa1a\x90", "attribute 'a': the value is nested (a map or an array); flatten it"),
        (b"\x81\xa1a\x80", "attribute 'a': the value is nested (a map or an array); flatten it"),
        (b"\x81\xa1a\xdf\0\0\0\0", "attribute 'a': the value is nested (a map or an array); flatten it"),
        (
            b"\x81\xa1a\xc4\x01x",
            "attribute 'a': the value is binary or an extension type; use bool, int, float, string or nil",
        ),
        (
            b"\x81\xa1a\xd4\x01x",
            "attribute 'a': the value is binary or an extension type; use bool, int, float, string or nil",
        ),
        (b"\x81\xa1a\xc1", "attribute 'a': 0xc1 is not a msgpack type"),
        (msgpack.packb({"a": float("nan")}), "attribute 'a': the value is NaN or infinite"),
        (msgpack.packb({"a": float("-inf")}), "attribute 'a': the value is NaN or infinite"),
        (b"\x81\xa1a\xca\x7f\x80\0\0", "attribute 'a': the value is NaN or infinite"),
        (b"\x81\xa1a\xa2\xc0\x80", "attribute 'a': the string is not UTF-8"),
        (b"\x81\xa1a\xa3\xed\xa0\x80", "attribute 'a': the string is not UTF-8"),
        (b"\x81\xa1a\xa4\xf4\x90\x80\x80", "attribute 'a': the string is not UTF-8"),
        (b"\x81\xa1a\xa8abcdefg\xc3", "attribute 'a': the string is not UTF-8"),
    ],
)
def test_damaged_publications_are_refused_with_a_reason(piece: bytes, reason: str) -> None:
    batch = batch_of(msgpack.packb({"a": 1}), piece, msgpack.packb({"a": 2}))
    assert batch.rejected == [(1, reason)]
    index = Index()
    index.add(5, ALWAYS, 0)
    assert index.match(batch).tuples() == [(0, 0, 5), (2, 0, 5)]


def test_limits_are_named_in_the_reason() -> None:
    limits = BatchLimits(attributes_max=2, name_bytes_max=3, string_bytes_max=4)
    batch = batch_of(
        msgpack.packb({"a": 1, "b": 2, "c": 3}),
        msgpack.packb({"abcd": 1}),
        msgpack.packb({"a": "12345"}),
        msgpack.packb({"abc": "1234", "b": 1}),
        limits=limits,
    )
    assert batch.rejected == [
        (0, "more than 2 attributes"),
        (1, "attribute 'abc': the name is longer than 3 bytes"),
        (2, "attribute 'a': the string is longer than 4 bytes"),
    ]


def test_the_default_limits_hold_to_the_byte() -> None:
    good = {f"a{i}": 1 for i in range(254)} | {"n" * 256: True, "s": "x" * 65_536}
    assert not Batch.of([good]).rejected  # type: ignore[list-item]
    assert len(Batch.of([good | {"one more": 1}]).rejected) == 1  # type: ignore[list-item]
    assert len(Batch.of([{"n" * 257: 1}, {"s": "x" * 65_537}]).rejected) == 2


def test_lengths_that_do_not_add_up_are_our_mistake() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        Batch(struct.pack("<I", 2), b"\x80")
    with pytest.raises(ValueError, match="do not add up"):
        Batch(struct.pack("<I", 1), b"\x80\x80")
    with pytest.raises(ValueError, match="4 bytes"):
        Batch(b"\0", b"")


def test_every_number_format_is_read() -> None:
    values = [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    values += [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)]
    index = Index()
    for place, value in enumerate(values):
        index.add(place, ((Member("a", (value,)),),), 0)
    batch = Batch.of([{"a": value} for value in values])
    assert index.match(batch).tuples() == [(place, 0, place) for place in range(len(values))]
    signed = b"\x81\xa1a\xd3" + struct.pack(">q", 127)  # a positive number in a signed format
    assert [row[2] for row in index.match(batch_of(signed)).tuples()] == [1]
    single = b"\x81\xa1a\xca" + struct.pack(">f", 127.0)
    assert [row[2] for row in index.match(batch_of(single)).tuples()] == [1]


def test_of_a_name_that_comes_twice_the_last_value_counts() -> None:
    index = Index()
    index.add(1, ((Member("a", ("x",)),),), 0)
    index.add(2, ((Member("a", ("y",)),),), 0)
    index.add(3, ((Interval("a", 5, None, False, False),),), 0)
    twice = b"\x82\xa1a\xa1x\xa1a\xa1y"
    number_last = b"\x82\xa1a\xa1x\xa1a\x07"
    text_last = b"\x82\xa1a\x07\xa1a\xa1x"
    hits = index.match(batch_of(twice, number_last, text_last)).tuples()
    assert hits == [(0, 0, 2), (1, 0, 3), (2, 0, 1)]


def test_ids_and_clients_cover_their_whole_range() -> None:
    index = Index()
    ids = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    for client in (2**63 - 1, 0):
        for subscription in ids:
            index.add(subscription, ALWAYS, client)  # the second turn replaces the client
    assert len(index) == len(ids)
    assert index.match(Batch.of([{}])).tuples() == [(0, 0, subscription) for subscription in ids]
    for subscription, client in ((-1, 0), (2**64, 0), (0, -1), (0, 2**63)):
        with pytest.raises(ValueError, match="out of range"):
            index.add(subscription, ALWAYS, client)
    assert not index.remove(2**64)
    assert not index.remove(-1)
    assert not index.remove(77)
    assert index.remove(2**64 - 1)
    index.check()


def test_hits_are_grouped_by_publication_and_client() -> None:
    index = Index()
    for subscription in range(600):
        index.add(subscription, ALWAYS, 5 if subscription % 3 else 9)
    hits = index.match(Batch.of([{}, {}]))
    assert hits.groups().tolist() == [0, 400, 600, 1000, 1200]
    assert len(hits) == 1200
    assert Index().match(Batch.of([{}])).groups().tolist() == [0]
    assert len(index.match(Batch.of([]))) == 0
    assert (hits.publication.dtype, hits.client.dtype, hits.subscription.dtype) == (
        np.uint32,
        np.int64,
        np.uint64,
    )
    again = Hits.of(hits.publication, hits.client, hits.subscription)
    assert again.groups().tolist() == hits.groups().tolist()


@pytest.mark.parametrize("capacity", [1, 4096])
def test_hits_of_groups_that_others_own_are_taken_out(capacity: int) -> None:
    """Whether the hits lie as compiled code has left them or were put together of several parts."""
    index = Index()
    index._rows_per_publication = capacity
    subscriptions = [7919 * number for number in range(1500)] + [2**64 - 1, 2**63, 2**63 - 1]
    for subscription in subscriptions:
        index.add(subscription, ALWAYS, subscription % 7)
    batch = Batch.of([{}, {}, {}])
    owners = np.random.default_rng(1).integers(0, 4, KEY_GROUPS).astype(np.uint16)
    owners[key_group(7919)] = 40_000
    owner_of = {one: int(owners[key_group(one)]) for one in subscriptions}
    assert (key_groups(np.array(subscriptions, np.uint64)) == [key_group(one) for one in subscriptions]).all()
    for slot in (0, 3, 40_000, 7):
        rows = index.match(batch).tuples()
        hits = index.match(batch).owned(owners.tobytes(), slot)
        assert hits.tuples() == [row for row in rows if owner_of[row[2]] == slot]
        assert (len(hits), hits.run_count) == (len(hits.subscription), len(hits.runs))
        assert hits.ids().tolist() == hits.subscription.tolist()
        assert (np.diff(hits.groups()) > 0).all()
    assert len(empty_hits().owned(owners.tobytes(), 0)) == 0


def test_results_larger_than_expected_are_complete() -> None:
    index = Index()
    for subscription in range(3000):
        index.add(subscription, ((Interval("a", subscription, None, False, False),),), 0)
    batch = Batch.of([{"a": 0}] * 50 + [{"a": 5000}] * 5 + [{"a": 0}])
    for _ in range(2):
        hits = index.match(batch)
        assert len(hits) == 50 + 5 * 3000 + 1
        assert np.array_equal(np.bincount(hits.publication), [1] * 50 + [3000] * 5 + [1])
        assert np.array_equal(hits.groups(), [*range(50), *range(50, 15_051, 3000), 15_051])
        assert hits.subscription[-1] == 0
    index.check()


@pytest.mark.parametrize("clients", [3, 100])
@pytest.mark.parametrize("apart", [False, True])
def test_few_and_many_hits_are_read_in_order(clients: int, apart: bool) -> None:
    """Of 12,000 subscriptions, in leaves of one client or of several, any number up to all match.

    apart: a string leads to them, so that each publication is searched alone, and not in a group.
    """
    rng = random.Random(clients)
    index = Index()
    levels = {subscription: level for level, subscription in enumerate(rng.sample(range(10**9), 12_000))}
    for subscription, level in levels.items():
        up, down = Interval("up", level, None, False, False), Interval("down", None, -level, False, False)
        index.add(subscription, ((Member("k", ("x",)), up),) if apart else ((down, up),), subscription % clients)
    for subscription in rng.sample(sorted(levels), 2000):
        assert index.remove(subscription)
        del levels[subscription]
    index.check()
    in_order = sorted(levels, key=lambda subscription: (subscription % clients, subscription))
    most = [-1, 0, 3, 20, 60, 200, 1000, 5000, 12_000, *(rng.randrange(12_000) for _ in range(23))]
    for _ in range(2):  # the first batch tells whether groups pay
        rng.shuffle(most)
        hits = index.match(Batch.of([{"k": "x", "up": level, "down": -level} for level in most]))
        expected = [[one for one in in_order if levels[one] <= level] for level in most]
        found = np.split(hits.subscription, np.searchsorted(hits.publication, np.arange(1, len(most))))
        for want, got in zip(expected, found, strict=True):
            assert got.tolist() == want
        assert (hits.client == hits.subscription % clients).all()


def test_the_empty_index_and_unknown_attributes_match_nothing() -> None:
    index = Index()
    batch = Batch.of([{}, {"a": 1, "ä": None}])
    assert index.match(batch).tuples() == []
    index.add(1, parse("b > 1 or b < 0 or c == 'x'").normal_form, 1)
    assert index.match(batch).tuples() == []
    index.add(2, parse("missing b").normal_form, 1)
    assert index.match(batch).tuples() == [(0, 1, 2), (1, 1, 2)]


def test_1024_conjunctions_of_one_filter_are_one_hit() -> None:
    index = Index()
    form: NormalForm = tuple((Interval("a", low, None, False, False),) for low in range(1024))
    index.add(7, form, 3)
    index.add(8, form[:3], 3)
    index.check()
    assert index.match(Batch.of([{"a": 2000}, {"a": 1}, {"a": -1}])).tuples() == [
        (0, 3, 7),
        (0, 3, 8),
        (1, 3, 7),
        (1, 3, 8),
    ]
    assert index.remove(7)
    index.check()
    assert index.match(Batch.of([{"a": 2000}])).tuples() == [(0, 3, 8)]


def test_replacing_is_one_step_and_may_use_the_same_attributes() -> None:
    index = Index()
    for round_ in range(20):
        index.add(1, ((Interval("a", round_, round_, False, False), Pattern("b", "contains", "x")),), round_)
        index.check()
    assert len(index) == 1
    assert index.match(Batch.of([{"a": 19, "b": "yxy"}, {"a": 18, "b": "x"}])).tuples() == [(0, 19, 1)]


def test_string_conditions_are_exact_with_and_without_the_cache() -> None:
    rng = random.Random(4)
    index, scan = Index(), Scan()
    alphabet = ["a", "b", "é", "日", "%", "_"]
    for subscription in range(300):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(4)))
        operator = rng.choice(["starts_with", "ends_with", "contains", "like"])
        if operator == "like":
            text = "".join(rng.choice(["%", "_", "a", "b", "é", r"\%"]) for _ in range(rng.randrange(6)))
        form: NormalForm = ((Pattern("s", operator, text, rng.random() < 0.2),),)
        index.add(subscription, form, 0)
        scan.add(subscription, form, 0)
    values = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(9))) for _ in range(60)]
    values.append("é" * 2000)  # too long to be remembered
    batch = Batch.of([{"s": value} for value in values])
    for _ in range(3):
        assert index.match(batch).tuples() == scan.match(batch).tuples()
    assert index.remove(0)
    scan.remove(0)
    assert index.match(batch).tuples() == scan.match(batch).tuples()
    index.check()


def test_affixes_of_every_length_are_exact() -> None:
    index, scan = Index(), Scan()
    text = "äbcdefgh" * 10
    for length in [*range(70), 79, 80]:
        for place, operator in enumerate(("starts_with", "ends_with")):
            affix = text[:length] if operator == "starts_with" else text[len(text) - length :]
            form: NormalForm = ((Pattern("s", operator, affix, length % 5 == 0),),)
            index.add(2 * length + place, form, 0)
            scan.add(2 * length + place, form, 0)
    index.check()
    batch = Batch.of([{"s": text[:length]} for length in range(81)] + [{"s": "x" + text}, {"s": 5}])
    assert index.match(batch).tuples() == scan.match(batch).tuples()
    for number in range(0, 160, 3):
        assert index.remove(number) == scan.remove(number)
    index.check()
    assert index.match(batch).tuples() == scan.match(batch).tuples()


def test_names_and_values_that_share_a_hash_bucket_stay_apart() -> None:
    # With so few buckets every chain is long, so that only the bytes tell names and values apart.
    index = Index()
    for number in range(300):
        index.add(number, ((Member(f"n{number}", (f"v{number}",)),),), 0)
    publications = [{f"n{number}": f"v{number + other}" for other in range(1)} for number in range(300)]
    hits = index.match(Batch.of(publications))  # type: ignore[arg-type]
    assert hits.tuples() == [(number, 0, number) for number in range(300)]
    assert {bucket_of.py_func(value, 11) for value in range(64)} == set(range(11))


def random_form(rng: random.Random, number: int) -> NormalForm:
    low = rng.random()
    if number % 3 == 0:
        return ((Interval("a", low, low + 0.1, False, False), Interval("b", low, None, False, False)),)
    if number % 3 == 1:
        return ((Member(f"t{number % 50}", (f"value {number}",)), Interval("a", None, low, False, False)),)
    return ((Interval(f"x{number % 20}", low, low + 0.1, False, False),), (Kinds("b", 1),))


def test_memory_returns_after_removals() -> None:
    rng = random.Random(8)
    index = Index()
    empty = index.memory_bytes()
    for number in range(20_000):
        index.add(number, random_form(rng, number), number % 10)
    full = index.memory_bytes()
    assert full - empty > 20_000 * 50
    order = list(range(20_000))
    rng.shuffle(order)
    for number in order[:18_000]:
        index.remove(number)
    index.check()
    assert index.memory_bytes() - empty < 0.35 * (full - empty)
    for number in order[18_000:]:
        index.remove(number)
    while index.fold():
        pass
    index.check()
    assert index.memory_bytes() - empty < 0.05 * (full - empty)
    for number in range(20_000):
        index.add(number, random_form(rng, number), number % 10)
    assert index.memory_bytes() < 1.2 * full


def test_no_call_does_much_maintenance() -> None:
    """A unit of work is at most a few nanoseconds; a call of 30,000 would take a fraction of a millisecond."""
    rng = random.Random(9)
    index = Index()
    most = 0

    def spent() -> int:
        nonlocal before
        work = index.work - before
        before = index.work
        return work

    before = index.work
    for number in range(30_000):
        index.add(number, random_form(rng, number), number % 3)
        most = max(most, spent())
    batch = Batch.of([{"a": rng.random(), "b": 0.5}])
    for number in rng.sample(range(30_000), 25_000):
        index.remove(number)
        most = max(most, spent())
        if number % 500 == 0:
            index.match(batch)
            most = max(most, spent())
    assert most < 30_000


def test_a_fold_looks_at_no_more_than_it_was_allowed() -> None:
    rng = random.Random(10)
    index = Index()
    for number in range(3000):
        index.add(number, random_form(rng, number), 0)
    for _ in range(100):
        index.match(Batch.of([{"a": rng.random(), "b": rng.random()}]))
    turns = 0
    while index.fold(100):
        turns += 1
        assert turns < 200
    index.check()
    assert not index.fold(100)
