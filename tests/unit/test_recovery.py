"""What a recovery is made of: its phases, what is sent again a little at a time, and what is known to be a double."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cluster import rebuilding
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    MATCHER,
    Installed,
    Peer,
    Rebuild,
    Rebuilt,
    Recover,
    Send,
    SubscriptionChange,
)
from cluster.rebuilding import Rebuilding
from cluster.recovery import RETRY_MS, RETRY_MS_MOST, Phase, Recovery
from cluster.watermarks import Watermarks
from tests.unit.views import view

M0, M1 = Peer(MATCHER, 0), Peer(MATCHER, 1)
AP0, AP1 = Peer(ACCESS_POINT, 0), Peer(ACCESS_POINT, 1)
CP0, CP1 = Peer(CONNECTION_POINT, 0), Peer(CONNECTION_POINT, 1)
VIEW = view(5, connection_points=(0, 1), matchers=(0, 1))
PEERS = [member.peer for member in VIEW.members]


# Phases -----------------------------------------------------------------------------------------------------------


def begun(*dead: Peer) -> Recovery:
    recovery = Recovery(1_000)
    recovery.died(dict.fromkeys(dead, 3))
    return recovery


def test_it_goes_through_its_phases_as_the_last_answer_comes() -> None:
    recovery = begun(M1)
    assert recovery.connect(VIEW, reversed(PEERS)) == [
        Send(peer, Recover(5, list(VIEW.members), VIEW.owners, [tuple(M1)])) for peer in PEERS
    ]
    assert recovery.phase is Phase.CONNECTING
    assert [recovery.answered(peer, Installed(5)) for peer in PEERS] == [False] * 5 + [True]
    assert recovery.rebuild() == [Send(peer, Rebuild(5, [tuple(M1)])) for peer in (CP0, CP1)]
    assert recovery.waiting == {CP0, CP1}
    assert [recovery.answered(peer, Rebuilt(5)) for peer in (CP0, CP0, CP1)] == [False, False, True]


def test_answers_of_another_phase_view_or_role_are_no_answers() -> None:
    recovery = begun(M1)
    assert not recovery.answered(M1, Installed(5)), "nothing was asked for"
    recovery.connect(VIEW, PEERS)
    for peer in recovery.waiting - {M0}:
        recovery.answered(peer, Installed(5))
    assert not recovery.answered(M0, Installed(4))
    assert not recovery.answered(M0, Rebuilt(5))
    assert not recovery.answered(Peer(MATCHER, 7), Installed(5))
    assert recovery.waiting == {M0}
    assert recovery.answered(M0, Installed(5))


def test_a_further_death_keeps_the_first_one() -> None:
    recovery = begun(M1)
    recovery.connect(VIEW, PEERS)
    recovery.died({CP0: 4})
    assert (recovery.phase, recovery.view, recovery.waiting) == (Phase.STARTING, None, set())
    assert recovery.names() == [tuple(CP0), tuple(M1)]
    assert not recovery.answered(M0, Installed(5))


def test_starts_are_tried_again_ever_more_seldom() -> None:
    recovery = begun(M1)
    waits = []
    for _ in range(10):
        recovery.failed(M1, "no room")
        (at,) = recovery.retries.values()
        waits.append(at - recovery.now_ms)
        assert recovery.troubles == {M1: f"no room; next try in {waits[-1]} ms"}
        recovery.now_ms = at - 1
        assert recovery.due() == []
        recovery.failed(M1, "said again")
        assert recovery.retries == {M1: at}
        recovery.now_ms = at
        assert recovery.due() == [M1]
        assert recovery.due() == []
    assert waits == [min(RETRY_MS << place, RETRY_MS_MOST) for place in range(10)]


def test_each_slot_waits_for_itself_and_troubles_end_when_all_are_back() -> None:
    recovery = begun(M0, M1)
    recovery.failed(M1, "no room")
    recovery.now_ms += RETRY_MS
    assert recovery.due() == [M1]
    recovery.failed(M1, "no room")
    recovery.failed(M0, "no room")
    recovery.now_ms += RETRY_MS
    assert recovery.due() == [M0]
    recovery.now_ms += RETRY_MS
    assert recovery.due() == [M1]
    recovery.connect(VIEW, PEERS)
    assert recovery.troubles == {}


def test_durations_are_of_phases_whatever_happens_in_between() -> None:
    recovery = begun(M1)
    recovery.now_ms = 1_100
    recovery.connect(VIEW, PEERS)
    recovery.now_ms = 1_300
    recovery.died({M0: 4})
    recovery.now_ms = 1_600
    recovery.connect(VIEW, PEERS)
    recovery.now_ms = 2_000
    recovery.rebuild()
    recovery.now_ms = 2_500
    recovery.end()
    assert recovery.phases == {"start": 400, "connect": 600, "rebuild": 500}
    assert recovery.started_ms == 1_000


# What is sent again -----------------------------------------------------------------------------------------------


def made(count: int) -> Iterator[tuple[Peer, SubscriptionChange]]:
    for number in range(count):
        yield (AP0, AP1)[number % 2], SubscriptionChange(number, 100 + number, b"f")


def test_nothing_is_done_at_once() -> None:
    empty = Rebuilding(iter(()))
    assert not empty.done
    assert empty.more
    assert empty.step() == {}
    assert empty.done


@pytest.mark.parametrize("seed", range(10))
def test_everything_is_sent_once_within_the_window_and_a_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "STEP_CHANGES", 7)
    monkeypatch.setattr(rebuilding, "UNDERWAY", 20)
    rng = random.Random(seed)
    count = rng.choice((1, 7, 20, 21, 100))
    task = Rebuilding(made(count))
    unanswered: list[int] = []
    sent: list[int] = []
    for _ in range(1000):
        if task.done:
            break
        if task.more and rng.random() < 0.6:
            chosen = task.step()
            numbers = [one.change for changes in chosen.values() for one in changes]
            assert len(numbers) <= 7
            for peer, changes in chosen.items():
                own = [one.change for one in changes]
                assert own == sorted(own)
                assert all((AP0, AP1)[number % 2] == peer for number in own)
            sent += numbers
            unanswered += numbers
            assert len(unanswered) <= 20
        elif unanswered:
            task.answered(unanswered.pop(rng.randrange(len(unanswered))))
            task.answered(count + 5)  # somebody else's
    assert task.done
    assert sorted(sent) == list(range(count))


def test_a_change_that_is_underway_is_not_sent_twice() -> None:
    change = SubscriptionChange(1, 100, b"f")
    task = Rebuilding(iter([(AP0, change), (AP0, change), (AP1, SubscriptionChange(2, 101, None))]))
    assert task.step() == {AP0: [change], AP1: [SubscriptionChange(2, 101, None)]}
    task.answered(1)
    assert not task.done
    task.answered(2)
    assert task.done


def test_what_is_to_be_sent_is_looked_at_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "STEP_CHANGES", 1)
    looked: list[int] = []

    def changes() -> Iterator[tuple[Peer, SubscriptionChange]]:
        for number in range(3):
            looked.append(number)
            yield AP0, SubscriptionChange(number, number, b"f")

    task = Rebuilding(changes())
    assert looked == []
    task.step()
    assert looked == [0]


# Doubles ----------------------------------------------------------------------------------------------------------


def test_what_is_at_or_below_the_last_one_is_a_double() -> None:
    marks = Watermarks(10)
    p, q = ("p", 1, 5, 70), ("q", 1, 5, 71)
    assert marks.take([p, p, q], [1, 2, 1]) == set()
    assert marks.take([p, p, p, q, q], [1, 2, 3, 1, 2]) == {0, 1, 3}
    assert marks.take([p], [3]) == {0}
    assert (marks.upto(("p", 1)), marks.upto(("q", 1)), marks.upto(("r", 1))) == (3, 2, 0)


def test_lives_of_a_publisher_are_told_apart() -> None:
    marks = Watermarks(10)
    assert marks.take([("p", 1)], [9]) == set()
    assert marks.take([("p", 2)], [1]) == set()
    assert marks.take([("p", 1)], [9]) == {0}


def test_gaps_are_allowed_and_what_was_overtaken_may_come_no_more() -> None:
    marks = Watermarks(10)
    run = ("p", 1)
    assert marks.take([run] * 5, [4, 9, 7, 9, 10]) == {2, 3}
    assert not marks.raise_to(run, 8)
    assert marks.raise_to(run, 11)


def test_runs_of_one_publisher_that_alternate_are_told_apart_from_neighbours() -> None:
    """Columns name a run by the same object; another object of the same publisher goes on from it."""
    marks = Watermarks(10)
    first, other, second = ("p", 1, 5, 1), ("q", 1, 5, 2), ("p", 1, 6, 3)
    assert marks.take([first, other, second, first], [1, 1, 2, 2]) == {3}


def test_those_that_were_heard_last_are_remembered() -> None:
    marks = Watermarks(2)
    for name in ("a", "b"):
        marks.raise_to((name, 1), 5)
    marks.raise_to(("a", 1), 6)
    marks.raise_to(("c", 1), 1)
    assert len(marks) == 2
    assert (marks.upto(("a", 1)), marks.upto(("b", 1)), marks.upto(("c", 1))) == (6, 0, 1)


@pytest.mark.parametrize("seed", range(10))
def test_any_cut_of_what_comes_says_the_same(seed: int) -> None:
    """take in columns against a dictionary, one at a time, with resends that begin anywhere."""
    rng = random.Random(seed)
    model: dict[tuple[str, int], int] = {}
    marks = Watermarks(1000)
    for _ in range(60):
        runs = [(rng.choice("pqr"), rng.randint(1, 2), number) for number in range(rng.randint(1, 4))]
        of_run: list[tuple[str, int, int]] = []
        sequences: list[int] = []
        for run in runs:
            first = max(1, model.get(run[:2], 0) + rng.randint(-6, 3))
            for offset in range(rng.randint(1, 8)):
                of_run.append(run)
                sequences.append(first + offset)
        expected = set()
        for place, (run, sequence) in enumerate(zip(of_run, sequences, strict=True)):
            if sequence <= model.get(run[:2], 0):
                expected.add(place)
            else:
                model[run[:2]] = sequence
        assert marks.take(of_run, sequences) == expected
    assert all(marks.upto(key) == last for key, last in model.items())
