"""The exit point in a view change: nothing of the next epoch comes before what it must not overtake."""

from __future__ import annotations

import pytest

from cluster.config import Config, OutputSettings
from cluster.exit_point import ExitPoint
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Abort,
    Acknowledge,
    AppendOutput,
    Begin,
    Commit,
    Deliver,
    Delivered,
    Drained,
    Ended,
    EpochEnd,
    EpochEnded,
    Flush,
    Instruction,
    Message,
    Peer,
    PublisherSettled,
    PublisherState,
    PublisherStates,
    Ready,
    Received,
    Result,
    Retire,
    Run,
    Send,
    Settled,
    StreamEnd,
    client_key,
)
from cluster.routing import exit_point_of
from cluster.view import View
from tests.unit.test_exit_point import Found, result, rows_of, run
from tests.unit.views import prepare, view

CLIENT = client_key(0, 1)
HIT: Found = {0: {CLIENT: [0]}}
ENDED = Send(COORDINATOR_PEER, Ended(2))
MATCHERS = view(1, access_points=(0, 1), matchers=(0, 1)), view(2, access_points=(0, 1), matchers=(1, 2))
ACCESS_POINTS = view(1, access_points=(0, 1)), view(2, access_points=(1, 2))
EXIT_POINTS = view(1, access_points=(0, 1), exit_points=(0, 1)), view(2, access_points=(0, 1), exit_points=(1, 2))


def moving(source: int, target: int, number: int = 0) -> str:
    """Return the name of a publisher that has these exit points in the two views of EXIT_POINTS."""
    before, after = (one.exit_points for one in EXIT_POINTS)
    names = (f"p{number}" for number in range(10_000))
    return [
        name
        for name, _ in zip(
            (name for name in names if (exit_point_of(before, name), exit_point_of(after, name)) == (source, target)),
            range(number + 1),
            strict=False,
        )
    ][number]


class Bench:
    """An exit point in a change of views, and what it delivered."""

    def __init__(
        self, views: tuple[View, View], slot: int = 0, *, prepared: bool = True, config: Config | None = None
    ) -> None:
        self.machine = ExitPoint(slot, 1, config or Config())
        self.delivered: list[tuple[str, int]] = []
        self.tokens: list[int] = []
        self.before, self.after = views
        assert self.tell(COORDINATOR_PEER, self.before.install()) == []
        if prepared:
            self.prepare()

    def prepare(self) -> None:
        assert self.tell(COORDINATOR_PEER, prepare(self.after)) == []

    def tell(self, peer: Peer, message: Message) -> list[Instruction]:
        """Hand a message over; return what is said but for deliveries."""
        return self._taken(self.machine.handle(Received(peer, message)))

    def drain(self) -> list[Instruction]:
        return self._taken(self.machine.handle(Drained()))

    def _taken(self, out: list[Instruction]) -> list[Instruction]:
        rest = []
        for one in out:
            if isinstance(one, Send) and isinstance(one.message, Deliver):
                self.delivered += [(row[1], row[2]) for row in rows_of(one.message)]
                self.tokens += [token for _, _, _, token in one.message.runs]
            else:
                rest.append(one)
        return rest

    def join(
        self,
        epoch: int,
        access_point: int,
        sequence: int,
        one: Run,
        *,
        found: Found | None = None,
        by: int | None = None,
    ) -> list[Instruction]:
        """Results of all matchers of the epoch (or of matcher `by` alone) come."""
        matchers = (self.before if epoch == 1 else self.after).matchers
        made = result(
            [one], HIT if found is None else found, sequence=sequence, access_point=access_point, expect=matchers
        )
        message = Result(epoch, *[getattr(made, name) for name in made.__struct_fields__[1:]])
        said = []
        for matcher in matchers if by is None else (by,):
            said += self.tell(Peer(MATCHER, matcher), message)
        return said

    def end(self, access_point: int, sequence: int = 1) -> list[Instruction]:
        """All matchers of the former view say where the access point's stream ends."""
        said = []
        for matcher in self.before.matchers:
            said += self.tell(Peer(MATCHER, matcher), StreamEnd(1, access_point, sequence))
        return said

    def begin(self) -> list[Instruction]:
        return self.tell(COORDINATOR_PEER, Begin(2, False))

    def states(self, slot: int, *states: PublisherState, last: bool = False) -> list[Instruction]:
        return self.tell(Peer(EXIT_POINT, slot), PublisherStates(2, list(states), last))

    def done(self, *tokens: int) -> list[Instruction]:
        return self.tell(Peer(CONNECTION_POINT, 0), Delivered(list(tokens)))

    def acknowledged(self) -> list[tuple[int, int]]:
        """End the round; return (client, upto)."""
        return [
            (client, upto)
            for one in self.drain()
            if isinstance(one, Send) and isinstance(one.message, Acknowledge)
            for client, upto, _ in one.message.acknowledgements
        ]


