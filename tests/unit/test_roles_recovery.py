"""Access point, matcher, exit point and the role around them in a recovery: what is void, and what is begun anew."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import matcher as matcher_module
from cluster.access_point import AccessPoint
from cluster.config import Config
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Applied,
    ApplyChanges,
    Batch,
    Begin,
    Broadcast,
    Changed,
    ChangeSubscriptions,
    Commit,
    Connect,
    Deliver,
    Drained,
    Flush,
    Gone,
    Installed,
    LaneUp,
    Member,
    Message,
    Peer,
    PublisherSettled,
    Received,
    Recover,
    Renew,
    Retire,
    Send,
    SubscriptionChange,
    Switch,
    client_key,
    subscription_id,
)
from cluster.role import Role
from cluster.view import View, key_group
from tests.unit import test_exit_point as exits
from tests.unit import test_matcher_changes as matchers
from tests.unit.test_access_point import publications
from tests.unit.test_coordinator import role_in
from tests.unit.test_matcher_changes import AP4, FORM, MOVES, ONE, STAYS, TWO, change
from tests.unit.views import member, prepare, view

CP0, CP1, M0, M1 = Peer(CONNECTION_POINT, 0), Peer(CONNECTION_POINT, 1), Peer(MATCHER, 0), Peer(MATCHER, 1)


def recover(after: View, *replaced: tuple[str, int]) -> Received:
    return Received(COORDINATOR_PEER, Recover(after.epoch, list(after.members), after.owners, list(replaced)))


def at(epoch: int, of: View) -> View:
    """Return the same view in another epoch."""
    return View(epoch, of.members, of.owners)  # type: ignore[arg-type]


# The access point -------------------------------------------------------------------------------------------------


class Access:
    """An access point of a view with two connection points and two matchers."""

    def __init__(self) -> None:
        self.machine = AccessPoint(0, 1, Config())
        self.view = view(connection_points=(0, 1), matchers=(0, 1))
        assert self.tell(COORDINATOR_PEER, self.view.install()) == []

    def tell(self, peer: Peer, message: Message) -> list[Any]:
        return self.machine.handle(Received(peer, message))

    def recover(self, epoch: int) -> None:
        assert self.machine.handle(recover(at(epoch, self.view))) == []

    def published(self, *by: Peer) -> list[tuple[int, str, int]]:
        """Let connection points publish under their slots' names; return what goes on: epoch, name, exit sequence."""
        for peer in by:
            self.tell(peer, publications((f"p{peer.slot}", 1, 1)))
        return [
            (one.message.epoch, run.publisher, sequence)
            for one in self.machine.handle(Drained())
            if isinstance(one, Broadcast) and isinstance(one.message, Batch)
            for run, sequence in zip(one.message.runs, one.message.exit_sequences, strict=True)
        ]


def test_an_access_point_takes_nothing_of_a_connection_point_until_it_says_renew() -> None:
    bench = Access()
    assert bench.published(CP0) == [(1, "p0", 1)]
    bench.recover(2)
    assert bench.published(CP0, CP1) == []
    assert bench.tell(CP1, ChangeSubscriptions([SubscriptionChange(1, 5, FORM)])) == []
    assert bench.tell(CP1, Renew(2)) == []
    assert bench.published(CP0, CP1) == [(2, "p1", 1)], "each for itself, and numbered anew"
    (applied,) = bench.tell(CP1, ChangeSubscriptions([SubscriptionChange(1, 5, FORM)]))
    assert isinstance(applied.message, ApplyChanges)
    assert applied.message.epoch == 2
    bench.tell(CP0, Renew(2))
    assert bench.published(CP0) == [(2, "p0", 2)]


def test_a_renew_of_an_earlier_recovery_opens_nothing() -> None:
    bench = Access()
    bench.recover(2)
    bench.recover(3)
    bench.tell(CP0, Renew(2))
    assert bench.published(CP0) == []
    bench.tell(CP0, Renew(3))
    assert bench.published(CP0) == [(3, "p0", 1)]


def test_a_renew_that_comes_before_its_recovery_opens_nothing() -> None:
    bench = Access()
    bench.tell(CP0, Renew(2))
    bench.recover(2)
    assert bench.published(CP0) == []


