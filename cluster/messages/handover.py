"""Durable sessions change their home: what connection points say to each other about it.

A connection point that is to leave hands its durable sessions to others; `serving/handing.py` has the story. It goes in
a Relay, in pieces, each answered; what is not answered is said again.
"""

from __future__ import annotations

import msgspec


class BringSession(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=7, gc=False):
    """The sender is to leave: hold these subscriptions of a durable session beside it.

    handover: names the attempt, with the sender. frozen: the sender takes nothing for the session any more.
    after:    what comes for it gets positions from here on.
    place:    the piece's, from 0 on; last: that was all. subscriptions: (number, filter, policy, normal form).
    """

    handover: int
    client_id: str
    frozen: bool
    after: int
    place: int
    last: bool
    subscriptions: list[tuple[int, str, str, bytes]]


class HandSession(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=8, gc=False):
    """What the session is owed, and all else; with the last piece it is the receiver's.

    state, deliveries: as they are on disk; of the first piece. entries: (position, entry as on disk), encoded.
    marks: (publisher, instance, sequence), up to where the sender has taken of each.
    """

    handover: int
    client_id: str
    place: int
    last: bool
    state: bytes
    deliveries: bytes
    entries: bytes
    marks: list[tuple[str, int, int]]


class AboutHandover(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=9, gc=False):
    """The answer. word: `next` (the piece at `place` is wanted), `held` (the matchers have the subscriptions), `taken`
    (it lives at the sender), `refused` (it is to leave itself), `unknown` (it is to be brought first)."""

    handover: int
    client_id: str
    word: str
    place: int


class KeepSession(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=10, gc=False):
    """The session stays where it is: forget what was brought in this attempt."""

    handover: int
    client_id: str


AboutSession = BringSession | HandSession | AboutHandover | KeepSession
