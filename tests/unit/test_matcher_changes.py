"""The matcher in a view change: two epochs from one index, groups that come and go, and nothing left of them after."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from cluster import matcher as matcher_module
from cluster import parse
from cluster.columns import u16
from cluster.config import Config
from cluster.language import encode_normal
from cluster.matcher import TICK_ENTRIES, Matcher
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Abort,
    Again,
    Applied,
    ApplyChanges,
    Batch,
    Commit,
    Drained,
    Ended,
    Epoch,
    Flush,
    GroupCopy,
    GroupsEnd,
    GroupsTaken,
    Instruction,
    Mark,
    Message,
    Peer,
    Ready,
    Received,
    Result,
    Retire,
    Run,
    Send,
    Settled,
    StreamEnd,
    SubscriptionChange,
    Switch,
    Tick,
)
from cluster.view import View, key_group
from tests.unit.views import prepare, view

AP4, AP6 = Peer(ACCESS_POINT, 4), Peer(ACCESS_POINT, 6)
M0, M1 = Peer(MATCHER, 0), Peer(MATCHER, 1)
ONE = view(1, access_points=(4, 6), exit_points=(0, 2))
TWO = view(2, access_points=(4, 6), exit_points=(0, 2), matchers=(0, 1))
FORM = encode_normal(parse("exists a").normal_form)


def ids(low: int, high: int, count: int) -> list[int]:
    """Return subscriptions of one client each, with groups in [low, high)."""
    found = (client << 20 for client in range(1, 100_000))
    return [one for one, _ in zip((one for one in found if low <= key_group(one) < high), range(count), strict=False)]


STAYS, MOVES = ids(0, 2048, 8), ids(2048, 4096, 8)


def change(number: int, subscription: int, form: bytes | None = FORM) -> SubscriptionChange:
    return SubscriptionChange(number, subscription, form)


class Bench:
    """A matcher that serves a view and is told of the next."""

    def __init__(self, slot: int = 0, before: View = ONE, after: View | None = TWO) -> None:
        self.machine = Matcher(slot, 1, Config())
        assert self.tell(COORDINATOR_PEER, before.install()) == []
        self.after = after
        self.sequence = 1

    def prepare(self) -> Bench:
        assert self.after is not None
        assert self.tell(COORDINATOR_PEER, prepare(self.after)) == []
        return self

    def tell(self, peer: Peer, message: Message) -> list[Instruction]:
        return self.machine.handle(Received(peer, message))

    def change(self, *changes: SubscriptionChange, epoch: int = 1, by: Peer = AP4) -> list[Instruction]:
        """Changes come; check the answer and return what else is said."""
        out = self.tell(by, ApplyChanges(epoch, 3, list(changes)))
        answer = Send(by, Applied(3, [one.change for one in changes]))
        assert out[-1] == answer
        return out[:-1]

    def drain(self) -> list[Instruction]:
        return self.machine.handle(Drained())

    def rest(self) -> list[Instruction]:
        """Drain until it does not ask for more; return what is said."""
        said = []
        for _ in range(1000):
            out = self.drain()
            said += [one for one in out if one != Again(rest=True)]
            if Again(rest=True) not in out:
                return said
        raise AssertionError("it always wants more")

    def tick(self) -> None:
        assert self.machine.handle(Tick(0)) == []

    def hits(self, epoch: int, matchers: tuple[int, ...] = (0, 1)) -> set[int]:
        """Publish something that all subscriptions match; return those found."""
        payload = msgpack.packb({"a": 1})
        run = Run("p", 1, 9, self.sequence, 1, 5)
        batch = Batch(epoch, list(matchers), 1, [run], [0], [1], struct.pack("<I", len(payload)), payload)
        (out,) = self.machine.handle(Received(AP4, batch))
        assert isinstance(out, Send)
        result = out.message
        assert isinstance(result, Result)
        assert (result.epoch, result.expect) == (epoch, list(matchers))
        return {client << 20 for client in struct.unpack(f"<{len(result.clients) // 8}Q", result.clients)}

    def switch(self) -> list[Instruction]:
        """Both access points switch."""
        return [one for by in (AP4, AP6) for one in self.tell(by, Switch(2, [(0, 1), (2, 1)]))]


def source() -> Bench:
    """Return the matcher that has everything, with the next view prepared."""
    bench = Bench()
    bench.change(*[change(number, one) for number, one in enumerate(STAYS + MOVES, start=1)])
    return bench.prepare()


def target() -> Bench:
    """Return the newcomer, with the copies in."""
    bench = Bench(1).prepare()
    bench.tell(AP4, Mark(2))
    bench.tell(AP6, Mark(2))
    bench.tell(M0, GroupCopy(2, [change(number, one) for number, one in enumerate(MOVES, start=1)]))
    return bench


def test_both_epochs_are_answered_from_one_index() -> None:
    bench = source()
    assert bench.hits(1) == {*STAYS, *MOVES}
    assert bench.hits(2) == set(STAYS), "in the next view the others are another matcher's"
    assert bench.hits(1) == {*STAYS, *MOVES}


def test_what_came_is_answered_for_in_the_next_epoch_alone() -> None:
    bench = target()
    bench.rest()
    assert bench.hits(2) == set(MOVES)
    assert bench.hits(1) == set()


def test_without_groups_that_move_nothing_is_left_out() -> None:
    after = view(2, access_points=(4, 6), exit_points=(0, 2, 3))
    bench = Bench(after=after)
    bench.change(*[change(number, one) for number, one in enumerate(STAYS + MOVES, start=1)])
    bench.prepare()
    assert bench.hits(1, (0,)) == bench.hits(2, (0,)) == {*STAYS, *MOVES}


def test_the_copy_begins_with_the_first_mark_and_ends_with_the_last() -> None:
    bench = source()
    assert bench.rest() == []
    bench.tell(AP4, Mark(2))
    (copy,) = bench.rest()
    assert isinstance(copy, Send)
    assert isinstance(copy.message, GroupCopy)
    assert copy.peer == M1
    assert sorted(one.subscription for one in copy.message.entries) == sorted(MOVES)
    assert [one.change for one in copy.message.entries] == [
        len(STAYS) + 1 + MOVES.index(one.subscription) for one in copy.message.entries
    ]
    (late,) = bench.change(change(50, MOVES[0], None), by=AP6)
    assert late == Send(M1, GroupCopy(2, [change(50, MOVES[0], None)]))
    assert bench.change(change(51, MOVES[1], None), by=AP4) == []
    bench.tell(AP6, Mark(2))
    end, ready = bench.rest()
    assert isinstance(end, Send)
    assert isinstance(end.message, GroupsEnd)
    assert ready == Send(COORDINATOR_PEER, Ready(2, 0, 0))


def test_marks_and_copies_of_another_epoch_are_nothing() -> None:
    bench = source()
    for message in (Mark(3), GroupCopy(3, []), GroupsEnd(3, b"", b"", b""), GroupsTaken(3, 5), Switch(3, [])):
        assert bench.tell(AP4 if isinstance(message, Mark | Switch) else M1, message) == []
    assert bench.rest() == []
    settled = Bench()
    for message in (Mark(2), GroupCopy(2, [change(1, MOVES[0])]), Switch(2, [])):
        assert settled.tell(AP4, message) == []
    assert settled.rest() == []
    assert settled.hits(1, (0,)) == set()


def test_a_removal_beats_a_copy_that_comes_after_it() -> None:
    bench = Bench(1).prepare()
    bench.tell(AP4, Mark(2))
    bench.change(change(20, MOVES[0], None), change(21, MOVES[1]))
    bench.tell(M0, GroupCopy(2, [change(5, MOVES[0]), change(6, MOVES[1], None), change(7, MOVES[2])]))
    bench.rest()
    assert bench.hits(2) == {MOVES[1], MOVES[2]}
    bench.change(change(22, MOVES[0]))
    assert MOVES[0] in bench.hits(2), "a newer one opens it again"


def test_the_former_epoch_ends_at_every_exit_point_for_each_access_point() -> None:
    bench = source()
    ends = bench.tell(AP4, Switch(2, [(0, 17), (2, 5)]))
    assert ends == [
        Send(Peer(EXIT_POINT, 0), StreamEnd(1, 4, 17)),
        Send(Peer(EXIT_POINT, 2), StreamEnd(1, 4, 5)),
    ]
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == [], "another access point has not switched"
    *ends, ended = bench.tell(AP6, Switch(2, [(0, 1), (2, 1)]))
    assert ends == [Send(Peer(EXIT_POINT, slot), StreamEnd(1, 6, 1)) for slot in (0, 2)]
    assert ended == Send(COORDINATOR_PEER, Ended(2))
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == [ended], "and again when asked again"
    assert bench.tell(AP6, Switch(2, [(0, 1), (2, 1)])) == []


def test_a_newcomer_has_no_stream_to_end_nor_has_a_new_access_point() -> None:
    assert target().switch() == [Send(COORDINATOR_PEER, Ended(2))]
    bench = source()
    assert bench.tell(Peer(ACCESS_POINT, 9), Switch(2, [(0, 1), (2, 1)])) == []


def test_after_retire_it_is_settled_and_what_went_is_swept_out_a_little_at_a_time() -> None:
    count = TICK_ENTRIES + 50
    many = ids(2048, 4096, count)
    bench = Bench()
    bench.change(*[change(number, one) for number, one in enumerate(STAYS + many, start=1)])
    bench.prepare()
    bench.switch()
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    assert bench.hits(2) == set(STAYS), "what is not swept yet is not answered for"
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2))], "and again when asked again"
    assert bench.machine.gauges()["subscriptions"] == len(STAYS), "nor counted"
    for left in (count, 50, 0):
        assert bench.drain() == [], "it has time"
        assert len(bench.machine.table) == len(bench.machine.index) == len(STAYS) + left
        assert bench.hits(2) == set(STAYS)
        bench.tick()
    bench.machine.index.check()


def test_after_an_abort_what_came_is_swept_out() -> None:
    bench = target()
    bench.rest()
    assert bench.machine.gauges()["subscriptions"] == len(MOVES)
    assert bench.tell(COORDINATOR_PEER, Abort(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    assert bench.hits(1, (0,)) == set()
    assert bench.rest() == []
    bench.tick()
    assert len(bench.machine.table) == len(bench.machine.index) == 0
    assert bench.tell(COORDINATOR_PEER, Abort(2)) == [Send(COORDINATOR_PEER, Settled(2))]


def test_after_an_abort_the_source_is_as_before() -> None:
    bench = source()
    bench.tell(AP4, Mark(2))
    bench.rest()
    assert bench.tell(COORDINATOR_PEER, Abort(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    assert bench.rest() == []
    assert bench.hits(1, (0,)) == {*STAYS, *MOVES}
    assert bench.change(change(60, MOVES[0], None), by=AP6) == [], "nobody is told of it"
    assert bench.hits(1, (0,)) == {*STAYS, *MOVES} - {MOVES[0]}
    for message in (GroupsTaken(2, 8), GroupCopy(2, [change(1, MOVES[0])])):
        assert bench.tell(M1, message) == [], "late"


def test_an_abort_of_what_it_never_heard_of_is_settled() -> None:
    assert Bench().tell(COORDINATOR_PEER, Abort(7)) == [Send(COORDINATOR_PEER, Settled(7))]


def test_a_change_for_a_group_that_left_is_acknowledged_and_not_applied() -> None:
    bench = source()
    bench.switch()
    bench.tell(COORDINATOR_PEER, Retire(2))
    bench.rest()
    assert bench.change(change(70, MOVES[0]), epoch=1) == [], "its access point has not heard of the end yet"
    assert bench.machine.gauges()["subscriptions"] == len(STAYS)
    came = target()
    came.rest()
    came.tell(COORDINATOR_PEER, Abort(2))
    came.rest()
    assert came.change(change(70, MOVES[0])) == []
    assert came.machine.gauges()["subscriptions"] == 0


def test_what_comes_back_is_there_again() -> None:
    bench = source()
    bench.switch()
    bench.tell(COORDINATOR_PEER, Retire(2))
    bench.rest()
    bench.after = view(3, access_points=(4, 6), exit_points=(0, 2))
    bench.prepare()
    bench.tell(AP4, Mark(3))
    bench.tell(AP6, Mark(3))
    bench.tell(M1, GroupCopy(3, [change(80, one) for one in MOVES[:3]]))
    bench.rest()
    assert bench.hits(2) == set(STAYS)
    assert bench.hits(3, (0,)) == {*STAYS, *MOVES[:3]}


def sweeping(monkeypatch: pytest.MonkeyPatch, after: View) -> Bench:
    """Return the source with everything still to be swept out, one at a time, and the view after that prepared."""
    monkeypatch.setattr(matcher_module, "SWEEP_ENTRIES", 1)
    monkeypatch.setattr(matcher_module, "TICK_ENTRIES", 1)
    bench = source()
    bench.switch()
    bench.tell(COORDINATOR_PEER, Retire(2))
    bench.after = after
    bench.prepare()
    for by in (AP4, AP6):
        bench.tell(by, Mark(3))
    return bench


def test_a_group_may_come_back_while_it_is_being_swept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies have the versions that are still here, and of one subscription there is none any more."""
    bench = sweeping(monkeypatch, view(3, access_points=(4, 6), exit_points=(0, 2)))
    first = len(STAYS) + 1
    copies = [change(number, one) for number, one in enumerate(MOVES[:-1], start=first)]
    bench.tell(M1, GroupCopy(3, copies))
    bench.change(change(90, MOVES[1], None), epoch=2, by=AP6)
    assert bench.drain() == [Again(rest=True)]
    assert len(bench.machine.table) == len(STAYS) + len(MOVES) - 1, "the turn of one has not come"
    assert bench.hits(2) == set(STAYS)
    assert bench.rest() == []
    assert bench.hits(3, (0,)) == {*STAYS, *MOVES[:-1]} - {MOVES[1]}
    bench.machine.index.check()


