"""How the whole suite is spread over two processes; a part of it, named on the command line, runs in one."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from actors.launch import prepare_environment

prepare_environment()  # before any test's module imports Ray

TOGETHER = ("live", "spark")
"""Folders of tests that start clusters on Ray, or Sparks: one at a time."""
LAST = "tests/live/test_prometheus.py"
"""It waits more than it works: it is for the process that is done first, whatever the other one does."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes run the tests: 0 for this one alone."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return 2 if whole else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that nobody waits for it alone at the end."""
    items.sort(key=lambda item: (item.nodeid.startswith(LAST), not item.nodeid.startswith("tests/live/")))


class Spread(LoadScopeScheduling):
    """Each file is run by one process, and all of a folder of TOGETHER but LAST; in the order found."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.split("/")[1]
        return folder if folder in TOGETHER and file != LAST else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spread:
    """Called by pytest-xdist."""
    config.option.loadscopereorder = False
    return Spread(config, log)
