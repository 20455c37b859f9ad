"""Spans of the xDS server: a trace per snapshot, with its decisions and the gateways that ACK or NACK it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.routing.snapshot import Snapshot
from tidegate.telemetry.tracing import DECISION, NOTHING, REVISION, Span

_NODE = "tidegate.gateway"


@dataclass(slots=True)
class SnapshotSpans:
    """Spans below `root` for what the publisher and the server report.

    Gateways' answers are recorded for the newest snapshot only.
    """

    root: Span
    _newest: Span = field(default=NOTHING)
    _revision: str = ""

    def built(self, snapshot: Snapshot, decisions: Sequence[str], seconds: float) -> None:
        """Record a new snapshot, the seconds that it took, and the decisions whose pods it contains."""
        if self.root is NOTHING:
            return
        attributes = {REVISION: snapshot.revision, "tidegate.decisions": tuple(decisions)}
        self._newest = self.root.happened("snapshot", attributes, lasted_s=seconds)
        self._revision = snapshot.revision
        # One span per decision, since some trace stores cannot search for an item of a list.
        for decision in decisions:
            self._newest.happened("decision routed", {DECISION: decision, REVISION: snapshot.revision})

    def accepted(self, node: str, snapshot: Snapshot, seconds: float) -> None:
        """Record that a gateway runs the snapshot, so many seconds after it was built."""
        self._newest.happened(
            "snapshot accepted", {_NODE: node, REVISION: snapshot.revision}, lasted_s=seconds
        )

    def refused(self, node: str, message: str) -> None:
        """Record that a gateway rejected a part of the snapshot, with its message."""
        self._newest.happened("snapshot refused", {_NODE: node, REVISION: self._revision}, failed=message)
