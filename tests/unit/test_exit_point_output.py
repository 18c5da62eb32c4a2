"""The exit point writes what matched: before it hands over, once, and `stored` waits for the disk."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.columns import UINT64, unpack
from cluster.config import Config, OutputSettings
from cluster.exit_point import ExitPoint
from cluster.marks import Marks
from cluster.matched import Matched, rows_of
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    MATCHER,
    Acknowledge,
    AdoptOutput,
    AppendOutput,
    Deliver,
    Delivered,
    Drained,
    Flush,
    Instruction,
    Message,
    NameClients,
    NameOutputClients,
    NotStored,
    OutputMarks,
    OutputSealed,
    Peer,
    ReadOutput,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Result,
    Retire,
    Run,
    SealOutput,
    Send,
    Stored,
    client_key,
)
from tests.unit.test_exit_point import PUBLISHER, result, run
from tests.unit.views import view

ANN, BOB = client_key(0, 1), client_key(1, 2)
CONFIG = Config(output=OutputSettings(path="output"))
VIEW = view(connection_points=range(2), matchers=range(2), exit_points=(0, 1))


class Bench:
    """An exit point with an output, and what it asked for."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.machine = ExitPoint(0, 1, config)
        self.asked: list[Instruction] = []
        if config.output.path is not None:
            self.feed(OutputMarks(Marks()))
        self.feed(Received(COORDINATOR_PEER, VIEW.install()))

    def feed(self, event: Any) -> None:
        self.asked += self.machine.handle(event)

    def join(self, *messages: Result) -> None:
        for matcher, message in enumerate(messages):
            self.feed(Received(Peer(MATCHER, matcher), message))

    def told(self, peer: Peer, message: Message) -> None:
        self.feed(Received(peer, message))

    def take(self, kind: type) -> list[Any]:
        taken = [one for one in self.asked if isinstance(one, kind)]
        self.asked = [one for one in self.asked if not isinstance(one, kind)]
        return taken

    def sent(self, kind: type) -> list[Any]:
        return [one.message for one in self.asked if isinstance(one, Send) and isinstance(one.message, kind)]

    def acknowledged(self) -> list[Any]:
        self.feed(Drained())
        return [one for message in self.sent(Acknowledge) for one in message.acknowledgements]


def stored(name: str = "p", first: int = 1, count: int = 1) -> Run:
    return msgspec.structs.replace(run(name, first, count), stored=True)


def written(append: AppendOutput) -> list[tuple[str, int, bytes, list[int]]]:
    return [
        (row.run.publisher, row.sequence, row.payload, list(row.subscriptions())) for row in rows_of(append.matched)
    ]


def test_what_matched_is_written_before_it_is_handed_over() -> None:
    bench = Bench()
    runs = [run("a", 5, 2), run("b", 1, 2)]
    both = {"expect": (0, 1)}
    bench.join(
        result(runs, {1: {ANN: [3]}, 2: {ANN: [3]}}, **both),
        result(runs, {1: {ANN: [1], BOB: [9]}}, **both),
    )
    kinds = [type(one) if isinstance(one, AppendOutput) else type(one.message) for one in bench.asked[1:]]
    assert kinds == [AppendOutput, Deliver, Deliver]
    (append,) = bench.take(AppendOutput)
    assert (append.number, append.sync, append.matched.rows, append.matched.epoch) == (1, False, 2, 1)
    assert written(append) == [
        ("a", 6, b"b", [ANN << 20 | 1, ANN << 20 | 3, BOB << 20 | 9]),
        ("b", 1, b"c", [ANN << 20 | 3]),
    ]
    marks = Marks()
    marks.take(append.matched)
    assert marks.upto == {("a", 1): 6, ("b", 1): 2}
    assert {key: ranges.pairs() for key, ranges in marks.unmatched.items()} == {("a", 1): [(1, 5)], ("b", 1): [(2, 2)]}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(append.matched), type=Matched) == append.matched
    assert bench.machine.gauges()["output_appended"] == 2


