"""Expressions that boards have in common. A metric is named once, without `kittiwake_`, and must exist.

All are about the cluster that the variable `$cluster` says; Prometheus gets that label from the discovery.
"""

from __future__ import annotations

from cluster.metrics import BY_NAME, PREFIX, Kind
from configs.grafana.boards import Mark, Query

WINDOW = "$__rate_interval"
CLUSTER = 'cluster="$cluster"'


def metric(name: str, *, of: str = "", kind: Kind | None = None) -> str:
    """Return a metric's full name with its matchers. Raises KeyError, or AssertionError if it is of another kind."""
    return _full(name, kind) + chosen(of)


def _full(name: str, kind: Kind | None = None) -> str:
    known = BY_NAME[PREFIX + name]
    assert kind is None or known.kind is kind, f"{name} is a {known.kind.value}, not a {kind.value}"
    return known.name


def recorded(name: str, *, of: str = "") -> str:
    """Return the name of what a rule records, with its matchers; see configs/rules/recording.yml."""
    return name + chosen(of)


def chosen(of: str = "") -> str:
    """Return matchers: of the cluster that is chosen, and these."""
    return f"{{{CLUSTER},{of}}}" if of else f"{{{CLUSTER}}}"


def rate(name: str, *, by: str = "", of: str = "", window: str = WINDOW) -> str:
    """Return how much a counter grows a second, summed over all but these labels."""
    return f"sum{_by(by)}(rate({metric(name, of=of, kind=Kind.COUNTER)}[{window}]))"


def grown(name: str, *, by: str = "", of: str = "", window: str = WINDOW) -> str:
    """Return how much a counter has grown within the window."""
    return f"sum{_by(by)}(increase({metric(name, of=of, kind=Kind.COUNTER)}[{window}]))"


def total(name: str, *, by: str = "", of: str = "") -> str:
    """Return a gauge's sum over all but these labels."""
    return f"sum{_by(by)}({metric(name, of=of, kind=Kind.GAUGE)})"


def greatest(name: str, *, by: str = "", of: str = "") -> str:
    """Return a gauge's greatest value over all but these labels; of what the coordinator alone exports, its value."""
    return f"max{_by(by)}({metric(name, of=of, kind=Kind.GAUGE)})"


def buckets(name: str, *, by: str = "", of: str = "", window: str = WINDOW) -> str:
    """Return how much a histogram's buckets grow a second."""
    full = _full(name, Kind.HISTOGRAM)
    labels = f"le, {by}" if by else "le"
    return f"sum by ({labels}) (rate({full}_bucket{chosen(of)}[{window}]))"


def quantile(share: float, name: str, *, by: str = "", of: str = "", window: str = WINDOW) -> str:
    """Return the value that this share of a histogram's observations is not above."""
    return f"histogram_quantile({share:g}, {buckets(name, by=by, of=of, window=window)})"


def mean(name: str, *, by: str = "", of: str = "", window: str = WINDOW) -> str:
    """Return the mean of a histogram's observations within the window."""
    full = _full(name, Kind.HISTOGRAM)
    both = (f"sum{_by(by)}(rate({full}_{part}{chosen(of)}[{window}]))" for part in ("sum", "count"))
    return " / ".join(both)


def quantiles(name: str, *shares: float, of: str = "", window: str = WINDOW) -> tuple[Query, ...]:
    """Return a query for each share, called `p50` and so on."""
    return tuple(Query(quantile(share, name, of=of, window=window), f"p{100 * share:g}") for share in shares)


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def _titled(expr: str, title: str, label: str = "") -> str:
    """Return the expression with the label that Grafana shows as an annotation's title; `$1` is the label's value."""
    return f'label_replace({expr}, "alertname", "{title}", "{label}", "(.*)")'


MARKS = (
    Mark(
        "View changes",
        _titled(f"{grown('transitions_total', by='result', window='1m')} > 0", "view $1", "result"),
        "blue",
    ),
    Mark("Recoveries", _titled(f"{grown('recoveries_total', window='1m')} > 0", "recovery"), "red"),
)
"""On every board: what explains most of what one wonders about."""
