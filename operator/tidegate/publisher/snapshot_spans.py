"""Spans of the xDS server: a trace per snapshot, with its decisions and the gateways that ACK or NACK it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.telemetry.tracing import DECISION, NO_SPAN, REVISION, TraceSpan
from tidegate.xds.resources import Snapshot

_NODE = "tidegate.gateway"


@dataclass(slots=True)
class SnapshotSpans:
    """Spans below `root` for what the publisher and the server report.

    Gateways' answers are recorded for the newest snapshot only.
    """

    root: TraceSpan
    _newest: TraceSpan = field(default=NO_SPAN)
    _revision: str = ""

    def record_snapshot(self, snapshot: Snapshot, decisions: Sequence[str], seconds: float) -> None:
        """Record a new snapshot, the seconds that it took, and the decisions whose pods it contains."""
        if self.root is NO_SPAN:
            return
        attributes = {REVISION: snapshot.revision, "tidegate.decisions": tuple(decisions)}
        self._newest = self.root.record_child("snapshot", attributes, lasted_s=seconds)
        self._revision = snapshot.revision
        # One span per decision, since some trace stores cannot search for an item of a list.
        for decision in decisions:
            self._newest.record_child("decision routed", {DECISION: decision, REVISION: snapshot.revision})

    def record_accepted(self, node: str, snapshot: Snapshot, seconds: float) -> None:
        """Record that a gateway runs the snapshot, and the seconds from its build, or from the gateway's connection if that came later."""
        self._newest.record_child(
            "snapshot accepted", {_NODE: node, REVISION: snapshot.revision}, lasted_s=seconds
        )

    def record_rejected(self, node: str, message: str) -> None:
        """Record that a gateway rejected a part of the snapshot, with its message."""
        self._newest.record_child("snapshot refused", {_NODE: node, REVISION: self._revision}, error=message)
