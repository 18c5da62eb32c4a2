"""What a slice measures of its own work, besides what its machine counts: time, by histogram; the rest is the shell's.

A machine has no clock. Its shell, which hands it each event, says here how long that took and what time it is; the
times of what the event holds are in the event itself (`Run.time_us`). So the machine knows nothing of being measured,
and what is measured costs a few hundred nanoseconds for each message, not for each publication.

Each interval all of it goes to the coordinator as a `Report`: totals since the slice's start, from which whoever reads
them takes differences, and for a few values what was the least or the most in the interval.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from operator import itemgetter

import numpy as np

from cluster import columns
from cluster.busiest import Busiest
from cluster.histogram import Histogram
from cluster.messages import Batch, Deliver, Event, Publications, Received, Report, Result
from cluster.metrics import BY_NAME, METRICS, Kind

Backlog = tuple[str, int, int, int]
"""Layer and slot of a receiver, messages, bytes."""

DELAY = BY_NAME["kittiwake_notification_delay_seconds"]
AGE = BY_NAME["kittiwake_publication_age_seconds"]
MATCH = BY_NAME["kittiwake_match_seconds"]
SUBSCRIBE_ACK = BY_NAME["kittiwake_subscribe_ack_seconds"]


class Measures:
    """Of one slice, or of the coordinator. interval_ms: between reports.

    useful_ns:  spent at work since the start.
    lanes, resident_bytes, cpu_us, node: what the shell has seen last; node as in `Report`.
    busiest:    of a matcher, its sample of hits.
    answered:   when clients asked for what the machine has answered since, microseconds since 1970; the machine appends
                to it and this empties it.
    """

    def __init__(self, layer: str, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._reported_ms: int | None = None
        self._delay, self._age, self._match, self._subscribe_ack = (
            Histogram(metric.buckets) if layer in metric.layers else None
            for metric in (DELAY, AGE, MATCH, SUBSCRIBE_ACK)
        )
        self._messages = 0  # with publications
        self._match_ns: tuple[float, float] | None = None  # the least and the most of a publication, in the interval
        self.useful_ns = 0
        self.lanes: list[Backlog] = []
        self.resident_bytes = 0
        self.cpu_us = 0
        self.node: tuple[int, int] | None = None
        self.answered: MutableSequence[int] = []
        self.busiest: Busiest | None = None

    # The shell tells -----------------------------------------------------------------------------------------------

    def saw(self, lanes: list[Backlog], resident_bytes: int, cpu_us: int, node: tuple[int, int] | None = None) -> None:
        """What there is to be seen from outside of the machine; see `Measures`."""
        self.lanes = lanes
        self.resident_bytes = resident_bytes
        self.cpu_us = cpu_us
        self.node = node

    def worked(self, spent_ns: int) -> None:
        """So long was worked, for no event in particular."""
        self.useful_ns += spent_ns

    def took(self, event: Event, now_us: int, spent_ns: int, decoding_ns: int = 0) -> None:
        """The event has been handled, at now_us (microseconds since 1970), and took so long, after its decoding."""
        self.useful_ns += spent_ns + decoding_ns
        if type(event) is not Received:
            return
        message = event.message
        kind = type(message)
        if kind is Deliver:
            self._delivered(message, now_us)
        elif kind is Batch:
            self._matched(len(message.lengths) // 4, spent_ns)
            self._taken_up(message, len(message.lengths) // 4, now_us - spent_ns // 1000)
        elif kind is Publications:
            self._taken_up(message, len(message.lengths) // 4, now_us - spent_ns // 1000)
        elif kind is Result:
            count = sum([run.count for run in message.runs])
            self._taken_up(message, count, now_us - spent_ns // 1000)
        elif self.answered:
            for asked_us in self.answered:
                if self._subscribe_ack is not None:
                    self._subscribe_ack.add(max(now_us - asked_us, 0))
            self.answered.clear()

    def _taken_up(self, message: Publications | Batch | Result, count: int, now_us: int) -> None:
        """Of each message one run, each time another one, stands for all of it: there may be a thousand."""
        self._messages += 1
        if self._age is not None and message.runs:
            run = message.runs[self._messages % len(message.runs)]
            self._age.add(max(now_us - run.time_us, 0), count)

    def _matched(self, count: int, spent_ns: int) -> None:
        if self._match is None or not count:
            return
        each_ns = spent_ns / count
        self._match.add(each_ns / 1000, count)
        least, most = self._match_ns or (each_ns, each_ns)
        self._match_ns = (min(least, each_ns), max(most, each_ns))

    def _delivered(self, message: Deliver, now_us: int) -> None:
        """Count each notification with the age of its publication. Clocks of two nodes may differ: never below 0."""
        if self._delay is None:
            return
        runs = message.runs
        if len(runs) == 1:
            self._delay.add(max(now_us - runs[0][2], 0), len(message.publication) // 4)
            return
        # How many notifications are of each run's publications.
        counts = np.bincount(columns.u32(message.run)[columns.u32(message.publication)], minlength=len(runs))
        ages = [max(now_us - time_us, 0) for time_us in map(itemgetter(2), runs)]
        self._delay.add_all(ages, counts.tolist())

    def due(self, now_ms: int) -> bool:
        """Tell whether it is time for a report, and before it for the shell to say what it sees."""
        return self._reported_ms is None or now_ms - self._reported_ms >= self._interval_ms

    # What is told further ------------------------------------------------------------------------------------------

    def totals(self) -> dict[str, int]:
        """Return what is counted here, or was seen last, by the keys of `metrics.py`."""
        found = {
            "useful_us": self.useful_ns // 1000,
            "cpu_us": self.cpu_us,
            "resident_bytes": self.resident_bytes,
            "messages_taken": self._messages,
        }
        for layer, _, messages, size in self.lanes:
            for key, value in ((f"backlog_{layer}_messages", messages), (f"backlog_{layer}_bytes", size)):
                found[key] = found.get(key, 0) + value
        return found

    def histograms(self) -> dict[str, list[int]]:
        """Return each histogram's counts, and behind them its sum in microseconds, by the keys of `metrics.py`."""
        named = ((DELAY, self._delay), (AGE, self._age), (MATCH, self._match), (SUBSCRIBE_ACK, self._subscribe_ack))
        return {metric.values[""]: histogram.state for metric, histogram in named if histogram is not None}

    def report(self, gauges: dict[str, int], now_ms: int) -> Report:
        """Return what is to be reported of the interval that ends now, and begin the next."""
        self._reported_ms = now_ms
        match_ns, self._match_ns = self._match_ns, None
        spread = None if match_ns is None else (round(match_ns[0]), round(match_ns[1]))
        busiest = [] if self.busiest is None else self.busiest.top()
        return Report(now_ms, gauges | self.totals(), self.histograms(), self.lanes, spread, busiest, self.node)


HISTOGRAMS = {key: metric for metric in METRICS if metric.kind is Kind.HISTOGRAM for key in metric.values.values()}
"""By key."""
