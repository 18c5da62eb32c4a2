"""A coordinator whose roles are played by hand: what the tests of that machine have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from cluster.config import Config, Layers, Transitions
from cluster.coordinating.records import State
from cluster.coordinator import Coordinator
from cluster.memory import Memory, Operation, decode_memory, decode_operation
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    MATCHER,
    OPERATOR,
    Abort,
    Answer,
    Begin,
    Commit,
    Died,
    Emptied,
    Ended,
    Event,
    Heartbeat,
    Install,
    Installed,
    Instruction,
    Join,
    Kill,
    Left,
    Message,
    MoveClients,
    Peer,
    Persist,
    Prepare,
    Prepared,
    Ready,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Request,
    Retire,
    Send,
    Settled,
    Spawn,
    Stop,
    Tick,
)

START_MS = 1_000
ENTRIES, BYTES = 3, 100
"""What each role says to have copied."""


def layers(matchers: int = 1, **others: int) -> Config:
    """Return a configuration; counts of layers that are not named are 1."""
    return Config(name="test", layers=Layers(matchers=matchers, **others), transitions=Transitions(wave_groups=1024))


class Control:
    """The machine, and the roles that it has had started: incarnations by peer.

    pending: what the roles have been asked for and have not answered, oldest first; silent: who answers nothing.
    said:    all instructions since the last call of `take`.
    """

    def __init__(self, config: Config, memory: Memory | None = None, history: list[Operation] | None = None) -> None:
        self.config = config
        self.machine = Coordinator(config, memory, history or [])
        self.running: dict[Peer, int] = {}
        self.pending: list[Send | Spawn] = []
        self.silent: set[Peer] = set()
        self.said: list[Instruction] = []
        self.now_ms = START_MS
        self._memory: bytes | None = None
        self._entries: dict[int, bytes] = {}
        self._sort(self.machine.start())
        self.feed(Tick(self.now_ms))

    def feed(self, event: Event) -> list[Instruction]:
        """Hand over an event; return what comes out."""
        out = self.machine.handle(event)
        self._sort(out)
        return out

    def _sort(self, out: list[Instruction]) -> None:
        self.said += out
        for instruction in out:
            match instruction:
                case Spawn(peer, incarnation):
                    assert peer not in self.running, f"{peer} is started twice"
                    self.running[peer] = incarnation
                    self.pending.append(instruction)
                case Stop(peer, incarnation) | Kill(peer, incarnation):
                    if self.running.get(peer) == incarnation:
                        del self.running[peer]
                        self.pending = [one for one in self.pending if one.peer != peer]
                case Persist(memory, entry):
                    self._memory = memory
                    if entry is not None:
                        self._entries[entry[0]] = entry[1]
                case Send(peer) if peer.layer != OPERATOR:
                    assert peer in self.running, f"{peer} is told something and does not run"
                    self.pending.append(instruction)

    def take(self) -> list[Instruction]:
        """Return all that was said since the last call."""
        said, self.said = self.said, []
        return said

    def sent(self, kind: type[Message]) -> list[Peer]:
        """Return who was sent this kind of message since the last `take`."""
        return [one.peer for one in self.said if isinstance(one, Send) and isinstance(one.message, kind)]

    def say(self, peer: Peer, message: Message) -> list[Instruction]:
        """A role says something."""
        return self.feed(Received(peer, message))

    def join(self, peer: Peer) -> list[Instruction]:
        """A role that was started joins."""
        address = f"door {peer.slot}" if peer.layer == CONNECTION_POINT else ""
        return self.say(peer, Join(self.running[peer], "host", 4000 + peer.slot, address, 99))

    def die(self, peer: Peer) -> list[Instruction]:
        """The process of a role is no more, and the coordinator is told."""
        return self.feed(Died(peer, self.running[peer], "killed"))

    def answer(self) -> bool:
        """Let everyone who is not silent answer what was asked of it so far; tell whether anybody did."""
        asked, self.pending = self.pending, []
        moved = False
        for one in asked:
            if one.peer in self.silent:
                self.pending.append(one)
                continue
            moved = True
            if isinstance(one, Spawn):
                self.join(one.peer)
                continue
            for message in self._answers(one.peer, one.message):
                if one.peer in self.running:
                    self.say(one.peer, message)
        return moved

    def _answers(self, peer: Peer, message: Message) -> list[Message]:
        transition = self.machine._shared.transition
        match message:
            case Install(epoch) | Recover(epoch):
                return [Installed(epoch)]
            case Rebuild(epoch):
                return [Rebuilt(epoch)]
            case Prepare(epoch):
                return [Prepared(epoch)]
            case Begin(epoch):
                if peer.layer == ACCESS_POINT:
                    # Its Mark goes to the matchers; when the last access point has marked, they get ready.
                    assert transition is not None, "Begin without a transition"
                    if not any(isinstance(one, Send) and isinstance(one.message, Begin) for one in self.pending):
                        for matcher in [one for one in transition.peers if one.layer == MATCHER]:
                            if matcher not in self.silent:
                                self.say(matcher, Ready(epoch, ENTRIES, BYTES))
                    return []
                return [Ready(epoch, 0, 0)]
            case Commit(epoch):
                return [Ended(epoch)]
            case Retire(epoch):
                view = self.machine._shared.view
                assert view is not None, "Retire without a view"
                gone = view.member(peer) is None
                return [Settled(epoch), Left()] if gone else [Settled(epoch)]
            case Abort(epoch):
                return [Settled(epoch)]
            case MoveClients(_, number):
                return [Emptied(number)]
            case _:
                return []

    def settle(self) -> None:
        """Let all answer, and time pass, until nothing more happens; the silent stay so."""
        for _ in range(1000):
            if not self.answer():
                count = len(self.said)
                self.pass_ms(50)
                if len(self.said) == count and not self._due():
                    return
        raise AssertionError("it does not come to rest")

    def _due(self) -> bool:
        return any(one.peer not in self.silent for one in self.pending)

    def pass_ms(self, milliseconds: int, *, beating: bool = True) -> None:
        """Let time pass in steps of 50 ms; roles that have joined send heartbeats, unless they are silent."""
        for _ in range(0, milliseconds, 50):
            self.now_ms += 50
            if beating:
                for peer in [one for one in self.running if one not in self.silent]:
                    self.machine.handle(Received(peer, Heartbeat({})))
            self.feed(Tick(self.now_ms))

    def serve(self) -> Control:
        """Bring the cluster up."""
        self.settle()
        assert self.machine.state is State.SERVING
        self.take()
        return self

    def ask(self, command: str, **arguments: Any) -> Any:
        """Ask as an operator; return the document. Raises AssertionError with the refusal."""
        answer = self.raw(command, msgspec.json.encode(arguments))
        assert not answer.error, answer.error
        return msgspec.json.decode(answer.document)

    def refused(self, command: str, **arguments: Any) -> str:
        """Ask for what cannot be; return why not."""
        answer = self.raw(command, msgspec.json.encode(arguments))
        assert answer.document == b""
        return answer.error

    def raw(self, command: str, arguments: bytes) -> Answer:
        """Ask with any bytes."""
        operator = Peer(OPERATOR, 0)
        out = self.feed(Received(operator, Request(command, arguments)))
        (answer,) = [one.message for one in out if isinstance(one, Send) and one.peer == operator]
        assert isinstance(answer, Answer)
        return answer

    def operation(self) -> Any:
        """Return the newest operation of the history."""
        return self.ask("transitions")["operations"][-1]

    def slots(self, layer: str = MATCHER) -> list[int]:
        """Return the slots of the view in force."""
        assert self.machine._shared.view is not None, "no view"
        return list(self.machine._shared.view.slots(layer))

    def restart(self, *, cold: bool = False) -> Control:
        """The coordinator's process dies; return one with a new life of it, and the same roles, which have to join.

        cold: the roles have died as well.
        """
        assert self._memory is not None, "nothing is on disk"
        history = [decode_operation(self._entries[number]) for number in sorted(self._entries)]
        again = Control.__new__(Control)
        again.config = self.config
        again.machine = Coordinator(self.config, decode_memory(self._memory), history, cold=cold)
        again.running = {} if cold else dict(self.running)
        again.pending = []
        again.silent = set()
        again.said = []
        again.now_ms = self.now_ms
        again._memory = self._memory
        again._entries = dict(self._entries)
        again._sort(again.machine.start())
        return again

    def rejoin(self) -> None:
        """All roles come again."""
        for peer in sorted(self.running):
            if peer in self.running:
                self.join(peer)
