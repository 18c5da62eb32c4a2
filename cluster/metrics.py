"""Every metric that a cluster exports, in one list; whoever exports, draws or alerts goes by it.

A metric that is a slice's own bears the labels `layer` and `slot`, and one more at most, whose values are listed here.
One that is the cluster's own is exported by the coordinator; there `layer` says which layer it is about. No label ever
holds what a client has chosen, nor a number of one: what there is to store is bounded by the number of slices.

Names end with the unit, counters with `_total`. Histograms are kept as plain counts (`histogram.py`), in microseconds,
and are exported in seconds.

The books of publications, at each connection point and at each moment, exactly:

    accepted = matched + unmatched + rejected + repeated + abandoned + in flight

and at each exit point

    released = matched + unmatched + rejected       (repeated ones are not released; they are counted beside)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cluster.messages import ACCESS_POINT, CONNECTION_POINT, COORDINATOR, EXIT_POINT, MATCHER

PREFIX = "kittiwake_"


class Kind(Enum):
    """How a metric's values follow each other; the values are Prometheus's words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


DELAY_BUCKETS_MS = (
    *(0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0),
    *(1000.0, 1500.0, 2000.0, 3000.0, 5000.0, 7500.0, 10000.0, 20000.0, 30000.0, 60000.0),
)
"""Upper bounds; the autoscaler's are the same."""
MATCH_BUCKETS_US = (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1_000, 2_000, 5_000, 10_000, 100_000)
PHASE_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


@dataclass(frozen=True)
class Metric:
    """One metric, of as many series as its labels have values.

    name:    in full, as it is asked for in a query; a histogram's without _bucket, _sum and _count.
    layers:  of the slices that export it; `COORDINATOR` for what is the cluster's own.
    labels:  all of them, in order.
    values:  of the last label, unless that is `slot`: value -> the key of `gauges()` that it is read from. Without such
             a label the only key stands under "". What the autoscaler says has none: it names its labels itself.
    buckets: upper bounds of a histogram, in microseconds, without the infinite one.
    """

    name: str
    kind: Kind
    help: str
    layers: tuple[str, ...]
    labels: tuple[str, ...]
    unit: str
    values: Mapping[str, str]
    buckets: tuple[int, ...] = ()


_UNITS = ("seconds", "bytes")
SLICE_LABELS = ("layer", "slot")
"""Of what is a slice's own."""
_ALL = (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT)


def _metric(
    kind: Kind,
    name: str,
    layers: str | tuple[str, ...],
    text: str,
    keys: str | Mapping[str, str],
    label: str | None,
    labels: tuple[str, ...] | None,
    buckets: tuple[int, ...] = (),
) -> Metric:
    layers = (layers,) if isinstance(layers, str) else layers
    if labels is None:
        labels = SLICE_LABELS if label is None else (*SLICE_LABELS, label)
    values = {"": keys} if isinstance(keys, str) else keys
    stem = name.removesuffix("_total")
    unit = next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")
    return Metric(PREFIX + name, kind, text, layers, labels, unit, values, buckets)


def _counter(
    name: str,
    layers: str | tuple[str, ...],
    text: str,
    keys: str | Mapping[str, str] = "",
    label: str | None = None,
    labels: tuple[str, ...] | None = None,
) -> Metric:
    return _metric(Kind.COUNTER, f"{name}_total", layers, text, keys or name, label, labels)


def _gauge(
    name: str,
    layers: str | tuple[str, ...],
    text: str,
    keys: str | Mapping[str, str] = "",
    label: str | None = None,
    labels: tuple[str, ...] | None = None,
) -> Metric:
    return _metric(Kind.GAUGE, name, layers, text, keys or name, label, labels)


def _histogram(
    name: str,
    layers: str | tuple[str, ...],
    text: str,
    buckets_us: tuple[int, ...],
    label: str | None = None,
    labels: tuple[str, ...] | None = None,
    values: Mapping[str, str] | str = "",
) -> Metric:
    return _metric(Kind.HISTOGRAM, f"{name}_seconds", layers, text, values or name, label, labels, buckets_us)


