"""Report what the gateways counted for both sides of a release, against the limits of its checks."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import ReleaseMetric, ReleaseSpec, ReleaseStatus
from tidegate.planning.access.release_checks import find_p99_ms
from tidegate.planning.access.release_sample import RequestTally


class SideReport(ApiModel):
    """One side of a release over the present sample."""

    requests: int
    requests_per_second: float | None
    """Absent until the sample has lasted a second."""
    failures: int
    failed_share: float | None
    """Absent without requests."""
    latency_p99_ms: int | None
    """Absent without an answer."""

    @classmethod
    def from_tally(cls, tally: RequestTally, seconds: float) -> Self:
        """Return the report of what was counted in `seconds`."""
        return cls(
            requests=tally.requests,
            requests_per_second=tally.requests / seconds if seconds >= 1 else None,
            failures=tally.failures,
            failed_share=tally.failures / tally.requests if tally.requests else None,
            latency_p99_ms=find_p99_ms(tally),
        )


class ReleaseFigures(ApiModel):
    """Both sides of a release over the present sample, and the limits of the checks."""

    target: SideReport
    stable: SideReport
    stable_inferences: tuple[str, ...]
    sample_began: datetime
    sample_ended: datetime
    """When the controllers wrote these counts."""
    failed_share_limit: float | None
    """Absent without a check ErrorRate."""
    latency_limit_ms: int | None
    """Absent without a check LatencyP99, and until the stable side has enough requests."""

    @classmethod
    def from_access(cls, access: ModelAccess) -> Self | None:
        """Return the figures of an access's release; None before it has begun."""
        spec, status = access.spec.release, access.status.release
        if spec is None or status is None:
            return None
        seconds = (status.checked - status.window_began).total_seconds()
        stable = [
            target.inference
            for route in access.spec.routes
            if route.name == spec.route
            for target in route.targets or ()
            if target.inference != spec.target
        ]
        return cls(
            target=SideReport.from_tally(RequestTally.parse(status.target), seconds),
            stable=SideReport.from_tally(RequestTally.parse(status.stable), seconds),
            stable_inferences=tuple(stable),
            sample_began=status.window_began,
            sample_ended=status.checked,
            failed_share_limit=_find_error_limit(spec),
            latency_limit_ms=_find_latency_limit(status),
        )


def _find_error_limit(spec: ReleaseSpec) -> float | None:
    limits = (check.max for check in spec.checks if check.metric is ReleaseMetric.ERROR_RATE)
    return next((float(limit) for limit in limits if limit is not None), None)


def _find_latency_limit(status: ReleaseStatus) -> int | None:
    checks = (check for check in status.checks if check.check == ReleaseMetric.LATENCY_P99)
    return next((check.bound_ms for check in checks), None)
