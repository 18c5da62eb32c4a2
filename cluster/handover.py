"""One exit point's part in a view change: what it knows of publishers goes to the exit points that follow it.

An exit point remembers the last sequence it has released of every publisher, so that a double is known. When exit
points come or go, some publishers get another one, which must know the same before it releases anything:

    Begin       what is known of publishers that move is copied, a little at a time         -> Ready
    released    everything of the former epoch is released: what has changed since the copy follows; EpochEnd to the
                connection points
    EpochEnded  from all: what was delivered here cannot be overtaken any more, and the followers hear that that was all
    taken       all former exit points have said so

Runs that are released here and not acknowledged stay, as their notifications are on their way; the follower holds a
place for each among its own, so that acknowledgements keep their order, and is told when they are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    EpochEnd,
    Instruction,
    Peer,
    PublisherState,
    PublisherStates,
    Ready,
    Send,
)
from cluster.routing import exit_point_of
from cluster.view import View

PublisherKey = tuple[str, int]
"""A publisher and its instance."""

STEP_PUBLISHERS = 500
"""Looked at in one step, at about 3 microseconds each."""


@dataclass(slots=True)
class Pending:
    """A released run that is not acknowledged: connection points still to say Delivered, and the disk if it is asked;
    then told to `client`.

    former:  it was released by the publisher's former exit point, which will say when it is done.
    outcome: how many of its publications are matched, not well-formed, and doubles.
    handed:  of those it waits for, the connection points.
    """

    waits: int
    client: int
    last: int
    rejected: list[tuple[int, str]]
    former: bool = False
    outcome: tuple[int, int, int] = (0, 0, 0)
    handed: int = 0


@dataclass(slots=True)
class Publisher:
    """A publisher's instance: the last sequence released; its runs that are not acknowledged, oldest first.

    follower: the exit point that it has now, if it is another one.
    covered:  the last sequence that a record of the matched output covers, or that needs none; -1 if that is not known.
              What is released beyond it matched nothing, so far.
    """

    released: int = 0
    pending: deque[Pending] = field(default_factory=deque)
    follower: int | None = None
    covered: int = -1


class Handover:
    """The part of the exit point `slot` in the change from `view` to `after`.

    publishers: the exit point's own; what moves away is taken out of it, what comes is put in.
    released:   everything of the former epoch is.
    taken:      what comes has come.
    """

    def __init__(self, slot: int, view: View, after: View, publishers: MutableMapping[PublisherKey, Publisher]) -> None:
        self.epoch = after.epoch
        self._slot = slot
        self._after = after
        self._publishers = publishers
        self._hands_over = view.exit_points != after.exit_points
        former = slot in view.exit_points
        self.released = not former
        connection_points = {*view.connection_points, *after.connection_points}
        # A change of nothing is asked for to have everything that is underway arrive.
        only_flushes = view.members == after.members and view.owners == after.owners
        parts = self._hands_over or only_flushes or view.connection_points != after.connection_points
        self._unended = connection_points if former and parts else set()
        self._handed_over = not former
        self._unheard = set(view.exit_points) - {slot} if self._hands_over and slot in after.exit_points else set()
        self._keys: deque[PublisherKey] | None = None  # still to be copied
        self._ready = False
        self._changed: dict[PublisherKey, None] = {}  # since they were copied
        self._coming: dict[PublisherKey, Publisher] = {}
        self._departed: dict[PublisherKey, Publisher] = {}

    @property
    def taken(self) -> bool:
        """Whether everything has come that comes from other exit points."""
        return not self._unheard

    # What moves away ---------------------------------------------------------------------------------------------

    def _follower(self, key: PublisherKey) -> int | None:
        follower = exit_point_of(self._after.exit_points, key[0])
        return None if follower == self._slot else follower

    def begin(self, out: list[Instruction]) -> None:
        """Start the copy."""
        if self._keys is None:
            self._keys = deque(self._publishers if self._hands_over and not self.released else ())
            self.step(out)

    def touched(self, key: PublisherKey) -> None:
        """Something of this publisher is released: what was copied of it is not the last word."""
        if self._hands_over and not self.released:
            self._changed[key] = None

    def step(self, out: list[Instruction]) -> bool:
        """Copy a little; return whether there is more to do at once."""
        if self._keys is None or self._ready:
            return False
        states: dict[int, list[PublisherState]] = {}
        for _ in range(min(STEP_PUBLISHERS, len(self._keys))):
            key = self._keys.popleft()
            publisher = self._publishers.get(key)
            follower = self._follower(key)
            if publisher is None or follower is None:
                continue
            states.setdefault(follower, []).append(PublisherState(*key, publisher.released, 0, publisher.covered))
            if publisher.pending:
                self._changed[key] = None
        for slot, some in states.items():
            out.append(Send(Peer(EXIT_POINT, slot), PublisherStates(self.epoch, some, False)))
        if not self._keys:
            self._ready = True
            out.append(Send(COORDINATOR_PEER, Ready(self.epoch, 0, 0)))
        return bool(self._keys)

    def release(self, out: list[Instruction]) -> None:
        """Everything of the former epoch has been released and sent on."""
        self.released = True
        if self._hands_over:
            self._part(out)
        for slot in sorted(self._unended):
            out.append(Send(Peer(CONNECTION_POINT, slot), EpochEnd(self.epoch)))
        if not self._unended:
            self._hand_over(out)

    def _part(self, out: list[Instruction]) -> None:
        """Send what has changed, and let go of the publishers that move."""
        states: dict[int, list[PublisherState]] = {}
        for key in list(self._publishers):
            follower = self._follower(key)
            if follower is None:
                continue
            publisher = self._publishers.pop(key)
            publisher.follower = follower
            if key in self._changed:
                state = PublisherState(*key, publisher.released, len(publisher.pending), publisher.covered)
                states.setdefault(follower, []).append(state)
            if publisher.pending:
                self._departed[key] = publisher
        for slot, some in sorted(states.items()):
            out.append(Send(Peer(EXIT_POINT, slot), PublisherStates(self.epoch, some, False)))

    def epoch_ended(self, connection_point: int, out: list[Instruction]) -> None:
        """A connection point has taken everything of the former epoch."""
        self._unended.discard(connection_point)
        if not self._unended and self.released:
            self._hand_over(out)

    def _hand_over(self, out: list[Instruction]) -> None:
        """Tell the followers that they may go on."""
        if self._handed_over:
            return
        self._handed_over = True
        if self._hands_over:
            for slot in self._after.exit_points:
                if slot != self._slot:
                    out.append(Send(Peer(EXIT_POINT, slot), PublisherStates(self.epoch, [], True)))

    # What comes --------------------------------------------------------------------------------------------------

    def arrived(self, slot: int, message: PublisherStates) -> dict[PublisherKey, Publisher]:
        """A former exit point tells what it knows; with the last word of the last one it takes effect.

        Returns the publishers of which it does. Before that nothing may be acknowledged for them: what the former exit
        point has acknowledged may still be on its way.
        """
        for state in message.states:
            coming = self._coming.setdefault((state.publisher, state.instance), Publisher())
            coming.released = max(coming.released, state.released)
            coming.covered = max(coming.covered, state.covered)
            coming.pending.extend(Pending(1, 0, 0, [], former=True) for _ in range(state.pending))
        if message.last:
            self._unheard.discard(slot)
            if not self._unheard:
                came, self._coming = self._coming, {}
                self._publishers.update(came)
                return came
        return {}

    def coming_or_departed(self, key: PublisherKey) -> Publisher:
        """Return a publisher that moves and has pending runs."""
        return self._coming[key] if key in self._coming else self._departed[key]

    @property
    def finished(self) -> bool:
        """Whether everything is handed over and taken, and no departed publisher is owed anything."""
        departing = any(publisher.pending for publisher in self._departed.values())
        return self._handed_over and self.taken and not departing
