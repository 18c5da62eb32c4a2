"""The part of a connection point that has to do with valid publications: its own, and what it asks the others.

    FindValid      a subscription of a session here is being served (`initial.py`); or another connection point asks,
                   which is answered a few publications a turn, one question beside the other
    WithdrawValid  a client here has unpublished: Done when no connection point has the publication any more
    TakeValid      this connection point is to leave, and its last client has: another one takes what is valid here

All of it goes by an access point. Nothing relies on a question or an answer to arrive: a question is asked again after
ASK_AGAIN_MS, and answering twice does no harm. When the connection points of the view change, and after a recovery,
everything that is underway is asked anew, as what a former one has had is at another one by then.

What is promised to others waits until it is on disk: that something is withdrawn, or taken over, and, for the last
connection point that leaves with nothing kept, that its own file has nothing left which others have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from cluster.config import Config
from cluster.errors import CodecError
from cluster.frames import UNTIL_UNPUBLISHED
from cluster.initial import Initial, Part
from cluster.journal import Journal, OfValid, Recovered
from cluster.language import decode_normal
from cluster.messages import (
    AboutValid,
    FindValid,
    FoundValid,
    Message,
    Relay,
    TakenValid,
    TakeValid,
    WithdrawnValid,
    WithdrawValid,
)
from cluster.valid import Kept, Key, Piece, ValidPublications, inward, outward, well_formed

ASK_AGAIN_MS = 1_000
LOOKS = 200
"""Publications looked at in a turn, for all questions; about 5 us each for a small filter, and as much more for every
LOOKS_BYTES of its normal form."""
LOOKS_BYTES = 500
PIECE = 256
PIECE_BYTES = 32 << 10
"""In one answer, as far as the last publication does not go over it."""
PIECE_LOOKS = 20_000
"""Then what was found is sent, so that whoever asks hears something."""
WITHDRAWALS_UNDERWAY = 1024

SendTo = Callable[[Message], None]
Asker = tuple[int, int]
"""A session's number and the client's number of a subscription there."""


@dataclass(slots=True)
class Withdrawal:
    """What a client has unpublished.

    instances: None while it is not known which lives have sent something valid under this number; `found` so far. Then
    all are told these, as what one has may be on its way to another. waiting: those that have not answered.
    """

    session: int
    request: int
    publisher: str
    instances: list[int] | None
    sequence: int
    found: set[int]
    waiting: set[int]
    asked_ms: int


@dataclass(slots=True)
class Leaving:
    """What is valid here is handed over. receiver: who is asked to take it; refused: who is to leave as well.

    after: what is taken up to there; chunk: what is on its way, under the number `query`; 0 while nothing is.
    """

    receiver: int
    refused: set[int] = field(default_factory=set)
    after: Key | None = None
    query: int = 0
    chunk: list[tuple[Key, Kept]] = field(default_factory=list)
    asked_ms: int = 0


class Validity:
    """The machine. send: puts a message on the lane to an access point.

    _written: the journal's last portion in which something of this part is.
    """

    def __init__(self, slot: int, incarnation: int, config: Config, send: SendTo, journal: Journal) -> None:
        self._slot = slot
        self._settings = config.valid
        self._limits = config.client_limits
        self._send = send
        self._journal = journal
        self._written = 0
        self.store = ValidPublications(config.valid, self._write)
        self.now_ms = 0
        self._slots: tuple[int, ...] = ()  # the connection points to ask, this one included
        self._silent = False  # in a recovery: nothing is sent
        self._next_query = incarnation << 40
        self._queries: dict[int, tuple[Asker, Initial, int]] = {}  # with the slot that is asked
        self._asking: dict[Asker, Initial] = {}
        self._pieces: dict[tuple[int, int], Piece] = {}  # (slot that asks, its query) -> the answer in the making
        self._withdrawals: dict[int, Withdrawal] = {}
        self._leaving: Leaving | None = None
        self._left = False  # everything is handed over
        self.found: set[Asker] = set()
        """For whom something has come; the owner clears it."""
        self.withdrawn: list[tuple[int, int]] = []
        """(session, request) of what is unpublished now; the owner clears it."""
        names = ("valid_kept", "valid_not_kept", "valid_expired", "valid_handed_over", "valid_restored")
        self.counters = dict.fromkeys(names, 0)

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        return self.counters | {
            "valid_publications": len(self.store),
            "valid_bytes": self.store.bytes,
            "valid_questions": len(self._queries) + len(self._pieces) + len(self._withdrawals),
        }

    # The slot's file ----------------------------------------------------------------------------------------------

    def _write(self, write: OfValid) -> None:
        self._journal.write(write)
        self._written = self._journal.present

    def restore(self, recovered: Recovered, now_us: int) -> None:
        """Take up what an earlier life of the slot has kept. now_us: the time of day, microseconds since 1970."""
        self.store.restore(recovered, now_us, self.now_ms)
        self.counters["valid_restored"] += len(self.store)

    # What comes in ------------------------------------------------------------------------------------------------

    def keep(
        self, publisher: str, instance: int, first_sequence: int, time_us: int, payloads: Iterable[bytes], for_ms: int
    ) -> list[tuple[int, str]]:
        """Keep publications; return (sequence, reason) of those for which there is no room."""
        until_us: int | None = None
        expires_ms: int | None = None
        reason: str | None = None
        if for_ms != UNTIL_UNPUBLISHED:
            until_us = time_us + 1000 * for_ms
            expires_ms = self.now_ms + for_ms
            if for_ms > self._settings.for_s_max * 1000:
                reason = f"valid for {for_ms / 1000:g} s, the limit is {self._settings.for_s_max} s"
        not_kept = []
        for sequence, payload in enumerate(payloads, first_sequence):
            if not well_formed(payload, self._limits):
                continue  # the matchers will reject it
            kept = Kept(time_us, until_us, expires_ms, False, payload)
            why_not = reason or self.store.add((publisher, instance, sequence), kept)
            if why_not is None:
                self.counters["valid_kept"] += 1
            else:
                self.counters["valid_not_kept"] += 1
                not_kept.append((sequence, f"not kept as valid: {why_not}"))
        return not_kept

    def settle(self, publisher: str, instance: int, first: int, last: int, rejected: Iterable[int]) -> int:
        """The matchers have what the publisher has sent from `first` to `last`, or have refused it.

        Returns the portion of the journal that must be on disk before the publisher is told; 0 for none.
        """
        for sequence in rejected:
            self.store.remove((publisher, instance, sequence))
        return self._written if self.store.settle(publisher, instance, first, last) else 0

    # Asking -------------------------------------------------------------------------------------------------------

    def view(self, slots: Iterable[int]) -> None:
        """Take note of the connection points there are."""
        slots = tuple(sorted({*slots, self._slot}))
        if slots != self._slots:
            self._slots = slots
            self._begin_anew()

    def silence(self) -> None:
        """A recovery has begun: nothing is asked or answered until `go_on`."""
        self._silent = True
        self._pieces.clear()

    def go_on(self) -> None:
        """The recovery is over."""
        self._silent = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._queries.clear()
        for asker, initial in self._asking.items():
            initial.ask(self._slots)
            self.found.add(asker)
        withdrawals, self._withdrawals = self._withdrawals, {}
        for one in withdrawals.values():
            self._begin(one.session, one.request, one.publisher, one.instances, one.sequence, one.found)
        self._left = False
        if self._leaving is not None:
            self._leaving = None
            self.leave()

    def ask(self, session: int, initial: Initial) -> None:
        """Begin to ask for a subscription that the matchers hold."""
        initial.ask(self._slots)
        self._asking[session, initial.number] = initial
        self.found.add((session, initial.number))

    def ask_more(self, session: int, initial: Initial) -> None:
        """Ask those of which nothing is left here for their next piece."""
        if self._silent:
            return
        for slot, part in initial.due():
            self._next_query += 1
            part.query = self._next_query
            self._queries[part.query] = ((session, initial.number), initial, slot)
            self._ask(initial, slot, part)

    def _ask(self, initial: Initial, slot: int, part: Part) -> None:
        assert part.query is not None, "nothing to ask"
        part.asked_ms = self.now_ms
        question = FindValid(part.query, part.after, initial.normal_form)
        if slot == self._slot:
            self._find(slot, question)
        else:
            self._tell([slot], question)

    def forget(self, session: int, initial: Initial) -> None:
        """Nobody wants the rest; or there is none."""
        self._asking.pop((session, initial.number), None)
        self.found.discard((session, initial.number))
        for query in initial.queries():
            self._queries.pop(query, None)

    def _tell(self, slots: list[int], content: AboutValid) -> None:
        if slots and not self._silent:
            self._send(Relay(self._slot, slots, content))

    def _tell_when_written(self, slot: int, content: AboutValid) -> None:
        self._journal.when(self._written, partial(self._tell, [slot], content))

    # Unpublishing -------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """No more withdrawals are to come until some are through."""
        return len(self._withdrawals) >= WITHDRAWALS_UNDERWAY

    def unpublish(self, session: int, request: int, publisher: str, instance: int | None, sequence: int) -> None:
        """Withdraw a publication everywhere; `withdrawn` has it when that is done. instance: None for any."""
        instances = None if instance is None else [instance]
        self._begin(session, request, publisher, instances, sequence, set())

    def _begin(
        self,
        session: int,
        request: int,
        publisher: str,
        instances: list[int] | None,
        sequence: int,
        found: set[int],
    ) -> None:
        found = found | set(self.store.withdraw(publisher, instances, sequence))
        others = {slot for slot in self._slots if slot != self._slot}
        one = Withdrawal(session, request, publisher, instances, sequence, found, others, self.now_ms)
        if not others:
            self._answered(one)
            return
        self._next_query += 1
        self._withdrawals[self._next_query] = one
        self._withdraw(self._next_query, one)

    def _withdraw(self, query: int, one: Withdrawal) -> None:
        one.asked_ms = self.now_ms
        self._tell(sorted(one.waiting), WithdrawValid(query, one.publisher, one.instances, one.sequence))

    def _answered(self, one: Withdrawal) -> None:
        """All have answered."""
        if one.instances is None and one.found:
            self._begin(one.session, one.request, one.publisher, sorted(one.found), one.sequence, set())
        else:
            self._journal.when(self._written, partial(self._withdrawn, one.session, one.request))

    def _withdrawn(self, session: int, request: int) -> None:
        self.withdrawn.append((session, request))

    # Leaving ------------------------------------------------------------------------------------------------------

    def leave(self) -> bool:
        """Hand over what is valid here; return whether that is done. Nothing may come in any more."""
        others = [slot for slot in self._slots if slot != self._slot]
        if self._left or not len(self.store) or not others:
            return self._journal.has(self._written)
        if self._leaving is None:
            self._leaving = Leaving(others[0])
            self._hand_over()
        return False

    def stay(self) -> None:
        """It is not to leave after all."""
        self._leaving = None
        self._left = False

    def _hand_over(self) -> None:
        """Send the next of what is left; `_left` when there is nothing."""
        leaving = self._leaving
        assert leaving is not None, "nobody leaves"
        leaving.chunk = list(islice(self.store.entries(leaving.after, self.now_ms), PIECE))
        size = 0
        for place, (_, kept) in enumerate(leaving.chunk):
            size += len(kept.payload)
            if size > PIECE_BYTES and place:
                del leaving.chunk[place:]
                break
        if not leaving.chunk:
            self._left = True
            self._leaving = None
            return
        self._next_query += 1
        leaving.query = self._next_query
        self._hand_over_again(leaving)

    def _hand_over_again(self, leaving: Leaving) -> None:
        leaving.asked_ms = self.now_ms
        publications = [outward(key, kept, self.now_ms) for key, kept in leaving.chunk]
        self._tell([leaving.receiver], TakeValid(leaving.query, publications))

    def _taken(self, sender: int, answer: TakenValid) -> None:
        leaving = self._leaving
        if leaving is None or leaving.query != answer.query:
            return
        if answer.taken:
            self.counters["valid_handed_over"] += len(leaving.chunk)
            for key, _ in leaving.chunk:
                self.store.handed_over(key)
            leaving.after = leaving.chunk[-1][0]
        else:
            leaving.refused.add(sender)
            leaving.after, leaving.query = None, 0
            staying = [slot for slot in self._slots if slot != self._slot and slot not in leaving.refused]
            if not staying:
                # All are to leave: others are to come, or some of these will stay after all. Asked again in a while.
                leaving.refused.clear()
                leaving.asked_ms = self.now_ms
                return
            leaving.receiver = staying[0]
        self._hand_over()

    # What others say ----------------------------------------------------------------------------------------------

    def received(self, sender: int, content: AboutValid, *, leaving: bool) -> None:
        """Take a question or an answer. leaving: this connection point is to leave."""
        if self._silent:
            return
        match content:
            case FindValid():
                self._find(sender, content)
            case FoundValid():
                self._found(content)
            case WithdrawValid(query, publisher, instances, sequence):
                withdrawn = self.store.withdraw(publisher, instances, sequence)
                self._tell_when_written(sender, WithdrawnValid(query, withdrawn))
            case WithdrawnValid(query, instances):
                withdrawal = self._withdrawals.get(query)
                if withdrawal is not None:
                    withdrawal.found.update(instances)
                    withdrawal.waiting.discard(sender)
                    if not withdrawal.waiting:
                        del self._withdrawals[query]
                        self._answered(withdrawal)
            case TakeValid(query, publications):
                if not leaving:
                    for one in publications:
                        self.store.take(*inward(one, self.now_ms))
                self._tell_when_written(sender, TakenValid(query, not leaving))
            case TakenValid():
                self._taken(sender, content)

    def _find(self, sender: int, question: FindValid) -> None:
        key = (sender, question.query)
        if key in self._pieces:
            return  # asked again, and not through yet
        try:
            form = decode_normal(question.normal_form)
        except CodecError as error:
            raise AssertionError(f"connection point {sender} asks with {error}") from error
        self._pieces[key] = Piece(
            form, question.after, most=PIECE, most_bytes=PIECE_BYTES, most_looked_at=PIECE_LOOKS,
            cost=1 + len(question.normal_form) // LOOKS_BYTES,
        )  # fmt: skip

    def _found(self, answer: FoundValid) -> None:
        asked = self._queries.pop(answer.query, None)
        if asked is None:
            return
        asker, initial, slot = asked
        initial.found(slot, answer.publications, answer.upto, ended=answer.ended)
        self.found.add(asker)

    # Rounds -------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Somebody waits for an answer in the making."""
        return bool(self._pieces)

    def step(self) -> None:
        """Look at some publications for those who ask."""
        left = LOOKS
        while self._pieces and left > 0:
            key = next(iter(self._pieces))
            piece = self._pieces.pop(key)
            left -= piece.step(self.store, self.now_ms, max(left // (piece.cost * (1 + len(self._pieces))), 1))
            if not piece.full:
                self._pieces[key] = piece  # behind the others
                continue
            sender, query = key
            answer = FoundValid(query, piece.found, piece.after, piece.ended)
            if sender == self._slot:
                self._found(answer)
            else:
                self._tell([sender], answer)

    def tick(self, now_ms: int) -> None:
        """Let what has expired go, and ask again what was not answered."""
        if not self.now_ms:
            self.store.begin(now_ms)
        self.now_ms = now_ms
        self.counters["valid_expired"] += self.store.expire(now_ms)
        if self._silent:
            return
        due_ms = now_ms - ASK_AGAIN_MS
        for _, initial, slot in list(self._queries.values()):
            part = initial.parts[slot]
            if part.asked_ms <= due_ms:
                self._ask(initial, slot, part)
        for query, withdrawal in list(self._withdrawals.items()):
            if withdrawal.asked_ms <= due_ms:
                self._withdraw(query, withdrawal)
        if self._leaving is not None and self._leaving.asked_ms <= due_ms:
            if self._leaving.query:
                self._hand_over_again(self._leaving)
            else:
                self._hand_over()
