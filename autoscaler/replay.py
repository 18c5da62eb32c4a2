"""What a policy would have done on recorded signals, and what would have come of it.

The recording is gone through twice. First a capacity model is fitted to all of it: that is the plant. Then the policy's
real decider and controller get one interval after the other, in sizes of their own:

    measured    the policy has the sizes that were recorded: it gets what was recorded, word for word
    predicted   it has others: useful time, backlog and match time are the model's for the recorded load at its sizes,
                times what the model was off by at the recorded sizes in the same interval. Delays are those of the last
                interval in which the recorded cluster had time to spare, later by what the model says of queues and
                of what waits.

What that cannot know: publishers that were held back by a cluster that was too small have recorded a lower rate than
they wanted (`saturated_s` says for how long that may have been so), and a policy's cluster that is too small lets wait
what a live one would hold back (`waited_s`); what a transition itself costs; and whether a size that was never had is
what the model thinks (`error`). The policy's own model learns as it goes, as it would have live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import msgspec

from autoscaler.controller import Controller
from autoscaler.costs import Load
from autoscaler.decider import Decider
from autoscaler.decision import Forecast
from autoscaler.fitted import FittedCapacity
from autoscaler.forecast import PolicyForecast
from autoscaler.plant import WORK_MS, Passed, Queues, Resizing, delays, later, spread_over
from autoscaler.policy import ScalingPolicy
from autoscaler.scorecard import Scorecard
from autoscaler.signals import LAYERS, Histogram, NodeSignals, Signals, SliceSignals, Spread, quantile
from cluster.messages import CONNECTION_POINT, EXIT_POINT, MATCHER

OPERATION_S: Final = 5.0
"""How long an operation takes where the recording has none."""

SPARE: Final = 0.75
"""With its busiest slice no busier than this a cluster has time to spare: its delays are those of an idle queue."""

SATURATED: Final = 0.95
OFF: Final = (0.5, 2.0)
"""What the model may be off by in an interval; beyond that it is taken for something else."""

WAIT_S: Final = 1.0
"""A live cluster would have begun to hold publishers back by then."""

POINTS: Final = 4000
"""Points of a trace; of longer recordings every second, third, ... interval is kept."""

Intervals = Iterable[tuple[float, Signals]]


@dataclass(frozen=True)
class Point:
    """One moment, for plots. p99_ms: None where nothing was delivered."""

    at_s: float
    rate: float | None
    sizes: dict[str, int]
    p99_ms: float | None
    predicted: bool


@dataclass
class Trace:
    """Moments of a run, in the order of time."""

    name: str
    points: list[Point] = field(default_factory=list)


@dataclass
class Fit:
    """The plant, and what is known of the recording."""

    capacity: FittedCapacity
    first_s: float
    last_s: float
    intervals: int
    sizes: dict[str, int]
    operation_s: float
    operations: int
    saturated_s: float
    delays_s: float
    """Seconds of which the recording has delays."""

    error: float
    """How far off the model may be at the recorded sizes: the worst layer's standard deviation / prediction."""

    words: str


@dataclass
class Run:
    """What one policy (or the recorded cluster itself) came to."""

    name: str
    card: Scorecard
    trace: Trace
    measured_s: float = 0.0
    predicted_s: float = 0.0
    waited_s: float = 0.0
    """Seconds of those predicted in which publications waited for WAIT_S or longer."""


