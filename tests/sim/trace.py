"""What a run did, line by line: the same seed gives the same lines, and so the same hash, on any machine."""

from __future__ import annotations

import hashlib

TAIL_LINES = 120


class Trace:
    """The lines of one run. `stamp` numbers them; facts that the checker compares carry these numbers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._hash = hashlib.sha256()

    @property
    def stamp(self) -> int:
        """The number of the line written last; later facts have larger ones."""
        return len(self.lines)

    def note(self, now_ms: int, text: str) -> int:
        """Add a line; return its stamp."""
        line = f"{len(self.lines) + 1:6d} {now_ms:7d} ms  {text}"
        self.lines.append(line)
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        return len(self.lines)

    def digest(self) -> str:
        """Return the hash of all lines so far."""
        return self._hash.hexdigest()

    def tail(self, mentions: str = "") -> str:
        """Return the last lines for people, those before them only where they mention the text."""
        cut = max(0, len(self.lines) - TAIL_LINES)
        early = [line for line in self.lines[:cut] if mentions and mentions in line]
        return "\n".join([*early, *self.lines[cut:]])
