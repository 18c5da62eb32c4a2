"""How a notification leaves a durable session's queue: acknowledged, wanted by nobody any more, or removed.

Acknowledgements are by position, single ones or all up to one. What a client refuses, or has had `max_deliver` times
and never acknowledged, goes to the dead letters in the end.

When the client does not keep up: while it is connected, what a subscription with policy `block` matches is not removed
and whoever published waits, as in any session (`outbox.py`). What only `drop_oldest` ones match, and everything while
there is no connection, is bounded by the session's quota: the oldest that is not underway is removed, counted, told.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from cluster import columns
from cluster.columns import Column
from cluster.durable.entries import Entry
from cluster.durable.losses import MAX_DELIVER, QUOTA, Losses, dead_letter
from cluster.durable.queue import Queue
from cluster.durable.sending import Sending
from cluster.journal import DeadLetter, Journal


class Settling:
    """Of one session. changed: called when something is to be written. max_deliver: how often one is delivered."""

    def __init__(
        self,
        client_id: str,
        max_deliver: int,
        queue: Queue,
        sending: Sending,
        losses: Losses,
        journal: Journal,
        changed: Callable[[], None],
    ) -> None:
        self._client_id = client_id
        self.max_deliver = max_deliver
        self._queue = queue
        self._sending = sending
        self._losses = losses
        self._journal = journal
        self._changed = changed

    def _settle(self, position: int) -> None:
        self._queue.remove(position)
        self._sending.settled(position)
        self._changed()

    # What the client says ----------------------------------------------------------------------------------------

    def consume(self, position: int) -> bool:
        """The client wants nothing up to the position any more. Returns False if it was never sent that far."""
        if not 0 <= position <= self._sending.sent:
            return False
        entries = self._queue.entries
        while entries:
            first = next(iter(entries))
            if first > position:
                break
            self._settle(first)
        return True

    def acknowledge(self, positions: Iterable[int]) -> bool:
        """The client is done with these. Returns False if one of them was never sent."""
        for position in positions:
            if position > self._sending.sent:
                return False
            if position in self._queue.entries:
                self._settle(position)
        return True

    def refuse(self, positions: Iterable[int]) -> bool:
        """The client wants these again. Returns False if one of them was never sent."""
        for position in positions:
            if position > self._sending.sent:
                return False
            if position not in self._sending.flight:
                continue  # settled, or of a former connection: then it comes anyway
            self.delivered([position])
            if position in self._queue.entries:
                self._sending.refuse(position)
                self._changed()
        return True

    def delivered(self, positions: Iterable[int]) -> None:
        """These were delivered once more, and not acknowledged."""
        for position in positions:
            entry = self._queue.entries.get(position)
            if entry is not None and self._sending.count(position) >= self.max_deliver:
                self._remove(entry, MAX_DELIVER)

    # Too much ----------------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Remove the oldest that may be removed until the session is within its quota."""
        queue = self._queue
        if not queue.over:
            return
        if not self._sending.window:
            while queue.entries and queue.over:
                self._remove(next(iter(queue.entries.values())), QUOTA)
            return
        ready = self._sending.ready
        while ready and queue.over:
            entry = queue.entries.get(ready[0])
            if entry is not None:
                if entry.blocks:
                    return
                self._remove(entry, QUOTA)
            ready.popleft()

    def _remove(self, entry: Entry, reason: str) -> None:
        if reason == MAX_DELIVER:
            deliveries = self._sending.deliveries.get(entry.position, 0)
            self._journal.write(DeadLetter(dead_letter(self._client_id, entry, deliveries)))
        self._losses.removed(entry, reason, sent=self._sending.had(entry.position))
        self._settle(entry.position)

    # Subscriptions that are no more ------------------------------------------------------------------------------

    def keep(self, live: Column) -> None:
        """Settle what waits for subscriptions that are not `live` (a mask by number): nobody wants it any more."""
        for entry in list(self._queue.entries.values()):
            if entry.position in self._sending.flight:
                continue
            numbers = columns.u32(entry.numbers)
            kept = numbers[live[numbers]]
            if len(kept) < len(numbers):
                self.narrow(entry, kept.tobytes())

    def only(self, held: Container[int]) -> None:
        """As `keep`, by the numbers that are held; for what is underway as well."""
        for entry in list(self._queue.entries.values()):
            numbers = columns.unpack(columns.UINT32, entry.numbers)
            kept = [number for number in numbers if number in held]
            if len(kept) < len(numbers):
                self.narrow(entry, columns.pack(columns.UINT32, kept))

    def narrow(self, entry: Entry, numbers: bytes) -> None:
        """It is for these alone; for nobody any more, if there are none."""
        if numbers:
            self._queue.narrow(entry, numbers)
            return
        if entry.position in self._sending.deliveries:
            self._losses.unwanted(entry.position)
        self._settle(entry.position)