def fit(intervals: Intervals) -> Fit | None:
    """Go through a recording and learn from it; None if there is nothing in it."""
    capacity = FittedCapacity()
    first_s = last_s = saturated_s = delays_s = 0.0
    count = 0
    sizes: dict[str, int] = {}
    placements = []
    last: Signals | None = None
    for at_s, signals in intervals:
        if not count:
            first_s, sizes = at_s, dict(signals.sizes)
        count, last_s, last = count + 1, at_s, signals if signals.publications_per_s else last
        capacity.observe(at_s, signals)
        if signals.placement_s is not None:
            placements.append(signals.placement_s)
        busiest = max((one.useful_share or 0.0 for one in signals.slices), default=0.0)
        saturated_s += signals.interval_s * (busiest >= SATURATED)
        delays_s += signals.interval_s * (signals.delay is not None)
    if not count:
        return None
    error, words = math.inf, "nothing was learned: no interval has a rate, subscriptions and useful shares"
    if last is not None:
        load = capacity.load(last.publications_per_s or 1.0, last.subscriptions or 0)
        found = [capacity.model.confidence(layer, last.sizes, load) for layer in LAYERS if capacity.model.seen(layer)]
        if found:
            worst = max(found, key=lambda one: one.error)
            error, words = worst.error, worst.words
    return Fit(
        capacity,
        first_s,
        last_s,
        count,
        sizes,
        median(placements) if placements else OPERATION_S,
        len(placements),
        saturated_s,
        delays_s,
        error,
        words,
    )


