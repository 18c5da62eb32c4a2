"""Scaling a running cluster from Python. Who asks the coordinator, and how, is handed in.

async with launch(config) as broker:
    await broker.admin.scale(matchers=3, exit_points=2)
    await broker.admin.replace("matcher", 2)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from cluster.errors import KittiwakeError
from cluster.messages import Answer, Request, Status, StatusRequest
from cluster.verdict import judged

POLL_S = 0.05
"""Between two looks at an operation that is waited for."""

Question = Request | StatusRequest
Ask = Callable[[Question], Awaitable[Answer | Status]]
"""Puts a question to the coordinator and returns its answer. Raises KittiwakeError if there is none."""

Document = dict[str, Any]


class Admin:
    """What an operator can do. All methods raise KittiwakeError with the coordinator's own words when it refuses.

    An operation is a wish and what became of it, as a dict: `number`, `wanted` (slots by layer), `state` (running,
    done, aborted or merged), `reason`, `groups_moved`, `groups_minimum`, `entries`, `bytes`, `duration_ms`, and
    `steps`, one for each view change, with its `phases_ms`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def status(self) -> Document:
        """Return the state of the cluster and of each slice."""
        answer = await self._ask(StatusRequest())
        assert isinstance(answer, Status), f"{type(answer).__name__} instead of a Status"
        document: Document = msgspec.json.decode(answer.document)
        return document

    async def transitions(self) -> list[Document]:
        """Return the operations so far, oldest first."""
        operations: list[Document] = (await self._request("transitions", {}))["operations"]
        return operations

    async def scale(
        self,
        *,
        connection_points: int | None = None,
        access_points: int | None = None,
        matchers: int | None = None,
        exit_points: int | None = None,
        replace: Sequence[tuple[str, int]] = (),
        strategy: str | None = None,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> Document:
        """Bring the layers to so many slices, and put new processes in the place of those in `replace`; all in one.

        wait: until it is done or given up; the operation returned says which. If a later wish was merged with it, it is
              that one. Without it, the operation is returned as it is at its beginning.
        timeout_s: raise KittiwakeError if it still runs then; it goes on.
        """
        counts = (connection_points, access_points, matchers, exit_points)
        answer = await self._request("scale", _wish(*counts, replace, strategy))
        number: int = answer["operation"]
        return await self.wait(number, timeout_s) if wait else await self._operation(number)

    async def replace(
        self, layer: str, slot: int, *, strategy: str | None = None, wait: bool = True, timeout_s: float | None = None
    ) -> Document:
        """Have a new process take over from this slice; it gets another slot. As `scale` otherwise."""
        return await self.scale(replace=[(layer, slot)], strategy=strategy, wait=wait, timeout_s=timeout_s)

    async def plan(
        self,
        *,
        connection_points: int | None = None,
        access_points: int | None = None,
        matchers: int | None = None,
        exit_points: int | None = None,
        replace: Sequence[tuple[str, int]] = (),
        strategy: str | None = None,
    ) -> Document:
        """Return what `scale` with the same arguments would do, and do nothing."""
        counts = (connection_points, access_points, matchers, exit_points)
        return await self._request("plan", _wish(*counts, replace, strategy))

    async def busiest(self, top: int = 20) -> Document:
        """Return which subscriptions most notifications are for, from the matchers' samples.

        Returns: `hits_per_s` of all, `subscriptions` (client_id, None where it is not connected; subscription, the
        client's number of it; matcher; hits_per_s; share, 0 to 1), `missing`: matchers that have not reported yet.
        """
        return await self._request("busiest", {"top": top})

    async def abort(self) -> Document:
        """Give up the operation that runs; return it. A view change that is decided goes to its end first."""
        number: int = (await self._request("abort", {}))["operation"]
        return await self._operation(number)

    async def why(
        self,
        attributes: Mapping[str, Any],
        *,
        client_id: str | None = None,
        number: int = 0,
        subscription: int | None = None,
        publisher: str = "",
        sequence: int = 0,
    ) -> Document:
        """Tell why a subscription matches a publication or not, and what became of its delivery.

        client_id, number: the subscriber, and its own number of the subscription; or subscription: the cluster's id.
        attributes: the publication's, flat. publisher, sequence: its publisher's id and number, to tell the delivery.
        Returns: `matches` (None if there is no such subscription), `filter` and `explanation` (of its normal form; see
        cluster.language.Explanation.to_json; None for a filter that always matches), `delivery`: code and detail (see
        cluster/verdict.py; None if no publisher is given), and the facts: `subscriber` and `publisher`.
        """
        who: Document = {"client_id": client_id, "number": number}
        if client_id is None:
            if subscription is None:
                raise KittiwakeError("why needs a client's id and the number of its subscription, or an id")
            who = {"subscription": subscription}
        facts = await self._request("why", {**who, "publisher": publisher, "sequence": sequence})
        return judged(facts, attributes, sequence if publisher else None)

    async def autoscaler(self, action: str = "explain", **arguments: Any) -> Document:
        """Ask the autoscaler, or tell it something; return its state and last decisions, see `autoscaler/explain.py`.

        explain:       count, how many decisions (1).
        mode:          mode, `auto`, `advise` or `manual`. pause, resume: freeze everything, and end that. What is told
                       holds until something else is, restarts included.
        Raises: KittiwakeError if the cluster has no autoscaler, or on another action.
        """
        return await self._request("autoscaler", {"action": action, **arguments})

    async def wait(self, number: int, timeout_s: float | None = None) -> Document:
        """Return the operation once it runs no more; if a later one was merged with it, that one, once it does not."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    operation = await self._operation(number)
                    if operation["state"] == "merged":
                        number += 1  # what came next, as that is what it was merged into
                    elif operation["state"] != "running":
                        return operation
                    else:
                        await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise KittiwakeError(f"operation {number} still runs after {timeout_s:g} s") from error

    async def _operation(self, number: int) -> Document:
        for operation in reversed(await self.transitions()):
            if operation["number"] == number:
                return operation
        raise KittiwakeError(f"the coordinator knows no operation {number} any more")

    async def _request(self, command: str, arguments: Document) -> Document:
        answer = await self._ask(Request(command, msgspec.json.encode(arguments)))
        assert isinstance(answer, Answer), f"{type(answer).__name__} instead of an Answer"
        if answer.error:
            raise KittiwakeError(answer.error)
        document: Document = msgspec.json.decode(answer.document)
        return document


def _wish(
    connection_points: int | None,
    access_points: int | None,
    matchers: int | None,
    exit_points: int | None,
    replace: Sequence[tuple[str, int]],
    strategy: str | None,
) -> Document:
    wish: Document = {
        "connection_points": connection_points,
        "access_points": access_points,
        "matchers": matchers,
        "exit_points": exit_points,
        "replace": [list(pair) for pair in replace] or None,
        "strategy": strategy,
    }
    return {name: value for name, value in wish.items() if value is not None}
