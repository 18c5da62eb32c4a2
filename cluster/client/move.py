"""The former session of a client that is asked to move, while what was underway there still comes.

A connection point that is to leave says Move. The client goes on at another one as after a lost connection: it
restores its subscriptions there and sends again what is not acknowledged. But the former connection stays for a while
and is this machine's: its notifications are delivered as they come, and those of the new connection are held until the
former one is at its end. Every publication is matched for the former session, for the new one, or for both; one that
came by both is delivered once. What the new session is given as valid is held too, and of that what the former one
has brought is left out. When the new session holds everything, the former connection point is told (Moved), and
it says Bye when all that was matched before has come. Until then no subscription is opened, changed or closed, so that
both sessions have the same ones.

    former     delivered at once; where the new connection has brought it already, that copy goes
    new        held; thrown away where the former connection has brought it already, or a later one of its publisher:
               only a change that was under way when the move began makes the two differ, and what is matched while a
               change is under way may come or not, but not out of order

A notification is the same if publisher, instance and sequence are. What is held is within the new connection's credit.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.client.delivery import Delivery, Inbox, Run, columns_of
from cluster.codec import FrameReader, decode_server_frame, encode_frame
from cluster.errors import CodecError
from cluster.frames import Bye, Consumed, Dropped, Goodbye, Moved, Notify, NotifyValid, Ping, Pong

Key = tuple[str, int, int]
"""(publisher, instance, sequence)."""


class One(NamedTuple):
    """A notification as it came: its run, sequence, bytes, and the numbers that match, as a column of uint32.

    counted: it is on the present connection's credit.
    """

    run: Run
    sequence: int
    payload: bytes
    numbers: bytes
    counted: bool = True

    @property
    def key(self) -> Key:
        """What names the publication."""
        return (*self.run[:2], self.sequence)


class FormerSession:
    """The former session's half; `reader` has what was read of its stream and is not a whole frame yet."""

    def __init__(self, reader: FrameReader, delivery: Delivery) -> None:
        self._reader = reader
        self._delivery = delivery
        self._held: dict[Key, One] = {}
        self._held_valid: list[NotifyValid] = []
        self._arrived = delivery.received
        self.over = False
        self._output: list[bytes] = []

    def take_output(self) -> list[bytes]:
        """Return the frames to write on the former connection."""
        output, self._output = self._output, []
        return output

    def confirm(self) -> None:
        """The new session holds all that the former one does."""
        if not self.over:
            self._output.append(encode_frame(Moved()))

    def leave(self) -> None:
        """The client closes."""
        if not self.over:
            self._output.append(encode_frame(Goodbye()))

    # The former connection ---------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> set[Inbox]:
        """Take bytes of the former connection; return the inboxes that got something. After Bye it is `over`."""
        touched: set[Inbox] = set()
        try:
            for body in self._reader.feed(data):
                frame = decode_server_frame(body)
                match frame:
                    case Notify():
                        touched |= self._notify(frame)
                    case NotifyValid():
                        touched |= self._delivery.notify_valid(frame, counted=False)
                        self._count_arrived(len(frame.run) // 4)
                    case Dropped():
                        self._delivery.drop(frame)
                    case Ping():
                        self._output.append(encode_frame(Pong()))
                    case Bye():
                        self.over = True
                    case _:
                        pass  # answers and acknowledgements: all of that is asked for again on the new connection
        except CodecError:
            self.over = True
        return touched

    def _notify(self, frame: Notify) -> set[Inbox]:
        touched: set[Inbox] = set()
        ones = split(frame)
        for one in ones:
            if self._delivery.watermarks.raise_to(one.run[:2], one.sequence):
                touched |= self._delivery.deliver(one.run, one.sequence, one.payload, one.numbers, counted=False)
            other = self._held.pop(one.key, None)
            if other is not None and other.counted:
                self._delivery.pass_over()
        self._count_arrived(len(ones))
        return touched

    def _count_arrived(self, count: int) -> None:
        # The application's pace is the new connection's business; what comes here is bounded by what is underway.
        self._arrived += count
        if count:
            self._output.append(encode_frame(Consumed(self._arrived)))

    # The new connection ------------------------------------------------------------------------------------------

    def hold(self, frame: Notify) -> None:
        """Take a frame of the new connection."""
        for one in split(frame):
            if one.sequence <= self._delivery.watermarks.upto(one.run[:2]):
                self._delivery.pass_over()
            else:
                self._held[one.key] = one

    def hold_valid(self, frame: NotifyValid) -> None:
        """Take a frame of valid ones of the new connection."""
        self._held_valid.append(frame)

    def end(self) -> set[Inbox]:
        """The former connection is at its end: deliver what is held; return the inboxes that got something."""
        self.over = True
        touched: set[Inbox] = set()
        self._delivery.former_came()
        for frame in self._held_valid:
            touched |= self._delivery.notify_valid(frame, counted=True)
        self._held_valid.clear()
        held, self._held = self._held, {}
        for one in held.values():
            if not self._delivery.watermarks.raise_to(one.run[:2], one.sequence):
                if one.counted:
                    self._delivery.pass_over()
                continue
            touched |= self._delivery.deliver(one.run, one.sequence, one.payload, one.numbers, counted=one.counted)
        return touched

    def disconnected(self) -> None:
        """The new connection is lost: what it has brought nobody brings again, but it is on no credit any more."""
        self._held_valid.clear()  # the next one is given it again
        self._held = {key: one._replace(counted=False) for key, one in self._held.items()}


def split(frame: Notify) -> list[One]:
    """Return the notifications of a frame, one by one. Raises CodecError where its columns do not fit."""
    of_run, sequences, lengths, matches = columns_of(frame)
    result = []
    at = first = 0
    for run, sequence, length, match in zip(of_run, sequences, lengths, matches, strict=True):
        payload, numbers = frame.payload[at : at + length], frame.numbers[first : first + 4 * match]
        result.append(One(run, sequence, payload, numbers))
        at += length
        first += 4 * match
    return result
