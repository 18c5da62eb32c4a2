"""What is known of the cluster in numbers: for the autoscaler, and for whoever collects metrics."""

from __future__ import annotations

from cluster.coordinating.operations import Operations
from cluster.coordinating.shared import Shared
from cluster.messages import DATA_LAYERS, Peer
from cluster.observed import Observed, Slice


class Measures:
    """Looks, and changes nothing."""

    def __init__(self, shared: Shared, operations: Operations) -> None:
        self._shared = shared
        self._operations = operations

    def observed(self) -> Observed:
        """Return what is known of the cluster at this moment."""
        shared = self._shared
        done = next((one for one in reversed(self._operations.history) if one.state == "done"), None)
        view = shared.view
        slices = {}
        if view is not None:
            for member in sorted(view.members, key=lambda member: member.peer):
                report = shared.reports.get(member.peer)
                incarnation, measured = (0, None) if report is None else (report.incarnation, report.measured)
                slices[member.peer] = Slice(incarnation, measured, member.host)
        return Observed(
            shared.now_ms,
            0 if view is None else view.epoch,
            {layer: 0 if view is None else len(view.peers(layer)) for layer in DATA_LAYERS},
            self.changing,
            slices,
            None if done is None else (done.number, done.duration_ms),
        )

    @property
    def changing(self) -> bool:
        """Whether the view is changing, or is to."""
        shared = self._shared
        return self._operations.running or shared.transition is not None or shared.recovery is not None

    def gauges(self) -> dict[str, int]:
        """Return the coordinator's own counters, and what it holds, by the keys of `metrics.py`.

        Those of each layer end with its name.
        """
        shared = self._shared
        observed = self.observed()
        lost = [peer for peer, report in shared.reports.items() if shared.lost(report) or report.dead]
        dead = set() if shared.recovery is None else set(shared.recovery.replaced)
        found = dict(shared.ledger.counters) | {
            "view_epoch": observed.epoch,
            "transition_running": int(observed.changing),
            "coordinator_sessions": len(shared.sessions),
        }
        for layer in DATA_LAYERS:
            found[f"slices_{layer}"] = observed.sizes[layer]
            found[f"slices_wanted_{layer}"] = len(shared.memory.wanted.get(layer, ()))
            found[f"slices_lost_{layer}"] = len([peer for peer in {*lost, *dead} if peer.layer == layer])
        return found

    def histograms(self) -> dict[str, list[int]]:
        """Return its own histograms, as in a report."""
        return {key: histogram.state for key, histogram in self._shared.ledger.histograms.items()}

    def endpoints(self) -> dict[Peer, str]:
        """Return where the metrics of the slices are to be had, by slice; of those alone that serve any."""
        joins = {peer: report.join for peer, report in sorted(self._shared.reports.items()) if not report.dead}
        return {peer: join.metrics_address for peer, join in joins.items() if join is not None and join.metrics_address}
