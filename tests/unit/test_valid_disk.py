"""Valid publications on disk: what waits for it, and what the next incarnation of the connection point makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from cluster import frames, valid
from cluster.config import Config, Layers
from cluster.frames import UNTIL_UNPUBLISHED
from cluster.journal import Recovered, RemoveValid, RemoveWithdrawal, SaveValid, SaveWithdrawal
from cluster.language import encode_normal, parse
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    AboutValid,
    Acknowledge,
    Emptied,
    Event,
    FindValid,
    FoundValid,
    Instruction,
    MoveClients,
    Peer,
    Received,
    Relay,
    Restored,
    Store,
    Stored,
    TakenValid,
    TakeValid,
    Tick,
    ValidPublication,
    WithdrawnValid,
    WithdrawValid,
)
from cluster.session_disk import SessionDisk
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation
from tests.unit.edge import NOW_US, START_MS, Edge, packed, publish
from tests.unit.test_durable_cluster import QUICK, crash, until
from tests.unit.test_valid_cluster import gauge, rest, take
from tests.unit.views import view

MINUTE_MS = 60_000
OTHER = 1
EVERYTHING = encode_normal(parse("exists a").normal_form)


@dataclass
class Bench(Edge):
    """A connection point with a disk. others: whether there is another connection point."""

    others: bool = False
    disk: SessionDisk = field(default_factory=SessionDisk)

    def __post_init__(self) -> None:
        Edge.__init__(self)
        if self.others:
            self.feed(Received(COORDINATOR_PEER, view(2, connection_points=(0, OTHER)).install()))
        self.sent.clear()

    def feed(self, event: Event) -> list[Instruction]:
        out = super().feed(event)
        for instruction in out:
            if isinstance(instruction, Store):
                self.disk.ask(instruction)
        return out

    def sync(self) -> None:
        upto = self.disk.sync()
        if upto is not None:
            self.feed(Stored(upto))
            self.drain()

    def again(self, now_us: int = NOW_US) -> Bench:
        """The process dies; return the next incarnation, with what is on disk."""
        self.disk.crash()
        after = Bench.__new__(Bench)
        after.others, after.disk = self.others, self.disk
        after.machine_restored(now_us)
        return after

    def machine_restored(self, now_us: int) -> None:
        recovered = self.disk.read()
        Edge.__init__(self)
        fresh = type(self.machine)(0, 2, self.machine_config())
        self.machine = fresh
        self.feed(Restored(recovered, now_us))
        self.feed(Received(COORDINATOR_PEER, view(2, connection_points=(0, OTHER) if self.others else (0,)).install()))
        self.feed(Tick(START_MS))
        self.sent.clear()

    def machine_config(self) -> Config:
        return Config()

    def publish(self, client: int, first: int, count: int = 1, *, for_ms: int = MINUTE_MS) -> None:
        self.say(client, frames.Publish(first, 1, *packed(*[{"a": 1}] * count), for_ms))

    def ask(self, content: AboutValid) -> None:
        """The other connection point asks."""
        self.feed(Received(Peer(ACCESS_POINT, 0), Relay(OTHER, [0], content)))
        self.drain()

    def told(self) -> list[AboutValid]:
        """Return what the other connection point was told since the last call."""
        return [message.content for _, message in self.to_peers() if isinstance(message, Relay)]

    def valid(self) -> list[ValidPublication]:
        """Return what is valid here, as the other connection point finds it."""
        self.told()
        self.ask(FindValid(99, None, EVERYTHING))
        (found,) = self.told()
        assert isinstance(found, FoundValid)
        assert found.ended
        return found.publications


def test_what_is_valid_is_acknowledged_when_it_is_on_disk() -> None:
    bench = Bench()
    client = bench.login()
    bench.publish(client, 1, 2)
    bench.drain()
    assert bench.disk.waiting == 0, "what the matchers may still refuse is not written"
    bench.acknowledge(bench.key(client), 2)
    bench.drain()
    one, two = bench.disk.asked()
    assert one == SaveValid("lab", 5, 1, NOW_US, NOW_US + 1000 * MINUTE_MS, True, packed({"a": 1})[1])
    assert isinstance(two, SaveValid)
    assert bench.heard(client) == []
    bench.sync()
    (acknowledged,) = bench.heard(client)
    assert isinstance(acknowledged, frames.Acknowledged)
    assert acknowledged.upto == 2


def test_what_became_of_publications_is_entered_in_order_when_their_publisher_has_gone() -> None:
    """The second acknowledgement has nothing to wait for itself, and is behind the first one all the same."""
    bench = Bench()
    client = bench.login()
    key = bench.key(client)
    bench.publish(client, 1, 6)
    bench.drain()
    answer = Peer(EXIT_POINT, 0)
    bench.feed(Received(answer, Acknowledge([(key, 4, [])], [(3, 0, 1)], bench.since)))
    bench.drain()
    bench.close(client)
    bench.feed(Received(answer, Acknowledge([(key, 6, [])], [(0, 0, 2)], bench.since)))
    bench.drain()
    bench.sync()
    gauges = bench.machine.gauges()
    outcomes = ("outcome_matched", "outcome_unmatched", "outcome_rejected", "outcome_repeated", "abandoned")
    assert [gauges[name] for name in outcomes] == [3, 0, 0, 3, 0]


def test_who_publishes_nothing_valid_waits_for_no_disk() -> None:
    bench = Bench()
    client = bench.login()
    bench.say(client, publish(1))
    bench.drain()
    bench.acknowledge(bench.key(client), 1)
    assert [type(one).__name__ for one in bench.heard(client)] == ["Acknowledged"]
    bench.drain()
    assert bench.disk.waiting == 0


def test_a_later_acknowledgement_waits_behind_an_earlier_one() -> None:
    bench = Bench()
    client = bench.login()
    bench.publish(client, 1, 2, for_ms=1_000)
    bench.say(client, publish(3))
    bench.drain()
    bench.acknowledge(bench.key(client), 2, [(2, "refused")])
    bench.drain()
    bench.pass_ms(1_000)  # from here nothing of these is kept
    bench.acknowledge(bench.key(client), 3)
    assert bench.heard(client) == []
    bench.sync()
    assert [(one.upto, one.rejected) for one in bench.heard(client) if isinstance(one, frames.Acknowledged)] == [
        (2, [(2, "refused")]),
        (3, []),
    ]
    assert [one.sequence for one in bench.disk.read().valid] == [1], "what was refused is not valid"


def test_who_has_gone_is_not_told() -> None:
    bench = Bench()
    client = bench.login()
    bench.publish(client, 1)
    bench.drain()
    bench.acknowledge(bench.key(client), 1)
    bench.drain()
    bench.close(client)
    bench.sync()
    assert bench.heard(client) == []
    assert len(bench.disk.read().valid) == 1


def kept(bench: Bench, *for_ms: int) -> int:
    """Have one publication kept for each of these times, and on disk; return the client's connection."""
    client = bench.login()
    for sequence, one in enumerate(for_ms, 1):
        bench.publish(client, sequence, for_ms=one)
    bench.drain()
    bench.acknowledge(bench.key(client), len(for_ms))
    bench.drain()
    bench.sync()
    bench.heard(client)
    return client


