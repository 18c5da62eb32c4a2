"""The coordinator: gathers, installs, serves, stops; who is lost; which login of a name is the newest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.config import Config, Layers
from cluster.coordinating.arriving import expected_slots
from cluster.coordinating.records import State
from cluster.coordinator import Coordinator
from cluster.memory import Memory, decode_memory
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Connect,
    Disconnect,
    Drain,
    Emptied,
    Ended,
    Failed,
    Flushed,
    Gone,
    Heartbeat,
    Install,
    Installed,
    Instruction,
    Join,
    Kill,
    LaneDown,
    LaneUp,
    Left,
    Member,
    Peer,
    Persist,
    Prepared,
    Ready,
    Received,
    Retire,
    Send,
    Serve,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    Settled,
    Spawn,
    Status,
    StatusRequest,
    Stop,
    Tick,
    client_key,
)
from cluster.role import Role
from cluster.view import View, view_of
from tests.unit.views import member, prepare, view

CONFIG = Config(name="test", layers=Layers(connection_points=2, access_points=1, matchers=2, exit_points=1))
SLOTS = expected_slots(CONFIG)
OPERATOR = Peer("operator", 0)


INCARNATIONS = {peer: place for place, peer in enumerate(sorted(SLOTS), start=1)}


def join(peer: Peer) -> Join:
    address = "host:7400" if peer.layer == CONNECTION_POINT else ""
    return Join(INCARNATIONS[peer], "host", 4000 + SLOTS.index(peer), address, 99)


def started() -> Coordinator:
    machine = Coordinator(CONFIG)
    machine.start()
    return machine


def messages(instructions: list[Instruction]) -> list[Instruction]:
    """Return what is sent to roles."""
    return [one for one in instructions if isinstance(one, Send)]


def installing() -> Coordinator:
    machine = started()
    machine.handle(Tick(1_000))
    for peer in SLOTS:
        machine.handle(Received(peer, join(peer)))
    return machine


def serving() -> Coordinator:
    machine = installing()
    for peer in SLOTS:
        machine.handle(Received(peer, Installed(1)))
    assert machine.state is State.SERVING
    return machine


def rows(machine: Coordinator) -> dict[str, dict[str, Any]]:
    document: Any = machine.status()
    return {f"{row['layer']} {row['slot']}": row for row in document["members"]}


def test_slots_are_those_of_the_configuration() -> None:
    assert [str(peer) for peer in SLOTS] == [
        "connection_point 0",
        "connection_point 1",
        "access_point 0",
        "matcher 0",
        "matcher 1",
        "exit_point 0",
    ]


def test_it_has_a_process_started_for_each_slot_and_remembers_their_incarnations() -> None:
    out = Coordinator(CONFIG).start()
    assert [one for one in out if isinstance(one, Spawn)] == [Spawn(*one) for one in INCARNATIONS.items()]
    (persist,) = [one for one in out if isinstance(one, Persist)]
    sizes = {"connection_points": 2, "access_points": 1, "matchers": 2, "exit_points": 1}
    assert decode_memory(persist.memory) == Memory(incarnation=len(SLOTS), configured=sizes)


def test_processes_are_listed_in_the_direction_of_the_data() -> None:
    assert started().processes() == [(peer, INCARNATIONS[peer]) for peer in SLOTS]


def test_the_view_goes_out_when_the_last_slot_has_joined() -> None:
    machine = started()
    for peer in SLOTS[:-1]:
        assert machine.handle(Received(peer, join(peer))) == []
        assert machine.state is State.GATHERING
    out = machine.handle(Received(SLOTS[-1], join(SLOTS[-1])))
    assert machine.state is State.INSTALLING
    assert [type(one) for one in out] == [Persist] + [Send] * len(SLOTS), "on disk before it is told"
    assert [one.peer for one in out if isinstance(one, Send)] == sorted(SLOTS)
    (message,) = {id(one.message): one.message for one in out if isinstance(one, Send)}.values()
    assert isinstance(message, Install)
    view = view_of(message)
    assert view.epoch == 1
    for peer in SLOTS:
        member = view.member(peer)
        assert member is not None
        assert (member.incarnation, member.host) == (INCARNATIONS[peer], "host")
        assert member.port == 4000 + SLOTS.index(peer)


def test_clients_are_let_in_when_all_have_installed() -> None:
    machine = installing()
    for peer in SLOTS[:-1]:
        assert machine.handle(Received(peer, Installed(1))) == []
    out = machine.handle(Received(SLOTS[-1], Installed(1)))
    assert out == [Send(Peer(CONNECTION_POINT, slot), Serve(1)) for slot in (0, 1)]
    assert machine.handle(Received(SLOTS[-1], Installed(1))) == []


def test_a_process_that_nobody_asked_for_is_stopped() -> None:
    machine = started()
    stranger = Peer(MATCHER, 2)
    assert machine.handle(Received(stranger, join(SLOTS[0]))) == [Stop(stranger, INCARNATIONS[SLOTS[0]])]
    assert machine.handle(Received(stranger, Heartbeat({}))) == []
    for machine in (started(), serving()):
        state = machine.state
        old = Join(77, "host", 1, "", 9)
        assert machine.handle(Received(SLOTS[0], old)) == [Stop(SLOTS[0], 77)], "an incarnation of another time"
        assert machine.state is state
        assert rows(machine)[str(SLOTS[0])].get("pid", 99) == 99


def test_who_joins_again_is_not_let_in_twice() -> None:
    machine = serving()
    assert machine.handle(Received(SLOTS[0], join(SLOTS[0]))) == []
    assert machine.state is State.SERVING


def test_a_role_that_says_nothing_is_dead_and_another_incarnation_takes_its_slot() -> None:
    machine = serving()
    for now_ms in range(1_000, 2_500, 50):
        machine.handle(Tick(now_ms))
        for peer in SLOTS[1:]:
            machine.handle(Received(peer, Heartbeat({"counted": now_ms})))
    machine.handle(Tick(2_500))
    assert rows(machine)[str(SLOTS[0])]["state"] == "serving"
    out = machine.handle(Tick(2_501))
    silent = SLOTS[0]
    dead = Member(*silent, INCARNATIONS[silent], "host", 4000)
    assert [one for one in out if not isinstance(one, Persist)] == [
        *(Send(peer, Gone(dead)) for peer in sorted(SLOTS) if peer != silent),
        Disconnect(dead),
        Kill(silent, dead.incarnation, "host", 99),
        Spawn(silent, len(SLOTS) + 1, "host:7400"),
    ]
    assert rows(machine)[str(silent)] == {"layer": CONNECTION_POINT, "slot": 0, "state": "starting"}
    assert machine.status()["state"] == "recovering"
    machine.handle(Received(silent, Heartbeat({})))
    assert rows(machine)[str(silent)]["state"] == "starting", "it is dead, whatever it says"


def test_a_role_whose_lane_is_down_is_lost_at_once() -> None:
    machine = serving()
    machine.handle(LaneDown(SLOTS[2]))
    assert rows(machine)[str(SLOTS[2])]["state"] == "lost"
    machine.handle(LaneUp(SLOTS[2]))
    assert rows(machine)[str(SLOTS[2])]["state"] == "serving"
    machine.handle(LaneDown(OPERATOR))
    machine.handle(LaneUp(Peer(MATCHER, 9)))


def test_the_status_tells_what_is_known() -> None:
    machine = started()
    machine.handle(Received(SLOTS[0], join(SLOTS[0])))
    before = rows(machine)
    assert before["connection_point 0"]["state"] == "joining"
    assert before["matcher 1"] == {"layer": MATCHER, "slot": 1, "state": "starting"}
    machine = serving()
    machine.handle(Received(SLOTS[3], Heartbeat({"hits": 7})))
    machine.handle(Tick(1_100))
    (answer,) = machine.handle(Received(OPERATOR, StatusRequest()))
    assert isinstance(answer, Send)
    assert answer.peer == OPERATOR
    assert isinstance(answer.message, Status)
    document = msgspec.json.decode(answer.message.document)
    assert {key: document[key] for key in ("name", "state", "epoch", "lost", "sessions")} == {
        "name": "test",
        "state": "serving",
        "epoch": 1,
        "lost": 0,
        "sessions": 0,
    }
    assert rows(machine)["matcher 0"] == {
        "layer": MATCHER,
        "slot": 0,
        "state": "serving",
        "pid": 99,
        "incarnation": INCARNATIONS[Peer(MATCHER, 0)],
        "address": "host:4003",
        "client_address": None,
        "metrics_address": None,
        "heard_ms_ago": 100,
        "counters": {"hits": 7},
    }
    assert rows(machine)["connection_point 1"]["client_address"] == "host:7400"


def test_the_newest_login_wins_over_connection_points() -> None:
    machine = serving()
    first, second = Peer(CONNECTION_POINT, 0), Peer(CONNECTION_POINT, 1)
    old, new = client_key(0, 5), client_key(1, 9)
    assert machine.handle(Received(first, SessionOpened("lab", old, 1))) == []
    assert machine.handle(Received(second, SessionOpened("lab", new, 2))) == [Send(first, SessionTaken(old, False))]
    assert machine.handle(Received(first, SessionClosed("lab", old))) == []
    assert machine.status()["sessions"] == 1
    assert machine.handle(Received(second, SessionClosed("lab", new))) == []
    assert machine.status()["sessions"] == 0


def test_a_client_that_changed_its_place_is_told_so_in_whichever_order_that_was_heard() -> None:
    """Of two sessions of one instance it cannot know the newer one; whoever is ended in error comes again."""
    for first, second in ((0, 1), (1, 0)):
        machine = serving()
        keys = [client_key(0, 5), client_key(1, 9)]
        machine.handle(Received(Peer(CONNECTION_POINT, first), SessionOpened("lab", keys[first], 7)))
        out = machine.handle(Received(Peer(CONNECTION_POINT, second), SessionOpened("lab", keys[second], 7)))
        assert out == [Send(Peer(CONNECTION_POINT, first), SessionTaken(keys[first], True))]


def test_within_one_connection_point_it_needs_no_help() -> None:
    machine = serving()
    peer = Peer(CONNECTION_POINT, 0)
    machine.handle(Received(peer, SessionOpened("lab", client_key(0, 5), 1)))
    assert machine.handle(Received(peer, SessionOpened("lab", client_key(0, 6), 2))) == []
    machine.handle(Received(peer, SessionClosed("lab", client_key(0, 5))))
    assert machine.status()["sessions"] == 1


def test_other_names_are_other_clients() -> None:
    machine = serving()
    machine.handle(Received(Peer(CONNECTION_POINT, 0), SessionOpened("a", client_key(0, 1), 1)))
    assert machine.handle(Received(Peer(CONNECTION_POINT, 1), SessionOpened("b", client_key(1, 1), 1))) == []
    assert machine.status()["sessions"] == 2


def test_stopping_says_goodbye_to_clients_first() -> None:
    machine = serving()
    assert machine.stop() == [Send(Peer(CONNECTION_POINT, slot), Drain()) for slot in (0, 1)]
    assert machine.status()["state"] == "stopping"


def test_answers_that_nothing_waits_for_change_nothing() -> None:
    machine = serving()
    before = machine.status()
    for message in (Prepared(2), Ready(2, 1, 1), Ended(1), Settled(1), Emptied(1), Failed(2, "no")):
        assert machine.handle(Received(Peer(MATCHER, 0), message)) == []
    assert machine.status() == before
    assert machine.handle(Received(Peer(MATCHER, 7), Settled(2))) == [], "of strangers nothing is expected"


# The other side: a role's life in the cluster -------------------------------------------------------------------


class Recorder:
    """A machine that remembers its events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def handle(self, event: Any) -> list[Any]:
        self.events.append(event)
        return []

    def gauges(self) -> dict[str, int]:
        return {"events": len(self.events)}


