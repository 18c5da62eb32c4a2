"""What a connection point sends to the matchers again in a recovery, a little at a time, and what is not answered."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.messages import Peer, SubscriptionChange

STEP_CHANGES = 500
"""Sent in one go; a matcher takes some ten milliseconds for them."""
UNDERWAY = 4000
"""At most without an answer."""


class Rebuilding:
    """changes: what is to be sent, each with the access point that it goes by; looked at as it is its turn."""

    def __init__(self, changes: Iterator[tuple[Peer, SubscriptionChange]]) -> None:
        self._changes: Iterator[tuple[Peer, SubscriptionChange]] | None = changes
        self._unanswered: set[int] = set()

    @property
    def done(self) -> bool:
        """Whether everything is sent and answered."""
        return self._changes is None and not self._unanswered

    @property
    def more(self) -> bool:
        """Whether something could be sent at once."""
        return self._changes is not None and len(self._unanswered) < UNDERWAY

    def answered(self, change: int) -> None:
        """The matchers have taken it."""
        self._unanswered.discard(change)

    def step(self) -> dict[Peer, list[SubscriptionChange]]:
        """Return what is to be sent now, by access point."""
        chosen: dict[Peer, list[SubscriptionChange]] = {}
        for _ in range(min(STEP_CHANGES, UNDERWAY - len(self._unanswered))):
            following = None if self._changes is None else next(self._changes, None)
            if following is None:
                self._changes = None
                break
            access_point, change = following
            if change.change not in self._unanswered:
                self._unanswered.add(change.change)
                chosen.setdefault(access_point, []).append(change)
        return chosen
