"""How much the cluster can carry at any size, learned from how busy its slices were at the sizes that it has had.

The model is that of `costs.py`: a few terms a layer, whose coefficients `least_squares.py` fits to useful time.
From them follow, for a size that was never tried as well:

    utilisation    the busiest slice's useful share of its time, at a load
    capacity       the publications a second at which a layer's busiest slice reaches a given utilisation; the cluster's
                   is that of its weakest layer, or of the cores that all slices share if the machine has fewer
    need           the smallest count of a layer that keeps to a utilisation, or why there is none
    best_matchers  from which count on more matchers make it worse: each publication visits all, so access points and
                   exit points pay for each

It sizes by useful time, not by delay: near saturation delay grows too steeply to size by (DS2, OSDI 2018, says the same
of observed rates). What it cannot know it says: `confidence` tells how many observations at which sizes, and how far
off a prediction may be.

Slices of a layer are not equally busy. How much busier the busiest is than the average is followed on its own (`skew`)
and taken to stay as it is, which holds for a hot slot and overstates what a lopsided two-slice layer does at eight.

Source: t(m) = a + b*S/m and the shape of the speed-up follow the E-SilboPS paper's Figures 7 to 12 (Sensors 2017).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.costs import FLOOR, NAMES, SPREAD, WAKE_SPREAD, Coefficients, Load, Sizes, prior, row, wakes
from autoscaler.least_squares import LeastSquares
from autoscaler.signals import LAYERS, Signals
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, EXIT_POINT, MATCHER

NOISE_FLOOR = 0.01
NOISE_SHARE = 0.05
"""A second's useful share is taken to be off by a hundredth and by a twentieth of itself (standard deviation)."""

LEAST_RATE = 1.0
"""Publications a second below which nothing is learned: what the process does then is not for publications."""

SATURATED = 0.97
"""A slice this busy has more to do than it can: its useful share no longer says what the load costs."""

SKEW_SHARE = 0.02
"""Weight of one observation in the running mean of busiest / average: it follows over a minute or two."""

MATCHERS_PER_EXIT_POINT = 4
"""The E-SilboPS paper's rule of thumb (6, Figure 11): one exit point for every four matchers."""

COUNT_MAX = 2047
"""Slots of a layer (`cluster.wish.MAX_SLOTS`)."""

VAGUE = 2.0
"""Beyond this share of itself a prediction's error is no figure."""

PLURAL = {
    CONNECTION_POINT: "connection points",
    ACCESS_POINT: "access points",
    MATCHER: "matchers",
    EXIT_POINT: "exit points",
}


class Observation(NamedTuple):
    """One interval: average and greatest useful share (0 to 1) of the layers that reported whole."""

    sizes: Sizes
    load: Load
    mean: Mapping[str, float]
    busiest: Mapping[str, float]


@dataclass(frozen=True)
class Need:
    """How many slices it takes; count is None if no number will do. reason: a sentence either way."""

    count: int | None
    reason: str


class Confidence(NamedTuple):
    """What a prediction rests on.

    observations, sizes: how many, and at how many different sizes. error: standard deviation / prediction.
    words: the same as a sentence.
    """

    observations: int
    sizes: int
    error: float
    words: str


def observation(signals: Signals) -> Observation | None:
    """Return what the signals of an interval teach, None if that is nothing.

    An interval with a transition, or without a rate or a count of subscriptions, teaches nothing. A layer of which a
    slice did not report or was saturated is left out.
    """
    rate, subscriptions = signals.publications_per_s, signals.subscriptions
    if signals.transition or rate is None or subscriptions is None or rate < LEAST_RATE:
        return None
    mean, busiest = {}, {}
    for layer in LAYERS:
        known = [one.useful_share for one in signals.of(layer) if one.useful_share is not None]
        if len(known) == signals.sizes[layer] and known and max(known) < SATURATED:
            mean[layer] = sum(known) / len(known)
            busiest[layer] = max(known)
    notifications = signals.notifications_per_s
    load = Load(rate, subscriptions, 0.0 if notifications is None else notifications / rate)
    return Observation(dict(signals.sizes), load, mean, busiest) if mean else None