def test_what_an_access_point_had_gathered_and_waited_for_is_forgotten() -> None:
    bench = Access()
    bench.tell(CP0, publications(("p0", 1, 1)))
    (sent,) = bench.tell(CP0, ChangeSubscriptions([SubscriptionChange(1, 5, FORM)]))[-1:]
    bench.tell(CP0, publications(("p0", 2, 1)))
    bench.recover(2)
    assert bench.machine.handle(Drained()) == []
    assert bench.tell(sent.peer, Applied(0, [1])) == [], "the connection point will ask again"
    bench.tell(CP0, Renew(2))
    bench.tell(CP0, ChangeSubscriptions([SubscriptionChange(1, 5, FORM)]))
    assert bench.tell(sent.peer, Applied(0, [1])) == [Send(CP0, Changed([1], 2))]


def test_an_access_point_gives_up_a_view_change_with_a_recovery() -> None:
    bench = Access()
    bench.tell(COORDINATOR_PEER, prepare(view(2, connection_points=(0, 1), access_points=(0, 1), matchers=(0, 1, 2))))
    bench.tell(COORDINATOR_PEER, Begin(2, False))
    bench.recover(3)
    assert bench.tell(CP0, Switch(2, [])) == [], "void"
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == []
    bench.tell(CP0, Renew(3))
    (out,) = bench.tell(CP0, ChangeSubscriptions([SubscriptionChange(number, number, FORM) for number in (1,)]))
    assert out.message.epoch == 3


def test_a_leaving_access_point_has_nothing_to_do_after_a_recovery() -> None:
    bench = Access()
    assert bench.machine.handle(recover(view(2, access_points=(1,)))) == [Flush()]


# The matcher ------------------------------------------------------------------------------------------------------


def held(bench: matchers.Bench) -> set[int]:
    return {subscription for subscription, _ in bench.machine.table.rows()}


def serving(before: View = ONE) -> matchers.Bench:
    bench = matchers.Bench(before=before)
    bench.change(*[change(number, one) for number, one in enumerate(STAYS + MOVES, start=1)])
    return bench


def test_a_matcher_takes_nothing_of_an_earlier_epoch() -> None:
    bench = serving()
    assert bench.machine.handle(recover(at(5, ONE))) == []
    assert bench.tell(AP4, ApplyChanges(1, 3, [change(99, STAYS[0], None)])) == [], "not answered either"
    assert STAYS[0] in held(bench)
    old = Batch(1, [0], 1, [exits.run()], [0], [1], b"\1\0\0\0", b"\x80")
    assert bench.tell(AP4, old) == []
    assert bench.hits(5, (0,)) == {*STAYS, *MOVES}


def test_a_matcher_keeps_what_is_its_own_and_sweeps_the_rest() -> None:
    bench = serving()
    assert bench.machine.handle(recover(at(5, TWO), (MATCHER, 1))) == []
    assert bench.rest() == [], "nobody waits for the sweep"
    bench.tick()
    assert held(bench) == set(STAYS)
    assert len(bench.machine.index) == len(STAYS)


def test_a_matcher_sweeps_what_a_dead_connection_points_clients_had_opened() -> None:
    bench = serving()
    others = [subscription_id(client_key(slot, 7), number) for slot in (1, 2) for number in range(4)]
    bench.change(*[change(100 + number, one) for number, one in enumerate(others)])
    bench.machine.handle(recover(at(5, ONE), (CONNECTION_POINT, 2), (EXIT_POINT, 0)))
    bench.rest()
    assert held(bench) == {*STAYS, *MOVES, *others[:4]}


def test_what_is_opened_again_while_it_is_to_be_swept_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "SWEEP_ENTRIES", 2)
    bench = serving()
    slot = STAYS[0] >> 52
    bench.machine.handle(recover(at(5, ONE), (CONNECTION_POINT, slot)))
    bench.drain()
    *_, one, last = sorted(MOVES, key=key_group)  # the order of the sweep
    assert {last, one} <= held(bench), "their turn has not come"
    bench.change(change(1 << 41, last), epoch=5)
    bench.change(change((1 << 41) + 1, one), change((1 << 41) + 2, one, None), epoch=5)
    bench.rest()
    assert held(bench) == {last}
    assert len(bench.machine.index) == 1


