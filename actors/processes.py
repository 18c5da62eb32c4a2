"""What the processes of the coordinator and of slices have in common: how Ray runs them, how they begin and end."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

import ray

from cluster.config import Config

log = logging.getLogger("kittiwake")

FAILED_EXIT = 70
"""The exit status of a process whose machine raised (EX_SOFTWARE)."""


def actor_options(
    name: str, config: Config, own: bool, *, max_restarts: int = 0, near: str | None = None
) -> dict[str, Any]:
    """Return how Ray is to run an actor of the cluster.

    own:  Ray is there for this cluster alone.
    near: the node where it is to be, as long as that is up; None leaves it to the configuration.
    """
    strategy: Any = "SPREAD" if config.ray.placement == "spread" else "DEFAULT"
    if near is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(near, soft=True)
    return {
        "name": name,
        "lifetime": "detached",
        # On one machine there is nothing to place, and no number of CPUs to be an obstacle to growth.
        "num_cpus": 0 if own else config.ray.cpus_per_role,
        "max_restarts": max_restarts,
        "max_task_retries": 0,
        "scheduling_strategy": strategy,
        "enable_task_events": False,
    }


def prepare_process() -> None:
    """Set up the log, run as everybody else does, and have garbage collected seldom."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    _be_as_urgent_as_others()
    # Nothing on the data path makes reference cycles; a collection only costs delay.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _be_as_urgent_as_others() -> None:
    """Undo that Ray starts workers at nice 15: a role that waits for every other process is taken for dead."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice <= 0:
        return
    tasks = Path("/proc/self/task")  # Linux keeps it for each thread, others for the process
    try:
        for thread in [int(one.name) for one in tasks.iterdir()] if tasks.exists() else [0]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, thread, 0)
    except PermissionError:
        log.warning(
            "this node's Ray runs Kittiwake at nice %d, behind every other process, and this user may not change that: "
            "start Ray with RAY_worker_niceness=0",
            nice,
        )


def leave(error: BaseException) -> None:
    """End the process at once; the shell has logged the error."""
    del error
    sys.stderr.flush()
    os._exit(FAILED_EXIT)


def node_address() -> str:
    """Return this node's address."""
    util: Any = ray.util  # its functions are untyped
    address: str = util.get_node_ip_address()
    return address


def node_id() -> str:
    """Return Ray's name of this node."""
    identity: str = ray.get_runtime_context().get_node_id()
    return identity


def cores_of_nodes() -> dict[str, float]:
    """Return by address how many cores the nodes that are up have, as Ray counts them; it blocks."""
    cores: dict[str, float] = {}
    for node in _nodes_up():
        address = node["NodeManagerAddress"]
        cores[address] = cores.get(address, 0.0) + node["Resources"].get("CPU", 0.0)
    return cores


def nodes_alive() -> set[str]:
    """Return Ray's names of the nodes that are up; it blocks."""
    return {node["NodeID"] for node in _nodes_up()}


def _nodes_up() -> list[dict[str, Any]]:
    nodes: Any = ray.nodes  # untyped
    return [node for node in nodes() if node["Alive"]]
