"""Sealing shares the interpreter with the exit point: it is exact, and never long without a breath."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from cluster.columns import U32, U64
from cluster.frames import SUBSCRIPTION_BITS
from cluster.matched import FEW, Hits, Matched, MatchedRun
from cluster.output import sealing
from cluster.output.schema import SCHEMA
from cluster.output.sealing import table_of_rows
from cluster.output.write_ahead import Rows

NAMES = {1: "lab", 2: "hall", 3: "roof"}


def record(offset: int, matching: list[dict[int, list[int]]]) -> Rows:
    """Return a record of publications; of each, the numbers that match, by client."""
    payloads = [msgspec.msgpack.encode({"n": offset + place}) for place in range(len(matching))]
    hits = Hits(
        np.arange(len(matching), dtype=U32).tobytes(),
        np.array([len(clients) for clients in matching], U32).tobytes(),
        np.array([client for clients in matching for client in clients], U64).tobytes(),
        np.array([len(numbers) for clients in matching for numbers in clients.values()], U32).tobytes(),
        np.array([one for clients in matching for numbers in clients.values() for one in numbers], U32).tobytes(),
        np.array([len(payload) for payload in payloads], U32).tobytes(),
        b"".join(payloads),
    )
    run = MatchedRun("meter", 1, offset + 1, len(matching), 0, 1_500_000_000_000_000, 0)
    return Rows(offset, 0, 0, Matched(1, len(matching), [run], [hits]))


def clients_of(rng: random.Random, most: int) -> dict[int, list[int]]:
    chosen = rng.sample(sorted(NAMES), rng.randint(1, len(NAMES)))
    return {client: rng.sample(range(10_000), rng.randint(1, most)) for client in chosen}


@pytest.mark.parametrize("most", [1, FEW // 2, FEW, 4 * FEW])
def test_what_matched_is_listed_ascending_however_much_it_is(most: int) -> None:
    rng = random.Random(most)
    matching = [clients_of(rng, most) for _ in range(1200)]
    records = [record(at, matching[at : at + 7]) for at in range(0, len(matching), 7)]
    table = table_of_rows(3, records, NAMES)
    assert table.schema == SCHEMA
    assert all(column.num_chunks == 1 for column in table.columns)
    assert table.column("offset").to_pylist() == list(range(len(matching)))
    assert table.column("sequence").to_pylist() == list(range(1, len(matching) + 1))
    for given, subscriptions, clients in zip(
        matching, table.column("subscriptions").to_pylist(), table.column("clients").to_pylist(), strict=True
    ):
        expected = [client << SUBSCRIPTION_BITS | one for client, numbers in given.items() for one in numbers]
        assert subscriptions == sorted(expected)
        assert clients == sorted(NAMES[client] for client in given)


@pytest.mark.parametrize(("rows", "numbers"), [(3 * sealing.PIECE_ROWS, 1), (200, 5000)])
def test_it_breathes_by_what_rows_cost(rows: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two breaths no more is done than a millisecond is reckoned for, and one row; no piece is larger."""
    work: list[int] = [0]
    pieces: list[tuple[int, int]] = []
    add, table = sealing.RowColumns.add, sealing.RowColumns.table

    def counted(self: sealing.RowColumns, row: sealing.Row) -> None:
        work[-1] += sealing.ROW_US + len(row.subscriptions) // sealing.SUBSCRIPTIONS_PER_US
        add(self, row)

    def made(self: sealing.RowColumns) -> object:
        pieces.append((len(self), self.subscriptions))
        return table(self)

    monkeypatch.setattr(sealing.RowColumns, "add", counted)
    monkeypatch.setattr(sealing.RowColumns, "table", made)
    records = [record(at, [{1: list(range(numbers))}]) for at in range(rows)]
    found = table_of_rows(0, records, NAMES, lambda: work.append(0))
    assert len(found) == rows == sum(count for count, _ in pieces)
    one = sealing.ROW_US + numbers // sealing.SUBSCRIPTIONS_PER_US
    assert max(work) < sealing.BREATH_US + one
    assert max(count for count, _ in pieces) <= sealing.PIECE_ROWS
    assert max(named for _, named in pieces) < sealing.PIECE_SUBSCRIPTIONS + numbers
    assert len(pieces) > 1
