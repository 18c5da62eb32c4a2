"""Moving key groups between two matchers: the snapshot is exact whatever the order, and no step is long."""

from __future__ import annotations

import random
from collections import deque
from itertools import chain
from typing import Any

import pytest

from cluster import moving as module
from cluster.columns import UINT32, UINT64, u16, unpack
from cluster.leftovers import Leftovers
from cluster.messages import (
    COORDINATOR_PEER,
    MATCHER,
    Failed,
    GroupCopy,
    GroupsEnd,
    GroupsTaken,
    Instruction,
    Peer,
    Ready,
    Send,
    SubscriptionChange,
)
from cluster.moving import Moving
from cluster.table import Table
from cluster.view import View, key_group
from tests.unit.views import view

BEFORE = view(1, access_points=(4, 5), matchers=(0,))
AFTER = view(2, access_points=(4, 5), matchers=(0, 1))


def of_group(low: int, high: int) -> list[int]:
    """Return some subscriptions with groups in [low, high)."""
    return [number for number in range(20_000) if low <= key_group(number) < high]


STAYS, MOVES = of_group(0, 2048), of_group(2048, 4096)


class Side:
    """A matcher without an index: its table, its part of the move, and what it applies."""

    def __init__(self, slot: int, before: View = BEFORE, after: View = AFTER) -> None:
        self.slot = slot
        self.table = Table()
        self.applied: list[SubscriptionChange] = []
        self.leftovers = Leftovers()
        self.moving = Moving(slot, before, after, self.table, self.leftovers, self.apply)

    def put(self, *subscriptions: int, change: int = 1, form: bytes = b"form") -> None:
        for subscription in subscriptions:
            self.table.put(key_group(subscription), SubscriptionChange(change, subscription, form))

    def apply(self, entry: SubscriptionChange, group: int) -> None:
        assert group == key_group(entry.subscription)
        self.applied.append(entry)

    def mark(self, *access_points: int) -> None:
        for access_point in access_points:
            self.moving.mark(access_point)

    def step(self) -> tuple[list[Any], bool]:
        """Return the messages of one step, with whom they are for, and whether there is more."""
        out, more = self.moving.step()
        return messages(out), more

    def all_steps(self) -> list[Any]:
        sent, more = self.step()
        while more:
            out, more = self.step()
            sent += out
        return sent


def messages(out: list[Instruction]) -> list[Any]:
    assert all(isinstance(one, Send) for one in out)
    return [(one.peer, one.message) for one in out if isinstance(one, Send)]


def copied(sent: list[Any]) -> list[int]:
    """Return the subscriptions in the copies."""
    return [entry.subscription for _, message in sent if isinstance(message, GroupCopy) for entry in message.entries]


def change(number: int, subscription: int, form: bytes | None = b"new") -> SubscriptionChange:
    return SubscriptionChange(number, subscription, form)


def test_who_gives_what_to_whom_is_in_the_views() -> None:
    source, target = Side(0), Side(1)
    assert source.moving.targets == dict.fromkeys(range(2048, 4096), 1)
    assert target.moving.sources == dict.fromkeys(range(2048, 4096), 0)
    assert source.moving.sources == target.moving.targets == {}
    assert source.moving.mixes
    assert target.moving.mixes
    assert not Side(0, BEFORE, view(2, access_points=(4,), matchers=(0,))).moving.mixes


def test_the_first_mark_begins_the_copy_of_what_moves() -> None:
    source = Side(0)
    source.put(*MOVES[:5], *STAYS[:5])
    assert source.step() == ([], False)
    source.mark(5)
    sent, more = source.step()
    assert sorted(copied(sent)) == sorted(MOVES[:5])
    assert {peer for peer, _ in sent} == {Peer(MATCHER, 1)}
    assert not more
    assert source.step() == ([], False), "no end before the last mark"


def test_the_end_tells_per_group_what_was_sent() -> None:
    source = Side(0)
    source.put(*MOVES[:50])
    source.mark(4, 5)
    sent = source.all_steps()
    (end,) = [message for _, message in sent if isinstance(message, GroupsEnd)]
    groups = sorted({key_group(one) for one in MOVES[:50]})
    assert u16(end.groups).tolist() == groups
    counts = unpack(UINT32, end.counts)
    assert dict(zip(groups, counts, strict=True)) == {
        group: sum(key_group(one) == group for one in MOVES[:50]) for group in groups
    }
    assert len(unpack(UINT64, end.digests)) == len(groups)
    assert sent[-1] == (COORDINATOR_PEER, Ready(2, 0, 0)), "of what came here there is nothing"


