"""What a connection point knows of a subscription and of what became of a publication: the answer to `Explain`.

A JSON document of facts; `verdict.py` judges them, on the operator's side. It has

    subscriber    if the session is here: how it stands, its subscription, and its notification of the publication
    publisher     if the publisher is logged in here, or was: how far its publications have come

Whether the filter matches is not judged here: the publication's attributes are not at hand, and the operator's time
costs nobody else any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from cluster.messages import Explain, Explained, subscription_id
from cluster.recent import Recent, columns_of, look

if TYPE_CHECKING:
    from cluster.serving.records import Connection, Session

Document = dict[str, Any]


def explained(
    question: Explain,
    recent: Recent,
    subscriber: Session | None,
    connection: Connection | None,
    publisher: Session | None,
    underway: Callable[[int], bool],
) -> Explained:
    """Return the answer. connection: the subscriber's, if it has one. underway: whether a change is not confirmed."""
    document: Document = {}
    if subscriber is not None:
        document["subscriber"] = _subscriber(question, recent, subscriber, connection, underway)
    if question.publisher:
        facts = _publisher(question, recent, publisher)
        if facts:
            document["publisher"] = facts
    return Explained(question.question, msgspec.json.encode(document))


def _subscriber(
    question: Explain,
    recent: Recent,
    session: Session,
    connection: Connection | None,
    underway: Callable[[int], bool],
) -> Document:
    outbox, durable = session.outbox, session.durable
    facts: Document = {
        "client_id": session.client_id,
        "client": session.key,
        "connected": connection is not None,
        "reads": connection is not None and connection.full_ms is None,
        "credit": outbox.has_credit() if durable is None else durable.has_credit(),
        "queued": outbox.queued if durable is None else durable.queued,
        "sent": outbox.sent,
        "consumed": outbox.consumed,
        "held_runs": len(session.holds),
        "moved": session.moved,
        "subscriptions": len(session.subscriptions),
        "subscription": None,
        "notification": None,
    }
    number = question.number
    if number in session.subscriptions:
        change = session.subscriptions[number]
        policy, asked_us = session.asked.get(number, (None, None))
        facts["subscription"] = {
            "id": subscription_id(session.key, number),
            "number": number,
            "policy": policy,
            "asked_us": asked_us,
            "change": change.change,
            "confirmed": not underway(change.change),
            "normal_form": change.normal_form,
            "dropped_lately": recent.drops(session.key, number),
        }
    if question.publisher:
        facts["notification"] = _notification(question, recent, session)
    return facts


def _notification(question: Explain, recent: Recent, session: Session) -> Document | None:
    """Return where the publication's notification is: waiting, sent, consumed or dropped; None if there is no trace."""
    if session.durable is not None:
        return session.durable.find(question.publisher, question.sequence)
    for chunk in session.outbox.waiting():
        found = look(columns_of(chunk), question.publisher, question.sequence)
        if found is not None:
            _, taken_us, numbers = found
            return {"state": "waiting", "taken_us": taken_us, "numbers": numbers}
    kept = recent.find(session.key, question.publisher, question.sequence)
    if kept is None:
        return None
    if kept.reason:
        return {"state": "dropped", "reason": kept.reason, "taken_us": kept.taken_us, "numbers": kept.numbers}
    state = "consumed" if kept.place <= session.outbox.consumed else "sent"
    return {"state": state, "taken_us": kept.taken_us, "numbers": kept.numbers}


def _publisher(question: Explain, recent: Recent, session: Session | None) -> Document:
    facts: Document = {}
    name, sequence = question.publisher, question.sequence
    if session is not None:
        facts["published"] = None if session.next_sequence is None else session.next_sequence - 1
        facts["acknowledged"] = session.acknowledged
    for fact, found in (("taken_us", recent.taken_us(name, sequence)), ("rejected", recent.rejection(name, sequence))):
        if found is not None:
            facts[fact] = found
    return facts
