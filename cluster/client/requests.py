"""The subscriptions that this client holds, and its requests that have no answer yet.

Every change of a subscription is a request: open, update, close; and so is the end of a publication's validity. A
request stays here until Done or Refused; where the connection ends first it is sent again on the next one, after the
subscriptions that were held have been restored under their numbers with the filter last confirmed. So a lost connection
never leaves a request undecided, and an update that was under way is decided by the broker again.

    number free -> opening -> held -> closing -> free          each arrow is an answer; opening -> free when refused

The hard cases. An application that gives up a subscribe half way has its subscription closed behind the
open, so that nothing stays behind at the broker. A restore that the broker refuses (its limits may have
changed) ends the subscription: it is told to the application and closed, for an update may be on its way behind it.
A new connection holds nothing at the broker, so the answer to a repeated close may be a refusal: that counts as closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Literal

from cluster.codec import encode_frame
from cluster.errors import CodecError, FilterError, KittiwakeError, PolicyError, RefusedError
from cluster.frames import (
    INITIAL_NONE,
    INITIAL_VALID,
    SUBSCRIPTION_BITS,
    Done,
    Refused,
    Subscribe,
    Unpublish,
    Unsubscribe,
)

NUMBER_COUNT = 1 << SUBSCRIPTION_BITS

RESTORES_UNDERWAY = 64
"""At most without an answer, while a former session serves the client as well: some 4 ms of the broker's time."""
NO_NUMBER = -1
"""Of a request that is about no subscription."""

Kind = Literal["open", "update", "close", "restore", "unpublish"]


class Request:
    """One change of one subscription, or the end of a publication's validity (instance, sequence).

    error:   set when the broker refused it.
    lost:    the client ended before it was answered.
    settled: called with the request, by the shell and not by this machine, once it is answered or lost.
    """

    __slots__ = ("error", "filter", "id", "instance", "kind", "lost", "number", "policy", "sequence", "settled")

    def __init__(
        self,
        id: int,
        kind: Kind,
        number: int,
        filter: str,
        policy: str,
        settled: Callable[[Request], None] | None,
    ) -> None:
        self.id = id
        self.kind = kind
        self.number = number
        self.filter = filter
        self.policy = policy
        self.settled = settled
        self.instance: int | None = None
        self.sequence = 0
        self.error: KittiwakeError | None = None
        self.lost = False


class _Entry:
    __slots__ = ("closing", "filter", "policy", "valid")

    def __init__(self, policy: str, valid: bool) -> None:
        self.valid = valid
        """It is to be given what is valid, whenever it is opened."""
        self.filter: str | None = None
        """The filter that the broker has confirmed; None while opening."""
        self.policy = policy
        self.closing = False