def test_a_change_on_an_unmarked_lane_is_sent_on_and_one_behind_a_mark_is_not() -> None:
    source = Side(0)
    moving, stays = MOVES[0], STAYS[0]
    assert source.moving.changed(4, change(7, moving), key_group(moving)) is None, "not begun: the copy will hold it"
    source.mark(4)
    out = source.moving.changed(4, change(8, moving), key_group(moving))
    assert out is None, "the access point tells the other owner itself"
    out = source.moving.changed(5, change(9, moving), key_group(moving))
    assert out == Send(Peer(MATCHER, 1), GroupCopy(2, [change(9, moving)]))
    removal = source.moving.changed(5, change(10, moving, None), key_group(moving))
    assert removal == Send(Peer(MATCHER, 1), GroupCopy(2, [change(10, moving, None)]))
    assert source.moving.changed(5, change(11, stays), key_group(stays)) is None
    source.mark(5)
    assert source.moving.changed(5, change(12, moving), key_group(moving)) is None


def test_a_newcomer_among_the_access_points_is_not_waited_for() -> None:
    source = Side(0)
    source.put(MOVES[0])
    source.mark(6)
    assert copied(source.all_steps()) == [MOVES[0]]
    assert source.moving.changed(6, change(9, MOVES[0]), key_group(MOVES[0])) is None
    source.mark(4)
    assert source.step() == ([], False)
    source.mark(5)
    assert [type(message) for _, message in source.step()[0]] == [GroupsEnd, Ready]


def test_what_is_removed_before_its_turn_is_not_copied() -> None:
    source = Side(0)
    source.put(*MOVES[:10])
    source.mark(4)
    source.table.remove(key_group(MOVES[3]), MOVES[3])
    assert sorted(copied(source.all_steps())) == sorted(set(MOVES[:10]) - {MOVES[3]})


def leave_over(side: Side, *subscriptions: int) -> None:
    """These are nobody's, and in the way."""
    for one in subscriptions:
        side.leftovers.add(key_group(one), [one])
    side.leftovers.look_out({key_group(one) for one in subscriptions})


def test_what_is_not_in_force_any_more_is_not_copied_and_holds_the_end_up_while_it_is_in_the_way() -> None:
    source, target = Side(0), Side(1)
    source.put(*MOVES[:10])
    leave_over(source, *MOVES[3:5])
    leave_over(target, MOVES[5])
    source.mark(4, 5)
    target.mark(4, 5)
    sent = source.all_steps()
    assert sorted(copied(sent)) == sorted({*MOVES[:10]} - {*MOVES[3:5]})
    assert not any(isinstance(message, GroupsEnd | Ready) for _, message in sent)
    assert sorted(chain(*source.leftovers.take(10).values())) == sorted(MOVES[3:5])
    end, ready = source.all_steps()
    assert isinstance(end[1], GroupsEnd)
    assert ready == (COORDINATOR_PEER, Ready(2, 0, 0))
    for _, message in [*sent, end]:
        (target.moving.ended if isinstance(message, GroupsEnd) else target.moving.arrived)(0, message)
    assert target.all_steps() == [], "in the next view it may be its own"
    target.leftovers.look_out([])
    assert [type(message) for _, message in target.all_steps()] == [Ready]


def test_a_step_is_shorter_by_what_else_was_done_in_it() -> None:
    source = Side(0)
    source.put(*MOVES[:1000])
    source.mark(4, 5)
    out, more = source.moving.step(module.STEP_US - 10 * module.SEND_US)
    assert len(copied(messages(out))) == 10
    assert more
    assert source.moving.step(module.STEP_US) == ([], True)


def test_a_source_is_told_of_what_is_taken_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_ENTRIES", 10)
    target = Side(1)
    for count, told in ((9, []), (3, [12]), (9, []), (1, [10])):
        target.moving.arrived(0, GroupCopy(2, [change(1, subscription) for subscription in MOVES[:count]]))
        assert target.all_steps() == [(Peer(MATCHER, 0), GroupsTaken(2, entries)) for entries in told]