def test_a_matcher_gives_up_a_view_change_with_a_recovery() -> None:
    bench = serving().prepare()
    assert bench.machine._moving is not None
    bench.machine.handle(recover(at(5, ONE)))
    assert bench.machine._moving is None
    assert bench.rest() == []
    assert held(bench) == {*STAYS, *MOVES}
    after = View(6, TWO.members, TWO.owners)  # type: ignore[arg-type]
    bench.tell(COORDINATOR_PEER, prepare(after))
    assert bench.machine._moving is not None, "the next one is like any other"


def test_a_sweep_that_a_view_change_had_left_goes_on() -> None:
    bench = serving().prepare()
    bench.switch()
    bench.tell(COORDINATOR_PEER, Retire(2))
    bench.machine.handle(recover(at(5, TWO)))
    assert bench.rest() == []
    bench.tick()
    assert held(bench) == set(STAYS)


def test_a_leaving_matcher_has_nothing_to_do_after_a_recovery() -> None:
    bench = serving()
    after = view(5, access_points=(4, 6), matchers=(1,))
    assert bench.machine.handle(recover(after)) == [Flush()]
    bench.rest()
    bench.tick()
    assert held(bench) == set()


# The exit point ---------------------------------------------------------------------------------------------------

LISTENER = client_key(0, 1)


def renewed(bench: exits.Bench, epoch: int = 2) -> None:
    after = at(epoch, exits.VIEW)
    bench.feed(recover(after))


def of_epoch(epoch: int, runs: list[Any], found: Any = None, **others: Any) -> Any:
    made = exits.result(runs, found, **others)
    return type(made)(epoch, *(getattr(made, name) for name in made.__struct_fields__[1:]))


def test_an_exit_point_forgets_what_it_had_released_and_hands_it_over_again() -> None:
    bench = exits.Bench()
    found = {0: {LISTENER: [0]}}
    bench.join(exits.result([exits.run(first=1)], found))
    ((_, old),) = bench.tokens()
    renewed(bench)
    bench.join(of_epoch(2, [exits.run(first=1)], found))
    (_, (_, new)) = bench.tokens()
    assert new > old
    assert [row[3] for row in bench.handed()] == [1, 1], "the connection point knows that it comes again"
    bench.delivered(old)
    assert bench.acknowledged() == [], "of before"
    bench.delivered(new)
    assert bench.acknowledged() == [(exits.PUBLISHER, 1, [])]
    assert bench.machine.gauges()["unacknowledged_runs"] == 0


def test_results_of_an_earlier_epoch_are_void() -> None:
    bench = exits.Bench()
    found = {0: {LISTENER: [0]}}
    bench.join(exits.result([exits.run(first=1)], found, expect=(0, 1)))
    renewed(bench)
    bench.join(exits.result([exits.run(first=1)], found, expect=(0, 1)), matcher=1)
    bench.join(exits.result([exits.run(first=2)], found, sequence=2))
    assert bench.sent == []
    assert bench.machine.gauges()["incomplete_shares"] == 0


def test_acknowledgements_that_were_due_are_not_sent() -> None:
    """What they were about is sent again, and acknowledged then."""
    bench = exits.Bench()
    bench.join(exits.result([exits.run(first=1)]))
    renewed(bench)
    assert bench.acknowledged() == []
    bench.join(of_epoch(2, [exits.run(first=1)]))
    assert bench.acknowledged() == [(exits.PUBLISHER, 1, [])]


def test_no_token_of_another_incarnation_comes_back() -> None:
    found = {0: {LISTENER: [0]}}
    tokens = []
    for incarnation in (3, 4):
        bench = exits.Bench()
        bench.machine.__init__(0, incarnation, Config())  # type: ignore[misc]
        bench.feed(Received(COORDINATOR_PEER, exits.VIEW.install()))
        for sequence in (1, 2, 3):
            bench.join(exits.result([exits.run(first=sequence)], found, sequence=sequence))
        tokens.append({token for _, token in bench.tokens()})
        assert len(tokens[-1]) == 3
    assert tokens[0].isdisjoint(tokens[1])
    bench.delivered(*tokens[0])
    assert bench.acknowledged() == []
    bench.delivered(*tokens[1])
    assert bench.acknowledged() == [(exits.PUBLISHER, upto, []) for upto in (1, 2, 3)]


def test_what_a_predecessor_settles_of_an_earlier_epoch_is_void() -> None:
    bench = exits.Bench()
    renewed(bench, 3)
    bench.feed(Received(Peer(EXIT_POINT, 1), PublisherSettled(2, "a", 1, 1, exits.PUBLISHER, 6, [])))
    assert bench.sent == []


