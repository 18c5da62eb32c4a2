"""The controller's three sets, failures, an operator's words, and what explain says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.controller import Controller, Memory, Request
from autoscaler.explain import document, text_of
from autoscaler.policy import ScalingPolicy
from autoscaler.signals import Signals
from tests.unit.autoscaling import Knowing, decider, histogram, layer, policy, seen

README = Path(__file__).parents[2] / "README.md"
BUSY = seen({"matcher": 2}, busy={"matcher": 0.9})
CALM = seen({"matcher": 2}, busy={"matcher": 0.5})
MOVING = seen({"matcher": 2}, busy={"matcher": 0.9}, transition=True)
GROWN = seen({"matcher": 4}, busy={"matcher": 0.5})


def controller(made: ScalingPolicy | None = None, memory: Memory | None = None) -> Controller:
    return Controller(decider(made or policy()), memory)


def test_planned_requested_observed() -> None:
    one = controller()
    assert one.tick(0, CALM) == []
    assert (one.planned, one.requested, one.observed["matcher"]) == ({}, {}, 2)
    assert one.tick(1, BUSY) == [Request({"matcher": 4})]
    assert (one.planned, one.requested, one.observed["matcher"]) == ({"matcher": 4}, {"matcher": 4}, 2)
    one.accepted(7)
    assert one.tick(2, MOVING) == []
    assert one.requested == {"matcher": 4}
    one.ended("done")
    assert one.tick(3, GROWN) == []
    assert (one.planned, one.requested, one.observed["matcher"]) == ({}, {}, 4)
    assert [(entry.outcome, entry.operation) for entry in one.entries(9) if entry.outcome] == [("done", 7)]


def test_one_request_at_a_time() -> None:
    one = controller()
    assert one.tick(0, BUSY)
    assert one.tick(1, BUSY) == []  # the coordinator has not answered yet
    assert one.entries(1)[0].outcome == "waiting"
    one.accepted(1)
    assert one.tick(2, BUSY) == []


def test_a_request_that_came_to_nothing_is_tried_again_after_a_growing_pause() -> None:
    one = controller()
    at, tried = 0.0, []
    while at < 200:
        if one.tick(at, BUSY):
            tried.append(at)
            one.accepted(len(tried))
            one.ended("aborted", "matcher 2 did not start: no room")
        at += 1
    assert tried == [0, 10, 30, 70, 150]
    entry = one.entries(1)[0]
    assert entry.reason == "tried 5 times in vain, again in 111 s: matcher 2 did not start: no room"


def test_other_sizes_may_be_tried_at_once() -> None:
    one = controller()
    assert one.tick(0, BUSY)
    one.refused("the coordinator stops")
    assert one.tick(1, BUSY) == []
    assert one.tick(2, seen({"matcher": 2}, busy={"matcher": 1.0})) == []
    assert one.tick(3, seen({"matcher": 3}, busy={"matcher": 0.9})) == [Request({"matcher": 6})]


def test_a_request_of_which_nothing_is_heard_is_given_up() -> None:
    one = controller()
    assert one.tick(0, BUSY)
    assert one.tick(600, BUSY) == []
    assert one.tick(601, BUSY) == []
    assert one.entries(2)[0].reason == "nothing was heard of it"
    assert one.tick(700, BUSY) == [Request({"matcher": 4})]


def test_advise_asks_for_nothing_and_says_what_it_would() -> None:
    one = controller(policy(mode="advise"))
    assert [one.tick(at, BUSY) for at in range(3)] == [[], [], []]
    (entry,) = one.entries(9)
    assert (entry.outcome, entry.repeats, entry.decision.targets) == ("advised", 3, {"matcher": 4})


def test_an_operators_words_hold_until_others_and_survive() -> None:
    one = controller()
    one.pause()
    assert one.tick(0, BUSY) == []
    assert one.entries(1)[0].decision.held == "paused"
    again = controller(memory=one.memory())
    assert again.paused
    again.resume()
    again.set_mode("manual")
    assert again.tick(1, BUSY) == []
    third = controller(memory=again.memory())
    assert (third.mode, third.paused) == ("manual", False)
    third.set_mode("auto")
    assert third.tick(2, BUSY)


def test_a_block_survives() -> None:
    made = policy(guards={"warmup_s": 0, "min_gain": 0.1, "block_s": 100})
    one = controller(made)
    rate = {"publications_per_s": 10.0}
    assert one.tick(0, seen({"matcher": 2}, busy={"matcher": 0.9}, **rate))
    one.accepted(1)
    one.ended("done")
    one.tick(1, seen({"matcher": 4}, busy={"matcher": 0.9}, **rate))
    one.tick(2, seen({"matcher": 4}, busy={"matcher": 0.9}, **rate))
    memory = msgspec.json.decode(msgspec.json.encode(one.memory()), type=Memory)
    assert {layer: (block.since_s, block.times) for layer, block in memory.blocks.items()} == {"matcher": (2, 1)}
    again = controller(made, memory)
    assert again.tick(50, seen({"matcher": 4}, busy={"matcher": 0.9}, **rate)) == []
    assert again.tick(102, seen({"matcher": 4}, busy={"matcher": 0.9}, **rate))


def test_a_wish_names_layers_as_the_coordinator_does() -> None:
    assert Request({"matcher": 4, "exit_point": 2}).wish == {"matchers": 4, "exit_points": 2}
    assert Request({"access_point": 1}, "waves").wish == {"access_points": 1, "strategy": "waves"}


def test_decisions_that_say_the_same_are_one() -> None:
    one = controller()
    for at in range(100):
        one.tick(at, CALM)
    (entry,) = one.entries(9)
    assert (entry.repeats, entry.since_s, entry.decision.at_s) == (100, 0, 99)
    assert one.entries(0) == []


FULL = policy(
    metadata={"name": "city-air"},
    look_back_period_s=10,
    slo=[{"name": "delay", "target": 100}],
    cost={"replica_hour": {"matcher": 0.04}, "currency": "EUR", "budget_per_hour": 0.2},
    layers={
        "matcher": layer(
            {"type": "utilization", "target": 0.6},
            {"type": "slo", "name": "delay"},
            {"type": "queue", "target_per_replica": 1000},
            max_replicas=8,
        ),
        "exit_point": layer({"type": "ratio", "of": "matcher", "one_per": 4}, max_replicas=4),
    },
)


def full(size: int, busy: float, **parts: Any) -> Signals:
    return seen(
        {"matcher": size},
        busy={"matcher": busy},
        backlog={"matcher": 120},
        delay=histogram(ms_50=998, ms_150=2),
        publications_per_s=1600.0,
        held={"matcher": 50_000},
        **parts,
    )


def explained() -> Controller:
    one = Controller(decider(FULL, Knowing(1000, 1900, 2700, 3400, only="matcher", reason="3 would be 59% busy")))
    one.tick(1_796_000_000, full(2, 0.5))
    one.tick(1_796_000_012, full(2, 0.94))
    one.accepted(12)
    one.ended("aborted", "matcher 3 did not start: no node has room")
    return one


def test_explain_reads_well() -> None:
    text = text_of(document(explained(), 5))
    assert text == EXPLAINED, text


def test_the_readme_shows_it() -> None:
    headline, _, rest = EXPLAINED.partition("\n\n")
    assert f"{headline}\n\n{rest.partition(chr(10) * 2)[2]}" in README.read_text(encoding="utf-8")


def test_explain_as_json_is_whole() -> None:
    found = json.loads(msgspec.json.encode(document(explained(), 1)))
    (decision,) = found["decisions"]
    assert (found["policy"], found["mode"], found["paused"]) == ("city-air", "auto", False)
    assert decision["decision"]["targets"] == {"matcher": 4}
    assert decision["outcome"] == "aborted"
    assert next(stage["name"] for stage in decision["decision"]["layers"][0]["stages"]) == "triggers"


def test_explain_before_the_first_signals() -> None:
    assert text_of(document(controller(), 5)) == "policy test, auto; no signals yet\nno decision yet"


EXPLAINED = """\
policy city-air, auto; connection_point 1, access_point 1, matcher 2, exit_point 1

