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
    Received,
    RestAccepting,
)
from tests.unit.edge import Edge, hello, small_config

RATE = 4
REST = RestAccepting(250)


class Door(Edge):
    """A connection point that allows RATE failures a second; `said` is what it has asked of the port."""

    def __init__(self) -> None:
        config = small_config()
        limits = msgspec.structs.replace(config.client_limits, failures_per_second=RATE)
        self.said: list[Instruction] = []
        super().__init__(msgspec.structs.replace(config, client_limits=limits))

    def feed(self, event: Event) -> list[Instruction]:
        out = super().feed(event)
        self.said += [one for one in out if isinstance(one, RestAccepting)]
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
def test_each_failure_beyond_the_limit_costs_a_rest(failure: Callable[[Door], None]) -> None:
    door = Door()
    for _ in range(RATE):
        assert door.said == []
        failure(door)
    for number in range(1, 4):
        failure(door)
        assert door.said == [REST] * number
    door.pass_ms(999)
    failure(door)
    assert door.said == [REST] * 4
    door.pass_ms(1000)
    for _ in range(RATE):
        failure(door)
    assert door.said == [REST] * 4, "a second without any has passed"
    failure(door)
    assert door.said == [REST] * 5


def test_silence_is_a_failure() -> None:
    door = Door()
    for _ in range(3):  # small_config lets three wait
        door.connect()
    door.pass_ms(5_001)
    assert len(door.closed) == 3
    garbage(door)
    assert door.said == []
    garbage(door)
    assert door.said == [REST]


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
    door.connect()
    assert door.said == [REST]


def test_those_who_are_served_go_on_meanwhile() -> None:
    door = Door()
    connection = door.login()
    for _ in range(2 * RATE):
        garbage(door)
    door.subscribe(connection, 1)
    assert connection not in door.closed
    assert door.said == [REST] * RATE
