"""The pure half of a client: bytes in, outcomes and bytes out; no socket, no clock, no task.

    no connection --connection_made--> greeting --Welcome--> open --leave--> leaving
         ^                                |                    |                |
         +---------- connection_lost -----+--------------------+----------------+

    greeting   Hello is written; anything but Welcome or Bye ends the attempt
    open       the last connection's subscriptions are restored first, then publications without an
               acknowledgement go out again, so that a client that listens to itself misses nothing of its own;
               while it moves they do not wait, as its former session hears them
    leaving    Goodbye is written; nothing more is
    greeting   of a durable session that another instance has left: Welcome is followed by what it holds
    ended      after Bye, malformed bytes or `abandon`; what still arrives is ignored

Three machines do the work and know nothing of each other: `Publishing` (numbers, window, resend), `Requests`
(subscriptions, restore) and `Delivery` (streams, credit). This one cuts the stream, hands each frame to its machine,
and keeps the heartbeat. A connection ends at any byte; what that means is the machines' `disconnected`.

The caller writes what `take_output` returns after every call that may have produced something.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import msgspec

from cluster.client.attributes import Limits
from cluster.client.delivery import Delivery, Inbox
from cluster.client.move import FormerSession
from cluster.client.positions import Positions
from cluster.client.publishing import FRAME_OVERHEAD, Offer, Publishing
from cluster.client.requests import Request, Requests
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.errors import CodecError, ConnectionLostError, SessionError
from cluster.frames import (
    RECONNECT_CODES,
    VERSION,
    Acknowledged,
    Bye,
    Consumed,
    Done,
    Dropped,
    Goodbye,
    Held,
    Hello,
    Move,
    Notify,
    NotifyValid,
    Ping,
    Pong,
    Refused,
    ServerFrame,
    Welcome,
)

SERVER_FRAME_BYTES_MAX = 64 * 1024 * 1024
"""A longer frame from the broker is taken for damage, or for somebody who speaks another protocol: four letters of
ASCII read as a length are more than this. Far above what a connection point puts into one."""
SILENT_TICKS_MAX = 3

State = Literal["no connection", "greeting", "open", "leaving", "ended"]


@dataclass(frozen=True, slots=True)
class Opened:
    """The login succeeded."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Arrived:
    """These inboxes have got something."""

    inboxes: set[Inbox]


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection is of no use any more; reconnect says whether another one is to be tried."""

    code: str
    reason: str
    reconnect: bool
    address: str = ""
    """Where the durable session lives, if that is the reason."""


@dataclass(frozen=True, slots=True)
class Durable:
    """What the client wants of a durable session. expires_s, max_deliver: 0 leaves it to the broker.

    manual: the application acknowledges each notification.
    """

    expires_s: int = 0
    max_deliver: int = 0
    manual: bool = False


@dataclass(frozen=True, slots=True)
class Moving:
    """The connection point is about to leave, and asks for a session at one of these addresses."""

    addresses: list[str]


@dataclass(frozen=True, slots=True)
class Restored:
    """While the client moves: the new connection holds every subscription that the former one held."""


Outcome = Opened | Arrived | Ended | Moving | Restored | Offer | Request

_PONG = encode_frame(Pong())


class ClientProtocol:
    """One client over all its connections.

    instance: unique to this client's life; with client_id and sequence it names a publication for good. A life that
              goes on in another process has the same, and numbers on from first_sequence.
    """

    def __init__(
        self,
        client_id: str,
        instance: int,
        receive_window: int,
        first_sequence: int = 1,
        durable: Durable | None = None,
    ) -> None:
        self.client_id = client_id
        self.instance = instance
        self.state: State = "no connection"
        self.publishing = Publishing(first_sequence)
        self.requests = Requests()
        self.delivery = Delivery(receive_window)
        self.welcome: Welcome | None = None
        """Of the present connection, or the last one."""
        self.durable = durable
        self.sessions = 0
        """Durable sessions that this client has begun or resumed; more than one: an earlier one was lost."""
        self.left_behind: dict[int, tuple[str, str]] = {}
        """Subscriptions of an earlier instance: number -> filter, policy; until they are taken up."""
        self._session: int | None = None
        self._greeted: Welcome | None = None  # and its Held frames are still coming
        self._listed: list[tuple[int, str, str]] = []
        self._reader = FrameReader(SERVER_FRAME_BYTES_MAX)
        self._output: list[bytes] = []
        self._silent_ticks = 0
        self._told_restored = False
        self.positions_changed: Callable[[], None] = lambda: None
        """Called when the application has acknowledged or refused something."""
        self.former: FormerSession | None = None
        """While the client moves, until `settle`."""
        self.byes: Counter[str] = Counter()
        """How often a connection ended with Bye, by code."""
        self.asked: list[str] = []
        """Where to move next, as the present connection has said during this move."""

    # The connection ----------------------------------------------------------------------------------------------

    def connection_made(self) -> None:
        """Begin a connection with Hello."""
        assert self.state == "no connection", f"a connection was made while {self.state}"
        self.state = "greeting"
        self._reader = FrameReader(SERVER_FRAME_BYTES_MAX)
        self._silent_ticks = 0
        window = self.delivery.connecting()
        self._greeted = None
        hello = Hello(VERSION, self.client_id, self.instance, window)
        if self.durable is not None:
            hello = msgspec.structs.replace(
                hello,
                durable=True,
                expires_s=self.durable.expires_s,
                max_deliver=self.durable.max_deliver,
                session=self._session or 0,
            )
        self._output = [encode_frame(hello)]

    def connection_lost(self) -> None:
        """End the connection, however it ended; nothing that was asked for is forgotten."""
        if self.state == "no connection":
            return
        self.state = "no connection"
        self._output.clear()
        self.asked = []
        self.publishing.disconnected()
        self.requests.disconnected()
        if self.former is not None:
            self.former.disconnected()

    def leave(self, *, end_session: bool = False) -> None:
        """Say goodbye; what was taken before is still sent in front of it. end_session: a durable one ends."""
        if self.state == "open":
            self._report(self._output)
            self._output = [*self.take_output(), encode_frame(Goodbye(end_session))]
            self.state = "leaving"

    def abandon(self) -> tuple[list[Offer], list[Request]]:
        """End the client for good; return the offers and requests that nobody will settle."""
        self.state = "ended"
        self._output.clear()
        lost = self.publishing.abandon(), self.requests.abandon()
        self.delivery.abandon()
        if self.delivery.positions is not None:
            self.delivery.positions.over = ConnectionLostError("the client is closed", reason_code="closed")
        return lost

    def tick(self) -> bool:
        """Count one heartbeat; return False when the broker has been silent for three whole ones.

        Counted in ticks and not in time: an application that blocks its own loop for long gets one late tick, not
        three, and what came meanwhile is read before the next.
        """
        self._silent_ticks += 1
        return self._silent_ticks <= SILENT_TICKS_MAX

    # Bytes -------------------------------------------------------------------------------------------------------

    def take_output(self) -> list[bytes]:
        """Return the frames to write now, in order."""
        output, self._output = self._output, []
        if self.state == "open":
            delivery = self.delivery
            if delivery.taken >= delivery.report_at:
                self._report(output)
            output += self.requests.take()
            if self.former is not None or not self.requests.restoring:
                output += self.publishing.take()
        return output

    def report_consumed(self) -> None:
        """Report what has been taken, if anything, though it is less than a quarter of the window."""
        if self.state == "open":
            self._report(self._output)

    def receive(self, data: bytes) -> list[Outcome]:
        """Take what the socket gave, in any cut; return what happened, in order."""
        if self.state in ("no connection", "ended"):
            return []
        self._silent_ticks = 0
        outcomes: list[Outcome] = []
        greeting = self.state == "greeting"
        try:
            for body in self._reader.feed(data):
                self._handle(decode_server_frame(body), outcomes)
                if self.state == "ended":
                    break
        except CodecError as error:
            self.state = "ended"
            if greeting:
                reason = f"what answers there is not a connection point of version {VERSION}: {error}"
            else:
                reason = f"the broker sent what is not valid: {error}"
            # Damage on the way is worth another try; somebody who never spoke the protocol is not.
            outcomes.append(Ended(CodecError.code, reason, reconnect=not greeting))
        return outcomes

    # Frames ------------------------------------------------------------------------------------------------------

    def _handle(self, frame: ServerFrame, outcomes: list[Outcome]) -> None:
        if isinstance(frame, Bye):
            self.state = "ended"
            self.byes[frame.code] += 1
            outcomes.append(Ended(frame.code, frame.reason, frame.code in RECONNECT_CODES, frame.address))
            return
        if self.state == "greeting":
            self._greet(frame, outcomes)
            return
        if isinstance(frame, Notify):
            if self.former is not None:
                self.delivery.hold(len(frame.run) // 4)
                self.former.hold(frame)
                return
            touched = self.delivery.notify(frame)
            if touched:
                outcomes.append(Arrived(touched))
        elif isinstance(frame, NotifyValid):
            self.delivery.hold(len(frame.run) // 4)
            if self.former is not None:
                self.former.hold_valid(frame)
                return
            touched = self.delivery.notify_valid(frame, counted=True)
            if touched:
                outcomes.append(Arrived(touched))
        elif isinstance(frame, Acknowledged):
            outcomes.extend(self.publishing.acknowledge(frame))
        elif isinstance(frame, Ping):
            if self.state == "open":
                self._output.append(_PONG)
        elif isinstance(frame, Done | Refused):
            request = self.requests.answer(frame)
            if not self.requests.knows(request.number):
                self.delivery.forget(request.number)
            outcomes.append(request)
            self._tell_restored(outcomes)
        elif isinstance(frame, Move):
            if self.former is not None:
                self.asked = frame.addresses  # one move at a time
            elif self.state == "open" and self.durable is None:  # a durable session stays where it lives
                outcomes.append(Moving(frame.addresses))
        elif isinstance(frame, Dropped):
            self.delivery.drop(frame)
        else:
            raise CodecError(f"{type(frame).__name__} came where it is not due")

    def _greet(self, frame: ServerFrame, outcomes: list[Outcome]) -> None:
        """Take Welcome, and the Held frames that follow it if the session is not known here."""
        if self._greeted is None:
            if not isinstance(frame, Welcome):
                raise CodecError(f"{type(frame).__name__} came in place of Welcome")
            self._greeted = frame
            self._listed = []
        elif isinstance(frame, Held):
            self._listed += frame.subscriptions
        else:
            raise CodecError(f"{type(frame).__name__} came in place of Held")
        if len(self._listed) >= self._greeted.listed:
            self._open(self._greeted, outcomes)

    def _resume(self, welcome: Welcome) -> Collection[int]:
        """Go on with the durable session, or begin one; return the numbers of the subscriptions that it holds."""
        assert self.durable is not None, "not durable"
        positions = self.delivery.positions
        if positions is None or not welcome.resumed or welcome.session != self._session:
            if positions is not None:
                positions.over = SessionError("the durable session has ended, and what it was owed with it")
            changed = positions.changed if positions is not None else self.positions_changed
            self.delivery.session_began(Positions(manual=self.durable.manual, changed=changed))
            self._session = welcome.session
            self.sessions += 1
        for number, filter, policy in self._listed:
            if not self.requests.knows(number):
                self.requests.adopt(number, filter, policy)
                self.left_behind[number] = (filter, policy)
        self.delivery.leave_behind(self.left_behind)
        return set(struct.unpack(f"<{len(welcome.held) // 4}I", welcome.held))

    def take_up(self, numbers: Collection[int], inbox: Inbox) -> None:
        """Send what comes for subscriptions that were left behind, and what has come, to the inbox."""
        for number in numbers:
            del self.left_behind[number]
        self.delivery.take_up(numbers, inbox)

    def _open(self, welcome: Welcome, outcomes: list[Outcome]) -> None:
        if welcome.version != VERSION:
            self.state = "ended"
            reason = f"the broker speaks version {welcome.version} of the protocol, this client {VERSION}"
            outcomes.append(Ended("version", reason, reconnect=False))
            return
        if len(welcome.held) % 4:
            raise CodecError("Welcome.held is not a column of uint32")
        self.state = "open"
        self.welcome = welcome
        outcomes.append(Opened(welcome))
        self._told_restored = False
        held = self._resume(welcome) if self.durable is not None else ()
        self.requests.connected(waiting=self.former is not None, held=held)
        outcomes.extend(
            self.publishing.connected(welcome.publish_window, welcome.publish_window_bytes, welcome.frame_bytes)
        )
        self._tell_restored(outcomes)

    def _tell_restored(self, outcomes: list[Outcome]) -> None:
        if self.former is not None and not self._told_restored and not self.requests.restoring:
            self._told_restored = True
            outcomes.append(Restored())

    def part(self) -> FormerSession:
        """End the connection as far as this machine goes; what still comes on it is the returned one's."""
        assert self.former is None, "a client has one former session"
        self.former = FormerSession(self._reader, self.delivery)
        self.connection_lost()
        return self.former

    def settle(self) -> set[Inbox]:
        """The former session is at its end; return the inboxes that got what was held until then."""
        former, self.former = self.former, None
        assert former is not None, "no move is under way"
        touched = former.end()
        self.requests.go_on()
        return touched

    def _report(self, output: list[bytes]) -> None:
        if self.delivery.positions is not None:
            output += self.delivery.positions.report()
            self.delivery.told()
            return
        count = self.delivery.report()
        if count is not None:
            output.append(encode_frame(Consumed(count)))


def publication_limits(welcome: Welcome) -> Limits:
    """Return what a publication may be on this connection: it has to fit a frame alone."""
    return Limits(welcome.attributes, welcome.string_bytes, welcome.frame_bytes - FRAME_OVERHEAD - 4)
