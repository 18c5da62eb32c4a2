"""Changes of subscriptions between the clients and the matchers: their numbers, and which are not answered.

What clients that have gone had is removed a little at a time: ten of them, with ten thousand subscriptions each, may go
at once, and nobody is to be busy with that alone for a second.

In a recovery they are sent again: first the subscriptions that a new matcher lacks and the changes that are not
answered, a little at a time (`rebuilding.py`); what clients that left meanwhile had is removed after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    NUMBER_BITS,
    Again,
    ChangeSubscriptions,
    ClientKey,
    Peer,
    Rebuilt,
    Renew,
    Send,
    SubscriptionChange,
    client_key,
    subscription_id,
)
from cluster.rebuilding import Rebuilding
from cluster.routing import access_point_of
from cluster.serving.gathering import Gathering
from cluster.serving.records import Change, Session
from cluster.serving.shared import SESSION_MASK, SUBSCRIPTION_MASK, Shared
from cluster.view import View

CHANGES_UNDERWAY = 1024
CHANGE_BYTES_UNDERWAY = 128 << 10
"""Changes, and bytes of normal forms, that may await the matchers' answer; one change may go over it. A matcher takes
about 30 ms for a normal form at the limit of 1,024 conjunctions, which all others wait for."""
REMOVALS_UNDERWAY = 500
"""Of them, those for clients that have gone: the rest is for the requests of those who are there. A matcher takes some
five milliseconds for so many."""


class Changes:
    """Numbers changes, sends them, and knows which are not answered.

    underway:   by number, what the matchers have not answered; `_bytes` of normal forms in all.
    rebuilding: what is sent again in a recovery, until all of it is answered.
    _left:      the keys of sessions that are no more, each with what is still to be removed of it, never nothing.
    _removals:  what was sent for those and is not answered.
    _unsent:    what came up since the recovery began.
    """

    def __init__(self, shared: Shared, incarnation: int, gathering: Gathering) -> None:
        self._shared = shared
        self._gathering = gathering
        self._next = incarnation << NUMBER_BITS
        self.underway: dict[int, Change] = {}
        self._bytes = 0
        self._left: deque[tuple[ClientKey, deque[int]]] = deque()
        self._removals: set[int] = set()
        self._unsent: list[tuple[Peer, list[SubscriptionChange]]] = []
        self.rebuilding: Rebuilding | None = None

    @property
    def full(self) -> bool:
        """Whether no more are to come until some are answered."""
        return len(self.underway) >= CHANGES_UNDERWAY or self._bytes >= CHANGE_BYTES_UNDERWAY

    @property
    def settled(self) -> bool:
        """Whether the matchers have answered everything, and know of all who are gone."""
        return not self.underway and not self._left

    def number(self) -> int:
        """Return the number of the next change; above those of any incarnation before."""
        self._next += 1
        return self._next

    def note(
        self, session: int, request: int | None, closed: int | None, subscription: int, normal_form: bytes | None
    ) -> SubscriptionChange:
        """Return a change under a new number, which is underway from here. closed: the subscription's, if it ends."""
        change = SubscriptionChange(self.number(), subscription, normal_form)
        size = len(normal_form or b"")
        self.underway[change.change] = Change(session, request, closed, size, change)
        self._bytes += size
        owner = self._shared.sessions.get(session)
        if owner is not None and owner.durable is not None:
            owner.unanswered += 1
        return change

    def answered(self, numbers: list[int]) -> list[Change]:
        """Take note that the matchers have answered; return the changes, without those answered before."""
        answered = []
        for number in numbers:
            if self.rebuilding is not None:
                self.rebuilding.answered(number)
            self._removals.discard(number)
            change = self.underway.pop(number, None)
            if change is None:
                continue  # answered before, and sent again in a recovery
            self._bytes -= change.size
            answered.append(change)
        return answered

    def close_all(self, session: Session) -> None:
        """The session is no more: the matchers are to forget what it holds, and nobody waits for their answer."""
        if session.subscriptions:
            self._left.append((session.key, deque(sorted(session.subscriptions))))
            self.remove_left()

    def remove_left(self) -> None:
        """Have the matchers forget some of what is nobody's any more; more of it once they have answered."""
        shared = self._shared
        if shared.recovering:
            return
        while self._left and (room := REMOVALS_UNDERWAY - len(self._removals)) > 0:
            key, numbers = self._left[0]
            changes = [
                self.note(key & SESSION_MASK, None, None, subscription_id(key, numbers.popleft()), None)
                for _ in range(min(room, len(numbers)))
            ]
            if not numbers:
                self._left.popleft()  # with its last change, not later: the last answer is to find nothing left
            assert shared.view is not None, "a session before a view"
            self._removals.update(change.change for change in changes)
            self.send(Peer(ACCESS_POINT, access_point_of(shared.view, key)), changes)

    def send(self, access_point: Peer, changes: list[SubscriptionChange]) -> None:
        """Have the matchers told, behind what was published before."""
        if self._shared.recovering:
            self._unsent.append((access_point, changes))
            return
        self._gathering.change(access_point, changes)

    # Recovery -----------------------------------------------------------------------------------------------------

    def void(self) -> None:
        """A recovery begins; what another one was to send again is asked for anew."""
        self.rebuilding = None

    def rebuild(self, view: View, matchers: set[int], *, everything: bool) -> None:
        """Send the subscriptions again that these new matchers lack, or all, and the changes that are not answered."""
        for slot in view.access_points:
            self._shared.out.append(Send(Peer(ACCESS_POINT, slot), Renew(view.epoch)))
        self._unsent = []
        self.rebuilding = Rebuilding(self._to_rebuild(view, matchers, everything, list(self.underway.values())))
        self.send_again()

    def _to_rebuild(
        self, view: View, matchers: set[int], everything: bool, changes: list[Change]
    ) -> Iterator[tuple[Peer, SubscriptionChange]]:
        """Yield what is to be sent again, each with the access point that it goes by."""
        for change in changes:
            if change.message.change in self.underway and not self._superseded(change):
                key = client_key(self._shared.slot, change.session)
                yield Peer(ACCESS_POINT, access_point_of(view, key)), change.message
        if not matchers and not everything:
            return
        for session in list(self._shared.sessions.values()):
            for held in list(session.subscriptions.values()):
                if everything or view.owner(held.subscription) in matchers:
                    yield session.access_point, held

    def _superseded(self, change: Change) -> bool:
        """Tell whether there is a newer change of the same subscription: nobody may apply this one any more."""
        session = self._shared.sessions.get(change.session)
        number = change.message.subscription & SUBSCRIPTION_MASK
        held = None if session is None else session.subscriptions.get(number)
        if change.message.normal_form is None:
            return held is not None
        return held is not change.message

    def send_again(self) -> None:
        """Go on with the rebuilding, as far as answers are not too many behind."""
        if self.rebuilding is None:
            return
        for access_point, changes in self.rebuilding.step().items():
            self._shared.out.append(Send(access_point, ChangeSubscriptions(changes)))
        if self.rebuilding.more:
            self._shared.out.append(Again())
        self.see_rebuilt()

    def see_rebuilt(self) -> None:
        """Say so if everything was sent again and answered."""
        if self.rebuilding is not None and self.rebuilding.done:
            assert self._shared.view is not None, "rebuilt without a view"
            self.rebuilding = None
            self._shared.out.append(Send(COORDINATOR_PEER, Rebuilt(self._shared.view.epoch)))

    def outdated(self) -> list[int]:
        """Return the changes that nobody may apply any more."""
        return [number for number, change in self.underway.items() if self._superseded(change)]

    def send_unsent(self) -> None:
        """The recovery is over."""
        unsent, self._unsent = self._unsent, []
        for access_point, changes in unsent:
            self.send(access_point, changes)
        self.remove_left()
