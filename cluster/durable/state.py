"""A durable session's own part of what is on disk, in one piece: `SaveSession` and `HandSession` hold it."""

from __future__ import annotations

import msgspec

from cluster.durable.losses import Untold
from cluster.durable.places import Given, Placed


class State(msgspec.Struct, array_like=True):
    """Everything but subscriptions, notifications, deliveries and marks.

    upto, settled: up to there all is settled; ranges above it that are. window: of the connection, 0 without one.
    untold: what was removed and the client was not told of.
    places: of each subscription that is being served, in order. given: as valid, and may still come live.
    name:   what its client knows it by. arriving, frozen_to: see DurableSession. moved: it has marks.
    """

    client_id: str
    instance: int
    expires_s: int
    max_deliver: int
    next_position: int
    upto: int
    settled: list[tuple[int, int]]
    window: int
    untold: Untold
    places: list[Placed] = []
    given: list[Given] = []
    name: int = 0
    arriving: tuple[int, int] | None = None
    frozen_to: int | None = None
    moved: bool = False

    @property
    def sent(self) -> int:
        """The highest position that was settled, and so sent."""
        return max((self.upto, *(last for _, last in self.settled)))


decode_state = msgspec.msgpack.Decoder(State).decode
decode_deliveries = msgspec.msgpack.Decoder(dict[int, int]).decode
