"""The machines as a finite graph: the same state reached twice is one state, and every step is taken once.

A machine is a function of its state and an event. Here each state that was met has a number, found by its content
(`frozen`), and the outcome of each event in it is remembered. So a search over the whole cluster handles numbers, and
a real machine works only where something new happens: a copy of it (`twin`) takes the event.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from copy import copy as shallow
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

import msgspec
import numpy as np

from cluster.codec import decode_message, encode_message
from cluster.coordinator import Coordinator
from cluster.matching import Scan
from cluster.messages import Broadcast, Event, Instruction, Message, Received, Send, SubscriptionChange
from cluster.role import Role
from cluster.table import Table
from cluster.view import View

LIVE = 3000
"""Machines kept as they are; others are made again from their history when needed."""

CONSTANT = frozenset({"targets", "sources", "_rooms"})
"""Attributes that never change once they are set, and follow from the others; or hold nothing between two events."""

IRRELEVANT = frozenset(
    {
        *("counters", "_config", "_limits", "_flow", "_timing", "_filters", "_settings", "form_bytes"),
        *(
            "recent",
            "on_drop",
            "asked",
            "asked_us",
            "answered",
            "books",
            "busiest",
            "ledger",
            "settings",
            "metrics_address",
        ),
    }
)
"""Attributes on which nothing depends that a client or another machine sees: what was counted, settings, and what is
remembered for an operator who asks."""

ATOMS = (type(None), bool, int, float, str, bytes, Enum, View, FunctionType, type, np.dtype)


class Groups(dict[int, dict[int, SubscriptionChange]]):
    """A table's key groups, of which few hold something; iterates as the list that it stands for."""

    def __missing__(self, group: int) -> dict[int, SubscriptionChange]:
        self[group] = {}
        return self[group]

    def __iter__(self) -> Iterator[dict[int, SubscriptionChange]]:  # type: ignore[override]
        return iter([self[group] for group in sorted(self.keys())])


class SmallTable(Table):
    """A table that is cheap to copy."""

    def __init__(self) -> None:
        super().__init__()
        self._groups = Groups()  # type: ignore[assignment]


def _attributes(machine: object) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, by name."""
    yield from getattr(machine, "__dict__", {}).items()
    for kind in type(machine).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(machine, name):
                yield name, getattr(machine, name)


def twin(thing: Any, known: dict[int, Any]) -> Any:
    """Return a copy that shares nothing that can change; what was shared within is shared within the copy."""
    if isinstance(thing, ATOMS):
        return thing
    kind = type(thing)
    if isinstance(thing, msgspec.Struct) and kind.__struct_config__.frozen:
        return thing
    if id(thing) in known:
        return known[id(thing)]
    if isinstance(thing, tuple):
        parts = [twin(part, known) for part in thing]
        return kind._make(parts) if hasattr(kind, "_make") else tuple(parts)
    if isinstance(thing, MethodType):
        return MethodType(thing.__func__, twin(thing.__self__, known))
    if isinstance(thing, frozenset):
        return thing
    copy: Any
    if isinstance(thing, Groups):
        copy = known[id(thing)] = Groups()
        copy.update((group, dict(thing[group])) for group in list(thing.keys()) if thing[group])
        return copy
    if isinstance(thing, dict):
        copy = defaultdict(thing.default_factory) if isinstance(thing, defaultdict) else kind()
        known[id(thing)] = copy
        for key, value in thing.items():
            copy[twin(key, known)] = twin(value, known)
        return copy
    if isinstance(thing, list | deque):
        copy = known[id(thing)] = kind()
        copy.extend(twin(part, known) for part in thing)
        return copy
    if isinstance(thing, set | bytearray):
        return kind(thing)
    if isinstance(thing, np.ndarray):
        return thing.copy()
    if isinstance(thing, msgspec.Struct):
        copy = known[id(thing)] = shallow(thing)
        for name in kind.__struct_fields__:
            setattr(copy, name, twin(getattr(thing, name), known))
        return copy
    copy = known[id(thing)] = kind.__new__(kind)
    for name, value in _attributes(thing):
        object.__setattr__(copy, name, value if name in CONSTANT else twin(value, known))
    return copy


class Frozen:
    """Turns what a machine holds into something that equals another one's exactly if the machines do."""

    def __init__(self, intern: Callable[[object], int]) -> None:
        self._intern = intern
        self._views: dict[int, tuple[View, int]] = {}

    def of(self, thing: Any, met: dict[int, int]) -> Any:
        """Return the content. Two references to one object differ from references to two that are alike."""
        if isinstance(thing, View):
            view = self._views.get(id(thing))
            if view is None:
                number = self._intern(("view", thing.epoch, thing.owners, thing.members))
                view = self._views[id(thing)] = thing, number
            return "view", view[1]
        if isinstance(thing, Message):
            return "message", self._intern(encode_message(thing))
        if isinstance(thing, ATOMS):
            return thing
        if isinstance(thing, tuple):
            return tuple([self.of(part, met) for part in thing])
        if isinstance(thing, set | frozenset):
            return ("set", *sorted(thing))
        if isinstance(thing, bytearray | np.ndarray):
            return bytes(thing)
        if isinstance(thing, MethodType):
            return thing.__func__.__qualname__
        if id(thing) in met:
            return "again", met[id(thing)]
        met[id(thing)] = len(met)
        if isinstance(thing, Scan):
            return ("index", *sorted(thing._subscriptions))
        if isinstance(thing, Groups):
            return tuple([(group, *thing[group].items()) for group in sorted(thing.keys()) if thing[group]])
        if isinstance(thing, dict):
            return tuple([(self.of(key, met), self.of(value, met)) for key, value in thing.items()])
        if isinstance(thing, list | deque):
            return tuple([self.of(part, met) for part in thing])
        if isinstance(thing, msgspec.Struct):
            fields = [self.of(getattr(thing, name), met) for name in type(thing).__struct_fields__]
            return (type(thing).__name__, *fields)
        parts = [
            (name, self.of(value, met))
            for name, value in _attributes(thing)
            if name not in IRRELEVANT and name not in CONSTANT
        ]
        return (type(thing).__name__, *parts)


