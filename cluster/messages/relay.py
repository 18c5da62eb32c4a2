"""What connection points say to each other: they have no lanes, so it goes by an access point, which does not look
into it."""

from __future__ import annotations

from cluster.messages.base import Message
from cluster.messages.handover import AboutSession
from cluster.messages.valid import AboutValid


class Relay(Message, frozen=True, array_like=True, tag=100, gc=False):
    """CP -> AP -> the CPs of these slots, as far as they are known there. sender: the slot that it comes from."""

    sender: int
    receivers: list[int]
    content: AboutValid | AboutSession
