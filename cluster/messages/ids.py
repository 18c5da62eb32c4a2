"""Who is who: the layers and their slots, and the numbers of clients, subscriptions and views.

A client is `connection point slot << 32 | session`; a subscription is `client << 20 | the client's number of it`. A
client fits 43 bits (slots below 2048), a subscription 63.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

from cluster.frames import SUBSCRIPTION_BITS

ClientKey = NewType("ClientKey", int)
SubscriptionId = NewType("SubscriptionId", int)
Epoch = NewType("Epoch", int)

SESSION_BITS = 32
NUMBER_BITS = 40
"""A role's incarnation stands above them in the numbers that it gives, of changes and tokens: a later one's are higher,
and none of an earlier one comes back."""

CONNECTION_POINT = "connection_point"
ACCESS_POINT = "access_point"
MATCHER = "matcher"
EXIT_POINT = "exit_point"
COORDINATOR = "coordinator"
OPERATOR = "operator"
"""Those who call the coordinator to ask; they have no place in a view."""
DATA_LAYERS = (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT)


class Peer(NamedTuple):
    """A slice: the slot `slot` of a layer. Which incarnation plays it is the lane's business."""

    layer: str
    slot: int

    def __str__(self) -> str:
        return f"{self.layer} {self.slot}"


COORDINATOR_PEER = Peer(COORDINATOR, 0)


def client_key(slot: int, session: int) -> ClientKey:
    """Return the id of a client from its connection point's slot and its session there."""
    return ClientKey(slot << SESSION_BITS | session)


def slot_of(client: int) -> int:
    """Return the slot of the connection point that holds the client."""
    return client >> SESSION_BITS


def subscription_id(client: ClientKey, number: int) -> SubscriptionId:
    """Return the cluster's id of the client's subscription `number`."""
    return SubscriptionId(client << SUBSCRIPTION_BITS | number)
