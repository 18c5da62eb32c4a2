"""What the autoscaler sees, what each trigger proposes, what it decides and what that costs."""

from __future__ import annotations

from configs.grafana.boards import Board, Panel, Query, Row
from configs.grafana.promql import MARKS, greatest, grown, rate

CHOSEN = 'layer=~"$layer"'
DECISION = 'trigger="decision"'
NOBODY = "no autoscaler runs"

WISHES = Row(
    "Decisions",
    (
        Panel(
            "What each trigger proposes",
            "Slices of a layer, before rounding up. The largest wish wins; forecasts may only raise it, costs and "
            "efficiency only lower it.",
            (
                Query(
                    greatest("desired_replicas", by="layer, trigger", of=f'{CHOSEN},trigger!="decision"'),
                    "{{layer}}: {{trigger}}",
                ),
            ),
            unit="none",
            decimals=1,
            empty=NOBODY,
        ),
        Panel(
            "Decision and slices",
            "What was decided, what was asked of the coordinator, and what there is.",
            (
                Query(greatest("desired_replicas", by="layer", of=f"{CHOSEN},{DECISION}"), "{{layer}}: decision"),
                Query(greatest("slices_wanted", by="layer", of=CHOSEN), "{{layer}}: asked for"),
                Query(greatest("slices", by="layer", of=CHOSEN), "{{layer}}: there"),
            ),
            unit="none",
            kind="steps",
            decimals=0,
        ),
        Panel(
            "Decisions by direction",
            "Within a minute. Out and in by turns is flapping: lengthen stabilization_window_s.",
            (
                Query(
                    grown("decisions_total", by="layer, direction", of=f'{CHOSEN},direction!="stay"', window="1m"),
                    "{{layer}}: {{direction}}",
                ),
            ),
            kind="stacked",
            empty=NOBODY,
        ),
        Panel(
            "Kept back, by reason",
            "Decisions within a minute in which a stage kept the autoscaler from what the triggers proposed; "
            "`kittiwake autoscaler explain` has the words.",
            (
                Query(
                    grown("decision_blocked_total", by="layer, reason", of=CHOSEN, window="1m"),
                    "{{layer}}: {{reason}}",
                ),
            ),
            kind="stacked",
            empty="nothing was kept back",
        ),
    ),
)

OBJECTIVES = Row(
    "Objectives",
    (
        Panel(
            "Error budget left",
            "Share of each objective's budget; at 0 it has been used up.",
            (Query(greatest("slo_budget_left", by="slo"), "{{slo}}"),),
            unit="percentunit",
            minimum=None,
            thresholds=((0, "red"),),
            empty="no objectives",
        ),
        Panel(
            "Burn rate",
            "1 uses the budget up exactly within the objective's period. Dashed: where the slow and the fast window "
            "of the ready policies begin to ask for more slices.",
            (Query(greatest("slo_burn_rate", by="slo, window"), "{{slo}}, {{window}}"),),
            thresholds=((2, "yellow"), (10, "red")),
            empty="no objectives",
        ),
    ),
)

MODEL = Row(
    "What more slices gain and cost",
    (
        Panel(
            "Utilisation",
            "Useful share of time of a layer's busiest slice, as the autoscaler has seen it.",
            (Query(greatest("utilisation", by="layer", of=CHOSEN), "{{layer}}"),),
            unit="percentunit",
            thresholds=((0.7, "yellow"), (0.85, "red")),
            empty=NOBODY,
        ),
        Panel(
            "Efficiency",
            "Speed-up divided by the number of slices. Below 40 % the balanced policy does not grow any further.",
            (Query(greatest("efficiency", by="layer", of=CHOSEN), "{{layer}}"),),
            unit="percentunit",
            maximum=1,
            thresholds=((0.4, "red"),),
            empty="not enough sizes seen",
        ),
        Panel(
            "Serial fraction (Karp and Flatt)",
            "From measurements at the sizes seen. Flat as slices are added: a part that is not shared out; rising: "
            "overhead, and more slices will not help.",
            (Query(greatest("karp_flatt", by="layer", of=CHOSEN), "{{layer}}"),),
            unit="percentunit",
            minimum=None,
            empty="not enough sizes seen",
        ),
        Panel(
            "Cost",
            "Price of what runs, an hour, and of a million notifications at the present rate, in the policy's "
            "currency.",
            (
                Query(greatest("cost_per_hour"), "an hour"),
                Query(
                    f"{greatest('cost_per_hour')} / ({rate('delivered_total')} * 3600 / 1000000 > 0)",
                    "a million notifications",
                ),
            ),
            unit="short",
            empty="the policy has no prices",
        ),
    ),
)

BOARD = Board(
    "kittiwake-autoscaler",
    "Kittiwake / Autoscaler",
    "What the autoscaler sees, what each trigger proposes, what it decides and what that costs.",
    (WISHES, OBJECTIVES, MODEL),
    MARKS,
    by_layer=True,
)
