"""A batch of publications as they travel: concatenated msgpack maps and their lengths.

Every publication is checked here, once: a map of string -> bool | int (64 bits, signed or unsigned) | finite float |
string | nil, within the limits. A refused one matches nothing, and `rejected` says why, for the publisher's
eyes. Where a map names an attribute twice the last value counts, as in every msgpack decoder that builds a map.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import msgpack
import numpy as np

from cluster.matching import entries, kernels
from cluster.matching.memory import Memory, Room

_REASONS = {
    entries.TRUNCATED: "{attribute}the publication is cut off",
    entries.TRAILING: "bytes follow the publication's map",
    entries.NOT_A_MAP: "a publication must be a msgpack map",
    entries.TOO_MANY_ATTRIBUTES: "more than {attributes_max} attributes",
    entries.NAME_NOT_STRING: "an attribute's name must be a string",
    entries.NAME_EMPTY: "an attribute's name is empty",
    entries.NAME_TOO_LONG: "{attribute}the name is longer than {name_bytes_max} bytes",
    entries.NAME_NOT_UTF8: "an attribute's name is not UTF-8",
    entries.VALUE_NESTED: "{attribute}the value is nested (a map or an array); flatten it",
    entries.VALUE_BINARY: "{attribute}the value is binary or an extension type; use bool, int, float, string or nil",
    entries.VALUE_INVALID: "{attribute}0xc1 is not a msgpack type",
    entries.VALUE_NOT_FINITE: "{attribute}the value is NaN or infinite",
    entries.STRING_TOO_LONG: "{attribute}the string is longer than {string_bytes_max} bytes",
    entries.STRING_NOT_UTF8: "{attribute}the string is not UTF-8",
}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one publication may hold; sizes are bytes of UTF-8."""

    attributes_max: int = 256
    name_bytes_max: int = 256
    string_bytes_max: int = 65_536
    packed: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words = struct.pack("<3q", self.attributes_max, self.name_bytes_max, self.string_bytes_max)
        object.__setattr__(self, "packed", words)


DEFAULT_BATCH_LIMITS = BatchLimits()
_COUNTED_FROM = 1 << 16  # bytes; below, memory for as many attributes as there can be costs less than counting them


class Batch:
    """Publications, checked and taken apart.

    count:    publications, the refused ones included.
    rejected: (place in the batch, reason) of each refused publication, ascending.
    lengths, payload: as given.
    at:       where what `walk.walk` has written lies in memory; valid as long as this object lives.
    """

    __slots__ = ("_memory", "at", "count", "lengths", "payload", "rejected")

    def __init__(
        self, lengths: bytes, payload: bytes, limits: BatchLimits = DEFAULT_BATCH_LIMITS, room: Room | None = None
    ) -> None:
        """Check the publications.

        lengths: bytes of each publication, little-endian 32 bits each.
        payload: their msgpack, one after the other.
        room:    where it may keep what it finds; then it is good until the next one is made there.
        Raises ValueError when the lengths do not add up to the payload: that is our sender's mistake, not a
        publisher's.
        """
        if len(lengths) % 4:
            raise ValueError(f"lengths must hold 4 bytes a publication, got {len(lengths)} bytes")
        self.lengths = lengths
        self.payload = payload
        self.count = count = len(lengths) // 4
        size = len(payload)
        attributes = size // 3 + 1  # an attribute takes at least three bytes
        if size > _COUNTED_FROM:
            attributes = kernels.count_attributes(payload, size, lengths, count, limits.attributes_max)
        # Two words, starts (count + 1), reasons and places (count each), then four words an attribute.
        words = 3 * count + 3 + 4 * max(attributes, 0)
        memory = self._memory = Memory(words) if room is None else room.take(words)
        self.at = memory.at
        refused = kernels.walk(
            payload,
            size if attributes >= 0 else -1,
            lengths,
            count,
            limits.packed,
            memory.at,
        )
        if refused < 0:
            raise ValueError(f"the lengths of {count} publications do not add up to {size} bytes")
        self.rejected: list[tuple[int, str]] = []
        if refused:
            # A publisher's mistake is mostly one mistake: its text is made once and not thousands of times.
            texts: dict[tuple[int, bytes], str] = {}
            places = memory.words[2 * count + 3 : 3 * count + 3].tolist()
            for index, reason in enumerate(self._reasons()):
                if reason:
                    offset, length = places[index] & 0xFFFFFFFF, places[index] >> 32
                    case = (reason, payload[offset : offset + length])
                    text = texts.get(case)
                    if text is None:
                        text = texts[case] = self._reason(reason, case[1], limits)
                    self.rejected.append((index, text))

    @classmethod
    def of(cls, publications: list[dict[str, bool | int | float | str | None]]) -> Batch:
        """Pack publications into a batch; for tests and benchmarks."""
        packed = [msgpack.packb(publication) for publication in publications]
        lengths = np.array([len(piece) for piece in packed], dtype="<u4")
        return cls(lengths.tobytes(), b"".join(packed))

    def publications(self) -> list[dict[str, bool | int | float | str | None] | None]:
        """Decode the publications by msgpack's own decoder; None stands for a refused one."""
        decoded: list[dict[str, bool | int | float | str | None] | None] = []
        at = 0
        for length, reason in zip(np.frombuffer(self.lengths, np.uint32).tolist(), self._reasons(), strict=True):
            piece = self.payload[at : at + length]
            decoded.append(None if reason else msgpack.unpackb(piece, strict_map_key=True))
            at += length
        return decoded

    def _reasons(self) -> list[int]:
        """Return a number for each publication, 0 for an accepted one."""
        return self._memory.words[self.count + 3 : 2 * self.count + 3].tolist()

    def _reason(self, reason: int, name: bytes, limits: BatchLimits) -> str:
        attribute = f"attribute {name.decode('utf-8', 'replace')!r}: " if name else ""
        return _REASONS[reason].format(
            attribute=attribute,
            attributes_max=limits.attributes_max,
            name_bytes_max=limits.name_bytes_max,
            string_bytes_max=limits.string_bytes_max,
        )
