"""One matcher's part in moving key groups to and from others, from Prepare to Retire or Abort.

It is a Chandy-Lamport snapshot of the groups that move. The first access point's Mark starts the copy. A change of a
moving subscription that comes on a lane whose Mark has not come belongs to the snapshot: it is applied here and sent
after it. Behind a Mark the access point itself sends changes to both owners. So with the last Mark all has been sent,
and GroupsEnd says how much it was. Copies, late changes and changes from access points may reach the new owner in
any order; the newer change of a subscription wins, and removals are remembered until Retire or Abort.

Nothing here takes long: `step` works for STEP_US at a time, by the costs below, and the matcher answers publications
between two steps. After each it rests for as long, so that others have their part of the cores. A source has at most
WINDOW_ENTRIES on their way to one target.

Source: K. M. Chandy, L. Lamport: Distributed Snapshots, ACM TOCS 3(1), 1985; slices as in Megaphone, arXiv 1812.01371.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
import numpy as np

from cluster.assignment import moved_groups
from cluster.columns import U16, U32, U64, Column
from cluster.leftovers import Leftovers
from cluster.messages import (
    COORDINATOR_PEER,
    MATCHER,
    Failed,
    GroupCopy,
    GroupsEnd,
    GroupsTaken,
    Instruction,
    Peer,
    Ready,
    Send,
    SubscriptionChange,
)
from cluster.table import Table
from cluster.view import View, key_groups

STEP_US = 2000
"""What one step may cost, in about microseconds of one core, so that a publication waits no longer than 3 ms."""
SEND_US = 3
SEND_BYTES_PER_US = 100
TAKE_US = 7
TAKE_BYTES_PER_US = 10
"""An entry, sent or taken; and one more for every so many bytes of its normal form. As measured, rounded up."""
WINDOW_ENTRIES = 1024
TELL_ENTRIES = 256
"""A source is told of so many at once; each time costs it as much as ten entries."""
CHUNK_ENTRIES = 256

_ENCODER = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Tally:
    """What went from one matcher to another in a group: how many entries, and the xor of their digests."""

    count: int = 0
    digest: int = 0


def _groups_of(entries: list[SubscriptionChange]) -> Column:
    """Return the key group of each entry."""
    return key_groups(np.array([entry.subscription for entry in entries], U64))


def _count(tallies: dict[int, Tally], entries: list[SubscriptionChange], groups: Column) -> None:
    """Count what one message holds. Its entries of a group that follow one another have one digest, at both ends."""
    ends = [*(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(entries)]
    first = 0
    for group, end in zip(groups[[end - 1 for end in ends]].tolist(), ends, strict=True):
        tally = tallies.setdefault(group, Tally())
        tally.count += end - first
        tally.digest ^= int.from_bytes(blake2b(_ENCODER.encode(entries[first:end]), digest_size=8).digest(), "little")
        first = end


@dataclass(slots=True)
class Departure:
    """Groups on their way to one matcher.

    subscriptions: still to be sent of `walking`, the group whose turn it is.
    """

    groups: deque[int] = field(default_factory=deque)
    walking: int = 0
    subscriptions: deque[int] = field(default_factory=deque)
    tallies: dict[int, Tally] = field(default_factory=dict)
    flight: int = 0
    ended: bool = False

    @property
    def walked(self) -> bool:
        """Whether every subscription that was there when its group's turn came has been sent."""
        return not self.groups and not self.subscriptions


@dataclass(slots=True)
class Arrival:
    """Groups on their way here from one matcher.

    entries: have come, not yet applied, each with its key group. untold: applied, and the source does not know.
    end: the last word on them.
    """

    entries: deque[tuple[SubscriptionChange, int]] = field(default_factory=deque)
    untold: int = 0
    tallies: dict[int, Tally] = field(default_factory=dict)
    end: GroupsEnd | None = None


