"""A client for the simulator: frames in, frames out, by the client's half of `cluster/frames.py` and nothing else.

It is not the SDK, on purpose: it is smaller, does at once whatever the plan says, and writes down what it saw and when.
Facts go into `Publication`, `Session` and `State`; `checker.py` reads them.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster import frames
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.config import Config
from tests.sim.plan import BROKEN_POLICIES

NEVER = -1
HARMLESS = frames.RECONNECT_CODES | {"taken_over"}
"""What a client that keeps to the protocol may be told at the end."""


LOSES_BY = {
    "latest_per_key": ("latest_per_key",),
    "drop_oldest": ("latest_per_key", "drop_oldest"),
    "drop_newest": ("latest_per_key", "drop_oldest", "drop_newest"),
}
"""The policies that may lose a notification by each reason; the weaker ones where a stricter one matches as well."""
LOSSY = LOSES_BY["drop_newest"]


class Violation(AssertionError):
    """The cluster broke a promise."""


def require(holds: bool, what: str) -> None:
    """Raise Violation with the text unless the promise holds."""
    if not holds:
        raise Violation(what)


@dataclass(eq=False)
class Publication:
    """What one publisher sent under one number, and what became of it. Stamps, or NEVER.

    attributes: None for a malformed one. session: of its only transmission; None once it was sent again.
    valid_for_ms, sent_ms, acknowledged_ms: how long it is valid, first transmission and acknowledgement on the clock.
    withdrawal, withdrawn: when it was unpublished, and when that was done.
    truth: the oracle's word, by filter.
    stored: each transmission asked for the acknowledgement `stored`.
    """

    number: int
    publisher: Client
    sequence: int
    packed: bytes
    attributes: dict[str, Any] | None
    sent: int = NEVER
    transmissions: int = 0
    session: Session | None = None
    acknowledged: int = NEVER
    rejected: bool = False
    valid_for_ms: int = 0
    sent_ms: int = 0
    acknowledged_ms: int = 0
    withdrawal: int = NEVER
    withdrawn: int = NEVER
    truth: dict[str, bool] = field(default_factory=dict)
    stored: bool = False


@dataclass
class State:
    """What a subscription is from one request on. filter: None for closed. done: when its Done came."""

    filter: str | None
    sent: int
    done: int = NEVER


@dataclass
class Served:
    """What a subscription that asked for what is valid got of it. Stamps, or NEVER; got: by publication number.

    opened: its first state. over: all has come. sent_ms, over_ms: on the clock.
    """

    opened: State
    sent_ms: int
    over: int = NEVER
    over_ms: int = 0
    got: dict[int, Publication] = field(default_factory=dict)
    last: dict[Client, int] = field(default_factory=dict)


@dataclass
class Received:
    """A notification as it came."""

    stamp: int
    publication: Publication
    numbers: tuple[int, ...]


@dataclass(eq=False)
class Session:
    """A login, from Welcome to the end of its connection as the client sees it.

    histories: by subscription number, its states in the order of the requests, the first one "not yet opened".
    rebound:   its traffic has changed its access point, so that the order of its requests is not fixed throughout.
    served:    by subscription number, of those that asked for what is valid.
    policies:  by subscription number. dropped_for: notifications told as dropped, by reason; drops: by subscription
               and reason.
    again:     what came though the client had it, of an earlier session, and was left out as the SDK does.
    """

    client: Client
    connection_point: int
    number: int
    histories: dict[int, list[State]] = field(default_factory=dict)
    policies: dict[int, str] = field(default_factory=dict)
    received: dict[int, Received] = field(default_factory=dict)
    again: list[Received] = field(default_factory=list)
    dropped_for: dict[str, int] = field(default_factory=dict)
    drops: dict[tuple[int, str], int] = field(default_factory=dict)
    ended: int = NEVER
    rebound: bool = False
    served: dict[int, Served] = field(default_factory=dict)

    @property
    def dropped(self) -> int:
        """Notifications told as dropped."""
        return sum(self.dropped_for.values())

    def name(self) -> str:
        """For traces."""
        return f"{self.client.name}@{self.connection_point}/{self.number & 0xFFF}"


class Client:
    """One client over its connections. `write` puts bytes on the present wire, `stamp` notes a line and numbers it."""

    def __init__(
        self,
        name: str,
        client_id: str,
        instance: int,
        receive_window: int,
        config: Config,
        rng: random.Random,
        note: Callable[[str], int],
    ) -> None:
        self.name = name
        self.client_id = client_id
        self.instance = instance
        self.receive_window = receive_window
        self._config = config
        self._rng = rng
        self._note = note
        self.write: Callable[[bytes], None] | None = None
        self.state = "off"  # off, greeting, open, leaving, ended
        self.eager = True
        self.asked_to_move = False
        self.connection_point = 0
        self.session: Session | None = None
        self.sessions: list[Session] = []
        self.byes: list[str] = []
        self.publications: list[Publication] = []  # by sequence - 1
        self._levels: tuple[int, ...] = (frames.ACKNOWLEDGE_NONE, frames.ACKNOWLEDGE_MATCHED)
        if config.output.path is not None:
            self._levels = (*self._levels, frames.ACKNOWLEDGE_STORED)
        self.acknowledged = 0
        self.desired: dict[int, tuple[str, str]] = {}  # number -> filter, policy
        self.wants_valid: set[int] = set()  # numbers
        self._withdrawals: dict[int, list[Publication]] = {}  # by request
        self._next_number = 0
        self._next_request = 0
        self._requests: dict[int, tuple[str, int, State | None]] = {}  # request -> expected answer, number, state
        self._sent_upto = 0  # sequences written on this connection
        self._in_flight: deque[Publication] = deque()
        self._window = 0
        self._window_bytes = 0
        self._arrived = 0
        self._consumed = 0
        self._reader = FrameReader(1 << 26)
        self.seen: set[int] = set()  # ids of all sessions
        self.doubles = 0  # notifications that came again after a death, and were left out
        self._upto: dict[Client, int] = {}  # publisher -> last sequence, of all sessions
        self._last: dict[Client, int] = {}  # publisher -> last sequence, of this session

    # Connections -------------------------------------------------------------------------------------------------

    def connect(self, connection_point: int, write: Callable[[bytes], None]) -> None:
        """A wire stands."""
        assert self.state == "off", self.state
        self.state = "greeting"
        self.asked_to_move = False
        self.connection_point = connection_point
        self.write = write
        self._reader = FrameReader(1 << 26)
        write(encode_frame(frames.Hello(frames.VERSION, self.client_id, self.instance, self.receive_window)))

    def lost(self) -> None:
        """The wire is gone, whoever cut it."""
        if self.session is not None:
            self.session.ended = self._note(f"{self.session.name()} ends")
            self.session = None
        self.write = None
        self._requests.clear()
        self._withdrawals.clear()
        self._in_flight.clear()
        if self.state != "ended":
            self.state = "off"

    @property
    def idle(self) -> bool:
        """Nothing is owed to the cluster or by it."""
        return (
            self.state == "open"
            and self.acknowledged == len(self.publications)
            and not self._requests
            and not self._withdrawals
            and self._all_served()
            and self._consumed == self._arrived
        )

    def _all_served(self) -> bool:
        served = self.session.served if self.session is not None else {}
        return all(one.over != NEVER for number, one in served.items() if number in self.desired)

    @property
    def unacknowledged(self) -> int:
        """Publications that were written somewhere and are not acknowledged."""
        return sum(one.sent != NEVER for one in self.publications[self.acknowledged :])

    def _send(self, frame: frames.Frame) -> None:
        assert self.write is not None, "no wire"
        self.write(encode_frame(frame))

    # What the plan asks for --------------------------------------------------------------------------------------

    def publish(self, publications: list[Publication]) -> None:
        """Take new publications; they are sent as credit allows."""
        self.publications += publications
        self.pump()

    def pump(self) -> None:
        """Write what the credit allows, in frames of random sizes."""
        while self.state == "open" and self._sent_upto < len(self.publications):
            room = self._window - (self._sent_upto - self.acknowledged)
            used = sum(len(one.packed) for one in self._in_flight)
            chosen: list[Publication] = []
            size = 0
            wanted = self._rng.randint(1, 8)
            for one in self.publications[self._sent_upto : self._sent_upto + min(room, wanted)]:
                fits = used + size + len(one.packed) <= self._window_bytes
                if not fits and (self._in_flight or chosen):
                    break
                if chosen and one.valid_for_ms != chosen[0].valid_for_ms:
                    break
                chosen.append(one)
                size += len(one.packed)
            if not chosen:
                return
            stamp = self._note(f"{self.name} publishes {chosen[0].sequence}..{chosen[-1].sequence}")
            for one in chosen:
                one.transmissions += 1
                if one.sent == NEVER:
                    one.sent = stamp
                    one.sent_ms = self.clock()
                one.session = self.session if one.transmissions == 1 else None
            self._in_flight.extend(chosen)
            self._sent_upto = chosen[-1].sequence
            lengths = struct.pack(f"<{len(chosen)}I", *(len(one.packed) for one in chosen))
            level = self._rng.choice(self._levels)
            for one in chosen:
                one.stored = level == frames.ACKNOWLEDGE_STORED and (one.stored or one.transmissions == 1)
            payload = b"".join(one.packed for one in chosen)
            self._send(frames.Publish(chosen[0].sequence, level, lengths, payload, chosen[0].valid_for_ms))

    def unpublish(self, instance: int | None, sequence: int, publications: list[Publication]) -> None:
        """Say that what came under this number is valid no more; publications: those that it is about."""
        request = self._next_request
        self._next_request += 1
        stamp = self._note(f"{self.name} unpublishes {sequence} = {[f'#{one.number}' for one in publications]}")
        for one in publications:
            if one.withdrawal == NEVER:
                one.withdrawal = stamp
        self._withdrawals[request] = publications
        self._send(frames.Unpublish(request, instance, sequence))

    def subscribe(self, text: str, policy: str, *, broken: bool, valid: bool = False) -> None:
        """Open a subscription under a number never used before. valid: with what is valid."""
        number = self._next_number
        self._next_number += 1
        if valid and not broken:
            self.wants_valid.add(number)
        self._subscribe(number, text, policy, broken=broken, new=True)

    def update(self, number: int, text: str, *, broken: bool) -> None:
        """Replace the filter of an open one; its policy stays."""
        self._subscribe(number, text, self.desired[number][1], broken=broken)

    def _subscribe(self, number: int, text: str, policy: str, *, broken: bool, new: bool = False) -> None:
        assert self.session is not None, "not open"
        request = self._next_request
        self._next_request += 1
        full = number not in self.desired and len(self.desired) >= self._config.client_limits.subscriptions
        stamp = self._note(f"{self.name} subscribes {number} {policy} {text!r}{' (to be refused)' * (full or broken)}")
        state = None
        if full or broken:
            fault = "policy" if policy in BROKEN_POLICIES else "filter"
            self._requests[request] = ("too_many" if full else fault, number, None)
        else:
            self.desired[number] = (text, policy)
            state = self._state(number, text, stamp)
            self.session.policies[number] = policy
            self._requests[request] = ("done", number, state)
            if new and number in self.wants_valid:
                self.session.served[number] = Served(state, self.clock())
        initial = frames.INITIAL_VALID if new and number in self.wants_valid else frames.INITIAL_NONE
        self._send(frames.Subscribe(request, number, text, policy, initial))

    def _state(self, number: int, text: str | None, stamp: int) -> State:
        assert self.session is not None, "not open"
        state = State(text, stamp)
        self.session.histories.setdefault(number, [State(None, NEVER, NEVER)]).append(state)
        return state

    def unsubscribe(self, number: int) -> None:
        """Close a subscription."""
        request = self._next_request
        self._next_request += 1
        stamp = self._note(f"{self.name} unsubscribes {number}")
        state = self._state(number, None, stamp) if self.desired.pop(number, None) is not None else None
        self._requests[request] = ("done", number, state)
        self._send(frames.Unsubscribe(request, number))

    def say_moved(self) -> None:
        """Pretend to hold everything elsewhere as well, and wait to be let go."""
        self._note(f"{self.name} says that it has moved")
        self._send(frames.Moved())
        self.asked_to_move = False

    def leave(self) -> None:
        """Say Goodbye; the connection point closes."""
        self._note(f"{self.name} says goodbye")
        self._send(frames.Goodbye())
        self.state = "leaving"

    def consume(self, count: int | None = None) -> None:
        """Report notifications as consumed, all that came if no count is given."""
        upto = self._arrived if count is None else min(self._arrived, self._consumed + count)
        if self.state == "open" and upto > self._consumed:
            self._consumed = upto
            self._send(frames.Consumed(upto))

    # What the cluster says ---------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes from the wire."""
        for body in self._reader.feed(data):
            if self.state in ("off", "ended"):
                return
            self._frame(decode_server_frame(body))

    def _frame(self, frame: frames.ServerFrame) -> None:
        match frame:
            case frames.Bye(code, reason):
                self._note(f"{self.name} is told Bye {code}: {reason}")
                self.byes.append(code)
                require(code in HARMLESS, f"{self.name}: Bye {code}: {reason}")
                if reason.startswith("policy disconnect"):
                    policies = self.session.policies if self.session is not None else {}
                    require("disconnect" in policies.values(), f"{self.name}: {reason}, its policies are {policies}")
                self.state = "leaving"
            case frames.Welcome():
                self._welcome(frame)
            case frames.Notify():
                self._notify(frame)
            case frames.NotifyValid():
                self._notify_valid(frame)
            case frames.Acknowledged():
                self._acknowledge(frame)
            case frames.Done(request):
                self._answered(request, "done")
            case frames.Refused(request, code):
                self._answered(request, code)
            case frames.Dropped():
                self._dropped(frame.reason, frame.notifications, frame.counts)
            case frames.Move(addresses):
                self._note(f"{self.name} is asked to move to {addresses}")
                self.asked_to_move = True
            case frames.Ping():
                if self.state == "open":
                    self._send(frames.Pong())

    def _welcome(self, frame: frames.Welcome) -> None:
        require(self.state == "greeting", f"{self.name}: a second Welcome")
        self.state = "open"
        self.session = Session(self, self.connection_point, frame.session)
        self.sessions.append(self.session)
        self._note(f"{self.session.name()} begins")
        self._window, self._window_bytes = frame.publish_window, frame.publish_window_bytes
        self._sent_upto = self.acknowledged
        self._arrived = self._consumed = 0
        self._last.clear()
        for number, (text, policy) in list(self.desired.items()):
            self._subscribe(number, text, policy, broken=False, new=True)
        self.pump()

    def _acknowledge(self, frame: frames.Acknowledged) -> None:
        upto = frame.upto
        require(
            self.acknowledged <= upto <= self._sent_upto,
            f"{self.name}: {upto} acknowledged after {self.acknowledged}, sent were {self._sent_upto}",
        )
        stamp = self._note(f"{self.name} has acknowledgement up to {upto}")
        refused = {sequence for sequence, _ in frame.rejected}
        require(
            all(sequence <= upto for sequence in refused), f"{self.name}: {refused} rejected, only {upto} acknowledged"
        )
        self._window, self._window_bytes = frame.window, frame.window_bytes
        while self._in_flight and self._in_flight[0].sequence <= upto:
            self._in_flight.popleft()
        for one in self.publications[self.acknowledged : upto]:
            one.acknowledged = stamp
            one.acknowledged_ms = self.clock()
            one.rejected = one.sequence in refused
            require(
                one.rejected == (one.attributes is None),
                f"{self.name}: publication {one.sequence} {'was' if one.rejected else 'was not'} rejected",
            )
            self.acknowledged_hook(one)
        self.acknowledged = upto
        self.pump()

    def clock(self) -> int:
        """Replaced by the world: milliseconds."""
        return 0

    def acknowledged_hook(self, publication: Publication) -> None:
        """Replaced by the world: what must hold at this moment."""

    def doubles_may_come(self) -> bool:
        """Replaced by the world: whether something has died."""
        return False

    def resolve(self, publisher: str, packed: bytes) -> Publication:
        """Replaced by the world: the publication with these bytes."""
        raise NotImplementedError

    def _answered(self, request: int, code: str) -> None:
        withdrawn = self._withdrawals.pop(request, None)
        if withdrawn is not None:
            stamp = self._note(f"{self.name} has {code} for unpublishing {[f'#{one.number}' for one in withdrawn]}")
            require(code == "done", f"{self.name}: unpublishing ended with {code}")
            for one in withdrawn:
                # What is not acknowledged may be taken in after it, if any life of the publisher was meant.
                if one.withdrawn == NEVER and NEVER < one.acknowledged < one.withdrawal:
                    one.withdrawn = stamp
            return
        require(request in self._requests, f"{self.name}: an answer to {request}, which is not pending")
        expected, number, state = self._requests.pop(request)
        stamp = self._note(f"{self.name} has {code} for subscription {number}")
        require(code == expected, f"{self.name}: subscription {number}: {code} where {expected} was due")
        if state is not None:
            state.done = stamp

    def _dropped(self, reason: str, notifications: int, counts: list[tuple[int, int]]) -> None:
        assert self.session is not None, "open without a session"
        self._note(f"{self.name} is told that {notifications} were dropped by {reason}: {counts}")
        require(
            max((count for _, count in counts), default=0) <= notifications <= sum(count for _, count in counts),
            f"{self.name}: {notifications} dropped, by subscription {counts}",
        )
        session = self.session
        session.dropped_for[reason] = session.dropped_for.get(reason, 0) + notifications
        for number, count in counts:
            policy = session.policies.get(number, "none")
            require(
                policy.startswith(LOSES_BY[reason]),
                f"{self.name}: subscription {number} with policy {policy} had drops by {reason}",
            )
            session.drops[number, reason] = session.drops.get((number, reason), 0) + count

    def _notify(self, frame: frames.Notify) -> None:
        session = self.session
        assert session is not None, "open without a session"
        count = len(frame.run) // 4
        runs = struct.unpack(f"<{count}I", frame.run)
        sequences = struct.unpack(f"<{count}Q", frame.sequence)
        lengths = struct.unpack(f"<{count}I", frame.lengths)
        matches = struct.unpack(f"<{count}I", frame.matches)
        numbers = struct.unpack(f"<{sum(matches)}I", frame.numbers)
        require(sum(lengths) == len(frame.payload), f"{self.name}: Notify with a payload of another size")
        require(count > 0, f"{self.name}: an empty Notify")
        at = place = 0
        for run, sequence, length, matched in zip(runs, sequences, lengths, matches, strict=True):
            own = numbers[place : place + matched]
            packed = frame.payload[at : at + length]
            at, place = at + length, place + matched
            publication = self.resolve(frame.runs[run][0], packed)
            stamp = self._note(
                f"{self.name} is notified of #{publication.number} = {publication.publisher.name} {sequence} for {own}"
            )
            require(publication.sequence == sequence, f"{self.name}: #{publication.number} came under {sequence}")
            instance = frame.runs[run][1]
            require(instance == publication.publisher.instance, f"{self.name}: #{publication.number} of {instance}")
            last = self._last.get(publication.publisher, 0)
            require(last < sequence, f"{self.name}: {publication.publisher.name}'s {sequence} came after {last}")
            self._last[publication.publisher] = sequence
            if sequence <= self._upto.get(publication.publisher, 0) and self.doubles_may_come():
                self.doubles += 1  # as the SDK does
                session.again.append(Received(stamp, publication, own))
                continue
            self._upto[publication.publisher] = sequence
            require(publication.number not in self.seen, f"{self.name}: #{publication.number} came twice")
            self.seen.add(publication.number)
            require(0 < len(own) == len(set(own)), f"{self.name}: #{publication.number} for {own}")
            for number in own:
                history = session.histories.get(number)
                require(history is not None, f"{self.name}: notified for {number}, never opened")
                assert history is not None, "for the type checker"
                closed = history[-1].filter is None and history[-1].done != NEVER
                require(not closed, f"{self.name}: #{publication.number} came for {number} after Done of its close")
                served = session.served.get(number)
                if served is not None:
                    early = served.over == NEVER and history[-1].filter is not None
                    require(not early, f"{self.name}: #{publication.number} came for {number} before what is valid")
                    twice = publication.number in served.got
                    require(not twice, f"{self.name}: #{publication.number} came for {number} as valid and live")
            session.received[publication.number] = Received(stamp, publication, own)
        self._count_arrived(count)

    def _notify_valid(self, frame: frames.NotifyValid) -> None:
        session = self.session
        assert session is not None, "open without a session"
        served = session.served.get(frame.number)
        require(served is not None, f"{self.name}: valid ones for {frame.number}, which did not ask for them")
        assert served is not None, "for the type checker"
        require(served.opened.done != NEVER, f"{self.name}: valid ones for {frame.number} before its Done")
        require(served.over == NEVER, f"{self.name}: valid ones for {frame.number} after the last")
        closed = session.histories[frame.number][-1]
        require(
            closed.filter is not None or closed.done == NEVER, f"{self.name}: valid ones for a closed {frame.number}"
        )
        count = len(frame.run) // 4
        require(count > 0 or frame.last, f"{self.name}: an empty frame of valid ones")
        runs = struct.unpack(f"<{count}I", frame.run)
        sequences = struct.unpack(f"<{count}Q", frame.sequence)
        lengths = struct.unpack(f"<{count}I", frame.lengths)
        require(sum(lengths) == len(frame.payload), f"{self.name}: NotifyValid with a payload of another size")
        at = 0
        for run, sequence, length in zip(runs, sequences, lengths, strict=True):
            publication = self.resolve(frame.runs[run][0], frame.payload[at : at + length])
            at += length
            name = f"#{publication.number} = {publication.publisher.name} {sequence}"
            self._note(f"{self.name} is given {name}, valid, for {frame.number}")
            require(publication.sequence == sequence, f"{self.name}: {name} came under {sequence}")
            require(publication.number not in served.got, f"{self.name}: {name} was given twice to {frame.number}")
            live = session.received.get(publication.number)
            twice = live is not None and frame.number in live.numbers
            require(not twice, f"{self.name}: {name} came live to {frame.number}, and is given")
            last = served.last.get(publication.publisher, 0)
            require(last < sequence, f"{self.name}: {name} was given to {frame.number} after {last}")
            served.last[publication.publisher] = sequence
            served.got[publication.number] = publication
        if frame.last:
            served.over = self._note(f"{self.name} has all that is valid for {frame.number}")
            served.over_ms = self.clock()
        self._count_arrived(count)

    def _count_arrived(self, count: int) -> None:
        self._arrived += count
        flying = self._arrived - self._consumed
        require(flying <= self.receive_window, f"{self.name}: {flying} in flight, the window is {self.receive_window}")
        if self.eager:
            self.consume()
