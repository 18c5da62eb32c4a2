"""Which slices a message visits.

A client's access point is chosen by its session, so that its publications and subscriptions keep one order; a
publisher's exit point by its name, so that all its publications, whichever way they came, are put in order and
cleared of doubles at one place. Where everything is written to the output, one of the matchers that a batch visits
sends on what matches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from cluster.view import View


def access_point_of(view: View, client: int) -> int:
    """Return the slot of the access point that admits the client's traffic."""
    return view.access_points[client % len(view.access_points)]


@lru_cache(maxsize=65536)
def _chosen(publisher: str, slots: tuple[int, ...]) -> int:
    # Not crc32: it is linear, so that the slots' scores would differ by constants and their shares by a factor of two.
    name = publisher.encode()
    return max(slots, key=lambda slot: blake2b(name, digest_size=8, salt=slot.to_bytes(2, "little")).digest())


def exit_point_of(exit_points: Sequence[int], publisher: str) -> int:
    """Return the slot of the exit point that joins and orders the publisher's publications.

    Rendezvous hashing: when an exit point comes or goes, only publishers that gain or lose it move.
    """
    return _chosen(publisher, tuple(exit_points))


def teller_of(matchers: Sequence[int], sequence: int) -> int:
    """Return the slot of the matcher that shows its exit points all of a batch, matched or not, where all is written.

    Shape: the batch's `expect` and `sequence`, which are the same at each matcher that has it. They take turns, so that
           the copying is shared; the number is mixed first, as batches may all have the same size.
    """
    return matchers[(sequence * 0x9E3779B97F4A7C15 >> 40 & 0xFFFF) % len(matchers)]
