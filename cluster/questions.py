"""What operators have asked and connection points are still to answer: `why`.

The coordinator knows where clients are logged in and nothing else about them. It passes a question on to the connection
point of the subscriber and to that of the publisher, which are often one, and puts what they say together. A connection
point that is lost, or says nothing for ANSWER_MS, is named to the operator; nothing here is kept for longer than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cluster.frames import SUBSCRIPTION_BITS
from cluster.messages import (
    CONNECTION_POINT,
    Answer,
    Explain,
    Explained,
    Instruction,
    Peer,
    Send,
    slot_of,
)
from cluster.sessions import Sessions
from cluster.wish import WishError

ANSWER_MS = 2_000
"""What a connection point may take; less than the operator waits for the coordinator."""
OPEN_MAX = 64


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `why`: a subscription by its id, or by its client's id and number; and perhaps a publication."""

    subscription: int | None = None
    client_id: str = ""
    number: int = 0
    publisher: str = ""
    sequence: int = 0


@dataclass(slots=True)
class Question:
    """An operator's question that waits. facts: what was said so far."""

    operator: Peer
    waits: set[Peer]
    deadline_ms: int
    facts: dict[str, Any] = field(default_factory=dict)


class Questions:
    """The questions under way."""

    def __init__(self) -> None:
        self._open: dict[int, Question] = {}
        self._asked = 0

    def ask(
        self,
        operator: Peer,
        arguments: bytes,
        sessions: Sessions,
        unreachable: Callable[[Peer], str | None],
        now_ms: int,
    ) -> list[Instruction]:
        """Pass a question on. unreachable: why a connection point cannot be asked, None if it can.

        Raises: WishError for one that cannot be; msgspec.DecodeError for arguments that are none.
        """
        why = msgspec.json.decode(arguments, type=Why)
        if not 0 <= why.number < 1 << SUBSCRIPTION_BITS:
            raise WishError(f"subscription number {why.number}, allowed is below {1 << SUBSCRIPTION_BITS}")
        if not 0 <= why.sequence < 1 << 64:
            raise WishError(f"sequence {why.sequence}, allowed is 0 <= sequence < 2**64")
        if len(self._open) >= OPEN_MAX:
            raise WishError(f"{OPEN_MAX} questions are under way already")
        client: int | None
        if why.subscription is None:
            client, number = sessions.find(why.client_id), why.number
        else:
            client, number = why.subscription >> SUBSCRIPTION_BITS, why.subscription & (1 << SUBSCRIPTION_BITS) - 1
            if unreachable(Peer(CONNECTION_POINT, slot_of(client))) == "unknown":
                client = None
        if client is None:
            return [Send(operator, Answer(b"{}", ""))]
        holders = {Peer(CONNECTION_POINT, slot_of(client))}
        publisher = sessions.find(why.publisher) if why.publisher else None
        if publisher is not None:
            holders.add(Peer(CONNECTION_POINT, slot_of(publisher)))
        for peer in sorted(holders):
            trouble = unreachable(peer)
            if trouble is not None:
                raise WishError(f"{peer} cannot be asked: it is {trouble}")
        self._asked += 1
        self._open[self._asked] = Question(operator, holders, now_ms + ANSWER_MS)
        question = Explain(self._asked, client, number, why.publisher, why.sequence)
        return [Send(peer, question) for peer in sorted(holders)]

    def answered(self, peer: Peer, message: Explained) -> list[Instruction]:
        """A connection point has said what it knows; it may be too late."""
        question = self._open.get(message.question)
        if question is None or peer not in question.waits:
            return []
        question.waits.discard(peer)
        question.facts |= msgspec.json.decode(message.document, type=dict[str, Any])
        if question.waits:
            return []
        del self._open[message.question]
        return [Send(question.operator, Answer(msgspec.json.encode(question.facts), ""))]

    def tick(self, now_ms: int) -> list[Instruction]:
        """Time passes; give up what has waited for too long."""
        late = [number for number, question in self._open.items() if now_ms > question.deadline_ms]
        return [self._fail(number, f"no answer within {ANSWER_MS} ms from") for number in late]

    def lost(self, peer: Peer) -> list[Instruction]:
        """A connection point's lane is down: it answers nothing any more."""
        affected = [number for number, question in self._open.items() if peer in question.waits]
        return [self._fail(number, "lost while it was asked:") for number in affected]

    def _fail(self, number: int, reason: str) -> Instruction:
        question = self._open.pop(number)
        return Send(question.operator, Answer(b"", f"{reason} {', '.join(map(str, sorted(question.waits)))}"))
