"""Scaling from Python: what is asked of the coordinator, what comes back, and the whole of it in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cluster.admin import Admin, Question
from cluster.errors import KittiwakeError
from cluster.messages import Answer, Request, Status, StatusRequest
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation


class Coordinator:
    """Answers from a list, and keeps what it was asked: (command, arguments)."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self.asked: list[tuple[str, Any]] = []

    async def ask(self, question: Question) -> Answer | Status:
        if isinstance(question, StatusRequest):
            self.asked.append(("status", None))
            return Status(msgspec.json.encode(next(self._answers)))
        assert isinstance(question, Request)
        self.asked.append((question.command, msgspec.json.decode(question.arguments)))
        answer = next(self._answers)
        return Answer(b"", answer) if isinstance(answer, str) else Answer(msgspec.json.encode(answer), "")


def history(*states: str) -> dict[str, Any]:
    return {"operations": [{"number": number, "state": state} for number, state in enumerate(states, 1)]}


@conversation
async def test_scale_asks_for_what_is_given_and_waits_for_the_end() -> None:
    coordinator = Coordinator(
        {"operation": 2}, history("done", "running"), history("done", "running"), history("", "done")
    )
    operation = await Admin(coordinator.ask).scale(matchers=3, exit_points=2, strategy="waves")
    assert operation == {"number": 2, "state": "done"}
    wish = {"matchers": 3, "exit_points": 2, "strategy": "waves"}
    assert coordinator.asked == [("scale", wish)] + [("transitions", {})] * 3


@conversation
async def test_replace_is_a_wish_as_well() -> None:
    coordinator = Coordinator({"operation": 1}, history("running"))
    operation = await Admin(coordinator.ask).replace("matcher", 2, wait=False)
    assert operation == {"number": 1, "state": "running"}
    assert coordinator.asked[0] == ("scale", {"replace": [["matcher", 2]]})


@conversation
async def test_who_waits_for_a_wish_that_was_merged_waits_for_the_later_one() -> None:
    coordinator = Coordinator(
        {"operation": 1}, history("merged", "merged", "running"), *[history("merged", "merged", "aborted")] * 3
    )
    operation = await Admin(coordinator.ask).scale(access_points=2)
    assert operation == {"number": 3, "state": "aborted"}


@conversation
async def test_waiting_ends_in_time_and_the_operation_goes_on() -> None:
    coordinator = Coordinator({"operation": 1}, *[history("running")] * 1000)
    with pytest.raises(KittiwakeError, match=r"operation 1 still runs after 0\.01 s"):
        await Admin(coordinator.ask).scale(matchers=2, timeout_s=0.01)
    assert "abort" not in [command for command, _ in coordinator.asked]


@conversation
async def test_what_the_coordinator_refuses_is_raised_in_its_words() -> None:
    admin = Admin(Coordinator("lost: matcher 0", "no layer", "nothing is under way").ask)
    with pytest.raises(KittiwakeError, match=r"^lost: matcher 0$"):
        await admin.scale(matchers=2)
    with pytest.raises(KittiwakeError, match=r"^no layer$"):
        await admin.plan(matchers=2)
    with pytest.raises(KittiwakeError, match=r"^nothing is under way$"):
        await admin.abort()


@conversation
async def test_the_rest_is_passed_on() -> None:
    coordinator = Coordinator(
        {"state": "serving"}, {"moves": {}}, {"operation": 1, "state": "aborted"}, history("aborted")
    )
    admin = Admin(coordinator.ask)
    assert await admin.status() == {"state": "serving"}
    assert await admin.plan(connection_points=2, replace=[("exit_point", 0)]) == {"moves": {}}
    assert await admin.abort() == {"number": 1, "state": "aborted"}
    assert coordinator.asked == [
        ("status", None),
        ("plan", {"connection_points": 2, "replace": [["exit_point", 0]]}),
        ("abort", {}),
        ("transitions", {}),
    ]


@conversation
async def test_an_operation_that_is_forgotten() -> None:
    with pytest.raises(KittiwakeError, match="knows no operation 1 any more"):
        await Admin(Coordinator({"operations": []}).ask).wait(1)


# In one process ------------------------------------------------------------------------------------------------------


@conversation
async def test_a_local_cluster_scales_while_it_is_used() -> None:
    async with LocalCluster() as cluster, cluster.connect("lab") as client:
        subscriptions = await client.subscribe_many([f"rest == {rest}" for rest in range(5)])
        number = 0

        async def round_trip() -> None:
            nonlocal number
            await client.publish({"n": number, "rest": number % 5})
            one = await anext(subscriptions)
            assert one.attributes == {"n": number, "rest": number % 5}
            assert one.subscription_ids == (number % 5,)
            number += 1

        steps: list[dict[str, Any]] = [
            {"matchers": 3, "exit_points": 2, "access_points": 2},
            {"replace": [("matcher", 0)], "strategy": "all_at_once"},
            {"matchers": 1, "exit_points": 1, "strategy": "stop_swap"},
        ]
        for step in steps:
            scaling = asyncio.create_task(cluster.admin.scale(**step))
            while not scaling.done():
                await round_trip()
            operation = scaling.result()
            assert operation["state"] == "done"
            assert operation["groups_moved"] == operation["groups_minimum"] > 0
        await round_trip()
        assert [one["state"] for one in await cluster.admin.transitions()] == ["done"] * 3
        assert (await cluster.admin.status())["epoch"] == sum(
            len(one["steps"]) for one in await cluster.admin.transitions()
        ) + 1
        assert client.reconnections == 0
        with pytest.raises(KittiwakeError, match="is no layer"):
            await cluster.admin.replace("coordinator", 0)
    with pytest.raises(KittiwakeError, match="is closed"):
        await cluster.admin.status()


@conversation
async def test_a_plan_tells_what_scaling_then_does() -> None:
    async with LocalCluster(matchers=2) as cluster:
        plan = await cluster.admin.plan(matchers=3, exit_points=2)
        assert plan["start"] == {"connection_point": [], "access_point": [], "matcher": [2], "exit_point": [1]}
        assert sum(plan["moves"].values()) == plan["groups_moved"] == plan["groups_minimum"] == 1365
        assert await cluster.admin.transitions() == []
        operation = await cluster.admin.scale(matchers=3, exit_points=2)
        assert operation["wanted"] == plan["wanted"]
        assert operation["groups_moved"] == plan["groups_moved"]
        assert len(operation["steps"]) == plan["view_changes_about"]
