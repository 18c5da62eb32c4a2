"""Which matcher owns which key group: as even as can be, with as few groups moved as that takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster.columns import U16, u16
from cluster.view import KEY_GROUPS

LOAD_TOLERANCE = 0.05
"""Slots whose loads differ by less than this share of the mean are even enough to be left alone."""


def moved_groups(before: bytes, after: bytes) -> list[int]:
    """Return the key groups that the two assignments give to different slots, ascending."""
    return np.flatnonzero(u16(before) != u16(after)).tolist()


def fewest_moves(before: bytes, matchers: Sequence[int]) -> int:
    """Return how many groups must move at least to give each of these slots its even share, within one group.

    What a slot has beyond its share must go, and slots with the most may keep the larger shares.
    """
    owners = u16(before)
    counts = sorted((int((owners == slot).sum()) for slot in matchers), reverse=True)
    return KEY_GROUPS - sum(map(min, counts, _shares(len(counts))))


def _shares(slots: int) -> list[int]:
    least, larger = divmod(KEY_GROUPS, slots)
    return [least + (place < larger) for place in range(slots)]


def reassign(before: bytes, matchers: Sequence[int], loads: Sequence[float] | None = None) -> bytes:
    """Return the assignment of all key groups to these slots that is closest to the one before.

    Without loads every slot gets the same number of groups, within one, and `fewest_moves` of them move. With loads,
    one per key group, no slot keeps more than it can give to another one to the good of both.
    """
    slots = sorted(matchers)
    owners = u16(before).astype(np.int64)
    homeless = np.flatnonzero(~np.isin(owners, slots))
    if loads is None:
        _even(owners, slots, homeless)
    else:
        _by_load(owners, slots, homeless, np.asarray(loads, np.float64))
    return owners.astype(U16).tobytes()


def _even(owners: np.ndarray, slots: list[int], homeless: np.ndarray) -> None:
    own = {slot: np.flatnonzero(owners == slot) for slot in slots}
    by_size = sorted(slots, key=lambda slot: (-len(own[slot]), slot))
    shares = dict(zip(by_size, _shares(len(slots)), strict=True))
    spare = np.sort(np.concatenate([homeless, *(own[slot][shares[slot] :] for slot in slots)]))
    at = 0
    for slot in slots:
        needed = max(shares[slot] - len(own[slot]), 0)
        owners[spare[at : at + needed]] = slot
        at += needed


def _by_load(owners: np.ndarray, slots: list[int], homeless: np.ndarray, loads: np.ndarray) -> None:
    total = {slot: float(loads[owners == slot].sum()) for slot in slots}
    count = {slot: int((owners == slot).sum()) for slot in slots}

    def give(group: int, slot: int) -> None:
        owners[group] = slot
        total[slot] += float(loads[group])
        count[slot] += 1

    for group in sorted(homeless.tolist(), key=lambda group: (-loads[group], group)):
        give(group, min(slots, key=lambda slot: (total[slot], count[slot], slot)))
    enough = LOAD_TOLERANCE * float(loads.sum()) / len(slots)

    def spare() -> tuple[int, int, int] | None:
        """Return the group to move next, from where and to where."""
        bare = min(slots, key=lambda slot: (total[slot], slot))
        # The fullest slot may hold nothing but one hot group: then the next one gives.
        for full in sorted(slots, key=lambda slot: (-total[slot], slot)):
            gap = total[full] - total[bare]
            if gap <= enough:
                return None
            # Half the gap makes both even; more would only change places.
            movable = np.flatnonzero((owners == full) & (loads > 0) & (loads <= gap / 2))
            if len(movable):
                return int(movable[np.argmax(loads[movable])]), full, bare
        return None

    while (move := spare()) is not None:
        group, full, bare = move
        total[full] -= float(loads[group])
        count[full] -= 1
        give(group, bare)
