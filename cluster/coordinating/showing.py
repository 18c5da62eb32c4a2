"""The cluster as a JSON document, for people and scripts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cluster.aggregates import of_cluster, of_slices
from cluster.coordinating.operations import Operations
from cluster.coordinating.records import Report, State
from cluster.coordinating.recovering import Recovering
from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.messages import Peer
from cluster.recovery import Recovery


class Showing:
    """Shows the cluster. name: as configured."""

    def __init__(
        self, shared: Shared, name: str, roster: Roster, operations: Operations, recovering: Recovering
    ) -> None:
        self._shared = shared
        self._name = name
        self._roster = roster
        self._operations = operations
        self._recovering = recovering

    def document(self, process: Mapping[str, int] | None, metrics_address: str) -> dict[str, object]:
        """Return its state, and a row for each slot. process, metrics_address: the coordinator's own, if known."""
        shared = self._shared
        pairs = {
            peer: (report.measured_before, report.measured)
            for peer, report in sorted(shared.reports.items())
            if report.measured is not None
        }
        measures = of_slices(pairs)
        members = []
        for peer, _ in self._roster.processes():
            row = self._row(peer, shared.reports[peer])
            if peer in measures and shared.reports[peer].join is not None:
                row["measures"] = measures[peer]
            members.append(row)
        recovery, operation = shared.recovery, self._operations.present
        document: dict[str, object] = {
            "name": self._name,
            "state": shared.state.value if recovery is None else "recovering",
            "epoch": None if shared.view is None else shared.view.epoch,
            "lost": sum(row["state"] == "lost" for row in members),
            "sessions": len(shared.sessions),
            "durable_sessions": shared.sessions.durable,
            "recovery": None if recovery is None else self._recovery(recovery),
            "recovered": self._recovering.recovered,
            "recoveries": self._recovering.recoveries,
            "operation": None if operation is None else msgspec.to_builtins(self._operations.shown(operation)),
            "metrics_address": metrics_address or None,
            "measures": of_cluster(pairs),
            "members": members,
        }
        if process is not None:
            document["coordinator"] = dict(process)
        return document

    def _row(self, peer: Peer, report: Report) -> dict[str, object]:
        row: dict[str, object] = {"layer": peer.layer, "slot": peer.slot, "state": self._state(peer, report)}
        if report.join is not None:
            row |= {
                "pid": report.join.pid,
                "incarnation": report.join.incarnation,
                "address": f"{report.join.host}:{report.join.port}",
                "client_address": report.join.client_address or None,
                "metrics_address": report.join.metrics_address or None,
                "heard_ms_ago": self._shared.now_ms - report.heard_ms,
                "counters": report.counters,
            }
        return row

    def _state(self, peer: Peer, report: Report) -> str:
        shared = self._shared
        if report.join is None:
            return "starting"
        if shared.lost(report):
            return "lost"
        if not report.installed:
            return "joining"
        if shared.view is not None and shared.view.member(peer) is None and shared.state is State.SERVING:
            return "leaving" if peer in shared.leaving else "joining"
        return "moving clients" if report.moving else "serving"

    def _recovery(self, recovery: Recovery) -> dict[str, object]:
        return {
            "phase": recovery.phase.value,
            "replaced": [str(peer) for peer in sorted(recovery.replaced)],
            "waiting": [str(peer) for peer in sorted(recovery.waiting)],
            "troubles": {str(peer): reason for peer, reason in sorted(recovery.troubles.items())},
            "for_ms": self._shared.now_ms - recovery.started_ms,
        }
