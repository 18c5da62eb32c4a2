"""Which client id is logged in where.

When one logs in at two connection points, the newer login, in the order in which the coordinator hears of them, wins.
That order may be wrong for a client that has changed its connection point; so a session that is ended in favour of
another one of the same instance is told `moved`, and a client that was in fact the newer one comes again.
"""

from __future__ import annotations

from cluster.messages import (
    CONNECTION_POINT,
    Instruction,
    Peer,
    Send,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    slot_of,
)


class Sessions:
    """The newest session of each client id."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, int]] = {}  # client id -> client, instance

    def __len__(self) -> int:
        return len(self._newest)

    def find(self, client_id: str) -> int | None:
        """Return the client that is logged in under this id, None if there is none."""
        client, _ = self._newest.get(client_id, (None, None))
        return client

    def forget(self, slot: int) -> None:
        """A connection point is no more."""
        for client_id in [name for name, (client, _) in self._newest.items() if slot_of(client) == slot]:
            del self._newest[client_id]

    def handle(self, message: SessionOpened | SessionClosed) -> list[Instruction]:
        """Take what a connection point reports; return what to tell another one about it."""
        match message:
            case SessionOpened(client_id, client, instance):
                older, older_instance = self._newest.get(client_id, (client, instance))
                self._newest[client_id] = client, instance
                if slot_of(older) != slot_of(client):
                    taken = SessionTaken(older, older_instance == instance)
                    return [Send(Peer(CONNECTION_POINT, slot_of(older)), taken)]
            case SessionClosed(client_id, client):
                if self._newest.get(client_id, (None, None))[0] == client:
                    del self._newest[client_id]
        return []
