"""A recovery: a role has died, and another incarnation of its slot has joined.

What was underway anywhere is given up and sent again
by those who hold it for good: connection points hold their publishers' unacknowledged runs, their sessions'
subscriptions, and what they have delivered last of each publisher, so that what comes twice is known.

    C -> all       Gone         of each that has died: let go of its lane
    C -> all       Recover      the view with the new incarnations; what belongs to earlier epochs is
                                forgotten, lanes are made                                              -> Installed
    C -> CPs       Rebuild      the subscriptions that new matchers must hold are sent again           -> Rebuilt
      and EPs, if they write    nothing is written any more: what each publisher has in the output is looked up
    C -> CPs       Resume       unacknowledged publications are sent again; everything goes on
"""

from __future__ import annotations

from cluster.messages.base import Message
from cluster.messages.membership import Member


class Recover(Message, frozen=True, array_like=True, tag=70, gc=False):
    """C -> every role: serve this view; nothing of an earlier epoch is finished any more.

    replaced: (layer, slot) of those that have died since every role last served one view.
    """

    epoch: int
    members: list[Member]
    owners: bytes
    replaced: list[tuple[str, int]]


class Rebuild(Message, frozen=True, array_like=True, tag=71, gc=False):
    """C -> CP, and EPs with an output, once all serve the epoch. replaced: as in Recover."""

    epoch: int
    replaced: list[tuple[str, int]]


class Rebuilt(Message, frozen=True, array_like=True, tag=72, gc=False):
    """CP -> C: the matchers hold every subscription of the sessions here. EP -> C: it knows what is written."""

    epoch: int


class Renew(Message, frozen=True, array_like=True, tag=73, gc=False):
    """CP -> AP, in band: after Recover, what was sent before this on this lane is void and will be sent again."""

    epoch: int


class Resume(Message, frozen=True, array_like=True, tag=74, gc=False):
    """C -> CP: the recovery is over; send again what is not acknowledged, and go on."""

    epoch: int


RecoveryMessage = Recover | Rebuild | Rebuilt | Renew | Resume