# Matchers change ---------------------------------------------------------------------------------------------------


def test_where_matchers_change_a_stream_waits_for_its_own_former_one() -> None:
    bench = Bench(MATCHERS)
    bench.join(1, 0, 1, run("a", 1), by=0)
    bench.join(2, 0, 1, run("a", 2))
    bench.join(2, 1, 1, run("b", 1))
    assert bench.delivered == []
    assert bench.end(1) == []
    assert bench.delivered == [("b", 1)], "the other access point's has ended"
    assert bench.end(0, 2) == []
    assert bench.delivered == [("b", 1)], "a matcher of the former view has not answered"
    assert bench.join(1, 0, 1, run("a", 1), by=1) == [ENDED]
    assert bench.delivered == [("b", 1), ("a", 1), ("a", 2)]


def test_a_stream_has_ended_when_every_matcher_of_the_former_view_says_so() -> None:
    bench = Bench(MATCHERS)
    bench.join(2, 0, 1, run("a", 1))
    bench.end(1)
    assert bench.tell(Peer(MATCHER, 0), StreamEnd(1, 0, 1)) == []
    assert bench.tell(Peer(MATCHER, 0), StreamEnd(1, 0, 1)) == []
    assert bench.tell(Peer(MATCHER, 2), StreamEnd(1, 0, 1)) == [], "one that was not in it"
    assert bench.delivered == []
    assert bench.tell(Peer(MATCHER, 1), StreamEnd(1, 0, 1)) == [ENDED]
    assert bench.delivered == [("a", 1)]


def test_what_came_in_both_epochs_is_joined_by_epoch() -> None:
    bench = Bench(MATCHERS)
    bench.join(1, 0, 1, run("a", 1), by=1)
    bench.join(2, 0, 1, run("a", 2), by=1)
    assert bench.machine.gauges()["incomplete_shares"] == 2
    bench.join(2, 0, 1, run("a", 2), by=2)
    bench.join(1, 0, 1, run("a", 1), by=0)
    bench.end(0, 2)
    assert bench.delivered == [("a", 1), ("a", 2)]


def test_retire_leaves_nothing_of_the_former_epoch() -> None:
    bench = Bench(MATCHERS)
    bench.join(1, 0, 1, run("a", 1))
    bench.end(0, 2)
    assert bench.end(1) == [ENDED]
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == [ENDED], "asked again, said again"
    bench.join(2, 0, 1, run("a", 2))
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    assert all(epoch == 2 for epoch, _ in bench.machine._streams)
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == [ENDED]
    assert bench.tell(Peer(MATCHER, 1), StreamEnd(1, 0, 2)) == [], "long ago"
    bench.join(2, 0, 2, run("a", 3))
    assert bench.delivered == [("a", 1), ("a", 2), ("a", 3)]


