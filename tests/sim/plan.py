"""What a seed stands for: the cluster's size and limits, the publications, the filters, what is done how often."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import msgpack

from cluster.config import ClientLimits, Config, Flow, Layers, Timing, Transitions
from cluster.wish import PLURALS

WORDS = ("Pza. de Espana", "Pza. del Carmen", "Retiro", "Farolillo")

FILTERS = (
    "exists id",
    "a > 3",
    "a <= 3",
    "a > 1 and b < 7",
    "a == 3 or b == 4 or b > 7",
    "not (a > 4)",
    "(a > 4) is not true",
    "station starts_with 'Pza'",
    "station == 'Retiro' and b >= 2",
    "a between 2 and 6 and station != 'Retiro'",
    "missing b or a in (1, 2, 3)",
)

LOSSY_POLICIES = ("drop_oldest", "drop_newest", "latest_per_key(a)", "latest_per_key(station)")

BROKEN_POLICIES = ("odd", "latest_per_key", "latest_per_key()", "latest_per_key(in)", "drop_oldest(a)")

BROKEN_FILTERS = ("a >", "a > 3 and", "b between 5 and 2", "(a == 1", "{", "no such (", "")


@dataclass(frozen=True)
class Plan:
    """The numbers of one run; actions: how many things clients and the network do before everything is healed.

    trouble: how often something breaks. scaling: how often another view is wished for, 0 for never.
    wished: the layers that wishes are about. crashes: how often the coordinator dies, where there is trouble.
    deaths: how often a role's process dies, where there is trouble. midst: only during view changes.
    output: exit points write an output, and die in the middle of what they do; output_all: of all publications.
    immortal: a layer of which none dies. validity: how often publications are valid for a while, and wanted so.
    """

    config: Config
    clients: int
    actions: int
    act_weight: float
    trouble: float
    scaling: float
    wished: tuple[str, ...]
    crashes: float
    deaths: float
    midst: bool
    validity: float
    immortal: str
    receive_windows: tuple[int, ...]
    output: bool = False
    output_all: bool = False


def draw_plan(rng: random.Random) -> Plan:
    """Return a plan. Limits are small, so that a short run meets them."""
    few = rng.random() < 0.7
    window_bytes = rng.choice((400, 2_000, 1 << 20))
    config = Config(
        layers=Layers(
            connection_points=rng.randint(1, 3),
            access_points=rng.randint(1, 3),
            matchers=rng.randint(1, 3),
            exit_points=rng.randint(1, 3),
        ),
        client_limits=ClientLimits(frame_bytes=4096, subscriptions=rng.choice((3, 1000))),
        flow=Flow(
            publish_window=rng.choice((4, 16, 64)),
            publish_window_bytes=window_bytes,
            publish_pool_bytes=rng.choice((1_000, 1 << 20)),
            publish_floor_bytes=min(200, window_bytes),
            flight_bytes=rng.choice((150, 1_000, 1 << 20)),
            queue_messages=rng.choice((2, 8, 64)),
            queue_bytes=rng.choice((300, 2_000, 1 << 20)),
            stall_ms=rng.choice((1_000, 30_000)),
            batch_publications=rng.choice((3, 1024)),
        ),
        timing=Timing(client_heartbeat_ms=rng.choice((1_000, 10_000)), role_lost_ms=rng.choice((600, 1_500, 10_000))),
        transitions=Transitions(
            wave_groups=rng.choice((500, 1_000, 4_096)),
            slow_switch_ms=rng.choice((300, 60_000)),
            start_timeout_ms=rng.choice((300, 5_000)),
            prepare_timeout_ms=rng.choice((300, 3_000, 30_000)),
            move_clients_ms=rng.choice((200, 2_000)),
        ),
    )
    return Plan(
        config,
        clients=rng.randint(2, 4) if few else rng.randint(4, 7),
        actions=rng.randint(40, 140),
        act_weight=rng.choice((0.05, 0.3, 2.0)),
        trouble=rng.choice((0.0, 0.3, 1.0)),
        scaling=rng.choice((0.0, 0.3, 1.0, 1.0)),
        wished=tuple(PLURALS),
        crashes=1.0,
        deaths=rng.choice((0.0, 0.5, 2.0)),
        midst=False,
        validity=0.0,
        immortal="",
        receive_windows=rng.choice(((1,), (4, 16), (1024,), (1, 4, 1024))),
    )


SCENARIOS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "undying": {"deaths": 0.0, "validity": 0.0},
    "still": {"scaling": 0.0},
    "matchers": {"scaling": 1.0, "wished": ("matchers",), "crashes": 0.0, "deaths": 0.0},
    "exit_points": {"scaling": 1.0, "wished": ("exit_points",), "crashes": 0.0, "deaths": 0.0},
    "access_points": {"scaling": 1.0, "wished": ("access_points",), "crashes": 0.0, "deaths": 0.0},
    "connection_points": {"scaling": 1.0, "wished": ("connection_points",), "crashes": 0.0, "deaths": 0.0},
    "member_crash": {"scaling": 1.0, "crashes": 0.0, "deaths": 4.0, "midst": True, "trouble": 1.0},
    "crash": {"scaling": 0.0, "crashes": 0.0, "deaths": 6.0, "trouble": 1.0},
    "crash_all": {"scaling": 0.3, "crashes": 2.0, "deaths": 4.0, "trouble": 1.0},
    "valid": {"validity": 1.0, "immortal": "connection_point"},
    "valid_crash": {"validity": 1.0, "deaths": 4.0, "trouble": 1.0, "scaling": 0.3},
    "valid_moves": {"validity": 1.0, "scaling": 1.0, "wished": ("connection_points",), "crashes": 0.0, "deaths": 0.0},
    "output": {"output": True, "deaths": 4.0, "trouble": 1.0},
    "output_all": {"output": True, "output_all": True, "deaths": 4.0, "trouble": 1.0},
    "output_still": {"output": True, "scaling": 0.0},
    "coordinator": {"scaling": 1.0, "trouble": 1.0, "crashes": 4.0, "deaths": 0.0},
}
"""What a run is about; the rest is drawn as for `mixed`."""


def draw_attributes(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a well-formed publication; `id` names it in the whole run."""
    attributes: dict[str, Any] = {"id": number, "a": rng.randint(0, 8)}
    if rng.random() < 0.8:
        attributes["b"] = rng.choice((rng.randint(0, 9), rng.random() * 9))
    if rng.random() < 0.8:
        attributes["station"] = rng.choice(WORDS)
    return attributes


def draw_broken(rng: random.Random, number: int) -> bytes:
    """Return the bytes of a publication that the cluster has to reject."""
    return rng.choice(
        (
            msgpack.packb({"id": number, "a": math.nan}),
            msgpack.packb({"id": number, "a": [1, 2]}),
            msgpack.packb({"id": number})[:-1],
            msgpack.packb([number]),
            b"\xc1",
            b"",
        )
    )
