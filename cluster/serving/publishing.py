"""From Publish to Acknowledged: a client's publications go to its access point as runs, unseen, in the order they came.

They are gathered until the end of the round (`gathering.py`). What was taken from a client is held until it is
acknowledged, and is sent again after a recovery. A client's window bounds what is held for it, the pool what is held
for all. What was published with `valid_for` is acknowledged when the matchers have it and it is on disk.

An acknowledgement that nobody waits for (level none, not valid, not rejected) only frees memory and credit: it is
gathered until the next tick (50 ms), as one for all that came meanwhile, as long as the client has half of its window
left and any frame would still fit. So no publisher waits for it, and at 1,000 publications a second 20 frames say what
1,000 would. A connection that breaks off before makes the client send that much more again, which is known as a
double like any other; one that ends with Bye is told first.
"""

from __future__ import annotations

from functools import partial

from cluster import columns, frames
from cluster.frames import UNTIL_UNPUBLISHED
from cluster.journal import Journal
from cluster.messages import Acknowledge, Peer, Run
from cluster.serving.books import Books
from cluster.serving.gathering import Gathering
from cluster.serving.records import Refusal, Session
from cluster.serving.shared import SESSION_MASK, Shared
from cluster.validity import Validity


class Publishing:
    """Takes publications, passes them on, and acknowledges them.

    publishers: sessions that have published. pool_bytes: unacknowledged payload of all sessions.
    books:      what became of publications.
    _untold:    by key, sessions that are to be told of acknowledgements with the next tick.
    _durable:   durable sessions, by the number that they publish under.
    """

    def __init__(self, shared: Shared, journal: Journal, validity: Validity, gathering: Gathering) -> None:
        self._shared = shared
        self._gathering = gathering
        self._journal = journal
        self._settled_in = 0  # the last portion for which an acknowledgement waits, or has waited
        self._validity = validity
        self.publishers = 0
        self.pool_bytes = 0
        self.books = Books(shared.counters)
        self._untold: dict[int, Session] = {}
        self._durable: dict[int, Session] = {}

    def window(self) -> tuple[int, int]:
        """Return a publisher's credit: its own window, less when the pool must serve many."""
        share = self._shared.flow.publish_pool_bytes // max(self.publishers, 1)
        window_bytes = min(self._shared.flow.publish_window_bytes, max(share, self._shared.flow.publish_floor_bytes))
        return self._shared.flow.publish_window, window_bytes

    def publish(self, session: Session, frame: frames.Publish, now_us: int) -> None:
        """Check publications and take them. Raises Refusal."""
        shared = self._shared
        count = len(frame.lengths) // 4
        size = len(frame.payload)
        if len(frame.lengths) % 4 or count == 0:
            raise Refusal("malformed", "Publish.lengths is not a column of uint32, or empty")
        if count > shared.limits.publications_per_frame:
            raise Refusal(
                "too_large",
                f"{count} publications in a frame, the limit is {shared.limits.publications_per_frame}",
            )
        if sum(columns.unpack(columns.UINT32, frame.lengths)) != size:
            raise Refusal("malformed", "Publish.lengths and Publish.payload do not fit")
        stored = frame.acknowledge == frames.ACKNOWLEDGE_STORED
        if not stored and frame.acknowledge not in (frames.ACKNOWLEDGE_NONE, frames.ACKNOWLEDGE_MATCHED):
            raise Refusal("malformed", f"acknowledge level {frame.acknowledge}")
        if stored and not shared.stores:
            raise Refusal("malformed", "acknowledge level stored: this cluster has no matched output (output.path)")
        if not 0 <= frame.time_us < 1 << 62:
            raise Refusal("malformed", f"published at {frame.time_us} us")
        if not 0 <= frame.valid_for_ms <= UNTIL_UNPUBLISHED:
            raise Refusal("malformed", f"publications valid for {frame.valid_for_ms} ms")
        if session.next_sequence is None:
            if not 1 <= frame.first_sequence < 1 << 62:
                raise Refusal("malformed", f"a first sequence of {frame.first_sequence}")
            session.next_sequence = frame.first_sequence
            session.acknowledged = session.settled = session.told = frame.first_sequence - 1
            session.awaited = 0
            self.publishers += 1
        if frame.first_sequence != session.next_sequence:
            raise Refusal("malformed", f"sequence {frame.first_sequence} where {session.next_sequence} was due")
        last = frame.first_sequence + count - 1
        # The byte window may have shrunk after the client used it; the configured one is the contract.
        if last - session.acknowledged > shared.flow.publish_window or (
            session.unacknowledged and session.flight_bytes + size > shared.flow.publish_window_bytes
        ):
            raise Refusal(
                "over_credit",
                f"more than {shared.flow.publish_window} publications or "
                f"{shared.flow.publish_window_bytes} bytes are unacknowledged",
            )
        session.next_sequence = last + 1
        if frame.acknowledge != frames.ACKNOWLEDGE_NONE or frame.valid_for_ms:
            session.awaited = last
        # What the client sends again are at most as many as its window holds.
        run = Run(
            session.client_id,
            session.instance,
            session.publisher,
            frame.first_sequence,
            count,
            now_us,
            stored,
            frame.time_us,
            max(session.settled, last - shared.flow.publish_window),
        )
        taken = (run, frame.lengths, frame.payload)
        session.unacknowledged.append(taken)
        shared.recent.taken(session.client_id, frame.first_sequence, last, now_us)
        session.flight_bytes += size
        self.pool_bytes += size
        shared.counters["accepted"] += count
        if frame.valid_for_ms:
            session.kept_any = True
            payloads = columns.cut(frame.payload, columns.unpack(columns.UINT32, frame.lengths))
            session.not_kept += self._validity.keep(
                session.client_id, session.instance, frame.first_sequence, now_us, payloads, frame.valid_for_ms
            )
        self._gathering.publish(session.access_point, taken)

    def acknowledge(self, message: Acknowledge) -> None:
        """The matchers have what clients have published."""
        for (client, upto, rejected), outcome in zip(message.acknowledgements, message.outcomes, strict=True):
            session = self._publisher(client)
            if session is not None and (not session.kept_any or upto <= session.acknowledged):
                self._acknowledge(session, client, upto, rejected, outcome)
                continue
            saved = partial(self._acknowledge_saved, client, upto, rejected, outcome)
            if session is None:
                # Behind what has waited for the disk while the session was there.
                self._journal.when(self._settled_in, saved)
                continue
            portion = self._validity.settle(
                session.client_id, session.instance, session.acknowledged + 1, upto, [one for one, _ in rejected]
            )
            # One behind the other, whether or not the later one has anything to wait for itself.
            session.settled_in = max(session.settled_in, portion)
            self._settled_in = max(self._settled_in, portion)
            self._journal.when(session.settled_in, saved)

    def _publisher(self, client: int) -> Session | None:
        number = client & SESSION_MASK
        session = self._shared.sessions.get(number) or self._durable.get(number)
        return session if session is not None and session.publisher == client else None

    def _acknowledge_saved(
        self, client: int, upto: int, rejected: list[tuple[int, str]], outcome: tuple[int, int, int]
    ) -> None:
        """What is valid of these is on disk."""
        self._acknowledge(self._publisher(client), client, upto, rejected, outcome)

    def _acknowledge(
        self,
        session: Session | None,
        client: int,
        upto: int,
        rejected: list[tuple[int, str]],
        outcome: tuple[int, int, int],
    ) -> None:
        if session is None:
            self.books.enter_orphans(client, upto, outcome)
            return  # gone meanwhile
        assert session.next_sequence is not None, f"{session.client_id}: acknowledged, never published"
        assert upto < session.next_sequence, f"{session.client_id}: acknowledged {upto}"
        if upto <= session.acknowledged:
            return  # again, or late, after a recovery
        self._shared.counters["acknowledged"] += upto - session.acknowledged
        self.books.enter(upto - session.acknowledged, outcome)
        if rejected:
            self._shared.counters["rejected"] += len(rejected)
            self._shared.recent.rejected(session.client_id, rejected)
        not_kept: list[tuple[int, str]] = []
        if session.not_kept:
            not_kept = [one for one in session.not_kept if one[0] <= upto]
            del session.not_kept[: len(not_kept)]
        session.acknowledged = upto
        while session.unacknowledged and session.unacknowledged[0][0].last_sequence <= upto:
            size = len(session.unacknowledged.popleft()[2])
            session.flight_bytes -= size
            session.untold_bytes += size
            self.pool_bytes -= size
        if rejected or not_kept or session.awaited > session.told or not self._has_ample_credit(session):
            self._tell(session, rejected, not_kept)
        else:
            self._untold[session.key] = session

    def _has_ample_credit(self, session: Session) -> bool:
        """Tell whether the client, as far as it knows, may go on as it likes until the next tick."""
        assert session.next_sequence is not None, "it has published"
        window, window_bytes = self.window()
        left = window - (session.next_sequence - 1 - session.told)
        left_bytes = window_bytes - session.flight_bytes - session.untold_bytes
        return (
            window_bytes == session.told_window_bytes
            and 2 * left >= window
            and left_bytes >= self._shared.limits.frame_bytes
        )

    def _tell(self, session: Session, rejected: list[tuple[int, str]], not_kept: list[tuple[int, str]]) -> None:
        self._untold.pop(session.key, None)
        session.told = session.acknowledged
        session.untold_bytes = 0
        window, window_bytes = self.window()
        session.told_window_bytes = window_bytes
        self._shared.write(session, frames.Acknowledged(session.told, window, window_bytes, rejected, not_kept))

    def tell(self, session: Session) -> None:
        """Tell the client what was gathered for it; its connection is about to end."""
        if session.key in self._untold:
            self._tell(session, [], [])

    def tell_all(self) -> None:
        """A tick: tell clients what was gathered."""
        for session in list(self._untold.values()):
            self._tell(session, [], [])

    # Sessions -----------------------------------------------------------------------------------------------------

    def knows(self, number: int) -> bool:
        """Tell whether a durable session publishes under this number."""
        return number in self._durable

    def begin(self, number: int, session: Session) -> None:
        """The durable session publishes under this number from here."""
        self._durable[number] = session

    def forget(self, session: Session) -> None:
        """Its connection is gone: what it has underway is acknowledged to nobody."""
        self._untold.pop(session.key, None)
        self.books.gone(session, recovering=self._shared.recovering)
        self.publishers -= session.next_sequence is not None
        self.pool_bytes -= session.flight_bytes

    def end(self, session: Session) -> None:
        """The durable session's next connection begins anew, under another number."""
        del self._durable[session.publisher & SESSION_MASK]
        self._untold.pop(session.key, None)
        session.next_sequence = None
        session.unacknowledged.clear()
        session.flight_bytes = session.untold_bytes = 0
        session.told_window_bytes = 0

    # Recovery -----------------------------------------------------------------------------------------------------

    def void(self) -> None:
        """Nothing goes to an access point any more but what is sent again."""
        self.books.void()

    def send_again(self) -> None:
        """Send what is not acknowledged."""
        counts: dict[Peer, int] = {}
        for session in self._shared.sessions.values():
            access_point = session.access_point
            for taken in session.unacknowledged:
                self._gathering.publish(access_point, taken)
                counts[access_point] = counts.get(access_point, 0) + taken[0].count
                self._shared.counters["sent_again"] += taken[0].count
                if counts[access_point] >= self._shared.flow.batch_publications:
                    counts[access_point] = 0
                    self._gathering.send(access_point)
