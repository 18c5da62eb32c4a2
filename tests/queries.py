"""What PromQL expressions ask for, checked against the list of metrics. Reads selectors, the functions around them and
`by (...)`; whether the rest is PromQL at all, promtool and Prometheus themselves say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

from cluster.metrics import BY_NAME, Kind, Metric

SELECTOR = re.compile(
    r"(?P<name>\b(?:[a-z_]+:)?kittiwake_\w+(?::\w+)?)(?P<matchers>\{[^}]*\})?(?P<range>\[[^\]]+\])?",
)
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")
BY = re.compile(r"\bby\s*\(([^)]*)\)\s*\(")
FUNCTION = re.compile(r"(\w+)\s*\(\s*$")
FROM_PROMETHEUS = {"cluster", "job", "instance"}
FOR_COUNTERS = {"rate", "increase", "irate", "resets"}
FOR_GAUGES = {"deriv", "delta", "idelta", "min_over_time", "max_over_time", "avg_over_time", "changes"}
PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Selector:
    """One place where an expression asks for a metric. part: of a histogram. function: that it is given to, or ""."""

    name: str
    metric: Metric | None
    part: str
    matchers: tuple[tuple[str, str, str], ...]
    range: str
    function: str
    start: int

    @property
    def labels(self) -> set[str]:
        """Return the labels that its series have."""
        if self.metric is None:
            return set()
        return {*self.metric.labels, *FROM_PROMETHEUS, *({"le"} if self.part == "_bucket" else ())}


def names_in(text: str) -> set[str]:
    """Return the names of metrics and of recorded rules that a text mentions."""
    return {found["name"] for found in SELECTOR.finditer(text)}


def selectors(expr: str) -> Iterator[Selector]:
    """Yield what an expression asks for."""
    for found in SELECTOR.finditer(expr):
        name, part = found["name"], ""
        metric = BY_NAME.get(name)
        if metric is None:
            part = next((part for part in PARTS if name.endswith(part)), "")
            whole = BY_NAME.get(name.removesuffix(part))
            metric = whole if whole is not None and whole.kind is Kind.HISTOGRAM else None
        function = FUNCTION.search(expr[: found.start()])
        matchers = tuple(MATCHER.findall(found["matchers"] or ""))
        yield Selector(
            name, metric, part, matchers, found["range"] or "", function[1] if function else "", found.start()
        )


def inside(expr: str, opening: int) -> tuple[int, int]:
    """Return where the text in the parentheses that begin here starts and ends."""
    depth = 0
    for place in range(opening, len(expr)):
        depth += {"(": 1, ")": -1}.get(expr[place], 0)
        if depth == 0:
            return opening + 1, place
    raise AssertionError(f"parentheses are not closed: {expr}")


def problems(expr: str, recorded: Set[str] = frozenset(), *, bare_counters: bool = True) -> list[str]:
    """Return what is wrong with an expression: a name, label, label value or function that does not fit the metric.

    recorded:      names that recording rules make; nothing else is known of them.
    bare_counters: a counter's value itself may be asked for, as in sums that must agree.
    """
    found = []
    asked = [one for one in selectors(expr) if one.name not in recorded]
    for one in asked:
        if one.metric is None:
            found.append(f"{one.name} is not exported")
            continue
        found += _of_selector(one, one.metric, bare_counters)
    for by in BY.finditer(expr):
        start, end = inside(expr, by.end() - 1)
        for label in filter(None, (label.strip() for label in by[1].split(","))):
            found += [
                f"{one.name} has no label {label}, which is summed by"
                for one in asked
                if start <= one.start < end and one.metric is not None and label not in one.labels
            ]
    for call in re.finditer(r"histogram_quantile\(", expr):
        start, end = inside(expr, call.end() - 1)
        within = [one for one in asked if start <= one.start < end]
        if not within or any(one.part != "_bucket" for one in within):
            found.append("histogram_quantile of something that is no _bucket")
        if not re.search(r"by\s*\([^)]*\ble\b", expr[start:end]):
            found.append("histogram_quantile without le")
    return found


def _of_selector(one: Selector, metric: Metric, bare_counters: bool) -> Iterator[str]:
    grows = metric.kind is not Kind.GAUGE
    if metric.kind is Kind.HISTOGRAM and not one.part:
        yield f"{one.name} is a histogram: it has {', '.join(PARTS)}"
    if one.range and one.function not in (FOR_COUNTERS if grows else FOR_GAUGES):
        yield f"{one.function or 'a range'} of {one.name}, which is a {metric.kind.value}"
    if grows and not one.range and not bare_counters:
        yield f"{one.name} is a counter, and only its growth says something"
    for label, operator, value in one.matchers:
        if label not in one.labels:
            yield f"{one.name} has no label {label}"
        elif operator in ("=", "!=") and not _possible(metric, label, value):
            yield f"{label} of {one.name} is never {value!r}"


def _possible(metric: Metric, label: str, value: str) -> bool:
    if label == "le":
        return value == "+Inf" or round(float(value) * 1_000_000) in metric.buckets
    if label == "layer" and "slot" in metric.labels:
        return value in metric.layers
    if (label,) == metric.labels[-1:] and set(metric.values) != {""}:
        return value in metric.values
    return True