def test_a_role_joins_connects_installs_and_reports() -> None:
    machine = Recorder()
    own = join(Peer(ACCESS_POINT, 0))
    role = Role(Peer(ACCESS_POINT, 0), own, machine, CONFIG)
    assert role.handle(Tick(0)) == [], "nothing to report before it has joined"
    assert role.handle(LaneUp(COORDINATOR_PEER)) == [Send(COORDINATOR_PEER, own)]
    assert role.handle(LaneUp(COORDINATOR_PEER)) == [Send(COORDINATOR_PEER, own)], "it may be another life of it"
    install = next(one.message for one in _install(started()) if one.peer == SLOTS[2])
    out = role.handle(Received(COORDINATOR_PEER, install))
    assert [one.member.peer for one in out if isinstance(one, Connect)] == [Peer(MATCHER, 0), Peer(MATCHER, 1)]
    assert role.handle(LaneUp(Peer(MATCHER, 1))) == []
    assert role.handle(LaneUp(Peer(CONNECTION_POINT, 0))) == []
    assert role.handle(LaneUp(Peer(MATCHER, 0))) == [Send(COORDINATOR_PEER, Installed(1))]
    assert role.handle(LaneUp(Peer(MATCHER, 0))) == []
    beats = [now_ms for now_ms in range(0, 1001, 50) if role.handle(Tick(now_ms))]
    assert beats == [0, 250, 500, 750, 1000]
    assert len(machine.events) == 29, "the machine sees every event"


