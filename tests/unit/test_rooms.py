"""The memory of the matching engine that is used again: the same while it suits, never too small, not kept for long."""

from __future__ import annotations

import numpy as np

from cluster import parse
from cluster.matching import Batch, Index, Room
from cluster.matching.memory import KEPT, Memory, address


def test_memory_is_one_place_seen_in_three_ways() -> None:
    memory = Memory(3)
    memory.words[0], memory.words[2] = -1, 5
    assert memory.unsigned[0] == 2**64 - 1
    assert (len(memory.octets), memory.octets[16]) == (24, 5)
    assert memory.at == address(np.asarray(memory.words))


def test_a_room_gives_the_same_memory_while_it_suits() -> None:
    room = Room()
    first = room.take(10)
    assert room.take(KEPT) is first
    larger = room.take(10 * KEPT)
    assert larger.size >= 10 * KEPT
    assert room.take(9 * KEPT) is larger
    assert room.take(4 * KEPT) is larger
    assert room.take(10).size == KEPT, "so much is not kept for so little"


def test_hits_in_a_room_are_those_of_their_own_memory() -> None:
    index = Index()
    for subscription in range(300):
        index.add(subscription, parse(f"a >= {subscription % 3}").normal_form, subscription % 2)
    room = Room()
    for values in ([0], [2] * 40, [1], []):
        batch = Batch.of([{"a": value} for value in values])
        own = index.match(batch)
        in_room = index.match(batch, room)
        assert in_room.tuples() == own.tuples()
        assert (len(in_room), in_room.run_count) == (own.count, len(own.runs))
        assert in_room.ids().tolist() == own.subscription.tolist()
        assert in_room.groups().tolist() == own.groups().tolist()