class Requests:
    """The subscriber's control half of a client."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._pending: dict[int, Request] = {}
        """Requests without an answer, by id, which is also their order."""
        self._restoring: set[int] = set()
        """Ids of the restores among them."""
        self._to_restore: deque[int] = deque()
        """Numbers of those that follow when some of these are answered."""
        self._next_id = 1
        self._next_number = 0
        self._connected = False
        self._waiting = False
        self._output: list[bytes] = []

    @property
    def restoring(self) -> bool:
        """The new connection does not hold everything yet that the last one held."""
        return bool(self._restoring or self._to_restore)

    def closable(self, number: int) -> bool:
        """Say whether the number is in use and not closing."""
        entry = self._entries.get(number)
        return entry is not None and not entry.closing

    def knows(self, number: int) -> bool:
        """Say whether the broker may still use the number."""
        return number in self._entries

    @property
    def open_count(self) -> int:
        """Numbers that the broker may know."""
        return len(self._entries)

    def open(
        self,
        filter: str,
        policy: str,
        settled: Callable[[Request], None] | None = None,
        *,
        valid: bool = False,
    ) -> Request:
        """Ask for a subscription under a new number. valid: with what is valid then.

        Raises: RefusedError when all 2**20 numbers are taken.
        """
        if len(self._entries) >= NUMBER_COUNT:
            raise RefusedError("every subscription number is in use", code="too_many", limit=NUMBER_COUNT)
        # Numbers are used again as late as possible: what an application wrote down stays unambiguous.
        while self._next_number in self._entries:
            self._next_number = (self._next_number + 1) % NUMBER_COUNT
        number = self._next_number
        self._next_number = (number + 1) % NUMBER_COUNT
        self._entries[number] = _Entry(policy, valid)
        return self._request("open", number, filter, policy, settled)

    def update(self, number: int, filter: str, settled: Callable[[Request], None] | None = None) -> Request:
        """Ask for another filter of a subscription that is held."""
        return self._request("update", number, filter, self._entries[number].policy, settled)

    def close(self, number: int, settled: Callable[[Request], None] | None = None) -> Request:
        """Ask for the end of a subscription, held or opening."""
        entry = self._entries[number]
        assert not entry.closing, f"subscription {number} is closed twice"
        entry.closing = True
        return self._request("close", number, "", "", settled)

    def adopt(self, number: int, filter: str, policy: str) -> None:
        """The broker holds this subscription, which an earlier instance of this client has opened."""
        entry = self._entries.setdefault(number, _Entry(policy, False))
        entry.filter = filter
        self._next_number = max(self._next_number, (number + 1) % NUMBER_COUNT)

    def unpublish(
        self, instance: int | None, sequence: int, settled: Callable[[Request], None] | None = None
    ) -> Request:
        """Ask for the end of a publication's validity. instance: of the life that published it, None for any."""
        return self._request("unpublish", NO_NUMBER, "", "", settled, instance, sequence)

    def connected(self, *, waiting: bool = False, held: Collection[int] = ()) -> None:
        """Begin a connection: restore what is held, repeat what is pending.

        held:    what the broker has kept of a durable session, and need not be restored.
        waiting: only what is held, until `go_on`: a former session still lives, and both are to hold the same. As that
                 one serves the client meanwhile, it is restored a little at a time.
        """
        self._connected = True
        self._waiting = waiting
        repeat = list(self._pending.values())
        for number, entry in self._entries.items():
            if entry.filter is not None and not entry.closing and number not in held:
                self._to_restore.append(number)
        self._restore(RESTORES_UNDERWAY if waiting else len(self._to_restore))
        if not waiting:
            for request in repeat:
                self._send(request)

    def _restore(self, most: int) -> None:
        """Have so many restores underway, or all that are left."""
        while self._to_restore and len(self._restoring) < most:
            number = self._to_restore.popleft()
            entry = self._entries[number]
            assert entry.filter is not None, f"subscription {number} was never held"
            self._restoring.add(self._request("restore", number, entry.filter, entry.policy, None).id)

    def go_on(self) -> None:
        """Ask for everything that has waited."""
        if self._waiting:
            self._restore(len(self._restoring) + len(self._to_restore))
            self._waiting = False
            for request in self._pending.values():
                if request.id not in self._restoring:
                    self._send(request)

    def disconnected(self) -> None:
        """End the connection: restores are forgotten, the next connection begins them afresh."""
        self._connected = self._waiting = False
        self._output.clear()
        for id in self._restoring:
            del self._pending[id]
        self._restoring.clear()
        self._to_restore.clear()

    def answer(self, frame: Done | Refused) -> Request:
        """Take an answer and return the request that it settles.

        Raises: CodecError for a request that was not made.
        """
        request = self._pending.pop(frame.request, None)
        if request is None:
            raise CodecError(f"request {frame.request} was answered, which was not asked")
        self._restoring.discard(request.id)
        self._restore(RESTORES_UNDERWAY)
        if request.kind == "unpublish":
            if isinstance(frame, Refused):
                request.error = refusal(frame)
            return request
        entry = self._entries[request.number]
        if request.kind == "close":
            del self._entries[request.number]
        elif isinstance(frame, Refused):
            request.error = refusal(frame)
            if request.kind == "restore" and not entry.closing:
                self.close(request.number)
            elif request.kind == "open" and not entry.closing:
                del self._entries[request.number]
        else:
            entry.filter = request.filter
        return request

    def take(self) -> list[bytes]:
        """Return the encoded frames that are to be written, in order."""
        output, self._output = self._output, []
        return output

    def abandon(self) -> list[Request]:
        """Give up everything, at the end of the client; return the requests that nobody will answer."""
        lost = [request for request in self._pending.values() if request.kind != "restore"]
        for request in lost:
            request.lost = True
        self._pending.clear()
        self._restoring.clear()
        self._to_restore.clear()
        self._entries.clear()
        self._output.clear()
        self._connected = False
        return lost

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        assert all(request.id == id for id, request in self._pending.items())
        about = (request for request in self._pending.values() if request.kind != "unpublish")
        assert all(request.number in self._entries for request in about)
        assert self._restoring <= self._pending.keys()
        assert self._entries.keys() >= set(self._to_restore)
        for number, entry in self._entries.items():
            kinds = [request.kind for request in self._pending.values() if request.number == number]
            assert entry.closing == ("close" in kinds)
            assert entry.filter is not None or entry.closing or "open" in kinds

    def _request(
        self,
        kind: Kind,
        number: int,
        filter: str,
        policy: str,
        settled: Callable[[Request], None] | None,
        instance: int | None = None,
        sequence: int = 0,
    ) -> Request:
        request = Request(self._next_id, kind, number, filter, policy, settled)
        request.instance, request.sequence = instance, sequence
        self._next_id += 1
        self._pending[request.id] = request
        if self._connected and (kind == "restore" or not self._waiting):
            self._send(request)
        return request

    def _send(self, request: Request) -> None:
        if request.kind == "close":
            self._output.append(encode_frame(Unsubscribe(request.id, request.number)))
        elif request.kind == "unpublish":
            self._output.append(encode_frame(Unpublish(request.id, request.instance, request.sequence)))
        else:
            valid = request.kind != "update" and self._entries[request.number].valid
            initial = INITIAL_VALID if valid else INITIAL_NONE
            frame = Subscribe(request.id, request.number, request.filter, request.policy, initial)
            self._output.append(encode_frame(frame))


def refusal(frame: Refused) -> KittiwakeError:
    """Return the exception that says what the frame says."""
    if frame.code == FilterError.code:
        return FilterError(frame.reason, position=frame.position, limit=frame.limit)
    if frame.code == PolicyError.code:
        return PolicyError(frame.reason, position=frame.position, limit=frame.limit)
    return RefusedError(frame.reason, code=frame.code, limit=frame.limit)