def _install(machine: Coordinator) -> list[Any]:
    out: list[Any] = []
    for peer in SLOTS:
        out += machine.handle(Received(peer, join(peer)))
    return messages(out)


@pytest.mark.parametrize(
    ("layer", "dials"),
    [
        (CONNECTION_POINT, [ACCESS_POINT]),
        (ACCESS_POINT, [MATCHER] * 2),
        (MATCHER, [EXIT_POINT]),
        (EXIT_POINT, [CONNECTION_POINT] * 2),
    ],
)
def test_each_layer_dials_the_next(layer: str, dials: list[str]) -> None:
    role = Role(Peer(layer, 0), join(Peer(layer, 0)), Recorder(), CONFIG)
    role.handle(LaneUp(COORDINATOR_PEER))
    install = next(one.message for one in _install(started()))
    out = role.handle(Received(COORDINATOR_PEER, install))
    assert [one.member.layer for one in out] == dials  # type: ignore[union-attr]


# A role in a view change ----------------------------------------------------------------------------------------


def role_in(before: View, peer: Peer) -> Role:
    """Return a role that serves a view with all its lanes up."""
    role = Role(peer, Join(1, "host", 1, "", 9), Recorder(), CONFIG)
    role.handle(LaneUp(COORDINATOR_PEER))
    for one in role.handle(Received(COORDINATOR_PEER, before.install())):
        if isinstance(one, Connect):
            role.handle(LaneUp(one.member.peer))
    return role