def test_what_matches_nothing_is_not_written_and_stored_need_not_wait() -> None:
    bench = Bench()
    bench.join(result([stored(count=3)]))
    assert not bench.take(AppendOutput)
    assert bench.acknowledged() == [(PUBLISHER, 3, [])]


ALL = Config(output=OutputSettings(path="output", all=True))


def test_where_all_is_written_what_matches_nothing_is_a_row_for_nobody() -> None:
    bench = Bench(ALL)
    runs = [run("a", 5, 2), run("b", 1, 3)]
    both = {"expect": (0, 1), "rejected": [(4, "odd")]}
    bench.join(
        result(runs, {0: {}, 1: {}, 2: {}, 3: {}}, **both),
        result(runs, {1: {ANN: [1]}}, **both),
    )
    (append,) = bench.take(AppendOutput)
    assert append.matched.rows == 4
    assert written(append) == [
        ("a", 5, b"a", []),
        ("a", 6, b"b", [ANN << 20 | 1]),
        ("b", 1, b"c", []),
        ("b", 2, b"d", []),
    ]
    (deliver,) = bench.sent(Deliver)
    assert len(deliver.lengths) == 4
    gauges = bench.machine.gauges()
    assert (gauges["matched"], gauges["unmatched"], gauges["rejected"]) == (1, 3, 1)
    assert gauges["output_appended"] == 4


def test_where_all_is_written_stored_waits_for_what_matches_nothing() -> None:
    bench = Bench(ALL)
    bench.join(result([stored(count=2), stored("q"), run("r")], {0: {}, 1: {}, 3: {}}, rejected=[(2, "odd")]))
    (append,) = bench.take(AppendOutput)
    assert (append.sync, append.matched.rows) == (True, 3)
    assert bench.acknowledged() == [(PUBLISHER, 1, [(1, "odd")]), (PUBLISHER, 1, [])], "q has no row, r does not ask"
    bench.asked = []
    bench.feed(Stored(append.number))
    assert bench.acknowledged() == [(PUBLISHER, 2, [])]


def test_where_all_is_written_no_room_is_told_for_what_matches_nothing() -> None:
    bench = Bench(ALL)
    bench.join(result([stored(count=2)], {0: {}, 1: {}}))
    (append,) = bench.take(AppendOutput)
    bench.feed(NotStored(append.number, 2, "overloaded: full"))
    assert bench.acknowledged() == [(PUBLISHER, 2, [(1, "overloaded: full"), (2, "overloaded: full")])]


def recovered(marks: Marks, config: Config = CONFIG) -> Bench:
    """Return an exit point after a recovery with an output that says this."""
    bench = Bench(config)
    bench.told(COORDINATOR_PEER, Recover(2, list(VIEW.members), VIEW.owners, []))
    bench.told(COORDINATOR_PEER, Rebuild(2, []))
    bench.feed(OutputMarks(marks))
    bench.asked = []
    return bench


def rejoin(bench: Bench, *arguments: Any, **more: Any) -> None:
    bench.join(msgspec.structs.replace(result(*arguments, **more), epoch=2))


@pytest.mark.parametrize("config", [CONFIG, ALL])
def test_what_matched_nothing_at_first_is_delivered_to_nobody_after_a_recovery(config: Config) -> None:
    before = Bench(config)
    shown: dict[int, dict[int, list[int]]] = {} if config is CONFIG else {0: {}}
    before.join(result([run(first=1)], shown))
    before.join(result([run(first=2)], {0: {ANN: [1]}}, sequence=2))
    marks = Marks()
    for append in before.take(AppendOutput):
        marks.take(append.matched)
    bench = recovered(marks, config)
    rejoin(bench, [stored(first=1, count=3)], {place: {BOB: [7]} for place in range(3)})
    (deliver,) = bench.sent(Deliver)
    assert unpack(UINT64, deliver.sequence) == [2, 3], "the first was decided"
    (append,) = bench.take(AppendOutput)
    assert [sequence for _, sequence, _, _ in written(append)] == [3]
    assert bench.machine.gauges()["unmatched"] == 1


