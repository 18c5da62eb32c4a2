"""What was removed from a durable session's queue, until the client is told: too much, or delivered too often."""

from __future__ import annotations

import msgspec

from cluster import columns
from cluster.durable.entries import Entry
from cluster.frames import Dropped

QUOTA, MAX_DELIVER, CLOSED = "quota", "max_deliver", "closed"
"""Why a notification is removed; the last is no loss, and tells the client that a position does not come again."""

Untold = dict[str, tuple[int, dict[int, int]]]
"""Reason -> (notifications, number of a subscription -> how many)."""


class Losses:
    """Of one session. untold: what the client was not told of.

    _positions: of these, by reason, what it was sent before. _dropped, _dead: see take_counts.
    """

    def __init__(self) -> None:
        self._dropped = self._dead = 0
        self.untold: Untold = {}
        self._positions: dict[str, list[int]] = {}

    def removed(self, entry: Entry, reason: str, *, sent: bool) -> None:
        """A notification is removed. sent: the client may have had it."""
        if reason == MAX_DELIVER:
            self._dead += 1
        else:
            self._dropped += 1
        notifications, counts = self.untold.get(reason, (0, {}))
        for number in columns.unpack(columns.UINT32, entry.numbers):
            counts[number] = counts.get(number, 0) + 1
        self.untold[reason] = notifications + 1, counts
        if sent:
            self._positions.setdefault(reason, []).append(entry.position)

    def take_counts(self) -> tuple[int, int]:
        """Return how many were removed for want of room, and how many went to the dead letters, since last asked."""
        counts = self._dropped, self._dead
        self._dropped = self._dead = 0
        return counts

    def unwanted(self, position: int) -> None:
        """Its subscriptions were closed after it was sent."""
        self.untold.setdefault(CLOSED, (0, {}))
        self._positions.setdefault(CLOSED, []).append(position)

    def take(self) -> list[Dropped]:
        """Return what the client is to be told, once."""
        frames = [
            Dropped(
                reason,
                notifications,
                sorted(counts.items()),
                columns.pack(columns.UINT64, self._positions.get(reason, ())),
            )
            for reason, (notifications, counts) in self.untold.items()
        ]
        self.untold = {}
        self._positions = {}
        return frames


def dead_letter(client_id: str, entry: Entry, deliveries: int) -> bytes:
    """Return the line for a notification that was delivered so often and never acknowledged."""
    return msgspec.json.encode(
        {
            "client_id": client_id,
            "position": entry.position,
            "reason": MAX_DELIVER,
            "deliveries": deliveries,
            "publisher": entry.run[0],
            "sequence": entry.sequence,
            "instance": entry.run[1],
            "time_us": entry.run[2],
            "subscriptions": columns.unpack(columns.UINT32, entry.numbers),
            "attributes": msgspec.msgpack.decode(entry.payload),
        }
    )
