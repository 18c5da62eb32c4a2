"""Changes of the view: what they moved, how long each phase took, what they cost; and recoveries."""

from __future__ import annotations

from configs.grafana.boards import Board, Panel, Query, Row
from configs.grafana.promql import MARKS, greatest, grown, mean, quantiles, rate, total

RECENT = "5m"
"""View changes are rare: a shorter window would be empty most of the time."""

NOW = Row(
    "Changes",
    (
        Panel(
            "Under way",
            "Whether the view changes at the moment.",
            (Query(greatest("transition_running")),),
            unit="bool_yes_no",
            kind="number",
            width=4,
            height=5,
            thresholds=((1, "blue"),),
        ),
        Panel(
            "View changes in an hour",
            "By result. A scaling is several, as key groups move in waves.",
            (Query(grown("transitions_total", by="result", window="1h"), "{{result}}"),),
            unit="short",
            kind="number",
            width=7,
            height=5,
            decimals=0,
        ),
        Panel(
            "Operations in an hour",
            "Wishes for other sizes, by what became of them; `merged`: a later wish took its place.",
            (Query(grown("operations_total", by="result", window="1h"), "{{result}}"),),
            unit="short",
            kind="number",
            width=7,
            height=5,
            decimals=0,
        ),
        Panel(
            "Recoveries in an hour",
            "Each brings back one dead slice or several. KittiwakeSlicesDieAgainAndAgain: more than 3 in a quarter.",
            (Query(grown("recoveries_total", window="1h")),),
            unit="short",
            kind="number",
            width=6,
            height=5,
            thresholds=((1, "yellow"), (4, "red")),
            decimals=0,
        ),
        Panel(
            "Slices, there and wanted",
            "In the view, and as asked for last. The way from one to the other is an operation.",
            (
                Query(greatest("slices", by="layer"), "{{layer}}"),
                Query(greatest("slices_wanted", by="layer"), "{{layer}} wanted"),
            ),
            unit="none",
            kind="steps",
            decimals=0,
        ),
        Panel(
            "Number of the view, by slice",
            "All follow the coordinator's; one that lags holds the change up.",
            (Query(greatest("view_epoch", by="layer, slot"), "{{layer}} {{slot}}"),),
            unit="none",
            kind="steps",
            decimals=0,
            minimum=None,
        ),
    ),
)

COST = Row(
    "What changes cost",
    (
        Panel(
            "Duration by phase, mean",
            "Of the view changes of the last 5 minutes. Copying is the part that grows with the subscriptions moved, "
            "`switch` the one that grows with the backlog on the lanes.",
            (Query(mean("transition_seconds", by="phase", window=RECENT), "{{phase}}"),),
            unit="s",
            logarithmic=True,
            minimum=None,
            empty="no view change in 5 minutes",
        ),
        Panel(
            "Notification delay",
            "What subscribers notice of it; compare with the marks on the time axis.",
            quantiles("notification_delay_seconds", 0.5, 0.99),
            unit="s",
            thresholds=((0.1, "red"),),
            logarithmic=True,
            minimum=None,
        ),
        Panel(
            "Moved",
            "Key groups that have got another matcher, and subscriptions copied for that, within a minute.",
            (
                Query(grown("moved_groups_total", window="1m"), "key groups"),
                Query(grown("moved_subscriptions_total", window="1m"), "subscriptions"),
            ),
            width=8,
        ),
        Panel(
            "Moved bytes",
            "Normal forms copied, within a minute.",
            (Query(grown("moved_bytes_total", window="1m"), "bytes"),),
            unit="bytes",
            width=8,
        ),
        Panel(
            "Parked",
            "What `stop_swap`, the strategy that is there for comparison, keeps back. 0 with the others.",
            (Query(total("parked", by="what"), "{{what}}"),),
            width=8,
        ),
    ),
)

RECOVERY = Row(
    "Recoveries",
    (
        Panel(
            "Duration of recoveries by phase, mean",
            "Of the recoveries of the last 5 minutes. `start` is the time for another process; spares make it short.",
            (Query(mean("recovery_seconds", by="phase", window=RECENT), "{{phase}}"),),
            unit="s",
            width=8,
            empty="no recovery in 5 minutes",
        ),
        Panel(
            "Slices lost",
            "Not heard of, or being replaced, by layer.",
            (Query(greatest("slices_lost", by="layer"), "{{layer}}"),),
            unit="none",
            kind="steps",
            width=8,
            decimals=0,
        ),
        Panel(
            "Sent again",
            "Publications sent into the cluster once more, and what came twice of that and was left out.",
            (
                Query(rate("publications_sent_again_total"), "publications sent again"),
                Query(rate("repeats_dropped_total"), "notifications left out"),
                Query(rate("publications_abandoned_total"), "publications abandoned"),
            ),
            unit="cps",
            width=8,
        ),
    ),
)

BOARD = Board(
    "kittiwake-transitions",
    "Kittiwake / Transitions",
    "Changes of the view: what they moved, how long each phase took, what they cost; and recoveries.",
    (NOW, COST, RECOVERY),
    MARKS,
)
