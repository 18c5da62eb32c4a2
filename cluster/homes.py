"""The durable sessions that live at one connection point: which they are, and when they end.

Those that are about to move here are kept apart: nobody finds them before they live here.
"""

from __future__ import annotations

from cluster.config import Config, Durable, Flow
from cluster.durable import DurableSession, Room
from cluster.journal import EndSession, Journal, Recovered


class Homes:
    """Found by client id; a session stays until it is ended. `journal` is for all that is to be on disk."""

    def __init__(self, config: Config) -> None:
        self.journal = Journal()
        self.room = Room()
        self._config = config
        self._sessions: dict[str, DurableSession] = {}
        self._arriving: dict[str, DurableSession] = {}
        self._looked_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def client_ids(self) -> list[str]:
        """Whose sessions live here."""
        return list(self._sessions)

    @property
    def queued(self) -> int:
        """Notifications that are owed, over all sessions, and not underway."""
        return sum(session.queued for session in self._sessions.values())

    @property
    def full(self) -> bool:
        """Whether there is no room for another session."""
        return len(self._sessions) >= self._config.durable.sessions

    def restore(self, recovered: Recovered) -> list[DurableSession]:
        """Take up what an earlier incarnation has left; return the sessions, those that arrive included."""
        for saved in recovered.sessions:
            session = DurableSession.restored(saved, self.journal, self.room, *self._limits())
            known = self._sessions if session.arriving is None else self._arriving
            known[session.client_id] = session
        return [*self._sessions.values(), *self._arriving.values()]

    @property
    def arriving(self) -> list[DurableSession]:
        """Those that are about to move here."""
        return list(self._arriving.values())

    def arrive(self, number: int, client_id: str) -> DurableSession:
        """One is to move here, over the limit if need be: it was promised."""
        assert client_id not in self._arriving, f"{client_id} arrives already"
        session = DurableSession(number, client_id, self.journal, self.room, *self._limits())
        self._arriving[client_id] = session
        return session

    def take_over(self, session: DurableSession) -> None:
        """It lives here from now on."""
        assert session.client_id not in self._sessions, f"{session.client_id} has a session"
        self._sessions[session.client_id] = self._arriving.pop(session.client_id)

    def find(self, client_id: str) -> DurableSession | None:
        """Return the client's session, None if it has none here."""
        return self._sessions.get(client_id)

    def open(self, number: int, client_id: str) -> DurableSession:
        """Begin a session."""
        assert client_id not in self._sessions, f"{client_id} has a session"
        assert not self.full, "more sessions than may be"
        session = DurableSession(number, client_id, self.journal, self.room, *self._limits())
        self._sessions[client_id] = session
        return session

    def _limits(self) -> tuple[Durable, Flow, int]:
        return self._config.durable, self._config.flow, self._config.client_limits.frame_bytes

    def end(self, session: DurableSession) -> None:
        """It is over, on disk too with the journal's present portion."""
        known = self._sessions if self._sessions.get(session.client_id) is session else self._arriving
        del known[session.client_id]
        session.end()
        self.journal.write(EndSession(session.number))

    def count_anew(self) -> None:
        """A recovery: what was under way when a session moved may come again."""
        for session in self._sessions.values():
            session.count_anew()

    def forget_marks(self, now_ms: int) -> None:
        """Let sessions that moved long ago forget what they were offered elsewhere; not to be called in a recovery."""
        for session in self._sessions.values():
            session.see_marks(now_ms, 1000 * self._config.durable.publisher_away_s)

    def expired(self, now_ms: int) -> list[DurableSession]:
        """Return those without a connection for longer than they are kept; about once a second there may be some.

        A session that was restored counts from the first call.
        """
        if now_ms - self._looked_ms < 1000:
            return []
        self._looked_ms = now_ms
        out = []
        for session in self._sessions.values():
            if session.window or session.frozen_to is not None:
                continue
            if session.detached_ms is None:
                session.detached_ms = now_ms
            elif now_ms - session.detached_ms > 1000 * session.expires_s:
                out.append(session)
        return out
