"""The coordinator: gathers, installs, serves, stops; who is lost; which login of a name is the newest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.config import Config, Layers
from cluster.coordinator import Coordinator, State, expected_slots
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Applied,
    Connect,
    Drain,
    Heartbeat,
    Install,
    Installed,
    Join,
    LaneDown,
    LaneUp,
    Peer,
    Received,
    Send,
    Serve,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    Status,
    StatusRequest,
    Tick,
    client_key,
)
from cluster.role import Role
from cluster.view import view_of

CONFIG = Config(name="test", layers=Layers(connection_points=2, access_points=1, matchers=2, exit_points=1))
SLOTS = expected_slots(CONFIG)
OPERATOR = Peer("operator", 0)


def join(peer: Peer) -> Join:
    return Join(3, "host", 4000 + SLOTS.index(peer), "host:7400" if peer.layer == CONNECTION_POINT else "", 99)


def installing() -> Coordinator:
    machine = Coordinator(CONFIG)
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


def test_the_view_goes_out_when_the_last_slot_has_joined() -> None:
    machine = Coordinator(CONFIG)
    for peer in SLOTS[:-1]:
        assert machine.handle(Received(peer, join(peer))) == []
        assert machine.state is State.GATHERING
    out = machine.handle(Received(SLOTS[-1], join(SLOTS[-1])))
    assert machine.state is State.INSTALLING
    assert [instruction.peer for instruction in out if isinstance(instruction, Send)] == list(SLOTS)
    (message,) = {id(instruction.message): instruction.message for instruction in out}.values()  # type: ignore[union-attr]
    assert isinstance(message, Install)
    view = view_of(message)
    assert view.epoch == 1
    for peer in SLOTS:
        member = view.member(peer)
        assert member is not None
        assert (member.incarnation, member.host, member.port) == (3, "host", 4000 + SLOTS.index(peer))


def test_clients_are_let_in_when_all_have_installed() -> None:
    machine = installing()
    for peer in SLOTS[:-1]:
        assert machine.handle(Received(peer, Installed(1))) == []
    out = machine.handle(Received(SLOTS[-1], Installed(1)))
    assert out == [Send(Peer(CONNECTION_POINT, slot), Serve(1)) for slot in (0, 1)]
    assert machine.handle(Received(SLOTS[-1], Installed(1))) == []


def test_a_slot_that_nobody_asked_for_is_left_alone() -> None:
    machine = Coordinator(CONFIG)
    assert machine.handle(Received(Peer(MATCHER, 2), join(SLOTS[0]))) == []
    assert machine.handle(Received(Peer(MATCHER, 2), Heartbeat({}))) == []
    machine = serving()
    assert machine.handle(Received(SLOTS[0], join(SLOTS[0]))) == []
    assert machine.state is State.SERVING


def test_a_role_that_says_nothing_is_lost_and_back_when_it_speaks() -> None:
    machine = serving()
    for now_ms in range(1_000, 2_500, 50):
        machine.handle(Tick(now_ms))
        for peer in SLOTS[1:]:
            machine.handle(Received(peer, Heartbeat({"counted": now_ms})))
    machine.handle(Tick(2_500))
    assert rows(machine)[str(SLOTS[0])]["state"] == "serving"
    machine.handle(Tick(2_501))
    assert rows(machine)[str(SLOTS[0])]["state"] == "lost"
    document: Any = machine.status()
    assert document["lost"] == 1
    machine.handle(Received(SLOTS[0], Heartbeat({})))
    assert rows(machine)[str(SLOTS[0])]["state"] == "serving"


def test_a_role_whose_lane_is_down_is_lost_at_once() -> None:
    machine = serving()
    machine.handle(LaneDown(SLOTS[2]))
    assert rows(machine)[str(SLOTS[2])]["state"] == "lost"
    machine.handle(LaneUp(SLOTS[2]))
    assert rows(machine)[str(SLOTS[2])]["state"] == "serving"
    machine.handle(LaneDown(OPERATOR))
    machine.handle(LaneUp(Peer(MATCHER, 9)))


def test_the_status_tells_what_is_known() -> None:
    machine = Coordinator(CONFIG)
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
        "incarnation": 3,
        "address": "host:4003",
        "client_address": None,
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


def test_what_it_does_not_expect_is_a_broken_invariant() -> None:
    machine = serving()
    with pytest.raises(AssertionError, match="coordinator got Applied from matcher 0"):
        machine.handle(Received(Peer(MATCHER, 0), Applied(0, [1])))
    assert machine.handle(Received(Peer(MATCHER, 7), Applied(0, [1]))) == [], "of strangers nothing is expected"


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
    assert role.handle(LaneUp(COORDINATOR_PEER)) == [], "it joins once"
    install = next(one.message for one in _install(Coordinator(CONFIG)) if one.peer == SLOTS[2])
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
    return out


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
    install = next(one.message for one in _install(Coordinator(CONFIG)))
    out = role.handle(Received(COORDINATOR_PEER, install))
    assert [one.member.layer for one in out] == dials  # type: ignore[union-attr]
