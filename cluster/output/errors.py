"""What can be wrong with a log of matched output."""

from __future__ import annotations

from cluster.errors import KittiwakeError


class OutputError(KittiwakeError):
    """A log that cannot be read or written as it is; the text names the file and what differs.

    file:  where, as the log names it. found, expected: what differs, None where that is no single value.
    """

    code = "output"

    def __init__(self, reason: str, *, file: str = "", expected: object = None, found: object = None) -> None:
        self.reason = reason
        self.file = file
        self.expected = expected
        self.found = found
        super().__init__(f"{file}: {reason}" if file else reason)


class OffsetsGoneError(OutputError):
    """Rows were asked for that retention has removed. first: the oldest offset of the slot that is still there."""

    code = "offsets_gone"

    def __init__(self, slot: int, asked: int, first: int) -> None:
        self.slot = slot
        self.asked = asked
        self.first = first
        super().__init__(
            f"slot {slot}: offset {asked} is gone, retention has removed what was before {first}",
            expected=first,
            found=asked,
        )


class FencedError(OutputError):
    """A later incarnation writes this slot's log: this one must stop."""

    code = "fenced"
