"""From Notify frames to the streams that the application reads, and back: how much of them it has read.

Each stream has an inbox. A notification goes, as one object, to the inbox of every subscription that matches, once per
inbox. It is *consumed* when each of these has handed it out or was closed; the broker sends at most `window`
notifications beyond those reported as consumed, which bounds what lies here.

Three ways through, the fastest that is right:

    alone    one inbox takes everything that can come: numbers are not decoded, not even split for one subscription
    many     the numbers of a notification are looked up as bytes, so equal sets of matches are decoded once
    wide     the client-wide stream is open and takes everything in place of the others

Once: after a fault a publication may come a second time, on the same connection or the next one. Each publisher's come
in order, so what is at or below the last sequence that came of it is a double; it is left out and counts as consumed.

After a reconnect the broker counts afresh: what still lies in the inboxes belongs to no credit. To stay bounded
under a flapping connection, a connection that begins with more than a window lying here asks for that much less.

Of a durable session the broker remembers what is not acknowledged, and brings it again: what lies here keeps its
credit, and the copy is passed over; see `positions.py`. Its notifications count as taken when the application comes
back for more, not when it is handed them. What matches subscriptions that an earlier instance has left behind lies in
an inbox of its own, `left_behind`, until they are taken up.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Collection, Iterable

from cluster.client.notification import Notification, decode_numbers
from cluster.client.positions import Positions
from cluster.client.served import Served
from cluster.errors import CodecError
from cluster.frames import GIVEN, REDELIVERED, Dropped, Notify, NotifyValid
from cluster.watermarks import Watermarks

_KEYS_KEPT = 4096
_PUBLISHERS_KEPT = 100_000
"""Whose last sequence is remembered; about 200 bytes each."""

Run = tuple[str, int, int]
"""(publisher, instance, microseconds since 1970) of a notification."""


class Inbox:
    """What one stream has still to hand out.

    queue:   owned by the stream, which takes from the left and calls `Delivery.took`.
    dropped: notifications of this stream's subscriptions that the broker dropped, by reason.
    numbers: of the subscriptions that it serves; kept by Delivery.
    """

    __slots__ = ("closed", "dropped", "numbers", "queue")

    def __init__(self) -> None:
        self.queue: deque[Notification] = deque()
        self.dropped: Counter[str] = Counter()
        self.numbers: set[int] = set()
        self.closed = False


class Delivery:
    """The subscriber's data half of a client. Cost: O(1) a notification and inbox, about 0.3 µs each."""

    def __init__(self, window: int) -> None:
        self.window = window
        """Notifications that a connection may have underway; as told in the last Hello."""
        self._window_full = window
        self._step = max(1, window // 4)
        self.received = 0
        """Notifications that came since the connection began."""
        self.taken = 0
        """Those of them that are consumed."""
        self.reported = 0
        self.report_at = self._step
        """A report is due when `taken` gets here."""
        self.dropped: Counter[str] = Counter()
        """Distinct notifications that the broker dropped, by reason."""
        self.doubles = 0
        """Notifications that came again after a fault and were left out."""
        self.watermarks = Watermarks(_PUBLISHERS_KEPT)
        self.wide: Inbox | None = None
        self._served: dict[int, Served] = {}
        """Of the numbers that are given what is valid."""
        self.positions: Positions | None = None
        """Of a durable session."""
        self.left_behind: Inbox | None = None
        self._inboxes: dict[int, Inbox] = {}
        self._stray: set[int] = set()
        """Numbers whose inbox is closed and which the broker may still use."""
        self._detached: list[Inbox] = []
        """Closed inboxes that are not empty."""
        self._stale = True
        """The three below are to be derived again from the inboxes; done at the next frame, not at each change, as
        ten thousand subscriptions may come at once."""
        self._alone: Inbox | None = None
        self._alone_numbers: tuple[int, ...] | None = None
        self._keys: dict[bytes, tuple[tuple[int, ...], tuple[Inbox, ...]]] = {}

    # Inboxes -----------------------------------------------------------------------------------------------------

    def open(self, number: int, inbox: Inbox, *, valid: bool = False) -> None:
        """Send what matches subscription `number` to the inbox from now on. valid: and before, what is valid."""
        if valid:
            self._served[number] = Served()
        self._inboxes[number] = inbox
        inbox.numbers.add(number)
        self._stale = True

    def forget(self, number: int) -> None:
        """The broker will not use the number any more."""
        self._stray.discard(number)
        self._served.pop(number, None)
        inbox = self._inboxes.pop(number, None)
        if inbox is not None:
            inbox.numbers.discard(number)
        self._stale = True

    def detach(self, inbox: Inbox) -> None:
        """Send the inbox nothing more; what lies in it may still be taken."""
        inbox.closed = True
        for number in inbox.numbers:
            if self._inboxes.pop(number, None) is not None:
                self._stray.add(number)
        inbox.numbers.clear()
        if self.wide is inbox:
            self.wide = None
        self._detached.append(inbox)
        self._stale = True

    def close(self, inbox: Inbox) -> None:
        """Detach the inbox and throw away what lies in it; its credit is released."""
        wide = self.wide is inbox
        self.detach(inbox)
        for notification in inbox.queue:
            if notification._positions is None or wide:
                # What the client-wide stream leaves of a durable session comes again with the next connection.
                self.took(notification, again=wide)
            else:
                notification._holders -= 1
                if notification._holders == 0:
                    notification._positions.pass_over(notification.position)
        inbox.queue.clear()
        self._detached = [other for other in self._detached if other.queue]

    def inbox_of(self, number: int) -> Inbox | None:
        """Return where the number's notifications go; None when it is closed here."""
        return self._inboxes.get(number)

    def open_wide(self, inbox: Inbox) -> None:
        """Send everything to this inbox and nothing to the others, until it is closed."""
        assert self.wide is None, "a client-wide stream is open"
        self.wide = inbox
        self._stale = True

    def abandon(self) -> None:
        """Forget every inbox, at the end of the client; what lies in them may still be taken."""
        self._inboxes.clear()
        self._served.clear()
        self._stray.clear()
        self.wide = None
        self._stale = True

    def _derive(self) -> None:
        self._stale = False
        self._keys.clear()
        self._alone = self.wide
        self._alone_numbers = None
        numbers = self._inboxes
        if self._stray:
            return
        if self._alone is None and numbers:
            first = next(iter(numbers.values()))
            if len(first.numbers) == len(numbers):
                self._alone = first
        if self._alone is not None and len(numbers) == 1:
            self._alone_numbers = tuple(numbers)

    # Credit ------------------------------------------------------------------------------------------------------

    def took(self, notification: Notification, *, again: bool = False) -> None:
        """One inbox has handed the notification out. (`Stream.__anext__` has this inlined.)

        again: of a durable session, it is to come again, as nobody has seen it.
        """
        notification._holders -= 1
        if notification._holders == 0:
            self.taken += 1
            if notification._positions is not None:
                notification._positions.took(notification.position, again=again)

    def report(self) -> int | None:
        """Return the count to report now, None when there is nothing new."""
        if self.taken == self.reported:
            return None
        self.told()
        return self.taken

    def told(self) -> None:
        """What is taken has been reported."""
        self.reported = self.taken
        self.report_at = self.taken + self._step

    @property
    def at_rest(self) -> bool:
        """Everything that came is consumed and reported: there is nothing to report, and won't be by itself."""
        if self.positions is not None:
            return self.positions.at_rest
        return self.received == self.taken == self.reported

    def connecting(self) -> int:
        """Begin a connection: what lies here is on nobody's credit. Return the window to ask for."""
        if self.positions is not None:
            self.positions.connecting()
            self.received = self.taken = self.reported = 0
            self.report_at = self._step
            return self.window
        return self._connecting()

    def session_began(self, positions: Positions) -> None:
        """A durable session begins; what lies here was another one's."""
        self._connecting()
        self.window = self._window_full
        self._step = max(1, self.window // 4)
        self.report_at = self._step
        self.positions = positions

    def _connecting(self) -> int:
        inboxes = {*self._inboxes.values(), *self._detached}
        if self.wide is not None:
            inboxes.add(self.wide)
        self._detached.clear()
        lying: set[int] = set()
        for inbox in inboxes:
            for notification in inbox.queue:
                notification._holders = 0
                lying.add(id(notification))
        self.window = max(1, min(self._window_full, 2 * self._window_full - len(lying)))
        self._step = max(1, self.window // 4)
        if self._served:
            came = self.watermarks.copy()
            for served in self._served.values():
                served.connecting(came)
        self.received = self.taken = self.reported = 0
        self.report_at = self._step
        return self.window

    # From the broker ---------------------------------------------------------------------------------------------

    def drop(self, frame: Dropped) -> None:
        """Count what the broker dropped."""
        if self.positions is not None:
            self.positions.gone(struct.unpack(f"<{len(frame.positions) // 8}Q", frame.positions))
        if not frame.notifications:
            return
        self.dropped[frame.reason] += frame.notifications
        for number, count in frame.counts:
            inbox = self._inboxes.get(number)
            if inbox is not None:
                inbox.dropped[frame.reason] += count

    def notify(self, frame: Notify) -> set[Inbox]:
        """Put the frame's notifications into the inboxes; return those that got some.

        Raises: CodecError where the columns do not fit each other; nothing is delivered then.
        """
        of_run, sequences, lengths, matches = columns_of(frame)
        payload, numbers = frame.payload, frame.numbers
        self.received += len(of_run)
        if frame.positions or self.positions is not None:
            # What comes again is to come, flagged; what is no more than a double the broker has left out.
            return self._notify_durable(frame, of_run, sequences, lengths, matches)
        doubles = self.watermarks.take(of_run, sequences)
        if doubles:
            self.pass_over(len(doubles))
            of_run, sequences, lengths, matches, numbers, payload = _without(
                doubles, of_run, sequences, lengths, matches, numbers, payload
            )
        if self._stale:
            self._derive()
        if self._alone is not None:
            return self._notify_alone(of_run, sequences, lengths, matches, numbers, payload)
        return self._notify_many(of_run, sequences, lengths, matches, numbers, payload)

    def _notify_alone(
        self,
        of_run: list[Run],
        sequences: tuple[int, ...],
        lengths: tuple[int, ...],
        matches: tuple[int, ...],
        numbers: bytes,
        payload: bytes,
    ) -> set[Inbox]:
        inbox = self._alone
        assert inbox is not None
        append = inbox.queue.append
        position = 0
        only = self._alone_numbers
        if only is not None:
            for run, sequence, length in zip(of_run, sequences, lengths, strict=True):
                end = position + length
                append(Notification(run, sequence, payload[position:end], only, 1))
                position = end
            return {inbox}
        first = 0
        for run, sequence, length, match in zip(of_run, sequences, lengths, matches, strict=True):
            end = position + length
            last = first + 4 * match
            append(Notification(run, sequence, payload[position:end], numbers[first:last], 1))
            position = end
            first = last
        return {inbox}

    def _notify_many(
        self,
        of_run: list[Run],
        sequences: tuple[int, ...],
        lengths: tuple[int, ...],
        matches: tuple[int, ...],
        numbers: bytes,
        payload: bytes,
    ) -> set[Inbox]:
        touched: set[Inbox] = set()
        keys = self._keys
        position = first = 0
        for run, sequence, length, match in zip(of_run, sequences, lengths, matches, strict=True):
            end = position + length
            last = first + 4 * match
            key = numbers[first:last]
            known = keys.get(key)
            if known is None:
                known = self._look_up(key)
            ids, inboxes = known
            if inboxes:
                notification = Notification(run, sequence, payload[position:end], ids, len(inboxes))
                for inbox in inboxes:
                    inbox.queue.append(notification)
                touched.update(inboxes)
            else:
                self.taken += 1  # its subscription is closed here; the broker will know in a moment
            position = end
            first = last
        return touched

    def _notify_durable(
        self,
        frame: Notify,
        of_run: list[Run],
        sequences: tuple[int, ...],
        lengths: tuple[int, ...],
        matches: tuple[int, ...],
    ) -> set[Inbox]:
        positions = self.positions
        count = len(of_run)
        if positions is None or len(frame.positions) != 8 * count or len(frame.redelivered) != count:
            raise CodecError("the positions of the notifications do not fit the session")
        touched: set[Inbox] = set()
        at = first = 0
        for run, sequence, length, match, position, again in zip(
            of_run,
            sequences,
            lengths,
            matches,
            struct.unpack(f"<{count}Q", frame.positions),
            frame.redelivered,
            strict=True,
        ):
            end, last = at + length, first + 4 * match
            if not positions.arrived(position):
                self.taken += 1
            else:
                ids, inboxes = self._look_up(frame.numbers[first:last])
                if self.wide is not None:
                    inboxes = (self.wide,)
                payload = frame.payload[at:end]
                notification = Notification(
                    run,
                    sequence,
                    payload,
                    ids,
                    len(inboxes),
                    None,
                    position,
                    bool(again & REDELIVERED),
                    positions,
                    bool(again & GIVEN),
                )
                for inbox in inboxes:
                    inbox.queue.append(notification)
                touched.update(inboxes)
                if not inboxes:
                    self.taken += 1
                    positions.pass_over(position)
            at, first = end, last
        return touched

    def leave_behind(self, numbers: Iterable[int]) -> None:
        """Keep what comes for these subscriptions until they are taken up."""
        if self.left_behind is None:
            self.left_behind = Inbox()
        for number in numbers:
            self.open(number, self.left_behind)

    def take_up(self, numbers: Collection[int], inbox: Inbox) -> None:
        """Send what comes, and has come, for these subscriptions to the inbox."""
        former = self.left_behind
        assert former is not None, "nothing was left behind"
        for number in numbers:
            former.numbers.discard(number)
            self.open(number, inbox)
        rest = []
        for notification in former.queue:
            ids = notification.subscription_ids
            if not former.numbers.isdisjoint(ids):
                rest.append(notification)
            else:
                notification._holders -= 1
            if any(number in numbers for number in ids):
                notification._holders += 1
                inbox.queue.append(notification)
        former.queue.clear()
        former.queue.extend(rest)

    def notify_valid(self, frame: NotifyValid, *, counted: bool) -> set[Inbox]:
        """Put what is valid into the subscription's inbox, but for what it has been given before; return as `notify`.

        counted: it came on the present connection's credit, and is counted as received already.
        Raises: CodecError where the columns do not fit each other; nothing is delivered then.
        """
        count = len(frame.run) // 4
        try:
            number = struct.pack("<I", frame.number)
        except struct.error as error:
            raise CodecError(f"valid publications for subscription {frame.number}") from error
        ones = b"\1\0\0\0" * count
        columns = Notify(frame.runs, frame.run, frame.sequence, frame.lengths, ones, number * count, frame.payload)
        of_run, sequences, lengths, _ = columns_of(columns)
        served = self._served.get(frame.number)
        touched: set[Inbox] = set()
        at = 0
        for run, sequence, length in zip(of_run, sequences, lengths, strict=True):
            payload = frame.payload[at : at + length]
            at += length
            if served is None or served.take(run[:2], sequence):
                touched |= self.deliver(run, sequence, payload, number, counted=counted, initial=True)
            elif counted:
                self.pass_over()
        if served is not None and frame.last:
            served.complete = True
        return touched

    def former_came(self) -> None:
        """Everything of a former session has come that ever will."""
        if self._served:
            came = self.watermarks.copy()
            for served in self._served.values():
                served.came(came)

    def deliver(
        self, run: Run, sequence: int, payload: bytes, numbers: bytes, *, counted: bool, initial: bool = False
    ) -> set[Inbox]:
        """Put one notification into its inboxes; return them. counted: it came on the present connection's credit."""
        if self._stale:
            self._derive()
        ids, inboxes = self._look_up(numbers)
        chosen = list(inboxes) if self.wide is None else [self.wide]
        if not chosen:
            self.taken += counted
        # Off the credit, `took` counts below 0 and never meets it.
        notification = Notification(run, sequence, payload, ids, len(chosen) if counted else 0, initial=initial)
        for inbox in chosen:
            inbox.queue.append(notification)
        return set(chosen)

    def pass_over(self, count: int = 1) -> None:
        """Notifications of the present connection came again and are not delivered: they count as consumed."""
        self.taken += count
        self.doubles += count

    def hold(self, count: int) -> None:
        """So many came on the present connection and are delivered later, or passed over."""
        self.received += count

    def _look_up(self, key: bytes) -> tuple[tuple[int, ...], tuple[Inbox, ...]]:
        ids = decode_numbers(key)
        # dict as an ordered set: the order of delivery does not depend on hashes.
        inboxes = dict.fromkeys(inbox for inbox in map(self._inboxes.get, ids) if inbox is not None)
        if len(self._keys) >= _KEYS_KEPT:
            self._keys.clear()
        known = self._keys[key] = (ids, tuple(inboxes))
        return known


def _without(
    doubles: set[int],
    of_run: list[Run],
    sequences: tuple[int, ...],
    lengths: tuple[int, ...],
    matches: tuple[int, ...],
    numbers: bytes,
    payload: bytes,
) -> tuple[list[Run], tuple[int, ...], tuple[int, ...], tuple[int, ...], bytes, bytes]:
    """Return the columns without these places."""
    kept = [place for place in range(len(of_run)) if place not in doubles]
    payloads = []
    ids = []
    at = first = 0
    for place, (length, match) in enumerate(zip(lengths, matches, strict=True)):
        if place not in doubles:
            payloads.append(payload[at : at + length])
            ids.append(numbers[first : first + 4 * match])
        at += length
        first += 4 * match
    return (
        [of_run[place] for place in kept],
        tuple(sequences[place] for place in kept),
        tuple(lengths[place] for place in kept),
        tuple(matches[place] for place in kept),
        b"".join(ids),
        b"".join(payloads),
    )


def columns_of(
    frame: Notify,
) -> tuple[list[Run], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return per notification its run, sequence, number of bytes, and how many subscriptions match it.

    Raises: CodecError where the columns do not fit each other.
    """
    count = len(frame.run) // 4
    try:
        runs = struct.unpack(f"<{count}I", frame.run)
        sequences = struct.unpack(f"<{count}Q", frame.sequence)
        lengths = struct.unpack(f"<{count}I", frame.lengths)
        matches = struct.unpack(f"<{count}I", frame.matches)
    except struct.error as error:
        raise CodecError(f"the columns of {count} notifications differ in length: {error}") from error
    if sum(lengths) != len(frame.payload) or 4 * sum(matches) != len(frame.numbers) or not all(matches):
        raise CodecError("the columns of the notifications do not fit their payload or their matches")
    if count and max(runs) >= len(frame.runs):
        raise CodecError("a notification names a run that is not in its frame")
    return [frame.runs[run] for run in runs], sequences, lengths, matches
