"""What this client has got of its durable session, and what it is done with: the acknowledgements' half of delivery.

Each notification has a position. From its arrival until it is settled it is *outstanding*:

    lying     in an inbox; a copy that a new connection brings is passed over
    taken     handed out, to be acknowledged by the application; a copy is handed out again, flagged
    refused   wanted again; it stays outstanding until it has come again and is settled, or the broker says that it
              will not come, so that no cumulative report covers it

Reports are cumulative up to the first outstanding position, and by single positions above that. A connection that
ends may have lost them: the next one begins with all of them. So while this client lives nothing comes twice that the
application was done with.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from copy import copy
from typing import Literal

from cluster.codec import encode_frame
from cluster.errors import KittiwakeError
from cluster.frames import Consumed, Settle

State = Literal["lying", "taken", "refused"]


class Positions:
    """One durable session's, for as long as it is resumed. manual: only `acknowledge` settles, taking does not.

    changed: called when there is something to report that nobody else would notice.
    over:    why acknowledging is of no use any more; set when the session or the client has ended.
    """

    def __init__(self, *, manual: bool, changed: Callable[[], None] = lambda: None) -> None:
        self.manual = manual
        self.changed = changed
        self.over: KittiwakeError | None = None
        self._outstanding: OrderedDict[int, State] = OrderedDict()  # ascending
        self._highest = 0  # that has arrived
        self._above: set[int] = set()  # settled, above what was the first outstanding position at the last report
        self._singles: list[int] = []  # of them, not reported on this connection
        self._refused: list[int] = []  # not reported
        self._reported = 0
        self.lying = 0
        """Notifications in the state of that name."""

    @property
    def outstanding(self) -> int:
        """Notifications that have come and are not settled."""
        return len(self._outstanding)

    @property
    def upto(self) -> int:
        """The position up to which nothing is outstanding."""
        return next(iter(self._outstanding)) - 1 if self._outstanding else self._highest

    @property
    def at_rest(self) -> bool:
        """Nothing lies here, and there is nothing to report: there won't be by itself."""
        return not (self.lying or self._singles or self._refused or self.upto > self._reported)

    def connecting(self) -> None:
        """Begin a connection: whatever was reported may have been lost."""
        self._reported = 0
        self._tidy()
        self._singles = sorted(self._above)
        self._refused.clear()  # what is outstanding comes again as it is

    def arrived(self, position: int) -> bool:
        """Take note of a notification; return whether it is to be handed out."""
        state = self._outstanding.get(position)
        if state is not None:
            self._set(position, "lying")
            return state != "lying"
        if position <= self._highest:
            if position > self.upto:
                self._singles.append(position)
            else:
                self._reported = 0  # the report was lost, or is on its way
            return False
        self._highest = position
        self._outstanding[position] = "lying"
        self.lying += 1
        return True

    def _set(self, position: int, state: State) -> None:
        self.lying += (state == "lying") - (self._outstanding[position] == "lying")
        self._outstanding[position] = state

    def took(self, position: int, *, again: bool = False) -> None:
        """The application is through with it, or, if it is to acknowledge it, has been handed it.

        again: it was thrown away unseen and is to come again on the next connection.
        """
        if self._outstanding.get(position) == "lying":
            if self.manual or again:
                self._set(position, "taken")
            else:
                self._settle(position)

    def pass_over(self, position: int) -> None:
        """Nobody wants it."""
        self._settle(position)

    def acknowledge(self, position: int, *, upto: bool) -> None:
        """The application is done with it, or with all up to it. What is settled already is passed over."""
        self._check()
        if upto:
            while self._outstanding:
                first = next(iter(self._outstanding))
                if first > position:
                    break
                self._settle(first)
        else:
            self._settle(position)
        self.changed()

    def refuse(self, position: int) -> None:
        """The application wants it again. Nothing happens if it is settled, or refused already."""
        self._check()
        if self._outstanding.get(position) in ("taken", "lying"):
            self._set(position, "refused")
            self._refused.append(position)
            self.changed()

    def _check(self) -> None:
        if self.over is not None:
            raise copy(self.over)  # one exception raised again and again would collect all the tracebacks

    def gone(self, positions: Iterable[int]) -> None:
        """The broker will not bring these again."""
        for position in positions:
            if self._outstanding.get(position) != "lying":
                self._outstanding.pop(position, None)

    def _settle(self, position: int) -> None:
        state = self._outstanding.pop(position, None)
        if state is None:
            return
        self.lying -= state == "lying"
        if position > self.upto:
            self._above.add(position)
            self._singles.append(position)

    def _tidy(self) -> None:
        upto = self.upto
        if self._above:
            self._above = {one for one in self._above if one > upto}

    def report(self) -> list[bytes]:
        """Return the frames that say what was not said on this connection."""
        frames = []
        upto = self.upto
        self._tidy()
        if upto > self._reported:
            self._reported = upto
            frames.append(encode_frame(Consumed(upto)))
        singles = [one for one in self._singles if one > upto]
        self._singles = []
        refused, self._refused = self._refused, []
        if singles or refused:
            frames.append(encode_frame(Settle(_column(singles), _column(refused))))
        return frames

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        assert list(self._outstanding) == sorted(self._outstanding)
        assert self.lying == list(self._outstanding.values()).count("lying")
        assert all(one <= self._highest for one in self._above)
        assert not self._above & self._outstanding.keys()
        assert set(self._singles) - self._above <= set(range(self.upto + 1))


def _column(positions: list[int]) -> bytes:
    return struct.pack(f"<{len(positions)}Q", *positions)
