"""What this client publishes: numbered, within the window, kept until acknowledged.

    offered    waits for room; has no number yet and may be withdrawn without a trace
    admitted   has its sequence numbers for good; lies in a chunk that waits to be sent
    sent       written on the present connection; in flight
    settled    acknowledged, and dropped from here

Numbers are given in the order of the offers, without holes, and only when there is room and a connection. So a
withdrawn offer leaves no hole, and publications that nobody can take do not pile up here: what is admitted is at most
the broker's window, or one offer where that alone is larger. When the connection ends, what was sent
counts as waiting again; the next connection gets it under the same numbers, and the broker drops what it has
already. Consecutive offers of one acknowledgement level and validity are joined into a chunk, which becomes one Publish
frame; a chunk is cut again where the credit or the frame limit of a later connection asks for it.

No clock, no socket: the caller passes on what `take` returns and what the broker answers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence

from cluster.codec import encode_frame
from cluster.errors import CodecError
from cluster.frames import ACKNOWLEDGE_NONE, Acknowledged, Publish

CHUNK_COUNT_MAX = 1024
CHUNK_BYTES_MAX = 64 * 1024
# Tag, sequence, level and the two headers of a Publish frame, with room to spare.
FRAME_OVERHEAD = 64


class Offer:
    """Publications that are admitted together, in order.

    first_sequence: 0 until admitted; then the number of the first.
    time_us:        when, microseconds since 1970; 0 for not said. Offers that go in one frame bear the first one's.
    rejected:       (sequence, reason) of those that the cluster refused, or did not keep as valid; complete when
                    settled.
    settled:        with acknowledgement: everything in it is acknowledged or rejected; without: it is admitted.
    lost:           the client ended before it was settled.
    changed:        called with the offer, by the shell and not by this machine, when it is admitted later than at
                    once, settled, or lost.
    """

    __slots__ = (
        "acknowledge",
        "changed",
        "first_sequence",
        "lost",
        "packed",
        "rejected",
        "settled",
        "size",
        "time_us",
        "valid_for_ms",
        "withdrawn",
    )

    def __init__(
        self,
        packed: Sequence[bytes],
        acknowledge: int,
        changed: Callable[[Offer], None] | None = None,
        valid_for_ms: int = 0,
        time_us: int = 0,
    ) -> None:
        self.packed: Sequence[bytes] = packed
        self.time_us = time_us
        self.valid_for_ms = valid_for_ms
        self.acknowledge = acknowledge
        self.changed = changed
        self.first_sequence = 0
        self.size = sum(map(len, packed))
        self.rejected: list[tuple[int, str]] = []
        self.settled = False
        self.lost = False
        self.withdrawn = False


class _Chunk:
    """Consecutive publications of one level and validity: `packed[start:]`, the first of them numbered
    `first_sequence`."""

    __slots__ = ("acknowledge", "first_sequence", "packed", "size", "start", "time_us", "valid_for_ms")

    def __init__(self, first_sequence: int, acknowledge: int, valid_for_ms: int, time_us: int) -> None:
        self.time_us = time_us
        self.first_sequence = first_sequence
        self.acknowledge = acknowledge
        self.valid_for_ms = valid_for_ms
        self.packed: list[bytes] = []
        self.start = 0
        self.size = 0
        """Bytes in packed[start:]."""

    @property
    def count(self) -> int:
        return len(self.packed) - self.start

    @property
    def end(self) -> int:
        """The number after the last one's."""
        return self.first_sequence + len(self.packed) - self.start

    def skip(self, count: int) -> int:
        """Forget the first ones; return their bytes."""
        size = sum(map(len, self.packed[self.start : self.start + count]))
        self.start += count
        self.first_sequence += count
        self.size -= size
        return size

    def cut(self, count: int) -> _Chunk:
        """Split the first ones off and return them as a chunk of their own."""
        head = _Chunk(self.first_sequence, self.acknowledge, self.valid_for_ms, self.time_us)
        head.packed = self.packed[self.start : self.start + count]
        head.size = self.skip(count)
        return head


