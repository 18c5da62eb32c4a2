"""The valid publications of a connection point: what it has taken in with `valid_for`, until that is over.

A publication is kept under (publisher, instance, sequence) from the moment it is accepted until its time is up, its
publisher withdraws it, or the matchers reject it, whoever listens. New subscriptions are served from here
(`initial.py`).

Order: questions are answered in the order of the keys, so each publisher's in its own order, a piece at a time, and
each piece says how far it got. So whoever asks holds the place, nothing is kept here about it, and what is added or
removed meanwhile does not matter: what is added now is published after the question.

The hard case is a publication that is withdrawn while a copy of it is still on its way here: sent again by a publisher
that has changed its connection point, or handed over by a connection point that leaves. The last withdrawals are
remembered, and what they name is not taken.

A crash of the connection point costs nothing that was promised. A publication is written to the slot's file
(`journal.py`) when it is settled, and its publisher is told Acknowledged when that is on disk; what is not settled is
sent again by its publisher. What another connection point hands over is written before that is told so, and a
withdrawal before anybody is told that it is done. The next incarnation takes all of it up (`restore`).

Time: within a life a publication is valid up to a time on the clock of Tick. On disk is the time of day at which it is
over, so the next life needs the time of day, and a clock that was set meanwhile moves the end by as much; but nothing
becomes valid for longer than it was at first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from sortedcontainers import SortedDict, SortedList

from cluster.config import ClientLimits, ValidSettings
from cluster.journal import OfValid, Recovered, RemoveValid, RemoveWithdrawal, SaveValid, SaveWithdrawal
from cluster.language import normal_matches
from cluster.language.normal import NormalForm
from cluster.messages import ValidPublication

Key = tuple[str, int, int]
"""(publisher, instance, sequence)."""

WITHDRAWALS_REMEMBERED = 10_000
EXPIRED_AT_ONCE = 2_000
"""Removed in one go, about 10 ms; the rest later. What has expired is found by nobody, removed or not."""
KEPT_BYTES = 400
"""What a publication costs beside its payload, about."""

_attributes = msgspec.msgpack.Decoder(dict[str, bool | int | float | str | None])


@dataclass(slots=True)
class Kept:
    """A valid publication.

    until_us, expires_ms: when it is over, by the time of day and on the clock of Tick; None for until it is withdrawn.
    settled: the matchers have it and so has everybody whom it is for: no notification of it is on its way any more.
    saved: it is on disk, or about to be.
    """

    time_us: int
    until_us: int | None
    expires_ms: int | None
    settled: bool
    payload: bytes
    saved: bool = False


class ValidPublications:
    """The store. Cost: O(log n) to add or remove; a step of a question is bounded by the caller.

    write: has something written to the slot's file.
    """

    def __init__(self, settings: ValidSettings, write: Callable[[OfValid], None]) -> None:
        self._settings = settings
        self._write = write
        self._valid: SortedDict[Key, Kept] = SortedDict()
        self._expiring: SortedList[tuple[int, Key]] = SortedList()
        self._withdrawn: OrderedDict[Key, None] = OrderedDict()
        self.bytes = 0
        """Of all of them, KEPT_BYTES each included."""

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, key: Key) -> bool:
        return key in self._valid

    def add(self, key: Key, valid: Kept) -> str | None:
        """Keep a publication; return why not, if there is no room for it. One that is here already stays as it is."""
        if key in self._valid or key in self._withdrawn:
            return None
        most, most_bytes = self._settings.publications, self._settings.bytes
        if len(self._valid) >= most:
            return f"{len(self._valid)} publications are valid at this connection point, the limit is {most}"
        if self.bytes + len(valid.payload) + KEPT_BYTES > most_bytes:
            return f"the valid publications at this connection point take {self.bytes} bytes, the limit is {most_bytes}"
        self._put(key, valid)
        return None

    def take(self, key: Key, valid: Kept) -> None:
        """Keep what another connection point has had, over the limits if need be: it was promised."""
        held = self._valid.get(key)
        if held is not None:
            held.settled = held.settled or valid.settled
            self._save(key, held)
        elif key not in self._withdrawn:
            self._put(key, valid)
            self._save(key, valid)

    def _save(self, key: Key, valid: Kept) -> None:
        if not valid.saved:
            valid.saved = True
            self._write(SaveValid(*key, valid.time_us, valid.until_us, valid.settled, valid.payload))

    def restore(self, recovered: Recovered, now_us: int, now_ms: int) -> None:
        """Take up what an earlier life of the slot has saved. now_us: by the time of day; now_ms: on Tick's clock."""
        for publisher, instance, sequence in recovered.withdrawals:
            self._withdrawn[publisher, instance, sequence] = None
        for publisher, instance, sequence, time_us, until_us, settled, payload in recovered.valid:
            key = (publisher, instance, sequence)
            expires_ms = None
            if until_us is not None:
                left_us = min(until_us - now_us, until_us - time_us)
                if left_us <= 0:
                    self._write(RemoveValid(*key))
                    continue
                expires_ms = now_ms + -(-left_us // 1000)
            self._put(key, Kept(time_us, until_us, expires_ms, settled, payload, saved=True))

    def begin(self, now_ms: int) -> None:
        """The clock of Tick begins, at this time; whatever is kept was so with 0 for the present."""
        self._expiring = SortedList((expires_ms + now_ms, key) for expires_ms, key in self._expiring)
        for expires_ms, key in self._expiring:
            self._valid[key].expires_ms = expires_ms

    def _put(self, key: Key, valid: Kept) -> None:
        self._valid[key] = valid
        self.bytes += len(valid.payload) + KEPT_BYTES
        if valid.expires_ms is not None:
            self._expiring.add((valid.expires_ms, key))

    def remove(self, key: Key) -> bool:
        """Forget a publication; tell whether it was there."""
        valid = self._valid.pop(key, None)
        if valid is None:
            return False
        self.bytes -= len(valid.payload) + KEPT_BYTES
        if valid.expires_ms is not None:
            self._expiring.remove((valid.expires_ms, key))
        self._unsave(key, valid)
        return True

    def handed_over(self, key: Key) -> None:
        """Another connection point has the publication on its disk: a later life of this one need not have it."""
        valid = self._valid.get(key)
        if valid is not None:
            self._unsave(key, valid)

    def _unsave(self, key: Key, valid: Kept) -> None:
        if valid.saved:
            valid.saved = False
            self._write(RemoveValid(*key))

    def withdraw(self, publisher: str, instances: list[int] | None, sequence: int) -> list[int]:
        """Forget what the publisher has sent under this number in these of its lives, and take it no more.

        instances: None for all lives that have sent something valid under this number. Returns which these were.
        """
        if instances is None:
            lives = self._lives(publisher)
            instances = [instance for instance in lives if (publisher, instance, sequence) in self._valid]
        for instance in instances:
            key = (publisher, instance, sequence)
            self.remove(key)
            self._withdrawn[key] = None
            self._withdrawn.move_to_end(key)
            self._write(SaveWithdrawal(*key))
            if len(self._withdrawn) > WITHDRAWALS_REMEMBERED:
                oldest, _ = self._withdrawn.popitem(last=False)
                self._write(RemoveWithdrawal(*oldest))
        return instances

    def _lives(self, publisher: str) -> list[int]:
        """Return the instances of a publisher; one step for each of them, not for each publication."""
        lives: list[int] = []
        after: Key = (publisher, -1, 0)
        while True:
            following: Key | None = next(self._valid.irange(after), None)
            if following is None or following[0] != publisher:
                return lives
            lives.append(following[1])
            after = (publisher, following[1] + 1, -1)

    def settle(self, publisher: str, instance: int, first: int, last: int) -> bool:
        """Take note that these are settled, and save them; tell whether any of them is kept."""
        kept = False
        for key in self._valid.irange((publisher, instance, first), (publisher, instance, last)):
            kept = True
            valid = self._valid[key]
            valid.settled = True
            self._save(key, valid)
        return kept

    def expire(self, now_ms: int) -> int:
        """Forget what is not valid any more, EXPIRED_AT_ONCE at most; return how many."""
        count = 0
        while self._expiring and self._expiring[0][0] <= now_ms and count < EXPIRED_AT_ONCE:
            self.remove(self._expiring[0][1])
            count += 1
        return count

    def entries(self, after: Key | None, now_ms: int) -> Iterator[tuple[Key, Kept]]:
        """Yield what is valid, by key, behind `after`. Nothing may be added or removed meanwhile."""
        keys = self._valid if after is None else self._valid.irange(after, inclusive=(False, False))
        for key in keys:
            valid = self._valid[key]
            if valid.expires_ms is None or valid.expires_ms > now_ms:
                yield key, valid

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        assert self.bytes == sum(len(valid.payload) + KEPT_BYTES for valid in self._valid.values())
        expiring = [(valid.expires_ms, key) for key, valid in self._valid.items() if valid.expires_ms is not None]
        assert sorted(expiring) == list(self._expiring)
        assert len(self._withdrawn) <= WITHDRAWALS_REMEMBERED
        assert not any(key in self._withdrawn for key in self._valid)


class Piece:
    """What is found of one question on the way to one answer, a step at a time.

    after:  where the step before ended, or the question begins; None for the first key of all.
    found:  what matches, by key. ended: there is nothing behind it. full: it is to be sent.
    cost:   what a look costs, in looks of a small filter.
    """

    def __init__(
        self, form: NormalForm, after: Key | None, *, most: int, most_bytes: int, most_looked_at: int, cost: int
    ) -> None:
        self._form = form
        self.cost = cost
        self.after = after
        self._most = most
        self._bytes_left = most_bytes
        self._looks_left = most_looked_at
        self.found: list[ValidPublication] = []
        self.ended = False

    @property
    def full(self) -> bool:
        """Whether it is to be sent: nothing more fits, or there is nothing more, or it has taken long."""
        return self.ended or len(self.found) >= self._most or self._bytes_left <= 0 or self._looks_left <= 0

    def step(self, store: ValidPublications, now_ms: int, looks: int) -> int:
        """Look at some publications; return what it cost."""
        count = 0
        for key, valid in store.entries(self.after, now_ms):
            if count >= looks or self.full:
                break
            count += 1
            self._looks_left -= 1
            self.after = key
            if normal_matches(self._form, _attributes.decode(valid.payload)):
                self.found.append(outward(key, valid, now_ms))
                self._bytes_left -= len(valid.payload) + len(key[0]) + 24
        else:
            self.ended = True
        return max(count * self.cost, 1)


def outward(key: Key, valid: Kept, now_ms: int) -> ValidPublication:
    """Return a publication as connection points tell each other of it."""
    left_ms = None if valid.expires_ms is None else max(valid.expires_ms - now_ms, 0)
    return ValidPublication(*key, valid.time_us, valid.until_us, left_ms, valid.settled, valid.payload)


def inward(publication: ValidPublication, now_ms: int) -> tuple[Key, Kept]:
    """Return what `outward` has made a message of."""
    one = publication
    expires_ms = None if one.left_ms is None else now_ms + one.left_ms
    kept = Kept(one.time_us, one.until_us, expires_ms, one.settled, one.payload)
    return (one.publisher, one.instance, one.sequence), kept


def well_formed(payload: bytes, limits: ClientLimits) -> bool:
    """Tell whether the matchers will take the publication: the definition of `matching/batch.py`, without numba."""
    try:
        attributes = _attributes.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return False
    return _named(payload) <= limits.attributes and _sound(attributes, limits)


def _named(payload: bytes) -> int:
    """Return the attributes that the map names, those that it names twice included."""
    first = payload[0]
    if first & 0xF0 == 0x80:
        return first & 0x0F
    return int.from_bytes(payload[1 : 3 if first == 0xDE else 5], "big")


def _sound(attributes: Mapping[str, bool | int | float | str | None], limits: ClientLimits) -> bool:
    for name, value in attributes.items():
        if not 1 <= len(name.encode()) <= limits.name_bytes:
            return False
        if type(value) is float and not math.isfinite(value):
            return False
        if type(value) is str and len(value) * 4 > limits.string_bytes and len(value.encode()) > limits.string_bytes:
            return False
    return True