Machine = Role | Coordinator


class Pool:
    """All states of all machines that were met, by number, and what each event leads to.

    things: what has a number, by number; equal things have one number.
    """

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._frozen = Frozen(self.intern)
        self._messages: dict[int, Message] = {}  # by the number of its bytes: the one object that stands for it
        self._message_numbers: dict[int, int] = {}  # by id of that object
        self._local_numbers: dict[Any, int] = {}
        self._origins: list[tuple[Callable[[], Machine] | int, Event | None]] = []
        self._live: OrderedDict[int, Machine] = OrderedDict()
        self._steps: dict[tuple[int, Any], tuple[int, list[Instruction]]] = {}

    def intern(self, thing: Any) -> int:
        """Return the number of a thing that can be hashed."""
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self.things)
            self.things.append(thing)
        return number

    def message_number(self, message: Message) -> int:
        """Return the number of a message that came out of `step`, or was brought in by `canonical`."""
        return self._message_numbers[id(message)]

    def message(self, number: int) -> Message:
        """Return the message of a number."""
        return self._messages[number]

    def canonical(self, message: Message) -> Message:
        """Return the one object that stands for all messages with these bytes; it has been through its encoding."""
        body = encode_message(message)
        number = self.intern(body)
        known = self._messages.get(number)
        if known is None:
            known = self._messages[number] = decode_message(body)
            assert known == message, f"{message} changes in its encoding"
            self._message_numbers[id(known)] = number
        return known

    @property
    def locals(self) -> int:
        """How many states of single machines were met."""
        return len(self._origins)

    def root(self, key: Any, make: Callable[[], Machine]) -> int:
        """Return the state of a machine that was just made; key tells what its maker was given."""
        place = ("root", key)
        number = self._local_numbers.get(place)
        if number is None:
            number = self._local_numbers[place] = self._add(make, None, make())
        return number

    def _add(self, origin: Callable[[], Machine] | int, event: Event | None, machine: Machine) -> int:
        number = len(self._origins)
        self._origins.append((origin, event))
        self._keep(number, machine)
        return number

    def _keep(self, number: int, machine: Machine) -> None:
        self._live[number] = machine
        if len(self._live) > LIVE:
            self._live.popitem(last=False)

    def machine(self, number: int) -> Machine:
        """Return the machine in a state; it is to be looked at only."""
        machine = self._live.get(number)
        if machine is not None:
            self._live.move_to_end(number)
            return machine
        origin, event = self._origins[number]
        if isinstance(origin, int):
            machine = twin(self.machine(origin), {})
            _take(machine, event)
        else:
            machine = origin()
        self._keep(number, machine)
        return machine

    def step(self, number: int, event: Event | None) -> tuple[int, list[Instruction]]:
        """Return the state that an event (None: the coordinator's start) leads to, and what is asked for."""
        key: Any
        if isinstance(event, Received):
            key = number, event.peer, self._message_numbers[id(event.message)]
        else:
            key = number, type(event).__name__, event
        known = self._steps.get(key)
        if known is None:
            machine = twin(self.machine(number), {})
            instructions = [self._through_encoding(one) for one in _take(machine, event)]
            content = self._frozen.of(machine, {})
            after = self._local_numbers.get(content)
            if after is None:
                after = self._local_numbers[content] = self._add(number, event, machine)
            known = self._steps[key] = after, instructions
        return known

    def _through_encoding(self, instruction: Instruction) -> Instruction:
        if isinstance(instruction, Send | Broadcast):
            return instruction._replace(message=self.canonical(instruction.message))
        return instruction


def _take(machine: Machine, event: Event | None) -> list[Instruction]:
    if event is None:
        assert isinstance(machine, Coordinator), "a role starts by itself"
        return machine.start()
    return machine.handle(event)
