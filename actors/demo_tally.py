"""Counts what reaches the demo's subscribers, and compares it with what should have.

One byte for each publication and side, one bit in it for each subscriber: 1.3 million publications are 1.3 MB. A
publication is known by its sequence, which rises by one from 1 in the order of publishing.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field

from cluster.readings.source import Publication

SUBSCRIBERS_MAX = 8  # bits in a byte
DELAYS_KEPT = 1 << 21


@dataclass(slots=True)
class Received:
    """What one subscriber has got. delivered: distinct publications; foreign: with a publisher or sequence not ours."""

    delivered: int = 0
    doubled: int = 0
    out_of_order: int = 0
    foreign: int = 0
    altered: int = 0
    last_sequence: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One subscriber against the oracle."""

    matched: int
    missing: int
    surplus: int


class Tally:
    """What was published, when, and who got it.

    Every `sample`-th publication is kept whole, so that the content of what arrives is compared as well.
    """

    def __init__(self, publisher: str, subscribers: int, *, sample: int = 997) -> None:
        assert subscribers <= SUBSCRIBERS_MAX, f"{subscribers} subscribers, the limit is {SUBSCRIBERS_MAX}"
        self.publisher = publisher
        self.received = [Received() for _ in range(subscribers)]
        self.bits = bytearray()
        """For each publication, who got it."""
        self.delays_s = array("d")
        self._sent_at = array("d")
        self._sample = sample
        self._kept: dict[int, Publication] = {}

    @property
    def published(self) -> int:
        """Publications handed to the client."""
        return len(self._sent_at)

    @property
    def arrivals(self) -> int:
        """Everything that arrived, over all subscribers."""
        return sum(one.delivered + one.doubled + one.foreign for one in self.received)

    @property
    def delivered(self) -> int:
        """Notifications that arrived, without doubles and foreign ones, over all subscribers."""
        return sum(one.delivered for one in self.received)

    def sent(self, attributes: Publication) -> None:
        """Note the next publication, at the moment when the client takes it."""
        if len(self._sent_at) % self._sample == 0:
            self._kept[len(self._sent_at)] = dict(attributes)
        self._sent_at.append(time.perf_counter())
        self.bits.append(0)

    def arrived(self, subscriber: int, publisher: str, sequence: int) -> bool:
        """Note a notification. Return whether its content is to be passed to `content` as well."""
        one = self.received[subscriber]
        index = sequence - 1
        if publisher != self.publisher or not 0 <= index < len(self._sent_at):
            one.foreign += 1
            return False
        bit = 1 << subscriber
        if self.bits[index] & bit:
            one.doubled += 1
            return False
        self.bits[index] |= bit
        one.delivered += 1
        if sequence < one.last_sequence:
            one.out_of_order += 1
        else:
            one.last_sequence = sequence
        if len(self.delays_s) < DELAYS_KEPT:
            self.delays_s.append(time.perf_counter() - self._sent_at[index])
        return index % self._sample == 0

    def content(self, subscriber: int, sequence: int, attributes: Publication) -> None:
        """Compare a notification's attributes with those published."""
        if attributes != self._kept[sequence - 1]:
            self.received[subscriber].altered += 1

    def compare(self, expected: bytes) -> list[Comparison]:
        """Return each subscriber's delivered set against the oracle's.

        expected: for each publication, the bits of the subscribers whose filter holds.
        """
        matched = [0] * len(self.received)
        missing = [0] * len(self.received)
        surplus = [0] * len(self.received)
        counts = _pairs(expected, self.bits)
        for (should, did), count in counts.items():
            for subscriber in range(len(self.received)):
                bit = 1 << subscriber
                if should & bit:
                    matched[subscriber] += count
                    if not did & bit:
                        missing[subscriber] += count
                elif did & bit:
                    surplus[subscriber] += count
        return [Comparison(*one) for one in zip(matched, missing, surplus, strict=True)]

    def delay_s(self, share: float) -> float | None:
        """Return the delay that this share (0 to 1) of the notifications did not pass; None without any."""
        ordered = self._ordered_delays()
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    def _ordered_delays(self) -> list[float]:
        return sorted(self.delays_s)


def _pairs(expected: bytes, delivered: bytearray) -> dict[tuple[int, int], int]:
    """Count the pairs (should, did); where one side is shorter, nothing was expected, or nothing came."""
    counts: dict[tuple[int, int], int] = {}
    length = max(len(expected), len(delivered))
    pairs = zip(expected.ljust(length, b"\0"), delivered.ljust(length, b"\0"), strict=True)
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    return counts


@dataclass(slots=True)
class Verdict:
    """Everything that the demo found wrong, one sentence each; empty when all is as promised."""

    faults: list[str] = field(default_factory=list)


def judge(tally: Tally, expected: bytes, names: list[str], refused: int) -> tuple[list[Comparison], Verdict]:
    """Compare, and say what is wrong."""
    verdict = Verdict()
    comparisons = tally.compare(expected)
    if refused:
        verdict.faults.append(f"{refused:,} publications were refused")
    if len(expected) != tally.published:
        verdict.faults.append(f"{tally.published:,} were published, the oracle read {len(expected):,}")
    for name, one, comparison in zip(names, tally.received, comparisons, strict=True):
        for count, what in (
            (comparison.missing, "did not arrive"),
            (comparison.surplus, "arrived and do not match"),
            (one.doubled, "arrived twice"),
            (one.out_of_order, "arrived out of order"),
            (one.foreign, "are none of ours"),
            (one.altered, "arrived with other attributes"),
        ):
            if count:
                verdict.faults.append(f"{name}: {count:,} {what}")
    return comparisons, verdict
