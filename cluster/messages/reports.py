"""How a role is: said to the coordinator from time to time."""

from __future__ import annotations

import msgspec

from cluster.messages.base import Message


class Heartbeat(Message, frozen=True, array_like=True, tag=24, gc=False):
    """Any role -> C, every 250 ms: alive, with the role's counters since its start."""

    counters: dict[str, int]


class Report(Message, frozen=True, array_like=True, tag=92, gc=False):
    """Any role -> C, every `metrics.interval_ms`: what it has measured, for the autoscaler and for people.

    at_ms:      on the role's own monotonic clock.
    counters:   totals since the role's start, and what it holds at the moment; keys as in `metrics.py`.
    histograms: counts since then, and behind them the sum in microseconds.
    lanes:      (layer, slot, messages, bytes) for each peer: the least that it had yet to confirm in this interval.
    match_ns:   the least and the most that a publication took to match in this interval; None if none was.
    busiest:    of a matcher, the subscriptions that most hits are of, and how many of a million; see `busiest.py`.
    node:       of the node's cores that the role may run on: for how many microseconds they have been busy together,
                whoever kept them so, and how many they are; None if that is not known.
    """

    at_ms: int
    counters: dict[str, int]
    histograms: dict[str, list[int]]
    lanes: list[tuple[str, int, int, int]]
    match_ns: tuple[int, int] | None
    busiest: list[tuple[int, int]] = msgspec.field(default_factory=list)
    node: tuple[int, int] | None = None


ReportMessage = Heartbeat | Report