def recorded(intervals: Intervals, plant: Fit, yardstick: ScalingPolicy) -> Run:
    """Return what the recorded cluster itself came to."""
    run = Run("as recorded", Scorecard(yardstick), Trace("as recorded"))
    stride = -(-plant.intervals // POINTS)
    for place, (at_s, signals) in enumerate(intervals):
        run.card.add(at_s, signals.interval_s, signals.sizes, signals.delay, signals.subscribe_ack)
        run.measured_s += signals.interval_s
        if place % stride == 0:
            run.trace.points.append(_point(at_s, signals, False))
    run.card.finish()
    return run


def replay(
    policy: ScalingPolicy,
    intervals: Intervals,
    plant: Fit,
    yardstick: ScalingPolicy,
    advance: Callable[[], None] = lambda: None,
) -> Run:
    """Return what a policy would have come to. A mode or a pause that it has does not count: it acts.

    yardstick: whose objectives and prices it is judged by. advance: called after each interval.
    """
    forecast: Forecast = PolicyForecast(policy.forecast, policy.timezone, policy.look_back_period_s)
    controller = Controller(Decider(policy, FittedCapacity(policy.capacity.known), forecast))
    controller.set_mode("auto")
    controller.resume()
    run = Run(policy.metadata.name, Scorecard(yardstick), Trace(policy.metadata.name))
    cluster = _Cluster(plant)
    stride = -(-plant.intervals // POINTS)
    for place, (at_s, signals) in enumerate(intervals):
        shown, predicted = cluster.step(at_s, signals)
        if cluster.ended:
            controller.ended("done")
        for request in controller.tick(at_s, shown):
            if cluster.resizing.begin(at_s, request.sizes, plant.operation_s):
                controller.accepted(cluster.resizing.epoch)
            else:
                controller.refused("another operation is under way")
        run.card.add(at_s, signals.interval_s, shown.sizes, shown.delay, shown.subscribe_ack)
        if predicted:
            run.predicted_s += signals.interval_s
            run.waited_s += signals.interval_s * (cluster.wait_s >= WAIT_S)
        else:
            run.measured_s += signals.interval_s
        if place % stride == 0:
            run.trace.points.append(_point(at_s, shown, predicted))
        advance()
    run.card.finish()
    return run


def _point(at_s: float, signals: Signals, predicted: bool) -> Point:
    p99 = None if signals.delay is None else quantile(signals.delay, 0.99)
    return Point(at_s, signals.publications_per_s, dict(signals.sizes), p99, predicted)


class _Cluster:
    """The recorded load on a cluster of other sizes."""

    def __init__(self, plant: Fit) -> None:
        self._model = plant.capacity.model
        self.resizing = Resizing(dict(plant.sizes))
        self.ended = False
        self.wait_s = 0.0
        self._queues = Queues()
        self._off = dict.fromkeys(LAYERS, 1.0)
        self._healthy: dict[str, Histogram] = {}
        self._spare_uses = dict.fromkeys(LAYERS, 0.0)
        self._subscriptions = 0

    def step(self, at_s: float, signals: Signals) -> tuple[Signals, bool]:
        """Return the interval as the policy would have seen it, and whether that is a prediction."""
        running = self.resizing.running
        self.ended = self.resizing.advance(at_s)
        if signals.subscriptions is not None:
            self._subscriptions = signals.subscriptions
        self._learn(signals)
        idle = all(waiting < 1 for waiting in self._queues.waiting.values())
        if self.resizing.sizes == signals.sizes and idle and not running and not signals.transition:
            self._queues = Queues()
            return msgspec.structs.replace(signals, epoch=self.resizing.epoch), False
        return self._predict(signals, running), True

    def _load(self, signals: Signals) -> Load:
        rate = signals.publications_per_s or 0.0
        notifications = signals.notifications_per_s or 0.0
        return Load(rate, self._subscriptions, notifications / rate if rate else 0.0)

    def _learn(self, signals: Signals) -> None:
        """Note what the model is off by, and the delays if there was time to spare."""
        if signals.transition or not signals.publications_per_s:
            return
        load = self._load(signals)
        busiest = {}
        for layer in LAYERS:
            known = [one.useful_share for one in signals.of(layer) if one.useful_share is not None]
            if len(known) < signals.sizes[layer]:
                continue
            busiest[layer] = max(known)
            mean, expected = sum(known) / len(known), self._model.busy(layer, signals.sizes, load)
            if max(known) < SATURATED and expected > 0:
                self._off[layer] = min(max(mean / expected, OFF[0]), OFF[1])
        if len(busiest) == len(LAYERS) and max(busiest.values()) <= SPARE:
            self._spare_uses = {layer: self._model.utilisation(layer, signals.sizes, load) for layer in LAYERS}
            for name, counts in (("delay", signals.delay), ("subscribe_ack", signals.subscribe_ack)):
                if counts is not None and any(counts):
                    self._healthy[name] = counts

    def _predict(self, signals: Signals, running: bool) -> Signals:
        sizes, load, seconds = dict(self.resizing.sizes), self._load(signals), signals.interval_s
        capacities = {layer: self._model.capacity(layer, sizes, load) / self._off[layer] for layer in LAYERS}
        passed = self._queues.step(seconds, load.publications_per_s, capacities)
        self.wait_s = passed.wait_s[1]
        uses = {layer: min(1.0, passed.through[layer] / capacities[layer]) for layer in LAYERS}
        out = passed.through[EXIT_POINT] * load.notifications_per_publication
        known = signals.publications_per_s is not None
        slices = tuple(one for layer in LAYERS for one in self._slices(layer, signals, load, passed.through[layer]))
        return Signals(
            interval_s=seconds,
            epoch=self.resizing.epoch,
            sizes=sizes,
            transition=running,
            placeable=None if signals.placeable is None else self._room(signals),
            cores=signals.cores,
            nodes=_nodes(signals, slices),
            publications_per_s=passed.through[CONNECTION_POINT] if known else None,
            notifications_per_s=out if known and signals.notifications_per_s is not None else None,
            delay=self._delays("delay", signals.delay, uses, passed, round(out * seconds)),
            subscribe_ack=self._delays("subscribe_ack", signals.subscribe_ack, uses, passed, None),
            placement_s=self.resizing.placement_s,
            slices=slices,
        )

    def _room(self, signals: Signals) -> int:
        """What was free, and what the recorded cluster had and this one has not."""
        more = sum(signals.sizes.values()) - sum(self.resizing.sizes.values())
        return max(0, (signals.placeable or 0) + more)

    def _slices(self, layer: str, signals: Signals, load: Load, rate: float) -> list[SliceSignals]:
        sizes, before = self.resizing.sizes, signals.of(layer)
        count, then = sizes[layer], load._replace(publications_per_s=rate)
        silent = sum(1 for one in before if one.useful_share is None)
        silent = count if before and silent == len(before) else min(silent, count - 1)
        work = self._model.seconds(layer, sizes, then) * rate
        mean = self._model.busy(layer, sizes, then) * self._off[layer]
        # Wake-ups make room for work: a slice that could not do without them is not for that reason full.
        mean = min(mean, max(work * self._off[layer], 0.9))
        busiest = mean * self._model.skew(layer, count)
        others = mean if count == 1 else max(0.0, (mean * count - busiest) / (count - 1))
        ratio = self._slower(layer, signals, load)
        found = []
        for slot in range(count):
            if slot >= count - silent:
                found.append(SliceSignals(layer=layer, slot=slot))
                continue
            waiting = self._queues.waiting[layer] / count
            found.append(
                SliceSignals(
                    layer=layer,
                    slot=slot,
                    useful_share=min(1.0, busiest if slot == 0 else others),
                    backlog_messages=round(waiting),
                    backlog_bytes=round(waiting * _bytes(before)),
                    match_ms=_together(before, ratio),
                    publications_per_s=rate if layer == MATCHER else rate / count,
                    subscriptions=self._subscriptions // count if layer == MATCHER else None,
                    connections=_shared(before, "connections", count),
                    rss_bytes=_shared(before, "rss_bytes", len(before) or 1),
                )
            )
        return found

    def _slower(self, layer: str, signals: Signals, load: Load) -> float:
        """Return a publication's work at these sizes / at the recorded ones."""
        recorded = self._model.seconds(layer, signals.sizes, load)
        return self._model.seconds(layer, self.resizing.sizes, load) / recorded if recorded > 0 else 1.0

    def _delays(
        self, name: str, counts: Histogram | None, uses: dict[str, float], passed: Passed, values: int | None
    ) -> Histogram | None:
        if counts is None:
            return None
        values = sum(counts) if values is None else values
        healthy = self._healthy.get(name)
        if healthy is None:
            return delays(list(uses.values()), passed.wait_s, values)
        extra = 0.0
        for layer, use in uses.items():
            then = WORK_MS / (1 - min(use, 0.999)) - WORK_MS / (1 - min(self._spare_uses[layer], 0.999))
            extra += max(0.0, then)
        return spread_over(values, later(healthy, passed.wait_s, extra))


def _nodes(signals: Signals, slices: Iterable[SliceSignals]) -> tuple[NodeSignals, ...]:
    """Return the nodes as these slices, instead of those that were recorded, would have kept them busy.

    What others took stays; what slices take more or less is shared among the nodes by their cores.
    """
    more = sum(one.useful_share or 0.0 for one in slices) - sum(one.useful_share or 0.0 for one in signals.slices)
    cores = sum(node.cores for node in signals.nodes if node.busy is not None)

    def then(node: NodeSignals) -> NodeSignals:
        if node.busy is None:
            return node
        share = more * node.cores / cores
        busy = min(node.cores, max(0.0, node.busy + share))
        return msgspec.structs.replace(node, busy=busy, slices=min(busy, max(0.0, (node.slices or 0.0) + share)))

    return tuple(then(node) for node in signals.nodes)


def _together(slices: Iterable[SliceSignals], ratio: float) -> Spread | None:
    known = [one.match_ms for one in slices if one.match_ms is not None and one.match_ms.count]
    if not known:
        return None
    count = sum(one.count for one in known)
    mean = sum(one.mean * one.count for one in known) / count
    least, most = min(one.min for one in known), max(one.max for one in known)
    return Spread(count // len(known), least * ratio, most * ratio, mean * ratio)


def _bytes(slices: Iterable[SliceSignals]) -> float:
    """Return the bytes of a message that waits, as far as any did."""
    messages = sum(one.backlog_messages or 0 for one in slices)
    return sum(one.backlog_bytes or 0 for one in slices) / messages if messages else 0.0


def _shared(slices: Iterable[SliceSignals], name: str, count: int) -> int | None:
    known = [value for one in slices if (value := getattr(one, name)) is not None]
    return round(sum(known) / count) if known else None
