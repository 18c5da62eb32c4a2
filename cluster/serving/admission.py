"""How fast strangers may fail: what a flood of them can cost those who are served.

A connection fails when it ends without a login or breaks the protocol. A second's worth of failures is free, and is
free again after a second without any. Beyond it each is followed by a rest of the port, in which nobody is accepted:
so failures come no faster than their rate, evenly, however many try. Clients that log in cost nothing, be there ever so
many at once; while the port rests they wait in its queue.
"""

from __future__ import annotations

from cluster.messages import Instruction, RestAccepting

FAILED = frozenset({"malformed", "too_large", "over_credit", "version", "client_id", "timeout", "too_many"})
"""Codes of Bye that stand for a failure of a connection without a login."""
BROKEN = frozenset({"malformed", "too_large", "over_credit"})
"""Those that do so after a login as well."""
CALM_MS = 1000


class Admission:
    """rate: failures that are allowed in a second. _free: how many cost no rest. _failed_ms: when the last one was."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._free = rate
        self._failed_ms = 0

    def fail(self, now_ms: int, out: list[Instruction]) -> None:
        """A connection has failed; append what is to be done."""
        if now_ms - self._failed_ms >= CALM_MS:
            self._free = self._rate
        self._failed_ms = now_ms
        if self._free:
            self._free -= 1
        else:
            out.append(RestAccepting(1000 / self._rate))