class Moving:
    """The part of the matcher `slot` in the change from `view` to `after`.

    leftovers: what is in the table and nobody's; it is swept out beside this, and changes with the table.
    apply: puts an entry, of a key group, into the matcher's index and table unless it is outdated.
    """

    def __init__(
        self,
        slot: int,
        view: View,
        after: View,
        table: Table,
        leftovers: Leftovers,
        apply: Callable[[SubscriptionChange, int], None],
    ) -> None:
        self.after = after
        self._table = table
        self._leftovers = leftovers
        self._apply = apply
        self._unmarked = set(view.access_points)
        self._begun = False
        self._said = False
        self._departures: dict[int, Departure] = {}
        self._arrivals: dict[int, Arrival] = {}
        self.targets: dict[int, int] = {}  # group that leaves -> its new owner
        self.sources: dict[int, int] = {}  # group that comes -> its present owner
        self.entries = self.bytes = 0  # taken
        self.sent_on = 0  # changes that belong to the snapshot and came after it had begun
        for group in moved_groups(view.owners, after.owners):
            now, then = view.owner_of_group(group), after.owner_of_group(group)
            if now == slot:
                self.targets[group] = then
                self._departures.setdefault(then, Departure()).groups.append(group)
            elif then == slot:
                self.sources[group] = now
                self._arrivals.setdefault(now, Arrival())

    @property
    def mixes(self) -> bool:
        """Whether the index may hold subscriptions that are this matcher's in one of the two views only."""
        return bool(self.targets or self.sources)

    # What comes --------------------------------------------------------------------------------------------------

    def mark(self, access_point: int) -> None:
        """Begin with the first Mark; after the last no late change is to be sent on."""
        self._begun = True
        self._unmarked.discard(access_point)

    def changed(self, access_point: int, change: SubscriptionChange, group: int) -> Instruction | None:
        """A change was applied here, of this key group; return what sends it on if it is part of the snapshot."""
        if not self._begun or access_point not in self._unmarked:
            return None
        target = self.targets.get(group)
        if target is None:
            return None
        self.sent_on += 1
        return self._send(target, [change])

    def arrived(self, source: int, message: GroupCopy) -> None:
        """Entries have come; they are applied in steps."""
        arrival = self._arrivals[source]
        assert arrival.end is None, f"matcher {source} sends more after the end"
        groups = _groups_of(message.entries)
        arrival.entries.extend(zip(message.entries, groups.tolist(), strict=True))
        _count(arrival.tallies, message.entries, groups)
        self.bytes += sum([len(entry.normal_form or b"") for entry in message.entries])
        self.entries += len(message.entries)

    def ended(self, source: int, message: GroupsEnd) -> None:
        """That was all from there."""
        self._arrivals[source].end = message

    def taken(self, target: int, count: int) -> None:
        """The target has applied so many."""
        self._departures[target].flight -= count

    # What is done ------------------------------------------------------------------------------------------------

    def step(self, spent_us: int = 0) -> tuple[list[Instruction], bool]:
        """Work for a while; return what is to be sent, and whether there is more to do at once.

        spent_us: what else this step has cost already.
        """
        out: list[Instruction] = []
        left = STEP_US - spent_us
        if self._begun:
            for target, departure in self._departures.items():
                left = self._walk(target, departure, left, out)
        for source, arrival in self._arrivals.items():
            left = self._take(source, arrival, left, out)
        self._finish(out)
        return out, left <= 0

    def _walk(self, target: int, departure: Departure, left: int, out: list[Instruction]) -> int:
        chunk: list[SubscriptionChange] = []
        rows = self._table.rows_of(departure.walking)
        gone = self._leftovers.of(departure.walking)
        while left > 0 and departure.flight + len(chunk) < WINDOW_ENTRIES:
            if not departure.subscriptions:
                if not departure.groups:
                    break
                departure.walking = departure.groups.popleft()
                rows = self._table.rows_of(departure.walking)
                gone = self._leftovers.of(departure.walking)
                departure.subscriptions.extend(rows)
                continue
            subscription = departure.subscriptions.popleft()
            row = rows.get(subscription)
            if row is None or subscription in gone:
                continue  # removed meanwhile, of which the target is told another way, or not in force
            chunk.append(row)
            left -= SEND_US + len(row.normal_form or b"") // SEND_BYTES_PER_US
            if len(chunk) == CHUNK_ENTRIES:
                out.append(self._send(target, chunk))
                chunk = []
        if chunk:
            out.append(self._send(target, chunk))
        return left

    def _send(self, target: int, entries: list[SubscriptionChange]) -> Instruction:
        departure = self._departures[target]
        _count(departure.tallies, entries, _groups_of(entries))
        departure.flight += len(entries)
        return Send(Peer(MATCHER, target), GroupCopy(self.after.epoch, entries))

    def _take(self, source: int, arrival: Arrival, left: int, out: list[Instruction]) -> int:
        count = 0
        while left > 0 and arrival.entries:
            entry, group = arrival.entries.popleft()
            self._apply(entry, group)
            left -= TAKE_US + len(entry.normal_form or b"") // TAKE_BYTES_PER_US
            count += 1
        arrival.untold += count
        if arrival.untold >= TELL_ENTRIES:
            out.append(Send(Peer(MATCHER, source), GroupsTaken(self.after.epoch, arrival.untold)))
            arrival.untold = 0
        return left

    def _finish(self, out: list[Instruction]) -> None:
        """Say what is at its end here: with the last Mark in, each departure; with all of them, the whole."""
        if self._unmarked or self._said or self._leftovers.in_the_way:
            return
        for target, departure in self._departures.items():
            if departure.walked and not departure.ended:
                departure.ended = True
                out.append(Send(Peer(MATCHER, target), _end(self.after.epoch, departure.tallies)))
        if not all(departure.ended for departure in self._departures.values()):
            return
        if any(arrival.entries or arrival.end is None for arrival in self._arrivals.values()):
            return
        self._said = True
        for source, arrival in self._arrivals.items():
            if _end(self.after.epoch, arrival.tallies) != arrival.end:
                reason = f"what came from matcher {source} is not what it says to have sent"
                out.append(Send(COORDINATOR_PEER, Failed(self.after.epoch, reason)))
                return
        out.append(Send(COORDINATOR_PEER, Ready(self.after.epoch, self.entries, self.bytes)))


def _end(epoch: int, tallies: dict[int, Tally]) -> GroupsEnd:
    groups = sorted(tallies)
    return GroupsEnd(
        epoch,
        np.array(groups, U16).tobytes(),
        np.array([tallies[group].count for group in groups], U32).tobytes(),
        np.array([tallies[group].digest for group in groups], U64).tobytes(),
    )
