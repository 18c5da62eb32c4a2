"""From Deliver to the queues of sessions, and from there to Delivered.

A run whose notifications are not within their queues is held back: Delivered for its token goes to the exit point when
the last of them is. So it is with what is for a durable session and not on disk yet.

What comes twice after a recovery is known by (publisher, instance, sequence), as each publisher's publications come in
their order, and is left out. A notification for a subscription that was closed meanwhile is removed here, as it comes
or from the outbox, so that after Done nothing arrives.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cluster import columns
from cluster.initial import admitted
from cluster.journal import Journal, Took
from cluster.messages import EXIT_POINT, Deliver, Delivered, Peer, Send
from cluster.outbox import Chunk, Position
from cluster.serving.records import Session
from cluster.serving.shared import SESSION_MASK, Shared

FIRST_RUN = bytes(4)
"""The column `run` of a single notification."""


class Delivering:
    """Hands notifications to sessions, and tells the exit points of runs that have found their place.

    held:        (exit point, token) -> sessions that hold it.
    _delivered:  exit point -> tokens to send at the end of the round.
    _recoveries: how many there were; tokens of before one mean nothing after it.
    """

    def __init__(self, shared: Shared, journal: Journal) -> None:
        self._shared = shared
        self._journal = journal
        self.held: dict[tuple[int, int], int] = {}
        self._delivered: dict[int, list[int]] = {}
        self._recoveries = 0

    def deliver(self, exit_point: int, message: Deliver) -> None:
        """Give each session its share; the tokens of runs for which there is no room are held.

        Plain Python on purpose: most shares are small, and vector work costs a microsecond a call.
        """
        run_of = columns.unpack(columns.UINT32, message.run)
        sequence_of = columns.unpack(columns.UINT64, message.sequence)
        lengths = columns.unpack(columns.UINT32, message.lengths)
        publication = columns.unpack(columns.UINT32, message.publication)
        matches = columns.unpack(columns.UINT32, message.matches)
        payloads = columns.cut(message.payload, lengths)
        names = [run[:3] for run in message.runs]
        sessions = self._shared.sessions
        doubles = self._shared.watermarks.take([message.runs[run] for run in run_of], sequence_of)
        if doubles:
            self._shared.counters["duplicates"] += len(doubles)
        held: set[int] = set()
        begin = first = 0
        for number, count in zip(
            columns.unpack(columns.UINT32, message.sessions),
            columns.unpack(columns.UINT32, message.notifications),
            strict=True,
        ):
            end = begin + count
            last = first + 4 * sum(matches[begin:end])
            session = sessions.get(number)
            if session is not None:
                chosen = publication[begin:end]
                if count == 1:
                    # Most shares: as below, without lists of one.
                    place = chosen[0]
                    used = [run_of[place]]
                    chunk = Chunk(
                        [names[used[0]]],
                        FIRST_RUN,
                        message.sequence[8 * place : 8 * place + 8],
                        message.lengths[4 * place : 4 * place + 4],
                        message.matches[4 * begin : 4 * end],
                        message.numbers[first:last],
                        payloads[place],
                    )
                else:
                    runs = [run_of[place] for place in chosen]
                    used = [0]
                    if len(names) > 1:
                        # A share names its own runs alone, counted from 0; they come in order.
                        used = sorted(set(runs))
                        own = {run: place for place, run in enumerate(used)}
                        runs = [own[run] for run in runs]
                    chunk = Chunk(
                        [names[run] for run in used],
                        columns.pack(columns.UINT32, runs),
                        columns.pack(columns.UINT64, [sequence_of[place] for place in chosen]),
                        columns.pack(columns.UINT32, [lengths[place] for place in chosen]),
                        message.matches[4 * begin : 4 * end],
                        message.numbers[first:last],
                        b"".join([payloads[place] for place in chosen]),
                    )
                if session.durable is not None:
                    # Those of the doubles too: their first copies may not be on disk.
                    self._hold_until_stored(exit_point, message.runs, used, held)
                    if session.durable.frozen:
                        chunk = chunk.select(np.arange(0))  # its next home has it
                    elif session.durable.marks is not None:
                        before, chunk = chunk, session.durable.offered(chunk)
                        if len(chunk) < len(before) and not session.admits(session.durable.last):
                            self._hold(exit_point, session, session.durable.last, message.runs, used, held)
                if doubles and (session.durable is None or not session.durable.keeps_marks):
                    chunk = self._without(doubles, exit_point, session, chunk, chosen, message.runs, run_of, held)
                if session.closed_any and len(chunk):
                    chunk = chunk.only(session.live)
                if session.initials and len(chunk):
                    if session.durable is not None:
                        self._note_taken(chunk)  # though nothing of it may be left
                    chunk = admitted(chunk, session.initials)
                if len(chunk):
                    self._queue(exit_point, session, chunk, message.runs, used, held)
            begin, first = end, last
        tokens = [run[3] for place, run in enumerate(message.runs) if place not in held]
        if tokens:
            self._delivered.setdefault(exit_point, []).extend(tokens)

    def _queue(
        self,
        exit_point: int,
        session: Session,
        chunk: Chunk,
        runs: list[tuple[str, int, int, int]],
        used: list[int],
        held: set[int],
    ) -> None:
        if session.durable is not None:
            position = session.durable.push(chunk)
            if not session.durable.admits(position):
                self._hold(exit_point, session, position, runs, used, held)
            self._note_taken(chunk)
            return
        position = session.outbox.push(chunk)
        self._shared.touched[session.key & SESSION_MASK] = session
        if not session.outbox.admits(position):
            self._hold(exit_point, session, position, runs, used, held)

    def _hold(
        self,
        exit_point: int,
        session: Session,
        position: Position,
        runs: list[tuple[str, int, int, int]],
        used: list[int],
        held: set[int],
    ) -> None:
        """These runs are delivered when the session's outbox admits the position."""
        session.holds.append((position, self._hold_tokens(exit_point, runs, used, held)))

    def _hold_tokens(
        self, exit_point: int, runs: list[tuple[str, int, int, int]], used: list[int], held: set[int]
    ) -> list[tuple[int, int]]:
        """Hold these runs once more; return what `_let_go` is to be given for it."""
        tokens = [(exit_point, runs[place][3]) for place in used]
        for token in tokens:
            self.held[token] = self.held.get(token, 0) + 1
        held.update(used)
        return tokens

    def _without(
        self,
        doubles: set[int],
        exit_point: int,
        session: Session,
        chunk: Chunk,
        chosen: list[int],
        runs: list[tuple[str, int, int, int]],
        run_of: list[int],
        held: set[int],
    ) -> Chunk:
        """Return the share without doubles. Their first copies may still wait for a place: so do their runs."""
        double = {run_of[place] for place in chosen if place in doubles}
        if not double:
            return chunk
        position = session.outbox.end if session.durable is None else session.durable.last
        if not session.admits(position):
            self._hold(exit_point, session, position, runs, sorted(double), held)
        return chunk.select(np.array([at for at, place in enumerate(chosen) if place not in doubles], np.int64))

    def release(self, session: Session, *, everything: bool = False) -> None:
        """Let go of the runs that have found their place in the session's queue."""
        while session.holds and (everything or session.admits(session.holds[0][0])):
            self._let_go(session.holds.popleft()[1])
        if not session.holds:
            session.stalled_ms = None

    def _let_go(self, tokens: list[tuple[int, int]]) -> None:
        for token in tokens:
            left = self.held[token] - 1
            if left:
                self.held[token] = left
            else:
                del self.held[token]
                self._delivered.setdefault(token[0], []).append(token[1])

    def _hold_until_stored(
        self, exit_point: int, runs: list[tuple[str, int, int, int]], used: list[int], held: set[int]
    ) -> None:
        """These runs are delivered when the journal's present portion is on disk, at the earliest."""
        tokens = self._hold_tokens(exit_point, runs, used, held)
        self._journal.then(partial(self._stored_runs, self._recoveries, tokens))

    def _stored_runs(self, recoveries: int, tokens: list[tuple[int, int]]) -> None:
        if recoveries == self._recoveries:
            self._let_go(tokens)

    def _note_taken(self, chunk: Chunk) -> None:
        """What a later incarnation must know so as not to take it twice."""
        for publisher, instance, _ in chunk.runs:
            self._journal.write(Took(publisher, instance, self._shared.watermarks.upto((publisher, instance))))

    def tell(self) -> None:
        """Tell the exit points what has found its place."""
        if self._delivered:
            for exit_point, tokens in self._delivered.items():
                self._shared.out.append(Send(Peer(EXIT_POINT, exit_point), Delivered(tokens)))
            self._delivered = {}

    def void(self) -> None:
        """A recovery begins: what exit points have sent is sent again."""
        self._recoveries += 1
        self.held = {}
        self._delivered = {}
        for session in self._shared.sessions.values():
            session.holds.clear()
            session.stalled_ms = None
