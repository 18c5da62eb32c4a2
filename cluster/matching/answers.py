"""What a batch's hits are for the exit point that joins some of its publications: columns, as they travel."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cluster.matching import kernels
from cluster.matching.batch import Batch
from cluster.matching.hits import Hits
from cluster.matching.memory import Memory, Room

HEAD = 5
"""Words of an answer before its columns (`answering.HEAD_BYTES`)."""

Columns = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""The columns of `messages.Result`, in its order."""

NOTHING: Columns = (b"", b"", b"", b"", b"", b"", b"")


def answer(
    batch: Batch,
    hits: Hits,
    ranges: Sequence[int],
    bits: int,
    shown: bool = False,
    room: Room | None = None,
) -> tuple[int, Columns]:
    """Return how many publications in these ranges of the batch have hits, and an answer's columns.

    ranges: first publication and one after the last, of each range in turn; ascending and disjoint.
    bits:   of a subscription, which are its client's number for it; the others are the client.
    shown:  all that are well-formed go along, not only those with hits.
    room:   memory to work in.
    Cost:   about a nanosecond a hit, a few a publication.
    """
    run_count = hits.run_count
    if not run_count and not shown:
        return 0, NOTHING
    count, payload = batch.count, batch.payload
    most = count if shown else min(count, run_count)
    size = len(payload)
    words = HEAD + run_count + (3 * most + run_count + hits.count + 1) // 2 + size // 8 + 1
    memory = Memory(words) if room is None else room.take(words)
    wanted = struct.pack(f"<{3 + len(ranges)}q", shown, (1 << bits) - 1, len(ranges) // 2, *ranges)
    kernels.answer(payload, batch.lengths, batch.at, hits.head(), wanted, memory.at)
    matched, written, clients, numbers, octets = memory.words[:HEAD].tolist()
    if not written:
        return 0, NOTHING
    cut = memory.octets
    at_clients = 8 * HEAD
    at_publications = at_clients + 8 * run_count
    at_notifications = at_publications + 4 * most
    at_lengths = at_notifications + 4 * most
    at_matches = at_lengths + 4 * most
    at_numbers = at_matches + 4 * run_count
    at_payload = at_numbers + 4 * hits.count
    return matched, (
        cut[at_publications : at_publications + 4 * written].tobytes(),
        cut[at_notifications : at_notifications + 4 * written].tobytes(),
        cut[at_clients : at_clients + 8 * clients].tobytes(),
        cut[at_matches : at_matches + 4 * clients].tobytes(),
        cut[at_numbers : at_numbers + 4 * numbers].tobytes(),
        cut[at_lengths : at_lengths + 4 * written].tobytes(),
        # All of it has not been copied.
        payload if octets == size else cut[at_payload : at_payload + octets].tobytes(),
    )