def test_an_abort_goes_on_as_before() -> None:
    bench = Bench(MATCHERS)
    bench.begin()
    bench.join(1, 0, 1, run("a", 1))
    assert bench.tell(COORDINATOR_PEER, Abort(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    bench.join(1, 0, 2, run("a", 2))
    assert bench.delivered == [("a", 1), ("a", 2)]
    with pytest.raises(AssertionError, match="serves epoch 1, a result is of 2"):
        bench.join(2, 0, 1, run("a", 3))


# Access points change ----------------------------------------------------------------------------------------------


def test_where_access_points_change_everything_of_the_former_epoch_comes_first() -> None:
    """A publisher that came by access point 0 comes by 1 or 2 now."""
    bench = Bench(ACCESS_POINTS)
    bench.join(2, 2, 1, run("a", 2))
    bench.join(2, 1, 1, run("b", 1))
    bench.end(1)
    assert bench.delivered == []
    bench.join(1, 0, 1, run("a", 1))
    assert bench.delivered == [("a", 1)]
    assert bench.end(0, 2) == [ENDED]
    assert sorted(bench.delivered[1:]) == [("a", 2), ("b", 1)]


def test_a_run_that_comes_by_both_ways_is_delivered_once() -> None:
    bench = Bench(ACCESS_POINTS)
    bench.join(2, 2, 1, run("a", 1, 2, client=client_key(0, 9)), found={0: {CLIENT: [0]}, 1: {CLIENT: [0]}})
    bench.join(1, 0, 1, run("a", 1))
    bench.end(0, 2)
    bench.end(1)
    assert bench.delivered == [("a", 1), ("a", 2)]
    assert bench.machine.gauges()["duplicates"] == 1


# Connection points change ------------------------------------------------------------------------------------------


def test_where_connection_points_change_the_former_epoch_has_ended_when_all_have_taken_it() -> None:
    bench = Bench((view(1, connection_points=(0, 1)), view(2, connection_points=(0, 2))))
    said = bench.end(0)
    assert said == [Send(Peer(CONNECTION_POINT, slot), EpochEnd(2)) for slot in (0, 1, 2)]
    assert bench.tell(Peer(CONNECTION_POINT, 0), EpochEnded(2)) == []
    assert bench.tell(Peer(CONNECTION_POINT, 2), EpochEnded(2)) == []
    assert bench.tell(Peer(CONNECTION_POINT, 1), EpochEnded(1)) == []
    assert bench.tell(Peer(CONNECTION_POINT, 1), EpochEnded(2)) == [ENDED]
    bench.tell(COORDINATOR_PEER, Retire(2))
    bench.join(2, 0, 1, run("a", 1, client=client_key(1, 5)), found={})
    assert bench.acknowledged() == [], "to one that is no more nothing is acknowledged"
    bench.join(2, 0, 2, run("b", 1, client=client_key(2, 5)), found={})
    assert bench.acknowledged() == [(client_key(2, 5), 1)]


# Exit points change: the handover ----------------------------------------------------------------------------------


def test_what_is_known_of_publishers_that_move_is_copied_first() -> None:
    bench = Bench(EXIT_POINTS)
    goes, other = moving(0, 1), moving(0, 2)
    bench.join(1, 0, 1, run(goes, 1, 5), found={})
    bench.join(1, 0, 6, run(other, 1, 2), found={})
    out = bench.begin()
    assert out[-1] == Send(COORDINATOR_PEER, Ready(2, 0, 0))
    assert sorted((one.peer.slot, one.message) for one in out[:-1] if isinstance(one, Send)) == [
        (1, PublisherStates(2, [PublisherState(goes, 1, 5, 0)], False)),
        (2, PublisherStates(2, [PublisherState(other, 1, 2, 0)], False)),
    ]
    assert bench.begin() == [], "once"


def test_publishers_that_stay_are_not_copied() -> None:
    bench = Bench(EXIT_POINTS, slot=1)
    bench.join(1, 0, 1, run(moving(1, 1)), found={})
    assert bench.begin() == [Send(COORDINATOR_PEER, Ready(2, 0, 0))]


def test_a_newcomer_is_ready_at_once() -> None:
    assert Bench(EXIT_POINTS, slot=2).begin() == [Send(COORDINATOR_PEER, Ready(2, 0, 0))]


def test_many_publishers_are_copied_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.handover.STEP_PUBLISHERS", 3)
    bench = Bench(EXIT_POINTS)
    for number in range(8):
        bench.join(1, 0, 1 + number, run(moving(0, 1, number)), found={})
    said = bench.begin()
    assert len(said) == 1
    rounds = 0
    while Send(COORDINATOR_PEER, Ready(2, 0, 0)) not in said:
        rounds += 1
        said = bench.drain()
    assert rounds == 2


def test_what_has_changed_since_the_copy_follows_and_the_last_word_waits_for_the_connection_points() -> None:
    bench = Bench(EXIT_POINTS, prepared=False)
    goes, quiet = moving(0, 1), moving(0, 1, 1)
    bench.join(1, 0, 1, run(goes, 1, 2), found={})
    bench.join(1, 0, 3, run(quiet, 1, 1), found={})
    bench.prepare()
    bench.begin()
    bench.acknowledged()
    bench.join(1, 0, 4, run(goes, 3, 1), found={})
    bench.end(1)
    out = bench.end(0, 5)
    client = client_key(0, 77)
    assert out == [
        Send(Peer(CONNECTION_POINT, 0), Acknowledge([(client, 3, [])], [(0, 0, 0)], 1)),
        Send(Peer(EXIT_POINT, 1), PublisherStates(2, [PublisherState(goes, 1, 3, 0)], False)),
        Send(Peer(CONNECTION_POINT, 0), EpochEnd(2)),
    ], "acknowledgements before, what was known already not again"
    out = bench.tell(Peer(CONNECTION_POINT, 0), EpochEnded(2))
    last = PublisherStates(2, [], True)
    assert out == [Send(Peer(EXIT_POINT, 1), last), Send(Peer(EXIT_POINT, 2), last), ENDED]
    assert bench.machine.gauges()["publishers"] == 0
    bench.tell(COORDINATOR_PEER, Retire(2))


def test_a_follower_opens_when_all_former_ones_have_said_the_last_word() -> None:
    views = view(1, exit_points=(0, 1, 3)), view(2, exit_points=(1, 2))
    bench = Bench(views, slot=2)
    bench.join(2, 0, 1, run("a", 6))
    assert bench.states(0, PublisherState("a", 1, 4, 0)) == []
    assert bench.states(0, PublisherState("a", 1, 5, 0), last=True) == []
    assert bench.states(1, last=True) == []
    assert bench.delivered == []
    assert bench.states(3, last=True) == [ENDED]
    assert bench.delivered == [("a", 6)]


def test_a_follower_knows_what_no_record_of_the_output_has_told_of() -> None:
    config = Config(output=OutputSettings(path="output"))
    goes = moving(1, 2)
    former, follower = Bench(EXIT_POINTS, slot=1, config=config), Bench(EXIT_POINTS, slot=2, config=config)
    (append,) = former.join(1, 0, 1, run(goes, 3, 2))
    assert isinstance(append, AppendOutput)
    former.join(1, 0, 3, run(goes, 5, 1), found={})
    former.end(1)
    out = former.end(0, 4)
    assert Send(Peer(EXIT_POINT, 2), PublisherStates(2, [PublisherState(goes, 1, 5, 2, 4)], False)) in out
    follower.states(0, last=True)
    follower.states(1, PublisherState(goes, 1, 5, 2, 4), last=True)
    (append,) = follower.join(2, 0, 1, run(goes, 6, 1))
    assert isinstance(append, AppendOutput)
    assert append.matched.runs[0].since == 5


def test_one_that_stays_waits_for_its_own_streams_as_well() -> None:
    bench = Bench(EXIT_POINTS, slot=1)
    bench.join(2, 0, 1, run("a", 6))
    bench.states(0, last=True)
    bench.end(1)
    assert bench.delivered == []
    bench.end(0)
    assert bench.delivered == [("a", 6)], "nothing of its own needs the connection points"


def test_doubles_are_known_after_a_handover() -> None:
    bench = Bench(EXIT_POINTS, slot=2)
    found: Found = {place: {CLIENT: [0]} for place in range(3)}
    bench.join(2, 0, 1, run("a", 4, 3), found=found)
    bench.join(2, 1, 1, run("b", 1, 3), found=found)
    bench.states(0, PublisherState("a", 1, 3, 0), PublisherState("b", 1, 2, 0))
    bench.states(0, PublisherState("a", 1, 5, 0))
    bench.states(1, PublisherState("a", 2, 90, 0), last=True)
    bench.states(0, last=True)
    assert sorted(bench.delivered) == [("a", 6), ("b", 3)]
    assert bench.machine.gauges()["duplicates"] == 4


def test_acknowledgements_keep_their_order_across_a_handover() -> None:
    follower = Bench(EXIT_POINTS, slot=2)
    client = client_key(0, 77)
    follower.states(0, PublisherState("a", 1, 7, 2), last=True)
    follower.states(1, last=True)
    follower.join(2, 0, 1, run("a", 8), found={})
    assert follower.acknowledged() == [], "two runs that the former one has released are not done"
    follower.tell(Peer(EXIT_POINT, 0), PublisherSettled(2, "a", 1, 1, client, 6, []))
    assert follower.acknowledged() == [(client, 6)]
    follower.tell(Peer(EXIT_POINT, 0), PublisherSettled(2, "a", 1, 1, client, 7, [(7, "bad")]))
    assert follower.acknowledged() == [(client, 8)]
    assert follower.machine.gauges()["unacknowledged_runs"] == 0


def test_a_double_behind_a_handover_waits_for_the_first_copy() -> None:
    follower = Bench(EXIT_POINTS, slot=2)
    client, again = client_key(0, 77), client_key(0, 78)
    follower.states(0, PublisherState("a", 1, 7, 1), last=True)
    follower.states(1, last=True)
    follower.join(2, 0, 1, run("a", 7, client=again))
    assert follower.acknowledged() == []
    assert follower.delivered == []
    follower.tell(Peer(EXIT_POINT, 0), PublisherSettled(2, "a", 1, 1, client, 7, []))
    assert follower.acknowledged() == [(client, 7), (again, 7)]


def test_what_settles_before_the_last_word_is_acknowledged_with_it() -> None:
    follower = Bench(EXIT_POINTS, slot=2)
    client = client_key(0, 77)
    follower.states(0, PublisherState("a", 1, 7, 2))
    follower.tell(Peer(EXIT_POINT, 0), PublisherSettled(2, "a", 1, 1, client, 6, [(6, "bad")]))
    assert follower.acknowledged() == [], "an acknowledgement of the former one may still be on its way"
    follower.states(0, last=True)
    follower.states(1, last=True)
    assert follower.acknowledged() == [(client, 6)]


def test_the_former_exit_point_tells_its_follower_and_ends_when_it_owes_nothing() -> None:
    bench = Bench(EXIT_POINTS)
    goes = moving(0, 2)
    bench.join(1, 0, 1, run(goes, 1))
    bench.join(1, 0, 2, run(goes, 2))
    bench.join(1, 0, 3, run(goes, 3), found={})
    assert bench.delivered == [(goes, 1), (goes, 2)]
    bench.begin()
    bench.end(1)
    out = bench.end(0, 4)
    assert Send(Peer(EXIT_POINT, 2), PublisherStates(2, [PublisherState(goes, 1, 3, 3)], False)) in out
    assert ENDED not in bench.tell(Peer(CONNECTION_POINT, 0), EpochEnded(2))
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == []
    client = client_key(0, 77)
    assert bench.done(bench.tokens[1]) == [], "in order"
    out = bench.done(bench.tokens[0])
    assert out == [Send(Peer(EXIT_POINT, 2), PublisherSettled(2, goes, 1, 3, client, 3, [], (2, 0, 0))), ENDED]
    assert bench.acknowledged() == [], "that is its follower's now"
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2)), Flush()]
    assert bench.machine.gauges()["publishers"] == bench.machine.gauges()["unacknowledged_runs"] == 0


