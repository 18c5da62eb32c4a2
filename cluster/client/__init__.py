"""The Python SDK: publish, subscribe, reconnect.

    protocol.py      the pure half, and in it publishing.py, requests.py, delivery.py
    client.py        the asyncio shell: Client, connect; with link.py (one connection) and streams.py (what is read)
    blocking.py      the same for programs without an event loop: connect_sync
    attributes.py    what may be published, and its bytes; notification.py the other way

It needs msgspec and the standard library, no more.
"""

from __future__ import annotations

from cluster.client.address import Connector
from cluster.client.attributes import Limits, Value
from cluster.client.blocking import (
    BlockingClient,
    BlockingStream,
    BlockingSubscription,
    BlockingSubscriptionGroup,
    connect_sync,
)
from cluster.client.client import Acknowledge, Client, connect
from cluster.client.notification import Notification
from cluster.client.streams import Notifications, Policy, Stream, Subscription, SubscriptionGroup
from cluster.policy import latest_per_key

__all__ = [
    "Acknowledge",
    "BlockingClient",
    "BlockingStream",
    "BlockingSubscription",
    "BlockingSubscriptionGroup",
    "Client",
    "Connector",
    "Limits",
    "Notification",
    "Notifications",
    "Policy",
    "Stream",
    "Subscription",
    "SubscriptionGroup",
    "Value",
    "connect",
    "connect_sync",
    "latest_per_key",
]