def test_the_next_incarnation_has_what_is_still_valid_for_the_time_that_is_left() -> None:
    bench = Bench(others=True)
    kept(bench, MINUTE_MS, 1_000, UNTIL_UNPUBLISHED)
    after = bench.again(NOW_US + 10_000_000)
    assert [(one.sequence, one.left_ms, one.until_us, one.settled) for one in after.valid()] == [
        (1, 50_000, NOW_US + 1000 * MINUTE_MS, True),
        (3, None, None, True),
    ]
    assert after.machine.gauges()["valid_restored"] == 2
    after.sync()
    assert [one.sequence for one in after.disk.read().valid] == [1, 3]
    after.pass_ms(50_000)
    after.drain()
    after.sync()
    assert [one.sequence for one in after.disk.read().valid] == [3]
    assert [one.sequence for one in after.again().valid()] == [3]


def test_a_question_with_what_is_no_filter_is_a_broken_invariant() -> None:
    bench = Bench(others=True)
    kept(bench, MINUTE_MS)
    with pytest.raises(AssertionError, match="connection point 1 asks with not a normal form: "):
        bench.ask(FindValid(7, None, b"\xc1"))
    assert [one.sequence for one in bench.valid()] == [1], "nothing is left of that question"


def test_a_clock_that_was_set_back_makes_nothing_valid_for_longer() -> None:
    bench = Bench(others=True)
    kept(bench, MINUTE_MS)
    assert [one.left_ms for one in bench.again(NOW_US - 10**12).valid()] == [MINUTE_MS]


def test_what_is_kept_before_the_clock_begins_lasts_as_long() -> None:
    bench = Bench(others=True)
    bench.machine = type(bench.machine)(0, 1, Config())
    bench.feed(Received(COORDINATOR_PEER, view(2, connection_points=(0, OTHER)).install()))
    client = bench.login()
    bench.publish(client, 1)
    bench.feed(Tick(START_MS))
    assert [one.left_ms for one in bench.valid()] == [MINUTE_MS]
    bench.machine._validity.store.check()


