"""Writes the columns of an answer: what some ranges of a batch's publications have matched, as an exit point gets it.

The answer's memory begins with HEAD_BYTES, and behind them the columns lie in the order of below, each with room for
the most that it can hold; so where each begins follows from these bounds (`answers.py` computes the same).

    clients        64 bits a run (a run is the hits of one publication and client)   as many as there are runs
    publications   32 bits a publication, its place in the ranges                    as many as may come
    notifications  32 bits a publication, how many runs it has                       as many as may come
    lengths        32 bits a publication                                             as many as may come
    matches        32 bits a run, how many hits it has                               as many as there are runs
    numbers        32 bits a hit, the subscription's lower bits                      as many as there are hits
    payload        the publications, one after the other                             the batch's bytes

Publications without hits are left out, unless all that are well-formed are wanted.
"""

from __future__ import annotations

from cluster.matching import strings
from cluster.matching.compiled import compiled
from cluster.matching.entries import ACCEPTED
from cluster.matching.machine import load32, load64, store32, store64
from cluster.matching.search import F_HITS, F_HITS_AT, F_RUNS, F_RUNS_AT, RUN_BYTES
from cluster.matching.walk import W_COUNT, W_SIZE, places_in

HEAD_BYTES = 40


@compiled
def answer(
    payload: int,
    lengths: int,
    words: int,
    found: int,
    wanted: int,
    target: int,
) -> int:
    """Write an answer; returns how many publications it holds.

    payload, lengths, words: the batch, and what `walk.walk` has written of it. found: the head of its hits, as
    `search.match` writes it. wanted: words: 1 if all that are well-formed are wanted; the bits of a subscription that
    are its number; how many ranges; and of each the first publication and one after the last, ascending and disjoint.
    Writes to the head how many of the publications have hits, and how many publications, runs, hits and bytes are in
    the columns. Where these are all bytes of the batch they are not copied.
    """
    size = load64(words + W_SIZE)
    count = load64(words + W_COUNT)
    _, reasons, _ = places_in(words)
    hits = load64(found + F_HITS)
    run_count = load64(found + F_RUNS)
    subscriptions = load64(found + F_HITS_AT)
    runs = load64(found + F_RUNS_AT)
    shown = load64(wanted)
    mask = load64(wanted + 8)
    range_count = load64(wanted + 16)
    ranges = wanted + 24
    most = count if shown else min(count, run_count)
    clients = target + HEAD_BYTES
    publications = clients + 8 * run_count
    notifications = publications + 4 * most
    lengths_out = notifications + 4 * most
    matches = lengths_out + 4 * most
    numbers = matches + 4 * run_count
    payload_out = numbers + 4 * hits
    matched = 0
    written = 0
    written_runs = 0
    written_hits = 0
    written_bytes = 0
    stretch = 0  # what begins here and ends at `stretch_end` is to be copied
    stretch_end = 0
    copied = 0
    publication = 0
    offset = 0
    run = 0
    before = 0  # publications in the ranges before
    for index in range(range_count):
        begin = load64(ranges + 16 * index)
        end = load64(ranges + 16 * index + 8)
        while publication < begin:
            offset += load32(lengths + 4 * publication)
            publication += 1
        while run < run_count and load64(runs + RUN_BYTES * run) < begin:
            run += 1
        while publication < end:
            if shown == 0:
                # Straight to the next with hits.
                upcoming = end
                if run < run_count:
                    upcoming = min(load64(runs + RUN_BYTES * run), end)
                while publication < upcoming:
                    offset += load32(lengths + 4 * publication)
                    publication += 1
                if publication == end:
                    break
            first_run = written_runs
            while run < run_count and load64(runs + RUN_BYTES * run) == publication:
                at = runs + RUN_BYTES * run
                first = load64(at + 16)
                last = hits
                if run + 1 < run_count:
                    last = load64(at + RUN_BYTES + 16)
                store64(clients + 8 * written_runs, load64(at + 8))
                store32(matches + 4 * written_runs, last - first)
                to = numbers + 4 * (written_hits - first)
                for row in range(first, last):
                    store32(to + 4 * row, load64(subscriptions + 8 * row) & mask)
                written_hits += last - first
                written_runs += 1
                run += 1
            own = written_runs - first_run
            if own:
                matched += 1
            length = load32(lengths + 4 * publication)
            if own or load64(reasons + 8 * publication) == ACCEPTED:
                store32(publications + 4 * written, before + publication - begin)
                store32(notifications + 4 * written, own)
                store32(lengths_out + 4 * written, length)
                written += 1
                written_bytes += length
                if offset != stretch_end:
                    strings.copy(payload + stretch, payload_out + copied, stretch_end - stretch)
                    copied += stretch_end - stretch
                    stretch = offset
                stretch_end = offset + length
            offset += length
            publication += 1
        before += end - begin
    if written_bytes != size:
        strings.copy(payload + stretch, payload_out + copied, stretch_end - stretch)
    store64(target, matched)
    store64(target + 8, written)
    store64(target + 16, written_runs)
    store64(target + 24, written_hits)
    store64(target + 32, written_bytes)
    return written
