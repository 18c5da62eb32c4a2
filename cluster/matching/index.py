"""The index (first version: a scan behind the final interface; the real one follows)."""

from __future__ import annotations

from cluster.matching.scan import Scan


class Index(Scan):
    """Finds the subscriptions that match publications."""