def test_it_is_not_ready_before_what_is_in_the_way_is_swept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key group is to come back, and its subscription is swept first; nothing waits for the others."""
    back = key_group(MOVES[3])
    owners = u16(TWO.owners).copy()
    owners[back] = 0
    bench = sweeping(monkeypatch, View(Epoch(3), TWO.members, owners.tobytes()))
    bench.tell(M1, GroupsEnd(3, b"", b"", b""))
    assert bench.drain() == [Send(COORDINATOR_PEER, Ready(3, 0, 0))]
    assert {one for one, _ in bench.machine.table.rows()} == {*STAYS, *MOVES} - {MOVES[3]}
    assert bench.hits(3) == bench.hits(2) == set(STAYS)
    for _ in MOVES:
        bench.tick()
    assert {one for one, _ in bench.machine.table.rows()} == set(STAYS)


def test_nothing_waits_for_what_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    after = view(3, access_points=(4, 6), exit_points=(0, 2, 3), matchers=(0, 1), owners=TWO.owners)
    bench = sweeping(monkeypatch, after)
    assert bench.drain() == [Send(COORDINATOR_PEER, Ready(3, 0, 0))]
    assert len(bench.machine.table) == len(STAYS) + len(MOVES)


def test_a_leaver_ends_its_streams_and_goes_when_all_it_sent_is_taken() -> None:
    before, after = TWO, view(2, access_points=(4, 6), exit_points=(0, 2), matchers=(0,))
    bench = Bench(1, View(ONE.epoch, before.members, before.owners), after).prepare()
    assert len([one for one in bench.switch() if isinstance(one, Send) and isinstance(one.message, StreamEnd)]) == 4
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2)), Flush()]
    assert bench.rest() == []


def test_counters_tell_what_was_copied() -> None:
    bench = target()
    bench.rest()
    bench.switch()
    bench.tell(COORDINATOR_PEER, Retire(2))
    gauges: dict[str, Any] = bench.machine.gauges()
    assert (gauges["entries_copied"], gauges["bytes_copied"]) == (len(MOVES), len(MOVES) * len(FORM))
    assert gauges["subscription_bytes"] == len(MOVES) * len(FORM)


def test_a_batch_of_neither_epoch_is_a_broken_invariant() -> None:
    bench = source()
    with pytest.raises(AssertionError, match="serves 1 and 2, not 3"):
        bench.hits(3)
    bench.switch()
    bench.tell(COORDINATOR_PEER, Retire(2))
    with pytest.raises(AssertionError, match="serves epoch 2, a batch is of 1"):
        bench.hits(1)
