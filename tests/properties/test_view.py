"""In every view each key group has one owner, balanced within one; routing depends on the view and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from cluster import columns
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    DATA_LAYERS,
    EXIT_POINT,
    MATCHER,
    Epoch,
    Member,
    Peer,
    Prepare,
    client_key,
    slot_of,
    subscription_id,
)
from cluster.routing import access_point_of, exit_point_of
from cluster.view import KEY_GROUPS, View, even_owners, first_view, key_group, key_groups, view_of


def draw_members(rng: random.Random) -> list[Member]:
    members = [
        Member(layer, slot, rng.randint(1, 9), "host", rng.randint(1, 65535))
        for layer in DATA_LAYERS
        for slot in rng.sample(range(2047), rng.randint(1, 9))
    ]
    rng.shuffle(members)
    return members


@pytest.mark.parametrize("seed", range(30))
def test_each_key_group_has_one_owner_balanced_within_one(seed: int) -> None:
    rng = random.Random(seed)
    view = first_view(draw_members(rng))
    owners = columns.u16(view.owners).tolist()
    assert len(owners) == KEY_GROUPS
    counts = Counter(owners)
    assert set(counts) == set(view.matchers)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_owners_depend_on_the_set_of_slots_alone() -> None:
    rng = random.Random(1)
    for _ in range(50):
        slots = rng.sample(range(2047), rng.randint(1, 300))
        shuffled = rng.sample(slots, len(slots))
        assert even_owners(slots) == even_owners(shuffled)
        counts = Counter(columns.u16(even_owners(slots)).tolist())
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_a_view_comes_back_from_its_message(seed: int) -> None:
    rng = random.Random(100 + seed)
    members = draw_members(rng)
    view = first_view(members)
    again = view_of(view.install())
    assert again == view
    assert view_of(Prepare(1, list(view.members), view.owners)) == view
    assert again.epoch == 1
    for member in members:
        assert again.member(member.peer) == member
    assert again.member(Peer(MATCHER, 5000)) is None
    for layer, slots in (
        (CONNECTION_POINT, view.connection_points),
        (ACCESS_POINT, view.access_points),
        (MATCHER, view.matchers),
        (EXIT_POINT, view.exit_points),
    ):
        assert slots == view.slots(layer) == tuple(sorted(member.slot for member in members if member.layer == layer))
        assert view.peers(layer) == tuple(Peer(layer, slot) for slot in slots)
    for _ in range(100):
        subscription = rng.getrandbits(63)
        group = key_group(subscription)
        assert view.owner(subscription) == view.owner_of_group(group) == columns.u16(view.owners)[group]
        assert view.owners_list[group] == view.owner(subscription)


def test_a_column_of_subscriptions_has_the_groups_of_each() -> None:
    """The matcher filters hits by columns, everyone else asks one by one."""
    rng = random.Random(7)
    subscriptions = [0, (1 << 63) - 1, *(rng.getrandbits(63) for _ in range(2000))]
    groups = key_groups(np.array(subscriptions, columns.U64))
    assert groups.tolist() == [key_group(one) for one in subscriptions]
    assert key_groups(np.array([], columns.U64)).tolist() == []


def test_near_subscriptions_spread_over_the_key_groups() -> None:
    """A client's subscriptions differ in the lowest bits, its neighbours' in the next; all must part."""
    for step in (1, 1 << 20, 1 << 52):
        groups = Counter(key_group(number * step & (1 << 63) - 1) for number in range(1 << 11))
        assert all(0 <= group < KEY_GROUPS for group in groups)
        assert max(groups.values()) <= 8
        assert len(groups) > 1200


def test_ids_hold_what_they_were_made_of() -> None:
    rng = random.Random(2)
    for _ in range(200):
        slot, session, number = rng.randrange(2048), rng.getrandbits(32), rng.randrange(1 << 20)
        client = client_key(slot, session)
        assert slot_of(client) == slot
        subscription = subscription_id(client, number)
        assert subscription < 1 << 63
        assert subscription >> 20 == client
        assert subscription & (1 << 20) - 1 == number


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda members: [one for one in members if one.layer != MATCHER], "without a matcher"),
        (lambda members: [one for one in members if one.layer != EXIT_POINT], "without a exit_point"),
        (lambda members: [*members, members[0]], "twice"),
    ],
)
def test_a_view_that_is_none_is_refused(change: object, reason: str) -> None:
    members = [Member(layer, 0, 1, "host", 1) for layer in DATA_LAYERS]
    with pytest.raises(AssertionError, match=reason):
        View(Epoch(1), tuple(change(members)), even_owners([0]))  # type: ignore[operator]


def test_owners_outside_of_the_view_are_refused() -> None:
    members = tuple(Member(layer, 0, 1, "host", 1) for layer in DATA_LAYERS)
    with pytest.raises(AssertionError, match="not in the view"):
        View(Epoch(1), members, even_owners([0, 1]))
    with pytest.raises(AssertionError, match="key groups"):
        View(Epoch(1), members, even_owners([0])[:-2])


def test_a_client_keeps_its_access_point_and_clients_spread() -> None:
    view = first_view(draw_members(random.Random(3)))
    chosen = [access_point_of(view, client_key(0, session)) for session in range(1000)]
    assert chosen == [access_point_of(view, client_key(0, session)) for session in range(1000)]
    assert set(chosen) == set(view.access_points)


def test_publishers_spread_and_few_move_when_an_exit_point_comes() -> None:
    publishers = [f"station-{number}" for number in range(3000)]
    before = [exit_point_of((0, 1, 2), name) for name in publishers]
    after = [exit_point_of((0, 1, 2, 3), name) for name in publishers]
    counts = Counter(before)
    assert max(counts.values()) < 1.5 * min(counts.values()), counts
    for old, new in zip(before, after, strict=True):
        assert new in (old, 3), "a publisher moved between exit points that stayed"
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert 0.1 < moved / len(publishers) < 0.4
