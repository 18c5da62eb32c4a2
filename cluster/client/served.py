"""What a subscription with initial="valid" has been given, over all connections, so that nothing is given twice.

On each new connection the broker serves it anew with everything that is valid then, as something may have been missed.
Of each publisher the publications come in their order, on every connection. So it takes two numbers of a publisher to
know what is new: the last one that was given as valid, and, if everything was given before the last connection ended,
the last one that came live on it.

Bounded: of the PUBLISHERS_KEPT publishers that were heard last; what comes of others may be given again.
"""

from __future__ import annotations

from cluster.watermarks import Key, Watermarks

PUBLISHERS_KEPT = 10_000


class Served:
    """One subscription's. complete: all that was valid has come on the present connection."""

    __slots__ = ("_given", "_live", "_whole", "complete")

    def __init__(self) -> None:
        self._given = Watermarks(PUBLISHERS_KEPT)
        self._live: Watermarks | None = None
        self._whole = False
        self.complete = False

    def take(self, publisher: Key, sequence: int) -> bool:
        """Take note of a valid publication; tell whether it is new."""
        if self._live is not None and sequence <= self._live.upto(publisher):
            return False
        return self._given.raise_to(publisher, sequence)

    def connecting(self, live: Watermarks) -> None:
        """Another connection begins. live: what had come on the last one."""
        self._whole = self.complete
        self.complete = False
        self.came(live)

    def came(self, live: Watermarks) -> None:
        """So much of what was live on the last connection has come by now; `live` is a copy."""
        if self._whole:
            self._live = live
