"""Wishes: which slots are meant, what cannot be, and the views on the way there."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from cluster.assignment import fewest_moves, moved_groups, reassign
from cluster.columns import u16
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, DATA_LAYERS, EXIT_POINT, MATCHER, Peer
from cluster.view import KEY_GROUPS, View
from cluster.wish import MAX_SLOTS, Slots, WishError, next_view, slots_of, wanted_slots
from tests.unit.views import member, view

PRESENT: Slots = {CONNECTION_POINT: [0], ACCESS_POINT: [0, 1], MATCHER: [0, 2, 5], EXIT_POINT: [3]}


def wanted(counts: dict[str, Any] | None = None, replaced: Any = (), taken: tuple[Peer, ...] = ()) -> Slots:
    return wanted_slots(PRESENT, counts or {}, replaced, taken)


def test_growing_takes_the_lowest_free_slots() -> None:
    assert wanted({"matchers": 5}) == PRESENT | {MATCHER: [0, 1, 2, 3, 5]}
    taken = (Peer(MATCHER, 1), Peer(EXIT_POINT, 3))
    assert wanted({"matchers": 5}, taken=taken)[MATCHER] == [0, 2, 3, 4, 5], "1 has not left yet"


def test_shrinking_takes_the_highest_slots_away() -> None:
    assert wanted({"matchers": 1, "access_points": 1}) == PRESENT | {MATCHER: [0], ACCESS_POINT: [0]}


def test_a_count_that_is_there_changes_nothing_and_nothing_is_changed_in_place() -> None:
    before = {layer: list(slots) for layer, slots in PRESENT.items()}
    assert wanted({"matchers": 3, "exit_points": 1}) == PRESENT
    wanted({"matchers": 9, "exit_points": 4}, [[MATCHER, 2]])
    assert before == PRESENT


def test_a_replacement_gets_another_slot() -> None:
    assert wanted(replaced=[[MATCHER, 2], [EXIT_POINT, 3]]) == PRESENT | {MATCHER: [0, 1, 5], EXIT_POINT: [0]}
    assert wanted({"matchers": 4}, [[MATCHER, 0]])[MATCHER] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("counts", "replaced", "reason"),
    [
        ({"brokers": 2}, [], "'brokers' is no layer; known are connection_points, access_points, matchers"),
        ({"matchers": 0}, [], "matchers: 0, allowed"),
        ({"matchers": MAX_SLOTS + 1}, [], "allowed is a whole number from 1 to 2047"),
        ({"matchers": "3"}, [], "matchers: '3'"),
        ({"matchers": True}, [], "matchers: True"),
        ({"matchers": 2.0}, [], "matchers: 2.0"),
        ({}, [["broker", 0]], "'broker' is no layer"),
        ({}, [[MATCHER, 1]], "matcher 1 is not in the cluster; its slots are 0, 2, 5"),
        ({"matchers": 2}, [[MATCHER, 5]], "its slots are 0, 2"),
        ({}, [[MATCHER, 2], [MATCHER, 2]], "matcher 2 is not in the cluster"),
        ({}, [MATCHER], "expected is .layer, slot."),
        ({}, [[MATCHER, "2"]], "expected is .layer, slot."),
        ({}, 7, "expected is a list"),
    ],
)
def test_what_cannot_be_is_an_error(counts: dict[str, Any], replaced: Any, reason: str) -> None:
    with pytest.raises(WishError, match=reason):
        wanted(counts, replaced)


def test_a_full_layer_can_still_have_a_slice_replaced() -> None:
    full = PRESENT | {MATCHER: list(range(MAX_SLOTS))}
    assert wanted_slots(full, {}, [[MATCHER, 4]], ())[MATCHER][-1] == MAX_SLOTS
    with pytest.raises(WishError, match="no free slot"):
        wanted_slots(full, {}, [[MATCHER, 4]], [Peer(MATCHER, MAX_SLOTS)])


# The views on the way ----------------------------------------------------------------------------------------------


def steps(start: View, target: Slots, groups: int, full: tuple[int, ...] = ()) -> list[View]:
    """Return the views that lead there, as the coordinator makes them."""
    views: list[View] = []
    now = start
    while True:
        present = {one.peer for one in now.members}
        asked = [Peer(layer, slot) for layer in DATA_LAYERS for slot in target[layer]]
        newcomers = [member(*peer) for peer in asked if peer not in present]
        owners = reassign(now.owners, target[MATCHER])
        after = next_view(now, now.epoch + 1, target, owners, newcomers, full, groups)
        if after is None:
            return views
        assert after.epoch == now.epoch + 1
        views.append(after)
        now = after
        assert len(views) < 100


@pytest.mark.parametrize("seed", range(15))
def test_waves_end_at_the_target_in_as_few_steps_as_their_size_allows(seed: int) -> None:
    rng = random.Random(seed)
    start = view(1, matchers=rng.sample(range(8), rng.randint(1, 5)), exit_points=(0, 1))
    target = slots_of(start) | {MATCHER: sorted(rng.sample(range(8), rng.randint(1, 5))), EXIT_POINT: [1, 2]}
    groups = rng.randint(200, 1500)
    minimum = fewest_moves(start.owners, target[MATCHER])
    views = steps(start, target, groups)
    assert len(views) == max(-(-minimum // groups), 1)
    assert slots_of(views[-1]) == target
    moved = [len(moved_groups(a.owners, b.owners)) for a, b in zip([start, *views], views, strict=False)]
    assert sum(moved) == minimum, "on the way nothing moves twice"
    assert all(count <= groups for count in moved)
    everyone = {one.peer for one in start.members} | {Peer(*key) for key in _peers(target)}
    for one in views[:-1]:
        assert {member.peer for member in one.members} == everyone, "newcomers from the first on, leavers to the last"


def _peers(slots: Slots) -> set[tuple[str, int]]:
    return {(layer, slot) for layer, some in slots.items() for slot in some}


def test_a_few_moves_burden_all_sources_and_targets_alike() -> None:
    start = view(1, matchers=(0, 1))
    target = slots_of(start) | {MATCHER: [0, 1, 2, 3]}
    first = steps(start, target, 100)[0]
    before, after = u16(start.owners).tolist(), u16(first.owners).tolist()
    ways = Counter((a, b) for a, b in zip(before, after, strict=True) if a != b)
    assert sum(ways.values()) == 100
    assert set(ways) == {(0, 2), (1, 3)}, "the spare groups of both, in order"
    assert set(ways.values()) == {50}


def test_connection_points_with_clients_stay_until_they_have_none() -> None:
    start = view(1, connection_points=(0, 1, 2), access_points=(0, 1))
    target = slots_of(start) | {CONNECTION_POINT: [0], ACCESS_POINT: [0]}
    (first,) = steps(start, target, KEY_GROUPS, full=(1,))
    assert (first.connection_points, first.access_points) == ((0, 1), (0,))
    (second,) = steps(first, target, KEY_GROUPS)
    assert second.connection_points == (0,)


def test_where_nothing_is_to_be_done_there_is_no_next_view() -> None:
    start = view(1, connection_points=(0, 1))
    assert steps(start, slots_of(start), 64) == []
    target = slots_of(start) | {CONNECTION_POINT: [0]}
    assert steps(start, target, 64, full=(1,)) == [], "everyone waits for the clients to move"
