"""A batch of publications as they travel: concatenated msgpack maps and their lengths.

Every publication is checked here, once: a map of string -> bool | int (64 bits, signed or unsigned) | finite float |
string | nil, within the limits. A refused one matches nothing, and `rejected` says why, for the publisher's
eyes. Where a map names an attribute twice the last value counts, as in every msgpack decoder that builds a map.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack
import numpy as np

from cluster.matching import kernels, walk

_REASONS = {
    walk.TRUNCATED: "{attribute}the publication is cut off",
    walk.TRAILING: "bytes follow the publication's map",
    walk.NOT_A_MAP: "a publication must be a msgpack map",
    walk.TOO_MANY_ATTRIBUTES: "more than {attributes_max} attributes",
    walk.NAME_NOT_STRING: "an attribute's name must be a string",
    walk.NAME_EMPTY: "an attribute's name is empty",
    walk.NAME_TOO_LONG: "{attribute}the name is longer than {name_bytes_max} bytes",
    walk.NAME_NOT_UTF8: "an attribute's name is not UTF-8",
    walk.VALUE_NESTED: "{attribute}the value is nested (a map or an array); flatten it",
    walk.VALUE_BINARY: "{attribute}the value is binary or an extension type; use bool, int, float, string or nil",
    walk.VALUE_INVALID: "{attribute}0xc1 is not a msgpack type",
    walk.VALUE_NOT_FINITE: "{attribute}the value is NaN or infinite",
    walk.STRING_TOO_LONG: "{attribute}the string is longer than {string_bytes_max} bytes",
    walk.STRING_NOT_UTF8: "{attribute}the string is not UTF-8",
}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one publication may hold; sizes are bytes of UTF-8."""

    attributes_max: int = 256
    name_bytes_max: int = 256
    string_bytes_max: int = 65_536


DEFAULT_BATCH_LIMITS = BatchLimits()


class Batch:
    """Publications, checked and taken apart.

    count:    publications, the refused ones included.
    rejected: (place in the batch, reason) of each refused publication, ascending.
    lengths, payload: as given; kept, because the entries point into the payload.
    starts, entries:  what walk.py leaves: entries[starts[i]:starts[i + 1]] are publication i's attributes.
    reasons:  0 for an accepted publication.
    """

    __slots__ = (
        "_addresses",
        "_lengths",
        "_payload",
        "count",
        "entries",
        "lengths",
        "payload",
        "reasons",
        "rejected",
        "starts",
    )

    def __init__(self, lengths: bytes, payload: bytes, limits: BatchLimits = DEFAULT_BATCH_LIMITS) -> None:
        """Check the publications.

        lengths: bytes of each publication, little-endian 32 bits each. payload: their msgpack, one after the other.
        Raises ValueError when the lengths do not add up to the payload: that is our sender's mistake, not a
        publisher's.
        """
        if len(lengths) % 4:
            raise ValueError(f"lengths must hold 4 bytes a publication, got {len(lengths)} bytes")
        self.lengths = lengths
        self.payload = payload
        self.count = count = len(lengths) // 4
        self._lengths = np.frombuffer(lengths, dtype="<u4")
        self._payload = np.frombuffer(payload, dtype=np.uint8)
        lengths_at = address(self._lengths)
        payload_at = address(self._payload)
        bound = kernels.count_attributes(payload_at, len(payload), lengths_at, count, limits.attributes_max)
        if bound < 0:
            raise ValueError(f"the lengths of {count} publications do not add up to {len(payload)} bytes")
        self.starts = np.empty(count + 1, dtype=np.int64)
        self.entries = np.empty((max(bound, 1), 4), dtype=np.int64)
        self.reasons = np.empty(count, dtype=np.uint32)
        places = np.empty(count, dtype=np.int64)
        self._addresses = (payload_at, address(self.starts), address(self.entries), address(self.reasons))
        refused = kernels.walk(
            payload_at,
            len(payload),
            lengths_at,
            count,
            self._addresses[1],
            self._addresses[3],
            address(places),
            self._addresses[2],
            limits.attributes_max,
            limits.name_bytes_max,
            limits.string_bytes_max,
        )
        self.rejected: list[tuple[int, str]] = []
        if refused:
            for index in np.flatnonzero(self.reasons):
                text = self._reason(int(self.reasons[index]), int(places[index]), limits)
                self.rejected.append((int(index), text))

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
        for length, reason in zip(self._lengths.tolist(), self.reasons.tolist(), strict=True):
            piece = self.payload[at : at + length]
            decoded.append(None if reason else msgpack.unpackb(piece, strict_map_key=True))
            at += length
        return decoded

    def addresses(self) -> tuple[int, int, int, int]:
        """Return where payload, starts, entries and reasons lie in memory; valid as long as this object lives."""
        return self._addresses

    def _reason(self, reason: int, place: int, limits: BatchLimits) -> str:
        offset, length = place & 0xFFFFFFFF, place >> 32
        name = self.payload[offset : offset + length].decode("utf-8", "replace")
        attribute = f"attribute {name!r}: " if place else ""
        return _REASONS[reason].format(
            attribute=attribute,
            attributes_max=limits.attributes_max,
            name_bytes_max=limits.name_bytes_max,
            string_bytes_max=limits.string_bytes_max,
        )


def address(array: np.ndarray) -> int:
    """Return where an array's data lies."""
    return int(array.ctypes.data)
