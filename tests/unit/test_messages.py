"""The package of messages is whole: what a part defines is offered, and can be decoded, told or asked for."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from types import ModuleType
from typing import Any

from cluster import messages
from cluster.messages import Message, events, instructions

PARTS = [importlib.import_module(f"cluster.messages.{part.name}") for part in pkgutil.iter_modules(messages.__path__)]


def defined(part: ModuleType) -> list[Any]:
    """Return the classes and functions that a part defines, those of its own use left out."""
    found = [one for name, one in vars(part).items() if not name.startswith("_")]
    return [one for one in found if getattr(one, "__module__", "") == part.__name__ and hasattr(one, "__name__")]


def test_all_that_the_parts_define_is_had_from_the_package() -> None:
    assert len(PARTS) > 10
    for part in PARTS:
        for one in defined(part):
            assert one.__name__ in messages.__all__, f"{part.__name__}.{one.__name__} is not offered"
            assert getattr(messages, one.__name__) is one, f"two are called {one.__name__}"


def test_every_message_can_be_decoded() -> None:
    known = {one for part in PARTS for one in defined(part) if isinstance(one, type) and issubclass(one, Message)}
    assert set(typing.get_args(messages.AnyMessage)) == known - {Message}


def test_every_event_and_instruction_is_in_its_union() -> None:
    assert set(typing.get_args(messages.Event)) == set(defined(events))
    assert set(typing.get_args(messages.Instruction)) == set(defined(instructions))
