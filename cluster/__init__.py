"""Kittiwake: content-based publish/subscribe for sensor data."""

from __future__ import annotations

from cluster.errors import FilterError
from cluster.language.builder import F
from cluster.language.filter import Filter, parse

__all__ = ["F", "Filter", "FilterError", "parse"]
