"""Client ids for the matched output: exit points know clients by number alone, and readers want to see names.

An exit point is told who a client is when the client has its first subscription, before anything can match that, and
everything again when the lane to it comes up: it may be a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.messages import EXIT_POINT, Instruction, NameClients, Peer, Send

PORTION = 1000
"""Names in one message."""


class Naming:
    """Whom exit points know. wanted: whether there is an output that names clients."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._names: dict[int, str] = {}
        self._exit_points: set[Peer] = set()
        self._new: list[tuple[int, str]] = []
        self._ended: list[int] = []

    def name(self, client: int, client_id: str) -> None:
        """The client has a subscription."""
        if self._wanted and client not in self._names:
            self._names[client] = client_id
            self._new.append((client, client_id))

    def end(self, client: int) -> None:
        """The client is no more; what matched it may still be on its way."""
        if self._names.pop(client, None) is not None:
            self._ended.append(client)

    def lane_up(self, peer: Peer, out: list[Instruction]) -> None:
        """Tell an exit point everybody."""
        if self._wanted and peer.layer == EXIT_POINT:
            self._exit_points.add(peer)
            self._tell([peer], list(self._names.items()), [], out)

    def lane_down(self, peer: Peer) -> None:
        """It is told everything again when the lane is up."""
        self._exit_points.discard(peer)

    def tell(self, out: list[Instruction]) -> None:
        """Tell all exit points what is new."""
        if self._new or self._ended:
            self._tell(sorted(self._exit_points), self._new, self._ended, out)
            self._new, self._ended = [], []

    def _tell(
        self, peers: Iterable[Peer], names: list[tuple[int, str]], ended: list[int], out: list[Instruction]
    ) -> None:
        portions = [NameClients(names[at : at + PORTION], []) for at in range(0, len(names), PORTION)]
        if ended:
            portions.append(NameClients([], ended))
        out += [Send(peer, portion) for peer in peers for portion in portions]
