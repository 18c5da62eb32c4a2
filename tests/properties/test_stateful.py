"""Cell T25: lanes, subscribers' queues and the removal of doubles, under whatever sequence of steps Hypothesis tries.

The models are those of `test_channel.py` and `test_outbox.py`, which random tests drive as well; what is added is that
a failure is shrunk to the fewest steps. `stateful.py` says how to try more.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.messages import Run, client_key
from cluster.policy import Policy
from tests.properties.stateful import SETTINGS
from tests.properties.test_channel import Network
from tests.properties.test_outbox import POLICIES, Model
from tests.unit.test_exit_point import Bench, result

SEEDS = st.integers(0, 2**32 - 1)


# A lane ----------------------------------------------------------------------------------------------------------


class LaneMachine(RuleBasedStateMachine):
    """Two ends of a lane over a network that loses, doubles, reorders and cuts."""

    network: Network
    rng: random.Random

    @initialize(
        seed=SEEDS,
        window=st.sampled_from([(1, 1), (3, 1000), (8, 100), (4096, 1 << 20)]),
        faults=st.sampled_from([0.0, 0.1, 0.3]),
    )
    def begin(self, seed: int, window: tuple[int, int], faults: float) -> None:
        self.network = Network(random.Random(seed), faults, 100, window)
        self.network.connect()

    @rule(end=st.integers(0, 1), count=st.integers(1, 12))
    def send(self, end: int, count: int) -> None:
        for _ in range(count):
            self.network.send(end)

    @rule(end=st.integers(0, 1))
    def poll(self, end: int) -> None:
        self.network.poll(end)

    @rule(end=st.integers(0, 1), count=st.integers(1, 12))
    def arrive(self, end: int, count: int) -> None:
        for _ in range(count):
            self.network.arrive(end)

    @rule()
    def tick(self) -> None:
        self.network.tick()

    @precondition(lambda self: self.network.ends[0].connected)
    @rule()
    def cut(self) -> None:
        self.network.cut()

    @precondition(lambda self: not self.network.ends[0].connected)
    @rule()
    def connect(self) -> None:
        self.network.connect()

    @invariant()
    def holds(self) -> None:
        self.network.check()

    def teardown(self) -> None:
        if hasattr(self, "network"):
            self.network.settle()


# A subscriber's queue --------------------------------------------------------------------------------------------


class OutboxMachine(RuleBasedStateMachine):
    """An outbox and its model side by side."""

    model: Model

    @initialize(
        seed=SEEDS,
        policies=st.dictionaries(st.integers(0, 199), st.sampled_from(POLICIES), min_size=1, max_size=6),
    )
    def begin(self, seed: int, policies: dict[int, Policy]) -> None:
        self.model = Model(random.Random(seed), policies)
        self.open = list(policies)

    @rule()
    def push(self) -> None:
        self.model.push(self.open)

    @rule()
    def take(self) -> None:
        self.model.take()

    @rule()
    def settle(self) -> None:
        self.model.settle()

    @rule()
    def consume(self) -> None:
        self.model.consume()

    @precondition(lambda self: len(self.open) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.open))
        self.open.remove(gone)
        self.model.settle()
        self.model.close(gone)

    @rule()
    def tell(self) -> None:
        self.model.tell()

    @invariant()
    def holds(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model") and not self.model.overflowed:
            self.model.run_dry()


# Doubles ---------------------------------------------------------------------------------------------------------

PUBLISHERS = 2
ACCESS_POINTS = 3
MATCHERS = (0, 1)
CONNECTION_POINTS = 2


class Publisher:
    """A client that publishes, reconnects by other ways, and sends again what it has no answer for.

    session: numbers its connections. acknowledged: as told to the present session.
    """

    def __init__(self, place: int) -> None:
        self.name = f"p{place}"
        self.place = place
        self.session = 0
        self.access_point = 0
        self.last = 0
        self.acknowledged = 0

    @property
    def client(self) -> int:
        return client_key(self.session % CONNECTION_POINTS, self.place * 1000 + self.session)


class DedupMachine(RuleBasedStateMachine):
    """An exit point that gets copies of publications by several ways, each in order and without holes."""

    bench: Bench

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.publishers = [Publisher(place) for place in range(PUBLISHERS)]
        self.next_exit = [1] * ACCESS_POINTS
        # By access point and matcher: the results on their way.
        self.ways: list[list[deque[Any]]] = [[deque() for _ in MATCHERS] for _ in range(ACCESS_POINTS)]
        self.tokens: list[tuple[int, int]] = []
        # By publisher and by the subscriber's connection point.
        self.handed: dict[tuple[str, int], list[int]] = {
            (one.name, slot): [] for one in self.publishers for slot in range(CONNECTION_POINTS)
        }

    def _send(self, publisher: Publisher, first: int, count: int) -> None:
        access_point = publisher.access_point
        run = Run(publisher.name, 1, publisher.client, first, count, 5)
        sequence = self.next_exit[access_point]
        self.next_exit[access_point] += count
        for matcher in MATCHERS:
            found: Any = {
                number - first: {client_key(self._slot(number), 9): [0]}
                for number in range(first, first + count)
                if self._matches(number) and matcher == number // 2 % len(MATCHERS)
            }
            message = result([run], found, sequence=sequence, access_point=access_point, expect=MATCHERS)
            self.ways[access_point][matcher].append(message)

    @staticmethod
    def _matches(number: int) -> bool:
        """Tell whether a publication matches; whichever copy of it."""
        return number % 3 != 0

    @staticmethod
    def _slot(number: int) -> int:
        """Return whose subscriber it is for."""
        return number % CONNECTION_POINTS

    @rule(place=st.integers(0, PUBLISHERS - 1), count=st.integers(1, 5))
    def publish(self, place: int, count: int) -> None:
        publisher = self.publishers[place]
        self._send(publisher, publisher.last + 1, count)
        publisher.last += count

    @rule(place=st.integers(0, PUBLISHERS - 1), access_point=st.integers(0, ACCESS_POINTS - 1))
    def reconnect(self, place: int, access_point: int) -> None:
        publisher = self.publishers[place]
        publisher.session += 1
        publisher.access_point = access_point
        first, count = publisher.acknowledged + 1, publisher.last - publisher.acknowledged
        if count:
            self._send(publisher, first, count)

    @rule(access_point=st.integers(0, ACCESS_POINTS - 1), matcher=st.sampled_from(MATCHERS), count=st.integers(1, 4))
    def arrive(self, access_point: int, matcher: int, count: int) -> None:
        way = self.ways[access_point][matcher]
        for _ in range(min(count, len(way))):
            self.bench.join(way.popleft(), matcher)
        self._look()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def delivered(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.tokens) - 1))
        connection_point, token = self.tokens.pop(at)
        self.bench.delivered(token, connection_point=connection_point)

    @rule()
    def acknowledge(self) -> None:
        for client, upto, rejected in self.bench.acknowledged():
            assert not rejected
            for publisher in self.publishers:
                if publisher.client == client:  # other sessions are over: nobody hears it
                    assert publisher.acknowledged <= upto <= publisher.last, "acknowledged backwards, or what never was"
                    publisher.acknowledged = upto
                    self._acknowledged(publisher)

    def _look(self) -> None:
        self.tokens += self.bench.tokens()
        for slot, _, name, sequence, _, _ in self.bench.handed():
            self.handed[name, slot].append(sequence)

    def _wanted(self, upto: int, slot: int) -> list[int]:
        return [number for number in range(1, upto + 1) if self._matches(number) and self._slot(number) == slot]

    def _acknowledged(self, publisher: Publisher) -> None:
        for slot in range(CONNECTION_POINTS):
            wanted = self._wanted(publisher.acknowledged, slot)
            assert self.handed[publisher.name, slot][: len(wanted)] == wanted, "acknowledged, and not handed over"

    @invariant()
    def once_and_in_order(self) -> None:
        for publisher in getattr(self, "publishers", ()):
            for slot in range(CONNECTION_POINTS):
                got = self.handed[publisher.name, slot]
                assert got == self._wanted(publisher.last, slot)[: len(got)]

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for access_point, ways in enumerate(self.ways):
            for matcher, way in enumerate(ways):
                if way:
                    self.arrive(access_point, matcher, len(way))
        for connection_point, token in self.tokens:
            self.bench.delivered(token, connection_point=connection_point)
        self.tokens = []
        self.acknowledge()
        # Who has heard nothing since it came by another way asks once more; all of it has been handed over.
        for publisher in self.publishers:
            if publisher.acknowledged < publisher.last:
                before = {key: len(got) for key, got in self.handed.items()}
                self.reconnect(publisher.place, publisher.access_point)
                for matcher in MATCHERS:
                    way = self.ways[publisher.access_point][matcher]
                    self.arrive(publisher.access_point, matcher, len(way))
                self.acknowledge()
                assert before == {key: len(got) for key, got in self.handed.items()}, "handed over again"
            assert publisher.acknowledged == publisher.last
        gauges = self.bench.machine.gauges()
        assert (gauges["unacknowledged_runs"], gauges["incomplete_shares"]) == (0, 0)


TestLane = LaneMachine.TestCase
TestOutbox = OutboxMachine.TestCase
TestDedup = DedupMachine.TestCase
for _case in (TestLane, TestOutbox, TestDedup):
    _case.settings = SETTINGS
del _case
