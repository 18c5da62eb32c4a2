"""A scaling policy, typed: what users ask for, and nothing of how it is decided.

`policy_file.py` reads it from YAML and checks what no single key shows; `decider.py` applies it. Names that Ray Serve's
`autoscaling_config` has mean the same here (min_replicas, upscale_delay_s, upscaling_factor, look_back_period_s, ...),
and `behavior` is that of the Kubernetes HorizontalPodAutoscaler. In a file a duration may be a number in the unit that
its key names, or text such as 500ms, 30s, 5m, 2h or 1d.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from autoscaler.costs import Interest
from cluster.config import Settings

Share = Annotated[float, Meta(gt=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=31 * 86_400)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=31 * 86_400)]
"""0 switches it off."""
Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)]
Money = Annotated[float, Meta(ge=0)]
Replicas = Annotated[int, Meta(ge=1, le=2047)]
Amount = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
LayerName = Literal["connection_point", "access_point", "matcher", "exit_point"]


# --- service level ----------------------------------------------------------------------------------------------------


class Burn(Settings, frozen=True):
    """One window of a burn rate: the budget is used `factor` times as fast as would use it up exactly."""

    window_s: Seconds
    factor: Annotated[float, Meta(gt=0, le=1000)]


class BurnRates(Settings, frozen=True):
    """Either alone is an alarm: the fast one for a step, the slow one for what creeps."""

    fast: Burn = Burn(window_s=60, factor=10)
    slow: Burn = Burn(window_s=900, factor=2)


class Objective(Settings, frozen=True):
    """A service level.

    metric:    notification_delay_ms: accepted by a connection point -> handed to the subscribers' one.
               subscribe_ack_ms: a subscription received -> acknowledged.
    quantile, target: this share of the values is to be at most `target` ms over `window_s`.
    budget:    share of values that may be above the target; 1 - quantile if not given.
    """

    name: Name
    target: Milliseconds
    metric: Literal["notification_delay_ms", "subscribe_ack_ms"] = "notification_delay_ms"
    quantile: Annotated[float, Meta(ge=0.5, lt=1)] = 0.99
    window_s: Seconds = 60
    budget: Annotated[float, Meta(gt=0, lt=1)] | None = None
    burn_rate: BurnRates = BurnRates()

    @property
    def allowed_share(self) -> float:
        """The share of values that may be above the target."""
        return 1 - self.quantile if self.budget is None else self.budget


# --- cost -------------------------------------------------------------------------------------------------------------


class Prices(Settings, frozen=True):
    """What a replica of each layer costs an hour, in `currency`."""

    connection_point: Money = 0
    access_point: Money = 0
    matcher: Money = 0
    exit_point: Money = 0


class Cost(Settings, frozen=True):
    """Gates; they can only lower a wish, and never below what an SLO trigger asks unless on_conflict is `cost`.

    budget_per_hour:      of all layers' replicas together.
    max_per_million_notifications: growth that would make a million notifications dearer at the rate seen is refused.
    min_efficiency:       growth to m slices whose speed-up is predicted below this share of m is refused. 0: any.
    min_marginal_speedup: a step from m to m + 1 predicted to gain less than this share is refused. 0: any.
    """

    currency: Annotated[str, Meta(min_length=1, max_length=8)] = "EUR"
    replica_hour: Prices = Prices()
    budget_per_hour: Annotated[float, Meta(gt=0)] | None = None
    max_per_million_notifications: Annotated[float, Meta(gt=0)] | None = None
    min_efficiency: Annotated[float, Meta(ge=0, le=1)] = 0
    min_marginal_speedup: Annotated[float, Meta(ge=0, le=1)] = 0
    on_conflict: Literal["slo", "cost"] = "slo"


# --- triggers ---------------------------------------------------------------------------------------------------------


class Utilization(Settings, frozen=True, tag_field="type", tag="utilization"):
    """Useful time / wall time of the busiest replica. Within min..max nothing is wished; outside, what brings it to
    `target`. By default min and max are the target plus and minus the layer's tolerance.

    Of connection points only one more at a time, and only when the least busy one is above max too: clients that are
    connected stay where they are, and more is of use to those who connect from then on.
    """

    target: Share
    min: Share | None = None
    max: Share | None = None


class Slo(Settings, frozen=True, tag_field="type", tag="slo"):
    """Grows the layer when the objective of this name burns its budget too fast and the layer is the one to blame: the
    busiest, or the one whose backlog is largest. Never shrinks; keeps a layer from shrinking while it burns.
    """

    name: Name


class Queue(Settings, frozen=True, tag_field="type", tag="queue"):
    """What waits per replica, as Ray Serve's target_ongoing_requests: size * backlog / target over all replicas."""

    target_per_replica: Annotated[float, Meta(gt=0)]
    metric: Literal["lane_backlog", "lane_backlog_bytes"] = "lane_backlog"


