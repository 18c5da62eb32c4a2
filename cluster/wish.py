"""From what is wanted to the next view on the way there.

A wish names slots; reaching it may take several views: with waves each moves some key groups only. Newcomers are in
the first one, so that each later one is a change among roles that are there; leavers are out of the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from cluster.assignment import moved_groups
from cluster.columns import u16
from cluster.errors import KittiwakeError
from cluster.messages import CONNECTION_POINT, DATA_LAYERS, Epoch, Member, Peer
from cluster.view import View

MAX_SLOTS = 2047

Slots = dict[str, list[int]]
"""Per layer the slots that are wanted, ascending."""

PLURALS = {
    "connection_points": "connection_point",
    "access_points": "access_point",
    "matchers": "matcher",
    "exit_points": "exit_point",
}


class WishError(KittiwakeError):
    """What is asked for cannot be; the text says why."""


def slots_of(view: View) -> Slots:
    """Return the slots that the view has."""
    return {layer: list(view.slots(layer)) for layer in DATA_LAYERS}


def wanted_slots(
    present: Slots, counts: Mapping[str, object], replaced: Sequence[Sequence[object]], taken: Collection[Peer]
) -> Slots:
    """Return the slots for a wish: counts by layer (`matchers: 3`), and slices to be replaced (`[matcher, 2]`).

    Growing takes the lowest free slots, shrinking the highest ones away; `taken` are not free, though not in `present`.
    Raises: WishError.
    """
    wanted = {layer: list(slots) for layer, slots in present.items()}
    for name, count in counts.items():
        if name not in PLURALS:
            raise WishError(f"{name!r} is no layer; known are {', '.join(PLURALS)}")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_SLOTS:
            raise WishError(f"{name}: {count!r}, allowed is a whole number from 1 to {MAX_SLOTS}")
        slots = wanted[PLURALS[name]]
        del slots[count:]
        while len(slots) < count:
            slots.append(_free(PLURALS[name], wanted, present, taken))
        slots.sort()
    if not isinstance(replaced, list | tuple):
        raise WishError(f"replace: {replaced!r}, expected is a list of [layer, slot]")
    for entry in replaced:
        if not isinstance(entry, list | tuple) or len(entry) != 2 or type(entry[1]) is not int:
            raise WishError(f"replace: {entry!r}, expected is [layer, slot]")
        layer, slot = entry
        if layer not in DATA_LAYERS:
            raise WishError(f"{layer!r} is no layer; known are {', '.join(DATA_LAYERS)}")
        if slot not in wanted[str(layer)]:
            known = ", ".join(map(str, wanted[str(layer)]))
            raise WishError(f"{layer} {slot} is not in the cluster; its slots are {known}")
        slots = wanted[str(layer)]
        slots.append(_free(str(layer), wanted, present, taken))
        slots.remove(int(str(slot)))
        slots.sort()
    return wanted


def _free(layer: str, wanted: Slots, present: Slots, taken: Collection[Peer]) -> int:
    for slot in range(MAX_SLOTS + 1):
        if slot not in wanted[layer] and slot not in present[layer] and Peer(layer, slot) not in taken:
            return slot
    raise WishError(f"no free slot among the {layer}s")


def next_view(
    view: View,
    epoch: int,
    wanted: Slots,
    owners: bytes,
    newcomers: Sequence[Member],
    full: Collection[int],
    groups: int,
) -> View | None:
    """Return the next view on the way, None if there is none to be made now.

    owners:    where the key groups are to be in the end.
    newcomers: members for the wanted slots that the view does not have.
    full:      slots of connection points that still have clients; they stay.
    groups:    how many key groups may move.
    """
    moves = moved_groups(view.owners, owners)
    chosen = _spread(moves, view.owners, owners)[:groups]
    now = u16(view.owners).copy()
    now[chosen] = u16(owners)[chosen]
    last = len(chosen) == len(moves)
    members = [*view.members, *newcomers]
    if last:
        stay = {Peer(layer, slot) for layer, slots in wanted.items() for slot in slots}
        stay |= {Peer(CONNECTION_POINT, slot) for slot in full}
        members = [member for member in members if member.peer in stay]
    if not chosen and {member.peer for member in members} == {member.peer for member in view.members}:
        return None
    return View(Epoch(epoch), tuple(sorted(members, key=lambda member: member.peer)), now.tobytes())


def _spread(moves: list[int], before: bytes, after: bytes) -> list[int]:
    """Order the moves so that any few of them burden all sources and targets alike."""
    groups = np.array(moves, np.int64)
    ways = u16(before)[groups].astype(np.int64) << 16 | u16(after)[groups]
    _, first, lot, sizes = np.unique(ways, return_index=True, return_inverse=True, return_counts=True)
    by_lot = np.argsort(lot, kind="stable")
    place = np.empty(len(groups), np.int64)
    place[by_lot] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ranked: list[int] = groups[np.lexsort((groups, first[lot], place / sizes[lot]))].tolist()
    return ranked
