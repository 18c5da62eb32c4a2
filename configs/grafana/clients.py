"""Clients: who is there, who does not keep up, what was dropped and why; and what is stored for them."""

from __future__ import annotations

from configs.grafana.boards import Board, Panel, Query, Row
from configs.grafana.promql import MARKS, greatest, grown, quantiles, rate, total

NOT_REPLACED = 'reason!="latest_per_key"'
POINT = "connection_point {{slot}}"

CLIENTS = Row(
    "Clients",
    (
        Panel(
            "Clients",
            "Logged in, by connection point; and durable sessions, connected or not.",
            (
                Query(total("sessions", by="slot"), POINT),
                Query(total("durable_sessions"), "durable sessions"),
            ),
            width=8,
        ),
        Panel(
            "Connections",
            "Open sockets; more of them than clients: some do not log in. And what connection points ended, a second.",
            (
                Query(total("connections"), "open"),
                Query(rate("connections_refused_total"), "ended a second"),
                Query(rate("slow_clients_disconnected_total"), "of these, slow clients"),
            ),
            width=8,
        ),
        Panel(
            "Subscriptions",
            "Of the clients of each connection point.",
            (Query(total("subscriptions", by="slot", of='layer="connection_point"'), POINT),),
            kind="stacked",
            width=8,
        ),
        Panel(
            "Time to subscribe",
            "From the request to open or close a subscription until it is in effect everywhere.",
            quantiles("subscribe_ack_seconds", 0.5, 0.99),
            unit="s",
            thresholds=((0.5, "red"),),
            logarithmic=True,
            minimum=None,
            empty="nobody subscribes",
        ),
        Panel(
            "Publishers' credit in use",
            "Payload that is not acknowledged, by connection point. As it nears flow.publish_pool_bytes (64 MiB by "
            "default), publishers are slowed down.",
            (Query(total("publications_in_flight_bytes", by="slot"), POINT),),
            unit="bytes",
            thresholds=((64 * 1024 * 1024, "red"),),
        ),
    ),
)

DROPS = Row(
    "Slow clients",
    (
        Panel(
            "Dropped notifications",
            "By the policy that said so, or `quota` of a durable session. `latest_per_key`: replaced by a newer "
            "value, which is what was asked for.",
            (Query(rate("dropped_total", by="reason"), "{{reason}}"),),
            unit="cps",
            kind="stacked",
        ),
        Panel(
            "Share dropped",
            "Of all notifications, without latest_per_key. Dashed: KittiwakeDropsNotifications.",
            (
                Query(
                    f"{rate('dropped_total', of=NOT_REPLACED, window='5m')} "
                    f"/ ({rate('delivered_total', window='5m')} + {rate('dropped_total', window='5m')} > 0)",
                    "dropped",
                ),
            ),
            unit="percentunit",
            thresholds=((0.001, "red"),),
        ),
        Panel(
            "Waiting for clients",
            "Notifications in the queues of clients that have no credit left.",
            (Query(total("notifications_queued", by="slot, where"), f"{POINT}, {{{{where}}}}"),),
            kind="stacked",
            width=8,
        ),
        Panel(
            "Acknowledgements held",
            "Runs of publications whose acknowledgement waits for a place in the queue of a subscriber with policy "
            "block: these publishers are slowed down.",
            (Query(total("runs_held", by="slot"), POINT),),
            width=8,
        ),
        Panel(
            "Delivered twice or never",
            "Of durable sessions: delivered once more, flagged so, and put into the dead-letter file; within 5 "
            "minutes.",
            (
                Query(grown("redelivered_total", window="5m"), "redelivered"),
                Query(grown("dead_letters_total", window="5m"), "dead letters"),
            ),
            width=8,
        ),
    ),
)

STORED = Row(
    "Stored",
    (
        Panel(
            "Durable sessions",
            "What they are owed, on disk. Dashed: four fifths of durable.total_bytes' default, "
            "KittiwakeDurableSessionsNearQuota.",
            (Query(total("durable_bytes", by="slot"), POINT),),
            unit="bytes",
            thresholds=((0.8 * 512 * 1024 * 1024, "red"),),
            width=8,
        ),
        Panel(
            "Valid publications",
            "Kept for later subscribers as long as they are valid: their number, and how many were given a second.",
            (
                Query(total("valid_publications"), "kept"),
                Query(rate("valid_given_total"), "given a second"),
            ),
            width=8,
        ),
        Panel(
            "Memory of valid publications",
            "Up to valid.bytes at each connection point.",
            (Query(total("valid_bytes", by="slot"), POINT),),
            unit="bytes",
            width=8,
        ),
        Panel(
            "Matched output",
            "Rows committed a second, and bytes of their segments.",
            (Query(rate("output_rows_total", by="slot"), "exit_point {{slot}}"),),
            unit="cps",
            width=8,
            empty="no output is configured",
        ),
        Panel(
            "Output that waits",
            "Rows handed over and not committed yet; it grows when the disk is slow.",
            (Query(total("output_pending_rows", by="slot"), "exit_point {{slot}}"),),
            width=8,
            empty="no output is configured",
        ),
        Panel(
            "Trouble with the disk",
            "Writes that failed and were tried again, within 5 minutes; and 1 while there is no room for more.",
            (
                Query(grown("output_errors_total", by="slot", window="5m"), "failed writes of {{slot}}"),
                Query(greatest("output_disk_full", by="slot"), "disk of {{slot}} full"),
            ),
            width=8,
            thresholds=((1, "red"),),
            empty="no output is configured",
        ),
    ),
)

BOARD = Board(
    "kittiwake-clients",
    "Kittiwake / Clients and drops",
    "Who is there, who does not keep up, what was dropped and why, and what is stored.",
    (CLIENTS, DROPS, STORED),
    MARKS,
)
