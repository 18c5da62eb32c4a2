"""Views for tests of machines, made of nothing but slots."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    Epoch,
    Member,
    Prepare,
)
from cluster.view import View, even_owners


def member(layer: str, slot: int, incarnation: int = 1) -> Member:
    """Return a member that listens nowhere in particular."""
    return Member(layer, slot, incarnation, "host", 1)


def view(
    epoch: int = 1,
    *,
    connection_points: Iterable[int] = (0,),
    access_points: Iterable[int] = (0,),
    matchers: Iterable[int] = (0,),
    exit_points: Iterable[int] = (0,),
    owners: bytes | None = None,
) -> View:
    """Return a view of these slots; without `owners` the key groups are spread evenly over the matchers."""
    layers = (
        (CONNECTION_POINT, connection_points),
        (ACCESS_POINT, access_points),
        (MATCHER, tuple(matchers)),
        (EXIT_POINT, exit_points),
    )
    members = [member(layer, slot) for layer, slots in layers for slot in slots]
    own = even_owners([one.slot for one in members if one.layer == MATCHER]) if owners is None else owners
    return View(Epoch(epoch), tuple(sorted(members, key=lambda one: one.peer)), own)


def prepare(after: View) -> Prepare:
    """Return the message that announces a view."""
    return Prepare(after.epoch, list(after.members), after.owners)