def test_no_more_than_the_window_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_ENTRIES", 100)
    source = Side(0)
    source.put(*MOVES[:250])
    source.mark(4, 5)
    sent = source.all_steps()
    assert len(copied(sent)) == 100
    assert source.step() == ([], False), "it waits, and does not ask for another turn"
    source.moving.taken(1, 30)
    assert len(copied(source.all_steps())) == 30
    source.moving.taken(1, 100)
    assert len(copied(source.all_steps())) == 100
    source.moving.taken(1, 100)
    rest = source.all_steps()
    assert len(copied(rest)) == 20
    assert isinstance(rest[-2][1], GroupsEnd)


@pytest.mark.parametrize("size", [4, 5000])
def test_a_step_has_a_bound_in_entries_sent_and_taken(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_ENTRIES", 1)
    form = bytes(size)
    source, target = Side(0), Side(1)
    source.put(*MOVES[:3000], form=form)
    source.mark(4, 5)
    sent, more = source.step()
    most = module.STEP_US // (module.SEND_US + size // module.SEND_BYTES_PER_US) + 1
    assert most - 1 <= len(copied(sent)) <= most
    assert more
    assert all(len(message.entries) <= module.CHUNK_ENTRIES for _, message in sent)
    entries = [change(1, subscription, form) for subscription in MOVES[:1000]]
    target.moving.arrived(0, GroupCopy(2, entries))
    answers, more = target.step()
    most = module.STEP_US // (module.TAKE_US + size // module.TAKE_BYTES_PER_US) + 1
    assert most - 1 <= len(target.applied) <= most
    assert answers == [(Peer(MATCHER, 0), GroupsTaken(2, len(target.applied)))]
    assert more


def test_the_target_is_ready_when_all_marks_are_in_and_all_is_applied() -> None:
    source, target = Side(0), Side(1)
    source.put(*MOVES[:250])
    source.mark(4, 5)
    sent = [message for peer, message in source.all_steps() if peer == Peer(MATCHER, 1)]
    for message in sent[:-1]:
        target.moving.arrived(0, message)
    target.mark(4)
    assert target.all_steps() == []
    assert len(target.applied) == 250
    target.moving.ended(0, sent[-1])
    assert target.step() == ([], False), "a mark is missing"
    target.mark(5)
    assert target.step() == ([(COORDINATOR_PEER, Ready(2, 250, 250 * 4))], False)
    assert target.step() == ([], False), "said once"


def test_an_end_that_overtakes_the_work_is_waited_for() -> None:
    source, target = Side(0), Side(1)
    source.put(*MOVES[: module.STEP_US // module.TAKE_US + 50])
    source.mark(4, 5)
    target.mark(4, 5)
    for peer, message in source.all_steps():
        if peer == Peer(MATCHER, 1):
            (target.moving.ended if isinstance(message, GroupsEnd) else target.moving.arrived)(0, message)
    first, more = target.step()
    assert more
    assert not any(isinstance(message, Ready) for _, message in first)
    assert isinstance(target.all_steps()[-1][1], Ready)


def test_without_anything_to_move_it_is_ready_with_the_last_mark() -> None:
    side = Side(0, BEFORE, view(2, access_points=(4, 5), matchers=(0,), exit_points=(1,)))
    side.put(*MOVES[:10])
    side.mark(4)
    assert side.step() == ([], False)
    side.mark(5)
    assert side.step() == ([(COORDINATOR_PEER, Ready(2, 0, 0))], False)


@pytest.mark.parametrize("damage", ["lost", "doubled", "changed", "removed", "other version"])
def test_what_came_and_is_not_what_was_sent_fails(damage: str) -> None:
    source, target = Side(0), Side(1)
    source.put(*MOVES[:20])
    source.mark(4, 5)
    target.mark(4, 5)
    for peer, message in source.all_steps():
        if peer != Peer(MATCHER, 1):
            continue
        if isinstance(message, GroupsEnd):
            target.moving.ended(0, message)
            continue
        entries = list(message.entries)
        first = entries[7]
        entries[7:8] = {
            "lost": [],
            "doubled": [first, first],
            "changed": [change(first.change, first.subscription, b"fork")],
            "removed": [change(first.change, first.subscription, None)],
            "other version": [change(first.change + 1, first.subscription, first.normal_form)],
        }[damage]
        target.moving.arrived(0, GroupCopy(2, entries))
    ((peer, failed),) = [one for one in target.all_steps() if one[0] == COORDINATOR_PEER]
    assert isinstance(failed, Failed)
    assert failed.epoch == 2
    assert "what came from matcher 0 is not what it says to have sent" in failed.reason
    assert target.all_steps() == []


def test_nothing_comes_after_the_end() -> None:
    target = Side(1)
    target.moving.ended(0, GroupsEnd(2, b"", b"", b""))
    with pytest.raises(AssertionError, match="matcher 0 sends more after the end"):
        target.moving.arrived(0, GroupCopy(2, [change(1, MOVES[0])]))


@pytest.mark.parametrize("seed", range(15))
def test_any_interleaving_leaves_sources_and_targets_with_the_same(seed: int) -> None:
    """Three matchers become three others in part; changes come on marked and unmarked lanes while groups move.

    A lane from each access point to each matcher keeps its order, and nothing else has any.
    """
    rng = random.Random(seed)
    before = view(1, access_points=(0, 1), matchers=(0, 1, 2))
    after = view(2, access_points=(0, 1), matchers=(1, 2, 3))
    sides = {slot: _Copy(slot, before, after) for slot in range(4)}
    truth: dict[int, tuple[int, bytes | None]] = {}
    subscriptions = rng.sample(MOVES + STAYS, 50)
    number = 0
    lanes: dict[tuple[str, int, int], deque[Any]] = {}

    def put(kind: str, sender: int, receiver: int, item: Any) -> None:
        lanes.setdefault((kind, sender, receiver), deque()).append(item)

    def perform(slot: int, out: list[Any]) -> None:
        for peer, message in out:
            if peer == COORDINATOR_PEER:
                assert isinstance(message, Ready), message
                ready.add(slot)
            else:
                put("m", slot, peer.slot, message)

    ready: set[int] = set()
    marked: set[int] = set()
    left = 150
    slow = rng.choice(["a", "m", ""])  # the lanes from access points, those between matchers, or neither
    while len(ready) < 4 or lanes or left:
        if left and rng.random() < 0.4:
            left -= 1
            number += 1
            subscription = rng.choice(subscriptions)
            # A client's changes take one way.
            access_point = subscription % 2
            one = change(number, subscription, None if rng.random() < 0.3 else b"%d" % number)
            truth[subscription] = (number, one.normal_form)
            owners = {before.owner(subscription)} | ({after.owner(subscription)} if access_point in marked else set())
            for owner in owners:
                put("a", access_point, owner, one)
        if left < 50 and len(marked) < 2 and rng.random() < 0.04:
            access_point = rng.choice([one for one in (0, 1) if one not in marked])
            marked.add(access_point)
            for slot in range(4):
                put("a", access_point, slot, "mark")
        if lanes and rng.random() < 0.55:
            lane = rng.choice(sorted(lanes))
            if lane[0] == slow and rng.random() < 0.9:
                continue
            kind, sender, receiver = lane
            item = lanes[lane].popleft()
            if not lanes[lane]:
                del lanes[lane]
            side = sides[receiver]
            if kind == "a" and item == "mark":
                side.moving.mark(sender)
            elif kind == "a":
                group = key_group(item.subscription)
                side.apply(item, group)
                out = side.moving.changed(sender, item, group)
                perform(receiver, messages([] if out is None else [out]))
            elif isinstance(item, GroupCopy):
                side.moving.arrived(sender, item)
            elif isinstance(item, GroupsEnd):
                side.moving.ended(sender, item)
            else:
                side.moving.taken(sender, item.entries)
        slot = rng.randrange(4)
        perform(slot, sides[slot].step()[0])
    for subscription, (version, form) in truth.items():
        for owner in {before.owner(subscription), after.owner(subscription)}:
            row = sides[owner].table.rows_of(key_group(subscription)).get(subscription)
            assert (None if row is None else row.normal_form) == form, f"change {version} at matcher {owner}"


class _Copy(Side):
    """Applies as the matcher does: the newer change wins, removals are remembered."""

    def __init__(self, slot: int, before: View, after: View) -> None:
        super().__init__(slot, before, after)
        self.removed: dict[int, int] = {}

    def apply(self, entry: SubscriptionChange, group: int) -> None:
        row = self.table.rows_of(group).get(entry.subscription)
        if entry.change <= (self.removed.get(entry.subscription, -1) if row is None else row.change):
            return
        if entry.normal_form is None:
            self.table.remove(group, entry.subscription)
            self.removed[entry.subscription] = entry.change
        else:
            self.table.put(group, entry)
