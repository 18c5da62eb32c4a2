"""A matcher's answers against a plain model: the columns for each exit point, whatever the batch and its hits."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgpack
import numpy as np
import pytest

from cluster import parse
from cluster.config import Config, OutputSettings
from cluster.language import encode_normal
from cluster.matcher import Matcher
from cluster.matching import Batch as PublicationBatch
from cluster.matching import Hits, Room, Scan, answer
from cluster.matching.answers import Columns
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    ApplyChanges,
    Batch,
    Peer,
    Received,
    Recover,
    Result,
    Run,
    Send,
    SubscriptionChange,
    client_key,
    subscription_id,
)
from cluster.routing import teller_of
from cluster.view import View
from tests.unit.views import view

ACCESS = Peer(ACCESS_POINT, 4)
BROKEN = (msgpack.packb({"a": math.nan}), msgpack.packb({"a": [1]}), b"\xc1", b"")
Row = tuple[int, int, int]


def packed(kind: str, numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def modelled(
    pieces: list[bytes], refused: set[int], rows: list[Row], chosen: list[int], bits: int, shown: bool
) -> tuple[int, Columns]:
    """Return what `answer` promises. rows: (publication, client, subscription), sorted; chosen: publications."""
    matched, notifications, clients, matches, numbers, payload = [], [], [], [], [], []
    with_hits = 0
    for place, publication in enumerate(chosen):
        own = [row for row in rows if row[0] == publication]
        with_hits += bool(own)
        if not own and not (shown and publication not in refused):
            continue
        matched.append(place)
        payload.append(pieces[publication])
        groups = [(client, list(group)) for client, group in groupby(own, key=lambda row: row[1])]
        notifications.append(len(groups))
        clients += [client for client, _ in groups]
        matches += [len(group) for _, group in groups]
        numbers += [subscription % (1 << bits) for _, _, subscription in own]
    return with_hits, (
        packed("I", matched),
        packed("I", notifications),
        packed("Q", clients),
        packed("I", matches),
        packed("I", numbers),
        packed("I", [len(piece) for piece in payload]),
        b"".join(payload),
    )


def random_piece(rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        return rng.choice(BROKEN)
    text = "x" * rng.choice((0, 1, 7, 8, 20, 300))
    return msgpack.packb({"a": rng.randrange(5), "b": rng.choice((1, 2.5, None, text)), "c": text})


def lengths_of(pieces: list[bytes]) -> bytes:
    return packed("I", [len(piece) for piece in pieces])


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_is_what_the_model_says(seed: int) -> None:
    rng = random.Random(seed)
    batch_room, answer_room = Room(), Room()
    for _ in range(150):
        pieces = [random_piece(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 10, 40)))]
        rooms = rng.random() < 0.7
        batch = PublicationBatch(lengths_of(pieces), b"".join(pieces), room=batch_room if rooms else None)
        refused = {place for place, _ in batch.rejected}
        bits = rng.choice((20, 4))
        share = rng.choice((0.0, 0.1, 0.5, 1.0))
        rows = sorted(
            {
                (publication, client, client << bits | rng.randrange(1 << bits))
                for publication in range(len(pieces))
                if publication not in refused and rng.random() < share
                for client in rng.sample((0, 1, 5, (1 << 43) - 1), rng.randint(0, 3))
                for _ in range(rng.choice((1, 1, 2, 30)))
            }
        )
        publication, client, subscription = zip(*rows, strict=True) if rows else ((), (), ())
        hits = Hits.of(np.array(publication, np.uint32), np.array(client, np.int64), np.array(subscription, np.uint64))
        assert hits.tuples() == rows
        cuts = sorted(rng.randint(0, len(pieces)) for _ in range(rng.choice((0, 1, 5))))
        stretches = [*zip([0, *cuts], [*cuts, len(pieces)], strict=True)]
        for shown in (False, True):
            ranges: list[int] = []
            chosen: list[int] = []
            for begin, end in stretches:
                if rng.random() < 0.6 or len(stretches) == 1:
                    ranges += (begin, end)
                    chosen += range(begin, end)
            found = answer(batch, hits, ranges, bits, shown, answer_room if rooms else None)
            assert found == modelled(pieces, refused, rows, chosen, bits, shown)


class Bench:
    """A matcher, and beside it the subscriptions that it should answer for."""

    def __init__(self, rng: random.Random, output_all: bool) -> None:
        self._rng = rng
        self._all = output_all
        self.machine = Matcher(0, 1, Config(output=OutputSettings(path="out", all=output_all)))
        self.view: View = view(1, access_points=(4,), exit_points=(0, 2, 3))
        self.machine.handle(Received(COORDINATOR_PEER, self.view.install()))
        self.scan = Scan()
        self._mine: dict[int, tuple[Any, int]] = {}

    def subscribe(self, count: int) -> None:
        changes = []
        for change in range(1, count + 1):
            client = client_key(0, self._rng.randrange(6))
            subscription = subscription_id(client, self._rng.randrange(10))
            text = self._rng.choice(["a > 2", "a <= 1", "b > 1", "exists c", "a == 3 or b == 2.5", "a > 9"])
            form = parse(text).normal_form
            changes.append(SubscriptionChange(change, subscription, encode_normal(form)))
            self._mine[subscription] = (form, client)
            self.scan.add(subscription, form, client)
        self.machine.handle(Received(ACCESS, ApplyChanges(1, 0, changes)))

    def lose_half(self) -> None:
        """Let another matcher own half of the groups, before anything of them is swept out."""
        after = self.view = view(2, access_points=(4,), exit_points=(0, 2, 3), matchers=(0, 1))
        self.machine.handle(Received(COORDINATOR_PEER, Recover(2, list(after.members), after.owners, [])))
        for subscription in self._mine:
            if after.owner(subscription) != 0:
                self.scan.remove(subscription)

    def batch(self) -> tuple[Batch, list[bytes], list[tuple[int, int, int]]]:
        """Return a batch, its publications, and of each run the exit point and where it begins and ends."""
        rng = self._rng
        exit_points = rng.choice(([0], [2, 3], [3, 0, 2]))
        upcoming = {slot: rng.randrange(1, 100) for slot in exit_points}
        runs, chosen, sequences, stretches = [], [], [], []
        pieces: list[bytes] = []
        for number in range(rng.choice((1, 1, 2, 6))):
            exit_point = rng.choice(exit_points)
            count = rng.choice((1, 1, 1, 2, 5, 30))
            runs.append(Run(f"p{number}", 1, 9, 1, count, 5))
            chosen.append(exit_point)
            sequences.append(upcoming[exit_point])
            upcoming[exit_point] += count
            stretches.append((exit_point, len(pieces), len(pieces) + count))
            pieces += [random_piece(rng) for _ in range(count)]
        expect = [0] if self.view.epoch == 1 else [0, 1]
        made = Batch(
            self.view.epoch,
            expect,
            rng.randrange(1, 1000),
            runs,
            chosen,
            sequences,
            lengths_of(pieces),
            b"".join(pieces),
        )
        return made, pieces, stretches

    def expected(self, batch: Batch, pieces: list[bytes], stretches: list[tuple[int, int, int]]) -> list[Send]:
        checked = PublicationBatch(batch.lengths, batch.payload)
        reasons = dict(checked.rejected)
        rows = self.scan.match(checked).tuples()
        shown = self._all and teller_of(batch.expect, batch.sequence) == 0
        sent = []
        for slot in sorted({exit_point for exit_point, _, _ in stretches}):
            own = [at for at, (exit_point, _, _) in enumerate(stretches) if exit_point == slot]
            chosen = [one for at in own for one in range(stretches[at][1], stretches[at][2])]
            _, columns = modelled(pieces, set(reasons), rows, chosen, 20, shown)
            rejected = [(place, reasons[one]) for place, one in enumerate(chosen) if one in reasons]
            first = batch.exit_sequences[own[0]]
            runs = [batch.runs[at] for at in own]
            result = Result(batch.epoch, batch.expect, 4, first, runs, rejected, *columns)
            sent.append(Send(Peer(EXIT_POINT, slot), result))
        return sent


@pytest.mark.parametrize("output_all", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_matcher_answers_as_the_model_does(seed: int, output_all: bool) -> None:
    rng = random.Random(seed)
    bench = Bench(rng, output_all)
    for count in (0, 3, 40):
        bench.subscribe(count)
        for _ in range(25):
            made = bench.batch()
            assert bench.machine.handle(Received(ACCESS, made[0])) == bench.expected(*made)
    bench.lose_half()
    known = len(bench.scan)
    assert 0 < known < len(bench.machine.index), "the index still holds what others answer for"
    for _ in range(25):
        made = bench.batch()
        assert bench.machine.handle(Received(ACCESS, made[0])) == bench.expected(*made)


def test_what_was_answered_stays_when_the_rooms_are_used_again() -> None:
    rng = random.Random(1)
    bench = Bench(rng, output_all=False)
    bench.subscribe(40)
    made = [bench.batch() for _ in range(30)]
    answers = [bench.machine.handle(Received(ACCESS, batch)) for batch, _, _ in made]
    assert answers == [bench.expected(*one) for one in made]
