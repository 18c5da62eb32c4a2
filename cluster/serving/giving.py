"""What is valid, to a subscription that wants it: before anything else.

From its Subscribe on until that is written nothing is taken from the session's outbox. `initial.py` says which
publications are given, `validity.py` finds them. What a durable session is given goes into its queue, which sees to the
order (`durable/`), whether or not there is a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from cluster import frames
from cluster.durable import DurableSession
from cluster.initial import Initial, frame_of
from cluster.journal import Journal, Took
from cluster.messages import ValidPublication
from cluster.serving.records import Session
from cluster.serving.shared import Shared
from cluster.validity import PIECE, Validity

SERVED_AT_ONCE = 16
"""Subscriptions of one session that are being given what is valid; each may have a piece here of every connection
point."""


class Giving:
    """Serves the subscriptions in `Session.serving`."""

    def __init__(self, shared: Shared, journal: Journal, validity: Validity) -> None:
        self._shared = shared
        self._journal = journal
        self._validity = validity

    def look_about(self) -> None:
        """See which connection points there are, those of the next view included."""
        slots: set[int] = set()
        for view in (self._shared.view, self._shared.next):
            if view is not None:
                slots.update(view.connection_points)
        self._validity.view(slots)

    def find(self) -> None:
        """Go on with what is asked about valid publications."""
        self._validity.step()
        if self._validity.found:
            found, self._validity.found = self._validity.found, set()
            for number in sorted({number for number, _ in found}):
                session = self._shared.sessions.get(number)
                if session is not None:
                    self._shared.touched[number] = session
        if self._validity.withdrawn:
            withdrawn, self._validity.withdrawn = self._validity.withdrawn, []
            for number, request in withdrawn:
                connection = self._shared.connections.get(number)
                if connection is not None and connection.session is not None:
                    self._shared.write(connection.session, frames.Done(request))

    def give(self, number: int, session: Session) -> None:
        """Write what is valid, as the client has credit, and see to it that more comes."""
        asking = (initial for initial in session.serving.values() if initial.asking)
        for initial in list(islice(asking, SERVED_AT_ONCE)):
            while room := session.outbox.room:
                given, passed = initial.take(min(room, PIECE), self._shared.limits.frame_bytes // 2)
                self._note_settled((*given, *passed))
                over = initial.over
                if given or over:
                    self._shared.write(session, frame_of(initial.number, given, last=over))
                    self._shared.counters["valid_given"] += len(given)
                if given:
                    session.outbox.send_past(len(given), sum(len(one.payload) + 28 for one in given))
                if over:
                    self._validity.forget(number, initial)
                    del session.serving[initial.number]
                    if not initial.prune(self._shared.watermarks.upto):
                        del session.initials[initial.number]
                if over or not given:
                    break
            else:
                return  # it has no credit left
            if not initial.over:
                self._validity.ask_more(number, initial)

    def queue(self, number: int, session: Session, durable: DurableSession) -> None:
        """Put what is valid into a durable session's queue, as far as there is room, and see to it that more comes."""
        asking = (initial for initial in session.serving.values() if initial.asking)
        for initial in list(islice(asking, SERVED_AT_ONCE)):
            if self._queue_some(durable, initial):
                self._validity.forget(number, initial)
                durable.served(initial.number)
                if not initial.prune(self._came(session)):
                    del session.initials[initial.number]
            elif durable.has_room(initial.number):
                self._validity.ask_more(number, initial)

    def _queue_some(self, durable: DurableSession, initial: Initial) -> bool:
        """Return whether that was all."""
        while not initial.over and durable.has_room(initial.number):
            given, passed = initial.take(PIECE, self._shared.limits.frame_bytes // 2)
            if not given and not passed:
                break
            for key in self._note_settled((*given, *passed)):
                # A later life must not take it for new either.
                self._journal.write(Took(*key, self._shared.watermarks.upto(key)))
            for one in (*given, *passed):
                if one.settled:
                    durable.mark((one.publisher, one.instance), one.sequence)
            durable.give(initial.number, given)
            self._shared.counters["valid_given"] += len(given)
        return initial.over

    def _note_settled(self, publications: tuple[ValidPublication, ...]) -> dict[tuple[str, int], None]:
        """Of these, what is settled, and all before it, is not new any more if it is sent again; return whose it is."""
        lives: dict[tuple[str, int], None] = {}
        for one in publications:
            if one.settled:
                self._shared.watermarks.raise_to((one.publisher, one.instance), one.sequence)
                lives[one.publisher, one.instance] = None
        return lives

    def _came(self, session: Session) -> Callable[[tuple[str, int]], int]:
        """Return what tells the last sequence that came live of a publisher."""
        if session.durable is not None and session.durable.marks is not None:
            return session.durable.marks.upto
        return self._shared.watermarks.upto

    def forget_given(self) -> None:
        """Let go of what can't come live any more."""
        for session in self._shared.sessions.values():
            for number, initial in list(session.initials.items()):
                if number not in session.serving and not initial.prune(self._came(session)):
                    del session.initials[number]

    def forget(self, session: Session, number: int) -> None:
        """The session's connection is gone: nobody wants the rest."""
        for initial in session.serving.values():
            self._validity.forget(number, initial)
