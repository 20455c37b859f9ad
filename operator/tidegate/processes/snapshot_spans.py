"""Spans of the xDS server: a trace for each snapshot, with the decisions that it brings and every gateway that accepted or refused it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.routing.snapshot import Snapshot
from tidegate.telemetry.tracing import DECISION, NOTHING, REVISION, Span

_NODE = "tidegate.gateway"


@dataclass(slots=True)
class SnapshotSpans:
    """What the publisher and the server say, as spans below `root`; gateways are heard about the newest snapshot alone."""

    root: Span
    _newest: Span = field(default=NOTHING)
    _revision: str = ""

    def built(self, snapshot: Snapshot, decisions: Sequence[str], seconds: float) -> None:
        """A snapshot of other content was made, in so many seconds, with pods that are there by these decisions."""
        if self.root is NOTHING:
            return
        named = {REVISION: snapshot.revision, "tidegate.decisions": tuple(decisions)}
        self._newest = self.root.happened("snapshot", named, lasted_s=seconds)
        self._revision = snapshot.revision
        # A list is not what all stores of traces can be asked for by one of its items.
        for decision in decisions:
            self._newest.happened("decision routed", {DECISION: decision, REVISION: snapshot.revision})

    def accepted(self, node: str, snapshot: Snapshot, seconds: float) -> None:
        """A gateway runs it, so many seconds after it was there."""
        self._newest.happened(
            "snapshot accepted", {_NODE: node, REVISION: snapshot.revision}, lasted_s=seconds
        )

    def refused(self, node: str, message: str) -> None:
        """A gateway refused a part of it, in these words."""
        self._newest.happened("snapshot refused", {_NODE: node, REVISION: self._revision}, failed=message)
