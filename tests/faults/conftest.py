"""What the tests of links need before their time limits run."""

from __future__ import annotations

import pytest

from cluster.matching import warm


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the matching index, which takes a minute on a machine that has not done so yet."""
    warm()