class SplitMerge(Settings, frozen=True, tag_field="type", tag="split_merge"):
    """CUPUS (D4.5.1, 4.2): one more when a matcher's least time of the last `window_n` publications, over no less than
    `min_window_s`, is above split_above_ms; one fewer when the greatest of every matcher is below merge_below_ms.

    max_window_s: a window that has grown so old counts with the publications that it has, so that an idle cluster
                  shrinks as well.
    """

    split_above_ms: Milliseconds
    merge_below_ms: Milliseconds
    window_n: Amount = 500
    min_window_s: Seconds = 5
    max_window_s: Annotated[float, Meta(gt=0, le=3600)] = 300


class MemoryUse(Settings, frozen=True, tag_field="type", tag="memory"):
    """Subscriptions of a matcher, or any slice's resident bytes: ceil(sum / target_per_replica)."""

    target_per_replica: Annotated[float, Meta(gt=0)]
    metric: Literal["subscriptions", "rss_bytes"] = "subscriptions"


class Connections(Settings, frozen=True, tag_field="type", tag="connections"):
    """Clients connected to all connection points: ceil(sum / target_per_replica). They stay where they are; it is those
    who connect from then on who go to the new ones.
    """

    target_per_replica: Annotated[float, Meta(gt=0)]


class Ratio(Settings, frozen=True, tag_field="type", tag="ratio"):
    """A floor: one slice for every `one_per` of another layer."""

    of: LayerName
    one_per: Annotated[float, Meta(gt=0)]


Trigger = Utilization | Slo | Queue | SplitMerge | MemoryUse | Connections | Ratio


# --- layers -----------------------------------------------------------------------------------------------------------


class Rate(Settings, frozen=True):
    """At most so much change within any `period_s`: percent of the size at its beginning, or replicas."""

    type: Literal["percent", "replicas"]
    value: Annotated[float, Meta(gt=0)]
    period_s: Annotated[float, Meta(gt=0, le=3600)]


class Scaling(Settings, frozen=True):
    """One direction. stabilization_window_s: up takes the lowest wish in it, down the highest, and anew after a rise.

    select_policy: of several policies the one that allows the most (max), the least (min), or no change (disabled).
    An empty list of policies: no limit.
    """

    stabilization_window_s: SecondsOrNone = 0
    policies: tuple[Rate, ...] = (
        Rate(type="percent", value=100, period_s=15),
        Rate(type="replicas", value=4, period_s=15),
    )
    select_policy: Literal["max", "min", "disabled"] = "max"


class ScalingDown(Scaling, frozen=True):
    """The same with other defaults."""

    stabilization_window_s: SecondsOrNone = 300
    policies: tuple[Rate, ...] = (Rate(type="percent", value=100, period_s=15),)


class Behavior(Settings, frozen=True):
    """The defaults are the HorizontalPodAutoscaler's."""

    scale_up: Scaling = Scaling()
    scale_down: ScalingDown = ScalingDown()


class Tolerance(Settings, frozen=True):
    """No change while the wish before rounding is within this share of the size."""

    up: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    down: Annotated[float, Meta(ge=0, lt=1)] = 0.1


class LayerPolicy(Settings, frozen=True):
    """How one layer scales. A layer that the policy does not name is left alone.

    initial_replicas: what a new cluster starts with; None leaves that to the cluster's configuration.
    upscaling_factor, downscaling_factor: share of the way from the size to the wish that is gone at once; at least one.
    upscale_delay_s, downscale_delay_s:   a decision must hold continuously in one direction for so long.
    """

    triggers: Annotated[tuple[Trigger, ...], Meta(min_length=1)]
    min_replicas: Replicas = 1
    max_replicas: Replicas = 1
    initial_replicas: Replicas | None = None
    upscaling_factor: Annotated[float, Meta(gt=0, le=10)] = 1.0
    downscaling_factor: Annotated[float, Meta(gt=0, le=1)] = 1.0
    upscale_delay_s: SecondsOrNone = 30
    downscale_delay_s: SecondsOrNone = 600
    tolerance: Tolerance = Tolerance()
    behavior: Behavior = Behavior()


class LayerPolicies(Settings, frozen=True):
    """Layers that are not named are not scaled."""

    connection_point: LayerPolicy | None = None
    access_point: LayerPolicy | None = None
    matcher: LayerPolicy | None = None
    exit_point: LayerPolicy | None = None

    def of(self, layer: str) -> LayerPolicy | None:
        """Return a layer's policy, None if it is left alone."""
        found: LayerPolicy | None = getattr(self, layer)
        return found


# --- forecast, transition, guards -------------------------------------------------------------------------------------


class Scheduled(Settings, frozen=True):
    """From each time that `cron` names (five fields, in the policy's timezone) on, for `for_s`, at least so many."""

    cron: Annotated[str, Meta(min_length=9, max_length=128)]
    layer: LayerName
    min_replicas: Replicas
    for_s: Seconds


