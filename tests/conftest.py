"""How the whole suite is spread over two processes; a part of it, named on the command line, runs in one."""

from __future__ import annotations

import pytest

from actors.launch import prepare_environment

prepare_environment()  # before any test's module imports Ray

MACHINE = ("live", "spark")
"""Tests that start a cluster or a Spark: one at a time, as each takes the machine for itself."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes run the tests: 0 for this one alone."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return 2 if whole else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in MACHINE):
            item.add_marker(pytest.mark.xdist_group("machine"))
