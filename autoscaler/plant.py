"""What a cluster would do at other sizes, by the capacity model: for closed-loop tests and for the replay of policies.

`Queues` are the layers one behind the other, as fluid: what comes faster than the slowest slice of a layer works it off
waits there, and the layers behind see less. `Resizing` is an operation: processes take their time to start, then the
transition does, during which the old sizes serve; one at a time.

What it leaves out: single publications (delays near saturation are an estimate), the back-pressure that would slow
publishers down, and what a transition itself costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.signals import DELAY_BOUNDS_MS, LAYERS, Histogram

NEARLY_ALL: Final = 0.999
"""Utilisation that queues are reckoned with at most; what is above it waits as a backlog."""

WORK_MS: Final = 0.5
"""Mean time of an idle layer, in ms: a wake-up and its turn on a core (README, delay at 1,000 publications/s)."""

BOUNDS: Final = np.array(DELAY_BOUNDS_MS)

Floats = NDArray[np.float64]

LEAST_CAPACITY: Final = 1e-12


@dataclass
class Queues:
    """Publications that wait before each layer."""

    waiting: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LAYERS, 0.0))

    def step(self, seconds: float, rate: float, capacities: Mapping[str, float]) -> Passed:
        """Let `rate` publications a second come for some seconds, at each layer's capacity (publications a second)."""
        through, waits = {}, {}
        for layer in LAYERS:
            capacity = max(capacities[layer], LEAST_CAPACITY)
            before = self.waiting[layer]
            done = min(before + rate * seconds, capacity * seconds)
            after = max(0.0, before + rate * seconds - done)
            self.waiting[layer] = after
            waits[layer] = (before / capacity, after / capacity)
            rate = through[layer] = done / seconds
        return Passed(through, waits)


@dataclass(frozen=True)
class Passed:
    """One step: publications a second that each layer did, and its wait (seconds) at the beginning and at the end."""

    through: dict[str, float]
    waits: dict[str, tuple[float, float]]

    @property
    def wait_s(self) -> tuple[float, float]:
        """The wait of all layers together, at the beginning and at the end."""
        return sum(begin for begin, _ in self.waits.values()), sum(end for _, end in self.waits.values())


@dataclass
class Resizing:
    """The sizes, and the change of them that is under way."""

    sizes: dict[str, int]
    epoch: int = 1
    targets: dict[str, int] = field(default_factory=dict)
    began_s: float = 0.0
    ends_s: float = -math.inf
    placement_s: float | None = None

    @property
    def running(self) -> bool:
        """An operation is under way."""
        return bool(self.targets)

    def begin(self, now_s: float, targets: Mapping[str, int], seconds: float) -> bool:
        """Start to go to `targets`, which takes so long; False (and nothing done) while another one is under way."""
        changes = {layer: count for layer, count in targets.items() if count != self.sizes[layer]}
        if self.running or not changes:
            return False
        self.targets, self.began_s, self.ends_s = changes, now_s, now_s + seconds
        return True

    def advance(self, now_s: float) -> bool:
        """Let time pass; True if an operation ended, whose time is then `placement_s` until the next call."""
        self.placement_s = None
        if not self.targets or now_s < self.ends_s:
            return False
        self.sizes.update(self.targets)
        self.epoch += 1
        self.placement_s = self.ends_s - self.began_s
        self.targets = {}
        return True


def delays(utilisations: Sequence[float], wait_s: tuple[float, float], count: int) -> Histogram:
    """Return the delays of `count` notifications, as counts by bucket.

    Each layer adds WORK_MS / (1 - utilisation) on average (an M/M/1 queue's shape), together exponential; what waits as
    a backlog is added to all, growing or shrinking evenly from the begin to the end of the interval.
    """
    mean = sum(WORK_MS / (1 - min(use, NEARLY_ALL)) for use in utilisations)
    late = np.maximum(BOUNDS[:, None] - _even(wait_s)[None, :], 0.0)
    return spread_over(count, (1 - np.exp(-late / mean)).mean(axis=1).tolist())


def spread_over(count: int, below: Sequence[float]) -> Histogram:
    """Return `count` values as a histogram, given the share of them up to each bound."""
    counts, done = [], 0
    for share in below:
        upto = max(done, min(count, round(count * share)))
        counts.append(upto - done)
        done = upto
    return (*counts, count - done)


def later(counts: Histogram, wait_s: tuple[float, float], extra_ms: float) -> list[float]:
    """Return the share of values up to each bound when each comes later: by a wait that goes evenly from wait_s[0] to
    wait_s[1], and by an exponential time of mean extra_ms. Within a bucket values are taken as spread evenly.
    """
    parts = 16 if extra_ms > 0.1 else 1
    times = -extra_ms * np.log(1 - (np.arange(parts) + 0.5) / parts)
    starts = (_even(wait_s)[:, None] + times[None, :]).ravel()
    shares = np.concatenate(([0.0], np.cumsum(counts[:-1]) / max(sum(counts), 1)))
    upto = np.interp(BOUNDS[:, None] - starts[None, :], np.concatenate(([0.0], BOUNDS)), shares, left=0.0)
    return [float(share) for share in upto.mean(axis=1)]


def _even(wait_s: tuple[float, float]) -> Floats:
    """Return waits in ms that go evenly from the one to the other."""
    begin, end = (1e3 * wait for wait in wait_s)
    parts = 8 if abs(end - begin) > 1 else 1
    return begin + (end - begin) * (np.arange(parts) + 0.5) / parts
