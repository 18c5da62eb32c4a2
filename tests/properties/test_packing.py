"""An encoded normal form is read as Python reads it: whole, spelled otherwise, damaged, cut off, or too large.

That what was read matches as it should is `test_index.py`'s matter, whose every form goes this way.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import random
import re
import struct

import msgpack
import numpy as np
import pytest

from cluster.errors import CodecError
from cluster.language import decode_normal, encode_normal
from cluster.language.normal import Atom, Interval, Kinds, Member, Near, NormalForm, Pattern, StringInterval
from cluster.matching import Batch, Index, Scan, kernels, layout, outcomes
from cluster.matching.memory import address
from cluster.matching.packing import BODY_BYTES_MAX, OPERATIONS_MAX
from tests.properties.test_index import assert_same, random_batch, random_conjunction

LEADS = [0xC0, 0xC1, 0xC2, 0xC4, 0xCA, 0xCB, 0xCF, 0xD3, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0x80, 0x90, 0x91, 0xA0, 0xFF]
FORM: NormalForm = ((Interval("kept", 1, None, False, False),),)


def random_encoded(rng: random.Random) -> bytes:
    return encode_normal(tuple(random_conjunction(rng) for _ in range(rng.choice([1, 1, 2, 3]))))


def damaged(rng: random.Random, encoded: bytes) -> bytes:
    data = bytearray(encoded)
    for _ in range(rng.randint(0, 3)):
        data[rng.randrange(len(data))] = rng.choice([rng.randrange(256), rng.choice(LEADS)])
    if rng.random() < 0.4:
        del data[rng.randrange(len(data)) :]
    elif rng.random() < 0.1:
        data.append(rng.choice(LEADS))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_forms_are_refused_where_python_refuses_them(seed: int) -> None:
    rng = random.Random(f"damage {seed}")
    index, scan = Index(), Scan()
    index.add(0, FORM, 0)
    scan.add(0, FORM, 0)
    refused = 0
    for number in range(1, 600):
        encoded = damaged(rng, random_encoded(rng))
        subscription = number % 30  # most replace another
        try:
            form = decode_normal(encoded)
        except CodecError as error:
            refused += 1
            with pytest.raises(CodecError, match=re.escape(str(error))):
                index.add_encoded(subscription, encoded, 1)
        else:
            index.add_encoded(subscription, encoded, 1)
            scan.add(subscription, form, 1)
        if number % 50 == 0:
            index.check()
            assert_same(index, scan, random_batch(rng, 12), (seed, number))
    assert len(index) == len(scan)
    assert 100 < refused < 550


@pytest.mark.parametrize(
    "spelled",
    [
        [[["i", "a", 1.0, None, False, True]]],
        [[["i", "a", np.float32(0.5), 3, False, True]]],
        [[["m", "a", [5]]]],
        [[["p", "a", "starts_with", "x"]]],
        [[["n", "a", "b", 1, 2, 3]]],
        [[["k", "a", 8, "more"]]],
    ],
)
def test_what_is_spelled_otherwise_is_read_by_python(spelled: object) -> None:
    encoded = msgpack.packb(spelled, use_single_float=True, default=float)
    index, scan = Index(), Scan()
    index.add_encoded(1, encoded, 2)
    scan.add_encoded(1, encoded, 2)
    index.check()
    values = (None, True, 0.5, 1, 2, 5, 3.0, "x", "yx")
    assert_same(index, scan, Batch.of([{"a": value, "b": 2} for value in values]), spelled)


def words(index: Index, form: NormalForm) -> list[int]:
    """Return the packed words behind the number of conjunctions and of operations. Attributes count from 1."""
    encoded = encode_normal(form)
    assert kernels.add(index._m, 1, 1, encoded, len(encoded)) == outcomes.PACKED
    return np.frombuffer(index._map, np.uint64, 10, layout.S_INPUT).tolist()[2:]


def double(number: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", number))[0])


RANGE, EXACT, EQUAL, KINDS, SET, STRING = (operation | 1 << 8 for operation in (4, 5, 1, 6, 2, 3))
INFINITY = float("inf")


@pytest.mark.parametrize(
    ("atom", "expected"),
    [
        (Interval("a", 1, 2.5, False, False), [RANGE, double(1), double(2.5)]),
        (Interval("a", -0.0, None, False, False), [RANGE, double(-0.0), double(INFINITY)]),
        (Interval("a", 0, None, True, False), [RANGE, double(5e-324), double(INFINITY)]),
        (Interval("a", None, 0.0, False, True), [RANGE, double(-INFINITY), double(-5e-324)]),
        (Interval("a", -1, None, True, False), [RANGE, double(-0.9999999999999999), double(INFINITY)]),
        (Interval("a", 1.7976931348623157e308, None, True, False), [KINDS]),
        (Interval("a", 1e300, None, False, False), [RANGE, double(1e300), double(INFINITY)]),
        (Interval("a", 3, 2, False, False), [KINDS]),
        (Interval("a", 3, 3, True, False), [KINDS]),
        (Interval("a", 3.0, 3, False, False), [EQUAL | 2 << 32, 3]),
        (Interval("a", 2**53 - 1, None, False, False), [RANGE, double(2.0**53 - 1), double(INFINITY)]),
        (
            Interval("a", 2**53 + 1, None, True, False),
            [RANGE, double(2.0**53), double(INFINITY), EXACT | (1 | 2 | 2 << 4) << 32, 2**53 + 1, 0],
        ),
        (
            Interval("a", -(2**63), 2.0**64, False, True),
            [
                *(RANGE, double(-(2.0**63)), double(2.0**64)),
                *(EXACT | (1 | 4 | 8 | 3 << 4 | 4 << 8) << 32, 2**63, double(2.0**64)),
            ],
        ),
        (Member("a", (-0.0,)), [EQUAL | 2 << 32, 0]),
        (Member("a", (2.0**63,)), [EQUAL | 2 << 32, 2**63]),
        (Member("a", (2**64 - 1,)), [EQUAL | 2 << 32, 2**64 - 1]),
        (Member("a", (0.5,)), [EQUAL | 4 << 32, double(0.5)]),
        (Member("a", (True,)), [EQUAL | 1 << 32, 1]),
        (Member("a", ("abc",)), [EQUAL | 5 << 32, 3, int.from_bytes(b"abc", "little")]),
        (Member("a", (7,), True), [SET | (1 | 1 << 16) << 32, 8, 2, 7]),
        (Member("a", (False, -7)), [SET | 2 << 32, 4 | 8, 1, 0, 3, 2**64 - 7]),
        (Pattern("a", "ends_with", "xy", True), [STRING | (1 | 5 << 1) << 32, 2, int.from_bytes(b"xy", "little")]),
        (Pattern("a", "like", "_"), [STRING | (3 << 1) << 32, 18, 2 | 1 << 32, 1 | 1 << 31, 256]),
        (
            StringInterval("a", "b", "c", True, False),
            [STRING | (3 << 1) << 32, 18, 1 | (1 | 2 | 4) << 8, 1, int.from_bytes(b"bc", "little")],
        ),
    ],
)
def test_words_of_an_atom(atom: Atom, expected: list[int]) -> None:
    found = words(Index(), ((atom,),))  # type: ignore[arg-type]
    assert [hex(word) for word in found[: len(expected)]] == [hex(word) for word in expected]


AT_THE_LIMITS: list[tuple[NormalForm, NormalForm]] = [
    (((Member("a", ("x" * BODY_BYTES_MAX,)),),), ((Member("a", ("x" * BODY_BYTES_MAX + "x",)),),)),
    (((Kinds("a" * BODY_BYTES_MAX, 4),),), ((Kinds("a" * BODY_BYTES_MAX + "a", 4),),)),
    (
        ((StringInterval("a", None, "x" * (BODY_BYTES_MAX - 16), False, False),),),
        ((StringInterval("a", "x", "x" * (BODY_BYTES_MAX - 16), False, False),),),
    ),
    (
        ((Pattern("a", "contains", "x" * (BODY_BYTES_MAX // 4 - 8)),),),
        ((Pattern("a", "contains", "x" * (BODY_BYTES_MAX // 4 + 1)),),),
    ),
    (
        ((Pattern("a", "like", "%" * (BODY_BYTES_MAX // 8 - 2)),),),
        ((Pattern("a", "like", "%" * (BODY_BYTES_MAX // 8)),),),
    ),
    (
        ((Member("a", tuple(range(BODY_BYTES_MAX // 4))),),),
        ((Member("a", tuple(range(BODY_BYTES_MAX // 4 + 1))),),),
    ),
    (
        (tuple(Near(f"a{each}", "b", 1, 1, 5) for each in range(OPERATIONS_MAX)),),
        (tuple(Near(f"a{each}", "b", 1, 1, 5) for each in range(OPERATIONS_MAX + 1)),),
    ),
]


@pytest.mark.parametrize("case", range(len(AT_THE_LIMITS)))
def test_what_no_block_holds_is_refused_and_nothing_is_changed(case: int) -> None:
    largest, larger = AT_THE_LIMITS[case]
    index = Index()
    index.add(1, FORM, 1)
    for client in range(2):
        index.add(2, largest, client)
        index.check()
        with pytest.raises(ValueError, match="too large"):
            index.add(1, larger, 1)
        index.check()
    assert index.match(Batch.of([{"kept": 1}])).tuples() == [(0, 1, 1)]
    assert index.remove(2)
    index.check()


def test_names_of_what_is_refused_are_forgotten() -> None:
    index = Index()
    encoded = encode_normal(((Kinds("a", 4), Near("b", "c", 1, 1, 5), Member("d", ("x",))),))
    for length in range(len(encoded)):
        with pytest.raises(CodecError):
            index.add_encoded(1, encoded[:length], 1)
    index.check()
    assert len(index) == index._get(layout.H_ATTRIBUTES_LIVE) == 0


PAGE = mmap.PAGESIZE


def read_at_the_end_of_a_page(seed: int) -> None:
    """Add forms, whole and damaged, that end where memory ends: reading on would end the process."""
    rng = random.Random(f"page {seed}")
    memory = mmap.mmap(-1, 3 * PAGE)
    at = address(np.frombuffer(memory, np.uint8))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at + 2 * PAGE), ctypes.c_size_t(PAGE), 0) == 0
    index = Index()
    read = 0
    for _ in range(1500):
        encoded = random_encoded(rng)
        encoded = damaged(rng, encoded) if rng.random() < 0.7 else encoded[: rng.randrange(len(encoded) + 1)]
        size = len(encoded)
        memory[2 * PAGE - size : 2 * PAGE] = encoded
        read += kernels.add(index._m, 1, 1, at + 2 * PAGE - size, size) == outcomes.PACKED
    index.check()
    assert read > 50


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_read_beyond_the_end(seed: int) -> None:
    reader = multiprocessing.get_context("spawn").Process(target=read_at_the_end_of_a_page, args=(seed,))
    reader.start()
    reader.join()
    assert reader.exitcode == 0
