"""What a matcher holds and is nobody's: by key group, those in the way first."""

from __future__ import annotations

from cluster.leftovers import Leftovers
from cluster.view import key_group

SOME = list(range(1000, 1040))
GROUPS = {key_group(one) for one in SOME}


def leftovers() -> Leftovers:
    made = Leftovers()
    for group in sorted(GROUPS):
        made.add(group, [one for one in SOME if key_group(one) == group])
    return made


def take(made: Leftovers, most: int) -> list[int]:
    """Return what was taken, each from its own key group."""
    taken = made.take(most)
    assert all(key_group(one) == group for group, some in taken.items() for one in some)
    assert sum(map(len, taken.values())) <= most
    return [one for some in taken.values() for one in some]


def test_each_is_known_until_it_is_taken_or_somebodys_again() -> None:
    made = leftovers()
    assert len(made) == len(SOME)
    assert all(one in made for one in SOME)
    assert 999 not in made
    made.discard(key_group(SOME[0]), SOME[0])
    made.discard(key_group(SOME[0]), SOME[0])
    made.discard(key_group(999), 999)
    assert SOME[0] not in made
    made.add(key_group(SOME[1]), [SOME[1]])
    assert len(made) == len(SOME) - 1, "it was known"
    assert sorted([*take(made, 10), *take(made, 1000)]) == SOME[1:]
    assert (len(made), made.take(1), made.in_the_way) == (0, {}, False)
    assert not any(made.of(group) for group in GROUPS)
    made.discard(key_group(SOME[5]), SOME[5])


def test_those_in_the_way_come_first() -> None:
    made = leftovers()
    first = {key_group(one) for one in SOME[30:33]}
    made.look_out([*first, 4095, 0])
    assert made.in_the_way
    in_the_way = [one for one in SOME if key_group(one) in first]
    made.discard(key_group(in_the_way[0]), in_the_way[0])
    assert sorted(take(made, len(in_the_way) - 1)) == in_the_way[1:]
    assert not made.in_the_way
    made.look_out(GROUPS)
    assert made.in_the_way
    made.look_out([])
    assert not made.in_the_way
    assert len(made) == len(SOME) - len(in_the_way)


def test_a_group_without_any_is_not_in_the_way() -> None:
    made = leftovers()
    made.add(4000, [])
    made.look_out({4000} - GROUPS)
    assert not made.in_the_way
