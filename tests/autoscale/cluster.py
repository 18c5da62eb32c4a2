"""A cluster that is reckoned: the capacity model with coefficients of its own, noise and troubles, making signals."""

from __future__ import annotations

import math
import random

from autoscaler.capacity import CapacityModel
from autoscaler.costs import NAMES, PRIOR, Coefficients, Load
from autoscaler.plant import Queues, Resizing, delays
from autoscaler.signals import LAYERS, NodeSignals, Signals, SliceSignals, Spread
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, EXIT_POINT, MATCHER
from tests.autoscale.scenarios import Scenario

TYPICAL: Coefficients = {
    CONNECTION_POINT: {"f": 2e-5, "g": 2e-5, "w": 1e-4},
    ACCESS_POINT: {"f": 2e-5, "d": 1e-5, "w": 1e-4},
    MATCHER: {"a": 2e-5, "b": 3e-9, "w": 1e-4},
    EXIT_POINT: {"a": 0.0, "f": 5e-5, "c": 1e-5, "g": 2e-5, "w": 1e-4},
}
"""Slow processes, so that some thousand publications a second need several slices of each layer."""

FAST: Coefficients = {layer: {**PRIOR[layer], "w": 6e-4} for layer in LAYERS}
"""The README's machine: at 1,000 publications/s a matcher is a third busy, at 8,000 a good half."""

NOTIFICATIONS = 2.0
SUBSCRIBES = 20.0
START_S = (1.0, 5.0)
TRANSITION_S = (1.0, 6.0)
NOISE_S = 1.0
"""The noise of a scenario is that of one interval of so many seconds; longer ones average it."""


