"""The coordinator changes the view: whole changes by hand-fed answers, and what goes wrong on the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.assignment import fewest_moves
from cluster.config import Config, Layers, Transitions
from cluster.coordinating.records import State
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    Abort,
    Begin,
    ClientsMoved,
    Commit,
    Disconnect,
    Drain,
    Emptied,
    Ended,
    Failed,
    Gone,
    Heartbeat,
    Install,
    Installed,
    LaneDown,
    Left,
    MoveClients,
    Peer,
    Persist,
    Prepare,
    Prepared,
    Ready,
    Retire,
    Send,
    Serve,
    Settled,
    Spawn,
    SpawnFailed,
    Stop,
)
from cluster.view import view_of
from cluster.wish import slots_of
from tests.unit.control import BYTES, ENTRIES, Control, layers

AP, CP, EP = Peer(ACCESS_POINT, 0), Peer(CONNECTION_POINT, 0), Peer(EXIT_POINT, 0)
M0, M1, M2 = (Peer(MATCHER, slot) for slot in range(3))


def kinds(instructions: list[Any]) -> list[type]:
    """Return what they are, messages instead of their Send, without repetitions."""
    out: list[type] = []
    for one in instructions:
        kind = type(one.message) if isinstance(one, Send) else type(one)
        if not out or out[-1] is not kind:
            out.append(kind)
    return out


def test_a_whole_growth_step_by_step() -> None:
    control = Control(layers()).serve()
    assert control.machine.calm
    assert control.ask("scale", matchers=2, strategy="all_at_once")["wanted"][MATCHER] == [0, 1]
    assert not control.machine.calm
    assert [one for one in control.take() if isinstance(one, Spawn)] == [Spawn(M1, 5)]
    assert [one.peer for one in control.join(M1) if isinstance(one, Send)] == [M1]
    assert control.sent(Install) == [M1], "a newcomer alone gets the present view first"
    control.take()

    out = control.say(M1, Installed(1))
    assert kinds(out) == [Persist, Prepare]
    everyone = [AP, CP, EP, M0, M1]
    assert control.sent(Prepare) == everyone
    prepared = next(one.message for one in out if isinstance(one, Send))
    assert isinstance(prepared, Prepare)
    after = view_of(prepared)
    assert (after.epoch, after.matchers) == (2, (0, 1))
    for peer in everyone[1:]:
        assert control.say(peer, Prepared(2)) == []
        assert control.say(peer, Prepared(2)) == [], "once more is no other one's answer"
    assert kinds(control.say(AP, Prepared(2))) == [Begin]
    assert control.sent(Begin) == [AP, EP]

    assert control.say(EP, Ready(2, 0, 0)) == []
    assert control.say(M0, Ready(2, 0, 0)) == []
    assert control.say(AP, Prepared(2)) == [], "late"
    assert control.say(M0, Ready(2, 9, 9)) == [], "said again, and counted once"
    assert control.slots() == [0], "not decided yet"
    out = control.say(M1, Ready(2, 500, 12_345))
    assert kinds(out) == [Persist, Commit], "on disk before anybody is told"
    assert [one.peer for one in out if isinstance(one, Send)] == everyone
    assert control.slots() == [0, 1]

    for peer in everyone[1:]:
        assert control.say(peer, Ended(2)) == []
    assert kinds(control.say(AP, Ended(2))) == [Retire]
    assert control.sent(Retire) == everyone
    for peer in everyone[:-1]:
        assert control.say(peer, Settled(2)) == []
    control.pass_ms(100)
    assert not control.machine.calm
    assert kinds(control.say(M1, Settled(2))) == [Persist], "its end and what came of it are written together"
    assert control.machine.calm
    operation = control.operation()
    assert (operation["state"], operation["groups_moved"], operation["groups_minimum"]) == ("done", 2048, 2048)
    assert (operation["entries"], operation["bytes"]) == (500, 12_345)
    (step,) = operation["steps"]
    assert (step["epoch"], step["groups"], step["outcome"]) == (2, 2048, "committed")
    assert list(step["phases_ms"]) == ["prepare", "copy", "switch", "retire"]
    assert step["phases_ms"]["retire"] == operation["duration_ms"] == 100


def test_a_whole_shrinkage_ends_with_the_leavers_process_stopped() -> None:
    control = Control(layers(matchers=3)).serve()
    incarnation = control.running[M2]
    control.ask("scale", matchers=2, strategy="all_at_once")
    assert control.sent(Prepare) == [AP, CP, EP, M0, M1, M2], "the leaver takes part"
    while not control.sent(Commit):
        control.answer()
    assert control.slots() == [0, 1]
    rows = {f"{row['layer']} {row['slot']}": row["state"] for row in control.machine.status()["members"]}  # type: ignore[attr-defined]
    assert rows["matcher 2"] == "leaving"
    while not control.sent(Retire):
        control.answer()
    for peer in (AP, CP, EP, M0, M1, M2):
        control.say(peer, Settled(2))
    assert control.operation()["state"] == "done", "the leaver may take its time"
    control.take()
    out = control.say(M2, Left())
    assert kinds(out) == [Persist, Gone, Disconnect, Stop]
    assert control.sent(Gone) == [AP, CP, EP, M0, M1]
    assert out[-1] == Stop(M2, incarnation)
    assert control.say(M2, Heartbeat({})) == []
    assert control.operation()["groups_moved"] == 4096 - 4096 * 2 // 3 - 1 == 1365


@pytest.mark.parametrize("strategy", ["waves", "all_at_once", "stop_swap"])
def test_several_layers_change_in_one_operation_and_back(strategy: str) -> None:
    control = Control(layers()).serve()
    former = slots_of(control.machine._shared.view)  # type: ignore[arg-type]
    access_points = 1 if strategy == "stop_swap" else 3
    control.ask("scale", matchers=4, exit_points=2, access_points=access_points, connection_points=2, strategy=strategy)
    control.settle()
    begins = [one.message for one in control.take() if isinstance(one, Send) and isinstance(one.message, Begin)]
    assert {begin.park for begin in begins} == {strategy == "stop_swap"}
    operation = control.operation()
    assert (operation["state"], operation["strategy"]) == ("done", strategy)
    assert operation["groups_moved"] == operation["groups_minimum"] == 3072
    assert len(operation["steps"]) == (3 if strategy == "waves" else 1)
    assert [len(control.slots(layer)) for layer in (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT)] == [
        2,
        access_points,
        4,
        2,
    ]
    control.ask("scale", matchers=1, exit_points=1, access_points=1, connection_points=1, strategy=strategy)
    control.settle()
    assert control.operation()["state"] == "done"
    assert slots_of(control.machine._shared.view) == former  # type: ignore[arg-type]
    assert sorted(control.running) == [AP, CP, EP, M0], "all others are stopped"


def test_waves_follow_one_another_at_once_and_are_as_large_as_allowed() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=2)
    while not control.sent(Retire):
        control.answer()
    assert not control.machine._shared.memory.leaving
    assert control.sent(Prepare).count(AP) == 1
    control.answer()
    assert control.sent(Prepare).count(AP) == 2
    control.settle()
    assert [step["groups"] for step in control.operation()["steps"]] == [1024, 1024]


def test_a_wave_is_no_more_than_its_bytes_allow() -> None:
    config = Config(transitions=Transitions(wave_groups=4096, wave_bytes=1 << 20))
    control = Control(config).serve()
    # 4 MiB of filters in 4096 groups: 1 MiB is in a quarter of them.
    control.say(M0, Heartbeat({"subscription_bytes": 4 << 20}))
    assert control.ask("plan", matchers=2)["bytes_moved_about"] == 2 << 20
    assert control.ask("plan", matchers=2)["view_changes_about"] == 2
    control.ask("scale", matchers=2)
    transition = None
    while transition is None:
        control.answer()
        transition = control.machine._shared.transition
    assert transition.groups == 1024


def test_waves_get_smaller_when_the_switch_is_slow_and_larger_again() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=3)
    slow = True
    for _ in range(200):
        if control.sent(Commit) and slow:
            control.pass_ms(150)
            slow = False
        if not control.answer():
            control.pass_ms(50)
    sizes = [step["groups"] for step in control.operation()["steps"]]
    assert sizes[:3] == [1024, 512, 1024], "half of it after a switch of 150 ms"
    assert sum(sizes) == 2730
    assert control.operation()["state"] == "done"


def test_after_a_slow_switch_there_is_time_before_the_next_wave() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=2)
    while not control.sent(Commit):
        control.answer()
    control.pass_ms(150)
    while not control.sent(Retire):
        control.answer()
    control.answer()
    assert control.machine._shared.transition is None
    assert control.sent(Prepare).count(AP) == 1, "the next wave comes with the next Tick"
    control.pass_ms(50)
    assert control.sent(Prepare).count(AP) == 2
    control.settle()
    assert [step["groups"] for step in control.operation()["steps"]] == [1024, 512, 512]


def test_connection_points_are_left_out_when_their_clients_have_moved() -> None:
    control = Control(layers(connection_points=3)).serve()
    control.silent = {Peer(CONNECTION_POINT, 2)}
    control.ask("scale", connection_points=1)
    moves = [one for one in control.take() if isinstance(one, Send) and isinstance(one.message, MoveClients)]
    assert moves == [Send(Peer(CONNECTION_POINT, slot), MoveClients(["door 0"], 1)) for slot in (1, 2)]
    rows = {f"{row['layer']} {row['slot']}": row["state"] for row in control.machine.status()["members"]}  # type: ignore[attr-defined]
    assert rows["connection_point 1"] == rows["connection_point 2"] == "moving clients"
    control.say(Peer(CONNECTION_POINT, 1), Emptied(1))
    control.silent.clear()
    assert control.sent(Prepare), "one that is empty does not wait for the other"
    control.settle()
    control.say(Peer(CONNECTION_POINT, 2), Emptied(1))
    control.settle()
    assert control.slots(CONNECTION_POINT) == [0]
    assert control.operation()["state"] == "done"


def one_leaves() -> tuple[Control, Peer]:
    """Return a cluster in which the last of two connection points is to leave, and that one; clients have 5 s."""
    control = Control(
        Config(layers=Layers(connection_points=2), transitions=Transitions(move_clients_ms=5_000))
    ).serve()
    control.ask("scale", connection_points=1)
    return control, Peer(CONNECTION_POINT, 1)


def test_clients_that_do_not_move_are_disconnected_in_the_end() -> None:
    control, last = one_leaves()
    control.pass_ms(5_000)
    assert control.sent(Drain) == []
    control.pass_ms(50)
    assert control.sent(Drain) == [last]
    control.settle()
    assert control.slots(CONNECTION_POINT) == [0]


def test_as_long_as_clients_move_the_others_have_time() -> None:
    control, last = one_leaves()
    control.pending.clear()  # the clients stay where they are
    control.pass_ms(4_000)
    control.say(last, ClientsMoved(1))
    control.settle()
    control.take()
    control.pass_ms(4_950)
    assert control.sent(Drain) == []
    control.pass_ms(100)
    assert control.sent(Drain) == [last]


def test_clients_that_do_not_move_are_disconnected_even_if_another_wish_came_meanwhile() -> None:
    control, last = one_leaves()
    control.pending.clear()  # the clients stay where they are
    control.ask("scale", matchers=2, strategy="all_at_once")
    while len(control.slots()) < 2:
        control.answer()
    control.settle()
    assert control.slots(CONNECTION_POINT) == [0, 1]
    control.take()
    control.pass_ms(5_050)
    assert control.sent(Drain) == [last]


def test_a_wish_that_takes_a_leaver_back_lets_its_clients_in_again() -> None:
    control = Control(layers(connection_points=2)).serve()
    last = Peer(CONNECTION_POINT, 1)
    control.ask("scale", connection_points=1)
    control.pending.clear()
    control.take()
    control.ask("scale", connection_points=2)
    assert control.sent(Serve) == [last]
    assert control.operation()["state"] == "done"
    assert control.say(last, Emptied(1)) == [], "too late"
    assert control.slots(CONNECTION_POINT) == [0, 1]


def test_what_was_said_of_an_earlier_asking_is_not_taken_for_the_present_one() -> None:
    control = Control(layers(connection_points=2)).serve()
    last = Peer(CONNECTION_POINT, 1)
    control.silent = {last}
    for count in (1, 2, 1):  # asked to move its clients, let in again, asked again
        control.ask("scale", connection_points=count)
        control.take()
    assert control.say(last, Emptied(1)) == [], "clients may have come in since"
    assert control.say(last, ClientsMoved(1)) == []
    assert control.slots(CONNECTION_POINT) == [0, 1]
    control.silent.clear()
    control.say(last, Emptied(2))
    control.settle()
    assert control.slots(CONNECTION_POINT) == [0]


def test_a_slice_is_replaced_by_another_one() -> None:
    control = Control(layers(matchers=3)).serve()
    document = control.ask("scale", replace=[[MATCHER, 1], [EXIT_POINT, 0]])
    assert document["wanted"][MATCHER] == [0, 2, 3]
    control.settle()
    operation = control.operation()
    assert operation["state"] == "done"
    assert operation["groups_moved"] == operation["groups_minimum"] == 1365
    assert control.slots() == [0, 2, 3]
    assert control.slots(EXIT_POINT) == [1]
    assert sorted(control.running) == [AP, CP, Peer(EXIT_POINT, 1), M0, M2, Peer(MATCHER, 3)]


def test_what_is_there_already_is_done_at_once() -> None:
    control = Control(layers(matchers=2)).serve()
    control.ask("scale", matchers=2)
    assert control.operation()["state"] == "done"
    assert not [one for one in control.take() if isinstance(one, Spawn)]


# Aborts ----------------------------------------------------------------------------------------------------------


def growing(config: Config | None = None) -> Control:
    """Return a coordinator whose growth from one matcher to two is being prepared, nobody having answered."""
    control = Control(config or layers()).serve()
    control.ask("scale", matchers=2, strategy="all_at_once")
    while not control.sent(Prepare):
        control.answer()
    control.take()
    return control


def aborted(control: Control, reason: str) -> None:
    """Check that nothing of the growth is left, in the end, but its trace in the history."""
    control.settle()
    operation = control.operation()
    assert operation["state"] == "aborted"
    assert reason in operation["reason"]
    assert control.slots() == [0]
    assert control.machine._shared.memory.wanted[MATCHER] == [0]
    assert control.machine._shared.transition is None
    assert M1 not in control.running, "the newcomer is stopped"
    assert control.machine.state is State.SERVING


def test_it_is_aborted_when_answers_are_too_late() -> None:
    control = growing(Config(transitions=Transitions(prepare_timeout_ms=2_000)))
    control.silent = {M1}
    while control.answer():
        pass
    waited_ms = 0
    while not control.sent(Abort):
        control.say(M1, Heartbeat({}))  # it lives, and does not answer
        control.pass_ms(50)
        waited_ms += 50
    assert waited_ms == 2_050
    assert control.sent(Abort) == [AP, CP, EP, M0, M1]
    control.silent.clear()
    aborted(control, "no answer within 2000 ms from matcher 1")
    assert control.operation()["steps"][0]["outcome"] == "aborted"


def test_it_is_aborted_when_a_role_says_that_it_cannot() -> None:
    control = growing()
    assert control.say(M1, Failed(1, "of another time")) == []
    out = control.say(M1, Failed(2, "digests differ"))
    assert kinds(out)[-1] is Persist
    assert control.sent(Abort) == [AP, CP, EP, M0, M1]
    assert control.say(M0, Failed(2, "me too")) == [], "it is being aborted already"
    aborted(control, "matcher 1: digests differ")


def test_it_is_aborted_when_a_role_is_lost_which_is_not_waited_for() -> None:
    control = growing()
    control.feed(LaneDown(M1))
    assert control.sent(Abort) == [AP, CP, EP, M0, M1], "it may live, and hear of it"
    control.silent = {M1}
    aborted(control, "matcher 1 lost")


def test_a_role_that_is_lost_while_it_is_aborted_is_not_waited_for_either() -> None:
    control = growing()
    control.say(M0, Failed(2, "no"))
    control.silent = {M1}
    while control.answer():
        pass
    assert control.machine._shared.transition is not None
    control.feed(LaneDown(M1))
    aborted(control, "matcher 0: no")


def test_after_the_decision_nothing_aborts_it() -> None:
    control = growing()
    while not control.sent(Commit):
        control.answer()
    control.feed(LaneDown(M1))
    assert control.say(M1, Failed(2, "no")) == []
    control.pass_ms(60_000)
    assert control.sent(Abort) == []
    control.settle()
    assert control.slots() == [0, 1]
    assert control.operation()["state"] == "done"


def test_a_process_that_cannot_be_started_ends_the_wish() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=3)
    incarnation = control.running[M1]
    assert control.feed(SpawnFailed(M1, incarnation + 7, "another one")) == []
    out = control.feed(SpawnFailed(M1, incarnation, "no such image"))
    assert {one.peer for one in out if isinstance(one, Stop)} == {M1, M2}
    assert control.operation()["reason"] == "matcher 1 could not be started: no such image"
    assert sorted(control.running) == [AP, CP, EP, M0]
    control.ask("scale", matchers=2)
    control.settle()
    assert control.slots() == [0, 1], "the next wish is not burdened by it"


def test_a_process_that_does_not_join_in_time_ends_the_wish() -> None:
    control = Control(Config(transitions=Transitions(start_timeout_ms=10_000))).serve()
    control.ask("scale", matchers=2)
    control.silent = {M1}
    control.pass_ms(10_000)
    assert control.operation()["state"] == "running"
    control.pass_ms(50)
    assert control.operation()["reason"] == "matcher 1: not up in 10000 ms"
    assert M1 not in control.running


def test_a_process_whose_lanes_do_not_come_up_in_time_ends_the_wish() -> None:
    control = Control(Config(transitions=Transitions(start_timeout_ms=10_000))).serve()
    control.ask("scale", matchers=2)
    control.join(M1)
    control.pending.clear()  # it lives and reports, and never says Installed
    control.pass_ms(10_050)
    assert control.operation()["reason"] == "matcher 1: not up in 10000 ms"
    assert M1 not in control.running


def test_a_newcomer_that_is_lost_before_its_view_ends_the_wish() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=2)
    control.join(M1)
    control.feed(LaneDown(M1))
    assert control.operation()["reason"] == "matcher 1 lost"
    assert M1 not in control.running


def test_the_operator_aborts_what_is_not_decided() -> None:
    control = growing()
    assert control.ask("abort") == {"operation": 1, "state": "aborted"}
    assert control.sent(Abort) == [AP, CP, EP, M0, M1]
    aborted(control, "by the operator")
    assert control.refused("abort") == "nothing is under way"


def test_the_operator_ends_a_series_of_waves_after_the_one_that_is_decided() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=2)
    while not control.sent(Commit):
        control.answer()
    control.ask("abort")
    control.settle()
    operation = control.operation()
    assert operation["state"] == "aborted"
    assert [step["outcome"] for step in operation["steps"]] == ["committed"]
    assert control.slots() == [0, 1], "the view that was decided stays"
    assert control.machine._shared.transition is None


# Wishes that meet --------------------------------------------------------------------------------------------------


def test_a_later_wish_takes_over_from_wherever_the_cluster_is() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=4, strategy="all_at_once")
    while not control.sent(Prepare):
        control.answer()
    control.ask("scale", matchers=2, exit_points=2)
    control.settle()
    first, second = control.ask("transitions")["operations"]
    assert (first["state"], first["reason"]) == ("merged", "into operation 2")
    assert second["state"] == "done"
    assert control.slots() == [0, 1]
    assert control.slots(EXIT_POINT) == [0, 1]
    assert len(control.running) == 6


def test_a_wish_that_comes_during_an_abort_is_followed_after_it() -> None:
    control = growing()
    control.say(M0, Failed(2, "no"))
    control.ask("scale", exit_points=2)
    control.settle()
    first, second = control.ask("transitions")["operations"]
    assert (first["state"], first["reason"]) == ("aborted", "matcher 0: no")
    assert [step["outcome"] for step in first["steps"]] == ["aborted"]
    assert (second["state"], [step["outcome"] for step in second["steps"]]) == ("done", ["committed"])
    assert (control.slots(), control.slots(EXIT_POINT)) == ([0], [0, 1])


def test_wishes_add_up() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=2)
    assert control.ask("scale", exit_points=2)["wanted"][MATCHER] == [0, 1]
    control.settle()
    assert (control.slots(), control.slots(EXIT_POINT)) == ([0, 1], [0, 1])


def test_newcomers_that_are_not_wanted_any_more_are_dismissed() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=3)
    control.join(M1)
    control.take()
    control.ask("scale", matchers=1)
    assert {one.peer for one in control.take() if isinstance(one, Stop)} == {M1, M2}
    assert control.operation()["state"] == "done"
    assert control.say(M1, Installed(1)) == []


def test_a_slot_is_not_taken_again_before_its_process_has_left() -> None:
    control = Control(layers(matchers=2)).serve()
    control.ask("scale", matchers=1, strategy="all_at_once")
    while not control.sent(Retire):
        control.answer()
    for peer in (AP, CP, EP, M0, M1):
        control.say(peer, Settled(2))
    control.pending.clear()
    assert control.ask("scale", matchers=2)["wanted"][MATCHER] == [0, 2]
    control.say(M1, Left())
    control.settle()
    assert control.slots() == [0, 2]


# Restarts ----------------------------------------------------------------------------------------------------------


def test_a_new_life_aborts_what_was_not_decided() -> None:
    for until in (Prepare, Begin):
        control = Control(layers()).serve()
        control.ask("scale", matchers=2, strategy="all_at_once")
        while not control.sent(until):
            control.answer()
        again = control.restart()
        assert again.machine.state is State.RESUMING
        assert again.take() == []
        newcomer = again.running[M1]
        again.rejoin()
        assert again.sent(Abort) == [AP, CP, EP, M0]
        assert again.take()[-1] == Stop(M1, newcomer), "too late to hear of it: nobody knows what it holds"
        aborted(again, "the coordinator was started anew")
        again.ask("scale", matchers=2, strategy="all_at_once")
        again.settle()
        assert again.slots() == [0, 1]
        assert again.machine._shared.view is not None
        assert again.machine._shared.view.epoch == 3, "a number is used once"


def test_a_new_life_brings_to_its_end_what_was_decided() -> None:
    for until in (Commit, Retire):
        control = Control(layers(matchers=2)).serve()
        control.ask("scale", matchers=1, strategy="all_at_once")
        while not control.sent(until):
            control.answer()
        again = control.restart()
        again.rejoin()
        assert again.sent(Abort) == []
        assert again.sent(Commit) == [AP, CP, EP, M0, M1], "the leaver too"
        again.settle()
        assert again.slots() == [0]
        assert sorted(again.running) == [AP, CP, EP, M0]
        assert again.operation()["state"] == "done"


@pytest.mark.parametrize("late", [False, True], ids=["while it waits for others", "when it goes on"])
def test_a_new_life_does_not_wait_for_who_had_left_an_earlier_view(late: bool) -> None:
    """Such a one knows nothing of the view change that was decided without it, and answers nothing."""
    gone = Peer(ACCESS_POINT, 1)
    control = Control(layers(access_points=2)).serve()
    control.ask("scale", access_points=1)
    while not control.sent(Retire):
        control.answer()
    control.silent.add(gone)
    control.settle()
    control.say(gone, Settled(2))
    control.take()
    control.ask("scale", matchers=2, strategy="all_at_once")
    while not control.sent(Commit):
        control.answer()
    again = control.restart()
    again.silent.add(gone)
    for peer in [gone, *(peer for peer in sorted(again.running) if peer != gone)]:
        again.join(peer)
        if peer == gone and not late:
            again.say(gone, Left())
    assert again.sent(Commit) == [AP, *([gone] if late else []), CP, EP, M0, M1]
    again.settle()
    if late:
        assert again.operation()["state"] == "running", "it may owe something still"
        again.say(gone, Left())
        again.settle()
    assert again.operation()["state"] == "done"
    assert (again.slots(), again.slots(ACCESS_POINT)) == ([0, 1], [0])
    assert sorted(again.running) == [AP, CP, EP, M0, M1]


def test_a_new_life_goes_on_with_the_waves() -> None:
    control = Control(layers()).serve()
    control.ask("scale", matchers=4)
    while not control.sent(Retire):
        control.answer()
    again = control.restart()
    again.rejoin()
    again.settle()
    assert again.slots() == [0, 1, 2, 3]
    operation = again.operation()
    assert (operation["number"], operation["state"], operation["groups_minimum"]) == (1, "done", 3072)
    owners = again.machine._shared.view.owners  # type: ignore[union-attr]
    assert fewest_moves(owners, [0, 1, 2, 3]) == 0


def test_a_new_life_at_rest_has_everyone_confirm_and_serves() -> None:
    control = Control(layers(matchers=2)).serve()
    again = control.restart()
    again.rejoin()
    assert again.machine.state is State.SERVING
    again.settle()
    assert again.ask("transitions") == {"operations": []}
    assert again.sent(Serve) == [CP], "clients were perhaps not let in before"
    assert not any(isinstance(one, Spawn | Stop) for one in again.take())
    again.ask("scale", matchers=3)
    again.settle()
    assert again.slots() == [0, 1, 2]


def test_a_new_life_before_the_first_view_starts_anew() -> None:
    control = Control(layers())
    former = dict(control.running)
    control.running.clear()
    again = control.restart()
    assert again.machine.state is State.GATHERING
    assert again.running.keys() == former.keys()
    assert min(again.running.values()) > max(former.values()), "incarnations do not come again"
    again.serve()


# Requests ----------------------------------------------------------------------------------------------------------


def test_a_plan_changes_nothing() -> None:
    control = Control(layers(matchers=2)).serve()
    before, memory = control.machine.status(), control._memory
    plan = control.ask("plan", matchers=3, exit_points=2, replace=[[MATCHER, 0]])
    assert plan["wanted"][MATCHER] == [1, 2, 3]
    assert plan["start"] == {CONNECTION_POINT: [], ACCESS_POINT: [], MATCHER: [2, 3], EXIT_POINT: [1]}
    assert plan["stop"] == {CONNECTION_POINT: [], ACCESS_POINT: [], MATCHER: [0], EXIT_POINT: []}
    assert plan["groups_moved"] == plan["groups_minimum"] == 2730
    assert sum(plan["moves"].values()) == 2730
    assert set(plan["moves"]) <= {"0 -> 1", "0 -> 2", "0 -> 3", "1 -> 2", "1 -> 3"}
    assert (plan["strategy"], plan["view_changes_about"]) == ("waves", 3)
    assert kinds(control.take()) == [type(control.raw("plan", b'{"matchers":3}'))], "an answer and nothing else"
    assert control.machine.status() == before
    assert control._memory == memory
    assert control.ask("transitions") == {"operations": []}


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("scale", b"{", "Input data was truncated"),
        ("scale", b"[1]", "Expected `object`"),
        ("scale", b"{}", "nothing is asked for"),
        ("scale", b'{"strategy":"slowly","matchers":2}', "known are waves, all_at_once, stop_swap"),
        ("scale", b'{"strategy":"stop_swap","access_points":2}', "stop_swap cannot change access points"),
        ("scale", b'{"brokers":2}', "'brokers' is no layer"),
        ("plan", b'{"matchers":0}', "allowed is a whole number from 1 to 2047"),
        ("plan", b'{"replace":[["matcher",4]]}', "matcher 4 is not in the cluster"),
        ("abort", b"", "nothing is under way"),
        ("resize", b"{}", "unknown command 'resize'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(command: str, arguments: bytes, reason: str) -> None:
    control = Control(layers()).serve()
    before = control._memory
    answer = control.raw(command, arguments)
    assert reason in answer.error
    assert answer.document == b""
    assert control._memory == before


def test_nothing_is_changed_before_it_serves_nor_while_roles_are_lost() -> None:
    control = Control(layers())
    assert control.refused("scale", matchers=2) == "the cluster is gathering, not serving"
    control.serve()
    control.feed(LaneDown(EP))
    assert control.refused("scale", matchers=2).startswith("lost: exit_point 0")
    assert control.ask("transitions") == {"operations": []}


def test_the_history_tells_of_a_running_operation_how_long_it_takes() -> None:
    control = growing()
    control.pass_ms(300)
    operation = control.operation()
    assert (operation["state"], operation["duration_ms"]) == ("running", 300)
    assert control.machine.status()["operation"]["number"] == 1  # type: ignore[index]
    control.settle()
    operation = control.operation()
    assert operation["entries"] == 2 * ENTRIES
    assert operation["bytes"] == 2 * BYTES
    assert msgspec.json.decode(control._entries[1]) == operation, "the same is on disk"


def test_a_leaver_that_does_not_come_again_is_waited_for_until_it_counts_as_lost() -> None:
    control = Control(layers(matchers=2)).serve()
    control.ask("scale", matchers=1, strategy="all_at_once")
    while not control.sent(Commit):
        control.answer()
    again = control.restart()
    for peer in (AP, CP, EP, M0):
        again.join(peer)
    again.pass_ms(50)
    again.pass_ms(1_500, beating=False)
    assert again.machine.state is State.RESUMING
    again.silent = {M1}
    again.pass_ms(50)
    assert again.sent(Commit) == [AP, CP, EP, M0]
    assert again.join(M1) == [Stop(M1, 5)], "too late"
    again.settle()
    assert again.operation()["state"] == "done"
    assert again.machine._shared.memory.leaving == []


def test_after_an_abort_the_groups_stay_where_they_are() -> None:
    control = Control(Config(transitions=Transitions(wave_groups=1024))).serve()
    control.ask("scale", matchers=2)
    while len(control.sent(Prepare)) < 6:
        control.answer() or control.pass_ms(50)
    assert control.say(M0, Failed(3, "no"))
    control.settle()
    assert [step["outcome"] for step in control.operation()["steps"]] == ["committed", "aborted"]
    control.take()
    control.pass_ms(1_000)
    assert control.sent(Prepare) == []
    assert control.slots() == [0, 1]
    control.ask("scale", matchers=2)
    control.settle()
    assert control.operation()["groups_moved"] == control.operation()["groups_minimum"] == 1024


@pytest.mark.parametrize(
    "replace",
    [
        '"matcher"',
        "5",
        '["matcher"]',
        '[["matcher"]]',
        '[["matcher", true]]',
        '[["matcher", 0.0]]',
        '[[["matcher"], 0]]',
    ],
)
def test_a_replacement_that_is_none_is_refused(replace: str) -> None:
    control = Control(layers()).serve()
    assert control.raw("scale", f'{{"replace":{replace}}}'.encode()).error
