"""The index's oracle: every subscription's normal form against every publication, in plain Python.

Slow and obvious on purpose; keep it so. It decodes publications by msgpack's own decoder and not by walk.py,
so that the two check each other.
"""

from __future__ import annotations

import numpy as np

from cluster.language.encoding import decode_normal
from cluster.language.holds import normal_matches
from cluster.language.normal import NormalForm
from cluster.matching.batch import Batch
from cluster.matching.hits import Hits
from cluster.matching.memory import Room


class Scan:
    """The same promises as `Index`, without an index."""

    def __init__(self) -> None:
        self._subscriptions: dict[int, tuple[int, NormalForm]] = {}

    def add(self, subscription: int, normal_form: NormalForm, client: int) -> None:
        """Add a subscription, or replace the one with this id."""
        self._subscriptions[subscription] = (client, normal_form)

    def add_encoded(self, subscription: int, normal_form: bytes, client: int) -> None:
        """Add a subscription by its encoded normal form. Raises CodecError for bytes that are none."""
        self.add(subscription, decode_normal(normal_form), client)

    def remove(self, subscription: int) -> bool:
        """Remove a subscription; tell whether it was there."""
        return self._subscriptions.pop(subscription, None) is not None

    def match(self, batch: Batch, room: Room | None = None) -> Hits:
        """Return which publication matches which subscription; it has no use for a room."""
        del room
        rows: list[tuple[int, int, int]] = []
        for place, attributes in enumerate(batch.publications()):
            if attributes is None:
                continue
            rows.extend(
                (place, client, subscription)
                for subscription, (client, normal_form) in self._subscriptions.items()
                if normal_matches(normal_form, attributes)
            )
        rows.sort()
        return Hits.of(
            np.array([row[0] for row in rows], dtype=np.uint32),
            np.array([row[1] for row in rows], dtype=np.int64),
            np.array([row[2] for row in rows], dtype=np.uint64),
        )

    def fold(self, units: int = 0) -> bool:
        """Do nothing: there is no index to tend."""
        return False

    def check(self) -> None:
        """Do nothing: there is no index to check."""

    def memory_bytes(self) -> int:
        """Return a rough size: 100 bytes a subscription, its normal form left out."""
        return 100 * len(self._subscriptions)

    def __len__(self) -> int:
        return len(self._subscriptions)
