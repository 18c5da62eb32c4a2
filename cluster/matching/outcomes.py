"""What becomes of an encoded normal form that is to be added; `packing.py` says it, `index.py` acts on it."""

from __future__ import annotations

PACKED, NOT_UNDERSTOOD, TOO_LARGE, TOO_MANY_ATTRIBUTES = range(4)
