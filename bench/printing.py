"""How a benchmark prints its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping


def show(figures: Mapping[str, object], *, as_json: bool) -> None:
    """Print one JSON object, or a line for each figure."""
    if as_json:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:24} {value}")
