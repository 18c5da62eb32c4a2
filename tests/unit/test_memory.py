"""What the coordinator writes down comes back as it was."""

from __future__ import annotations

import msgspec
import pytest

from cluster.memory import (
    Memory,
    Operation,
    Step,
    decode_memory,
    decode_operation,
    encode_memory,
    encode_operation,
)
from cluster.messages import MATCHER
from cluster.view import view_of
from cluster.wish import slots_of
from tests.unit.views import member, view


def test_a_memory_comes_back_with_its_view() -> None:
    one = view(7, matchers=(0, 3), access_points=(1, 2))
    memory = Memory(9, one.install(), slots_of(one), "all_at_once", 4, 33, [member(MATCHER, 5, 21)])
    again = decode_memory(encode_memory(memory))
    assert again == memory
    assert again.view is not None
    assert view_of(again.view) == one


def test_the_first_memory_knows_nothing() -> None:
    assert decode_memory(encode_memory(Memory())) == Memory()
    assert Memory().view is None
    first, second = Memory(), Memory()
    first.wanted[MATCHER] = [1]
    first.leaving.append(member(MATCHER, 1))
    assert second == Memory(), "no two share what they hold"


def test_an_operation_comes_back_with_its_steps_and_is_readable_json() -> None:
    step = Step(3, 64, 1000, 50_000, {"prepare": 2, "copy": 40}, "committed")
    operation = Operation(2, {MATCHER: [0, 1]}, "waves", 2048, 12_345, "aborted", "exit_point 0 lost", steps=[step])
    data = encode_operation(operation)
    assert decode_operation(data) == operation
    document = msgspec.json.decode(data)
    assert document["state"] == "aborted"
    assert document["steps"][0]["phases_ms"] == {"prepare": 2, "copy": 40}


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x93\x01", b'{"number":"x"}'])
def test_what_is_damaged_is_refused(damaged: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_memory(damaged)
    with pytest.raises(msgspec.DecodeError):
        decode_operation(damaged)