def test_what_matched_nothing_and_has_none_behind_it_in_the_output_may_match_after_a_recovery() -> None:
    bench = recovered(Marks({("p", 1): 4}))
    rejoin(bench, [run(first=5, count=2)], {0: {BOB: [7]}})
    assert unpack(UINT64, bench.sent(Deliver)[0].sequence) == [5]
    assert [written(append)[0][1] for append in bench.take(AppendOutput)] == [5]


def test_a_record_says_what_was_released_before_it_without_one() -> None:
    bench = Bench()
    settled = [msgspec.structs.replace(run(first=first), settled=1) for first in (3, 4, 5, 6, 7)]
    bench.join(result([settled[0]]))
    bench.join(result([settled[1]], {0: {ANN: [1]}}, sequence=2))
    bench.join(result([settled[2]], sequence=3))
    bench.join(result([msgspec.structs.replace(run(first=4, count=3), settled=1)], {2: {ANN: [1]}}, sequence=4))
    first, second = (append.matched.runs[0] for append in bench.take(AppendOutput))
    assert (first.since, first.skipped, first.settled) == (2, 0, 1)
    assert (second.since, second.skipped) == (5, 2)


def test_what_found_no_room_is_not_said_to_have_matched_nothing() -> None:
    bench = Bench()
    bench.join(result([run(first=1)]))
    bench.join(result([run(first=2)], {0: {ANN: [1]}}, sequence=2))
    (lost,) = bench.take(AppendOutput)
    bench.feed(NotStored(lost.number, 1, "overloaded: full"))
    bench.join(result([run(first=3)], sequence=3))
    bench.join(result([run(first=4)], {0: {ANN: [1]}}, sequence=4))
    (append,) = bench.take(AppendOutput)
    marks = Marks()
    marks.take(append.matched)
    assert [ranges.pairs() for ranges in marks.unmatched.values()] == [[(3, 3)]]
    bench = recovered(marks)
    rejoin(bench, [run(first=1, count=4)], {place: {BOB: [7]} for place in range(4)})
    assert unpack(UINT64, bench.sent(Deliver)[0].sequence) == [1, 2, 4]


def test_without_an_output_nothing_is_written() -> None:
    bench = Bench(Config())
    bench.join(result([run()], {0: {ANN: [1]}}))
    bench.told(Peer(CONNECTION_POINT, 0), NameClients([(ANN, "ann")], []))
    bench.told(COORDINATOR_PEER, Recover(2, list(VIEW.members), VIEW.owners, []))
    bench.told(COORDINATOR_PEER, Rebuild(2, []))
    assert all(isinstance(one, Send) for one in bench.asked)
    assert bench.sent(Rebuilt) == [Rebuilt(2)]
    assert not [name for name in bench.machine.gauges() if name.startswith("output")]


def test_stored_waits_for_the_disk_and_for_the_subscribers() -> None:
    for order in ("disk", "subscribers"):
        bench = Bench()
        bench.join(result([stored(count=2)], {1: {ANN: [1]}}))
        (append,) = bench.take(AppendOutput)
        assert append.sync
        ((_, _, _, token),) = bench.sent(Deliver)[0].runs
        steps = [Stored(append.number), Received(Peer(CONNECTION_POINT, 0), Delivered([token]))]
        first, last = steps if order == "disk" else reversed(steps)
        bench.feed(first)
        assert not bench.acknowledged()
        bench.feed(last)
        assert bench.acknowledged() == [(PUBLISHER, 2, [])]
        gauges = bench.machine.gauges()
        assert gauges["unacknowledged_runs"] == gauges["output_unstored_runs"] == 0


def test_a_run_that_does_not_ask_is_not_held_up_but_by_those_before_it() -> None:
    bench = Bench()
    bench.join(result([run("q"), stored("p")], {0: {ANN: [1]}, 1: {ANN: [1]}}))
    tokens = [token for _, _, _, token in bench.sent(Deliver)[0].runs]
    bench.told(Peer(CONNECTION_POINT, 0), Delivered(tokens))
    assert bench.acknowledged() == [(PUBLISHER, 1, [])]


