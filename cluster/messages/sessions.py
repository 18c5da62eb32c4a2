"""Which client id is logged in where, and where its durable session lives: the coordinator knows.

What it makes of them is in `cluster/sessions.py`.
"""

from __future__ import annotations

from cluster.messages.base import Message


class SessionOpened(Message, frozen=True, array_like=True, tag=25, gc=False):
    """CP -> C: this client id has logged in here; an older session elsewhere is to be told."""

    client_id: str
    client: int
    instance: int


class SessionClosed(Message, frozen=True, array_like=True, tag=26, gc=False):
    """CP -> C."""

    client_id: str
    client: int


class SessionTaken(Message, frozen=True, array_like=True, tag=27, gc=False):
    """C -> CP of the older session: end it with `taken_over`, or with `moved` if the same instance is elsewhere."""

    client: int
    same_instance: bool


class DurableHomes(Message, frozen=True, array_like=True, tag=80, gc=False):
    """CP -> C, first of all when its lane comes up: the clients whose durable sessions live here, all of them.

    asked: about these it has asked, and may be about to begin a session.
    """

    client_ids: list[str]
    asked: list[str]


class FindHome(Message, frozen=True, array_like=True, tag=81, gc=False):
    """CP -> C: where does this client's durable session live? If nowhere, it is to live here."""

    client_id: str
    connection: int


class HomeFound(Message, frozen=True, array_like=True, tag=82, gc=False):
    """C -> CP: the answer to FindHome.

    home: a connection point's slot, -1 while it cannot be said; address: where clients reach it, "" while it is away.
    """

    client_id: str
    connection: int
    home: int
    address: str


class DurableMoved(Message, frozen=True, array_like=True, tag=84, gc=False):
    """CP -> C: this client's durable session lives here from now on; answered with HomeFound of connection -1."""

    client_id: str


class DurableEnded(Message, frozen=True, array_like=True, tag=83, gc=False):
    """CP -> C: this client's durable session, which lived here, is no more."""

    client_id: str


SessionMessage = (
    SessionOpened | SessionClosed | SessionTaken | DurableHomes | FindHome | HomeFound | DurableMoved | DurableEnded
)