def test_an_exit_point_gives_up_a_view_change_with_a_recovery() -> None:
    bench = exits.Bench()
    bench.feed(Received(COORDINATOR_PEER, prepare(view(2, exit_points=(0, 1)))))
    renewed(bench, 3)
    bench.feed(Received(COORDINATOR_PEER, Commit(2)))
    assert bench.sent == []
    bench.join(of_epoch(3, [exits.run()], {0: {LISTENER: [0]}}))
    assert [type(message) for _, message in bench.sent] == [Deliver]


def test_a_leaving_exit_point_has_nothing_to_do_after_a_recovery() -> None:
    bench = exits.Bench()
    assert bench.machine.handle(recover(view(2, exit_points=(1,)))) == [Flush()]


# The role ---------------------------------------------------------------------------------------------------------


def again(of: View, peer: Peer, epoch: int = 2, incarnation: int = 9) -> View:
    """Return the view with another incarnation of a slot."""
    members = tuple(Member(*one.peer, incarnation, "elsewhere", 2) if one.peer == peer else one for one in of.members)
    return View(epoch, members, of.owners)  # type: ignore[arg-type]


def told(role: Role, after: View, *replaced: Peer) -> list[Any]:
    return role.handle(recover(after, *(tuple(one) for one in replaced)))


def test_a_role_dials_who_has_another_incarnation_and_is_installed_when_it_is_there() -> None:
    before = view(matchers=(0, 1))
    role = role_in(before, Peer(ACCESS_POINT, 0))
    role.handle(Received(COORDINATOR_PEER, Gone(member(MATCHER, 1))))
    after = again(before, M1)
    assert told(role, after, M1) == [Connect(Member(*M1, 9, "elsewhere", 2))]
    assert role.handle(LaneUp(M1)) == [Send(COORDINATOR_PEER, Installed(2))]


def test_a_role_dials_a_new_incarnation_though_it_has_not_heard_of_the_former_ones_end() -> None:
    before = view(matchers=(0, 1))
    role = role_in(before, Peer(ACCESS_POINT, 0))
    assert told(role, again(before, M1), M1) == [Connect(Member(*M1, 9, "elsewhere", 2))]
    assert role.handle(LaneUp(M1)) == [Send(COORDINATOR_PEER, Installed(2))]


def test_where_nobody_that_it_dials_has_died_a_role_is_installed_at_once() -> None:
    before = view(matchers=(0, 1))
    role = role_in(before, Peer(ACCESS_POINT, 0))
    assert told(role, again(before, CP0), CP0) == [Send(COORDINATOR_PEER, Installed(2))]
    assert told(role, at(3, again(before, CP0)), CP0) == [Send(COORDINATOR_PEER, Installed(3))]


def test_a_recovery_ends_what_a_role_had_prepared() -> None:
    before = view(matchers=(0, 1))
    role = role_in(before, Peer(ACCESS_POINT, 0))
    role.handle(Received(COORDINATOR_PEER, prepare(view(2, matchers=(0, 1, 2)))))
    assert told(role, at(3, before)) == [Send(COORDINATOR_PEER, Installed(3))]
    assert role.handle(LaneUp(Peer(MATCHER, 2))) == [], "nobody waits for it"
    out = role.handle(Received(COORDINATOR_PEER, prepare(view(4, matchers=(0, 1, 2)))))
    assert len(out) == 1


def test_a_new_incarnation_gets_its_first_view_by_recover() -> None:
    before = view(matchers=(0, 1))
    peer = Peer(ACCESS_POINT, 0)
    fresh = Role(peer, role_in(before, peer)._join, AccessPoint(0, 9, Config()), Config())
    fresh.handle(LaneUp(COORDINATOR_PEER))
    out = told(fresh, again(before, peer), peer)
    assert [one.member.peer for one in out] == [M0, M1]
    assert fresh.handle(LaneUp(M0)) == []
    assert fresh.handle(LaneUp(M1)) == [Send(COORDINATOR_PEER, Installed(2))]


def test_groups_of_the_fixture_are_where_they_are_said_to_be() -> None:
    assert {TWO.owner_of_group(key_group(one)) for one in STAYS} == {0}
    assert {TWO.owner_of_group(key_group(one)) for one in MOVES} == {1}
