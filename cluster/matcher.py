"""The matcher: finds which of its share of the subscriptions match each publication.

It handles its lanes strictly in order: a batch meets exactly the subscription changes that came before it, and the
acknowledgement of a change is true of every batch handled after it. For each batch it answers every exit point that
the batch's runs name, with the hits of those runs and the bytes of the publications that have hits; without hits
the answer still moves its watermark there.

A publication's attributes are decoded here and nowhere else, so this is also where a malformed one is found; every
matcher finds the same, and the exit point tells the publisher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cluster import columns
from cluster.columns import U32, U64, Column
from cluster.config import Config
from cluster.frames import SUBSCRIPTION_BITS
from cluster.language import decode_normal
from cluster.matching import Batch as PublicationBatch
from cluster.matching import BatchLimits, Index
from cluster.messages import (
    EXIT_POINT,
    MATCHER,
    Applied,
    ApplyChanges,
    Batch,
    Event,
    Install,
    Instruction,
    Message,
    Peer,
    Received,
    Result,
    Run,
    Send,
)

if TYPE_CHECKING:
    from cluster.matching import Hits


SUBSCRIPTION_SHIFT = np.uint64(SUBSCRIPTION_BITS)
NUMBER_MASK = np.uint64((1 << SUBSCRIPTION_BITS) - 1)


class Matcher:
    """The machine; `index` is its share of the subscriptions."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        del incarnation  # the lanes carry it
        self._peer = Peer(MATCHER, slot)
        limits = config.client_limits
        self._limits = BatchLimits(limits.attributes, limits.name_bytes, limits.string_bytes)
        self.index = Index()
        self._epoch = 0
        self.counters = dict.fromkeys(("publications", "batches", "hits", "matched", "rejected", "changes"), 0)

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case Received(peer, Batch() as batch):
                return self._match(peer, batch)
            case Received(peer, ApplyChanges() as message):
                return [self._apply(peer, message)]
            case Received(_, Install(epoch)):
                self._epoch = epoch
            case Received(peer, message):
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")
            case _:
                pass
        return []

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        return self.counters | {"subscriptions": len(self.index), "index_bytes": self.index.memory_bytes()}

    def _apply(self, access_point: Peer, message: ApplyChanges) -> Instruction:
        for change in message.changes:
            if change.normal_form is None:
                self.index.remove(change.subscription)
            else:
                client = change.subscription >> SUBSCRIPTION_BITS
                self.index.add(change.subscription, decode_normal(change.normal_form), client)
        self.counters["changes"] += len(message.changes)
        answer: Message = Applied(message.connection_point, [change.change for change in message.changes])
        return Send(access_point, answer)

    def _match(self, access_point: Peer, batch: Batch) -> list[Instruction]:
        assert batch.epoch == self._epoch, f"{self._peer} serves epoch {self._epoch}, {access_point} sent {batch.epoch}"
        publications = PublicationBatch(batch.lengths, batch.payload, self._limits)
        hits = self.index.match(publications)
        self.counters["batches"] += 1
        self.counters["publications"] += publications.count
        self.counters["hits"] += len(hits.publication)
        self.counters["rejected"] += len(publications.rejected)
        offsets = columns.starts(columns.u32(batch.lengths))
        exit_points = sorted(set(batch.exit_points))
        if len(exit_points) == 1:
            result = self._result(
                access_point, batch, batch.runs, batch.exit_sequences[0], publications.rejected, hits, None, offsets
            )
            return [Send(Peer(EXIT_POINT, exit_points[0]), result)]
        counts = np.array([run.count for run in batch.runs])
        exit_point_of = np.repeat(np.array(batch.exit_points), counts)
        out: list[Instruction] = []
        for exit_point in exit_points:
            runs = [run for run, chosen in zip(batch.runs, batch.exit_points, strict=True) if chosen == exit_point]
            first = batch.exit_sequences[batch.exit_points.index(exit_point)]
            mine = exit_point_of == exit_point
            # Publications are counted through this exit point's runs alone.
            place = np.cumsum(mine) - 1
            rejected = [(int(place[at]), reason) for at, reason in publications.rejected if mine[at]]
            result = self._result(access_point, batch, runs, first, rejected, hits, (mine, place), offsets)
            out.append(Send(Peer(EXIT_POINT, exit_point), result))
        return out

    def _result(
        self,
        access_point: Peer,
        batch: Batch,
        runs: list[Run],
        sequence: int,
        rejected: list[tuple[int, str]],
        hits: Hits,
        part: tuple[Column, Column] | None,
        offsets: Column,
    ) -> Result:
        publication, subscription = hits.publication, hits.subscription
        if part is not None:
            chosen = part[0][publication]
            publication, subscription = publication[chosen], subscription[chosen]
        if not len(publication):
            return Result(batch.epoch, batch.expect, access_point.slot, sequence, runs, rejected, *[b""] * 7)
        client = subscription >> SUBSCRIPTION_SHIFT
        new_publication = np.empty(len(publication), np.bool_)
        new_publication[0] = True
        np.not_equal(publication[1:], publication[:-1], out=new_publication[1:])
        new_notification = new_publication.copy()
        new_notification[1:] |= client[1:] != client[:-1]
        begins = np.flatnonzero(new_notification)
        first = np.flatnonzero(new_publication[begins])
        which = publication[begins[first]]
        matched = which if part is None else part[1][which]
        self.counters["matched"] += len(which)
        return Result(
            batch.epoch,
            batch.expect,
            access_point.slot,
            sequence,
            runs,
            rejected,
            matched.astype(U32, copy=False).tobytes(),
            columns.sizes(first, len(begins)).tobytes(),
            client[begins].astype(U64, copy=False).tobytes(),
            columns.sizes(begins, len(publication)).tobytes(),
            (subscription & NUMBER_MASK).astype(U32).tobytes(),
            columns.u32(batch.lengths)[which].tobytes(),
            columns.gather(batch.payload, offsets, which),
        )
