"""Durable sessions that are about to move here, from a connection point that is to leave: the receiver's half.

    coming     its subscriptions come, piece by piece
    opening    they are on disk, and the matchers are asked to hold them under a number of this connection point
    held       they do: what they match is owed to the session (on disk, at positions far behind), the former home is
               told, and told again until it goes on
    finishing  everything that the former home has is here and is being written, in one portion
    (home)     that is on disk: the session lives here. The former home hears of it when the coordinator has

`handing.py` is the other half. A crash here loses nothing of what was promised: a session that was opened is on disk as
one that arrives, and what is not is told again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import msgspec

from cluster.durable import DurableSession, Held, OneEntry
from cluster.homes import Homes
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    AboutHandover,
    BringSession,
    DurableMoved,
    HandSession,
    HomeFound,
    KeepSession,
    Peer,
    Relay,
    Send,
    client_key,
    subscription_id,
)
from cluster.routing import access_point_of
from cluster.serving.attaching import Attaching
from cluster.serving.changes import Changes
from cluster.serving.leaving import Leaving
from cluster.serving.records import Session
from cluster.serving.sessions import Sessions
from cluster.serving.shared import Shared
from cluster.validity import Validity

TELL_AGAIN_MS = 1_000

_entries_decoder = msgspec.msgpack.Decoder(list[tuple[int, OneEntry]])


@dataclass(slots=True)
class Arrival:
    """A session that is to come. source: its home.

    subscriptions: those that have come, up to the piece at `place`; session: once they all have, on disk with
                   `portion`.
    frozen:        its home takes nothing for it any more.
    handed:        of the other pieces, those that have come.
    """

    source: int
    handover: int
    after: int
    place: int = 0
    subscriptions: dict[int, Held] = field(default_factory=dict)
    session: Session | None = None
    portion: int = 0
    held: bool = False
    frozen: bool = False
    told_ms: int = 0
    handed: list[HandSession] = field(default_factory=list)
    finishing: bool = False


class Taking:
    """The machine.

    _taken: client id -> (former home, handover) of those that live here and of which the coordinator is not sure to
            know; told at `_told_ms`.
    """

    def __init__(
        self,
        shared: Shared,
        homes: Homes,
        sessions: Sessions,
        changes: Changes,
        attaching: Attaching,
        leaving: Leaving,
        validity: Validity,
    ) -> None:
        self._shared = shared
        self._homes = homes
        self._journal = homes.journal
        self._sessions = sessions
        self._changes = changes
        self._attaching = attaching
        self._leaving = leaving
        self._validity = validity
        self._arrivals: dict[str, Arrival] = {}
        self._taken: dict[str, tuple[int, int]] = {}
        self._told_ms = 0

    def restore(self) -> None:
        """Take up what an earlier incarnation has had opened."""
        for durable in self._homes.arriving:
            assert durable.arriving is not None, "at home"
            arrival = self._arrivals[durable.client_id] = Arrival(*durable.arriving, durable.after())
            arrival.session = self._shared.sessions[durable.number]

    def received(self, sender: int, content: BringSession | HandSession | KeepSession) -> None:
        """Take what the former home says."""
        match content:
            case BringSession():
                self._bring(sender, content)
            case HandSession():
                self._hand(sender, content)
            case KeepSession(handover, client_id):
                arrival = self._arrivals.get(client_id)
                if arrival is not None and arrival.handover == handover and not arrival.finishing:
                    self._forget(client_id, arrival)

    def _answer(self, slot: int, handover: int, client_id: str, word: str, place: int = 0) -> None:
        if not self._shared.recovering and self._shared.view is not None:
            self._shared.relay(Relay(self._shared.slot, [slot], AboutHandover(handover, client_id, word, place)))

    def _is_home(self, sender: int, handover: int, client_id: str) -> bool:
        """Say so if the session lives here, once the coordinator knows."""
        durable = self._homes.find(client_id)
        if durable is None:
            return False
        if durable.frozen_to is not None:
            return True  # it has come from here, which this one does not know yet, and is to come back; asked again
        self._taken[client_id] = sender, handover
        self._tell_coordinator()
        return True

    def _bring(self, sender: int, message: BringSession) -> None:
        client_id = message.client_id
        if self._is_home(sender, message.handover, client_id):
            return
        arrival = self._arrivals.get(client_id)
        if arrival is not None and arrival.finishing:
            return
        if arrival is not None and arrival.handover != message.handover:
            if arrival.session is not None and message.frozen and arrival.source == sender:
                # Another incarnation of a home that takes nothing any more: what is here is the only copy.
                durable = arrival.session.durable
                assert durable is not None, "not durable"
                arrival.handover = message.handover
                durable.arriving = sender, message.handover
                self._journal.changed(durable)
                arrival.handed = []
            else:
                self._forget(client_id, arrival)
                arrival = None
        if arrival is None:
            if self._leaving.takes_none and not message.frozen:
                self._answer(sender, message.handover, client_id, "refused")
                return
            arrival = self._arrivals[client_id] = Arrival(sender, message.handover, message.after)
        arrival.frozen = arrival.frozen or message.frozen
        if arrival.session is not None:
            if arrival.held:
                self._tell_held(client_id, arrival)
            return
        if message.place == arrival.place:
            arrival.place += 1
            for number, filter, policy, normal_form in message.subscriptions:
                arrival.subscriptions[number] = Held(filter, policy, normal_form)
            if message.last:
                self._open(client_id, arrival)
                return
        self._answer(sender, arrival.handover, client_id, "next", arrival.place)

    def _open(self, client_id: str, arrival: Arrival) -> None:
        assert self._shared.view is not None, "a session before a view"
        number = self._sessions.number()
        durable = self._homes.arrive(number, client_id)
        durable.arrive(arrival.after, arrival.source, arrival.handover, arrival.subscriptions)
        key = client_key(self._shared.slot, number)
        access_point = Peer(ACCESS_POINT, access_point_of(self._shared.view, key))
        session = arrival.session = self._attaching.detached(durable, access_point)
        arrival.portion = self._journal.present
        changes = []
        for own, held in sorted(durable.subscriptions.items()):
            session.subscriptions[own] = self._changes.note(
                number, None, None, subscription_id(key, own), held.normal_form
            )
            changes.append(session.subscriptions[own])
        if changes:
            self._shared.naming.name(key, client_id)
            self._changes.send(session.access_point, changes)

    def _forget(self, client_id: str, arrival: Arrival) -> None:
        del self._arrivals[client_id]
        if arrival.session is not None:
            self._attaching.discard(arrival.session)

    # What is owed ------------------------------------------------------------------------------------------------

    def _hand(self, sender: int, message: HandSession) -> None:
        client_id = message.client_id
        if self._is_home(sender, message.handover, client_id):
            return
        arrival = self._arrivals.get(client_id)
        if arrival is None or arrival.handover != message.handover or arrival.session is None:
            self._answer(sender, message.handover, client_id, "unknown")
            return
        if arrival.finishing:
            return
        if message.place == len(arrival.handed):
            arrival.handed.append(message)
            if message.last:
                self._finish(client_id, arrival)
                return
        self._answer(sender, arrival.handover, client_id, "next", len(arrival.handed))

    def _finish(self, client_id: str, arrival: Arrival) -> None:
        session, pieces = arrival.session, arrival.handed
        assert session is not None, "handed over before it was opened"
        durable = session.durable
        assert durable is not None, "not durable"
        arrival.finishing = True
        entries = [entry for piece in pieces if piece.entries for entry in _entries_decoder.decode(piece.entries)]
        marks = [mark for piece in pieces for mark in piece.marks]
        durable.take_over(pieces[0].state, pieces[0].deliveries, entries, marks)
        arrival.handed = []
        self._journal.then(partial(self._is_here, client_id, arrival, durable))

    def _is_here(self, client_id: str, arrival: Arrival, durable: DurableSession) -> None:
        """It is on disk."""
        del self._arrivals[client_id]
        self._homes.take_over(durable)
        self._shared.touched[durable.number] = self._shared.sessions[durable.number]
        if not self._shared.recovering:
            for initial in durable.serving.values():
                if not initial.asking:
                    self._validity.ask(durable.number, initial)  # the matchers have it here
        self._taken[client_id] = arrival.source, arrival.handover
        self._tell_coordinator()

    def _tell_coordinator(self) -> None:
        self._told_ms = self._shared.now_ms
        for client_id in self._taken:
            self._shared.out.append(Send(COORDINATOR_PEER, DurableMoved(client_id)))

    def home_known(self, message: HomeFound) -> None:
        """The coordinator knows: the former home may forget it."""
        if message.home == self._shared.slot and message.client_id in self._taken:
            source, handover = self._taken.pop(message.client_id)
            self._answer(source, handover, message.client_id, "taken")

    # Rounds and time ---------------------------------------------------------------------------------------------

    @property
    def underway(self) -> bool:
        """Some session is to come."""
        return bool(self._arrivals)

    def step(self) -> None:
        """See which are held by now."""
        for client_id, arrival in self._arrivals.items():
            session = arrival.session
            if session is None or arrival.held or self._shared.recovering or session.unanswered:
                continue
            if self._journal.has(arrival.portion) and not self._attaching.awaits(session):
                arrival.held = True
                self._tell_held(client_id, arrival)

    def _tell_held(self, client_id: str, arrival: Arrival) -> None:
        arrival.told_ms = self._shared.now_ms
        # If this connection point is to leave itself, it had better be another one; unless there is no way back.
        word = "refused" if self._leaving.takes_none and not arrival.frozen else "held"
        self._answer(arrival.source, arrival.handover, client_id, word)

    def tick(self, now_ms: int) -> None:
        """Say again what may not have been heard; who knows nothing of it says so."""
        if self._shared.recovering:
            return
        for client_id, arrival in self._arrivals.items():
            if arrival.held and not arrival.handed and now_ms - arrival.told_ms >= TELL_AGAIN_MS:
                self._tell_held(client_id, arrival)
        if self._taken and now_ms - self._told_ms >= TELL_AGAIN_MS:
            self._tell_coordinator()
