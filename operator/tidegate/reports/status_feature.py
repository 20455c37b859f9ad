"""Report the status of one FeatureCompute: its plan and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tidegate.api.feature_compute import FeatureCompute
from tidegate.reports.status import RelatedObjects, StatusReport, common_fields, format_field


class FeatureStatusReport(StatusReport):
    """One FeatureCompute."""

    kind: Literal["FeatureCompute"] = "FeatureCompute"
    plan_hash: str | None
    outputs: tuple[str, ...]
    replicas: int
    existing: int
    ready: int

    def summary_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield plan, outputs and replicas."""
        plan = self.plan_hash or "none"
        yield format_field("plan", plan if wide else plan[:12])
        yield format_field("outputs", ", ".join(self.outputs) or "-")
        yield format_field("replicas", f"{self.ready} ready of {self.replicas}, {self.existing} exist")


def report_features(features: FeatureCompute, related: RelatedObjects) -> FeatureStatusReport:
    """Report a FeatureCompute from the object and what was read with it."""
    status = features.status
    return FeatureStatusReport(
        **common_fields(features, related),
        plan_hash=status.plan_hash,
        outputs=tuple(output.name for output in status.outputs),
        replicas=features.spec.replicas,
        existing=status.replicas,
        ready=status.ready_replicas,
    )
