"""A view change: what is said to whom, and how it is answered. The rules are in `cluster/transition.py`.

C -> all       Prepare      the next view; everyone makes its lanes to it          -> Prepared
C -> AP, EP    Begin        AP: Mark to all matchers, from here changes go to both owners
                            M:  the first Mark starts the copy of what moves away, the last one ends it -> Ready
                            EP: copies what it knows of publishers that move away  -> Ready
(C's disk)                  the decision; before it anything that fails leads to Abort
C -> all       Commit       CP: if access points change, Switch to them, and traffic goes the new way  -> Ended
                            AP: Switch to all matchers, what follows is of the next epoch              -> Ended
                            M:  at Switch, StreamEnd to the exit points                                -> Ended
                            EP: at StreamEnd, hands over publishers that moved                         -> Ended
C -> all       Retire       the former view is forgotten, leavers leave            -> Settled
C -> all       Abort        the next view is forgotten                             -> Settled
"""

from __future__ import annotations

import msgspec

from cluster.messages.base import Message
from cluster.messages.membership import Member
from cluster.messages.subscriptions import SubscriptionChange


class Prepare(Message, frozen=True, array_like=True, tag=40, gc=False):
    """C -> every role of the present or the next view: this is the next one. A newcomer has had Install before."""

    epoch: int
    members: list[Member]
    owners: bytes


class Prepared(Message, frozen=True, array_like=True, tag=41, gc=False):
    """Any role -> C: the lanes of the next view are up."""

    epoch: int


class Begin(Message, frozen=True, array_like=True, tag=42, gc=False):
    """C -> APs and EPs, when all are prepared: let what moves be copied.

    park: the aligned protocol of the E-SilboPS paper, for comparison: access points keep changes back from here, and
          publications from Switch, until Retire.
    """

    epoch: int
    park: bool


class Mark(Message, frozen=True, array_like=True, tag=43, gc=False):
    """AP -> every matcher of either view, in band: changes behind it go to the owners of both views."""

    epoch: int


class GroupCopy(Message, frozen=True, array_like=True, tag=44, gc=False):
    """Matcher -> matcher: subscriptions of groups that move there, or changes of them that came before their Mark.

    entries: in force (or removed, without a normal form) since the change that they name.
    """

    epoch: int
    entries: list[SubscriptionChange]


class GroupsTaken(Message, frozen=True, array_like=True, tag=45, gc=False):
    """Matcher -> the matcher that copies: so many more entries are in the index; it moves the copier's window."""

    epoch: int
    entries: int


class GroupsEnd(Message, frozen=True, array_like=True, tag=46, gc=False):
    """Matcher -> matcher: that was all. Per group (uint16): entries sent (uint32), xor of their digests (uint64)."""

    epoch: int
    groups: bytes
    counts: bytes
    digests: bytes


class Ready(Message, frozen=True, array_like=True, tag=47, gc=False):
    """Matcher or EP -> C: all that moves here has come, all that moves away is sent. entries, bytes: copied to here."""

    epoch: int
    entries: int
    bytes: int


class Failed(Message, frozen=True, array_like=True, tag=48, gc=False):
    """Any role -> C: it cannot be done, and why."""

    epoch: int
    reason: str


class Commit(Message, frozen=True, array_like=True, tag=49, gc=False):
    """C -> every role of either view: it is decided. Whoever is through with it says Ended (again)."""

    epoch: int


class Switch(Message, frozen=True, array_like=True, tag=50, gc=False):
    """CP -> APs of either view, AP -> matchers of either view, in band: what follows on this lane is of the next epoch.

    ends: from an AP, per exit point of the former view: the sequence behind its last publication of that epoch.
    """

    epoch: int
    ends: list[tuple[int, int]]


class StreamEnd(Message, frozen=True, array_like=True, tag=51, gc=False):
    """Matcher -> EP: its results of this access point in this epoch end before `sequence`."""

    epoch: int
    access_point: int
    sequence: int


class EpochEnd(Message, frozen=True, array_like=True, tag=52, gc=False):
    """EP -> CPs: what comes after this is of `epoch`; answered with EpochEnded once all before it was taken."""

    epoch: int


class EpochEnded(Message, frozen=True, array_like=True, tag=53, gc=False):
    """CP -> EP."""

    epoch: int


class PublisherState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an exit point knows of a publisher, as in handover.Publisher. pending: released runs that are not
    acknowledged."""

    publisher: str
    instance: int
    released: int
    pending: int
    covered: int = -1


class PublisherStates(Message, frozen=True, array_like=True, tag=54, gc=False):
    """EP -> the EP that follows it for these publishers. last: nothing of the former epoch comes after this."""

    epoch: int
    states: list[PublisherState]
    last: bool


class PublisherSettled(Message, frozen=True, array_like=True, tag=55, gc=False):
    """EP -> the EP that follows it: the next `runs` pending ones of this publisher are done; see Acknowledge."""

    epoch: int
    publisher: str
    instance: int
    runs: int
    client: int
    upto: int
    rejected: list[tuple[int, str]]
    outcome: tuple[int, int, int] = (0, 0, 0)


class Ended(Message, frozen=True, array_like=True, tag=56, gc=False):
    """Any role -> C: nothing of the epoch before this one is left here, nor on its way to here."""

    epoch: int


class Retire(Message, frozen=True, array_like=True, tag=57, gc=False):
    """C -> every role of either view: only the epoch that was the next one is left."""

    epoch: int


class Abort(Message, frozen=True, array_like=True, tag=58, gc=False):
    """C -> every role of either view: the next view will not be."""

    epoch: int


class Settled(Message, frozen=True, array_like=True, tag=59, gc=False):
    """Any role -> C: the view change is over here; nothing is kept of what was given up."""

    epoch: int


TransitionMessage = (
    Prepare
    | Prepared
    | Begin
    | Mark
    | GroupCopy
    | GroupsTaken
    | GroupsEnd
    | Ready
    | Failed
    | Commit
    | Switch
    | StreamEnd
    | EpochEnd
    | EpochEnded
    | PublisherStates
    | PublisherSettled
    | Ended
    | Retire
    | Abort
    | Settled
)
