"""The books of what clients have published: at each moment, exactly

    accepted = matched + unmatched + rejected + repeated + abandoned + in flight

An acknowledgement tells what became of the publications that it is about. One of a publisher that has gone is still
told, and is entered all the same; only if a slice dies before it is, nobody sends those publications again, and what
became of them is not known: they are abandoned. That is no promise broken, as they were not acknowledged.

After a recovery the same publication may be acknowledged twice, with another neighbour each time; then its first
outcome stands, and the second one counts for what is new in it at most.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from cluster.serving.records import Session

OUTCOMES = ("outcome_matched", "outcome_unmatched", "outcome_rejected", "outcome_repeated")


class Books:
    """Enters outcomes into the counters.

    _orphans: by the key under which a client that has gone has published: what was acknowledged, and its last sequence.
    """

    def __init__(self, counters: MutableMapping[str, int]) -> None:
        self._counters = counters
        self._orphans: dict[int, tuple[int, int]] = {}
        counters.update(dict.fromkeys((*OUTCOMES, "abandoned"), 0))

    @property
    def in_flight(self) -> int:
        """How many publications were accepted whose outcome is not known."""
        known = sum(self._counters[outcome] for outcome in OUTCOMES)
        return self._counters["accepted"] - known - self._counters["abandoned"]

    def enter(self, count: int, rejected: int, outcome: tuple[int, int]) -> None:
        """So many more are acknowledged. outcome: how many are matched, and repeated, as the exit point says."""
        matched, repeated = outcome
        rejected = min(rejected, count)
        matched = min(matched, count - rejected)
        repeated = min(repeated, count - rejected - matched)
        entries = (matched, count - rejected - matched - repeated, rejected, repeated)
        for name, entry in zip(OUTCOMES, entries, strict=True):
            self._counters[name] += entry

    def gone(self, session: Session) -> None:
        """A publisher's connection has ended."""
        if session.next_sequence is not None and session.acknowledged < session.next_sequence - 1:
            self._orphans[session.publisher] = (session.acknowledged, session.next_sequence - 1)

    def enter_orphans(self, publisher: int, upto: int, rejected: int, outcome: tuple[int, int]) -> None:
        """An acknowledgement has come for one that has gone, or that is not known any more."""
        acknowledged, last = self._orphans.get(publisher, (upto, upto))
        if upto <= acknowledged:
            return
        self.enter(upto - acknowledged, rejected, outcome)
        if upto < last:
            self._orphans[publisher] = (upto, last)
        else:
            del self._orphans[publisher]

    def void(self) -> None:
        """What is underway is void, and for those who have gone nobody sends it again."""
        self._counters["abandoned"] += sum(last - acknowledged for acknowledged, last in self._orphans.values())
        self._orphans.clear()
