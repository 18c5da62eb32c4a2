"""How fast strangers may fail: what a flood of them can cost those who are served.

Each connection that fails, which is to say that it ends without a login or breaks the protocol, takes one of the tokens
that a second brings; at most a second's worth is kept. When they are used up no connection is accepted until there is
one again. Whoever fails after that, as it was accepted before, is owed for. Clients that log in cost nothing, be there
ever so many at once, but they wait behind the others in the port's queue meanwhile.

Source: token bucket, as in J. S. Turner, New Directions in Communications, IEEE Communications Magazine 24(10), 1986.
"""

from __future__ import annotations

from cluster.messages import Instruction, PauseAccepting, ResumeAccepting

FAILED = frozenset({"malformed", "too_large", "over_credit", "version", "client_id", "timeout", "too_many"})
"""Codes of Bye that stand for a failure of a connection without a login."""
BROKEN = frozenset({"malformed", "too_large", "over_credit"})
"""Those that do so after a login as well."""


class Admission:
    """rate: failures that are allowed in a second. paused: whether no connection is accepted."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._tokens = float(rate)
        self.paused = False

    def fail(self, out: list[Instruction]) -> None:
        """A connection has failed; append what is to be done."""
        self._tokens -= 1
        if self._tokens < 1 and not self.paused:
            self.paused = True
            out.append(PauseAccepting())

    def tick(self, passed_ms: int, out: list[Instruction]) -> None:
        """So much time has passed."""
        self._tokens = min(self._tokens + passed_ms * self._rate / 1000, float(self._rate))
        if self.paused and self._tokens >= 1:
            self.paused = False
            out.append(ResumeAccepting())