class Cluster:
    """Sizes, queues and what they report; `step` for one interval, `request` for an operation."""

    def __init__(self, seed: int, scenario: Scenario, sizes: dict[str, int]) -> None:
        self.source = random.Random(seed)
        self.scenario = scenario
        self._own = random.Random(seed + 1_000_000)
        costs = FAST if scenario.fast else TYPICAL
        truth = {
            layer: {name: costs[layer][name] * math.exp(self._own.gauss(0, 0.35)) for name in NAMES[layer]}
            for layer in LAYERS
        }
        self.truth = CapacityModel({layer: {k: max(v, 1e-12) for k, v in truth[layer].items()} for layer in LAYERS})
        self.resizing = Resizing(dict(sizes))
        self.queues = Queues()
        self.now_s = 0.0
        self.ended: str | None = None
        """What became of the operation that ended in the last interval."""
        self._clients = [1.0 / sizes[CONNECTION_POINT]] * sizes[CONNECTION_POINT]
        """Share of the clients that is at each connection point."""
        self._crowd = 1.0
        """How many slices want a core for each core that there is, 1 or more."""
        self._nodes: tuple[NodeSignals, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        return self.resizing.sizes

    def load(self, at_s: float) -> Load:
        """Return the load at a time, without noise."""
        return Load(self.scenario.rate(self._own, at_s), self.scenario.subscriptions(self._own, at_s), NOTIFICATIONS)

    def factor(self, layer: str, slot: int, count: int, at_s: float) -> float:
        """Return how much more time than the average a slot takes for its work."""
        hot = self.scenario.skew if slot == 0 else (count - self.scenario.skew) / max(1, count - 1)
        hot = 1.0 if count == 1 else max(hot, 0.1)
        slow = self.scenario.slow if slot % 3 == 2 else 1.0
        return hot * slow / (1 - self.scenario.steal(self._own, at_s))

    def worst(self, layer: str, count: int, at_s: float) -> float:
        """Return the factor of the slot that has most to do."""
        return max(self.factor(layer, slot, count, at_s) for slot in range(count))

    def _burden(self, layer: str, slot: int) -> float:
        """Return `factor` at the present sizes and moment, and what clients that stay and a lack of cores do to it."""
        count = self.sizes[layer]
        factor = self.factor(layer, slot, count, self.now_s) * self._crowd
        if layer == CONNECTION_POINT and self.scenario.stay is not None:
            factor *= max(self._clients[slot] * count, 1e-6)
        return factor

    def _connect(self, seconds: float) -> None:
        """Some clients connect anew, to any connection point; all of one that has gone do."""
        count = self.sizes[CONNECTION_POINT]
        there = (self._clients + [0.0] * count)[:count]
        lasting = 1.0 - min(1.0, (self.scenario.stay or 0.0) * seconds)
        kept = [share * lasting for share in there]
        self._clients = [share + (1.0 - sum(kept)) / count for share in kept]

    def _compete(self, load: Load) -> None:
        """Find out how many slices want a core at once, if they had one each."""
        self._crowd = 1.0
        if self.scenario.cores is None:
            return
        wanted, rate = 0.0, load.publications_per_s
        for layer in LAYERS:
            work = self.truth.seconds(layer, self.sizes, load) * rate
            full = 1.0 if self.queues.waiting[layer] >= 1 else min(1.0, work)
            wanted += self.sizes[layer] * full
            rate = min(rate, self.truth.capacity(layer, self.sizes, load))
        cores, clients = self.scenario.cores, self.scenario.clients
        others = load.publications_per_s * (clients or 0.0)
        self._crowd = max(1.0, (wanted + others) / cores)
        if clients is not None:
            busy = min(cores, wanted + others)
            self._nodes = (NodeSignals(host="10.0.0.1", cores=cores, busy=busy, slices=wanted / self._crowd),)

    def request(self, targets: dict[str, int]) -> bool:
        """Ask for sizes; False if an operation is under way."""
        seconds = self.source.uniform(*START_S) + self.source.uniform(*TRANSITION_S)
        return self.resizing.begin(self.now_s, targets, seconds)

    def step(self, seconds: float) -> Signals:
        """Let an interval pass and return what was reported of it."""
        running = self.resizing.running
        self.now_s += seconds
        over = self.resizing.running and self.now_s >= self.resizing.ends_s
        if over and self.source.random() < self.scenario.abort:
            self.resizing.targets = {}
            self.resizing.advance(self.now_s)
            self.ended = "aborted"
        else:
            self.ended = "done" if self.resizing.advance(self.now_s) else None
        noise = self.scenario.noise * math.sqrt(NOISE_S / seconds)
        load = self.load(self.now_s)
        load = load._replace(publications_per_s=load.publications_per_s * max(0.0, self.source.gauss(1, noise)))
        sizes = self.sizes
        self._connect(seconds)
        self._compete(load)
        worst = {layer: max(self._burden(layer, slot) for slot in range(sizes[layer])) for layer in LAYERS}
        capacities = {layer: self.truth.capacity(layer, sizes, load) / worst[layer] for layer in LAYERS}
        passed = self.queues.step(seconds, load.publications_per_s, capacities)
        uses = [passed.through[layer] / capacities[layer] for layer in LAYERS]
        out = passed.through[EXIT_POINT]
        silent = self.scenario.silent(self.now_s)
        slices = []
        for layer in LAYERS:
            rate = passed.through[layer]
            for slot in range(sizes[layer]):
                if layer in silent or self.source.random() < self.scenario.silence:
                    slices.append(SliceSignals(layer=layer, slot=slot))
                else:
                    slices.append(self._slice(layer, slot, load, rate, noise))
        return Signals(
            interval_s=seconds,
            epoch=self.resizing.epoch,
            sizes=dict(sizes),
            transition=running,
            placeable=None if self.scenario.room is None else max(0, self.scenario.room - sum(sizes.values())),
            cores=self.scenario.cores,
            nodes=self._nodes,
            publications_per_s=passed.through[CONNECTION_POINT],
            notifications_per_s=out * NOTIFICATIONS,
            delay=delays(uses, passed.wait_s, round(out * NOTIFICATIONS * seconds)),
            subscribe_ack=delays(uses, passed.wait_s, round(SUBSCRIBES * seconds)),
            placement_s=self.resizing.placement_s,
            slices=tuple(slices),
        )

    def _slice(self, layer: str, slot: int, load: Load, rate: float, noise: float) -> SliceSignals:
        sizes, count = self.sizes, self.sizes[layer]
        factor = self._burden(layer, slot)
        then = load._replace(publications_per_s=rate)
        work = self.truth.seconds(layer, sizes, then) * rate * factor
        woken = min(self.truth.busy(layer, sizes, then) - work / factor, max(0.0, 0.9 * (1 - work)))
        share = min(1.0, max(0.0, (work + woken) * self.source.gauss(1, noise)))
        match = None
        if layer == MATCHER:
            each = 1e3 * self.truth.seconds(layer, sizes, then) * factor
            match = Spread(count=max(1, round(rate)), min=0.7 * each, max=2.0 * each, mean=each)
        return SliceSignals(
            layer=layer,
            slot=slot,
            useful_share=share,
            backlog_messages=round(self.queues.waiting[layer] / count),
            backlog_bytes=round(self.queues.waiting[layer] / count * 200),
            match_ms=match,
            publications_per_s=rate if layer == MATCHER else rate / count,
            notifications_per_s=rate * NOTIFICATIONS / count if layer in (CONNECTION_POINT, EXIT_POINT) else None,
            subscriptions=round(load.subscriptions / count) if layer == MATCHER else None,
            connections=1000 // count if layer == CONNECTION_POINT else None,
            rss_bytes=200_000_000,
        )
