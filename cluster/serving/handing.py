"""A connection point that is to leave hands its durable sessions to those that stay: the former home's half.

    bringing   another connection point is told the session's subscriptions, and has the matchers hold them for it too
               (`taking.py`); from then on what they match is on disk there as well
    held       it has said so. When all sessions are, a view change of nothing is asked for
    freezing   that has begun after all were held, and is through: whatever is matched from its beginning on is the
               other's, and all that was matched before has come here. That nothing more is taken here is put on disk
    handing    it is there: clients are sent away, and everything that a session has goes over, with how far this
               connection point has taken of each publisher, so that the other one knows what it has twice
    (gone)     the other one has it all on disk, and the coordinator knows its new home

Up to freezing it can be taken back: the other one forgets what was brought. From there on it goes to its end, also in a
later incarnation, which finds on disk that its sessions are frozen, and says everything again; what was put off by a
crash of the other one is said again too. Whoever of the two is asked, there is one answer to where the session lives:
here, until the other one has had all of it written.

From bringing on the subscriptions of these sessions stay as they are: who asks for a change waits. All sessions are
frozen at once, while none arrives here itself, and no new one begins before they are gone; so what is on disk of how
far publishers got is right for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from cluster.durable import OneEntry
from cluster.frames import Bye
from cluster.homes import Homes
from cluster.messages import AboutHandover, BringSession, HandSession, KeepSession, Relay
from cluster.serving.connections import Connections
from cluster.serving.records import Session
from cluster.serving.shared import Shared
from cluster.watermarks import Watermarks

ASK_AGAIN_MS = 1_000
PIECE_BYTES = 32 << 10
"""In one message, as far as its last part does not go over it."""
ENTRY_BYTES = 100
"""What a part of a piece takes beside its texts, about."""


@dataclass(slots=True)
class Hand:
    """A session on its way. receiver: who is to have it, None while nobody can; refused: who is to leave as well.

    pieces: of what it is being told; the one at `place` is not answered, and was sent at `asked_ms`.
    """

    session: Session
    handover: int
    receiver: int | None = None
    refused: set[int] = field(default_factory=set)
    pieces: list[BringSession | HandSession] = field(default_factory=list)
    place: int = 0
    asked_ms: int = 0
    held: bool = False


class Handing:
    """The machine. end: called with a session that lives elsewhere now.

    frozen: nothing is taken for the sessions that go. _flushes: a view change has begun since all were held.
    """

    def __init__(
        self, shared: Shared, incarnation: int, homes: Homes, connections: Connections, end: Callable[[Session], None]
    ) -> None:
        self._shared = shared
        self._homes = homes
        self._journal = homes.journal
        self._connections = connections
        self._end = end
        self._next = incarnation << 40
        self._hands: dict[str, Hand] = {}
        self._addresses: list[str] = []
        self._flushes = False
        self._freezes = False
        self.frozen = False
        self._marks = Watermarks(0)
        self._portion = 0  # in which the last end of a session is written

    @property
    def forgotten(self) -> bool:
        """A later incarnation of the slot will not find any session that has ended."""
        return self._journal.has(self._portion)

    @property
    def underway(self) -> bool:
        """Some session is on its way, or is to be."""
        return bool(self._hands)

    @property
    def all_held(self) -> bool:
        """A view change of nothing is due."""
        if self._freezes or self._homes.arriving:
            return False
        return bool(self._hands) and all(hand.held for hand in self._hands.values())

    @property
    def settled(self) -> bool:
        """It cannot be taken back."""
        return self._freezes

    def restore(self) -> None:
        """An earlier incarnation may have frozen its sessions: they go on."""
        for client_id in self._homes.client_ids:
            durable = self._homes.find(client_id)
            assert durable is not None, "just listed"
            if durable.frozen_to is not None:
                self._freezes = self.frozen = True
                self._add(self._shared.sessions[durable.number]).receiver = durable.frozen_to
        self._marks = self._shared.watermarks.copy()

    def begin(self, addresses: list[str]) -> None:
        """All that live here are to go. addresses: where their clients may ask for them."""
        self._addresses = addresses
        if self._freezes:
            return
        for client_id in self._homes.client_ids:
            durable = self._homes.find(client_id)
            if client_id not in self._hands and durable is not None:
                self._bring(self._add(self._shared.sessions[durable.number]))

    def stay(self) -> None:
        """They are not to go after all; nothing happens if that is settled."""
        if self._freezes:
            return
        hands, self._hands = self._hands, {}
        for hand in hands.values():
            self._tell_to_keep(hand)
        self._flushes = False

    def ended(self, session: Session) -> None:
        """The session is no more."""
        self._portion = self._journal.present
        hand = self._hands.pop(session.client_id, None)
        if hand is not None and not self._freezes:
            self._tell_to_keep(hand)
        if not self._hands:
            self._freezes = self.frozen = self._flushes = False

    def _tell_to_keep(self, hand: Hand) -> None:
        if hand.receiver is not None:
            self._tell(hand.receiver, KeepSession(hand.handover, hand.session.client_id))

    def _add(self, session: Session) -> Hand:
        self._next += 1
        hand = self._hands[session.client_id] = Hand(session, self._next)
        return hand

    # To the other home -------------------------------------------------------------------------------------------

    def _bring(self, hand: Hand) -> None:
        """Tell the subscriptions, to another one if there is one."""
        self._flushes = False
        durable = hand.session.durable
        assert durable is not None, "not durable"
        if hand.receiver is None:
            view = self._shared.view
            others = [] if view is None else [slot for slot in view.connection_points if slot != self._shared.slot]
            able = [slot for slot in others if slot not in hand.refused]
            if not able:
                hand.refused.clear()  # asked again in a while: others are to come, or some of these will stay after all
                hand.asked_ms = self._shared.now_ms
                return
            hand.receiver = able[durable.number % len(able)]
        portions: list[list[tuple[int, str, str, bytes]]] = [[]]
        size = 0
        for number, held in sorted(durable.subscriptions.items()):
            portions[-1].append((number, *held))
            size += len(held.filter) + len(held.normal_form) + ENTRY_BYTES
            if size > PIECE_BYTES:
                portions.append([])
                size = 0
        after, last = durable.after(), len(portions) - 1
        hand.pieces = [
            BringSession(hand.handover, durable.client_id, self.frozen, after, place, place == last, portion)
            for place, portion in enumerate(portions)
        ]
        hand.held = False
        self._say(hand, 0)

    def _hand(self, hand: Hand) -> None:
        """Tell everything."""
        durable = hand.session.durable
        assert durable is not None, "not durable"
        state, deliveries, entries = durable.handed()
        name, keep = durable.client_id, hand.handover
        pieces = [HandSession(keep, name, 0, False, state, deliveries, b"", [])]
        portion: list[tuple[int, OneEntry]] = []
        size = 0
        for place, entry in enumerate(entries, 1):
            portion.append(entry)
            size += len(entry[1].payload) + len(entry[1].numbers) + ENTRY_BYTES
            if size > PIECE_BYTES or place == len(entries):
                encoded = msgspec.msgpack.encode(portion)
                pieces.append(HandSession(keep, name, len(pieces), False, b"", b"", encoded, []))
                portion, size = [], 0
        marks = self._marks if durable.marks is None else durable.marks
        flat = [(*life, upto) for life, upto in marks.items()]
        most = PIECE_BYTES // ENTRY_BYTES
        for begin in range(0, len(flat), most):
            pieces.append(HandSession(keep, name, len(pieces), False, b"", b"", b"", flat[begin : begin + most]))
        pieces[-1] = msgspec.structs.replace(pieces[-1], last=True)
        hand.pieces = [*pieces]
        self._say(hand, 0)

    def _say(self, hand: Hand, place: int) -> None:
        hand.place = place
        hand.asked_ms = self._shared.now_ms
        if hand.receiver is not None and place < len(hand.pieces):
            self._tell(hand.receiver, hand.pieces[place])

    def _give_up(self, hand: Hand) -> None:
        """It is to be another one."""
        self._next += 1
        hand.handover = self._next
        hand.receiver = None

    def _tell(self, slot: int, content: BringSession | HandSession | KeepSession) -> None:
        if not self._shared.recovering and self._shared.view is not None:
            self._shared.relay(Relay(self._shared.slot, [slot], content))

    def received(self, sender: int, answer: AboutHandover) -> None:
        """The other one answers."""
        hand = self._hands.get(answer.client_id)
        if hand is None or hand.handover != answer.handover:
            if answer.word == "held" and not (hand is not None and self._freezes):
                self._tell(sender, KeepSession(answer.handover, answer.client_id))
            return
        if sender != hand.receiver:
            return
        match answer.word:
            case "next" if answer.place != hand.place:
                self._say(hand, answer.place)  # or, after a crash of the other one, back to the first
            case "held" if not hand.held:
                hand.held = True
                if self.frozen:
                    self._hand(hand)
            case "refused" if not self._freezes:
                self._tell_to_keep(hand)
                hand.refused.add(sender)
                self._give_up(hand)
                self._bring(hand)
            case "unknown" if self.frozen and hand.held:
                self._bring(hand)
            case "taken":
                self._end(hand.session)
            case _:
                pass

    # The cut -----------------------------------------------------------------------------------------------------

    def view_change(self) -> None:
        """A view change begins."""
        self._flushes = self.all_held

    def void(self) -> None:
        """A recovery has ended it."""
        self._flushes = False

    def flushed(self) -> None:
        """The view change is through: nothing of the former epoch is on its way here."""
        if not self._flushes or not self.all_held:
            return
        self._flushes = False
        self._freezes = True
        for hand in self._hands.values():
            assert hand.session.durable is not None, "not durable"
            assert hand.receiver is not None, "held by nobody"
            hand.session.durable.freeze(hand.receiver)
        self._journal.then(self._freeze)

    def _freeze(self) -> None:
        """That is on disk: from here on nothing is taken for them."""
        self.frozen = bool(self._hands)
        self._marks = self._shared.watermarks.copy()
        for hand in list(self._hands.values()):
            session = hand.session
            assert session.durable is not None, "not durable"
            session.durable.frozen = True
            if session.connection is not None:
                address = next((one for one in self._addresses if one), "")
                code = "redirect" if address else "unavailable"
                bye = Bye(code, "the durable session moves to another connection point", address)
                self._connections.refuse(self._shared.connections[session.connection], bye)
            self._hand(hand)

    # Time --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Say again what is not answered."""
        if self._shared.recovering or self._shared.view is None:
            return
        for hand in list(self._hands.values()):
            if now_ms - hand.asked_ms < ASK_AGAIN_MS:
                continue
            if not self._freezes and hand.receiver not in (None, *self._shared.view.connection_points):
                self._give_up(hand)  # it was about to leave, has, and its refusal was lost
            if not hand.pieces or (self.frozen and not hand.held) or hand.receiver is None:
                self._bring(hand)
            elif not hand.held or self.frozen:
                self._say(hand, hand.place)