def test_a_withdrawal_is_told_when_it_is_on_disk_and_outlives_the_incarnation() -> None:
    bench = Bench()
    client = kept(bench, MINUTE_MS)
    bench.say(client, frames.Unpublish(7, 5, 1))
    bench.drain()
    assert set(bench.disk.asked()) == {RemoveValid("lab", 5, 1), SaveWithdrawal("lab", 5, 1)}
    assert bench.heard(client) == []
    bench.sync()
    assert bench.heard(client) == [frames.Done(7)]
    after = bench.again()
    assert after.machine.gauges()["valid_publications"] == 0
    client = after.login()
    after.publish(client, 1)
    assert after.machine.gauges()["valid_publications"] == 0, "a copy that was still on its way"


def test_a_withdrawal_of_what_nobody_has_waits_for_nothing() -> None:
    bench = Bench()
    client = bench.login()
    bench.say(client, frames.Unpublish(7, None, 1))
    bench.drain()
    assert bench.heard(client) == [frames.Done(7)]
    assert bench.disk.waiting == 0


def test_old_withdrawals_leave_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valid, "WITHDRAWALS_REMEMBERED", 2)
    bench = Bench()
    client = bench.login()
    for sequence in (1, 2, 1, 3):
        bench.say(client, frames.Unpublish(sequence, 5, sequence))
    bench.drain()
    assert bench.disk.asked()[-1] == RemoveWithdrawal("lab", 5, 2)
    bench.sync()
    assert bench.disk.read().withdrawals == [SaveWithdrawal("lab", 5, 1), SaveWithdrawal("lab", 5, 3)]


def test_other_connection_points_are_told_when_it_is_on_disk() -> None:
    bench = Bench(others=True)
    kept(bench, MINUTE_MS)
    bench.told()
    bench.ask(WithdrawValid(3, "lab", None, 1))
    assert bench.told() == []
    bench.sync()
    assert bench.told() == [WithdrawnValid(3, [5])]
    handed = ValidPublication("p", 2**64 - 1, 4, NOW_US, NOW_US + 10**9, 500, False, packed({"a": 1})[1])
    bench.ask(TakeValid(4, [handed]))
    assert bench.told() == []
    bench.ask(TakeValid(4, [handed]))  # asked again, as the answer is late
    bench.sync()
    assert bench.told() == [TakenValid(4, True)] * 2
    after = bench.again(NOW_US + 10**9 - 400_000)
    assert [(one.publisher, one.instance, one.left_ms, one.settled) for one in after.valid()] == [
        ("p", 2**64 - 1, 400, False)
    ]


def test_who_leaves_has_nothing_on_disk_that_others_have() -> None:
    bench = Bench(others=True)
    client = kept(bench, MINUTE_MS, UNTIL_UNPUBLISHED)
    bench.say(client, frames.Goodbye())
    bench.drain()
    bench.feed(Received(COORDINATOR_PEER, MoveClients(["there"], 6)))
    (handed,) = bench.told()
    assert isinstance(handed, TakeValid)
    assert [one.sequence for one in handed.publications] == [1, 2]
    bench.ask(TakenValid(handed.query, True))
    assert not any(isinstance(message, Emptied) for _, message in bench.to_peers())
    bench.sync()
    assert bench.disk.read() == Recovered([], [], [], [])
    assert bench.to_peers()[-1] == (COORDINATOR_PEER, Emptied(6))


# Over a cluster ---------------------------------------------------------------------------------------------------


@conversation
async def test_a_crash_of_the_connection_point_costs_nothing_that_is_valid() -> None:
    home = Peer(CONNECTION_POINT, 0)
    layers = Layers(connection_points=2)
    async with (
        LocalCluster(config=Config(layers=layers)) as cluster,
        cluster.connect("sensor", connection_point=0, **QUICK) as sensor,
        cluster.connect("lab", connection_point=1) as lab,
    ):
        await sensor.publish_many([{"n": n} for n in range(50)], valid_for=600)
        notice = await sensor.publish({"n": 50}, valid_for=math.inf)
        await sensor.publish({"n": 51}, valid_for=math.inf)
        await sensor.unpublish(notice)
        for _ in range(2):
            crash(cluster, home)
            await until(lambda: home in cluster._assembly.serving)
            subscription = await lab.subscribe("n < 100", initial="valid")
            assert await rest(sensor, subscription) == [(n, True) for n in (*range(50), 51)]
            await subscription.close()
        assert gauge(cluster, "valid_publications") == 51
        await sensor.publish({"n": 52}, valid_for=600)
        assert await take(await lab.subscribe("n >= 50", initial="valid"), 2) == [(51, True), (52, True)]
