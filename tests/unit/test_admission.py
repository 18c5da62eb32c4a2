"""Strangers that fail: no more of them than are allowed in a second, and those who are served pay nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from cluster import frames
from cluster.codec import encode_frame
from cluster.messages import (
    COORDINATOR_PEER,
    Event,
    Instruction,
    MoveClients,
    PauseAccepting,
    Received,
    ResumeAccepting,
)
from tests.unit.edge import Edge, hello, small_config

RATE = 4


class Door(Edge):
    """A connection point that allows RATE failures a second; `said` is what it has asked of the port."""

    def __init__(self) -> None:
        config = small_config()
        limits = msgspec.structs.replace(config.client_limits, failures_per_second=RATE)
        self.said: list[Instruction] = []
        super().__init__(msgspec.structs.replace(config, client_limits=limits))

    def feed(self, event: Event) -> list[Instruction]:
        out = super().feed(event)
        self.said += [one for one in out if isinstance(one, PauseAccepting | ResumeAccepting)]
        return out


def garbage(door: Door) -> None:
    door.raw(door.connect(), b"\x01\x00\x00\x00\xc1")


def unfinished(door: Door) -> None:
    connection = door.connect()
    door.raw(connection, encode_frame(hello())[:-1])
    door.close(connection)


def nothing(door: Door) -> None:
    door.close(door.connect())


def too_large(door: Door) -> None:
    door.raw(door.connect(), b"\xff\xff\xff\x00")


def old_version(door: Door) -> None:
    door.say(door.connect(), hello(version=9))


def garbage_after_login(door: Door) -> None:
    door.raw(door.login(), b"\x01\x00\x00\x00\xc1")


@pytest.mark.parametrize("failure", [garbage, unfinished, nothing, too_large, old_version, garbage_after_login])
def test_failures_beyond_the_limit_close_the_port_until_time_has_passed(failure: Callable[[Door], None]) -> None:
    door = Door()
    for _ in range(RATE):
        assert door.said == []
        failure(door)
    assert door.said == [PauseAccepting()]
    door.pass_ms(1000 // RATE - 1)
    assert door.said == [PauseAccepting()], "not a whole failure's time has passed"
    door.pass_ms(1)
    assert door.said == [PauseAccepting(), ResumeAccepting()]
    failure(door)
    assert door.said[2:] == [PauseAccepting()], "one is allowed, and has been used"


def test_silence_is_a_failure() -> None:
    door = Door()
    for _ in range(3):  # small_config lets three wait
        door.connect()
    door.pass_ms(5_001)
    assert len(door.closed) == 3
    garbage(door)
    assert door.said == [PauseAccepting()]


def test_failures_of_those_who_were_accepted_before_are_owed_for() -> None:
    door = Door()
    for _ in range(RATE + 2):
        garbage(door)
    door.pass_ms(3 * 1000 // RATE - 1)
    assert door.said == [PauseAccepting()]
    door.pass_ms(1)
    assert door.said == [PauseAccepting(), ResumeAccepting()]


def test_rest_is_kept_for_one_second_alone() -> None:
    door = Door()
    door.pass_ms(60_000)
    for _ in range(RATE):
        garbage(door)
    assert door.said == [PauseAccepting()]


def test_logins_and_their_ends_cost_nothing() -> None:
    door = Door()
    for number in range(10 * RATE):
        connection = door.login(f"client-{number}")
        door.close(connection)
    door.login("lab")
    door.login("lab")  # taken over
    assert door.said == []


def test_being_sent_elsewhere_is_no_failure() -> None:
    door = Door()
    door.feed(Received(COORDINATOR_PEER, MoveClients(["127.0.0.1:7401"], 1)))
    for number in range(2 * RATE):
        connection = door.connect()
        door.say(connection, hello(f"client-{number}"))
        assert door.bye(connection).code == "shutdown"
        door.close(connection)
    assert door.said == []


def test_connections_beyond_the_most_are_failures() -> None:
    door = Door()
    for number in range(6):
        door.login(f"client-{number}")
    for _ in range(RATE):
        assert door.said == []
        assert door.bye(door.connect()) == frames.Bye("too_many", "6 connections are open")
    assert door.said == [PauseAccepting()]


def test_those_who_are_served_go_on_meanwhile() -> None:
    door = Door()
    connection = door.login()
    for _ in range(2 * RATE):
        garbage(door)
    door.subscribe(connection, 1)
    assert connection not in door.closed
    assert door.said == [PauseAccepting()]
