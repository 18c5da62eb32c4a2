"""The board to begin with: do subscribers get what they are due in time, how much is it, and with how many slices."""

from __future__ import annotations

from configs.grafana.boards import Board, Panel, Query, Row
from configs.grafana.promql import MARKS, buckets, greatest, quantiles, rate, recorded, total

OBJECTIVE_S = 0.1

SERVICE = Row(
    "Service level",
    (
        Panel(
            "Late notifications",
            "Share of notifications of the last 5 minutes that took more than 100 ms from the publication's "
            "acceptance to its subscriber's queue. The objective allows 1 %; from 10 % on "
            "KittiwakeDelayBudgetBurnsFast is raised.",
            (Query(recorded("cluster:kittiwake_notification_delay_late:ratio5m")),),
            unit="percentunit",
            kind="number",
            width=4,
            height=5,
            thresholds=((0.01, "yellow"), (0.1, "red")),
            empty="no notifications",
        ),
        Panel(
            "Delay, p99",
            "99 of 100 notifications of the last minute were faster. Read from histogram buckets, exact to a third.",
            (Query(recorded("cluster:kittiwake_notification_delay_seconds:p99_1m")),),
            unit="s",
            kind="number",
            width=4,
            height=5,
            thresholds=((OBJECTIVE_S / 2, "yellow"), (OBJECTIVE_S, "red")),
            empty="no notifications",
        ),
        Panel(
            "Error budget left",
            "Of each objective of the autoscaler's policy; at 0 it has been used up, below it has been missed.",
            (Query(greatest("slo_budget_left", by="slo"), "{{slo}}"),),
            unit="percentunit",
            kind="number",
            width=4,
            height=5,
            thresholds=((0, "orange"), (0.25, "yellow"), (0.5, "green")),
            base="red",
            minimum=None,
            empty="no objectives",
        ),
        Panel(
            "Publication rate",
            "Accepted from clients, a second.",
            (Query(recorded("cluster:kittiwake_publications_accepted:rate1m")),),
            unit="cps",
            kind="number",
            width=4,
            height=5,
        ),
        Panel(
            "Slices lost",
            "Not heard of, or being replaced. A replacement takes seconds; after a minute KittiwakeSliceLost is "
            "raised.",
            (Query(total("slices_lost")),),
            unit="none",
            kind="number",
            width=4,
            height=5,
            thresholds=((1, "red"),),
        ),
        Panel(
            "Publications unaccounted for",
            "Accepted less matched, unmatched, rejected, repeated, abandoned and in flight: 0, at every moment.",
            (Query(f"sum({recorded('slot:kittiwake_publications_unaccounted:sum')})"),),
            unit="none",
            kind="number",
            width=4,
            height=5,
            thresholds=((0, "green"), (1, "red")),
            base="red",
            minimum=None,
        ),
        Panel(
            "Notification delay",
            "From a publication's acceptance at a connection point until the notification is in its subscriber's "
            "queue. Dashed: the objective for 99 %.",
            quantiles("notification_delay_seconds", 0.5, 0.99, 0.999),
            unit="s",
            thresholds=((OBJECTIVE_S, "red"),),
            logarithmic=True,
            minimum=None,
        ),
        Panel(
            "Notification delay, all of it",
            "Notifications a second by delay. A band that moves up is a layer that becomes slow; a second band is one "
            "slice of several.",
            (Query(buckets("notification_delay_seconds"), "{{le}}"),),
            unit="s",
            kind="heatmap",
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Publications",
            "Accepted from clients, and what became of them as known from their acknowledgements.",
            (
                Query(rate("publications_accepted_total"), "accepted"),
                Query(rate("publications_matched_total"), "matched"),
                Query(rate("publications_unmatched_total"), "unmatched"),
                Query(rate("publications_rejected_total"), "rejected"),
            ),
            unit="cps",
            width=8,
        ),
        Panel(
            "Notifications",
            "Written to clients, and not written because a slow client's policy or quota said so.",
            (
                Query(rate("delivered_total"), "delivered"),
                Query(rate("dropped_total"), "dropped"),
            ),
            unit="cps",
            width=8,
        ),
        Panel(
            "On their way",
            "Publications whose outcome is not known, and notifications that wait for their clients' credit.",
            (
                Query(total("publications_in_flight"), "publications in flight"),
                Query(total("notifications_queued", by="where"), "notifications in {{where}}"),
            ),
            width=8,
        ),
    ),
)

SIZE = Row(
    "Size",
    (
        Panel(
            "Slices",
            "In the view, by layer. Marks on the time axis: view changes (blue) and recoveries (red).",
            (Query(greatest("slices", by="layer"), "{{layer}}"),),
            unit="none",
            kind="steps",
            width=8,
            decimals=0,
        ),
        Panel(
            "Busiest slice of each layer",
            "Share of its time that it works. Policies aim at 60 to 70 %; above 85 % delays grow without a bound.",
            (
                Query(
                    f"max by (layer) ({rate('useful_seconds_total', by='layer, slot')})",
                    "{{layer}}",
                ),
            ),
            unit="percentunit",
            width=8,
            thresholds=((0.7, "yellow"), (0.85, "red")),
        ),
        Panel(
            "Clients and subscriptions",
            "Clients that are logged in, and their subscriptions.",
            (
                Query(total("sessions"), "clients"),
                Query(total("subscriptions", of='layer="connection_point"'), "subscriptions"),
            ),
            unit="short",
            width=8,
        ),
    ),
)

BOARD = Board(
    "kittiwake-overview",
    "Kittiwake / Overview",
    "Whether subscribers get what they are due in time, how much it is, and with how many slices.",
    (SERVICE, TRAFFIC, SIZE),
    MARKS,
)
