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

    def enter(self, count: int, outcome: tuple[int, int, int]) -> None:
        """So many more are acknowledged. outcome: how many are matched, rejected and repeated, as exit points say."""
        matched = min(outcome[0], count)
        rejected = min(outcome[1], count - matched)
        repeated = min(outcome[2], count - matched - rejected)
        counters = self._counters
        counters["outcome_matched"] += matched
        counters["outcome_unmatched"] += count - matched - rejected - repeated
        counters["outcome_rejected"] += rejected
        counters["outcome_repeated"] += repeated

    def gone(self, session: Session, *, recovering: bool) -> None:
        """A publisher's connection has ended. recovering: what it has underway is void, and not sent again yet."""
        if session.next_sequence is None:
            return
        left = session.next_sequence - 1 - session.acknowledged
        if recovering:
            self._counters["abandoned"] += left
        elif left:
            self._orphans[session.publisher] = (session.acknowledged, session.next_sequence - 1)

    def enter_orphans(self, publisher: int, upto: int, outcome: tuple[int, int, int]) -> None:
        """An acknowledgement has come for one that has gone, or that is not known any more."""
        acknowledged, last = self._orphans.get(publisher, (upto, upto))
        if upto <= acknowledged:
            return
        self.enter(upto - acknowledged, outcome)
        if upto < last:
            self._orphans[publisher] = (upto, last)
        else:
            del self._orphans[publisher]

    def void(self) -> None:
        """What is underway is void, and for those who have gone nobody sends it again."""
        self._counters["abandoned"] += sum(last - acknowledged for acknowledged, last in self._orphans.values())
        self._orphans.clear()
