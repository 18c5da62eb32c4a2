"""What operators ask the coordinator, and what it asks connection points on their behalf."""

from __future__ import annotations

from cluster.messages.base import Message


class StatusRequest(Message, frozen=True, array_like=True, tag=28, gc=False):
    """Operator -> C."""


class Status(Message, frozen=True, array_like=True, tag=29, gc=False):
    """C -> operator: a JSON document, for people and scripts."""

    document: bytes


class Request(Message, frozen=True, array_like=True, tag=64, gc=False):
    """Operator -> C: scale, plan, abort, transitions, busiest, autoscaler or why; the arguments are a JSON document."""

    command: str
    arguments: bytes


class Answer(Message, frozen=True, array_like=True, tag=65, gc=False):
    """C -> operator: a JSON document, or why not."""

    document: bytes
    error: str


class Explain(Message, frozen=True, array_like=True, tag=90, gc=False):
    """C -> CP: what do you know of this subscription, of this publisher, and of what became of its publication?

    question:          the coordinator's number of it, echoed.
    client, number:    whose subscription, and the client's own number of it.
    publisher:         a client id, "" if no publication is asked about; sequence: its number of the publication.
    """

    question: int
    client: int
    number: int
    publisher: str
    sequence: int


class Explained(Message, frozen=True, array_like=True, tag=91, gc=False):
    """CP -> C: a JSON document, see `why.py`."""

    question: int
    document: bytes


OperatorMessage = StatusRequest | Status | Request | Answer | Explain | Explained
