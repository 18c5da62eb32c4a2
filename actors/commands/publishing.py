"""Publishes from an iterator, past publications that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from cluster.client import Acknowledge
from cluster.errors import RejectedError
from cluster.readings.source import Publication

if TYPE_CHECKING:
    from cluster.client import Client

Refused = Callable[[RejectedError], None]


async def publish_all(
    client: Client,
    publications: Iterator[Publication] | AsyncIterator[Publication],
    ack: Acknowledge,
    refused: Refused,
    valid_for: float = 0,
) -> None:
    """Publish until the iterator ends.

    refused: called for each publication that the client refuses before it has a sequence (it is the last one that the
             iterator gave), and once for all that the cluster refuses; `client.rejected` counts the latter.
    valid_for: seconds, as for `Client.publish`.
    """
    while True:
        try:
            await client.publish_many(publications, ack=ack, valid_for=valid_for)
        except RejectedError as error:
            refused(error)
            if error.sequence is None:
                continue  # refused before it was sent: go on behind it
        return