def _us(milliseconds: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(round(1000 * bound) for bound in milliseconds)


def _of_layers(key: str) -> dict[str, str]:
    return {layer: f"{key}_{layer}" for layer in _ALL}


TO_LAYERS = {layer: f"backlog_{layer}" for layer in (*_ALL, COORDINATOR)}

PUBLICATIONS = (
    _counter(
        "publications_accepted",
        CONNECTION_POINT,
        "Publications taken from clients.",
        "accepted",
    ),
    _counter(
        "publications_matched",
        CONNECTION_POINT,
        "Accepted publications that at least one subscription matched, as known from their acknowledgement.",
        "outcome_matched",
    ),
    _counter(
        "publications_unmatched",
        CONNECTION_POINT,
        "Accepted publications that no subscription matched.",
        "outcome_unmatched",
    ),
    _counter(
        "publications_rejected",
        CONNECTION_POINT,
        "Accepted publications that turned out not to be well-formed; their publishers were told why.",
        "outcome_rejected",
    ),
    _counter(
        "publications_repeated",
        CONNECTION_POINT,
        "Accepted publications that were released before: their publisher had connected again and sent them twice.",
        "outcome_repeated",
    ),
    _counter(
        "publications_abandoned",
        CONNECTION_POINT,
        "Accepted publications whose publisher had gone when a slice died: what became of them is not known.",
        "abandoned",
    ),
    _gauge(
        "publications_in_flight",
        CONNECTION_POINT,
        "Accepted publications whose outcome is not known yet.",
        "in_flight",
    ),
    _gauge(
        "publications_in_flight_bytes",
        CONNECTION_POINT,
        "Payload of the publications of connected clients that are not acknowledged.",
        "unacknowledged_bytes",
    ),
    _counter(
        "publications_sent_again",
        CONNECTION_POINT,
        "Publications sent into the cluster once more after a slice had died.",
        "sent_again",
    ),
    _counter(
        "publications_routed",
        ACCESS_POINT,
        "Publications sent to the matchers.",
        "publications",
    ),
    _counter(
        "publications_searched",
        MATCHER,
        "Publications that a matcher has searched its subscriptions for; each goes to every matcher.",
        "publications",
    ),
    _counter(
        "publications_released",
        EXIT_POINT,
        "Publications released in order by an exit point, by outcome; `repeated` ones were released before.",
        {"matched": "matched", "unmatched": "unmatched", "rejected": "rejected", "repeated": "duplicates"},
        label="outcome",
    ),
    _counter(
        "batches",
        (ACCESS_POINT, MATCHER),
        "Batches of publications sent, or searched.",
    ),
    _counter(
        "hits",
        MATCHER,
        "Subscriptions found to match, one for each pair of publication and subscription.",
    ),
)

DELIVERY = (
    _counter(
        "notifications",
        EXIT_POINT,
        "Notifications handed to connection points, one for each pair of publication and client.",
    ),
    _counter(
        "delivered",
        CONNECTION_POINT,
        "Notifications written to clients.",
        "notifications",
    ),
    _counter(
        "dropped",
        CONNECTION_POINT,
        "Notifications that were not delivered: the policy of a subscription of a slow client said so, or a durable "
        "session was over its quota.",
        {
            "drop_oldest": "dropped_oldest",
            "drop_newest": "dropped_newest",
            "latest_per_key": "dropped_latest_per_key",
            "quota": "dropped_quota",
        },
        label="reason",
    ),
    _counter(
        "repeats_dropped",
        CONNECTION_POINT,
        "Notifications that came twice after a slice had died, and were delivered once.",
        "duplicates",
    ),
    _counter("redelivered", CONNECTION_POINT, "Notifications of durable sessions delivered more than once."),
    _counter(
        "dead_letters",
        CONNECTION_POINT,
        "Notifications put into the dead-letter file: delivered as often as allowed, never acknowledged.",
    ),
    _gauge(
        "notifications_queued",
        CONNECTION_POINT,
        "Notifications that wait for their clients' credit, in memory or on disk.",
        {"memory": "queued", "durable": "durable_queued"},
        label="where",
    ),
    _gauge(
        "runs_held",
        CONNECTION_POINT,
        "Runs of publications whose acknowledgement waits for a place in a subscriber's queue.",
        "held_runs",
    ),
)

DELAYS = (
    _histogram(
        "notification_delay",
        CONNECTION_POINT,
        "From a publication's acceptance until its notification is in its subscriber's queue, for each notification.",
        _us(DELAY_BUCKETS_MS),
    ),
    _histogram(
        "publication_age",
        (ACCESS_POINT, MATCHER, EXIT_POINT),
        "Age of publications, since their acceptance, when a slice takes them up; the difference between two layers "
        "is the time spent in the former and in the queue to the latter.",
        _us(DELAY_BUCKETS_MS),
    ),
    _histogram(
        "match",
        MATCHER,
        "Time that a matcher has taken for a publication: its batch's, shared out evenly.",
        MATCH_BUCKETS_US,
    ),
    _histogram(
        "subscribe_ack",
        CONNECTION_POINT,
        "From a client's request to open or close a subscription until every matcher concerned has put it into effect.",
        _us(DELAY_BUCKETS_MS),
    ),
)

LOAD = (
    _counter(
        "useful_seconds",
        (*_ALL, COORDINATOR),
        "Time that a slice has spent working: handling what came and sending what follows from it, without waiting. "
        "Its rate is the share of time in use.",
        "useful_us",
    ),
    _counter(
        "cpu_seconds",
        (*_ALL, COORDINATOR),
        "Processor time of the slice's process, all threads.",
        "cpu_us",
    ),
    _gauge(
        "resident_bytes",
        (*_ALL, COORDINATOR),
        "Memory of the slice's process.",
    ),
    _gauge(
        "lane_backlog_messages",
        _ALL,
        "Messages sent to the slices of another layer that they have not confirmed; confirmations come at the latest "
        "every 50 ms.",
        {to: f"{key}_messages" for to, key in TO_LAYERS.items()},
        label="to",
    ),
    _gauge(
        "lane_backlog_bytes",
        _ALL,
        "Their bytes.",
        {to: f"{key}_bytes" for to, key in TO_LAYERS.items()},
        label="to",
    ),
)

STATE = (
    _gauge(
        "subscriptions",
        (CONNECTION_POINT, MATCHER),
        "Subscriptions: of the clients of a connection point, or in a matcher's share.",
    ),
    _gauge("subscription_bytes", MATCHER, "Their normal forms."),
    _gauge("index_bytes", MATCHER, "Memory of the matching index."),
    _counter("subscription_changes", (ACCESS_POINT, MATCHER), "Subscriptions opened, updated or closed.", "changes"),
    _gauge("connections", CONNECTION_POINT, "Open sockets of clients."),
    _gauge("sessions", CONNECTION_POINT, "Clients that are logged in."),
    _counter("connections_refused", CONNECTION_POINT, "Connections ended by the connection point.", "refused"),
    _counter(
        "slow_clients_disconnected",
        CONNECTION_POINT,
        "Of these, those of clients that did not keep up.",
        "slow_disconnected",
    ),
    _gauge("durable_sessions", CONNECTION_POINT, "Durable sessions, connected or not."),
    _gauge("durable_bytes", CONNECTION_POINT, "What they are owed, on disk."),
    _gauge("valid_publications", CONNECTION_POINT, "Publications kept for later subscribers, as they are valid."),
    _gauge("valid_bytes", CONNECTION_POINT, "Their memory."),
    _counter("valid_given", CONNECTION_POINT, "Valid publications given to new subscriptions."),
    _gauge("publishers_known", EXIT_POINT, "Publishers' instances whose last sequence is remembered.", "publishers"),
    _gauge(
        "incomplete_shares",
        EXIT_POINT,
        "Parts of batches that wait for the answer of a matcher, or of an earlier one.",
    ),
    _gauge("view_epoch", (*_ALL, COORDINATOR), "The number of the view that the slice serves."),
    _gauge(
        "parked",
        ACCESS_POINT,
        "What the aligned strategy `stop_swap` keeps back at the moment.",
        {"publications": "parked_publications", "subscriptions": "parked_subscriptions"},
        label="what",
    ),
)

CLUSTER = (
    _gauge("slices", COORDINATOR, "Slices in the view, by layer.", _of_layers("slices"), labels=("layer",)),
    _gauge(
        "slices_wanted",
        COORDINATOR,
        "Slices that were asked for last, by layer.",
        _of_layers("slices_wanted"),
        labels=("layer",),
    ),
    _gauge(
        "slices_lost",
        COORDINATOR,
        "Slices that are not heard of, or are being replaced.",
        _of_layers("slices_lost"),
        labels=("layer",),
    ),
    _counter(
        "transitions",
        COORDINATOR,
        "View changes that have come to their end.",
        {"committed": "transitions_committed", "aborted": "transitions_aborted"},
        labels=("result",),
    ),
    _histogram(
        "transition",
        COORDINATOR,
        "Duration of a view change, by phase; `all` is the whole of a committed one.",
        _us(PHASE_BUCKETS_MS),
        labels=("phase",),
        values={phase: f"transition_{phase}" for phase in ("prepare", "copy", "switch", "retire", "abort", "all")},
    ),
    _gauge("transition_running", COORDINATOR, "1 while the view changes, else 0.", labels=()),
    _counter("moved_groups", COORDINATOR, "Key groups that have got another matcher.", labels=()),
    _counter("moved_subscriptions", COORDINATOR, "Subscriptions copied for that.", labels=()),
    _counter("moved_bytes", COORDINATOR, "Bytes of normal forms copied for that.", labels=()),
    _counter(
        "operations",
        COORDINATOR,
        "Wishes for other layer sizes that have come to their end.",
        {state: f"operations_{state}" for state in ("done", "aborted", "merged")},
        labels=("result",),
    ),
    _counter("recoveries", COORDINATOR, "Recoveries from the death of one slice or several.", labels=()),
    _histogram(
        "recovery",
        COORDINATOR,
        "Duration of a recovery, by phase; `all` is from the first death noticed until everything goes on.",
        _us(PHASE_BUCKETS_MS),
        labels=("phase",),
        values={phase: f"recovery_{phase}" for phase in ("start", "connect", "rebuild", "all")},
    ),
    _gauge("coordinator_sessions", COORDINATOR, "Clients known to the coordinator as logged in.", labels=()),
)

OUTPUT = (
    _counter("output_rows", EXIT_POINT, "Rows of publications that are committed to the output."),
    _counter("output_appended", EXIT_POINT, "Rows that were to be written when they were released."),
    _counter("output_lost", EXIT_POINT, "Those of them for which there was no room."),
    _counter("output_overloaded", EXIT_POINT, "Those of these whose publisher had asked for `stored`, and was told."),
    _counter("output_segments", EXIT_POINT, "Segments committed."),
    _counter("output_bytes", EXIT_POINT, "Their bytes."),
    _counter("output_errors", EXIT_POINT, "Writes that failed and were tried again."),
    _gauge("output_disk_full", EXIT_POINT, "1 while there is no room for more output, else 0."),
    _gauge("output_pending_rows", EXIT_POINT, "Rows that are handed over and not committed yet."),
)

AUTOSCALER = (
    _gauge(
        "desired_replicas",
        COORDINATOR,
        "What a trigger of the policy proposes for a layer; `decision` is what came of all.",
        labels=("layer", "trigger"),
    ),
    _counter(
        "decisions", COORDINATOR, "Decisions taken, by direction: `out`, `in` or `stay`.", labels=("layer", "direction")
    ),
    _counter(
        "decision_blocked",
        COORDINATOR,
        "Decisions in which a stage kept the autoscaler from what the triggers proposed.",
        labels=("layer", "reason"),
    ),
    _gauge("utilisation", COORDINATOR, "Useful share of time of a layer's busiest slice.", labels=("layer",)),
    _gauge(
        "efficiency",
        COORDINATOR,
        "Speed-up of a layer divided by its slices, from what was observed.",
        labels=("layer",),
    ),
    _gauge("karp_flatt", COORDINATOR, "Experimentally determined serial fraction (Karp and Flatt).", labels=("layer",)),
    _gauge("cost_per_hour", COORDINATOR, "Price of what runs, in the policy's currency.", labels=()),
    _gauge(
        "slo_budget_left",
        COORDINATOR,
        "Share of an objective's error budget that is left, 1 to below 0.",
        labels=("slo",),
    ),
    _gauge("slo_burn_rate", COORDINATOR, "How fast it is used up; 1 uses it up exactly.", labels=("slo", "window")),
)

METRICS: tuple[Metric, ...] = (
    *PUBLICATIONS,
    *DELIVERY,
    *DELAYS,
    *LOAD,
    *STATE,
    *CLUSTER,
    *OUTPUT,
    *AUTOSCALER,
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
