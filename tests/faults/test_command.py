"""The command of cell T6: what it counts, without a cluster."""

from __future__ import annotations

import pytest

from tests.faults.__main__ import judge, main


def test_what_came_is_judged_by_publisher() -> None:
    assert judge({0: 3, 1: 2}, {0: [0, 1, 2], 1: [0, 1]}) == {
        "lost": 0,
        "doubled": 0,
        "out_of_order": 0,
        "strangers": 0,
    }
    assert judge({0: 3}, {0: [0, 2]})["lost"] == 1
    assert judge({0: 3, 1: 1}, {0: [0, 1, 2]})["lost"] == 1
    assert judge({0: 3}, {0: [0, 1, 0, 1, 2]}) == {"lost": 0, "doubled": 2, "out_of_order": 0, "strangers": 0}
    assert judge({0: 3}, {0: [1, 0, 2]})["out_of_order"] == 1
    assert judge({0: 1}, {0: [0, 1], 7: [0]})["strangers"] == 2


def test_a_command_line_without_sense_is_refused() -> None:
    with pytest.raises(SystemExit, match="must be positive"):
        main(["--clients", "0"])