def dialled(out: list[Instruction]) -> list[Peer]:
    return [one.member.peer for one in out if isinstance(one, Connect)]


def test_a_role_is_prepared_when_its_lanes_to_the_next_view_are_up() -> None:
    role = role_in(view(1), Peer(ACCESS_POINT, 0))
    out = role.handle(Received(COORDINATOR_PEER, prepare(view(2, matchers=(0, 1, 2)))))
    assert dialled(out) == [Peer(MATCHER, 1), Peer(MATCHER, 2)], "those that it has are not dialled again"
    assert role.handle(LaneUp(Peer(MATCHER, 2))) == []
    assert role.handle(LaneUp(Peer(MATCHER, 1))) == [Send(COORDINATOR_PEER, Prepared(2))]


def test_where_nothing_is_missing_a_role_is_prepared_at_once() -> None:
    role = role_in(view(1), Peer(CONNECTION_POINT, 0))
    out = role.handle(Received(COORDINATOR_PEER, prepare(view(2, matchers=(0, 1)))))
    assert out == [Send(COORDINATOR_PEER, Prepared(2))]


def test_a_lane_that_is_down_is_waited_for() -> None:
    role = role_in(view(1), Peer(ACCESS_POINT, 0))
    role.handle(LaneDown(Peer(MATCHER, 0)))
    out = role.handle(Received(COORDINATOR_PEER, prepare(view(2))))
    assert dialled(out) == [Peer(MATCHER, 0)]
    assert role.handle(LaneUp(Peer(MATCHER, 0))) == [Send(COORDINATOR_PEER, Prepared(2))]


def test_matchers_make_lanes_to_those_with_whom_groups_are_exchanged_and_the_lower_slot_dials() -> None:
    before = view(1, matchers=(0, 1, 2))
    after = view(2, matchers=(0, 1, 2, 3), owners=before.owners[:-2] + b"\x03\x00")
    expected = {0: [], 1: [], 2: [Peer(MATCHER, 3)], 3: []}
    for slot, dials in expected.items():
        role = role_in(before, Peer(MATCHER, slot))
        out = role.handle(Received(COORDINATOR_PEER, prepare(after)))
        assert dialled(out) == dials
        ready = [one for one in out if isinstance(one, Send)]
        assert len(ready) == (slot in (0, 1)), "who takes part waits for the other's lane, whoever dials"


def test_exit_points_make_lanes_to_each_other_when_their_set_changes() -> None:
    before, after = view(1, exit_points=(0, 2)), view(2, exit_points=(2, 5))
    assert dialled(role_in(before, Peer(EXIT_POINT, 0)).handle(Received(COORDINATOR_PEER, prepare(after)))) == [
        Peer(EXIT_POINT, 2),
        Peer(EXIT_POINT, 5),
    ]
    assert dialled(role_in(before, Peer(EXIT_POINT, 5)).handle(Received(COORDINATOR_PEER, prepare(after)))) == []
    role = role_in(before, Peer(EXIT_POINT, 0))
    assert dialled(role.handle(Received(COORDINATOR_PEER, prepare(view(2, exit_points=(0, 2)))))) == []


def test_the_view_of_a_role_is_the_next_one_after_retire_and_not_after_an_abort() -> None:
    first, second = view(1, matchers=(0,)), view(2, matchers=(0, 1))
    for retired, dials in ((True, []), (False, [Peer(MATCHER, 1)])):
        role = role_in(first, Peer(MATCHER, 0))
        role.handle(Received(COORDINATOR_PEER, prepare(second)))
        if retired:
            role.handle(Received(COORDINATOR_PEER, Retire(2)))
        # To the third view nothing moves from the second, and half of the groups from the first.
        out = role.handle(Received(COORDINATOR_PEER, prepare(view(3, matchers=(0, 1)))))
        assert dialled(out) == dials


def test_a_role_lets_go_of_those_who_have_gone_and_says_when_it_can_go_itself() -> None:
    role = role_in(view(1), Peer(ACCESS_POINT, 0))
    gone = member(MATCHER, 0)
    assert role.handle(Received(COORDINATOR_PEER, Gone(gone))) == [Disconnect(gone)]
    assert role.handle(Flushed()) == [Send(COORDINATOR_PEER, Left())]
