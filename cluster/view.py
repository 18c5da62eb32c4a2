"""A view: the agreed, numbered set of slices, and which matcher owns which key group.

4096 key groups, fixed for the life of a cluster; a subscription's group is a hash of its id. The number is from
Megaphone (arXiv 1812.01371), where up to 2**12 bins were free and 2**16 had a visible price.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from cluster import columns
from cluster.columns import Column
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    Epoch,
    Install,
    Member,
    Peer,
    Prepare,
    Recover,
)

KEY_GROUPS = 4096

_MASK = (1 << 64) - 1


def key_group(subscription: int) -> int:
    """Return the key group of a subscription: the top bits of splitmix64's finaliser, so that near ids part."""
    z = subscription + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return (z ^ z >> 31) >> 52


def key_groups(subscriptions: Column) -> Column:
    """Return the key groups of a column of subscriptions (uint64)."""
    z = subscriptions + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (z ^ z >> np.uint64(31)) >> np.uint64(52)


def even_owners(matchers: Sequence[int]) -> bytes:
    """Return an assignment of all key groups to these slots, balanced within one group; uint16 per group."""
    slots = np.array(sorted(matchers), columns.U16)
    return slots[np.arange(KEY_GROUPS) * len(slots) // KEY_GROUPS].tobytes()


@dataclass(frozen=True)
class View:
    """All layers under one number. Slots are ascending and never empty.

    owners: per key group the slot of the matcher that answers for it, as it came in Install.
    """

    epoch: Epoch
    members: tuple[Member, ...]
    owners: bytes
    connection_points: tuple[int, ...] = field(init=False)
    access_points: tuple[int, ...] = field(init=False)
    matchers: tuple[int, ...] = field(init=False)
    exit_points: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        peers: dict[str, tuple[Peer, ...]] = {}
        for name, layer in (
            ("connection_points", CONNECTION_POINT),
            ("access_points", ACCESS_POINT),
            ("matchers", MATCHER),
            ("exit_points", EXIT_POINT),
        ):
            slots = tuple(sorted(member.slot for member in self.members if member.layer == layer))
            assert slots, f"a view without a {layer}"
            assert len(set(slots)) == len(slots), f"a {layer} slot is in the view twice"
            object.__setattr__(self, name, slots)
            peers[layer] = tuple(Peer(layer, slot) for slot in slots)
        owners = columns.u16(self.owners)
        assert len(owners) == KEY_GROUPS, f"{len(owners)} key groups instead of {KEY_GROUPS}"
        present = set(np.unique(owners).tolist())
        assert present <= set(self.matchers), "a key group is owned by a slot that is not in the view"
        object.__setattr__(self, "_owners", owners.tolist())
        object.__setattr__(self, "_by_peer", {member.peer: member for member in self.members})
        object.__setattr__(self, "_peers", peers)

    def owner_of_group(self, group: int) -> int:
        """Return the slot of the matcher that owns the key group."""
        owners: list[int] = self._owners  # type: ignore[attr-defined]
        return owners[group]

    def owner(self, subscription: int) -> int:
        """Return the slot of the matcher that owns the subscription."""
        owners: list[int] = self._owners  # type: ignore[attr-defined]
        return owners[key_group(subscription)]

    def member(self, peer: Peer) -> Member | None:
        """Return who plays the slot, None if it is not in this view."""
        by_peer: dict[Peer, Member] = self._by_peer  # type: ignore[attr-defined]
        return by_peer.get(peer)

    def peers(self, layer: str) -> tuple[Peer, ...]:
        """Return the slices of a layer, ascending by slot."""
        by_layer: dict[str, tuple[Peer, ...]] = self._peers  # type: ignore[attr-defined]
        return by_layer[layer]

    def groups_of(self, matcher: int) -> list[int]:
        """Return the key groups that the matcher in this slot owns, ascending."""
        return np.flatnonzero(columns.u16(self.owners) == matcher).tolist()

    @property
    def owners_list(self) -> list[int]:
        """The owner of each key group."""
        owners: list[int] = self._owners  # type: ignore[attr-defined]
        return owners

    def slots(self, layer: str) -> tuple[int, ...]:
        """Return the slots of a layer, ascending."""
        by_layer = {
            CONNECTION_POINT: self.connection_points,
            ACCESS_POINT: self.access_points,
            MATCHER: self.matchers,
            EXIT_POINT: self.exit_points,
        }
        return by_layer[layer]

    def install(self) -> Install:
        """Return the message that makes others serve this view."""
        return Install(self.epoch, list(self.members), self.owners)


def view_of(message: Install | Prepare | Recover) -> View:
    """Return the view that a message carries; the same one for a machine and the role around it."""
    return _view(message.epoch, tuple(message.members), message.owners)


@lru_cache(maxsize=4)
def _view(epoch: int, members: tuple[Member, ...], owners: bytes) -> View:
    return View(Epoch(epoch), members, owners)


def first_view(members: Iterable[Member]) -> View:
    """Return epoch 1 over these members, the key groups spread evenly over the matchers."""
    known = tuple(sorted(members, key=lambda member: member.peer))
    return View(Epoch(1), known, even_owners([member.slot for member in known if member.layer == MATCHER]))