class CapacityModel:
    """Learns by `observe`, answers by everything else.

    first: coefficients before anything is measured. cores: what all slices share, None if each has its own.
    told: the first coefficients take a summary of interest into account.
    """

    def __init__(self, first: Coefficients | None = None, *, cores: float | None = None, told: bool = False) -> None:
        first = first or prior()
        self.cores = cores
        self.told = told
        self.observations = 0
        self._fits = {
            layer: LeastSquares(
                [first[layer][name] for name in names],
                [WAKE_SPREAD if name == "w" else SPREAD for name in names],
                [0.0 if name == "w" else FLOOR for name in names],
            )
            for layer, names in NAMES.items()
        }
        self._skews = dict.fromkeys(LAYERS, 1.0)
        self._misfits = dict.fromkeys(LAYERS, 1.0)

    def observe(self, seen: Observation) -> None:
        """Learn from one interval."""
        self.observations += 1
        key = tuple(seen.sizes[layer] for layer in LAYERS)
        rate = seen.load.publications_per_s
        for layer, share in seen.mean.items():
            terms = [rate * term for term in row(layer, seen.sizes, seen.load).terms]
            noise = NOISE_FLOOR + NOISE_SHARE * share
            fit = self._fits[layer]
            if key in fit.cells:
                error = (share - self.busy(layer, seen.sizes, seen.load)) / noise
                self._misfits[layer] += SKEW_SHARE * (min(error**2, 100.0) - self._misfits[layer])
            fit.add(key, [*terms, wakes(rate)], share, noise)
            count = seen.sizes[layer]
            if count > 1 and share > NOISE_FLOOR:
                ratio = min(seen.busiest[layer] / share, float(count))
                self._skews[layer] += SKEW_SHARE * (ratio - self._skews[layer])

    def coefficients(self) -> Coefficients:
        """Return what is believed now, in seconds."""
        return {layer: dict(zip(NAMES[layer], self._fits[layer].solve(), strict=True)) for layer in LAYERS}

    def skew(self, layer: str, count: int) -> float:
        """Return how much busier the busiest of `count` slices is than their average, 1 or more."""
        return max(1.0, self._skews[layer]) if count > 1 else 1.0

    # Of a size

    def busy(self, layer: str, sizes: Sizes, load: Load) -> float:
        """Return the average slice's useful share, wake-ups included: what its report would say. It may pass 1."""
        values = self._fits[layer].solve()
        return self.seconds(layer, sizes, load) * load.publications_per_s + wakes(load.publications_per_s) * values[-1]

    def seconds(self, layer: str, sizes: Sizes, load: Load) -> float:
        """Return an average slice's useful time for each publication of the cluster, without wake-ups."""
        terms = row(layer, sizes, load).terms
        return sum(term * value for term, value in zip(terms, self._fits[layer].solve(), strict=False))

    def utilisation(self, layer: str, sizes: Sizes, load: Load) -> float:
        """Return the share of its time that the busiest slice needs, without the wake-ups that make room."""
        return self.skew(layer, sizes[layer]) * self.seconds(layer, sizes, load) * load.publications_per_s

    def capacity(self, layer: str, sizes: Sizes, load: Load, target: float = 1.0) -> float:
        """Return the publications a second at which the layer's busiest slice reaches a utilisation."""
        each = self.skew(layer, sizes[layer]) * self.seconds(layer, sizes, load)
        return target / each if each > 0 else math.inf

    def machine_capacity(self, sizes: Sizes, load: Load, target: float = 1.0) -> float:
        """Return the publications a second at which all slices together use up the cores that they share."""
        if self.cores is None:
            return math.inf
        each = sum(sizes[layer] * self.seconds(layer, sizes, load) for layer in LAYERS)
        return target * self.cores / each if each > 0 else math.inf

    def whole(self, sizes: Sizes, load: Load, target: float = 1.0) -> tuple[float, str]:
        """Return the cluster's capacity, and the layer that sets it (or "cores")."""
        found = {layer: self.capacity(layer, sizes, load, target) for layer in LAYERS}
        found["cores"] = self.machine_capacity(sizes, load, target)
        weakest = min(found, key=lambda name: found[name])
        return found[weakest], weakest

    # Of a load

    def need(self, layer: str, sizes: Sizes, load: Load, target: float, count_max: int = COUNT_MAX) -> Need:
        """Return the smallest count of a layer that keeps its busiest slice to `target` (0 to 1).

        sizes: of the other layers. An exit point is never offered below one for every four matchers.
        """
        one = row(layer, {**sizes, layer: 1}, load)
        values = self._fits[layer].solve()[:-1]
        rate, skew = load.publications_per_s, self.skew(layer, 2)
        fixed = rate * sum(term * value for term, value in zip(one.fixed, values, strict=True))
        shared = rate * sum(term * value for term, value in zip(one.shared, values, strict=True))
        floor = exit_point_floor(sizes[MATCHER]) if layer == EXIT_POINT else 1
        names = PLURAL[layer]
        if fixed + shared <= target:
            count, why = 1, f"one takes {fixed + shared:.0%} of its time for {rate:,.0f} publications/s"
        elif skew * fixed >= target:
            each = fixed / rate * 1e6
            return Need(
                None,
                f"no number of {names} keeps to {target:.0%}: at {rate:,.0f} publications/s the {each:,.1f} us that "
                f"each slice spends on each publication, however many share the rest, are {skew * fixed:.0%}; "
                "more of them cannot help, fewer publications or larger batches can",
            )
        else:
            count = max(2, math.ceil(skew * shared / (target - skew * fixed) - 1e-9))
            then = skew * (fixed + shared / count)
            why = f"{count} keep the busiest at {then:.0%} for {rate:,.0f} publications/s, {target:.0%} is the target"
        if count < floor:
            count, why = floor, f"one for every {MATCHERS_PER_EXIT_POINT} of {sizes[MATCHER]} matchers"
        if count > count_max:
            return Need(None, f"it would take {count} {names}, {count_max} are allowed")
        return Need(count, why)

    def plan(
        self, load: Load, targets: Mapping[str, float] | float, count_max: Mapping[str, int] | None = None
    ) -> dict[str, Need]:
        """Return what each layer needs for a load; a layer that cannot do it has the count None.

        Matchers first, as access points and exit points pay for each of them. targets: for all layers, or of each.
        """
        limits = count_max or {}
        sizes = dict.fromkeys(LAYERS, 1)
        needs = {}
        for layer in (MATCHER, ACCESS_POINT, EXIT_POINT, CONNECTION_POINT):
            limit = limits.get(layer, COUNT_MAX)
            target = targets if isinstance(targets, float) else targets[layer]
            needs[layer] = self.need(layer, sizes, load, target, limit)
            sizes[layer] = needs[layer].count or limit
        return needs

    def best_matchers(self, sizes: Sizes, load: Load, count_max: int = 64) -> Need:
        """Return the count of matchers with the greatest capacity, the others as they are; the least of equals."""
        found = {count: self.whole({**sizes, MATCHER: count}, load) for count in range(1, count_max + 1)}
        best = min(found, key=lambda count: (-round(found[count][0], 6), count))
        capacity = found[best][0]
        if best == count_max:
            return Need(best, f"up to {count_max} each matcher adds capacity")
        after = found[best + 1][1]
        limit = "the cores that all slices share" if after == "cores" else f"the {PLURAL[after]}"
        return Need(
            best,
            f"{best} carry {capacity:,.0f} publications/s; with more, {limit} would carry less or no more than that",
        )

    def quickest_matchers(self, sizes: Sizes, load: Load) -> float:
        """Return m* = sqrt(b*S / (c/k + d/p)), where a publication's way through idle layers takes least time."""
        values = self.coefficients()
        each = values[EXIT_POINT]["c"] / sizes[EXIT_POINT] + values[ACCESS_POINT]["d"] / sizes[ACCESS_POINT]
        return math.sqrt(values[MATCHER]["b"] * load.subscriptions / each) if each > 0 else math.inf

    # Of itself

    def seen(self, layer: str) -> int:
        """Return how many observations of a layer there were."""
        return self._fits[layer].seen

    def deviation(self, layer: str, sizes: Sizes, load: Load) -> float:
        """Return the standard deviation of `seconds`."""
        terms = row(layer, sizes, load).terms
        return self._fits[layer].deviation([*terms, 0.0]) * max(1.0, math.sqrt(self._misfits[layer]))

    def confidence(self, layer: str, sizes: Sizes, load: Load) -> Confidence:
        """Return what a prediction for the layer at a size rests on."""
        fit = self._fits[layer]
        expected = self.seconds(layer, sizes, load)
        off = self.deviation(layer, sizes, load)
        error = off / expected if expected > 0 else math.inf
        key = tuple(sizes[name] for name in LAYERS)
        here = key in fit.cells
        words = "nothing was measured yet: these are the figures of another machine"
        if self.told:
            words += ", with what a summary of interest leads to expect of matching (the prior)"
        if fit.seen:
            where = "this one among them" if here else "not at this one"
            count = len(fit.cells)
            times = "1 observation" if fit.seen == 1 else f"{fit.seen:,} observations"
            words = f"{times} at {count} size{'' if count == 1 else 's'}, {where}; "
            words += (
                f"off by about {error:.0%}" if error <= VAGUE else "work cannot be told from wake-ups at these rates"
            )
        return Confidence(fit.seen, len(fit.cells), error, words)


def exit_point_floor(matchers: int) -> int:
    """Return the least exit points for so many matchers."""
    return -(-matchers // MATCHERS_PER_EXIT_POINT)
