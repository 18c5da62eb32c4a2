"""Which client id is logged in where, and where the durable sessions live.

When one logs in at two connection points, the newer login, in the order in which the coordinator hears of them, wins.
That order may be wrong for a client that has changed its connection point; so a session that is ended in favour of
another one of the same instance is told `moved`, and a client that was in fact the newer one comes again.

A durable session lives at one connection point, connected or not; a second one of the same client must not begin
elsewhere. So a connection point that knows none asks for it, and whoever asks first is the home. Connection points
say what lives with them whenever their lane to the coordinator comes up; a new coordinator says nothing about homes
before all have. What it knows of a connection point that has crashed holds until the next incarnation says it anew.

A connection point that is to leave hands its sessions to others (`serving/handing.py`). In between both have one, and
say so; it lives with the one that has said so last, and the former home forgets it only when that is known here.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.messages import (
    CONNECTION_POINT,
    DurableEnded,
    DurableHomes,
    DurableMoved,
    FindHome,
    Instruction,
    Peer,
    Send,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    slot_of,
)


class Sessions:
    """The sessions of each client id that have not ended: one, but while an older one is being told."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, int]] = {}  # client id -> client -> instance, the newest last
        self._homes: dict[str, list[int]] = {}  # client id -> slots, the home last
        self._told: set[int] = set()  # slots that have said what lives with them

    def __len__(self) -> int:
        return len(self._open)

    def find(self, client_id: str) -> int | None:
        """Return the client that is logged in under this id, None if there is none."""
        return next(reversed(self._open.get(client_id, {})), None)

    def names(self) -> dict[int, str]:
        """Return the client id of each client that is logged in."""
        return {client: client_id for client_id, clients in self._open.items() for client in clients}

    def forget(self, slot: int) -> None:
        """A connection point has died: nobody is logged in there. What lives there comes back with the next one."""
        for client_id, sessions in list(self._open.items()):
            for client in [client for client in sessions if slot_of(client) == slot]:
                self._closed(client_id, client)

    def gone(self, slot: int) -> None:
        """A connection point is no more, and none takes its slot."""
        self.forget(slot)
        for client_id in [name for name, homes in self._homes.items() if slot in homes]:
            self._not_at(client_id, slot)
        self._told.discard(slot)

    def homes(self, slot: int) -> int:
        """Return how many durable sessions live at a connection point, as far as is known."""
        return sum(homes[-1] == slot for homes in self._homes.values())

    @property
    def durable(self) -> int:
        """How many durable sessions there are, as far as is known."""
        return len(self._homes)

    def home(self, slot: int, question: FindHome, slots: Iterable[int]) -> int:
        """Return the home of a client's durable session, which is the asker's slot if it has none; -1 if that cannot
        be said, as not all connection points (`slots`) have told theirs."""
        if not self._told.issuperset(slots):
            return self._homes.get(question.client_id, [-1])[-1]
        return self._homes.setdefault(question.client_id, [slot])[-1]

    def _not_at(self, client_id: str, slot: int) -> None:
        homes = [home for home in self._homes.get(client_id, ()) if home != slot]
        if homes:
            self._homes[client_id] = homes
        else:
            self._homes.pop(client_id, None)

    def durables(self, slot: int, message: DurableHomes | DurableMoved | DurableEnded) -> None:
        """Take what a connection point says about those that live there."""
        match message:
            case DurableHomes(client_ids, asked):
                living = {*client_ids, *asked}
                for client_id in [name for name, homes in self._homes.items() if slot in homes and name not in living]:
                    self._not_at(client_id, slot)
                for client_id in client_ids:
                    self._lives_at(client_id, slot)
                self._told.add(slot)
            case DurableMoved(client_id):
                self._lives_at(client_id, slot)
            case DurableEnded(client_id):
                self._not_at(client_id, slot)

    def _lives_at(self, client_id: str, slot: int) -> None:
        self._homes[client_id] = [*(home for home in self._homes.get(client_id, ()) if home != slot), slot]

    def handle(self, message: SessionOpened | SessionClosed) -> list[Instruction]:
        """Take what a connection point reports; return what to tell another one about it."""
        match message:
            case SessionOpened(client_id, client, instance):
                sessions = self._open.setdefault(client_id, {})
                sessions.pop(client, None)
                # All of them: one that was told before may have had reason to stay, as its client was about to move.
                told: list[Instruction] = [
                    Send(Peer(CONNECTION_POINT, slot_of(older)), SessionTaken(older, older_instance == instance))
                    for older, older_instance in sessions.items()
                    if slot_of(older) != slot_of(client)
                ]
                sessions[client] = instance
                return told
            case SessionClosed(client_id, client):
                self._closed(client_id, client)
        return []

    def _closed(self, client_id: str, client: int) -> None:
        sessions = self._open.get(client_id, {})
        sessions.pop(client, None)
        if not sessions:
            self._open.pop(client_id, None)
