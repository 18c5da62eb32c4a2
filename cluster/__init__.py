"""Kittiwake: content-based publish/subscribe for sensor data.

async with connect("kittiwake://127.0.0.1:7400", client_id="lab") as client: ...       see cluster.client
parse("no2 > 40").matches({"no2": 45.0})                                               see cluster.language
"""

from __future__ import annotations

from cluster.client import Client, Notification, Subscription, connect, connect_sync
from cluster.errors import (
    ConnectionLostError,
    FilterError,
    KittiwakeError,
    OverloadedError,
    PolicyError,
    RefusedError,
    RejectedError,
)
from cluster.language.builder import F
from cluster.language.filter import Filter, parse
from cluster.policy import latest_per_key

__all__ = [
    "Client",
    "ConnectionLostError",
    "F",
    "Filter",
    "FilterError",
    "KittiwakeError",
    "Notification",
    "OverloadedError",
    "PolicyError",
    "RefusedError",
    "RejectedError",
    "Subscription",
    "connect",
    "connect_sync",
    "latest_per_key",
    "parse",
]
