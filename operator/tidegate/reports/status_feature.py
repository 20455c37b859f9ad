"""Report the status of one FeatureCompute: its plan and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tidegate.api.feature_compute import FeatureCompute
from tidegate.reports.status import Beside, StatusReport, field, parts


class FeatureStatusReport(StatusReport):
    """One FeatureCompute."""

    kind: Literal["FeatureCompute"] = "FeatureCompute"
    plan_hash: str | None
    outputs: tuple[str, ...]
    replicas: int
    existing: int
    ready: int

    def summary(self, *, wide: bool) -> Iterator[str]:
        """Yield plan, outputs and replicas."""
        plan = self.plan_hash or "none"
        yield field("plan", plan if wide else plan[:12])
        yield field("outputs", ", ".join(self.outputs) or "-")
        yield field("replicas", f"{self.ready} ready of {self.replicas}, {self.existing} exist")


def feature_status(one: FeatureCompute, beside: Beside) -> FeatureStatusReport:
    """Report a FeatureCompute from the object and what was read with it."""
    status = one.status
    return FeatureStatusReport(
        **parts(one, beside),
        plan_hash=status.plan_hash,
        outputs=tuple(output.name for output in status.outputs),
        replicas=one.spec.replicas,
        existing=status.replicas,
        ready=status.ready_replicas,
    )
