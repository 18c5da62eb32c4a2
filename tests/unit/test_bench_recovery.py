"""The benchmark of recovery: its counts, its figures, whom it hits; without a cluster."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import subprocess
import time
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench import recovery, recovery_figures
from bench.load import Log
from bench.process import is_actor, is_stopped, started_at
from bench.recovery_faults import Fault, Injector, NoVictim, victims
from bench.recovery_figures import Seen, acknowledged_s, count, failed, figures_of, quantiles
from bench.scaling_oracle import Expected
from cluster.errors import KittiwakeError

PUBLISHERS = 2
# Two clients, three distinct publications: client 0 has subscription 0 for 0 and 1, client 1 has 0 for 2.
EXPECTED = Expected(2, np.array([0, 1, 1, 2, 2, 2, 3]), np.array([0, 0, 0]))


def log(numbers: list[int], redelivered: list[int] | None = None, ids: list[int] | None = None) -> Log:
    """A subscriber's log: these publications, one subscription each."""
    return Log(
        array("H", [number % PUBLISHERS for number in numbers]).tobytes(),
        array("Q", [number // PUBLISHERS + 1 for number in numbers]).tobytes(),
        array("d", map(float, range(len(numbers)))).tobytes(),
        array("I", [1] * len(numbers)).tobytes(),
        array("I", ids or [0] * len(numbers)).tobytes(),
        array("I", redelivered or []).tobytes(),
    )


def seen(logs: list[Log], total: int, unacknowledged: tuple[int, ...] = (), faults: list[Fault] | None = None) -> Seen:
    due = np.arange(total, dtype=np.float64)
    acknowledged = due + 0.5
    acknowledged[list(unacknowledged)] = np.inf
    return Seen(due, acknowledged, PUBLISHERS, logs, EXPECTED, faults or [], [])


# Counts ----------------------------------------------------------------------------------------------------------


def test_what_came_as_it_should_is_not_counted() -> None:
    counts, examples = count(seen([log([0, 1, 3, 4]), log([2, 5])], 6))
    assert vars(counts) == vars(recovery_figures.Counts(notifications=6))
    assert examples == []


def test_lost_is_what_was_acknowledged_and_did_not_come() -> None:
    counts, examples = count(seen([log([0, 3]), log([2, 5])], 6, unacknowledged=(4,)))
    assert counts.lost == 1  # publication 1; nobody was promised 4
    assert examples == [
        "client 0 did not get publication 1, due 1.000 s after the beginning, acknowledged 1.500 s after the beginning"
    ]


def test_doubles_are_split_by_their_mark_and_are_not_out_of_order() -> None:
    counts, examples = count(seen([log([0, 1, 3, 0, 1, 4], redelivered=[3]), log([2, 5])], 6))
    assert (counts.doubled_flagged, counts.doubled_unflagged) == (1, 1)
    assert (counts.lost, counts.out_of_order, counts.oracle_differences) == (0, 0, 0)
    assert examples == ["client 0 got publication 1 again, 4.000 s after the beginning"]


def test_out_of_order_is_per_publisher() -> None:
    # 0 and 4 are of one publisher, 1 and 3 of the other.
    counts, _ = count(seen([log([1, 0, 4, 3]), log([2, 5])], 6))
    assert counts.out_of_order == 0
    counts, _ = count(seen([log([4, 1, 3, 0]), log([2, 5])], 6))
    assert counts.out_of_order == 1


def test_differences_are_wrong_subscriptions_and_strangers() -> None:
    counts, _ = count(seen([log([0, 1, 3, 4], ids=[0, 7, 0, 0]), log([2, 5, 8])], 6))
    assert counts.oracle_differences == 1 + 1 + 1  # 7 is wrong, and a number that nobody has; 8 was never published
    counts, _ = count(seen([log([0, 1, 2, 3, 4]), log([2, 5])], 6))
    assert counts.oracle_differences == 1  # client 0 has no subscription for 2


# Takeover --------------------------------------------------------------------------------------------------------


def test_the_takeover_counts_for_the_publisher_that_waits_longest() -> None:
    due = np.arange(8, dtype=np.float64)
    acknowledged = due + 0.25
    acknowledged[1::2] += [0, 0, 3, 1]
    # After 4.5: publisher 1 has 5 (acknowledged at 8.25) and 7 (at 8.25), publisher 0 has 6 at 6.25.
    assert acknowledged_s(due, acknowledged, PUBLISHERS, 4.5) == 3.75
    acknowledged[[5, 7]] = np.inf
    assert acknowledged_s(due, acknowledged, PUBLISHERS, 4.5) == math.inf
    assert acknowledged_s(due, acknowledged, PUBLISHERS, 7.5) == math.inf, "nothing was due any more"


def test_quantiles_know_what_never_was() -> None:
    assert quantiles([]) == {"p50": None, "p95": None, "max": None}
    assert quantiles([2.0, 1.0, 3.0]) == {"p50": 2.0, "p95": 3.0, "max": 3.0}
    assert quantiles([1.0] * 19 + [None]) == {"p50": 1.0, "p95": 1.0, "max": None}
    assert quantiles([1.0] * 9 + [None]) == {"p50": 1.0, "p95": None, "max": None}


def test_a_run_that_was_not_recovered_from_fails_and_says_so() -> None:
    good = Fault("matcher", 1, 10, 4, at=1.2, happened=True, serving=1.7, acknowledged=2.6, after=5)
    logs = [log([0, 1, 3, 4]), log([2, 5])]
    figures = figures_of(seen(logs, 6, faults=[good]))
    assert figures["takeover_s"] == {"p50": 2.3, "p95": 2.3, "max": 2.3}  # publication 3 of publisher 1, at 3.5
    assert figures["serving_s"]["max"] == 0.5
    assert figures["acks_during_fault_min"] == 5  # from 1.2 to 6.2
    assert figures["faults"][0]["replaced"]
    assert not failed(figures, 1)
    assert failed(figures, 2), "fewer than wanted"
    stays = Fault("matcher", 1, 10, 4, at=1.2, happened=True)
    figures = figures_of(seen(logs, 6, faults=[good, stays]))
    assert figures["takeover_s"]["max"] is None
    assert (figures["not_taken_over"], figures["not_happened"]) == (1, 0)
    assert failed(figures, 2)
    nothing = Fault("matcher", 1, 10, 4, at=1.2, serving=1.3, acknowledged=1.3, after=4)
    assert failed(figures_of(seen(logs, 6, faults=[nothing])), 1), "the fault did not happen"


@pytest.mark.parametrize(
    "logs",
    [
        [log([0, 1, 3]), log([2, 5])],
        [log([0, 1, 3, 4, 4]), log([2, 5])],
        [log([4, 1, 3, 0]), log([2, 5])],
        [log([0, 1, 2, 3, 4]), log([2, 5])],
    ],
)
def test_whatever_is_wrong_with_the_deliveries_fails_the_run(logs: list[Log]) -> None:
    assert failed(figures_of(seen(logs, 6)), 0)
    assert not failed(figures_of(seen([log([0, 1, 3, 4, 4], redelivered=[4]), log([2, 5])], 6)), 0)


# Whom it hits ----------------------------------------------------------------------------------------------------


def row(layer: str, slot: int, pid: int, incarnation: int = 1, state: str = "serving") -> dict[str, Any]:
    return {"layer": layer, "slot": slot, "state": state, "pid": pid, "incarnation": incarnation, "heard_ms_ago": 9}


def status(*rows: dict[str, Any], coordinator: int | None = None) -> dict[str, Any]:
    document: dict[str, Any] = {"state": "serving", "members": list(rows)}
    if coordinator is not None:
        document["coordinator"] = {"pid": coordinator, "incarnation": 3}
    return document


def test_victims_serve_are_of_the_role_and_are_not_spared() -> None:
    document = status(row("matcher", 0, 5), row("matcher", 1, 6, state="lost"), row("exit_point", 0, 7))
    assert [one["pid"] for one in victims(document, "matcher", ())] == [5]
    assert victims(document, "matcher", (("matcher", 0),)) == []
    assert victims(document, "coordinator", ()) == []
    (found,) = victims(status(coordinator=8), "coordinator", ())
    assert (found["pid"], found["incarnation"], found["slot"]) == (8, 3, 0)


@pytest.fixture
def actor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like an actor of Ray, and does nothing."""
    with subprocess.Popen(["ray::nothing", "60"], executable="/bin/sleep") as process:
        while not is_actor(process.pid):  # Popen may return before the kernel shows its new name
            time.sleep(0.001)
        yield process
        process.kill()


def inject(
    document: dict[str, Any], role: str, *, count: int = 1, stop_s: float | None = None, timeout_s: float = 0.3
) -> Injector:
    """Hit a role of a cluster that replaces whoever is gone at once, and whose publishers are always acknowledged."""
    started = {one["pid"]: started_at(one["pid"]) for one in document["members"]}

    async def look() -> dict[str, Any]:
        for one in document["members"]:
            if started_at(one["pid"]) != started[one["pid"]]:
                one["incarnation"] += one["incarnation"] == 1
        return document

    injector = Injector(look, [math.inf], random.Random(1), interval_s=(0, 0), timeout_s=timeout_s)
    asyncio.run(injector.run(itertools.repeat(role), count, None if stop_s is None else itertools.repeat(stop_s)))
    return injector


def test_a_kill_is_seen_to_have_happened_and_to_be_taken_over(actor: subprocess.Popen[bytes]) -> None:
    injector = inject(status(row("matcher", 0, actor.pid)), "matcher", timeout_s=30)
    (fault,) = injector.faults
    assert (fault.happened, fault.taken_over, fault.after, injector.given_up) == (True, True, 2, None)
    assert started_at(actor.pid) is None


def test_a_pause_ends_and_leaves_nobody_stopped(actor: subprocess.Popen[bytes]) -> None:
    injector = inject(status(row("matcher", 0, actor.pid)), "matcher", stop_s=0.1, timeout_s=30)
    (fault,) = injector.faults
    assert (fault.happened, fault.taken_over, fault.after, fault.zombie) == (True, True, 1, None)
    assert started_at(actor.pid) is not None
    assert not is_stopped(actor.pid)


def test_what_is_not_taken_over_ends_the_run(actor: subprocess.Popen[bytes]) -> None:
    document = status(row("matcher", 0, actor.pid), row("matcher", 1, actor.pid))

    async def look() -> dict[str, Any]:
        return document

    injector = Injector(look, [0.0], random.Random(1), interval_s=(0, 0), timeout_s=0.1)
    asyncio.run(injector.run(itertools.repeat("matcher"), 5, None))
    assert len(injector.faults) == 1
    assert injector.given_up is not None
    assert injector.given_up.endswith("was not taken over within 0.1 s")


def test_nobody_but_an_actor_of_ray_is_hit(actor: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as stranger:
        injector = inject(status(row("matcher", 0, stranger.pid)), "matcher")
        assert injector.given_up == f"process {stranger.pid} of matcher 0 is not an actor on this machine"
        assert not injector.faults
        assert started_at(stranger.pid) is not None
        stranger.kill()
    assert is_actor(actor.pid)
    assert not is_actor(stranger.pid)


def test_without_a_victim_or_a_status_the_run_ends() -> None:
    injector = inject(status(), "matcher")
    assert injector.given_up == "the status lists no matcher that serves and may be hit"

    async def silent() -> dict[str, Any]:
        raise KittiwakeError("nobody answers")

    injector = Injector(silent, [0.0], random.Random(1), interval_s=(0, 0), timeout_s=0.1)
    asyncio.run(injector.run(itertools.repeat("matcher"), 1, None))
    assert injector.given_up is not None
    assert issubclass(NoVictim, Exception)


# The command line ------------------------------------------------------------------------------------------------


def test_intervals_and_pauses_are_checked() -> None:
    assert recovery.interval("5:15") == (5.0, 15.0)
    assert recovery.seconds("1,5,20") == [1.0, 5.0, 20.0]
    for text in ("5", "15:5", "-1:5", "a:b", "1:nan", "1:601"):
        with pytest.raises(argparse.ArgumentTypeError, match="LOW:HIGH"):
            recovery.interval(text)
    for text in ("", "0", "1,,2", "61", "nan"):
        with pytest.raises(argparse.ArgumentTypeError, match="seconds"):
            recovery.seconds(text)


def test_ways_begin_where_they_should_and_lead_everywhere() -> None:
    endpoints = ["kittiwake://h:1", "kittiwake://h:2", "kittiwake://h:3"]
    assert recovery.ways(endpoints, 1) == "kittiwake://h:2,h:3,h:1"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--kills", "0"], "must be positive"),
        (["--rate", "0"], "must be positive"),
        (["--spares", "65"], "0 to 64"),
        (["--role", "connection_point", "--durable", "no", "--slices", "1-1-1-1"], "needs two"),
    ],
)
def test_a_command_line_without_sense_is_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(SystemExit, match=reason):
        recovery.main(arguments)
