"""Clusters for the live tests. A start takes seconds, so there are two for all of them, up at the same time."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from bench.process import free_ports
from tests.live.processes import Up


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What is left of Ray complains of its processes when it is collected: not within the test of somebody else."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


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
    """One slice of each layer, on fixed ports, and who stands by; clients must be heard every second."""
    up = Up(
        tmp_path_factory.mktemp("small"),
        name="small",
        client_port={"port": free_ports(3) + 2},  # behind those of `large`, which may not be up yet
        timing={"client_heartbeat_ms": 1000},
        ray={"spares": 1},
        metrics={"port": 0},
    )
    try:
        yield up.start()
    finally:
        up.kill_everything()