class Publishing:
    """The publisher's half of a client. Cost: O(1) a publication and O(1) a frame, amortised.

    first_sequence: the number of the first publication.
    """

    def __init__(self, first_sequence: int = 1) -> None:
        self.window = 0
        self.window_bytes = 0
        self.frame_bytes = 0
        self.next_sequence = first_sequence
        self.acknowledged = first_sequence - 1
        """Everything up to here is settled; always < next_sequence."""
        self.rejected_count = 0
        """Publications that the cluster refused, over the life of the client, whatever the level."""
        self.not_kept_count = 0
        """Publications that the cluster matched and did not keep as valid."""
        self._connected = False
        self._in_flight_upto = self.acknowledged
        """The last number written on this connection, or `acknowledged` if that is larger."""
        self._size = 0
        """Bytes of everything admitted and not settled."""
        self._in_flight_size = 0
        self._offers: deque[Offer] = deque()
        self._waiting: deque[_Chunk] = deque()
        self._sent: deque[_Chunk] = deque()
        self._unsettled: deque[Offer] = deque()
        """Admitted offers that asked for acknowledgement, by number."""

    @property
    def unacknowledged(self) -> int:
        """Publications admitted and not settled."""
        return self.next_sequence - 1 - self.acknowledged

    @property
    def waiting_bytes(self) -> int:
        """Bytes admitted and not sent."""
        return self._size - self._in_flight_size

    @property
    def drained(self) -> bool:
        """Nothing waits to be sent, and nothing waits for an acknowledgement that somebody asked for."""
        return not self._offers and not self._waiting and not self._unsettled

    # From the application ----------------------------------------------------------------------------------------

    def offer(self, offer: Offer) -> bool:
        """Queue the offer; return whether it was admitted at once."""
        if not self._offers and self._room(offer):
            self._admit(offer)
            return True
        self._offers.append(offer)
        return False

    def withdraw(self, offer: Offer) -> list[Offer]:
        """Take the offer back if it is not admitted; return the offers that are admitted in its place."""
        if offer.first_sequence == 0:
            offer.withdrawn = True
            offer.packed = ()
        offer.changed = None
        return self._admit_all()

    # From the broker ---------------------------------------------------------------------------------------------

    def connected(self, window: int, window_bytes: int, frame_bytes: int) -> list[Offer]:
        """Begin a connection with this credit; return the offers that it admits."""
        assert not self._sent, "the last connection was not ended"
        self.window, self.window_bytes, self.frame_bytes = window, window_bytes, frame_bytes
        self._connected = True
        return self._admit_all()

    def disconnected(self) -> None:
        """End the connection: what was in flight waits again, under the same numbers."""
        self._connected = False
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._in_flight_upto = self.acknowledged
        self._in_flight_size = 0

    def acknowledge(self, frame: Acknowledged) -> list[Offer]:
        """Settle everything up to `frame.upto`; return the offers that it settles or admits, in order.

        Raises: CodecError for a number that was never used.
        """
        upto = frame.upto
        if not 0 <= upto < self.next_sequence:
            raise CodecError(f"{upto} was acknowledged, the last publication is {self.next_sequence - 1}")
        self.window, self.window_bytes = frame.window, frame.window_bytes
        changed: list[Offer] = []
        if frame.rejected:
            self.rejected_count += self._reject(frame.rejected, upto)
        if frame.not_kept:
            self.not_kept_count += self._reject(frame.not_kept, upto)
        if upto > self.acknowledged:
            self._in_flight_size -= self._forget(self._sent, upto)
            self._forget(self._waiting, upto)
            self.acknowledged = upto
            self._in_flight_upto = max(self._in_flight_upto, upto)
            unsettled = self._unsettled
            while unsettled and unsettled[0].first_sequence + len(unsettled[0].packed) - 1 <= upto:
                offer = unsettled.popleft()
                offer.settled = True
                changed.append(offer)
        changed += self._admit_all()
        return changed

    def take(self) -> list[bytes]:
        """Return the frames that the credit allows, in order, encoded. They count as sent."""
        frames: list[bytes] = []
        while self._waiting and self._connected:
            chunk = self._waiting[0]
            count = self._credit(chunk)
            if count == 0:
                break
            if count == chunk.count:
                self._waiting.popleft()
            else:
                chunk = chunk.cut(count)
            packed = chunk.packed[chunk.start :] if chunk.start else chunk.packed
            frames.append(
                encode_frame(
                    Publish(
                        chunk.first_sequence,
                        chunk.acknowledge,
                        struct.pack(f"<{len(packed)}I", *map(len, packed)),
                        b"".join(packed),
                        chunk.valid_for_ms,
                        chunk.time_us,
                    )
                )
            )
            self._sent.append(chunk)
            self._in_flight_upto = chunk.end - 1
            self._in_flight_size += chunk.size
        return frames

    def abandon(self) -> list[Offer]:
        """Give up everything, at the end of the client; return the offers that nobody will settle any more."""
        lost = [*self._unsettled, *(offer for offer in self._offers if not offer.withdrawn)]
        for offer in lost:
            offer.lost = True
        self._connected = False
        for queue in (self._unsettled, self._offers, self._waiting, self._sent):
            queue.clear()
        return lost

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        chunks = [*self._sent, *self._waiting]
        assert all(chunk.count > 0 for chunk in chunks)
        assert all(chunk.size == sum(map(len, chunk.packed[chunk.start :])) for chunk in chunks)
        expected = self.acknowledged + 1
        for chunk in chunks:
            assert chunk.first_sequence == expected
            expected = chunk.end
        assert expected == self.next_sequence
        assert self._size == sum(chunk.size for chunk in chunks)
        assert self._in_flight_size == sum(chunk.size for chunk in self._sent)
        assert self._in_flight_upto == self.acknowledged + sum(chunk.count for chunk in self._sent)
        assert all(offer.first_sequence for offer in self._unsettled)
        assert not any(offer.first_sequence for offer in self._offers)

    # Inside ------------------------------------------------------------------------------------------------------

    def _room(self, offer: Offer) -> bool:
        if not self._connected:
            return False
        unacknowledged = self.next_sequence - 1 - self.acknowledged
        # An offer that is larger than the whole window is admitted alone and sent in parts.
        return unacknowledged == 0 or (
            unacknowledged + len(offer.packed) <= self.window and self._size + offer.size <= self.window_bytes
        )

    def _admit(self, offer: Offer) -> None:
        offer.first_sequence = sequence = self.next_sequence
        acknowledge = offer.acknowledge
        limit = min(CHUNK_BYTES_MAX, self.frame_bytes)
        chunk = self._waiting[-1] if self._waiting else None
        alike = chunk is not None and (chunk.acknowledge, chunk.valid_for_ms) == (acknowledge, offer.valid_for_ms)
        if chunk is not None and (not alike or chunk.size >= limit):
            chunk = None
        for packed in offer.packed:
            size = len(packed)
            if chunk is None or chunk.size + size > limit or len(chunk.packed) - chunk.start >= CHUNK_COUNT_MAX:
                chunk = _Chunk(sequence, acknowledge, offer.valid_for_ms, offer.time_us)
                self._waiting.append(chunk)
            chunk.packed.append(packed)
            chunk.size += size
            sequence += 1
        self.next_sequence = sequence
        self._size += offer.size
        if acknowledge == ACKNOWLEDGE_NONE:
            offer.settled = True
        else:
            self._unsettled.append(offer)

    def _admit_all(self) -> list[Offer]:
        admitted: list[Offer] = []
        offers = self._offers
        while offers and (offers[0].withdrawn or self._room(offers[0])):
            offer = offers.popleft()
            if not offer.withdrawn:
                self._admit(offer)
                admitted.append(offer)
        return admitted

    def _credit(self, chunk: _Chunk) -> int:
        """Return how many of the chunk's publications may be sent now."""
        room = min(self.window - (self._in_flight_upto - self.acknowledged), chunk.count)
        room_bytes = self.window_bytes - self._in_flight_size
        if room == chunk.count and chunk.size <= room_bytes and self._fits(chunk.count, chunk.size):
            return room
        size = 0
        for count in range(max(room, 0)):
            size += len(chunk.packed[chunk.start + count])
            # With nothing in flight one publication always goes, be it larger than the credit in bytes (the broker
            # lets it, or no answer would ever raise the credit) or than a frame (the limit has shrunk since it was
            # checked, and the broker's refusal says so better than silence here).
            alone = count == 0 and self._in_flight_upto == self.acknowledged
            if not alone and (size > room_bytes or not self._fits(count + 1, size)):
                return count
        return max(room, 0)

    def _fits(self, count: int, size: int) -> bool:
        return size + 4 * count + FRAME_OVERHEAD <= self.frame_bytes

    def _forget(self, chunks: deque[_Chunk], upto: int) -> int:
        """Drop what is settled from the front; return its bytes."""
        size = 0
        while chunks and chunks[0].first_sequence <= upto:
            chunk = chunks[0]
            if chunk.end - 1 <= upto:
                size += chunk.size
                chunks.popleft()
            else:
                size += chunk.skip(upto + 1 - chunk.first_sequence)
        self._size -= size
        return size

    def _reject(self, rejected: list[tuple[int, str]], upto: int) -> int:
        """Tell the offers; return how many publications it is about."""
        count = 0
        for sequence, reason in rejected:
            if not self.acknowledged < sequence <= upto:
                continue
            count += 1
            for offer in self._unsettled:
                if offer.first_sequence <= sequence < offer.first_sequence + len(offer.packed):
                    offer.rejected.append((sequence, reason))
                    break
        return count
