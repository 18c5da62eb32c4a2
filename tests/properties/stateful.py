"""How far the stateful machines go: few examples by default, many on request.

    KITTIWAKE_EXAMPLES=1000 KITTIWAKE_STEPS=100 uv run pytest tests/properties/test_stateful.py

By default the examples are the same every time; on request they are drawn anew, and a failure prints how to come back
to it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("KITTIWAKE_EXAMPLES", "100"))
STEPS = int(os.environ.get("KITTIWAKE_STEPS", "50"))

SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    derandomize="KITTIWAKE_EXAMPLES" not in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