class ForecastPolicy(Settings, frozen=True):
    """Of the publication rate, `horizon` ahead; it can only raise a wish.

    method:   linear: trend over the look-back period; holt_winters: trend and season; schedule: only `schedule`.
              The schedule holds with every method but none.
    season_s: of holt_winters.
    horizon:  auto: 95th percentile of the observed times from a wish to its end (placement and transition), or 30 s
              before the first.
    """

    method: Literal["none", "linear", "holt_winters", "schedule"] = "none"
    season_s: Seconds = 86_400
    horizon: Literal["auto"] | Seconds = "auto"
    raise_only: Literal[True] = True
    schedule: tuple[Scheduled, ...] = ()


class TransitionPolicy(Settings, frozen=True):
    """strategy: as `kittiwake scale --strategy`; None as the cluster's configuration says. The sizes of waves are the
    cluster's (`transitions.wave_groups`, `wave_bytes`), and so are warm processes (`ray.spares`).
    """

    strategy: Literal["waves", "all_at_once", "stop_swap"] | None = None


class CapacityPolicy(Settings, frozen=True):
    """What the capacity model expects before anything is measured, and shares out by what measurements leave open.

    interest: the summary that `kittiwake analyse interest` writes: a file, relative to the policy's own, or its values.
              What was read of a file takes its place (`load_policy`), so that a policy goes to another node as a whole.
              None: the figures of the machine that the README was measured on.
    """

    interest: str | Interest | None = None

    @property
    def known(self) -> Interest | None:
        """The summary, once it was read; None if there is none."""
        assert not isinstance(self.interest, str), "load_policy has read it"
        return self.interest


class Disruption(Settings, frozen=True):
    """max_replicas_moving: slices that one transition may start and stop, over all layers.
    max_group_share: share of the key groups that it may move by shrinking the matchers; at least one step is allowed.
    """

    max_replicas_moving: Amount = 2047
    max_group_share: Share = 1.0


class Guards(Settings, frozen=True):
    """warmup_s:   after a transition signals are not used for so long.
    min_gain:         a growth that gained less than this share of its prediction is ineffective ...
    block_s:          ... and growth of that layer for load is blocked for so long, and for twice as long after each
                      further one in a row, at most 16 times. A row ends when the load or the size have doubled or
                      halved, or the layer has shrunk. min_gain 0: never.
    catch_up_s:       a shrink is refused if what then waits could not be worked off in this time. 0: not asked.
    require_placeable: a growth waits, and says so, while no node has room, and one for load while the slices keep the
                      nodes' cores busy. false where nodes are added for what waits.
    hold_peaks_s:     a layer that had to take a shrink back within this time has peaks that recur; from then on it
                      shrinks only when for 1.5 times the interval between them, at most this time, none has come.
                      0: never; it follows each of them.
    excluded_periods: `Sat 02:00-04:00`, `Mon-Fri 07:00-09:30` or `22:00-06:00`, in the policy's timezone: no change,
                      other than what an SLO that burns asks for.
    """

    warmup_s: SecondsOrNone = 20
    min_gain: Annotated[float, Meta(ge=0, le=1)] = 0.1
    block_s: SecondsOrNone = 900
    catch_up_s: SecondsOrNone = 30
    require_placeable: bool = True
    hold_peaks_s: SecondsOrNone = 3600
    excluded_periods: tuple[str, ...] = ()
    disruption_budget: Disruption = Disruption()


class FallbackReplicas(Settings, frozen=True):
    """Layers that are not named stay as they are."""

    connection_point: Replicas | None = None
    access_point: Replicas | None = None
    matcher: Replicas | None = None
    exit_point: Replicas | None = None


class Fallback(Settings, frozen=True):
    """After so many evaluations in a row without the signals that a layer's triggers need, it is brought to `replicas`.

    behavior: as KEDA's: static, current (stay), current_if_higher, current_if_lower. A fallback never scales in: what
              is below the size is not done.
    """

    failure_threshold: Amount = 3
    replicas: FallbackReplicas = FallbackReplicas()
    behavior: Literal["static", "current", "current_if_higher", "current_if_lower"] = "current_if_higher"


class Metadata(Settings, frozen=True):
    """name: shown in explanations and metrics."""

    name: Name


class ScalingPolicy(Settings, frozen=True):
    """A whole policy.

    mode:   auto acts; advise decides and says so, and does nothing; manual does not even decide.
    paused: freezes everything until it is resumed.
    """

    apiVersion: Literal["kittiwake/v1"]
    kind: Literal["ScalingPolicy"]
    metadata: Metadata
    layers: LayerPolicies
    mode: Literal["auto", "advise", "manual"] = "auto"
    paused: bool = False
    evaluate_interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 2
    metrics_interval_s: Annotated[float, Meta(ge=0.1, le=60)] = 1
    look_back_period_s: Seconds = 30
    timezone: str = "UTC"
    slo: tuple[Objective, ...] = ()
    cost: Cost = Cost()
    forecast: ForecastPolicy = ForecastPolicy()
    transition: TransitionPolicy = TransitionPolicy()
    capacity: CapacityPolicy = CapacityPolicy()
    guards: Guards = Guards()
    fallback: Fallback = Fallback()
