"""Ask a Prometheus over its HTTP interface what a dashboard's panels ask it."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANSWER_S = 30.0


class PrometheusError(Exception):
    """It does not answer, or refuses the expression; says which expression and why."""


@dataclass(frozen=True)
class Series:
    """One line of an answer: its labels, and its points, NaN where the expression has no number."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]

    def name(self, legend: str) -> str:
        """Return what Grafana calls it: the legend with its `{{labels}}` filled in, or else all labels."""
        if not legend:
            shown = ", ".join(f"{key}={value}" for key, value in sorted(self.labels.items()) if key != "__name__")
            return shown or self.labels.get("__name__", "value")
        for key, value in self.labels.items():
            legend = legend.replace("{{" + key + "}}", value)
        return legend


def filled(expr: str, *, scrape_s: float, step_s: float, cluster: str) -> str:
    """Return an expression with Grafana's variables replaced as Grafana does; `$layer` is all layers.

    scrape_s: how often Prometheus scrapes: `$__rate_interval` is four times that, and at least a step and a scrape.
    """
    rate_s = math.ceil(max(4 * scrape_s, step_s + scrape_s))
    known = {
        "__rate_interval": f"{rate_s}s",
        "__interval": f"{math.ceil(step_s)}s",
        "cluster": cluster,
        "layer": ".+",
    }
    for name in sorted(known, key=len, reverse=True):
        expr = expr.replace("${" + name + "}", known[name]).replace("$" + name, known[name])
    return expr


class Prometheus:
    """A running Prometheus. All methods raise PrometheusError."""

    def __init__(self, url: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise PrometheusError(f"{url!r} is no http or https address")
        self._url = url.rstrip("/")

    def range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return the expression's series between two times, in seconds since 1970."""
        arguments = {"query": expr, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return [_series(one["metric"], one["values"]) for one in self._get("query_range", arguments)["result"]]

    def now(self, expr: str) -> list[Series]:
        """Return the expression's series as they are now: of one point each."""
        answer = self._get("query", {"query": expr})
        if answer["resultType"] == "scalar":
            return [_series({}, [answer["result"]])]
        return [_series(one["metric"], [one["value"]]) for one in answer["result"]]

    def scrape_interval_s(self) -> float:
        """Return how often it scrapes Kittiwake; the default of its configuration if it does not yet."""
        active = self._get("targets", {"state": "active"})["activeTargets"]
        intervals = [_seconds(one["scrapeInterval"]) for one in active if one["scrapePool"] == "kittiwake"]
        return max(intervals, default=60.0)

    def clusters(self) -> list[str]:
        """Return the names of the clusters that it knows."""
        return sorted(one.labels.get("cluster", "") for one in self.now("max by (cluster) (kittiwake_slices)"))

    def get(self, what: str) -> dict[str, object]:
        """Return the data of another of its questions, such as `rules` or `targets`."""
        data: dict[str, object] = self._get(what, {})
        return data

    def _get(self, what: str, arguments: Mapping[str, str]) -> Any:
        request = urllib.request.Request(
            f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}", headers={"Accept": "application/json"}
        )
        asked = f"{what} {arguments['query']!r}" if "query" in arguments else what
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode("utf-8", "replace")
            try:
                said = json.loads(said)["error"]
            except (ValueError, KeyError, TypeError):
                said = said[:200]
            raise PrometheusError(f"{self._url} refuses {asked}: {said}") from error
        except (OSError, ValueError, KeyError) as error:
            raise PrometheusError(f"{self._url} does not answer {asked}: {error}") from error


def _series(labels: Mapping[str, str], points: list[tuple[float, str]]) -> Series:
    return Series(labels, tuple(time for time, _ in points), tuple(float(value) for _, value in points))


def _seconds(text: str) -> float:
    """Return Prometheus's duration, such as `1m30s`, in seconds."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))
