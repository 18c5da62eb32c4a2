"""Operators' requests: a command with a JSON document as its arguments, answered by another one, or by why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cluster.aggregates import rate
from cluster.busiest import document as busiest_document
from cluster.busiest import ranked
from cluster.coordinating.operations import Operations
from cluster.coordinating.shared import Shared
from cluster.coordinating.wishes import Wishes
from cluster.errors import KittiwakeError
from cluster.messages import MATCHER, Answer, Peer, Request, Send
from cluster.questions import Questions
from cluster.wish import WishError

BUSIEST_MOST = 50

Autoscaler = Callable[[dict[str, Any]], dict[str, Any]]
"""What answers operators' requests to the autoscaler. Raises KittiwakeError."""


class Requests:
    """Has each command done by the part whose it is. Whatever is wrong with a request goes back in the answer."""

    def __init__(self, shared: Shared, operations: Operations, wishes: Wishes, questions: Questions) -> None:
        self._shared = shared
        self._operations = operations
        self._wishes = wishes
        self._questions = questions

    def answer(self, request: Request, autoscaler: Autoscaler | None) -> Answer:
        """Do what is asked; what comes of it is under way when this returns."""
        try:
            arguments = msgspec.json.decode(request.arguments or b"{}", type=dict[str, Any])
            match request.command:
                case "scale":
                    document: Any = self._wishes.scale(arguments)
                case "plan":
                    document = self._wishes.plan(arguments)
                case "abort":
                    document = self._wishes.abort()
                case "autoscaler":
                    if autoscaler is None:
                        raise WishError("this cluster has no autoscaler: its configuration names no policy")
                    document = autoscaler(arguments)
                case "busiest":
                    document = self._busiest(arguments)
                case "transitions":
                    operations = [self._operations.shown(one) for one in self._operations.history]
                    document = {"operations": msgspec.to_builtins(operations)}
                case _:
                    raise WishError(f"unknown command {request.command!r}")
        except (KittiwakeError, msgspec.DecodeError) as error:
            return Answer(b"", str(error))
        return Answer(msgspec.json.encode(document), "")

    def why(self, operator: Peer, arguments: bytes) -> None:
        """Pass a question on to the connection points that know; the operator is answered when they have."""
        shared = self._shared
        try:
            asked = self._questions.ask(operator, arguments, shared.sessions, self._unreachable, shared.now_ms)
        except (WishError, msgspec.DecodeError) as error:
            asked = [Send(operator, Answer(b"", str(error)))]
        shared.out += asked

    def _busiest(self, arguments: dict[str, Any]) -> dict[str, Any]:
        top = arguments.get("top", 20)
        if not isinstance(top, int) or not 1 <= top <= BUSIEST_MOST:
            raise WishError(f"top is {top!r}, allowed is 1 to {BUSIEST_MOST}")
        reported: dict[int, tuple[list[tuple[int, int]], float]] = {}
        hits_per_s = 0.0
        missing = []
        for peer, report in sorted(self._shared.reports.items()):
            if peer.layer != MATCHER:
                continue
            hits = None if report.measured is None else rate((report.measured_before, report.measured), "hits")
            if report.measured is None or hits is None:
                missing.append(str(peer))
                continue
            hits_per_s += hits
            reported[peer.slot] = (report.measured.busiest, hits)
        return busiest_document(ranked(reported), hits_per_s, self._shared.sessions.names(), top, missing)

    def _unreachable(self, peer: Peer) -> str | None:
        """Return why a connection point cannot be asked; None if it can."""
        report = self._shared.reports.get(peer)
        if report is None:
            return "unknown"
        if report.join is None:
            return "starting"
        return "lost" if self._shared.lost(report) else None
