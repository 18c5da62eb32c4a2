"""Roles come and go: what they and the coordinator tell each other outside of a change of the view."""

from __future__ import annotations

import msgspec

from cluster.messages.base import Message
from cluster.messages.ids import Peer


class Join(Message, frozen=True, array_like=True, tag=20, gc=False):
    """Any role -> C, first message on the lane: here I am. `address`: host and port that peers dial.

    client_address: where clients connect, "" but for connection points. pid: for the operator.
    metrics_address: where its metrics are to be had, `host:port`; "" for nowhere.
    """

    incarnation: int
    host: str
    port: int
    client_address: str
    pid: int
    metrics_address: str = ""


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice of the view and where the incarnation that plays it listens."""

    layer: str
    slot: int
    incarnation: int
    host: str
    port: int

    @property
    def peer(self) -> Peer:
        """Whose place this is."""
        return Peer(self.layer, self.slot)


class Install(Message, frozen=True, array_like=True, tag=21, gc=False):
    """C -> every role: the view to serve. `owners`: uint16 per key group, the matcher slot that owns it."""

    epoch: int
    members: list[Member]
    owners: bytes


class Installed(Message, frozen=True, array_like=True, tag=22, gc=False):
    """Any role -> C: the lanes of this epoch are up, the role serves."""

    epoch: int


class Serve(Message, frozen=True, array_like=True, tag=23, gc=False):
    """C -> CP: every role serves the epoch; let clients in."""

    epoch: int


class Left(Message, frozen=True, array_like=True, tag=60, gc=False):
    """A role that is in the view no more -> C: all it owed is delivered; it can be stopped."""


class Gone(Message, frozen=True, array_like=True, tag=61, gc=False):
    """C -> every role: this incarnation is no more; its lane can be let go of."""

    member: Member


class MoveClients(Message, frozen=True, array_like=True, tag=62, gc=False):
    """C -> a CP that is to leave: let no one in; ask the clients to move to one of these addresses.

    number: of this asking, echoed in the answers: it may be taken back by Serve, clients come in, and it is asked anew.
    """

    addresses: list[str]
    number: int


class Emptied(Message, frozen=True, array_like=True, tag=63, gc=False):
    """CP -> C: after MoveClients, no client is left."""

    number: int


class ClientsMoved(Message, frozen=True, array_like=True, tag=66, gc=False):
    """CP -> C: after MoveClients, some client holds all it needs elsewhere and waits for what is underway here."""

    number: int


class Drain(Message, frozen=True, array_like=True, tag=30, gc=False):
    """C -> CP: the cluster stops; say Bye to the clients."""


MembershipMessage = Join | Install | Installed | Serve | Left | Gone | MoveClients | Emptied | ClientsMoved | Drain
