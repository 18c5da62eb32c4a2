"""The coordinator brings back what has died: each phase, a second death in each, and its own crashes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.coordinating.records import State
from cluster.memory import decode_memory
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    Abort,
    Commit,
    Died,
    Disconnect,
    Gone,
    Heartbeat,
    Installed,
    Join,
    Kill,
    LaneDown,
    LaneUp,
    Left,
    Member,
    Peer,
    Persist,
    Prepare,
    Rebuild,
    Rebuilt,
    Recover,
    Resume,
    Retire,
    Send,
    Serve,
    SessionOpened,
    Spawn,
    SpawnFailed,
    Stop,
    Tick,
    client_key,
)
from cluster.view import View
from tests.unit.control import Control, layers
from tests.unit.test_coordinator_changes import kinds

AP, CP, EP = Peer(ACCESS_POINT, 0), Peer(CONNECTION_POINT, 0), Peer(EXIT_POINT, 0)
CP1 = Peer(CONNECTION_POINT, 1)
M0, M1, M2 = (Peer(MATCHER, slot) for slot in range(3))
EVERYONE = [AP, CP, EP, M0, M1]


def served(matchers: int = 2, **others: int) -> Control:
    return Control(layers(matchers=matchers, **others)).serve()


def status(control: Control) -> Any:
    return control.machine.status()


def recovering(control: Control) -> Any:
    """Return what the status says of the recovery that is under way."""
    return status(control)["recovery"]


def view(control: Control) -> View:
    assert control.machine._shared.view is not None, "no view"
    return control.machine._shared.view


def replaced(control: Control) -> list[Any]:
    """Return what is on disk of those who have died."""
    assert control._memory is not None, "nothing is on disk"
    return [(layer, slot) for layer, slot, _ in decode_memory(control._memory).replaced]


def fail(control: Control, peer: Peer, reason: str) -> None:
    """A start comes to nothing."""
    incarnation = control.running.pop(peer)
    control.pending = [one for one in control.pending if one.peer != peer]
    control.feed(SpawnFailed(peer, incarnation, reason))


def to(control: Control, phase: str) -> None:
    """Go on, one round of answers at a time, until the recovery is in this phase."""
    for _ in range(10):
        if recovering(control)["phase"] == phase:
            return
        control.answer()
    raise AssertionError(f"it never is in phase {phase}")


def check_over(control: Control, *dead: Peer, recoveries: int = 1) -> None:
    """The cluster serves, with others in place of the dead, and nobody waits for anything."""
    control.settle()
    while recovering(control) and recovering(control)["troubles"]:
        control.pass_ms(500)  # a start is tried again
        control.settle()
    assert status(control)["state"] == "serving"
    assert recovering(control) is None
    assert status(control)["recovered"] == recoveries
    assert replaced(control) == []
    assert {member.peer: member.incarnation for member in view(control).members} == control.running
    assert {row["state"] for row in status(control)["members"]} == {"serving"}
    assert set(status(control)["recoveries"][-1]["replaced"]) >= set(map(str, dead))


# One death --------------------------------------------------------------------------------------------------------


def test_a_death_step_by_step() -> None:
    control = served()
    before = view(control)
    dead = before.member(M1)
    assert dead is not None
    out = control.die(M1)
    assert kinds(out) == [Persist, Gone, Disconnect, Kill, Persist, Spawn], "on disk before anybody is told"
    assert [one for one in out if isinstance(one, Send)] == [Send(peer, Gone(dead)) for peer in (AP, CP, EP, M0)]
    assert Disconnect(dead) in out
    assert Kill(M1, dead.incarnation, "host", 99) in out
    assert out[-1] == Spawn(M1, 6)
    assert replaced(control) == [tuple(M1)]
    assert view(control) == before, "until it is back the view stays"
    assert recovering(control)["phase"] == "start"

    out = control.join(M1)
    assert kinds(out) == [Persist, Recover], "on disk before it is told"
    assert control.sent(Recover) == EVERYONE
    assert (view(control).epoch, view(control).owners) == (2, before.owners)
    (message,) = {id(one.message): one.message for one in out if isinstance(one, Send)}.values()
    assert message == Recover(2, list(view(control).members), before.owners, [tuple(M1)])
    control.take()

    for peer in EVERYONE[1:]:
        assert control.say(peer, Installed(2)) == []
        assert control.say(peer, Installed(2)) == [], "once more is no other one's answer"
    assert recovering(control)["waiting"] == [str(AP)]
    assert control.say(AP, Installed(1)) == [], "of the view before"
    assert control.say(AP, Installed(2)) == [Send(CP, Rebuild(2, [tuple(M1)]))]
    assert control.say(CP, Rebuilt(1)) == []
    out = control.say(CP, Rebuilt(2))
    assert kinds(out) == [Persist, Resume, Serve]
    check_over(control, M1)


@pytest.mark.parametrize("dead", EVERYONE)
def test_whoever_dies_is_brought_back(dead: Peer) -> None:
    control = served()
    former = control.running[dead]
    control.die(dead)
    check_over(control, dead)
    assert control.running[dead] > max(former, len(EVERYONE)), "an incarnation that nobody had"
    assert view(control).epoch == 2


def test_a_silent_role_is_dead_and_what_is_left_of_it_is_ended() -> None:
    control = served()
    former = control.running[EP]
    control.pass_ms(50)
    control.silent.add(EP)
    control.pass_ms(1_450)  # its last report came 50 ms before
    assert recovering(control) is None
    control.pass_ms(50)
    assert Kill(EP, former, "host", 99) in control.said
    control.silent.clear()
    check_over(control, EP)


def test_a_lane_that_is_down_is_no_death_yet() -> None:
    control = served()
    control.feed(LaneDown(M1))
    assert recovering(control) is None
    assert status(control)["lost"] == 1
    control.die(M1)
    check_over(control, M1)
    assert status(control)["lost"] == 0


def test_news_of_another_incarnation_is_old_news() -> None:
    control = served()
    control.die(M1)
    check_over(control, M1)
    control.take()
    assert control.feed(Died(M1, 5, "killed")) == []
    assert control.feed(SpawnFailed(M1, 5, "no room")) == []
    assert recovering(control) is None


def test_several_that_die_at_once_are_one_recovery() -> None:
    control = served()
    for dead in (M0, M1, CP):
        control.die(dead)
    control.settle()
    assert control.sent(Recover).count(AP) == 1
    check_over(control, M0, M1, CP)
    assert view(control).epoch == 2


def test_a_connection_points_sessions_die_with_it_and_it_comes_to_its_door_again() -> None:
    control = served(connection_points=2)
    control.say(CP, SessionOpened("a", client_key(0, 1), 1))
    control.say(CP1, SessionOpened("b", client_key(1, 1), 1))
    out = control.die(CP)
    assert out[-1] == Spawn(CP, 7, "door 0")
    assert status(control)["sessions"] == 1
    check_over(control, CP)
    assert control.sent(Serve) == [CP, CP1]


def test_what_a_dead_one_still_says_counts_for_nothing() -> None:
    control = served()
    zombie = control.running[M1]
    control.die(M1)
    control.take()
    assert control.say(M1, Heartbeat({"hits": 3})) == []
    assert control.say(M1, Installed(2)) == []
    out = control.say(M1, Join(zombie, "host", 1, "", 99))
    assert out == [Stop(M1, zombie)]
    assert recovering(control)["phase"] == "start"
    check_over(control, M1)
    assert control.running[M1] != zombie


def test_the_status_says_how_long_each_phase_took() -> None:
    control = served()
    control.die(M1)
    control.pass_ms(200)
    assert recovering(control)["for_ms"] == 200
    to(control, "connect")
    control.pass_ms(150)
    to(control, "rebuild")
    control.pass_ms(100)
    while recovering(control):
        control.answer()
    assert status(control)["recoveries"] == [
        {"replaced": ["matcher 1"], "phases_ms": {"start": 200, "connect": 150, "rebuild": 100}}
    ]


# A further death --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [M0, M1, CP, EP])
@pytest.mark.parametrize("phase", ["start", "connect", "rebuild"])
def test_a_further_death_begins_it_anew(phase: str, second: Peer) -> None:
    control = served()
    control.die(M1)
    to(control, phase)
    if (phase, second) == ("start", M1):
        control.feed(Died(M1, control.running.pop(M1), "killed before it has joined"))
        control.pending.clear()
        assert recovering(control)["troubles"] == {"matcher 1": "killed before it has joined; next try in 500 ms"}
    else:
        control.die(second)
    assert recovering(control)["phase"] == "start"
    assert set(recovering(control)["replaced"]) == {str(M1), str(second)}
    check_over(control, M1, second)


def test_answers_to_the_one_before_do_not_count() -> None:
    control = served()
    control.die(M1)
    to(control, "rebuild")
    control.die(EP)
    control.join(EP)
    for peer in EVERYONE:
        assert control.say(peer, Installed(2)) == []
    assert control.say(CP, Rebuilt(2)) == []
    assert recovering(control)["phase"] == "connect"
    for peer in EVERYONE:
        control.say(peer, Installed(3))
    assert control.say(CP, Rebuilt(2)) == []
    assert recovering(control)["phase"] == "rebuild"
    assert [one.message.replaced for one in control.said if isinstance(one, Send) and isinstance(one.message, Rebuild)][
        -1
    ] == [tuple(EP), tuple(M1)], "the first one's as well"
    check_over(control, M1, EP)


# Starts that fail -------------------------------------------------------------------------------------------------


def test_a_start_that_fails_is_tried_again_ever_more_seldom_and_the_reason_is_shown() -> None:
    control = served()
    control.silent.add(M1)
    control.die(M1)
    waited = []
    for _ in range(9):
        incarnation = control.running[M1]
        fail(control, M1, "no node has room")
        began = control.now_ms
        (trouble,) = recovering(control)["troubles"].values()
        while M1 not in control.running:
            control.pass_ms(50)
        waited.append(control.now_ms - began)
        assert trouble == f"no node has room; next try in {waited[-1]} ms"
        assert control.running[M1] > incarnation
    assert waited == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    control.silent.clear()
    check_over(control, M1)


def test_a_role_that_never_joins_is_given_up_and_started_again() -> None:
    control = served()
    control.silent.add(M1)
    control.die(M1)
    former = control.running[M1]
    control.pass_ms(control.config.transitions.start_timeout_ms)
    assert Stop(M1, former) not in control.said
    control.pass_ms(50)
    assert Stop(M1, former) in control.said
    limit_ms = control.config.transitions.start_timeout_ms
    assert recovering(control)["troubles"] == {"matcher 1": f"not up in {limit_ms} ms; next try in 500 ms"}
    control.pass_ms(500)
    assert control.running[M1] > former
    control.silent.clear()
    check_over(control, M1)


def test_one_that_joins_when_it_was_given_up_already_is_not_taken() -> None:
    """Its Join was on its way when it was stopped; another one will be started in its place."""
    control = served()
    control.silent.add(M1)
    control.die(M1)
    late = control.running[M1]
    control.pass_ms(control.config.transitions.start_timeout_ms + 50)
    assert M1 not in control.running
    assert control.say(M1, Join(late, "host", 1, "", 99)) == [Stop(M1, late)]
    assert recovering(control)["phase"] == "start"
    control.silent.clear()
    check_over(control, M1)
    assert control.running[M1] > late


def test_others_may_die_while_one_cannot_be_started() -> None:
    control = served()
    control.silent.add(M1)
    control.die(M1)
    fail(control, M1, "no room")
    fail_again = control.feed(SpawnFailed(M1, 6, "no room, still"))
    assert fail_again == []
    assert recovering(control)["troubles"] == {"matcher 1": "no room; next try in 500 ms"}
    control.die(EP)
    control.answer()
    assert recovering(control)["phase"] == "start", "all are waited for"
    control.silent.clear()
    check_over(control, M1, EP)


# View changes and wishes ------------------------------------------------------------------------------------------


def test_wishes_are_refused_and_told_why() -> None:
    control = served()
    control.die(M1)
    control.die(EP)
    why = "lost: exit_point 0, matcher 1; the view cannot change until they are back"
    assert control.refused("scale", matchers=3) == why
    assert control.refused("plan", matchers=3) == why
    check_over(control, M1, EP)
    control.ask("scale", matchers=3)
    control.settle()
    assert control.slots() == [0, 1, 2]


@pytest.mark.parametrize("message", [Prepare, Commit, Retire])
def test_a_view_change_is_given_up_unless_it_is_decided(message: type) -> None:
    control = served()
    control.ask("scale", matchers=3, strategy="all_at_once")
    while not control.sent(message):
        control.answer()
    decided = message is not Prepare
    control.die(M1)
    assert (control.sent(Abort) != []) == (not decided)
    assert (M2 in control.running) == decided, "newcomers of no view are dismissed"
    assert set(recovering(control)["replaced"]) == {str(M1)}
    check_over(control, M1)
    assert control.slots() == ([0, 1, 2] if decided else [0, 1])
    operation = control.operation()
    assert operation["state"] == ("done" if decided else "aborted")
    assert [step["outcome"] for step in operation["steps"]] == ["committed" if decided else "aborted"]
    if not decided:
        assert operation["reason"] == "matcher 1 lost: killed"
    control.ask("scale", matchers=1)
    control.settle()
    assert control.slots() == [0]


def test_a_newcomer_that_dies_ends_the_wish_and_nothing_else() -> None:
    control = served()
    control.ask("scale", matchers=3)
    control.answer()
    control.die(M2)
    assert recovering(control) is None
    control.settle()
    assert control.operation()["state"] == "aborted"
    assert control.slots() == [0, 1]


def test_newcomers_are_dismissed_when_a_role_dies() -> None:
    control = served()
    control.ask("scale", matchers=3)
    newcomer = control.running[M2]
    control.die(EP)
    assert Stop(M2, newcomer) in control.said
    check_over(control, EP)
    assert control.slots() == [0, 1, 2], "the wish stands"
    assert control.running[M2] > newcomer


def leaving(control: Control) -> int:
    """Let matcher 1 leave, which owes something still; return its incarnation."""
    incarnation = control.running[M1]
    control.ask("scale", matchers=1, strategy="all_at_once")
    while not control.sent(Commit):
        control.answer()
    control.silent.add(M1)
    for _ in range(3):
        control.answer()
    return incarnation


def test_a_leaver_that_dies_is_not_brought_back_and_all_that_was_underway_is_sent_again() -> None:
    control = served()
    incarnation = leaving(control)
    control.die(M1)
    assert M1 not in control.running
    assert Kill(M1, incarnation, "host", 99) in control.said
    assert not [one for one in control.said if isinstance(one, Spawn)]
    check_over(control)
    assert control.slots() == [0]
    assert control.sent(Recover) == [AP, CP, EP, M0]
    assert control.operation()["state"] == "done"


def test_a_leaver_is_told_of_a_recovery_too_and_goes_when_it_has_left() -> None:
    control = served()
    leaving(control)
    control.die(EP)
    control.silent.clear()
    control.pending.clear()
    control.join(EP)
    assert control.sent(Recover) == EVERYONE
    check = view(control)
    assert check.member(M1) is None
    for peer in (AP, CP, EP, M0):
        control.say(peer, Installed(check.epoch))
    assert not control.sent(Rebuild), "no later life would tell the leaver to go: it must have heard of it"
    control.say(M1, Installed(check.epoch))
    assert control.sent(Rebuild) == [CP]
    control.say(CP, Rebuilt(check.epoch))
    assert M1 in control.running, "it owes something"
    control.say(M1, Left())
    control.settle()
    assert M1 not in control.running


# The coordinator's own death --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["start", "connect", "rebuild"])
def test_its_next_life_begins_the_recovery_anew(phase: str) -> None:
    control = served()
    control.die(M1)
    to(control, phase)
    epoch = view(control).epoch
    control = control.restart()
    assert control.machine.state is State.RESUMING
    control.rejoin()
    control.settle()
    for _ in range(100):
        if control.machine.state is State.SERVING and recovering(control) is None:
            break
        control.pass_ms(50)
        control.settle()
    check_over(control, M1)
    assert view(control).epoch > epoch
    assert ["matcher 1"] in [one["replaced"] for one in status(control)["recoveries"]]


def test_a_role_that_does_not_come_again_is_dead() -> None:
    control = served()
    control = control.restart()
    for peer in (AP, CP, EP, M0):
        control.join(peer)
    patience_ms = 2 * control.config.timing.role_lost_ms
    control.silent.add(M1)
    assert control.machine.state is State.RESUMING
    control.pass_ms(patience_ms + 100)
    assert recovering(control)["replaced"] == ["matcher 1"]
    control.silent.clear()
    check_over(control, M1)


def test_it_does_not_wait_for_a_role_that_is_known_to_be_dead() -> None:
    control = served()
    control = control.restart()
    for peer in (AP, CP, EP, M0):
        control.join(peer)
    control.feed(Died(M1, control.running[M1], "killed"))
    assert control.machine.state is State.SERVING
    assert recovering(control)["replaced"] == ["matcher 1"]
    check_over(control, M1)


def test_a_connection_point_that_dies_with_the_coordinator_comes_to_its_door_again() -> None:
    control = served(connection_points=2)
    control = control.restart()
    control.feed(Died(CP1, control.running[CP1], "the node of both is lost"))
    for peer in (AP, CP, EP, M0, M1):
        control.join(peer)
    assert [one.client_address for one in control.said if isinstance(one, Spawn) and one.peer == CP1] == ["door 1"]


def test_where_everything_has_ended_the_configuration_says_where_doors_are() -> None:
    control = served(connection_points=2).restart(cold=True)
    assert {one.client_address for one in control.said if isinstance(one, Spawn)} == {""}


def test_a_role_that_dies_when_it_has_come_again_is_replaced_at_once() -> None:
    control = served()
    control = control.restart()
    control.join(M1)
    control.die(M1)
    for peer in (AP, CP, EP, M0):
        control.join(peer)
    assert recovering(control)["replaced"] == ["matcher 1"]
    check_over(control, M1)


def test_the_connection_points_go_on_though_the_coordinator_dies_behind_its_decision() -> None:
    """The end of the recovery is on disk; that it was said to anybody is not known."""
    control = served()
    control.die(M1)
    to(control, "rebuild")
    control.say(CP, Rebuilt(view(control).epoch))
    assert replaced(control) == []
    control = control.restart()
    control.rejoin()
    assert CP in control.sent(Commit), "which a connection point takes for Resume"


def test_the_death_of_a_leaver_is_remembered_too() -> None:
    control = served()
    leaving(control)
    control.die(M1)
    control.silent.clear()
    epoch = view(control).epoch
    assert recovering(control)["phase"] == "connect"
    control = control.restart()
    control.rejoin()
    assert control.sent(Recover) == [AP, CP, EP, M0]
    check_over(control)
    assert view(control).epoch == epoch + 1


def test_a_cold_start_brings_everybody_back_to_the_view_that_was() -> None:
    control = served()
    control.ask("scale", matchers=3, strategy="all_at_once")
    control.settle()
    before = view(control)
    control = control.restart(cold=True)
    assert [one.peer for one in control.said if isinstance(one, Spawn)] == [*EVERYONE, M2]
    control.pass_ms(100)
    check_over(control, *EVERYONE)
    after = view(control)
    assert (after.epoch, after.owners) == (before.epoch + 1, before.owners)
    assert min(control.running.values()) > max(member.incarnation for member in before.members)
    assert status(control)["recoveries"][-1]["phases_ms"]["start"] <= 200, "its clock began with the first Tick"


def test_a_cold_start_goes_to_the_sizes_of_a_configuration_that_has_changed() -> None:
    control = served()
    control.ask("scale", matchers=3, strategy="all_at_once")
    control.settle()
    control.config = layers(matchers=1)
    control = control.restart(cold=True)
    control.settle()
    assert control.slots() == [0]
    assert control.operation()["state"] == "done"
    control.config = layers(matchers=1)
    again = control.restart(cold=True)
    again.settle()
    assert again.operation() == control.operation(), "the configuration is as it was"


def test_a_cold_start_that_cannot_go_to_the_sizes_of_the_configuration_says_why() -> None:
    control = served()
    control.config = layers(matchers=1)
    control = control.restart(cold=True)
    to(control, "rebuild")
    control.feed(LaneDown(M1))
    control.settle()
    control.feed(LaneUp(M1))
    check_over(control, *EVERYONE)
    assert control.slots() == [0, 1]
    operation = control.operation()
    assert (operation["state"], operation["wanted"][MATCHER]) == ("aborted", [0, 1])
    assert operation["reason"] == (
        "the configuration asks for connection_points=1, access_points=1, matchers=1, exit_points=1: "
        "lost: matcher 1; the view cannot change until they are back"
    )
    control.die(M0)
    check_over(control, M0, recoveries=2)
    assert control.operation()["number"] == operation["number"], "it is asked for once"


@pytest.mark.parametrize("phase", ["start", "connect", "rebuild"])
def test_its_death_in_the_midst_of_a_cold_start_does_not_lose_the_new_sizes(phase: str) -> None:
    control = served()
    control.config = layers(matchers=1)
    control = control.restart(cold=True)
    to(control, phase)
    control = control.restart()
    control.rejoin()
    control.settle()
    while recovering(control) is not None or control.machine.state is State.RESUMING:
        control.pass_ms(50)
        control.settle()
    control.settle()
    assert control.slots() == [0]
    assert control.operation()["state"] == "done"


def test_a_cold_start_in_the_middle_of_a_wish_ends_it() -> None:
    control = served()
    control.ask("scale", matchers=3)
    control.answer()
    control = control.restart(cold=True)
    operation = control.operation()
    assert (operation["state"], operation["reason"]) == ("aborted", "the cluster was stopped")
    check_over(control, *EVERYONE)
    assert control.slots() == [0, 1]


def test_newcomers_are_not_overdue_though_a_recovery_takes_longer_than_they_may() -> None:
    control = served()
    control.silent |= {M1, M2}
    control.ask("scale", matchers=3)
    control.pass_ms(1000)
    control.die(M1)
    assert M2 not in control.running, "it is started again when all are back"
    control.pass_ms(control.config.transitions.start_timeout_ms + 1000)
    assert recovering(control)["phase"] == "start"
    assert control.operation()["state"] == "running"
    control.silent.clear()
    check_over(control, M1)
    assert control.slots() == [0, 1, 2]


def test_nobody_is_started_while_the_cluster_stops() -> None:
    control = served()
    control.die(M1)
    fail(control, M1, "no room")
    control.machine.stop()
    control.take()
    control.pass_ms(60_000)
    assert not [one for one in control.said if isinstance(one, Spawn)]


def test_a_first_start_that_fails_is_not_a_recovery() -> None:
    control = Control(layers())
    control.feed(Died(M0, control.running[M0], "killed"))
    control.feed(Tick(control.now_ms + 50))
    assert control.machine.state is State.GATHERING
    assert recovering(control) is None


def test_members_are_where_the_new_incarnations_listen() -> None:
    control = served()
    control.die(M1)
    control.say(M1, Join(control.running[M1], "elsewhere", 9_999, "", 5))
    assert view(control).member(M1) == Member(MATCHER, 1, control.running[M1], "elsewhere", 9_999)
