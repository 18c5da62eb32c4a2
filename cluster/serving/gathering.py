"""What goes to access points: gathered in the order it came, publications until the end of the round, changes until the
end of the event.

Neighbours of one kind share a message: so a client that opens thousands of subscriptions costs three processes a few
dozen messages, not one a subscription, with its answer. What is of the other kind sends what was gathered before it
first: publications and changes of a client keep their order.
"""

from __future__ import annotations

from cluster.messages import ChangeSubscriptions, Peer, Publications, Run, Send, SubscriptionChange
from cluster.serving.shared import Shared

MESSAGE_CHANGES = 500
"""At most in one message; a matcher takes some ten milliseconds for them, unless their filters are large."""

Taken = tuple[Run, bytes, bytes]
"""Publications of one frame: their run, lengths and payload."""


class Gathering:
    """Puts together what is sent. For each access point there are publications or changes, never both."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._publications: dict[Peer, list[Taken]] = {}
        self._changes: dict[Peer, list[SubscriptionChange]] = {}

    def __bool__(self) -> bool:
        return bool(self._publications or self._changes)

    def publish(self, access_point: Peer, taken: Taken) -> None:
        """Have this published."""
        self._send_changes(access_point)
        self._publications.setdefault(access_point, []).append(taken)

    def change(self, access_point: Peer, changes: list[SubscriptionChange]) -> None:
        """Have the matchers told."""
        self._send_publications(access_point)
        self._changes.setdefault(access_point, []).extend(changes)

    def send(self, access_point: Peer) -> None:
        """Let go what was gathered for this access point."""
        self._send_changes(access_point)
        self._send_publications(access_point)

    def send_changes(self) -> None:
        """Let all changes go."""
        for access_point in list(self._changes):
            self._send_changes(access_point)

    def send_all(self) -> None:
        """Let everything go."""
        for access_point in [*self._changes, *self._publications]:
            self.send(access_point)

    def void(self) -> None:
        """What was gathered is not to be sent."""
        self._publications.clear()
        self._changes.clear()

    def _send_publications(self, access_point: Peer) -> None:
        gathered = self._publications.pop(access_point, None)
        if gathered is None:
            return
        if len(gathered) == 1:
            run, lengths, payload = gathered[0]
            message = Publications([run], lengths, payload)
        else:
            message = Publications(
                [run for run, _, _ in gathered],
                b"".join([lengths for _, lengths, _ in gathered]),
                b"".join([payload for _, _, payload in gathered]),
            )
        self._shared.out.append(Send(access_point, message))

    def _send_changes(self, access_point: Peer) -> None:
        changes = self._changes.pop(access_point, [])
        for first in range(0, len(changes), MESSAGE_CHANGES):
            message = ChangeSubscriptions(changes[first : first + MESSAGE_CHANGES])
            self._shared.out.append(Send(access_point, message))
