"""Assignments of key groups: even, with no more moved than must be, whatever the history; by load where loads are."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from cluster import assignment
from cluster.assignment import LOAD_TOLERANCE, fewest_moves, moved_groups, reassign
from cluster.columns import U16, u16
from cluster.view import KEY_GROUPS, even_owners


def column(owners: list[int]) -> bytes:
    return np.array(owners, U16).tobytes()


@pytest.mark.parametrize("seed", range(30))
def test_any_history_stays_even_and_moves_the_fewest(seed: int) -> None:
    rng = random.Random(seed)
    matchers = rng.sample(range(2047), rng.randint(1, 12))
    owners = even_owners(matchers)
    for _ in range(12):
        kept = rng.sample(matchers, rng.randint(0, len(matchers)))
        fresh = rng.sample(range(2047), rng.randint(0 if kept else 1, 6))
        matchers = sorted({*kept, *fresh})
        after = reassign(owners, rng.sample(matchers, len(matchers)))
        counts = Counter(u16(after).tolist())
        assert set(counts) == set(matchers)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert len(moved_groups(owners, after)) == fewest_moves(owners, matchers)
        assert reassign(after, matchers) == after, "what is even stays"
        owners = after


@pytest.mark.parametrize("seed", range(20))
def test_any_assignment_is_made_even_with_the_fewest_moves(seed: int) -> None:
    """Not only those that came of even ones: waves that were given up leave uneven ones behind."""
    rng = random.Random(seed)
    weights = [rng.random() ** 3 for _ in range(8)]
    owners = column(rng.choices(range(8), weights, k=KEY_GROUPS))
    matchers = sorted(rng.sample(range(12), rng.randint(1, 9)))
    after = reassign(owners, matchers)
    counts = Counter(u16(after).tolist())
    assert set(counts) == set(matchers)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(moved_groups(owners, after)) == fewest_moves(owners, matchers)


@pytest.mark.parametrize(("groups", "slots"), [(5, 2), (7, 3), (6, 3), (6, 4)])
def test_fewest_moves_is_the_minimum_over_all_even_assignments(
    monkeypatch: pytest.MonkeyPatch, groups: int, slots: int
) -> None:
    """By trying them all, where there are few groups."""
    monkeypatch.setattr(assignment, "KEY_GROUPS", groups)
    rng = random.Random(groups * slots)
    for _ in range(25):
        matchers = rng.sample(range(slots + 2), slots)
        before = [rng.randrange(slots + 2) for _ in range(groups)]
        even = []
        for owners in itertools.product(matchers, repeat=groups):
            counts = [owners.count(slot) for slot in matchers]
            if max(counts) - min(counts) <= 1:
                even.append(sum(now != then for now, then in zip(before, owners, strict=True)))
        assert fewest_moves(column(before), matchers) == min(even)
        assert len(moved_groups(column(before), reassign(column(before), matchers))) == min(even)


def test_known_minimums() -> None:
    one, three = even_owners([0]), even_owners([0, 1, 2])
    assert fewest_moves(one, [0, 1, 2]) == KEY_GROUPS - 1366
    assert fewest_moves(three, [0]) == KEY_GROUPS - 1366
    assert fewest_moves(three, [0, 2, 3]) == 1365, "a replacement moves what the replaced one had"
    assert fewest_moves(three, [7]) == KEY_GROUPS
    assert fewest_moves(three, [0, 1, 2]) == 0
    assert moved_groups(three, three) == []
    assert moved_groups(column([3, 4, 5, 3]), column([3, 5, 5, 4])) == [1, 3]


def totals(owners: bytes, loads: np.ndarray, matchers: list[int]) -> dict[int, float]:
    return {slot: float(loads[u16(owners) == slot].sum()) for slot in matchers}


@pytest.mark.parametrize("seed", range(12))
def test_by_load_no_slot_keeps_what_it_could_give_away_to_the_good_of_both(seed: int) -> None:
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    loads = numbers.pareto(1.2, KEY_GROUPS) if seed % 2 else numbers.random(KEY_GROUPS)
    if seed % 3 == 0:
        loads[rng.randrange(KEY_GROUPS)] = loads.sum()  # one group as hot as all others
    before = even_owners(rng.sample(range(9), 3))
    matchers = sorted(rng.sample(range(9), rng.randint(2, 5)))
    after = reassign(before, matchers, loads.tolist())
    total = totals(after, loads, matchers)
    enough = LOAD_TOLERANCE * loads.sum() / len(matchers)
    assert set(u16(after).tolist()) <= set(matchers)
    for full, bare in itertools.permutations(matchers, 2):
        gap = total[full] - total[bare]
        if gap > enough:
            own = loads[u16(after) == full]
            assert not ((own > 0) & (own <= gap / 2 * 0.999)).any(), f"{full} could give to {bare}"


def test_by_load_even_loads_give_even_numbers_and_little_moves() -> None:
    loads = [1.0] * KEY_GROUPS
    after = reassign(even_owners([0, 1]), [0, 1, 2, 3], loads)
    counts = Counter(u16(after).tolist())
    assert max(counts.values()) - min(counts.values()) <= LOAD_TOLERANCE * KEY_GROUPS / 4
    assert len(moved_groups(even_owners([0, 1]), after)) <= fewest_moves(even_owners([0, 1]), [0, 1, 2, 3])


def test_by_load_what_is_even_enough_is_left_alone() -> None:
    before = even_owners([0, 1])
    loads = [1.02] * (KEY_GROUPS // 2) + [1.0] * (KEY_GROUPS // 2)
    assert reassign(before, [0, 1], loads) == before
    assert reassign(before, [0, 1], [0.0] * KEY_GROUPS) == before


def test_by_load_the_groups_of_a_leaver_without_load_are_spread_as_well() -> None:
    after = reassign(even_owners([0, 1, 2]), [0, 1], [0.0] * KEY_GROUPS)
    counts = Counter(u16(after).tolist())
    assert set(counts) == {0, 1}
    assert max(counts.values()) - min(counts.values()) <= 1
