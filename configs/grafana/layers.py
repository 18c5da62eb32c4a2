"""Where time, memory and queues are, slice by slice."""

from __future__ import annotations

from configs.grafana.boards import Board, Panel, Query, Row
from configs.grafana.promql import MARKS, buckets, mean, quantile, rate, total

CHOSEN = 'layer=~"$layer"'
ACCESS_POINTS = 'layer="access_point"'
MATCHERS_ONLY = 'layer="matcher"'
SLICE = "{{layer}} {{slot}}"
MATCHER = "matcher {{slot}}"

LOAD = Row(
    "Load",
    (
        Panel(
            "Time in use",
            "Share of its time that a slice handles what came and sends what follows. One that stands out has a slow "
            "machine or an uneven share; all of a layer high: scale it.",
            (Query(rate("useful_seconds_total", by="layer, slot", of=CHOSEN), SLICE),),
            unit="percentunit",
            thresholds=((0.7, "yellow"), (0.85, "red")),
        ),
        Panel(
            "Processor",
            "Processor time of the slice's process, all threads. Well above the time in use: garbage collection, Ray, "
            "or the kernel; well below: the machine has more to do than it has cores.",
            (Query(rate("cpu_seconds_total", by="layer, slot", of=CHOSEN), SLICE),),
            unit="percentunit",
        ),
        Panel(
            "Backlog of messages",
            "Sent and not confirmed, by lane. Each message is a batch; confirmations come at the latest every 50 ms. "
            "Dashed: from here on, if it grows, KittiwakeBacklogGrowing is raised.",
            (Query(total("lane_backlog_messages", by="layer, slot, to", of=CHOSEN), f"{SLICE} to {{{{to}}}}"),),
            thresholds=((500, "red"),),
        ),
        Panel(
            "Backlog of bytes",
            "The same in bytes. It is bounded by the publishers' credit.",
            (Query(total("lane_backlog_bytes", by="layer, slot, to", of=CHOSEN), f"{SLICE} to {{{{to}}}}"),),
            unit="bytes",
        ),
        Panel(
            "Memory",
            "Resident memory of each slice's process. About 150 MB is Ray and Python.",
            (Query(total("resident_bytes", by="layer, slot", of=CHOSEN), SLICE),),
            unit="bytes",
        ),
        Panel(
            "Publications",
            "A second, by slice: taken from clients, routed, searched, and released. Each goes to every matcher.",
            (
                Query(rate("publications_accepted_total", by="slot"), "connection_point {{slot}}"),
                Query(rate("publications_routed_total", by="slot"), "access_point {{slot}}"),
                Query(rate("publications_searched_total", by="slot"), MATCHER),
                Query(rate("publications_released_total", by="slot"), "exit_point {{slot}}"),
            ),
            unit="cps",
        ),
    ),
)

DELAY = Row(
    "Where the delay comes from",
    (
        Panel(
            "Age on arrival, p99",
            "How old publications are when a layer takes them up. The step from one layer to the next is the time in "
            "the former and in the queue to the latter.",
            (
                Query(quantile(0.99, "publication_age_seconds", by="layer"), "{{layer}}"),
                Query(quantile(0.99, "notification_delay_seconds"), "delivered"),
            ),
            unit="s",
            logarithmic=True,
            minimum=None,
        ),
        Panel(
            "Match time of a publication, mean",
            "A batch's time shared out over its publications. It grows with the subscriptions of the slice.",
            (Query(mean("match_seconds", by="slot"), MATCHER),),
            unit="s",
        ),
        Panel(
            "Match time, all of it",
            "Publications a second by the time that a matcher has taken for one.",
            (Query(buckets("match_seconds"), "{{le}}"),),
            unit="s",
            kind="heatmap",
        ),
        Panel(
            "Size of batches, mean",
            "Publications in a batch. It grows by itself as the load does: whatever has arrived in one turn goes on "
            "together.",
            (
                Query(
                    f"{rate('publications_routed_total', by='slot')} / "
                    f"{rate('batches_total', by='slot', of=ACCESS_POINTS)}",
                    "access_point {{slot}}",
                ),
                Query(
                    f"{rate('publications_searched_total', by='slot')} / "
                    f"{rate('batches_total', by='slot', of=MATCHERS_ONLY)}",
                    MATCHER,
                ),
            ),
            unit="short",
        ),
    ),
)

MATCHERS = Row(
    "Matchers",
    (
        Panel(
            "Subscriptions",
            "Each matcher's share. Key groups are dealt out evenly; while a view changes those that move count twice.",
            (Query(total("subscriptions", by="slot", of=MATCHERS_ONLY), MATCHER),),
            kind="stacked",
            width=8,
        ),
        Panel(
            "Memory of subscriptions",
            "The matching index, and the normal forms that it was made from.",
            (
                Query(total("index_bytes", by="slot"), "index of {{slot}}"),
                Query(total("subscription_bytes", by="slot"), "normal forms of {{slot}}"),
            ),
            unit="bytes",
            width=8,
        ),
        Panel(
            "Hits",
            "Subscriptions found to match, a second.",
            (Query(rate("hits_total", by="slot"), MATCHER),),
            unit="cps",
            width=8,
        ),
    ),
)

JOINING = Row(
    "Access points and exit points",
    (
        Panel(
            "Released publications",
            "By outcome. `repeated`: released before, so that nobody gets them twice; they come with reconnecting "
            "publishers.",
            (Query(rate("publications_released_total", by="outcome"), "{{outcome}}"),),
            unit="cps",
            width=8,
        ),
        Panel(
            "Incomplete",
            "Parts of batches at exit points that wait for a matcher's answer or for an earlier part. One slow "
            "matcher makes it grow.",
            (Query(total("incomplete_shares", by="slot"), "exit_point {{slot}}"),),
            width=8,
        ),
        Panel(
            "Subscription changes",
            "Opened, updated and closed, a second, at access points; and publishers that exit points remember.",
            (
                Query(rate("subscription_changes_total", of=ACCESS_POINTS), "changes a second"),
                Query(total("publishers_known"), "publishers"),
            ),
            width=8,
        ),
    ),
)

BOARD = Board(
    "kittiwake-layers",
    "Kittiwake / Layers",
    "Where time, memory and queues are, slice by slice.",
    (LOAD, DELAY, MATCHERS, JOINING),
    MARKS,
    by_layer=True,
)