def test_no_room_is_told_to_those_who_asked() -> None:
    bench = Bench()
    bench.join(result([stored(count=3), run("q")], {1: {ANN: [1]}, 3: {ANN: [1]}}))
    (append,) = bench.take(AppendOutput)
    tokens = [token for _, _, _, token in bench.sent(Deliver)[0].runs]
    bench.feed(NotStored(append.number, append.matched.rows, "overloaded: full"))
    bench.told(Peer(CONNECTION_POINT, 0), Delivered(tokens))
    assert bench.acknowledged() == [(PUBLISHER, 3, [(2, "overloaded: full")]), (PUBLISHER, 1, [])]
    gauges = bench.machine.gauges()
    assert (gauges["output_appended"], gauges["output_lost"], gauges["output_overloaded"]) == (2, 2, 1)


def test_after_a_recovery_what_is_written_is_released_and_not_written_again() -> None:
    bench = Bench()
    bench.join(result([stored(count=4)], {place: {ANN: [1]} for place in range(4)}))
    (append,) = bench.take(AppendOutput)
    bench.told(COORDINATOR_PEER, Recover(2, list(VIEW.members), VIEW.owners, []))
    bench.told(COORDINATOR_PEER, Rebuild(1, []))
    assert not bench.take(ReadOutput), "an old Rebuild"
    bench.told(COORDINATOR_PEER, Rebuild(2, []))
    assert len(bench.take(ReadOutput)) == 1
    assert not bench.sent(Rebuilt)
    bench.feed(OutputMarks(Marks({("p", 1): 3})))
    assert bench.sent(Rebuilt) == [Rebuilt(2)]
    bench.feed(Stored(append.number))  # of before
    bench.asked = []
    again = msgspec.structs.replace(result([stored(first=1, count=2)], {0: {ANN: [1]}, 1: {ANN: [1]}}), epoch=2)
    bench.join(again)
    assert not bench.take(AppendOutput)
    ((_, _, _, token),) = bench.sent(Deliver)[0].runs
    bench.told(Peer(CONNECTION_POINT, 0), Delivered([token]))
    assert bench.acknowledged() == [(PUBLISHER, 2, [])]
    bench.asked = []
    rest = result([stored(first=3, count=3)], {place: {ANN: [1]} for place in range(3)}, sequence=3)
    bench.join(msgspec.structs.replace(rest, epoch=2))
    (append,) = bench.take(AppendOutput)
    assert append.matched.rows == 2
    assert [sequence for _, sequence, _, _ in written(append)] == [4, 5]
    assert len(bench.sent(Deliver)[0].lengths) == 4 * 3
    later = result([run(first=6)], {0: {ANN: [1]}}, sequence=6)
    bench.join(msgspec.structs.replace(later, epoch=2))
    assert [sequence for append in bench.take(AppendOutput) for _, sequence, _, _ in written(append)] == [6]


def test_a_leaver_seals_before_it_says_that_it_has_left() -> None:
    bench = Bench()
    after = view(2, connection_points=range(2), matchers=range(2), exit_points=(1,))
    bench.told(COORDINATOR_PEER, Recover(2, list(after.members), after.owners, []))
    assert len(bench.take(SealOutput)) == 1
    assert not bench.take(Flush)
    bench.feed(OutputSealed())
    assert len(bench.take(Flush)) == 1
    bench.told(COORDINATOR_PEER, Retire(2))
    assert len(bench.take(SealOutput)) == 1


def test_the_first_exit_point_adopts_what_others_have_left() -> None:
    bench = Bench()
    assert bench.take(AdoptOutput) == [AdoptOutput((0, 1))]
    other = ExitPoint(1, 1, CONFIG)
    assert not other.handle(Received(COORDINATOR_PEER, VIEW.install()))


def test_names_are_passed_on() -> None:
    bench = Bench()
    bench.told(Peer(CONNECTION_POINT, 1), NameClients([(BOB, "bob")], [ANN]))
    assert bench.take(NameOutputClients) == [NameOutputClients([(BOB, "bob")], [ANN])]