2026-11-30 00:53:20 stays

2026-11-30 00:53:32 matcher 2 -> 4; aborted (operation 12): matcher 3 did not start: no node has room
  seen: 1,600 publications/s, delay 49.8 ms (budget left 80%), 0.08 -> 0.16 EUR/h
  matcher 2 -> 4
    model      utilization 84% of 1,900/s, efficiency 0.95
    rests on   430 observations at 2 sizes, this one among them; off by about 4%
    wish       utilization: 3.13, busiest matcher 94%, target 60%; model: 3 would be 59% busy
    wish       slo delay: 0, no budget burns too fast
    wish       queue: 0.24, 240 lane_backlog, 1,000 a replica
    triggers   3.13: the largest wish is of utilization
    passed     forecast, gates, tolerance, factor, stabilisation, delay, rate, limits
    why not less: utilization asks for it: busiest matcher 94%, target 60%; model: 3 would be 59% busy
  exit_point 1 stays
    model      says nothing yet: 3 observations at 1 size, this one among them; off by about 80%; too unsure to size by
    wish       ratio: 1, one for every 4 of 4 matchers
    triggers   1: the largest wish is of ratio
    passed     forecast, gates, tolerance, factor, stabilisation, delay, rate, limits
    why not more: ratio asks for no more: one for every 4 of 4 matchers
    why not less: ratio asks for it: one for every 4 of 4 matchers"""


@pytest.mark.parametrize("count", [1, 3])
def test_explain_shows_as_many_as_are_asked_for(count: int) -> None:
    one = controller()
    for at in range(4):
        one.tick(at, [CALM, seen({"matcher": 3}, busy={"matcher": 0.5})][at % 2])
    assert len(document(one, count)["decisions"]) == count
