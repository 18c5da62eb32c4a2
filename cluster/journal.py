"""What a connection point has written to its slot's own file, and what waits until it is there.

The machine does not write: it asks with Store, in numbered portions, and is told Stored when a portion, and all before
it, is on disk. In between it goes on. Whatever may be said only when something is on disk (Delivered to an exit point,
Done and Welcome to a client, a notification itself) is an action that waits here for the portion's number.

A portion is what has gathered in one round. A durable session says once a round what is to be written of it, however
much has happened to it; see `durable/`. Valid publications are written one by one; see `valid.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from cluster.messages import Store

# What Store asks for. A session is named by its number, which is never used for another one --------------------


class SaveSession(NamedTuple):
    """The session is in this state; it replaces the one of before."""

    session: int
    state: bytes


class SaveDeliveries(NamedTuple):
    """How often which positions were delivered; replaces what was saved before."""

    session: int
    deliveries: bytes


class SaveMark(NamedTuple):
    """The session, which has moved, has been offered what this publisher sent, up to this sequence."""

    session: int
    publisher: str
    instance: int
    sequence: int


class ForgetMarks(NamedTuple):
    """Forget all that SaveMark has said of the session."""

    session: int


class EndSession(NamedTuple):
    """Forget the session, its subscriptions and its notifications."""

    session: int


class SaveSubscription(NamedTuple):
    """The session holds this subscription. filter: as it was asked for."""

    session: int
    number: int
    filter: str
    policy: str
    normal_form: bytes


class RemoveSubscription(NamedTuple):
    """The session does not hold it any more."""

    session: int
    number: int


class Append(NamedTuple):
    """Notifications at the positions from `first` to `last`; encoded."""

    session: int
    first: int
    last: int
    entries: bytes


class Discard(NamedTuple):
    """What was appended and lies as a whole at or below the position is not needed any more."""

    session: int
    upto: int


class Took(NamedTuple):
    """What the publisher sent is taken up to this sequence: it is in this portion or an earlier one."""

    publisher: str
    instance: int
    sequence: int


class SaveValid(NamedTuple):
    """The publication is valid, up to `until_us` (microseconds since 1970; None: until it is withdrawn).

    It replaces what was saved under (publisher, instance, sequence). time_us: when it was taken in. settled: see Kept.
    """

    publisher: str
    instance: int
    sequence: int
    time_us: int
    until_us: int | None
    settled: bool
    payload: bytes


class RemoveValid(NamedTuple):
    """The publication is not valid any more, or is another connection point's to keep."""

    publisher: str
    instance: int
    sequence: int


class SaveWithdrawal(NamedTuple):
    """The publication has been withdrawn, and is not to be taken in again. The latest ones come last in Recovered."""

    publisher: str
    instance: int
    sequence: int


class RemoveWithdrawal(NamedTuple):
    """That was long ago."""

    publisher: str
    instance: int
    sequence: int


class DeadLetter(NamedTuple):
    """Add this line (JSON) to the dead-letter file; it is there before the rest of the portion is."""

    line: bytes


OfSession = (
    SaveSession
    | SaveDeliveries
    | SaveMark
    | ForgetMarks
    | EndSession
    | SaveSubscription
    | RemoveSubscription
    | Append
    | Discard
)
OfValid = SaveValid | RemoveValid | SaveWithdrawal | RemoveWithdrawal
Write = OfSession | OfValid | Took | DeadLetter


class SavedSession(NamedTuple):
    """A session as it is on disk. deliveries: empty if never saved; segments: (first, last, entries), ascending;
    marks: (publisher, instance, sequence)."""

    session: int
    state: bytes
    deliveries: bytes
    subscriptions: list[SaveSubscription]
    segments: list[tuple[int, int, bytes]]
    marks: list[tuple[str, int, int]] = []  # noqa: RUF012


class Recovered(NamedTuple):
    """Everything that is on disk, for Restored."""

    sessions: list[SavedSession]
    took: list[Took]
    valid: list[SaveValid]
    withdrawals: list[SaveWithdrawal]


class Journalled(Protocol):
    """Somebody who says once a round what is to be written of him."""

    def gather(self) -> tuple[list[Write], Any]:
        """Return the writes, and a receipt to be handed back when they are on disk."""
        ...

    def on_disk(self, receipt: Any) -> None:
        """What `gather` returned with this receipt is on disk."""
        ...


@dataclass(slots=True)
class _Portion:
    receipts: list[tuple[Journalled, Any]] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)


class Journal:
    """Portions, from being gathered to being on disk."""

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self._changed: dict[Journalled, None] = {}  # an ordered set
        self._actions: list[Callable[[], None]] = []
        self._portions: deque[tuple[int, _Portion]] = deque()
        self._last = 0  # the number of the last portion asked for
        self._upto = 0  # the last one that is on disk

    @property
    def present(self) -> int:
        """The number of the portion that is being gathered; for `when`."""
        return self._last + 1

    @property
    def underway(self) -> int:
        """Portions that were asked for and are not on disk."""
        return len(self._portions)

    def write(self, write: Write) -> None:
        """Have this written with the present portion."""
        self._writes.append(write)

    def changed(self, one: Journalled) -> None:
        """Ask him, before the present portion goes, what is to be written."""
        self._changed[one] = None

    def gone(self, one: Journalled) -> None:
        """He has nothing to say any more."""
        self._changed.pop(one, None)

    def has(self, number: int) -> bool:
        """Tell whether that portion is on disk."""
        return number <= self._upto

    def then(self, action: Callable[[], None]) -> None:
        """Do this when the present portion is on disk."""
        self._actions.append(action)

    def when(self, number: int, action: Callable[[], None]) -> None:
        """Do this when that portion is on disk; at once, if it is."""
        if number <= self._upto:
            action()
        elif number == self.present:
            self.then(action)
        else:
            assert number < self.present, f"portion {number} is not there yet"
            next(portion for known, portion in self._portions if known == number).actions.append(action)

    def take(self) -> Store | None:
        """End the portion and return it; None if there is nothing in it, and nobody waits for it."""
        if not (self._writes or self._changed or self._actions):
            return None
        portion = _Portion(actions=self._actions)
        writes, self._writes, self._actions = self._writes, [], []
        changed, self._changed = self._changed, {}
        for one in changed:
            more, receipt = one.gather()
            writes += more
            portion.receipts.append((one, receipt))
        self._last += 1
        self._portions.append((self._last, portion))
        return Store(self._last, tuple(writes))

    def stored(self, upto: int) -> list[Journalled]:
        """Take Stored: hand the receipts back and do what has waited, in order; return whose writes were among it."""
        assert self._upto <= upto <= self._last, f"stored up to {upto}, asked for up to {self._last}"
        touched: dict[Journalled, None] = {}
        while self._portions and self._portions[0][0] <= upto:
            number, portion = self._portions.popleft()
            self._upto = number
            for one, receipt in portion.receipts:
                one.on_disk(receipt)
                touched[one] = None
            for action in portion.actions:
                action()
        return list(touched)
