"""Which slices a message visits: the same for everybody who knows the view."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from cluster.messages import ACCESS_POINT, DATA_LAYERS, Member, client_key
from cluster.routing import access_point_of, exit_point_of, teller_of
from cluster.view import first_view


def view_with(access_points: tuple[int, ...]) -> object:
    members = [Member(layer, 0, 1, "host", 1) for layer in DATA_LAYERS if layer != ACCESS_POINT]
    return first_view([*members, *(Member(ACCESS_POINT, slot, 1, "host", 1) for slot in access_points)])


def test_clients_take_turns_over_the_access_points_of_the_view() -> None:
    view = view_with((2, 5, 9))
    chosen = [access_point_of(view, client_key(1, session)) for session in range(300)]  # type: ignore[arg-type]
    assert Counter(chosen) == {2: 100, 5: 100, 9: 100}


def test_one_exit_point_gets_everything() -> None:
    assert {exit_point_of([7], f"p{number}") for number in range(50)} == {7}


def test_the_order_in_which_exit_points_are_listed_does_not_matter() -> None:
    for number in range(200):
        name = f"publisher {number}"
        assert exit_point_of([0, 1, 2, 3], name) == exit_point_of([3, 1, 0, 2], name)


def test_any_name_is_routed() -> None:
    for name in ("", "é", "\U0001f426", "x" * 10_000, "nul\0"):
        assert exit_point_of([0, 1], name) in (0, 1)


def test_five_exit_points_share_evenly() -> None:
    counts = Counter(exit_point_of(range(5), f"sensor-{number}") for number in range(5000))
    assert min(counts.values()) > 900
    assert max(counts.values()) < 1100


def test_the_choice_is_the_same_in_every_process() -> None:
    names = [f"publisher-{number}" for number in range(40)]
    program = (
        "from cluster.routing import exit_point_of\n"
        "print([exit_point_of([0, 1, 2], f'publisher-{number}') for number in range(40)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([exit_point_of([0, 1, 2], name) for name in names])


def test_matchers_take_turns_in_showing_everything_whatever_size_batches_have() -> None:
    for size in (1, 3, 64, 1024):
        told = Counter(teller_of([1, 4, 6], 1 + size * number) for number in range(3000))
        assert sorted(told) == [1, 4, 6]
        assert max(told.values()) < 1.2 * min(told.values()), (size, told)
