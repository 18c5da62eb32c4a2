"""Clusters for the live tests. A start takes seconds, so there are two for all of them, up at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actors.launch import prepare_environment
from bench.process import free_ports
from tests.live.processes import Up


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Several slices of every layer, on fixed ports."""
    up = Up(
        tmp_path_factory.mktemp("large"),
        name="large",
        layers={"connection_points": 2, "access_points": 2, "matchers": 3, "exit_points": 2},
        client_port={"port": free_ports(2)},
    )
    try:
        yield up.start()
    finally:
        up.kill_everything()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One slice of each layer; clients must be heard every 0.5 s."""
    up = Up(
        tmp_path_factory.mktemp("small"),
        name="small",
        client_port={"port": 0},
        timing={"client_heartbeat_ms": 500},
    )
    try:
        yield up.start()
    finally:
        up.kill_everything()


@pytest.fixture
def raylets() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine, that somebody else runs."""
    prepare_environment()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()
