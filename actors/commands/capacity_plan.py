"""`kittiwake autoscaler plan`: how many slices a load would need, before there is such a load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from actors.commands.options import json_option

if TYPE_CHECKING:
    from autoscaler.capacity import CapacityModel
    from autoscaler.costs import Load
    from autoscaler.policy import ScalingPolicy

TARGET = 0.6
"""Useful share of the busiest slice where no policy says another."""


@click.command(short_help="Size a cluster for a load.")
@click.option("--interest", type=click.Path(dir_okay=False), metavar="FILE", help="The summary of `analyse interest`.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Publications a second.")
@click.option("--subscriptions", type=click.IntRange(min=0), help="Subscriptions, of all clients.")
@click.option("--notifications", type=click.FloatRange(min=0), help="Notifications for each publication.")
@click.option(
    "--policy", "policy_path", type=click.Path(dir_okay=False), metavar="FILE", help="Targets, limits, prices."
)
@click.option("--on", "recording", type=click.Path(), metavar="RECORDING", help="Learn from recorded signals first.")
@json_option
def plan(
    interest: str | None,
    rate: float | None,
    subscriptions: int | None,
    notifications: float | None,
    policy_path: str | None,
    recording: str | None,
    as_json: bool,
) -> None:
    """Tell how many slices of each layer a load would need, and why, by the capacity model.

    The load is that of an --interest summary, --rate, --subscriptions and --notifications going before what it says.
    Without --on the costs of a publication are those of another machine, and said to be.

    \b
    kittiwake autoscaler plan --rate 20000 --subscriptions 1000000 --notifications 5
    kittiwake autoscaler plan --interest interest.json --policy configs/autoscaler.yaml --on signals/
    """
    from autoscaler.costs import Load
    from autoscaler.fitted import FittedCapacity
    from autoscaler.policy_file import load_interest, load_policy

    summary = None if interest is None else load_interest(interest)
    given = summary.load if summary is not None else None
    if rate is None and given is None:
        raise click.UsageError("what is to be carried? give --interest or --rate")
    load = Load(
        rate if rate is not None else given.publications_per_s if given else 0.0,
        subscriptions if subscriptions is not None else given.subscriptions if given else 0.0,
        notifications if notifications is not None else given.notifications_per_publication if given else 0.0,
    )
    if not load.publications_per_s:
        raise click.UsageError(f"{interest} speaks of no publications; give --rate")
    capacity = FittedCapacity(summary)
    if recording is not None:
        from actors.recording import Recording

        for at_s, signals in Recording(recording):
            capacity.observe(at_s, signals)
    policy = None if policy_path is None else load_policy(policy_path)
    document = planned(capacity.model, load, policy)
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines(document)))


def planned(model: CapacityModel, load: Load, policy: ScalingPolicy | None) -> dict[str, Any]:
    """Return the plan and what it rests on, as JSON has it."""
    from autoscaler.capacity import COUNT_MAX
    from autoscaler.gates import cost_per_hour
    from autoscaler.policy import Utilization
    from autoscaler.signals import LAYERS
    from cluster.messages import MATCHER

    targets, limits, floors = {}, {}, {}
    for layer in LAYERS:
        own = None if policy is None else policy.layers.of(layer)
        triggers = () if own is None else own.triggers
        targets[layer] = next((one.target for one in triggers if isinstance(one, Utilization)), TARGET)
        limits[layer] = COUNT_MAX if own is None else own.max_replicas
        floors[layer] = 1 if own is None else own.min_replicas
    needs = model.plan(load, targets, limits)
    sizes = {layer: max(needs[layer].count or limits[layer], floors[layer]) for layer in LAYERS}
    capacity, weakest = model.whole(sizes, load)
    best = model.best_matchers(sizes, load)
    document: dict[str, Any] = {
        "load": load._asdict(),
        "layers": {
            layer: {
                "slices": None if needs[layer].count is None else sizes[layer],
                "reason": needs[layer].reason,
                "utilization": model.utilisation(layer, sizes, load),
                "target": targets[layer],
                "confidence": model.confidence(layer, sizes, load).words,
            }
            for layer in LAYERS
        },
        "capacity_per_s": capacity,
        "weakest": weakest,
        "matchers": {"useful_at_most": best.count, "reason": best.reason, "now": sizes[MATCHER]},
    }
    if policy is not None:
        document["cost_per_hour"] = cost_per_hour(policy.cost, sizes)
        document["currency"] = policy.cost.currency
    return document


def lines(document: dict[str, Any]) -> list[str]:
    """Return the plan for people."""
    load = document["load"]
    found = [
        f"{load['publications_per_s']:,.0f} publications/s, {load['subscriptions']:,.0f} subscriptions, "
        f"{load['notifications_per_publication']:,.2f} notifications each"
    ]
    for layer, one in document["layers"].items():
        count = "none will do" if one["slices"] is None else f"{one['slices']:,}"
        found.append(f"  {layer.replace('_', ' ') + 's':18} {count:>4}   {one['reason']}")
    weakest = document["weakest"].replace("_", " ")
    found.append(
        f"Together they carry up to {document['capacity_per_s']:,.0f} publications/s; the {weakest}s end first."
    )
    found.append(f"Matchers: {document['matchers']['reason']}.")
    if "cost_per_hour" in document:
        found.append(f"That costs {document['cost_per_hour']:,.2f} {document['currency']} an hour.")
    learned: dict[str, list[str]] = {}
    for layer, one in document["layers"].items():
        learned.setdefault(one["confidence"], []).append(layer.replace("_", " ") + "s")
    for text, layers in learned.items():
        found.append(f"Learned{'' if len(learned) == 1 else ' of ' + ', '.join(layers)}: {text}.")
    return found
