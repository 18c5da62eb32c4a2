"""The index's oracle: every subscription's normal form against every publication, in plain Python.

Slow and obvious on purpose; keep it so. It decodes publications by msgpack's own decoder and not by walk.py, so that the
two check each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cluster.language import geo
from cluster.language.normal import (
    ABSENT,
    BOOL,
    NULL,
    NUMBER,
    STRING,
    AnyAtom,
    Interval,
    Kinds,
    Member,
    NormalForm,
    Pattern,
    StringInterval,
)
from cluster.language.patterns import string_test
from cluster.matching.batch import Batch
from cluster.matching.hits import Hits

_MISSING = object()
_KIND: dict[type, int] = {bool: BOOL, int: NUMBER, float: NUMBER, str: STRING, type(None): NULL, object: ABSENT}


class Scan:
    """The same promises as `Index`, without an index."""

    def __init__(self) -> None:
        self._subscriptions: dict[int, tuple[int, NormalForm]] = {}

    def add(self, subscription: int, normal_form: NormalForm, client: int) -> None:
        """Add a subscription, or replace the one with this id."""
        self._subscriptions[subscription] = (client, normal_form)

    def remove(self, subscription: int) -> bool:
        """Remove a subscription; tell whether it was there."""
        return self._subscriptions.pop(subscription, None) is not None

    def match(self, batch: Batch) -> Hits:
        """Return which publication matches which subscription."""
        rows: list[tuple[int, int, int]] = []
        for place, attributes in enumerate(batch.publications()):
            if attributes is None:
                continue
            rows.extend(
                (place, client, subscription)
                for subscription, (client, normal_form) in self._subscriptions.items()
                if holds(normal_form, attributes)
            )
        rows.sort()
        return Hits(
            np.array([row[0] for row in rows], dtype=np.uint32),
            np.array([row[1] for row in rows], dtype=np.int64),
            np.array([row[2] for row in rows], dtype=np.uint64),
        )

    def fold(self, units: int = 0) -> bool:
        """Do nothing: there is no index to tend."""
        return False

    def check(self) -> None:
        """Do nothing: there is no index to check."""

    def memory_bytes(self) -> int:
        """Return a rough size: 100 bytes a subscription, its normal form left out."""
        return 100 * len(self._subscriptions)

    def __len__(self) -> int:
        return len(self._subscriptions)


def holds(normal_form: NormalForm, attributes: Mapping[str, object]) -> bool:
    """Tell whether a conjunction holds for the attributes."""
    return any(all(_holds(atom, attributes) for atom in conjunction) for conjunction in normal_form)


def _holds(atom: AnyAtom, attributes: Mapping[str, object]) -> bool:
    if isinstance(atom, Kinds):
        return bool(_kind(attributes.get(atom.attribute, _MISSING)) & atom.mask)
    if isinstance(atom, Interval):
        return _between(atom, attributes.get(atom.attribute, _MISSING), NUMBER)
    if isinstance(atom, StringInterval):
        return _between(atom, attributes.get(atom.attribute, _MISSING), STRING)
    if isinstance(atom, Member):
        value = attributes.get(atom.attribute, _MISSING)
        same_kind = [member for member in atom.values if _kind(member) == _kind(value)]
        return bool(same_kind) and (value in same_kind) != atom.negated
    if isinstance(atom, Pattern):
        text = attributes.get(atom.attribute, _MISSING)
        return isinstance(text, str) and string_test(atom.operator, atom.text)(text) != atom.negated
    latitude = attributes.get(atom.latitude, _MISSING)
    longitude = attributes.get(atom.longitude, _MISSING)
    if _kind(latitude) != NUMBER or _kind(longitude) != NUMBER:
        return False
    assert isinstance(latitude, int | float)
    assert isinstance(longitude, int | float)
    near = geo.is_near(latitude, longitude, atom.centre_latitude, atom.centre_longitude, atom.metres)
    return near != atom.negated


def _kind(value: object) -> int:
    return _KIND[type(value)]


def _between(atom: Interval | StringInterval, value: object, kind: int) -> bool:
    if _kind(value) != kind:
        return False
    low, high = atom.low, atom.high
    if low is not None and not (value > low if atom.low_open else value >= low):  # type: ignore[operator]
        return False
    return high is None or bool(value < high if atom.high_open else value <= high)  # type: ignore[operator]
