"""The way of a subscription's change to the matchers that own it, and of their answer.

It goes along the lanes that publications go, so that it keeps its place among those of its client.
"""

from __future__ import annotations

import msgspec

from cluster.messages.base import Message


class SubscriptionChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Set the filter of a subscription, or remove it.

    change:      the connection point's number of this change, ascending, echoed in the answer; of two changes of one
                 subscription the higher number is the newer, whichever way they came.
    normal_form: encoded; None removes.
    """

    change: int
    subscription: int
    normal_form: bytes | None


class ChangeSubscriptions(Message, frozen=True, array_like=True, tag=7, gc=False):
    """CP -> AP."""

    changes: list[SubscriptionChange]


class ApplyChanges(Message, frozen=True, array_like=True, tag=8, gc=False):
    """AP -> the owners of the subscriptions' key groups. `connection_point`: whom the answer is for."""

    epoch: int
    connection_point: int
    changes: list[SubscriptionChange]


class Applied(Message, frozen=True, array_like=True, tag=9, gc=False):
    """Matcher -> AP: the changes hold for every batch handled after this, as far as the matcher owns their groups."""

    connection_point: int
    changes: list[int]


class Changed(Message, frozen=True, array_like=True, tag=10, gc=False):
    """AP -> CP: the changes hold at every owner.

    since: the epoch of the last Recover that the access point has heard, or of the view that it began with. After a
           later one this is void: a matcher that has said so may be dead, and the change is sent again.
    """

    changes: list[int]
    since: int


SubscriptionMessage = ChangeSubscriptions | ApplyChanges | Applied | Changed
