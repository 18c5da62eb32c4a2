"""A view change as the coordinator sees it: who is told what in each phase, and whose answer ends it."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    Abort,
    Begin,
    Commit,
    Ended,
    Failed,
    Instruction,
    Message,
    Peer,
    Prepare,
    Prepared,
    Ready,
    Retire,
    Send,
    Settled,
)
from cluster.transition import Phase, Transition
from tests.unit.views import view

BEFORE, AFTER = view(4, matchers=(0, 1)), view(5, matchers=(0, 2))
AP, CP, EP = Peer(ACCESS_POINT, 0), Peer(CONNECTION_POINT, 0), Peer(EXIT_POINT, 0)
MATCHERS = tuple(Peer(MATCHER, slot) for slot in range(3))
PEERS = (AP, CP, EP, *MATCHERS)


def transition(park: bool = False) -> Transition:
    return Transition(BEFORE, AFTER, PEERS, park, 1_000)


def told(out: list[Instruction]) -> tuple[list[Peer], Message]:
    """Return who is told, and the one message that all are."""
    peers, messages = [], []
    for one in out:
        assert isinstance(one, Send)
        peers.append(one.peer)
        messages.append(one.message)
    assert all(message is messages[0] for message in messages)
    return peers, messages[0]


def answer(machine: Transition, peers: tuple[Peer, ...], message: Message) -> Phase | None:
    """All say it; all but the last in vain."""
    for peer in peers[:-1]:
        assert machine.answered(peer, message) is None
    return machine.answered(peers[-1], message)


def test_the_phases_in_their_order() -> None:
    machine = transition()
    assert told(machine.start()) == (list(PEERS), Prepare(5, list(AFTER.members), AFTER.owners))
    assert answer(machine, PEERS, Prepared(5)) is Phase.PREPARING
    assert told(machine.copy()) == ([AP, EP], Begin(5, False))
    assert machine.waiting == {EP, *MATCHERS}, "access points have nothing to copy"
    assert answer(machine, (*MATCHERS, EP), Ready(5, 10, 1000)) is Phase.COPYING
    assert (machine.entries, machine.bytes) == (40, 4000)
    assert not machine.decided
    assert told(machine.commit()) == (list(PEERS), Commit(5))
    assert machine.decided
    assert answer(machine, PEERS, Ended(5)) is Phase.SWITCHING
    assert told(machine.retire()) == (list(PEERS), Retire(5))
    assert not machine.over
    assert answer(machine, PEERS, Settled(5)) is Phase.RETIRING
    assert (machine.phase, machine.over, machine.decided) == (Phase.COMMITTED, True, True)
    assert (machine.epoch, machine.groups) == (5, 2048)


def test_the_aligned_protocol_is_asked_for_at_the_beginning() -> None:
    machine = transition(park=True)
    machine.start()
    assert told(machine.copy())[1] == Begin(5, True)


def test_answers_of_other_phases_and_epochs_count_for_nothing() -> None:
    machine = transition()
    machine.start()
    answer(machine, PEERS, Prepared(5))
    machine.copy()
    late: list[Any] = [Prepared(5), Ready(4, 1, 1), Ready(6, 1, 1), Ended(5), Settled(5), Settled(4)]
    for message in late:
        for peer in PEERS:
            assert machine.answered(peer, message) is None
    assert machine.waiting == {EP, *MATCHERS}
    assert (machine.entries, machine.bytes) == (0, 0)


def test_who_says_it_twice_answers_for_nobody_else_and_counts_once() -> None:
    machine = transition()
    machine.start()
    machine.copy()
    for _ in range(5):
        assert machine.answered(EP, Ready(5, 3, 30)) is None
    assert machine.waiting == set(MATCHERS)
    assert (machine.entries, machine.bytes) == (3, 30)


@pytest.mark.parametrize("prepared", [False, True])
def test_an_abort_waits_for_those_that_are_left(prepared: bool) -> None:
    machine = transition()
    machine.start()
    if prepared:
        answer(machine, PEERS, Prepared(5))
        machine.copy()
    peers, message = told(machine.abort("no reason", [MATCHERS[2], EP]))
    assert message == Abort(5)
    assert peers == list(PEERS), "who is held for lost may live"
    assert (machine.phase, machine.reason) == (Phase.ABORTING, "no reason")
    assert answer(machine, (AP, CP, *MATCHERS[:2]), Settled(5)) is Phase.ABORTING
    assert (machine.phase, machine.over, machine.decided) == (Phase.ABORTED, True, False)


def test_an_abort_does_not_wait_for_those_that_are_lost_in_it() -> None:
    machine = transition()
    machine.start()
    machine.abort("no reason", [])
    assert answer(machine, PEERS[:4], Settled(5)) is None
    assert machine.without(MATCHERS[1]) is None
    assert not machine.over
    assert machine.without(MATCHERS[2]) is Phase.ABORTING
    assert machine.over


def test_who_has_left_has_no_part_in_what_follows() -> None:
    machine = transition()
    machine.commit()
    assert answer(machine, PEERS[1:], Ended(5)) is None
    assert machine.without(PEERS[1]) is None, "it was not waited for"
    assert machine.without(PEERS[0]) is Phase.SWITCHING
    peers, message = told(machine.retire())
    assert (peers, message) == (list(PEERS[2:]), Retire(5))


def test_an_abort_with_nobody_left_is_over() -> None:
    machine = transition()
    machine.start()
    machine.abort("all lost", PEERS)
    assert machine.phase is Phase.ABORTED


def test_what_is_decided_is_not_aborted() -> None:
    machine = transition()
    machine.start()
    machine.copy()
    machine.commit()
    with pytest.raises(AssertionError, match="epoch 5 is decided"):
        machine.abort("too late", [])
    machine.retire()
    with pytest.raises(AssertionError, match="epoch 5 is decided"):
        machine.abort("too late", [])


def test_a_failure_counts_before_the_decision_and_in_its_epoch() -> None:
    machine = transition()
    machine.start()
    assert machine.failed(EP, Failed(4, "long ago")) is None
    assert machine.failed(EP, Failed(5, "no room")) == "exit_point 0: no room"
    machine.copy()
    assert machine.failed(AP, Failed(5, "no room")) == "access_point 0: no room"
    machine.commit()
    assert machine.failed(AP, Failed(5, "no room")) is None
    other = transition()
    other.start()
    other.abort("no room", [])
    assert other.failed(AP, Failed(5, "no room either")) is None


def test_phases_are_timed() -> None:
    machine = transition()
    machine.start()
    machine.now_ms = 1_020
    machine.copy()
    machine.now_ms = 1_500
    machine.commit()
    machine.now_ms = 1_503
    machine.retire()
    machine.now_ms = 1_603
    answer(machine, PEERS, Settled(5))
    assert machine.phases == {"prepare": 20, "copy": 480, "switch": 3, "retire": 100}
    assert machine.started_ms == 1_000