def test_a_run_that_waits_since_before_the_change_has_its_place_at_the_follower() -> None:
    bench = Bench(EXIT_POINTS, prepared=False)
    goes = moving(0, 2)
    bench.join(1, 0, 1, run(goes, 1))
    bench.prepare()
    bench.begin()
    bench.end(1)
    assert Send(Peer(EXIT_POINT, 2), PublisherStates(2, [PublisherState(goes, 1, 1, 1)], False)) in bench.end(0, 2)


def test_in_an_abort_publishers_stay_where_they_are() -> None:
    bench = Bench(EXIT_POINTS)
    goes = moving(0, 2)
    bench.join(1, 0, 1, run(goes, 1))
    bench.begin()
    bench.tell(COORDINATOR_PEER, Abort(2))
    bench.join(1, 1, 1, run(goes, 1, client=client_key(0, 5)))
    bench.done(bench.tokens[0])
    assert bench.acknowledged() == [(client_key(0, 77), 1), (client_key(0, 5), 1)]
    assert bench.states(1, last=True) == []
    follower = Bench(EXIT_POINTS, slot=2)
    follower.states(0, PublisherState("a", 1, 7, 0))
    follower.tell(COORDINATOR_PEER, Abort(2))
    assert follower.machine.gauges()["publishers"] == 0, "what came is forgotten"
